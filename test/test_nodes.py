"""The nodes at their edges: lifecycle, names, clocks, services, bad input. Processes over DDS."""

from __future__ import annotations

import os
import signal
import sys
import textwrap
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from builtin_interfaces.msg import Time  # noqa: E402
from diagnostic_msgs.msg import DiagnosticStatus  # noqa: E402
from lifecycle_msgs.srv import GetState  # noqa: E402
from live import (  # noqa: E402
    GRIPPER,
    TWIST,
    Camera,
    Feed,
    Graph,
    Numbers,
    Running,
    Twists,
    changed_profile,
    gentle,
    graph,
    scripted,
)
from rclpy.serialization import serialize_message  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import Image, JointState  # noqa: E402
from std_msgs.msg import Bool  # noqa: E402
from trajectory_msgs.msg import JointTrajectory  # noqa: E402

from vla_ros.core.types import InferenceStatus  # noqa: E402
from vla_ros.ros.command_watch import CommandWatch  # noqa: E402
from vla_ros.ros.messages import status_to_message, to_duration, to_ns, to_time  # noqa: E402
from vla_ros.ros.qos import IMAGE, LATCHED, STATUS, VOLATILE  # noqa: E402
from vla_ros.ros.sim_ticks import SimTicks  # noqa: E402

PUBLISHER = {'policy': 'scripted_bridge'}
SO101 = {'shoulder_pan': 0.0, 'shoulder_lift': 0.1, 'elbow_flex': 0.2, 'wrist_flex': 0.3,
         'wrist_roll': 0.4, 'gripper': 0.5}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Graph]:
    with graph(tmp_path) as made:
        yield made


class Stage:
    """One action_publisher for many tests, each of which begins after a reset."""

    def __init__(self, live: Graph, publisher: Running, robot: str) -> None:
        self.live, self.publisher = live, publisher
        self.twists = Twists(live, robot)
        self.feed = Feed(live)
        self.statuses = live.node.create_publisher(DiagnosticStatus, 'inference_status', STATUS)

    def moves(self) -> None:
        self.feed.begin()
        self.live.enable()
        self.live.until(self.twists.moving, 'motion')

    def stays_still(self, begin: int) -> None:
        self.live.until(self.twists.still, 'rest')
        self.live.more_reports(1)
        assert self.publisher.process.poll() is None
        self.twists.assert_came_to_rest(begin)
        self.twists.assert_within_limits()


@pytest.fixture(scope='module')
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    folder = tmp_path_factory.mktemp('stage')
    with graph(folder) as live:
        robot = gentle(folder)
        publisher = live.start('action_publisher', {**PUBLISHER, 'robot': robot})
        live.active('action_publisher')
        yield Stage(live, publisher, robot)


@pytest.fixture
def stage(running: Stage) -> Iterator[Stage]:
    """At rest, waiting, without a plan."""
    stamps = len(running.live.reset_stamps)
    assert running.live.reset().success
    running.live.until(lambda: len(running.live.reset_stamps) > stamps, 'reset_stamp')
    running.live.says('waiting')
    yield running
    running.feed.end()


# --- services and epochs ---------------------------------------------------------------------


def test_enabling_before_anything_was_received_is_refused_with_the_reason(live: Graph) -> None:
    live.start('action_publisher', PUBLISHER)
    answer = live.ask_enable()
    assert not answer.success
    assert answer.message in ('the node is not active', 'no plan yet')
    live.active('action_publisher')
    live.says('waiting')
    assert live.ask_enable().message == 'no plan yet'


def test_enable_disable_and_reset_answer_in_words(stage: Stage) -> None:
    live = stage.live
    assert live.ask_enable().message == 'no plan yet'
    stage.feed.begin()
    live.enable()
    assert live.ask_enable().success, 'enabling twice is no error'
    live.until(stage.twists.moving, 'motion')
    begin = len(stage.twists)
    answer = live.ask_enable(False)
    assert (answer.success, answer.message) == (True, 'coming to rest')
    live.says('waiting')
    stage.stays_still(begin)
    live.silent(stage.twists)
    assert live.reset().success


