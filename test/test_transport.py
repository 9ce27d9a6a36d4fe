"""The shipped Fast DDS profile is chosen where nothing speaks against it, and it does its work."""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vla_ros.ros import transport
from vla_ros.ros.transport import (
    free_shared_memory,
    remove_stale_segments,
    shipped_profile,
    transport_additions,
)

PLENTY = 1 << 30
CONTAINER = 64 << 20


@pytest.mark.parametrize('environment', [
    {}, {'RMW_IMPLEMENTATION': ''}, {'RMW_IMPLEMENTATION': 'rmw_fastrtps_cpp'},
    {'RMW_IMPLEMENTATION': 'rmw_fastrtps_dynamic_cpp'}, {'FASTDDS_DEFAULT_PROFILES_FILE': ''}])
def test_the_profile_is_added_for_fast_dds(environment: dict[str, str]) -> None:
    path = str(shipped_profile('fastdds.xml'))
    assert transport_additions(environment, PLENTY) == {'FASTDDS_DEFAULT_PROFILES_FILE': path}


def test_humble_gets_the_profile_by_its_old_name() -> None:
    path = str(shipped_profile('fastdds.xml'))
    added = transport_additions({'ROS_DISTRO': 'humble'}, PLENTY)
    assert added == {'FASTRTPS_DEFAULT_PROFILES_FILE': path}


@pytest.mark.parametrize('environment', [
    {'FASTDDS_DEFAULT_PROFILES_FILE': 'mine.xml'}, {'FASTRTPS_DEFAULT_PROFILES_FILE': 'mine.xml'},
    {'RMW_IMPLEMENTATION': 'rmw_cyclonedds_cpp'}, {'RMW_IMPLEMENTATION': 'rmw_zenoh_cpp'}])
def test_the_choice_of_the_user_stays(environment: dict[str, str]) -> None:
    before = dict(environment)
    assert transport_additions(environment, PLENTY) == {}
    assert environment == before


def test_little_shared_memory_gets_the_small_profile() -> None:
    added = transport_additions({}, CONTAINER)
    assert set(added.values()) == {str(shipped_profile('fastdds_small.xml'))}


def test_free_shared_memory_is_that_of_the_file_system(tmp_path: Path) -> None:
    assert free_shared_memory(tmp_path) > 0
    assert free_shared_memory(tmp_path / 'missing') == 0


def test_without_a_figure_the_shared_memory_of_this_machine_decides(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, 'free_shared_memory', lambda: CONTAINER)
    assert transport_additions({}) == transport_additions({}, CONTAINER)
    monkeypatch.setattr(transport, 'free_shared_memory', lambda: PLENTY)
    assert transport_additions({}) == transport_additions({}, PLENTY)


def test_only_segments_without_a_living_owner_are_removed(tmp_path: Path) -> None:
    owned, stale, fresh = ('fastdds_0a', 'fastdds_0b', 'fastdds_0c')
    kept = ('fastdds_port7411', 'fastdds_port7411_el', 'other', 'other_el')
    for name in (owned, stale, fresh):
        for path in (tmp_path / name, tmp_path / f'{name}_el'):
            path.touch()
    for name in kept:
        (tmp_path / name).touch()
    for path in tmp_path.iterdir():
        if fresh not in path.name:
            os.utime(path, (0, 0))
    with (tmp_path / f'{owned}_el').open() as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        assert remove_stale_segments(tmp_path) == 1
    assert {path.name for path in tmp_path.iterdir()} == {
        owned, f'{owned}_el', fresh, f'{fresh}_el', *kept}
    assert remove_stale_segments(tmp_path / 'missing') == 0


def test_an_installation_without_the_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, 'PROFILE', 'missing.xml')
    with pytest.raises(ValueError, match='config/missing.xml: not found: install vla_ros again'):
        transport_additions({}, PLENTY)


@pytest.mark.parametrize(('name', 'images'), [('fastdds.xml', 10), ('fastdds_small.xml', 3)])
def test_the_segment_holds_images_of_1280x720(name: str, images: int) -> None:
    root = ElementTree.parse(shipped_profile(name)).getroot()
    values = {element.tag.split('}')[1]: (element.text or '').strip() for element in root.iter()}
    assert values['type'] == 'SHM'
    assert int(values['segment_size']) > images * 1280 * 720 * 3
    assert values['useBuiltinTransports'] == 'true'


def test_transport_needs_no_ros() -> None:
    probe = "import sys, vla_ros.ros.transport; sys.exit('rclpy' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', probe], check=False).returncode == 0


# ---- with real processes

