"""The sinks section of a robot profile: which dimensions go to which command topic, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.types import Command, Floats
from vla_ros.profiles.reader import TOPIC, TOPIC_RULE, Section


class SinkType(str, Enum):
    """The message that a sink sends."""

    FLOAT64_MULTI_ARRAY = 'float64_multi_array'  # forward_command_controller
    JOINT_TRAJECTORY = 'joint_trajectory'        # joint_trajectory_controller
    TWIST_STAMPED = 'twist_stamped'              # MoveIt Servo, mobile bases
    TWIST = 'twist'                              # mobile bases
    JOINT_STATE = 'joint_state'
    JOINT_JOG = 'joint_jog'                      # MoveIt Servo; needs control_msgs
    GRIPPER_COMMAND = 'gripper_command'          # parallel gripper action; needs control_msgs


class Interface(str, Enum):
    """What the numbers of a sink are: positions or velocities."""

    POSITION = 'position'
    VELOCITY = 'velocity'


AXES = ('linear.x', 'linear.y', 'linear.z', 'angular.x', 'angular.y', 'angular.z')
OWN_TOPICS = ('action_chunk', 'inference_status', 'reset_stamp', 'joint_states', 'instruction',
              'estop')
_TWISTS = (SinkType.TWIST, SinkType.TWIST_STAMPED)
_VELOCITIES = (*_TWISTS, SinkType.JOINT_JOG)
_FRAMED = (SinkType.TWIST_STAMPED, SinkType.JOINT_TRAJECTORY, SinkType.JOINT_JOG,
           SinkType.JOINT_STATE)
_NAMED = (SinkType.JOINT_TRAJECTORY, SinkType.JOINT_STATE, SinkType.JOINT_JOG,
          SinkType.GRIPPER_COMMAND)


@dataclass(frozen=True)
class SinkProfile:
    """One command topic (an action name for gripper_command).

    `dimensions` in the order in which the message carries them. `joints`: their names in the
    message, the dimension names where none are given. `axes`: one of AXES per dimension, twists
    only. `lookahead_ns`: length of the roll-out of a joint_trajectory.
    """

    type: SinkType
    topic: str
    dimensions: tuple[str, ...]
    interface: Interface
    joints: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    frame_id: str = ''
    lookahead_ns: int = 0


class SinkNumbers:
    """What a sink takes of every command, in the order of its dimensions.

    `indices`: those of its dimensions in the planned `spec`.
    """

    def __init__(self, sink: SinkProfile, spec: ActionSpec) -> None:
        self.indices = spec.indices(sink.dimensions)
        self._flow = sink.interface is Interface.VELOCITY

    def __call__(self, command: Command) -> Floats:
        """Positions (or the gripper's value) or velocities [n], as the sink's interface says."""
        return (command.velocities if self._flow else command.values)[self.indices]


def read_sink(section: Section, units: Mapping[str, str], frame_id: str) -> SinkProfile:
    """A sink from its section; `units` of all dimensions by name. Raises ValueError, one line."""
    kind = SinkType(section.text('type', choices=[t.value for t in SinkType]))
    topic = section.text('topic', pattern=TOPIC, rule=TOPIC_RULE)
    own = topic.lstrip('/~')
    if own in OWN_TOPICS or own.startswith(('observation/', 'action_publisher/')):
        section.fail('topic', 'taken by this package itself; name the topic of a controller', topic)
    dimensions = section.texts('dimensions', minimum=1, choices=units)
    if kind is SinkType.GRIPPER_COMMAND and len(dimensions) != 1:
        section.fail('dimensions', 'exactly one dimension for type gripper_command')
    interface = Interface.VELOCITY if kind in _VELOCITIES else Interface.POSITION
    if kind is SinkType.FLOAT64_MULTI_ARRAY:
        interface = Interface(section.text('interface', 'position',
                                           choices=[i.value for i in Interface]))
    else:
        section.refuse('interface', f'only with type: float64_multi_array; {kind.value} takes '
                                    f'{interface.value}')
    sink = SinkProfile(
        type=kind, topic=topic, dimensions=dimensions, interface=interface,
        joints=_joints(section, kind, dimensions), axes=_axes(section, kind, dimensions, units),
        frame_id=_frame(section, kind, frame_id), lookahead_ns=_lookahead(section, kind))
    section.done()
    return sink


def _joints(section: Section, kind: SinkType, dimensions: tuple[str, ...]) -> tuple[str, ...]:
    if kind not in _NAMED:
        section.refuse('joints', f'not with type: {kind.value}, its message carries no names')
        return dimensions
    joints = section.texts('joints', dimensions)
    if len(joints) != len(dimensions):
        section.fail('joints', f'one name for each of the {len(dimensions)} dimensions')
    return joints


def _axes(section: Section, kind: SinkType, dimensions: tuple[str, ...],
          units: Mapping[str, str]) -> tuple[str, ...]:
    if kind not in _TWISTS:
        section.refuse('axes', 'only with type: twist or twist_stamped')
        return ()
    usual = AXES if len(dimensions) == len(AXES) else None
    axes = section.texts('axes', usual, choices=AXES,
                         rule=f'a list that names the axis of each dimension: {", ".join(AXES)}')
    if len(axes) != len(dimensions):
        section.fail('axes', f'one axis for each of the {len(dimensions)} dimensions')
    for i, (axis, dimension) in enumerate(zip(axes, dimensions, strict=True)):
        unit = 'm' if axis.startswith('linear') else 'rad'
        if units[dimension] != unit:
            section.fail(f'dimensions[{i}]', f'axis {axis} takes a dimension in {unit}; this one '
                                             f'is in {units[dimension]}', dimension)
    return axes


def _frame(section: Section, kind: SinkType, frame_id: str) -> str:
    if kind not in _FRAMED:
        section.refuse('frame_id', f'not with type: {kind.value}, its message carries no frame')
        return ''
    return section.text('frame_id', frame_id, rule='a frame name') if section.has(
        'frame_id') else frame_id


def _lookahead(section: Section, kind: SinkType) -> int:
    if kind is not SinkType.JOINT_TRAJECTORY:
        section.refuse('lookahead', 'only with type: joint_trajectory')
        return 0
    return section.seconds('lookahead', 0.1, low=0.02, high=2.0)