def test_a_plan_from_before_the_reset_is_dropped_and_counted(stage: Stage) -> None:
    live = stage.live
    stage.feed.begin(plans=False)
    old = stage.feed.plan()
    stage.feed.chunks.publish(old)
    live.until(lambda: live.ask_enable().message != 'no plan yet', 'plan')
    before = len(live.reset_stamps)
    assert live.reset().success
    live.until(lambda: len(live.reset_stamps) > before, 'reset_stamp')
    assert to_ns(live.reset_stamps[-1]) > to_ns(old.header.stamp)
    key = 'dropped: plan from before the last reset'
    dropped = int(live.values('action_publisher').get(key, 0))
    stage.feed.chunks.publish(old)
    live.until(lambda: int(live.values('action_publisher').get(key, 0)) == dropped + 1, key)
    assert live.ask_enable().message == 'no plan yet'


def test_the_reset_stamp_is_kept_for_who_comes_later(stage: Stage) -> None:
    late = stage.live.heard(Time, 'reset_stamp', LATCHED)
    stage.live.until(lambda: late, 'reset_stamp')
    assert late[0] == stage.live.reset_stamps[-1]


def test_what_inference_reports_is_the_reason_that_enabling_gives(stage: Stage) -> None:
    live = stage.live
    live.matched(stage.statuses)

    def say(cause: str, reaction: str) -> None:
        status = InferenceStatus(live.now_ns(), to_ns(live.reset_stamps[-1]), cause, reaction)
        stage.statuses.publish(status_to_message(status, 'test'))

    stage.feed.begin()
    say('engine is being changed', 'hold')
    live.until(lambda: live.ask_enable().message == 'engine is being changed', 'refusal')
    say('engine failed: out of memory', 'fault')
    assert live.says('fault') == 'fault: engine failed: out of memory'
    assert live.ask_enable().message == 'engine failed: out of memory; reset first'


def test_every_value_of_the_diagnostics_can_be_read(stage: Stage) -> None:
    stage.moves()
    live = stage.live
    live.more_reports()
    values = live.values('action_publisher')
    assert values['state'] == 'active'
    assert values['cause'] == ''
    assert int(values['ticks']) > 0
    assert int(values['missed ticks']) >= 0
    for stage_name in ('plan_age', 'tick_wait', 'first_command'):
        parts = dict(part.split() for part in values[f'latency {stage_name} [ms]'].split(', '))
        assert set(parts) == {'p50', 'p95', 'p99', 'max'}
        assert all(np.isfinite(float(number)) for number in parts.values())
    assert 0.0 <= float(parts['p50']) <= float(parts['max'])
    others = set(values) - {'state', 'cause'} - {key for key in values if 'latency' in key}
    assert all(float(values[key]) >= 0 for key in others)
    assert live.reports['action_publisher'][-1].hardware_id == 'widowx_bridge'
    assert live.reports['action_publisher'][-1].level == DiagnosticStatus.OK


def test_diagnostics_come_once_a_second_also_while_something_is_wrong(stage: Stage) -> None:
    live = stage.live
    stage.feed.begin(plans=False)
    live.more_reports(1)
    have = len(live.reports['action_publisher'])
    begin = live.now_ns()
    live.more_reports(2)
    assert len(live.reports['action_publisher']) == have + 2
    assert (live.now_ns() - begin) / 1e9 > 1.5


# --- bad input at the edge -------------------------------------------------------------------


def wrong_names(message: JointTrajectory) -> None:
    message.joint_names = ['a', 'b']


def not_finite(message: JointTrajectory) -> None:
    message.points[1].positions[2] = float('nan')


def wrong_period(message: JointTrajectory) -> None:
    for i, point in enumerate(message.points):
        point.time_from_start = to_duration(i * 100_000_000)


def wrong_size(message: JointTrajectory) -> None:
    for point in message.points:
        point.positions = array('d', [0.0, 0.0])


def no_points(message: JointTrajectory) -> None:
    message.points = []


@pytest.mark.parametrize(('spoil', 'line'), [
    (wrong_names, 'action chunk: joint_names are a, b; the profiles say dx, dy, dz, droll, dpitch, '
                  'dyaw, gripper'),
    (not_finite, 'action chunk: dz of step 1 is nan; all values must be finite'),
    (wrong_period, 'action chunk: period 0.1 s, the policy profile says 0.2 s'),
    (wrong_size, 'action chunk: points have 2 positions; 7 are needed'),
    (no_points, 'action chunk: no points; at least one is needed')])