PORTS = """
import os, rclpy
rclpy.init()
node = rclpy.create_node('probe')
mine = set()
for name in os.listdir('/proc/self/fd'):
    try:
        mine.add(os.readlink('/proc/self/fd/' + name))
    except OSError:
        pass
for line in open('/proc/self/net/udp').read().splitlines()[1:]:
    fields = line.split()
    if 'socket:[' + fields[9] + ']' in mine:
        print(int(fields[1].split(':')[1], 16))
node.destroy_node()
rclpy.shutdown()
"""

WRITER = """
import array, sys, time, rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
width, height, frames, rate = map(int, sys.argv[1:])
rclpy.init()
node = rclpy.create_node('writer')
quality = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
publisher = node.create_publisher(Image, 'image', quality)
image = Image(width=width, height=height, encoding='rgb8', step=3 * width)
image.data = array.array('B', bytes(3 * width * height))
while not publisher.get_subscription_count():
    time.sleep(0.02)
# The reader prints a line once it has matched too.
sys.stdin.readline()
due = time.monotonic()
for frame in range(frames):
    image.header.frame_id = str(frame)
    publisher.publish(image)
    due += 1 / rate
    time.sleep(max(0, due - time.monotonic()))
sys.stdin.readline()
node.destroy_node()
rclpy.shutdown()
"""

READER = """
import sys, time, rclpy
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image
from vla_ros.ros.cdr import read_image
frames, limit = int(sys.argv[1]), float(sys.argv[2])
rclpy.init()
node = rclpy.create_node('reader')
received = []
quality = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
node.create_subscription(
    Image, 'image', lambda raw: received.append(int(read_image(raw).frame_id)), quality, raw=True)
while not node.count_publishers('image'):
    rclpy.spin_once(node, timeout_sec=0.02)
# The match of the endpoints follows the graph by some milliseconds and shows nowhere in rclpy.
time.sleep(0.5)
print('matched', flush=True)
end = time.monotonic() + limit
while len(received) < frames and time.monotonic() < end:
    rclpy.spin_once(node, timeout_sec=0.1)
print(*sorted(set(range(frames)) - set(received)), flush=True)
node.destroy_node()
rclpy.shutdown()
"""


def ros_environment(profile: str, discovery: str = 'LOCALHOST') -> dict[str, str]:
    path = str(shipped_profile(profile))
    return {**os.environ, **dict.fromkeys(transport.PROFILE_VARIABLES, path),
            'ROS_AUTOMATIC_DISCOVERY_RANGE': discovery,
            'ROS_DOMAIN_ID': str(random.randint(1, 100))}


@pytest.mark.parametrize('profile', ['fastdds.xml', 'fastdds_small.xml'])
@pytest.mark.parametrize(('discovery', 'joins'), [('LOCALHOST', False), ('SUBNET', True)])
def test_the_discovery_range_is_honoured_with_the_profile(
        profile: str, discovery: str, joins: bool) -> None:
    pytest.importorskip('rclpy', reason='needs ROS 2')
    environment = ros_environment(profile, discovery)
    if environment.get('ROS_DISTRO') == 'humble' or sys.platform != 'linux':
        pytest.skip('Humble has no ROS_AUTOMATIC_DISCOVERY_RANGE')
    probe = subprocess.run([sys.executable, '-c', PORTS], env=environment, capture_output=True,
                           text=True, check=True, timeout=60)
    assert 'Error' not in probe.stderr
    multicast_port = 7400 + 250 * int(environment['ROS_DOMAIN_ID'])
    assert (str(multicast_port) in probe.stdout.split()) is joins


@pytest.mark.long
@pytest.mark.parametrize('profile', ['fastdds.xml', 'fastdds_small.xml'])
@pytest.mark.parametrize(('width', 'height'), [(640, 480), (1280, 720)])
def test_no_best_effort_image_is_lost_between_two_processes(
        profile: str, width: int, height: int) -> None:
    pytest.importorskip('rclpy', reason='needs ROS 2')
    frames, rate = 100, 20
    environment = ros_environment(profile)
    reader = subprocess.Popen(
        [sys.executable, '-c', READER, str(frames), str(frames / rate + 20)], env=environment,
        stdout=subprocess.PIPE, text=True)
    writer = subprocess.Popen(
        [sys.executable, '-c', WRITER, str(width), str(height), str(frames), str(rate)],
        env=environment, stdin=subprocess.PIPE, text=True)
    try:
        assert reader.stdout is not None
        assert writer.stdin is not None
        for _ in range(2):
            line = reader.stdout.readline()
            writer.stdin.write('go on\n')
            writer.stdin.flush()
        assert line.split() == [], 'lost frames'
        assert writer.wait(30) == 0
        assert reader.wait(30) == 0
    finally:
        for process in (reader, writer):
            process.kill()
            process.wait()
