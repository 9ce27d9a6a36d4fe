"""Each sink sends exactly the message that its controller takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

rclpy = pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from geometry_msgs.msg import Twist, TwistStamped  # noqa: E402
from live import changed_profile  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.node import Node  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402
from std_msgs.msg import Float64MultiArray, Header  # noqa: E402
from trajectory_msgs.msg import JointTrajectory  # noqa: E402

from vla_ros.core.types import Command  # noqa: E402
from vla_ros.profiles.binding import bind  # noqa: E402
from vla_ros.profiles.policy import load_policy  # noqa: E402
from vla_ros.profiles.robot import load_robot  # noqa: E402
from vla_ros.ros.sinks import Sink, make_sinks  # noqa: E402

STAMP_NS = 7_123_456_789
JOINTS = ['shoulder_pan', 'shoulder_lift', 'elbow_flex', 'wrist_flex', 'wrist_roll']
AXES = ['dx', 'dy', 'dz', 'droll', 'dpitch', 'dyaw']

MakeSink = Callable[..., Sink]


@pytest.fixture(scope='module')
def node() -> Iterator[Node]:
    context = Context()
    rclpy.init(context=context, domain_id=101)
    made = Node('sinks', context=context)
    yield made
    made.destroy_node()
    rclpy.shutdown(context=context)


@pytest.fixture
def sink(node: Node, tmp_path: Path) -> Iterator[MakeSink]:
    """Makes the first sink of a robot whose sinks are replaced by one."""
    made: list[Sink] = []

    def make(robot: str = 'so101', shadow: bool = False, flow: bool = False,
             **section: Any) -> Sink:
        def make_velocities(profile: dict[str, Any]) -> None:
            for dimension in profile['action'][:-1] if flow else ():
                dimension |= {'kind': 'velocity', 'unit': 'rad/s'}

        name = {'so101': 'scripted_so101', 'widowx_bridge': 'scripted_bridge'}[robot]
        policy = load_policy(changed_profile(tmp_path, 'policies', name, make_velocities))

        def change(profile: dict[str, Any]) -> None:
            profile['sinks'] = [section]
            served = section['dimensions']
            if 'gripper' not in served:
                profile['sinks'].append({'type': 'float64_multi_array', 'topic': 'others',
                                         'dimensions': ['gripper']})
            rest = [name for name in (JOINTS if robot == 'so101' else AXES) if name not in served]
            if rest:
                profile['sinks'].append({
                    'type': 'float64_multi_array', 'topic': 'rest', 'dimensions': rest,
                    'interface': 'velocity' if flow or robot != 'so101' else 'position'})
        profile = load_robot(changed_profile(tmp_path, 'robots', robot, change))
        sinks = make_sinks(node, profile, bind(policy, profile).planned, shadow)
        made.append(next(iter(sinks)))
        return made[-1]

    yield make
    for one in made:
        one.close(node)


def command(size: int, rollout: int = 0) -> Command:
    """Values 0, 1, 2 …; velocities ten times that; roll-out rows 100, 200 … more."""
    values = np.arange(size, dtype=np.float64)
    rows = np.array([values + 100 * (k + 1) for k in range(rollout)]).reshape(rollout, size)
    return Command(STAMP_NS, values, 10 * values, rows)


def test_float64_multi_array_sends_positions_in_the_order_of_the_profile(sink: MakeSink) -> None:
    made = sink(type='float64_multi_array', topic='forward_position_controller/commands',
                dimensions=['elbow_flex', 'shoulder_pan'])
    assert made.topic == '/forward_position_controller/commands'
    assert made.filled(command(6)) == Float64MultiArray(data=[2.0, 0.0])


def test_float64_multi_array_sends_velocities_where_the_profile_says_so(sink: MakeSink) -> None:
    made = sink('widowx_bridge', type='float64_multi_array', topic='velocities',
                dimensions=['dz', 'dx'], interface='velocity')
    assert made.filled(command(7)) == Float64MultiArray(data=[20.0, 0.0])


def test_joint_trajectory_is_the_roll_out_from_now(sink: MakeSink) -> None:
    made = sink(type='joint_trajectory', topic='joint_trajectory_controller/joint_trajectory',
                dimensions=JOINTS, joints=['j1', 'j2', 'j3', 'j4', 'j5'], lookahead=0.06)
    message = made.filled(command(6, rollout=3))
    assert isinstance(message, JointTrajectory)
    assert message.header == Header(frame_id='base_link'), 'stamp 0 means now'
    assert message.joint_names == ['j1', 'j2', 'j3', 'j4', 'j5']
    assert [(p.time_from_start.sec, p.time_from_start.nanosec) for p in message.points] == [
        (0, 20_000_000), (0, 40_000_000), (0, 60_000_000)]
    assert [list(p.positions) for p in message.points] == [
        [100.0 * (k + 1) + i for i in range(5)] for k in range(3)]
    assert not any(len(p.velocities) or len(p.accelerations) or len(p.effort)
                   for p in message.points)


def test_twist_stamped_carries_stamp_frame_and_axes(sink: MakeSink) -> None:
    made = sink('widowx_bridge', type='twist_stamped', topic='servo_node/delta_twist_cmds',
                dimensions=AXES, frame_id='tool0')
    expected = TwistStamped(twist=twist(linear=(0.0, 10.0, 20.0), angular=(30.0, 40.0, 50.0)))
    expected.header.frame_id = 'tool0'
    expected.header.stamp.sec, expected.header.stamp.nanosec = 7, 123_456_789
    assert made.filled(command(7)) == expected


def test_twist_leaves_the_axes_that_it_is_not_given_at_zero(sink: MakeSink) -> None:
    made = sink('widowx_bridge', type='twist', topic='cmd_vel', dimensions=['dyaw', 'dx'],
                axes=['angular.z', 'linear.x'])
    message = made.filled(Command(STAMP_NS, np.zeros(7), np.arange(1.0, 8.0)))
    assert message == twist(linear=(1.0, 0.0, 0.0), angular=(0.0, 0.0, 6.0))


def test_joint_state_carries_positions_and_velocities(sink: MakeSink) -> None:
    made = sink(type='joint_state', topic='joint_commands', dimensions=['wrist_roll', 'gripper'],
                joints=['wrist', 'jaw'])
    expected = JointState(name=['wrist', 'jaw'], position=[4.0, 5.0], velocity=[40.0, 50.0])
    expected.header.frame_id = 'base_link'
    expected.header.stamp.sec, expected.header.stamp.nanosec = 7, 123_456_789
    assert made.filled(command(6)) == expected


@pytest.mark.parametrize(('kind', 'name', 'dimensions'), [
    ('joint_jog', 'JointJog', JOINTS), ('gripper_command', 'ParallelGripperCommand', ['gripper'])])
def test_a_sink_of_control_msgs_says_what_to_install(
        kind: str, name: str, dimensions: list[str], sink: MakeSink,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'control_msgs', None)
    monkeypatch.setitem(sys.modules, 'control_msgs.msg', None)
    monkeypatch.setitem(sys.modules, 'control_msgs.action', None)
    with pytest.raises(ValueError) as error:
        sink(flow=kind == 'joint_jog', type=kind, topic='commands', dimensions=dimensions)
    assert str(error.value) == (
        f'sink commands: type {kind} needs control_msgs/{name}, which is not installed: apt '
        'install ros-$ROS_DISTRO-control-msgs')


# control_msgs is on no package index: a stand-in with the same fields shows what is filled in.


class JointJogStandIn(SimpleNamespace):
    def __init__(self, **fields: Any) -> None:
        super().__init__(header=Header(), displacements=[], **fields)


class GripperStandIn:
    class Goal:
        def __init__(self) -> None:
            self.command = JointState()


@pytest.fixture
def control_msgs(monkeypatch: pytest.MonkeyPatch) -> None:
    msg, action = ModuleType('control_msgs.msg'), ModuleType('control_msgs.action')
    msg.JointJog = JointJogStandIn  # type: ignore[attr-defined]
    action.ParallelGripperCommand = GripperStandIn  # type: ignore[attr-defined]
    for name, module in (('control_msgs', ModuleType('control_msgs')), ('control_msgs.msg', msg),
                         ('control_msgs.action', action)):
        monkeypatch.setitem(sys.modules, name, module)


class Topics:
    """Stands for what would need type support: the publisher or the action client."""

    def __init__(self, ready: bool = True) -> None:
        self.topic_name = '/commands'
        self.ready = ready
        self.goals: list[Any] = []

    def server_is_ready(self) -> bool:
        return self.ready

    def send_goal_async(self, goal: Any) -> None:
        self.goals.append(goal)

    def destroy(self) -> None:
        pass


@pytest.fixture
def topics(monkeypatch: pytest.MonkeyPatch) -> Topics:
    from vla_ros.ros import sinks
    made = Topics()
    for kind in (sinks.JointJogSink, sinks.GripperCommandSink):
        monkeypatch.setattr(kind, '_made', lambda *_: made)
        monkeypatch.setattr(kind, 'close', lambda *_: None)
    return made


@pytest.mark.usefixtures('control_msgs', 'topics')
def test_joint_jog_sends_velocities_for_one_control_period(sink: MakeSink) -> None:
    made = sink(flow=True, type='joint_jog', topic='commands', joints=['b', 'a'],
                dimensions=['shoulder_lift', 'shoulder_pan'])
    message = made.filled(command(6))
    assert message.joint_names == ['b', 'a']
    assert list(message.velocities) == [10.0, 0.0]
    assert message.duration == 0.02
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (7, 123_456_789)
    assert message.header.frame_id == 'base_link'


@pytest.mark.usefixtures('control_msgs')
def test_a_gripper_goal_is_sent_once_per_value_and_not_before_the_server_is_there(
        sink: MakeSink, topics: Topics) -> None:
    made = sink(type='gripper_command', topic='commands', dimensions=['gripper'], joints=['jaw'])
    topics.ready = False
    made.send(command(6))
    assert topics.goals == []
    topics.ready = True
    for value in (0.2, 0.2, 0.2 + 1e-6, 0.7):
        made.send(Command(STAMP_NS, np.full(6, value), np.zeros(6)))
    assert [(goal.command.name, list(goal.command.position)) for goal in topics.goals] == [
        (['jaw'], [0.2]), (['jaw'], [0.7])]


def test_in_shadow_a_sink_publishes_below_the_shadow_name_only(sink: MakeSink) -> None:
    made = sink(shadow=True, type='float64_multi_array', topic='/arm/commands', dimensions=JOINTS)
    assert made.topic == '/action_publisher/shadow/arm/commands'


def test_the_gripper_map_turns_the_policy_value_into_the_joint() -> None:
    robot = load_robot('so101')
    gripper = robot.dimensions['gripper'].gripper
    assert gripper is not None
    assert gripper.mapped(0.0) == pytest.approx(-0.174533)
    assert gripper.mapped(1.0) == pytest.approx(1.74533)


def twist(linear: tuple[float, ...], angular: tuple[float, ...]) -> Twist:
    message = Twist()
    message.linear.x, message.linear.y, message.linear.z = linear
    message.angular.x, message.angular.y, message.angular.z = angular
    return message