def test_a_malformed_plan_is_a_named_fault_and_stops_the_motion(
        spoil: Callable[[JointTrajectory], None], line: str, stage: Stage) -> None:
    stage.moves()
    begin = len(stage.twists)
    message = stage.feed.plan()
    spoil(message)
    stage.feed.chunks.publish(message)
    assert stage.live.says('fault') == f'fault: {line}'
    stage.stays_still(begin)
    assert stage.live.ask_enable().message == f'{line}; reset first'
    assert line in stage.live.line(stage.publisher, line)
    assert 'Traceback' not in stage.publisher.output


def test_joint_states_that_say_nothing_are_named_and_keep_the_robot_still(stage: Stage) -> None:
    live = stage.live
    messages = {
        'joint state: empty': JointState(),
        'joint state: 2 names but 1 positions': JointState(name=['x', 'y'], position=[0.3]),
        'joint state: x is not finite': JointState(name=['x'], position=[float('inf')]),
        '': JointState(name=['other'], position=[1.0])}
    sent = len(stage.twists)
    for line, message in messages.items():
        timer = live.every(0.02, lambda message=message: stage.feed.states.publish(message))
        live.line(stage.publisher, line)
        live.node.destroy_timer(timer)
    live.more_reports(1)  # by then the state of the test before is too old
    timer = live.every(0.1, stage.feed.send_plan)
    refusal = live.until(
        lambda: 'no fresh state' in (text := live.ask_enable().message) and text, 'refusal')
    live.node.destroy_timer(timer)
    assert ' x ' in refusal
    assert len(stage.twists) == sent
    assert 'Traceback' not in stage.publisher.output


def test_a_status_of_another_kind_is_named_and_nothing_stops(stage: Stage) -> None:
    stage.moves()
    stage.statuses.publish(DiagnosticStatus(name='motor', message='warm'))
    stage.live.line(stage.publisher, 'not a status of inference_node')
    stage.live.more_reports(1)
    assert stage.twists.moving()


def lines(output: str) -> list[str]:
    """Without those of ROS's own C libraries."""
    return [line for line in output.strip().splitlines()
            if '[rcl]' not in line and '[rmw_fastrtps' not in line]


def end_of(processes: list[Running]) -> list[tuple[int, str]]:
    """Exit status and output of processes that ran at the same time."""
    return [(process.may_end().wait(), process.output) for process in processes]


def test_a_profile_that_does_not_exist_ends_in_one_line(live: Graph) -> None:
    names = ('camera_node', 'inference_node', 'action_publisher')
    for status, output in end_of([live.start(name, {'robot': 'widow'}) for name in names]):
        assert status == 1
        (line,) = lines(output)
        assert "robot profile 'widow': not found" in line


def test_a_wrong_parameter_ends_in_one_line(live: Graph) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "parameter 'polcy': action_publisher has no such parameter; it has robot, ": {'polcy': 'x'},
        "parameter shadow: 'perhaps': a bool is needed": {'shadow': 'perhaps'},
        'parameter lease_wait: -1.0: from 0.0 to 60.0 s is allowed': {'lease_wait': -1.0},
        'scripted_so101': {'policy': 'scripted_so101'}}
    ends = end_of([live.start('action_publisher', values) for values in wrong.values()])
    for expected, (status, output) in zip(wrong, ends, strict=True):
        assert status == 1
        (line,) = lines(output)
        assert expected in line


def test_debug_shows_the_traceback(live: Graph) -> None:
    ((status, output),) = end_of(
        [live.start('action_publisher', {'robot': 'widow'}, words=['--debug'])])
    assert status == 1
    assert 'Traceback' in output
    assert "robot profile 'widow': not found" in output


def test_wrong_arguments_end_in_one_line(live: Graph) -> None:
    wrong = {
        "argument 'robot:=so101': a node takes --debug and ROS arguments": ['robot:=so101'],
        '/nowhere.yaml': ['--ros-args', '--params-file', '/nowhere.yaml'],
        '-p broken': ['--ros-args', '-p', 'broken']}
    ends = end_of([live.run([sys.executable, '-m', 'vla_ros.nodes.camera_node', *words])
                   for words in wrong.values()])
    for expected, (status, output) in zip(wrong, ends, strict=True):
        assert status == 1
        (line,) = lines(output)
        assert expected in line


def test_cpus_that_this_machine_lacks_are_named(live: Graph, tmp_path: Path) -> None:
    engine = changed_profile(tmp_path, 'engines', 'cpu', lambda p: p.update(affinity=[0, 4000]))
    ((status, output),) = end_of(
        [live.start('inference_node', {**PUBLISHER, 'engine': engine})])
    assert status == 1
    (line,) = lines(output)
    assert f'{engine}: affinity: [0, 4000]: CPU 4000 is not available; this process may use' in line


