"""Messages to core values and back. Nothing here knows of nodes."""

from __future__ import annotations

from array import array

import numpy as np
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from vla_ros.core.types import NS_PER_S, InferenceStatus, Plan, StateSample


def to_ns(time: Time | Duration) -> int:
    """A stamp or duration in nanoseconds."""
    return int(time.sec) * NS_PER_S + int(time.nanosec)


def to_time(time_ns: int) -> Time:
    """Nanoseconds as a stamp."""
    sec, nanosec = divmod(time_ns, NS_PER_S)
    return Time(sec=sec, nanosec=nanosec)


def to_duration(duration_ns: int) -> Duration:
    """Nanoseconds as a duration."""
    sec, nanosec = divmod(duration_ns, NS_PER_S)
    return Duration(sec=sec, nanosec=nanosec)


def plan_to_message(plan: Plan, names: tuple[str, ...], frame_id: str) -> JointTrajectory:
    """A plan as `action_chunk`: times from the stamp of the observation it answers."""
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = to_time(plan.stamp_ns)
    message.header.frame_id = frame_id
    offset_ns = plan.start_ns - plan.stamp_ns
    message.points = [
        JointTrajectoryPoint(positions=array('d', row),
                             time_from_start=to_duration(offset_ns + i * plan.period_ns))
        for i, row in enumerate(plan.values)]
    return message


def most_plan_bytes(horizon: int, names: tuple[str, ...]) -> int:
    """How large the message of a plan can be: at half speed it has 2 (horizon + 1) points."""
    point = 8 * len(names) + 64  # positions, and the rest of a point with its padding
    return 2 * (horizon + 1) * point + sum(len(name) + 16 for name in names) + 1024


def plan_from_message(message: JointTrajectory, names: tuple[str, ...], period_ns: int,
                      frame_id: str = '') -> Plan:
    """The plan of an `action_chunk`, its dimensions in the order of `names`.

    `period_ns` stands for the spacing where there is only one point; `frame_id` is the frame that
    a plan must be in, unless one of the two is empty. Raises ValueError with one
    line where the message is not a plan for these dimensions.
    """
    given = list(message.joint_names)
    if sorted(given) != sorted(names):
        raise ValueError(f'action chunk: joint_names are {", ".join(given) or "empty"}; the '
                         f'profiles say {", ".join(names)}')
    frame = message.header.frame_id
    if frame and frame_id and frame != frame_id:
        raise ValueError(f'action chunk: frame_id is {frame!r}; the robot profile says '
                         f'{frame_id!r}')
    if not message.points:
        raise ValueError('action chunk: no points; at least one is needed')
    sizes = {len(point.positions) for point in message.points}
    if sizes != {len(names)}:
        raise ValueError(f'action chunk: points have {", ".join(map(str, sorted(sizes)))} '
                         f'positions; {len(names)} are needed')
    times = [to_ns(point.time_from_start) for point in message.points]
    spacing = {after - before for before, after in zip(times, times[1:])}  # noqa: B905 (3.10)
    if len(spacing) > 1 or any(gap <= 0 for gap in spacing):
        raise ValueError('action chunk: time_from_start must rise in equal steps')
    values = np.array([point.positions for point in message.points], dtype=np.float64)
    if given != list(names):
        values = values[:, [given.index(name) for name in names]]
    stamp_ns = to_ns(message.header.stamp)
    return Plan(stamp_ns, stamp_ns + times[0], spacing.pop() if spacing else period_ns, values)


def state_from_message(message: JointState, received_ns: int) -> StateSample:
    """A measurement; a stamp of zero means that the driver sets none, and receipt stands for it."""
    return StateSample(to_ns(message.header.stamp) or received_ns, received_ns,
                       tuple(message.name), np.array(message.position, dtype=np.float64))


def status_to_message(status: InferenceStatus, name: str) -> DiagnosticStatus:
    """The status of inference as a diagnostic status, so that every ROS tool can show it."""
    level = {'none': DiagnosticStatus.WARN if status.cause else DiagnosticStatus.OK,
             'fault': DiagnosticStatus.ERROR}.get(status.reaction, DiagnosticStatus.WARN)
    values = {'observation_stamp_ns': str(status.observation_stamp_ns),
              'epoch_ns': str(status.epoch_ns),
              'reaction': status.reaction, 'instruction': status.instruction}
    return DiagnosticStatus(level=level, name=name, message=status.cause,
                            values=[KeyValue(key=k, value=v) for k, v in values.items()])


def status_from_message(message: DiagnosticStatus) -> InferenceStatus:
    """The status of inference. Raises ValueError with one line where it is something else."""
    values = {pair.key: pair.value for pair in message.values}
    try:
        return InferenceStatus(int(values['observation_stamp_ns']), int(values['epoch_ns']),
                               message.message, values['reaction'], values['instruction'])
    except (KeyError, ValueError) as error:
        raise ValueError(f'inference_status: {error}: not a status of inference_node') from None
