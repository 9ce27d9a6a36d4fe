"""Playing recordings over ROS: times, stamps, `/clock`, names, ends. Real processes over DDS."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

rclpy = pytest.importorskip('rclpy', reason='ROS 2 is not installed')
pytest.importorskip('rosbags', reason='rosbags is not installed')

from rclpy.context import Context  # noqa: E402
from rclpy.executors import SingleThreadedExecutor  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import (  # noqa: E402
    DurabilityPolicy,
    QoSProfile,
    ReliabilityPolicy,
    qos_profile_sensor_data,
)
from rosbags.rosbag2 import StoragePlugin, Writer  # noqa: E402
from rosbags.typesys import Stores, get_types_from_msg, get_typestore  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CompressedImage, JointState  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from std_srvs.srv import SetBool  # noqa: E402

from vla_ros.replay.bags import Bag, BagTopic  # noqa: E402
from vla_ros.ros.playback import (  # noqa: E402
    PlayOptions,
    Timeline,
    TypicalGap,
    shift_stamp,
)

ROOT = Path(__file__).parents[1]
BAG = ROOT / 'data' / 'bridge_v2' / 'bridge_3'
NS = 1_000_000_000
IMAGES = '/camera/image_raw/compressed'


# Without ROS

def test_a_stamp_is_moved_and_nothing_else() -> None:
    with Bag(BAG) as bag:
        raw = next(m for m in bag.raw([IMAGES]))
        moved = shift_stamp(raw.data, 5 * NS + 999_999_999)
        before, after = (bag.deserialize(IMAGES, data) for data in (raw.data, moved))
        assert stamp_ns(after) - stamp_ns(before) == 5 * NS + 999_999_999
        assert moved[12:] == raw.data[12:]
        assert moved[:4] == raw.data[:4]


def test_a_stamp_in_big_endian_bytes_is_moved_too() -> None:
    data = bytes([0, 0, 0, 0]) + (7).to_bytes(4, 'big') + (1).to_bytes(4, 'big') + b'rest'
    moved = shift_stamp(data, -2)
    assert moved[4:8] == (6).to_bytes(4, 'big')
    assert moved[8:12] == (999_999_999).to_bytes(4, 'big')


@pytest.mark.parametrize('data', [
    bytes([0, 1, 0, 0]) + bytes(8) + b'rest',           # no stamp given
    bytes([0, 1, 0, 0]) + b'abc',                       # too short
    bytes([0, 9, 0, 0]) + bytes(range(1, 9)) + b'rest',  # not plain CDR
    b'',
])
def test_what_has_no_stamp_stays_as_it_is(data: bytes) -> None:
    assert shift_stamp(data, NS) == data


def test_a_timeline_keeps_the_rate_and_leaves_a_pause_out() -> None:
    line = Timeline(1000 * NS, 5 * NS, 2.0)
    assert line.due_ns(1010 * NS) == 10 * NS
    assert line.played_ns(10 * NS) == 1010 * NS
    line.resume(1010 * NS, 60 * NS)
    assert line.due_ns(1012 * NS) == 61 * NS


def test_the_typical_gap_is_that_of_the_busiest_topic() -> None:
    gap = TypicalGap([topic('/rare', 2), topic('/busy', 9)])
    assert gap.ns() == NS // 10
    for time_ns in (0, 2, 4, 6, 1000, 1002):
        gap.add('/busy', time_ns)
        gap.add('/rare', time_ns * 7)
    assert gap.ns() == 2


def topic(name: str, count: int) -> BagTopic:
    return BagTopic(name, 'std_msgs/msg/String', count, False, False)


@pytest.mark.parametrize(('options', 'words'), [
    ({'rate': 0.0}, ['rate', '0.0', '0.001']),
    ({'rate': float('nan')}, ['rate', 'nan']),
    ({'clock_hz': 50.0}, ['clock', '50.0', '100']),
    ({'clock_hz': 200.0, 'restamp': True}, ['restamp', 'clock']),
    ({'delay_s': -1.0}, ['delay', '-1.0']),
    ({'start_offset_s': float('inf')}, ['start offset', 'inf']),
])
def test_an_option_that_makes_no_sense_is_one_line(
        options: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ValueError) as caught:
        PlayOptions(**options)
    assert '\n' not in str(caught.value)
    assert all(word in str(caught.value) for word in words)


def test_stamps_move_unless_there_is_a_clock_or_the_user_says_otherwise() -> None:
    assert PlayOptions().moves_stamps
    assert not PlayOptions(clock_hz=100.0).moves_stamps
    assert not PlayOptions(restamp=False).moves_stamps


# Over DDS

@dataclasses.dataclass
class Heard:
    received_ns: int
    message: Any


class Listener:
    """A node in this process and players in others, alone on their domain."""

    def __init__(self) -> None:
        self.environment = {
            **os.environ, 'PYTHONPATH': os.pathsep.join([str(ROOT), *sys.path]),
            'ROS_DOMAIN_ID': str(random.randint(1, 100))}
        self.context = Context()
        rclpy.init(context=self.context, domain_id=int(self.environment['ROS_DOMAIN_ID']))
        self.node = Node('listener', context=self.context)
        self.executor = SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.players: list[subprocess.Popen[str]] = []

    def play(self, *arguments: str | Path) -> subprocess.Popen[str]:
        player = subprocess.Popen(
            [sys.executable, '-m', 'vla_ros.tools.play', *map(str, arguments)],
            env=self.environment, cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.players.append(player)
        return player

    def hear(self, kind: Any, name: str, qos: Any = 100) -> list[Heard]:
        heard: list[Heard] = []
        self.node.create_subscription(
            kind, name, lambda message: heard.append(Heard(time.time_ns(), message)), qos)
        return heard

    def spin_until(self, done: Callable[[], Any], limit_s: float = 20.0) -> None:
        end = time.monotonic() + limit_s
        while not done():
            assert time.monotonic() < end, 'nothing more came within the limit'
            self.executor.spin_once(timeout_sec=0.05)

    def spin_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.05)

    def spin_to_the_end_of(self, player: subprocess.Popen[str]) -> None:
        self.spin_until(lambda: player.poll() is not None)
        self.spin_for(0.3)

    def close(self) -> None:
        for player in self.players:
            if player.poll() is None:
                player.kill()
            player.communicate()
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Listener]:
    monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    monkeypatch.setenv('ROS_LOG_DIR', str(tmp_path / 'log'))
    made = Listener()
    yield made
    made.close()


def stamp_ns(message: Any) -> int:
    return int(message.header.stamp.sec) * NS + int(message.header.stamp.nanosec)


def clock_ns(heard: Heard) -> int:
    return int(heard.message.clock.sec) * NS + int(heard.message.clock.nanosec)


def gaps(values: list[int]) -> list[int]:
    return [b - a for a, b in zip(values, values[1:], strict=False)]


def test_every_message_comes_once_with_its_bytes_and_a_stamp_of_now(listener: Listener) -> None:
    images = listener.hear(CompressedImage, IMAGES, qos_profile_sensor_data)
    states = listener.hear(JointState, '/ee_state')
    actions = listener.hear(JointState, '/recorded_action')
    sentences = listener.hear(String, '/vla/instruction')
    player = listener.play(BAG, '--rate', '8', '--wait-for-subscribers')
    listener.spin_to_the_end_of(player)
    assert player.returncode == 0, player.communicate()[1]
    assert [len(images), len(states), len(actions), len(sentences)] == [50, 50, 50, 5]
    with Bag(BAG) as bag:
        recorded = [(m.time_ns, m.message) for m in bag.messages([IMAGES])]
        said = [m.message.data for m in bag.messages(['/vla/instruction'])]
    assert [bytes(i.message.data) for i in images] == [bytes(m.data) for _, m in recorded]
    assert [s.message.data for s in sentences] == said
    for heard, latency_ns in ((images, 12_000_000), (states, 1_000_000), (actions, 60_000_000)):
        ages = [h.received_ns - stamp_ns(h.message) for h in heard]
        assert min(ages) >= latency_ns - 5_000_000  # as old as on the day of the recording
        assert max(ages) < 2 * NS
    expected = [round(g / 8) for g in gaps([t for t, _ in recorded])]
    assert gaps([stamp_ns(i.message) for i in images]) == pytest.approx(expected, abs=1000)


def test_a_loop_goes_on_without_a_jump_and_sigint_ends_it_well(listener: Listener) -> None:
    states = listener.hear(JointState, '/ee_state')
    player = listener.play(BAG, '--rate', '20', '--loop', '--topics', 'ee_state',
                           '--wait-for-subscribers')
    listener.spin_until(lambda: len(states) >= 130)
    player.send_signal(signal.SIGINT)
    listener.spin_to_the_end_of(player)
    assert player.returncode == 0
    assert 'Traceback' not in player.communicate()[1]
    stamps = [stamp_ns(s.message) for s in states]
    seams = [i for i in range(1, len(states))
             if states[i].message.position == states[0].message.position]
    assert seams == [50, 100]
    steps = gaps(stamps)
    assert min(steps) > 0
    for seam in seams:  # a period of 0.2 s, and 0.047 s from the start of the bag to its state
        assert steps[seam - 1] == pytest.approx(0.247 * NS / 20, abs=0.02 * NS / 20)
    assert abs(states[-1].received_ns - stamps[-1]) < 2 * NS


def test_the_clock_runs_in_recorded_time_between_the_messages_and_no_stamp_moves(
        listener: Listener) -> None:
    clock = listener.hear(Clock, '/clock', QoSProfile(
        depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT))
    states = listener.hear(JointState, '/ee_state')
    player = listener.play(BAG, '--rate', '2', '--clock', '--start-offset', '11',
                           '--topics', 'ee_state', '/recorded_action', '--wait-for-subscribers')
    listener.spin_to_the_end_of(player)
    assert player.returncode == 0, player.communicate()[1]
    ticks = [clock_ns(c) for c in clock]
    with Bag(BAG) as bag:
        first_ns, last_ns = bag.start_ns + 11 * NS, bag.end_ns
        recorded = [stamp_ns(m.message) for m in bag.messages(['ee_state'], first_ns)]
    assert [stamp_ns(s.message) for s in states] == recorded
    assert min(gaps(ticks)) > 0
    assert ticks[0] >= first_ns
    assert ticks[-1] == last_ns  # and then it stops
    assert len(ticks) / ((last_ns - first_ns) / NS) >= 100.0
    assert recorded[10] - recorded[9] > 2 * NS  # between two clips
    assert len([t for t in ticks if recorded[9] + NS < t < recorded[10]]) >= 110


def test_a_loop_with_a_clock_never_goes_back(listener: Listener) -> None:
    clock = listener.hear(Clock, '/clock', 1000)
    states = listener.hear(JointState, '/ee_state')
    player = listener.play(BAG, '--rate', '10', '--clock', '100', '--loop', '--topics', '/ee_state',
                           '--start-offset', '15', '--wait-for-subscribers')
    listener.spin_until(lambda: len(states) >= 25)
    player.terminate()
    listener.spin_to_the_end_of(player)
    assert player.returncode == 0
    assert min(gaps([clock_ns(c) for c in clock])) > 0
    steps = gaps([stamp_ns(s.message) for s in states])
    assert min(steps) > 0
    assert max(steps) < 2.5 * NS


def test_a_pause_holds_messages_and_clock(listener: Listener) -> None:
    clock = listener.hear(Clock, '/clock', 1000)
    states = listener.hear(JointState, '/ee_state')
    pause = listener.node.create_client(SetBool, '/bag_player/pause')
    listener.play(BAG, '--clock', '--loop', '--rate', '4', '--wait-for-subscribers')
    listener.spin_until(lambda: len(states) >= 3 and pause.service_is_ready())

    def call(paused: bool) -> None:
        answer = pause.call_async(SetBool.Request(data=paused))
        listener.spin_until(answer.done)
        assert answer.result().success
        listener.spin_for(0.3)  # what was on its way

    call(True)
    count, last_ns = len(states), clock_ns(clock[-1])
    listener.spin_for(0.7)
    assert (len(states), clock_ns(clock[-1])) == (count, last_ns)
    resumed = len(clock)
    call(False)
    listener.spin_until(lambda: len(states) >= count + 3)
    assert 0 < clock_ns(clock[resumed]) - last_ns < NS // 10  # the pause is no jump


def test_names_follow_remaps_and_the_namespace_and_late_comers_hear_the_sentence(
        listener: Listener) -> None:
    states = listener.hear(JointState, '/robot1/joint_states')
    player = listener.play(BAG, '--start-offset', '15.9', '--loop', '--remap',
                           'ee_state:=joint_states', '--ros-args', '-r', '__ns:=/robot1')
    listener.spin_until(lambda: len(states) >= 2)
    late = listener.hear(String, '/robot1/vla/instruction', QoSProfile(
        depth=1, reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL))
    listener.spin_until(lambda: late)
    assert late[0].message.data == 'put cup from counter or drying rack into sink'
    player.terminate()
    assert player.wait(5.0) == 0


def test_a_type_that_is_not_installed_is_left_out_with_a_warning(
        listener: Listener, tmp_path: Path) -> None:
    types = get_typestore(Stores.ROS2_HUMBLE)
    odd = 'nowhere_msgs/msg/Odd'
    types.register(get_types_from_msg('int32 data', odd))
    with Writer(tmp_path / 'bag', version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        for kind, name, value in ((odd, '/odd', 5), ('std_msgs/msg/String', '/word', 'hello')):
            connection = writer.add_connection(name, kind, typestore=types)
            writer.write(connection, NS, types.serialize_cdr(types.types[kind](value), kind))
    words = listener.hear(String, '/word')
    player = listener.play(tmp_path / 'bag', '--wait-for-subscribers')
    listener.spin_to_the_end_of(player)
    errors = player.communicate()[1]
    assert player.returncode == 0, errors
    assert [w.message.data for w in words] == ['hello']
    warning = next(line for line in errors.splitlines() if '/odd' in line)
    assert odd in warning
    assert 'nowhere_msgs' in warning


@pytest.mark.parametrize(('arguments', 'words'), [
    (['/nowhere/bag'], ['/nowhere/bag', 'does not exist']),
    ([str(BAG), '--topics', '/ee_stat'], ["'/ee_stat'", '/ee_state', IMAGES]),
    ([str(BAG), '--start-offset', '100'], ['start offset', '100.0', '17.910 s']),
    ([str(BAG), '--remap', 'a'], ['remap', "'a'", 'FROM:=TO']),
    ([str(BAG), '--ros-args', '-r', 'a b'], ["'-r a b'"]),
])
def test_bad_input_ends_with_one_line(
        listener: Listener, arguments: list[str], words: list[str]) -> None:
    player = listener.play(*arguments)
    _, errors = player.communicate(timeout=20.0)
    assert player.returncode == 1
    assert 'Traceback' not in errors
    line = errors.splitlines()[-1]
    assert line.startswith('bag_player: ')
    assert all(word in line for word in words), line