def test_affinity_confines_the_inference_process(live: Graph, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    engine = changed_profile(tmp_path, 'engines', 'cpu', lambda p: p.update(affinity=[cpu]))
    node = live.start('inference_node', {**PUBLISHER, 'engine': engine})
    live.active('inference_node')
    threads = [int(name) for name in os.listdir(f'/proc/{node.process.pid}/task')]
    assert len(threads) > 3
    assert {frozenset(os.sched_getaffinity(thread)) for thread in threads} == {frozenset({cpu})}


# --- images at the edge of inference_node ----------------------------------------------------


@pytest.fixture(scope='module')
def inference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Graph, Running]]:
    folder = tmp_path_factory.mktemp('inference')
    with graph(folder) as live:
        node = live.start('inference_node', {'policy': scripted(folder), 'instruction': 'go'})
        live.active('inference_node')
        yield live, node


def image(**changes: Any) -> bytes:
    fields = {'width': 224, 'height': 224, 'step': 672, 'encoding': 'rgb8',
              'data': array('B', bytes(672 * 224)), **changes}
    return bytes(serialize_message(Image(**fields)))


@pytest.mark.parametrize(('message', 'line'), [
    (image(width=0, height=0, step=0, data=array('B')), 'observation/primary/image: '),
    (image(encoding='yuv411'), 'encoding'),
    (image(width=100, height=100, step=300, data=array('B', bytes(30000))),
     'primary: image is 100x100, the policy takes 224x224'),
    (image(data=array('B', bytes(10))), 'observation/primary/image: '),
    (image()[:60], 'observation/primary/image: ')])
def test_an_image_that_cannot_be_used_is_named_and_nothing_is_planned(
        message: bytes, line: str, inference: tuple[Graph, Running]) -> None:
    live, node = inference
    images = live.node.create_publisher(Image, 'observation/primary/image', IMAGE)
    live.matched(images)
    chunks = live.heard(JointTrajectory, 'action_chunk')
    told = node.output.count(line)
    timer = live.every(0.05, lambda: images.publish(message))
    live.until(lambda: node.output.count(line) > told, line)
    live.more_reports(1, 'inference_node')
    live.node.destroy_timer(timer)
    live.node.destroy_publisher(images)
    assert node.process.poll() is None
    assert 'Traceback' not in node.output
    assert not chunks


# --- lifecycle -------------------------------------------------------------------------------


def test_a_lifecycle_manager_can_drive_action_publisher(live: Graph, tmp_path: Path) -> None:
    robot = gentle(tmp_path)
    twists = Twists(live, robot)
    Feed(live).begin()
    node = live.start('action_publisher', {**PUBLISHER, 'robot': robot, 'autostart': False})
    assert live.state('action_publisher') == 'unconfigured'
    assert live.transition('action_publisher', 'configure')
    assert live.state('action_publisher') == 'inactive'
    assert live.ask_enable().message == 'the node is not active'
    assert live.transition('action_publisher', 'activate')
    live.enable()
    live.until(twists.moving, 'motion')

    begin = len(twists)
    assert live.transition('action_publisher', 'deactivate')
    live.until(twists.still, 'rest')
    twists.assert_came_to_rest(begin)
    sent = len(twists)
    assert live.ask_enable().message == 'the node is not active'

    assert live.transition('action_publisher', 'activate')
    live.more_reports()
    assert len(twists) == sent, 'activation moves nothing'
    assert 'clock jump' not in live.values('action_publisher'), 'the pause is no jump'
    live.enable()
    live.until(twists.moving, 'motion')
    assert live.transition('action_publisher', 'deactivate')
    assert live.transition('action_publisher', 'cleanup')
    assert live.state('action_publisher') == 'unconfigured'
    assert live.transition('action_publisher', 'configure')
    assert live.transition('action_publisher', 'activate'), 'its own old publishers are gone'
    live.enable()
    live.until(twists.moving, 'motion')
    begin = len(twists)
    node.may_end()
    assert live.transition('action_publisher', 'active_shutdown')
    assert node.wait() == 0, node.output
    live.until(twists.still, 'rest')
    twists.assert_came_to_rest(begin)
    twists.assert_within_limits()
    assert 'Traceback' not in node.output


