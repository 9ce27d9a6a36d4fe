"""The messages that the nodes of a live graph publish, as CDR bytes, made without ROS."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.diagnostic_values import ERROR, OK, WARN, value_text
from vla_ros.core.types import NS_PER_S, Command, InferenceStatus, Plan
from vla_ros.profiles.sink import SinkNumbers, SinkProfile, SinkType

JOINT_JOG = 'control_msgs/msg/JointJog'
_JOINT_JOG = """
std_msgs/Header header
string[] joint_names
float64[] displacements
float64[] velocities
float64 duration
"""
SINK_TYPES = {
    SinkType.FLOAT64_MULTI_ARRAY: 'std_msgs/msg/Float64MultiArray',
    SinkType.JOINT_TRAJECTORY: 'trajectory_msgs/msg/JointTrajectory',
    SinkType.TWIST_STAMPED: 'geometry_msgs/msg/TwistStamped',
    SinkType.TWIST: 'geometry_msgs/msg/Twist',
    SinkType.JOINT_STATE: 'sensor_msgs/msg/JointState',
    SinkType.JOINT_JOG: JOINT_JOG,
}
"""Type of the message by type of sink; a gripper's goals are an action and stand on no topic."""


class Messages:
    """Makes messages and their bytes, with the definitions of one ROS distribution."""

    def __init__(self) -> None:
        from rosbags.typesys import Stores, get_types_from_msg, get_typestore
        known = {store.value: store for store in Stores}
        name = 'ros2_' + os.environ.get('ROS_DISTRO', '')
        self.typestore = get_typestore(known.get(name, Stores.LATEST))
        if JOINT_JOG not in self.typestore.types:
            self.typestore.register(get_types_from_msg(_JOINT_JOG, JOINT_JOG))
        self._types = self.typestore.types

    def bytes(self, message: Any) -> bytes:
        """A message as CDR."""
        return bytes(self.typestore.serialize_cdr(message, message.__msgtype__))

    # --- parts ---------------------------------------------------------------------------------

    def time(self, time_ns: int) -> Any:
        """builtin_interfaces/Time."""
        return self._types['builtin_interfaces/msg/Time'](*divmod(time_ns, NS_PER_S))

    def duration(self, duration_ns: int) -> Any:
        """builtin_interfaces/Duration."""
        return self._types['builtin_interfaces/msg/Duration'](*divmod(duration_ns, NS_PER_S))

    def header(self, stamp_ns: int, frame_id: str = '') -> Any:
        """std_msgs/Header."""
        return self._types['std_msgs/msg/Header'](self.time(stamp_ns), frame_id)

    # --- what the nodes publish ----------------------------------------------------------------

    def plan(self, plan: Plan, names: Sequence[str], frame_id: str) -> Any:
        """`action_chunk`."""
        offset_ns = plan.start_ns - plan.stamp_ns
        points = [self._point(row, offset_ns + i * plan.period_ns)
                  for i, row in enumerate(plan.values)]
        return self._types['trajectory_msgs/msg/JointTrajectory'](
            self.header(plan.stamp_ns, frame_id), list(names), points)

    def status(self, level: int, name: str, message: str, values: Mapping[str, object],
               hardware_id: str = '') -> Any:
        """diagnostic_msgs/DiagnosticStatus."""
        pair = self._types['diagnostic_msgs/msg/KeyValue']
        return self._types['diagnostic_msgs/msg/DiagnosticStatus'](
            level, name, message, hardware_id,
            [pair(key, value_text(value)) for key, value in values.items()])

    def inference_status(self, status: InferenceStatus, name: str) -> Any:
        """`inference_status`."""
        level = {'none': WARN if status.cause else OK, 'fault': ERROR}.get(status.reaction, WARN)
        return self.status(level, name, status.cause, {
            'observation_stamp_ns': status.observation_stamp_ns, 'epoch_ns': status.epoch_ns,
            'reaction': status.reaction, 'instruction': status.instruction})

    def diagnostics(self, stamp_ns: int, status: Any) -> Any:
        """`/diagnostics` with one status."""
        return self._types['diagnostic_msgs/msg/DiagnosticArray'](self.header(stamp_ns), [status])

    def string(self, text: str) -> Any:
        """std_msgs/String."""
        return self._types['std_msgs/msg/String'](text)

    def joint_state(self, stamp_ns: int, names: Sequence[str], positions: Any,
                    velocities: Any = (), frame_id: str = '') -> Any:
        """sensor_msgs/JointState."""
        return self._types['sensor_msgs/msg/JointState'](
            self.header(stamp_ns, frame_id), list(names), _floats(positions), _floats(velocities),
            _floats(()))

    def image(self, stamp_ns: int, pixels: NDArray[np.uint8]) -> Any:
        """sensor_msgs/Image of RGB pixels [height, width, 3]."""
        height, width = pixels.shape[:2]
        return self._types['sensor_msgs/msg/Image'](
            self.header(stamp_ns), height, width, 'rgb8', 0, 3 * width, pixels.reshape(-1))

    def compressed_image(self, stamp_ns: int, image_format: str, data: bytes) -> Any:
        """sensor_msgs/CompressedImage."""
        return self._types['sensor_msgs/msg/CompressedImage'](
            self.header(stamp_ns), image_format, np.frombuffer(data, np.uint8))

    def _point(self, positions: Any, from_start_ns: int) -> Any:
        return self._types['trajectory_msgs/msg/JointTrajectoryPoint'](
            _floats(positions), _floats(()), _floats(()), _floats(()),
            self.duration(from_start_ns))

    # --- what the sinks send -------------------------------------------------------------------

    def command(self, sink: SinkProfile, numbers: SinkNumbers, command: Command,
                period_ns: int) -> Any:
        """The message of a command on the topic of a sink, as `ros.sinks` fills it."""
        kind, types = sink.type, self._types
        if kind is SinkType.FLOAT64_MULTI_ARRAY:
            layout = types['std_msgs/msg/MultiArrayLayout']([], 0)
            return types['std_msgs/msg/Float64MultiArray'](layout, _floats(numbers(command)))
        if kind is SinkType.JOINT_TRAJECTORY:
            points = [self._point(row[numbers.indices], (k + 1) * period_ns) for k, row in zip(
                range(-(-sink.lookahead_ns // period_ns)), command.rollout, strict=False)]
            return types['trajectory_msgs/msg/JointTrajectory'](
                self.header(0, sink.frame_id), list(sink.joints), points)
        if kind is SinkType.TWIST_STAMPED:
            return types['geometry_msgs/msg/TwistStamped'](
                self.header(command.stamp_ns, sink.frame_id), self._twist(sink, numbers(command)))
        if kind is SinkType.TWIST:
            return self._twist(sink, numbers(command))
        if kind is SinkType.JOINT_STATE:
            return self.joint_state(command.stamp_ns, sink.joints, command.values[numbers.indices],
                                    command.velocities[numbers.indices], sink.frame_id)
        assert kind is SinkType.JOINT_JOG, f'{kind}: no message of its own'
        return types[JOINT_JOG](
            self.header(command.stamp_ns, sink.frame_id), list(sink.joints), _floats(()),
            _floats(numbers(command)), period_ns / NS_PER_S)

    def _twist(self, sink: SinkProfile, numbers: Any) -> Any:
        parts = {'linear': [0.0] * 3, 'angular': [0.0] * 3}
        for axis, number in zip(sink.axes, numbers, strict=True):
            part, name = axis.split('.')
            parts[part]['xyz'.index(name)] = float(number)
        vector = self._types['geometry_msgs/msg/Vector3']
        return self._types['geometry_msgs/msg/Twist'](
            vector(*parts['linear']), vector(*parts['angular']))


def _floats(values: Any) -> Any:
    return np.array(values, dtype=np.float64)
