"""The faults that a live robot sees, over DDS between real processes: named, braked, at rest."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from geometry_msgs.msg import TwistStamped  # noqa: E402
from live import (  # noqa: E402
    LIMIT_S,
    ROOT,
    TWIST,
    Camera,
    Feed,
    Graph,
    Numbers,
    Running,
    Twists,
    gentle,
    graph,
    scripted,
)
from std_msgs.msg import Bool, String  # noqa: E402

from vla_ros.ros.qos import LATCHED, VOLATILE  # noqa: E402

BAGS = ROOT / 'data' / 'bridge_v2'


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Graph]:
    with graph(tmp_path) as made:
        yield made


def start_inference(live: Graph, robot: str, policy: str, name: str = '') -> Running:
    return live.start('inference_node', {'robot': robot, 'policy': policy, 'instruction': 'go'},
                      name=name)


def driving(live: Graph, folder: Path, *faults: dict[str, object], horizon: int = 4
            ) -> tuple[Twists, Running, Running]:
    """The robot moves: action_publisher and inference_node run, state is fed, images are not."""
    robot, policy = gentle(folder), scripted(folder, *faults, horizon=horizon)
    twists = Twists(live, robot)
    live.every(0.02, Feed(live).send_state)
    publisher = live.start('action_publisher', {'robot': robot, 'policy': policy})
    inference = start_inference(live, robot, policy)
    live.active('action_publisher', 'inference_node')
    return twists, publisher, inference


def publisher_alone(live: Graph, folder: Path) -> tuple[Twists, Running, Feed]:
    """The robot moves: action_publisher runs, plans and state are fed."""
    robot = gentle(folder)
    twists, feed = Twists(live, robot), Feed(live).begin()
    publisher = live.start('action_publisher', {'robot': robot, 'policy': 'scripted_bridge'})
    live.active('action_publisher')
    live.enable()
    live.until(twists.moving, 'motion')
    return twists, publisher, feed


def assert_stays_still(live: Graph, twists: Twists, begin: int) -> None:
    live.until(twists.still, 'rest')
    live.more_reports()
    twists.assert_came_to_rest(begin)
    twists.assert_within_limits()


def test_a_stalled_engine_is_named_and_motion_resumes_with_its_next_answer(
        live: Graph, tmp_path: Path) -> None:
    twists, _, inference = driving(
        live, tmp_path, {'at': 12, 'fault': 'stall', 'seconds': 2.5}, horizon=10)
    Camera(live, 'observation/primary/image', rate=10.0)
    live.enable()
    live.until(twists.moving, 'motion')
    begin = len(twists)
    live.says('engine has not answered', 'inference_node')
    assert 'no new action chunk in time' in live.says('holding')
    live.until(twists.still, 'rest')
    live.until(twists.moving, 'motion after the stall')
    twists.assert_within_limits()
    rest = np.flatnonzero(~twists.rows(begin).any(axis=1))
    assert rest.size
    assert (np.diff(np.abs(twists.rows(begin)[rest[0]:rest[-1] + 1, 0])) == 0).all()
    assert inference.process.poll() is None
    assert live.values('action_publisher')['hold: no new action chunk in time'] == '1'


def test_a_killed_inference_process_is_named_and_a_new_one_drives_on(
        live: Graph, tmp_path: Path) -> None:
    twists, publisher, inference = driving(live, tmp_path)
    Camera(live, 'observation/primary/image')
    live.enable()
    live.until(twists.moving, 'motion')
    begin = len(twists)
    inference.signal(signal.SIGKILL)
    assert 'inference_node silent' in live.says('holding')
    assert_stays_still(live, twists, begin)
    assert publisher.process.poll() is None
    start_inference(live, *profiles_of(tmp_path))
    live.until(twists.moving, 'motion with a new inference process')
    twists.assert_within_limits()


def profiles_of(folder: Path) -> tuple[str, str]:
    (robot,), (policy,) = folder.glob('widowx_bridge_*.yaml'), folder.glob('scripted_bridge_*.yaml')
    return str(robot), str(policy)


def test_an_estop_from_a_volatile_publisher_stops_until_reset(
        live: Graph, tmp_path: Path) -> None:
    twists, _, _ = publisher_alone(live, tmp_path)
    estop = live.node.create_publisher(Bool, 'estop', VOLATILE)
    pressed = Bool(data=False)
    live.every(0.05, lambda: estop.publish(pressed))  # one may get lost, best effort as it is
    live.matched(estop)
    begin = len(twists)
    pressed.data = True
    live.says('e-stop')
    assert_stays_still(live, twists, begin)
    live.silent(twists)
    sent = len(twists)
    assert live.ask_enable().message == 'the e-stop is pressed; release it, then reset'
    assert live.reset().message == (
        'the e-stop is pressed; release it first: publish false on estop')

    pressed.data = False
    live.until(lambda: live.ask_enable().message == 'e-stop; reset first', 'release')
    live.more_reports()
    assert len(twists) == sent, 'releasing moves nothing'
    stamps = len(live.reset_stamps)
    assert live.reset().success
    live.until(lambda: len(live.reset_stamps) > stamps, 'reset_stamp')
    live.says('waiting')
    live.enable()
    live.until(twists.moving, 'motion')
    twists.assert_within_limits()


def test_an_unplugged_camera_is_named_and_motion_resumes_when_it_is_back(
        live: Graph, tmp_path: Path) -> None:
    twists, _, _ = driving(live, tmp_path)
    robot, policy = profiles_of(tmp_path)
    text = Path(robot).read_text().replace('transport: compressed', 'transport: raw')
    raw = tmp_path / 'raw.yaml'
    raw.write_text(text)
    node = live.start('camera_node', {'robot': str(raw), 'policy': policy})
    camera = Camera(live, 'camera/image_raw', 64, 64)
    live.enable()
    live.until(twists.moving, 'motion')
    begin = len(twists)
    camera.unplug()
    cause = live.says('holding')
    assert 'primary: no frame for' in cause
    assert 'primary: no frame for' in live.says('no frame', 'camera_node')
    assert_stays_still(live, twists, begin)
    camera.plug_in()
    live.until(twists.moving, 'motion')
    assert live.says('streaming', 'camera_node')
    twists.assert_within_limits()
    live.line(node, 'lost frame')


def test_a_second_command_publisher_is_named_and_stops_the_motion(
        live: Graph, tmp_path: Path) -> None:
    twists, _, _ = publisher_alone(live, tmp_path)
    begin = len(twists)
    other = live.node.create_publisher(TwistStamped, TWIST, 1)
    line = (f'second command publisher: /{live.namespace}/probe on /{live.namespace}/{TWIST}; '
            'stop it or remap one of the two')
    assert live.says('fault') == f'fault: {line}'
    assert_stays_still(live, twists, begin)
    assert live.ask_enable().message == line
    live.node.destroy_publisher(other)
    live.until(lambda: live.reset().success and live.ask_enable().success, 'enabling')
    live.until(twists.moving, 'motion')


def test_sigterm_in_motion_ends_at_rest_within_two_seconds(live: Graph, tmp_path: Path) -> None:
    twists, publisher, _ = publisher_alone(live, tmp_path)
    grippers = Numbers(live, 'gripper_controller/commands')
    live.until(lambda: len(grippers), 'gripper command')
    begin = len(twists)
    publisher.signal(signal.SIGTERM)
    asked = time.monotonic()
    live.until(lambda: publisher.process.poll() is not None, 'the end of the process')
    assert time.monotonic() - asked < 2.0
    assert publisher.process.returncode == 0, publisher.output
    assert 'Traceback' not in publisher.output
    live.until(twists.still, 'rest')
    twists.assert_came_to_rest(begin)
    twists.assert_within_limits()
    zeros = (~twists.rows(begin).any(axis=1)).sum()
    assert zeros >= 20, 'half a second of commands at rest'


def test_bag_3_in_real_time_gives_50_commands_a_second_within_limits(
        live: Graph, tmp_path: Path) -> None:
    model = tmp_path / 'knn.npz'
    build = live.run([sys.executable, '-m', 'vla_ros.tools.cli', 'build-knn',
                      str(BAGS / 'bridge_0'), '--out', str(model)])
    assert build.may_end().wait(LIMIT_S) == 0, build.output
    twists = Twists(live)
    grippers = Numbers(live, 'gripper_controller/commands')
    instructions = live.heard(String, 'instruction', LATCHED)
    names = {'robot': 'widowx_bridge', 'policy': 'knn_bridge'}
    live.start('action_publisher', {**names, 'enable_on_start': True, 'real_time': True})
    live.start('inference_node', {**names, 'model': str(model)})
    live.start('camera_node', names)
    live.active('action_publisher', 'inference_node', 'camera_node')
    live.start('bag_player', words=[
        str(BAGS / 'bridge_3'), '--wait-for-subscribers', '--remap', 'ee_state:=joint_states',
        'vla/instruction:=instruction'])
    live.until(lambda: len(twists) >= 200, 'four seconds of commands')
    assert instructions
    twists.assert_within_limits()
    assert (np.abs(twists.rows()).max(axis=0) > 0).all(), 'all dimensions move'
    assert ((grippers.rows() >= 0.0) & (grippers.rows() <= 1.0)).all()
    gaps = np.diff(twists.stamps_ns()) / 1e6
    assert np.median(gaps) == pytest.approx(20.0, abs=0.5)
    assert len(gaps) / (gaps.sum() / 1e3) > 45.0