def test_a_failing_configure_leaves_the_node_unconfigured_and_correctable(live: Graph) -> None:
    from rcl_interfaces.srv import SetParameters
    from rclpy.parameter import Parameter
    node = live.start('action_publisher', {**PUBLISHER, 'robot': 'widow', 'autostart': False})
    assert not live.transition('action_publisher', 'configure')
    assert live.state('action_publisher') == 'unconfigured'
    live.line(node, "robot profile 'widow': not found")
    answer = live.call(SetParameters, 'action_publisher/set_parameters', SetParameters.Request(
        parameters=[Parameter('robot', value='widowx_bridge').to_parameter_msg()]))
    assert answer.results[0].successful
    assert live.transition('action_publisher', 'configure')
    assert 'Traceback' not in node.output


def test_an_inactive_inference_node_is_named_and_goes_on_when_it_is_active_again(
        live: Graph, tmp_path: Path) -> None:
    robot, policy = gentle(tmp_path), scripted(tmp_path, {'at': 0, 'fault': 'stall', 'count': 10**6,
                                                          'seconds': 0.15})
    twists = Twists(live, robot)
    live.every(0.02, Feed(live).send_state)
    camera = Camera(live, 'observation/primary/image', rate=10.0)
    live.start('action_publisher', {'robot': robot, 'policy': policy})
    node = live.start('inference_node', {'robot': robot, 'policy': policy, 'instruction': 'go'})
    live.active('action_publisher', 'inference_node')
    live.enable()
    live.until(twists.moving, 'motion')
    begin = len(twists)
    assert live.transition('inference_node', 'deactivate'), 'an inference runs most of the time'
    live.says('inference_node is not active')
    live.until(twists.still, 'rest')
    twists.assert_came_to_rest(begin)
    assert live.transition('inference_node', 'activate')
    live.until(twists.moving, 'motion goes on')
    assert live.transition('inference_node', 'deactivate')
    assert live.transition('inference_node', 'cleanup')
    assert live.transition('inference_node', 'configure')
    assert live.transition('inference_node', 'activate')
    live.until(twists.still, 'rest')
    live.until(twists.moving, 'motion with a new engine')
    camera.unplug()
    node.may_end()
    assert live.transition('inference_node', 'active_shutdown')
    assert node.wait() == 0, node.output
    assert 'Traceback' not in node.output


def test_a_hanging_engine_cannot_keep_the_process_alive(live: Graph, tmp_path: Path) -> None:
    policy = scripted(tmp_path, {'at': 0, 'fault': 'stall', 'seconds': 600.0})
    live.every(0.02, Feed(live).send_state)
    Camera(live, 'observation/primary/image')
    node = live.start('inference_node', {'policy': policy, 'instruction': 'go'})
    live.says('engine has not answered', 'inference_node')
    node.signal(signal.SIGTERM)
    assert node.wait(5.0) == 0
    assert 'the engine has not answered; it is left behind' in node.output
    assert 'Traceback' not in node.output


def test_a_signal_while_the_engine_warms_up_ends_the_process_at_once(
        live: Graph, tmp_path: Path) -> None:
    def change(profile: dict[str, Any]) -> None:
        profile['options']['latency'] = 600.0
    policy = changed_profile(tmp_path, 'policies', 'scripted_bridge', change)
    node = live.start('inference_node', {'policy': policy})
    client = live.node.create_client(GetState, 'inference_node/get_state')
    live.until(client.service_is_ready, 'the node')
    node.signal(signal.SIGTERM)
    assert node.wait(5.0) == 0, node.output
    assert 'Traceback' not in node.output


def shared_memory(process: str) -> set[str]:
    """Segments of Fast DDS that a process has mapped: its own, and those of who sends to it."""
    maps = Path(f'/proc/{process}/maps').read_text().splitlines()
    return {path for path in (line.split()[-1] for line in maps)
            if '/dev/shm/fastdds_' in path and 'port' not in path}


def test_nodes_leave_no_shared_memory_behind(live: Graph, tmp_path: Path) -> None:
    folder = tmp_path / 'images'
    folder.mkdir()
    cv2.imwrite(str(folder / '0.png'), np.zeros((8, 8, 3), np.uint8))

    def change(profile: dict[str, Any]) -> None:
        profile['cameras']['primary'] = {
            'source': 'file', 'path': str(folder), 'rate': 10.0, 'loop': True}
    robot = changed_profile(tmp_path, 'robots', 'widowx_bridge', change)
    names = ('action_publisher', 'inference_node', 'camera_node')
    own = shared_memory('self')
    Feed(live).begin()
    processes = [live.start(name, {'robot': robot, 'policy': 'scripted_bridge', **(
        {'instruction': 'go'} if name == 'inference_node' else {})}) for name in names]
    live.active(*names)
    live.enable()
    made = set().union(*(shared_memory(str(one.process.pid)) for one in processes)) - own
    if not made:
        pytest.skip('this middleware uses no shared memory')
    for process in processes:
        process.signal(signal.SIGTERM)
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert not {path for path in made if os.path.exists(path)}


