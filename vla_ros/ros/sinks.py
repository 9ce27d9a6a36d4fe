"""Sinks: one command turned into the message that a robot's own controller takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from geometry_msgs.msg import Twist, TwistStamped
from rclpy.node import Node
from rclpy.publisher import Publisher
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.types import NS_PER_S, Command, Floats
from vla_ros.profiles.robot import RobotProfile
from vla_ros.profiles.sink import SinkNumbers, SinkProfile, SinkType
from vla_ros.ros.messages import to_duration, to_time
from vla_ros.ros.qos import COMMAND, publisher_events

SHADOW = 'action_publisher/shadow/'
# Positions of a gripper action that differ by less are the same goal.
SAME_GOAL = 1e-4


class Sink(ABC):
    """Sends a subset of the dimensions to one topic."""

    message: type

    def __init__(self, node: Node, profile: SinkProfile, spec: ActionSpec, topic: str) -> None:
        self.profile = profile
        self._numbers = SinkNumbers(profile, spec)
        self._indices = self._numbers.indices
        self._publisher = self._made(node, topic)
        self.topic = self._publisher.topic_name

    def send(self, command: Command) -> None:
        """Publish a command."""
        self._publisher.publish(self.filled(command))

    def close(self, node: Node) -> None:
        node.destroy_publisher(self._publisher)

    @abstractmethod
    def filled(self, command: Command) -> Any:
        """The message of a command."""

    def _made(self, node: Node, topic: str) -> Publisher:
        return node.create_publisher(self.message, topic, COMMAND,
                                     event_callbacks=publisher_events(node, topic))


class Float64MultiArraySink(Sink):
    """forward_command_controller: it has no timeout and holds the last command for ever."""

    message = Float64MultiArray

    def filled(self, command: Command) -> Float64MultiArray:
        return Float64MultiArray(data=array('d', self._numbers(command)))


class JointTrajectorySink(Sink):
    """joint_trajectory_controller: the limiter's own roll-out, stamp zero meaning now."""

    message = JointTrajectory

    def __init__(self, node: Node, profile: SinkProfile, spec: ActionSpec, topic: str,
                 period_ns: int) -> None:
        super().__init__(node, profile, spec, topic)
        self._times = [to_duration((k + 1) * period_ns)
                       for k in range(-(-profile.lookahead_ns // period_ns))]

    def filled(self, command: Command) -> JointTrajectory:
        message = JointTrajectory(joint_names=list(self.profile.joints))
        message.header.frame_id = self.profile.frame_id
        message.points = [
            JointTrajectoryPoint(positions=array('d', row[self._indices]), time_from_start=time)
            for row, time in zip(command.rollout, self._times)]  # noqa: B905 (3.10)
        return message


class TwistStampedSink(Sink):
    """MoveIt Servo and newer mobile bases; their timeouts count from the stamp."""

    message = TwistStamped

    def filled(self, command: Command) -> TwistStamped:
        message = TwistStamped()
        message.header.stamp = to_time(command.stamp_ns)
        message.header.frame_id = self.profile.frame_id
        _fill(message.twist, self.profile.axes, self._numbers(command))
        return message


class TwistSink(Sink):
    """Mobile bases on Humble."""

    message = Twist

    def filled(self, command: Command) -> Twist:
        message = Twist()
        _fill(message, self.profile.axes, self._numbers(command))
        return message


class JointStateSink(Sink):
    """Drivers that take a JointState as command, and viewers."""

    message = JointState

    def filled(self, command: Command) -> JointState:
        message = JointState(
            name=list(self.profile.joints), position=array('d', command.values[self._indices]),
            velocity=array('d', command.velocities[self._indices]))
        message.header.stamp = to_time(command.stamp_ns)
        message.header.frame_id = self.profile.frame_id
        return message


class JointJogSink(Sink):
    """MoveIt Servo in joint space."""

    def __init__(self, node: Node, profile: SinkProfile, spec: ActionSpec, topic: str,
                 period_ns: int) -> None:
        self.message = _control_msgs('msg', 'JointJog', profile)
        self._duration = period_ns / NS_PER_S
        super().__init__(node, profile, spec, topic)

    def filled(self, command: Command) -> Any:
        message = self.message(joint_names=list(self.profile.joints), duration=self._duration,
                               velocities=array('d', self._numbers(command)))
        message.header.stamp = to_time(command.stamp_ns)
        message.header.frame_id = self.profile.frame_id
        return message


class GripperCommandSink(Sink):
    """parallel_gripper_action_controller: a goal each time that the gripper's value changes."""

    def __init__(self, node: Node, profile: SinkProfile, spec: ActionSpec, topic: str) -> None:
        self.message = _control_msgs('action', 'ParallelGripperCommand', profile)
        self._last: float | None = None
        super().__init__(node, profile, spec, topic)

    def _made(self, node: Node, topic: str) -> Any:
        from rclpy.action import ActionClient
        client = ActionClient(node, self.message, topic)
        client.topic_name = node.resolve_topic_name(topic)
        return client

    def send(self, command: Command) -> None:
        value = float(self._numbers(command)[0])
        if self._last is not None and abs(value - self._last) < SAME_GOAL:
            return
        if self._publisher.server_is_ready():
            self._last = value
            self._publisher.send_goal_async(self.filled(command))

    def close(self, node: Node) -> None:
        self._publisher.destroy()

    def filled(self, command: Command) -> Any:
        goal = self.message.Goal()
        goal.command = JointState(name=list(self.profile.joints),
                                  position=array('d', self._numbers(command)))
        return goal


PLAIN: dict[SinkType, type[Sink]] = {
    SinkType.FLOAT64_MULTI_ARRAY: Float64MultiArraySink,
    SinkType.TWIST_STAMPED: TwistStampedSink,
    SinkType.TWIST: TwistSink,
    SinkType.JOINT_STATE: JointStateSink,
    SinkType.GRIPPER_COMMAND: GripperCommandSink,
}
TIMED: dict[SinkType, Callable[..., Sink]] = {
    SinkType.JOINT_TRAJECTORY: JointTrajectorySink,
    SinkType.JOINT_JOG: JointJogSink,
}


def make_sinks(node: Node, robot: RobotProfile, spec: ActionSpec, shadow: bool) -> Iterator[Sink]:
    """The sinks of a robot, one by one; in shadow they publish under `action_publisher/shadow/`.

    Raises ValueError with one line where control_msgs is needed and missing.
    """
    for profile in robot.sinks:
        topic = SHADOW + profile.topic.lstrip('/~') if shadow else profile.topic
        if profile.type in TIMED:
            yield TIMED[profile.type](node, profile, spec, topic, robot.control_period_ns)
        else:
            yield PLAIN[profile.type](node, profile, spec, topic)


def _fill(twist: Twist, axes: Sequence[str], numbers: Floats) -> None:
    for axis, number in zip(axes, numbers):  # noqa: B905 (3.10)
        part, name = axis.split('.')
        setattr(getattr(twist, part), name, float(number))


def _control_msgs(module: str, name: str, profile: SinkProfile) -> Any:
    try:
        package = __import__(f'control_msgs.{module}', fromlist=[name])
        return getattr(package, name)
    except (ImportError, AttributeError):
        raise ValueError(
            f'sink {profile.topic}: type {profile.type.value} needs control_msgs/{name}, which is '
            'not installed: apt install ros-$ROS_DISTRO-control-msgs') from None
