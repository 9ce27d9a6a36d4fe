"""Listens to the public topics of a running graph and keeps a record of what it hears."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import TwistStamped
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, String
from trajectory_msgs.msg import JointTrajectory

from vla_ros.profiles.camera import CameraProfile, Source, Transport
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.profiles.sink import SinkProfile, SinkType
from vla_ros.ros.diagnostics import OK
from vla_ros.ros.messages import plan_from_message, to_ns
from vla_ros.ros.qos import IMAGE, LATCHED
from vla_ros.tools.record import Record

# Deep enough for what comes while the view draws.
_HEARD = QoSProfile(depth=100, reliability=QoSReliabilityPolicy.RELIABLE)
_COMMANDS = {SinkType.TWIST_STAMPED: TwistStamped, SinkType.FLOAT64_MULTI_ARRAY: Float64MultiArray}


class Recorder(Node):
    """Fills a record; publishes nothing. Raises ValueError on a sink that it cannot read.

    `action_topic`: of recorded actions, '' where there are none.
    """

    def __init__(self, record: Record, policy: PolicyProfile, robot: RobotProfile,
                 action_topic: str = '') -> None:
        super().__init__('demo')
        self._record = record
        self._policy = policy
        camera = robot.cameras[next(iter(policy.cameras))]
        if camera.source is Source.TOPIC:
            self._count('image in', _image_type(camera), camera.topic)
        self._count('observation', Image, f'observation/{camera.name}/image')
        for sink in robot.sinks:
            self._subscribe_command(sink, counted=sink is robot.sinks[0])
        for kind, topic, callback in (
                (DiagnosticArray, '/diagnostics', self._on_diagnostics),
                (JointTrajectory, 'action_chunk', self._on_plan)):
            self.create_subscription(kind, topic, callback, _HEARD)
        if action_topic:
            self.create_subscription(JointState, action_topic, self._on_action, _HEARD)
        self.create_subscription(String, 'instruction', self._on_instruction, LATCHED)

    def _count(self, stream: str, kind: type, topic: str) -> None:
        # raw: nobody looks into these images here.
        self.create_subscription(
            kind, topic, lambda _: self._record.heard(stream, time.time_ns()), IMAGE, raw=True)

    def _subscribe_command(self, sink: SinkProfile, counted: bool) -> None:
        if sink.type not in _COMMANDS:
            raise ValueError(f'sink {sink.topic}: type {sink.type.value} cannot be recorded here; '
                             f'{", ".join(kind.value for kind in _COMMANDS)} can')
        numbers: Callable[[Any], Sequence[float]] = lambda message: message.data  # noqa: E731
        if sink.type is SinkType.TWIST_STAMPED:
            numbers = partial(_twist_numbers, [axis.split('.') for axis in sink.axes])
        self.create_subscription(
            _COMMANDS[sink.type], sink.topic, partial(self._on_command, sink, numbers, counted),
            _HEARD)

    def _on_command(self, sink: SinkProfile, numbers: Callable[[Any], Sequence[float]],
                    counted: bool, message: Any) -> None:
        now_ns = time.time_ns()
        if counted:
            self._record.heard('command', now_ns)
        stamp_ns = to_ns(message.header.stamp) if hasattr(message, 'header') else now_ns
        self._record.on_command(sink.dimensions, numbers(message), stamp_ns)

    def _on_plan(self, message: JointTrajectory) -> None:
        now_ns = time.time_ns()
        self._record.heard('chunk', now_ns)
        self._record.on_plan(
            plan_from_message(message, self._record.spec.names, self._policy.period_ns), now_ns)

    def _on_action(self, message: JointState) -> None:
        values = dict(zip(message.name, message.position))  # noqa: B905 (3.10)
        self._record.on_action(to_ns(message.header.stamp), np.array(
            [values.get(name, np.nan) for name in self._record.spec.names], dtype=np.float64))

    def _on_instruction(self, message: String) -> None:
        self._record.on_sentence(message.data.strip(), time.time_ns())

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self._record.on_status(
                status.name, {pair.key: pair.value for pair in status.values},
                to_ns(message.header.stamp), '' if status.level == OK else status.message)


@contextmanager
def listening(record: Record, policy: PolicyProfile, robot: RobotProfile,
              action_topic: str) -> Iterator[Callable[[float], None]]:
    """Gives a function that waits for the next message, at most so many seconds, and takes it."""
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        recorder = Recorder(record, policy, robot, action_topic)
        executor = SingleThreadedExecutor()
        executor.add_node(recorder)
        try:
            yield executor.spin_once
        finally:
            executor.shutdown()
            recorder.destroy_node()
    finally:
        rclpy.try_shutdown()


def _image_type(camera: CameraProfile) -> Any:
    return CompressedImage if camera.transport is Transport.COMPRESSED else Image


def _twist_numbers(axes: Sequence[Sequence[str]], message: TwistStamped) -> list[float]:
    return [getattr(getattr(message.twist, part), name) for part, name in axes]