# --- names and clocks ------------------------------------------------------------------------


def test_every_topic_can_be_remapped(live: Graph, tmp_path: Path) -> None:
    def change(profile: dict[str, Any]) -> None:
        profile['estop_required'] = True
    robot = changed_profile(tmp_path, 'robots', 'widowx_bridge', change)
    twists = Twists(live, topic='servo/twists')
    feed = Feed(live)
    feed.chunks = live.node.create_publisher(JointTrajectory, 'plans', 10)
    feed.states = live.node.create_publisher(JointState, 'arm/states', 10)
    feed.begin()
    live.start('action_publisher', {**PUBLISHER, 'robot': robot}, [
        'action_chunk:=plans', 'joint_states:=arm/states', 'estop:=safety/estop',
        f'{TWIST}:=servo/twists', 'reset_stamp:=epoch', 'action_publisher/reset:=calm'])
    epochs = live.heard(Time, 'epoch', LATCHED)
    live.active('action_publisher')
    live.until(lambda: 'estop' in live.ask_enable().message, 'refusal without e-stop')
    estop = live.node.create_publisher(Bool, 'safety/estop', VOLATILE)
    live.enable()
    live.until(twists.moving, 'motion')
    assert epochs
    live.every(0.05, lambda: estop.publish(Bool(data=True)))
    live.says('e-stop')


def test_shadow_publishes_below_its_own_name_only(live: Graph) -> None:
    real, shadow = Twists(live), Twists(live, topic=f'action_publisher/shadow/{TWIST}')
    Feed(live).begin()
    live.start('action_publisher', {**PUBLISHER, 'shadow': True})
    live.active('action_publisher')
    live.enable()
    live.until(shadow.moving, 'shadow commands')
    assert live.says('shadow') == 'shadow'
    assert not len(real)
    for topic in (TWIST, GRIPPER):
        assert live.node.count_publishers(f'/{live.namespace}/{topic}') == 0
        assert live.node.count_publishers(
            f'/{live.namespace}/action_publisher/shadow/{topic}') == 1


class SimulatedTime:
    """/clock in the hand of the test, with state and plans stamped by it."""

    def __init__(self, live: Graph, start_ns: int = 1_000_000_000_000) -> None:
        self.live, self.now_ns = live, start_ns
        self.clock = live.node.create_publisher(Clock, 'clock', VOLATILE)
        live.now_ns = lambda: self.now_ns  # type: ignore[method-assign]
        self.feed = Feed(live)
        self.tell()

    def tell(self) -> None:
        self.clock.publish(Clock(clock=to_time(self.now_ns)))

    def go_on(self, step_ns: int = 7_000_000) -> None:
        """A little later: more than one step of the clock for each control period."""
        self.now_ns += step_ns
        self.tell()
        self.feed.send_state()
        if self.now_ns // 200_000_000 != (self.now_ns - step_ns) // 200_000_000:
            self.feed.send_plan()


def test_simulated_time_sets_the_pace_and_the_stamps(live: Graph) -> None:
    time = SimulatedTime(live)
    twists = Twists(live)
    node = live.start('action_publisher', {**PUBLISHER, 'use_sim_time': True})
    live.matched(time.clock, 2)  # the node's own clock, and its ticks
    timer = live.every(0.005, time.go_on)
    live.active('action_publisher')
    live.enable()
    live.until(lambda: len(twists) >= 20, 'commands')
    stamps = twists.stamps_ns()
    assert (stamps % 20_000_000 == 0).all()
    assert (np.diff(stamps) >= 20_000_000).all()
    assert twists.rows()[-1].any()

    live.node.destroy_timer(timer)
    assert live.ask_enable().success, 'a round trip, after which nothing is under way'
    sent = len(twists)
    still = live.every(0.02, time.tell)  # paused: the same time again and again
    for _ in range(10):
        assert live.ask_enable().success
    live.node.destroy_timer(still)
    assert len(twists) == sent, 'a paused clock sends no commands'

    epoch_ns = to_ns(live.reset_stamps[-1])
    time.now_ns -= 5_000_000_000
    back_ns = time.now_ns
    timer = live.every(0.005, time.go_on)
    live.until(lambda: to_ns(live.reset_stamps[-1]) != epoch_ns, 'a new epoch')
    assert abs(to_ns(live.reset_stamps[-1]) - back_ns) < 1_000_000_000
    live.until(lambda: live.values('action_publisher').get('clock jump') == '1', 'clock jump')
    live.until(lambda: live.message('action_publisher') == 'active', 'motion goes on')
    live.until(twists.moving, 'motion')

    live.node.destroy_timer(timer)
    begin = len(twists)
    node.signal(signal.SIGTERM)  # with a clock that stands still
    assert node.wait(5.0) == 0, node.output
    live.until(lambda: len(twists) >= begin + 20, 'half a second of commands')
    assert not twists.rows(begin + 5).any(), 'at rest'


def test_simulated_ticks_are_multiples_of_the_period_and_name_jumps() -> None:
    ms = 1_000_000
    ticks = SimTicks(20 * ms)
    assert ticks.crossed(1005 * ms) == (1000 * ms, 20 * ms)
    assert ticks.crossed(1019 * ms) is None
    assert ticks.crossed(1021 * ms) == (1020 * ms, 20 * ms)
    assert ticks.crossed(1099 * ms) == (1080 * ms, 60 * ms), 'only the newest of three'
    assert (ticks.ticks, ticks.missed) == (3, 2)
    assert ticks.crossed(2000 * ms) == (2000 * ms, 20 * ms), 'unexplained: a jump'
    assert ticks.crossed(1500 * ms) == (1500 * ms, 20 * ms), 'and one back'
    ticks.rest()
    assert ticks.crossed(9500 * ms) == (9500 * ms, 8000 * ms), 'time that the node sat out'


def test_a_position_robot_is_not_enabled_far_from_the_first_target(live: Graph) -> None:
    commands = Numbers(live, 'forward_position_controller/commands')
    feed = Feed(live, tuple(SO101), SO101, period_s=0.05)
    feed.row = {'elbow_flex': 0.35}
    live.every(0.02, feed.send_state)
    live.every(0.1, lambda: feed.chunks.publish(feed.plan(steps=20)))
    live.start('action_publisher', {'robot': 'so101', 'policy': 'scripted_so101'})
    live.active('action_publisher')
    refusal = live.until(
        lambda: 'elbow' in (text := live.ask_enable().message) and text, 'refusal')
    assert refusal == ('elbow_flex: the first target 0.350 rad is 0.150 rad from the measured '
                       '0.200 (activation_tolerance 0.1); bring the robot nearer')
    assert not len(commands)
    feed.row = {'elbow_flex': 0.28}
    live.enable()
    live.until(lambda: len(commands) and commands.rows()[-1][2] > 0.27, 'the target')
    rows = commands.rows()
    assert rows[0] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4], abs=0.02), 'from where it is'
    assert (np.abs(np.diff(rows[:, 2])) <= 0.25 * 2.0 * 0.02 + 1e-9).all(), 'a quarter at first'


# --- what must not happen and yet may --------------------------------------------------------


def broken(live: Graph, folder: Path, patch: str) -> tuple[Running, Twists]:
    """A moving action_publisher into which a fault was planted that a file sets off."""
    robot, file = gentle(folder), folder / 'now'
    code = textwrap.dedent(f"""
        import os, sys
        from vla_ros.nodes import action_publisher as module
        from vla_ros.ros import sinks
        def now(): return os.path.exists({str(file)!r})
        def fail(*_): raise ValueError('planted')
        """) + textwrap.dedent(patch) + '\nmodule.main()\n'
    program = folder / 'broken.py'
    program.write_text(code)
    twists = Twists(live, robot)
    Feed(live).begin()
    process = live.run([sys.executable, str(program), '--ros-args',
                        '-r', f'__ns:=/{live.namespace}', '-p', f'robot:={robot}',
                        '-p', 'policy:=scripted_bridge'])
    live.active('action_publisher')
    live.enable()
    live.until(twists.moving, 'motion')
    file.touch()
    return process, twists


def test_a_callback_that_raises_ends_the_process_after_rest(live: Graph, tmp_path: Path) -> None:
    process, twists = broken(live, tmp_path, """
        original = module.ActionPublisher._on_plan
        module.ActionPublisher._on_plan = lambda self, m: fail() if now() else original(self, m)
        """)
    process.may_end()
    live.until(lambda: process.process.poll() is not None, 'the end')
    live.until(twists.still, 'rest')
    assert process.process.returncode == 1
    assert 'Traceback' in process.output
    assert 'planted' in process.output
    twists.assert_came_to_rest(1)
    twists.assert_within_limits()


def test_a_sink_that_fails_is_a_named_fault_while_the_others_brake(
        live: Graph, tmp_path: Path) -> None:
    process, twists = broken(live, tmp_path, """
        original = sinks.Float64MultiArraySink.filled
        sinks.Float64MultiArraySink.filled = (
            lambda self, c: fail() if now() else original(self, c))
        """)
    assert live.says('fault') == (
        f'fault: sink /{live.namespace}/{GRIPPER}: ValueError: planted')
    live.until(twists.still, 'rest')
    twists.assert_came_to_rest(1)
    assert process.process.poll() is None


def test_of_two_that_start_at_once_none_drives_beside_the_other(live: Graph) -> None:
    """Each waits for the other to leave: who gives up first leaves the other alone."""
    parameters = {**PUBLISHER, 'lease_wait': 3.0, 'enable_on_start': True}
    twists = Twists(live)
    Feed(live).begin()
    two = [live.start('action_publisher', parameters, name=name).may_end()
           for name in ('first', 'second')]
    def faulty(name: str) -> bool:
        return live.message(name).startswith('fault: second command publisher')

    def decided() -> bool:
        """One has ended, or both were active before they could see each other."""
        return (any(one.process.poll() is not None for one in two)
                or all(map(faulty, ('first', 'second'))))

    live.until(decided, 'one ends or both are faulty')
    for one, other in zip(two, ('second', 'first'), strict=True):
        line = f'second command publisher: /{live.namespace}/{other} on /{live.namespace}/{TWIST}'
        if one.process.poll() is not None:
            assert one.process.returncode == 1
            assert f'{line}; stop it or remap one of the two (waited 3 s)' in one.output
        assert 'Traceback' not in one.output
    if all(one.process.poll() is None for one in two):
        live.silent(twists)


def test_an_old_instance_gets_time_to_leave(live: Graph) -> None:
    Feed(live).begin()
    old = live.start('action_publisher', PUBLISHER, name='old')
    live.active('old')
    new = live.start('action_publisher', {**PUBLISHER, 'lease_wait': 25.0}, name='new')
    live.until(lambda: live.node.count_publishers(f'/{live.namespace}/{TWIST}') == 2, 'both')
    old.signal(signal.SIGTERM)
    live.active('new')
    assert old.wait() == 0
    live.enable()
    assert live.says('active', 'new') == 'active'
    assert new.process.poll() is None


class Neighbours:
    """Stands for a node that sees these publishers besides itself, one set after the other."""

    def __init__(self, *sets: list[str]) -> None:
        self._sets = list(sets)
        self.warnings: list[str] = []

    def get_name(self) -> str:
        return 'me'

    def get_namespace(self) -> str:
        return '/arm'

    def get_publishers_info_by_topic(self, topic: str) -> list[Any]:
        names = self._sets.pop(0) if len(self._sets) > 1 else self._sets[0]
        return [SimpleNamespace(node_name=name, node_namespace='/arm') for name in names]

    def get_logger(self) -> Any:
        return SimpleNamespace(warning=lambda text, **_: self.warnings.append(text))


def test_the_lease_waits_for_the_others_to_leave_and_names_them_once() -> None:
    node = Neighbours(*[['me', 'old']] * 5, ['me'])
    CommandWatch(node, ['/twists'], tolerant=False).wait(20.0, lambda: False)
    assert node.warnings == ['second command publisher: /arm/old on /twists; stop it or remap one '
                             'of the two; waiting for it to leave']


def test_the_lease_is_refused_where_the_other_stays() -> None:
    with pytest.raises(ValueError, match='^second command publisher: /arm/me on /twists; '):
        CommandWatch(Neighbours(['me', 'me']), ['/twists'], tolerant=False).wait(0.0, lambda: False)


def test_another_publisher_may_be_tolerated_with_a_warning() -> None:
    node = Neighbours(['other', 'me'])
    assert CommandWatch(node, ['/twists'], tolerant=True).refusal() == ''
    assert len(node.warnings) == 1
