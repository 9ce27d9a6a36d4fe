"""The robot profile: state, cameras, dimensions with limits, sinks, watchdog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from vla_ros.core.gripper import GripperMap
from vla_ros.core.types import NS_PER_S
from vla_ros.core.watchdog import Layer, LayerLimit, Reaction
from vla_ros.profiles.camera import CameraProfile, read_camera
from vla_ros.profiles.joint_limits import JointLimits, read_joint_limits
from vla_ros.profiles.locate import locate, resolve
from vla_ros.profiles.reader import NAME, TOKEN, TOKEN_RULE, Section, read_profile
from vla_ros.profiles.sink import SinkProfile, read_sink

UNITS = ('m', 'rad', '1')
_SKEW_PERIODS = 1.5  # default skew limit in camera periods
_MOST_TOLERANCE = 10.0  # more than this and nothing is checked
_STOP_S = 1.0          # from full speed to rest: shutting down waits little longer
_LEAST_JERK = 2.0      # times the acceleration; less would average over more than a second
_SECONDS = {  # default and lowest limit of each layer of the watchdog, s
    Layer.OBSERVATION_AGE: (1.0, 0.01),
    Layer.INFERENCE_DEADLINE: (1.0, 0.01),
    Layer.PLAN_EXHAUSTED: (0.0, 0.0),
    Layer.OUTPUT_AGE: (0.1, 0.01),
    Layer.INFERENCE_SILENCE: (0.5, 0.2),  # inference_node reports every 0.1 s
}
_REACTIONS = {r.name.lower(): r for r in (Reaction.HOLD, Reaction.DECELERATE,
                                          Reaction.STOP_PUBLISHING)}


@dataclass(frozen=True)
class DimensionProfile:
    """One dimension: SI units of `unit`, per second, second squared, second cubed; inf = no limit.

    `position` bounds the measured `state` that the dimension moves (a gripper: the policy's own
    value, before the map). `state` is empty where the robot does not measure it.
    """

    name: str
    unit: str
    state: str = ''
    position: tuple[float, float] | None = None
    velocity: float = inf
    acceleration: float = inf
    jerk: float = inf
    stop_deceleration: float = inf
    activation_tolerance: float = 0.1
    gripper: GripperMap | None = None


@dataclass(frozen=True)
class RobotProfile:
    """Everything vla_ros must know of a robot. `file` is where it was read from.

    `cameras` and `dimensions` are in the order of the file. `skew_ns` is None where each camera
    has its own default. `watchdog` has every layer.
    """

    file: Path
    name: str
    description: str
    rate: float
    state_names: tuple[str, ...]
    cameras: Mapping[str, CameraProfile]
    frame_id: str
    dimensions: Mapping[str, DimensionProfile]
    sinks: tuple[SinkProfile, ...]
    watchdog: Mapping[Layer, LayerLimit]
    instruction_grace_ns: int = NS_PER_S
    estop_required: bool = False
    exclusive_command: str = 'refuse'
    command_latency_ns: int = 0
    skew_ns: int | None = None
    state_age_ns: int = NS_PER_S // 2
    on_violation: str = 'reject'

    @property
    def control_period_ns(self) -> int:
        """Time between two commands."""
        return round(NS_PER_S / self.rate)

    @property
    def rollout_steps(self) -> int:
        """Control periods of roll-out that the sink with the longest lookahead asks for."""
        return -(-max(sink.lookahead_ns for sink in self.sinks) // self.control_period_ns)

    def skew_limit_ns(self, camera: str) -> int:
        """How far a frame of this camera may lie from the stamp of the observation."""
        if self.skew_ns is not None:
            return self.skew_ns
        return round(_SKEW_PERIODS * self.cameras[camera].period_ns)


def load_robot(name: str | Path) -> RobotProfile:
    """A robot profile by shipped name or path. Raises ValueError with one line."""
    file = locate('robot', name)
    section = read_profile(file, 'robot')
    state = section.section('state')
    state_names = state.texts('names', (), rule='a list of the names in joint_states')
    state.done()
    dimensions = _dimensions(section, state_names)
    frame_id = section.text('frame_id', 'base_link', pattern=NAME, rule='a frame name')
    skew = section.seconds('skew', above=0.0) if section.has('skew') else None
    robot = RobotProfile(
        file=file,
        name=section.text('robot', pattern=TOKEN, rule=TOKEN_RULE),
        description=section.text('description') if section.has('description') else '',
        rate=section.number('rate', 50.0, low=10.0, high=200.0, unit='Hz'),
        state_names=state_names,
        cameras=_cameras(section),
        frame_id=frame_id,
        dimensions=dimensions,
        sinks=_sinks(section, dimensions, frame_id),
        watchdog=_watchdog(section.section('watchdog')),
        instruction_grace_ns=section.seconds('instruction_grace', 1.0, high=60.0),
        estop_required=section.flag('estop_required', False),
        exclusive_command=section.text('exclusive_command', 'refuse', choices=('refuse', 'warn')),
        command_latency_ns=section.seconds('command_latency', 0.0, high=1.0),
        skew_ns=skew,
        state_age_ns=section.seconds('state_age', 0.5, above=0.0),
        on_violation=section.text('on_violation', 'reject', choices=('reject', 'degrade')))
    section.done()
    return robot


def _cameras(section: Section) -> dict[str, CameraProfile]:
    sections = section.named_sections('cameras', 'a mapping of camera names to their source')
    for name in sections:
        if not TOKEN.fullmatch(name):
            section.fail(f'cameras.{name}', f'{TOKEN_RULE}, since topics carry the name', name)
    return {name: read_camera(name, inner) for name, inner in sections.items()}


def _dimensions(section: Section, state_names: tuple[str, ...]) -> dict[str, DimensionProfile]:
    sections = section.named_sections('dimensions', 'a mapping of dimension names to their limits')
    limits: dict[str, JointLimits] = {}
    if section.has('joint_limits'):
        path = resolve(section.file, section.text('joint_limits', rule='path of a YAML file'))
        limits = read_joint_limits(path)
        if not set(limits) & set(sections):
            section.fail('joint_limits', f'a file with limits of {", ".join(sections)}; it has '
                                         f'those of {", ".join(limits)}')
    tolerances = _tolerances(section, tuple(sections))
    for name, tolerance in tolerances.items():
        if tolerance > _MOST_TOLERANCE:
            section.fail('activation_tolerance', f'at most {_MOST_TOLERANCE:g} for {name}: with '
                         'more, nothing would be checked', tolerance)
    found: dict[str, DimensionProfile] = {}
    for name, inner in sections.items():
        dimension = _dimension(name, inner, state_names, limits.get(name, JointLimits()))
        for other in found.values():
            if dimension.state and dimension.state == other.state:
                inner.fail('state', f'moved by dimension {other.name} already', dimension.state)
        found[name] = replace(dimension, activation_tolerance=tolerances[name])
    return found


def _tolerances(section: Section, names: tuple[str, ...]) -> dict[str, float]:
    key = 'activation_tolerance'
    if not section.is_mapping(key):
        value = section.number(key, 0.1, above=0.0)
        return dict.fromkeys(names, value)
    inner = section.section(key)
    tolerances = {name: inner.number(name, 0.1, above=0.0) for name in names}
    inner.done()
    return tolerances


def _dimension(name: str, section: Section, state_names: tuple[str, ...],
               limits: JointLimits) -> DimensionProfile:
    state = name if name in state_names else ''
    if section.has('state'):
        state = section.text('state', choices=state_names, rule='a name in state.names')
    gripper = _gripper(section)
    if gripper is not None:
        # A gripper takes its newest value at once, in the policy's unit: limits of a joint in its
        # own unit would be wrong, limits of motion would promise what nobody keeps.
        limits = JointLimits()
        for key in ('velocity', 'acceleration', 'jerk', 'stop_deceleration'):
            section.refuse(key, 'not with gripper: a gripper takes its newest value at once')
        velocity = acceleration = jerk = stop = inf
    else:
        velocity = _limit(section, 'velocity', limits.velocity)
        acceleration = _limit(section, 'acceleration', limits.acceleration)
        jerk = _limit(section, 'jerk', limits.jerk)
        usual = acceleration if limits.stop_deceleration == inf else limits.stop_deceleration
        stop = _limit(section, 'stop_deceleration', usual)
        if stop < acceleration:
            section.fail('stop_deceleration', f'at least the acceleration, which is '
                                              f'{acceleration:g}', stop)
        if velocity != inf and stop * _STOP_S < velocity:
            section.fail('stop_deceleration', f'at least {velocity / _STOP_S:g}, so that a '
                         f'velocity of {velocity:g} comes to rest within {_STOP_S:g} s', stop)
        if jerk < _LEAST_JERK * acceleration:
            section.fail('jerk', f'at least {_LEAST_JERK * acceleration:g}, twice the acceleration '
                                 'per second', jerk)
    dimension = DimensionProfile(
        name=name, unit=section.text('unit', choices=UNITS), state=state,
        position=section.interval('position') if section.has('position') else limits.position,
        velocity=velocity, acceleration=acceleration, jerk=jerk, stop_deceleration=stop,
        gripper=gripper)
    section.done()
    return dimension


def _limit(section: Section, key: str, otherwise: float) -> float:
    return section.number(key, above=0.0) if section.has(key) else otherwise


def _gripper(section: Section) -> GripperMap | None:
    if not section.has('gripper'):
        return None
    inner = section.section('gripper')
    scale = inner.number('scale', 1.0)
    if scale == 0.0:
        inner.fail('scale', 'any number but 0')
    gripper = GripperMap(
        scale=scale, offset=inner.number('offset', 0.0), invert=inner.flag('invert', False),
        hysteresis=inner.number('hysteresis', 0.0, low=0.0),
        minimum_dwell_ns=inner.seconds('minimum_dwell', 0.0, high=60.0))
    inner.done()
    return gripper


def _sinks(section: Section, dimensions: Mapping[str, DimensionProfile],
           frame_id: str) -> tuple[SinkProfile, ...]:
    units = {name: dimension.unit for name, dimension in dimensions.items()}
    sinks: list[SinkProfile] = []
    for inner in section.listed_sections('sinks', 'a list of mappings, each with a type'):
        sink = read_sink(inner, units, frame_id)
        for other in sinks:
            if other.topic.lstrip('/') == sink.topic.lstrip('/'):
                inner.fail('topic', 'taken by another sink; every sink needs its own topic')
        sinks.append(sink)
    for name in units:
        if not any(name in sink.dimensions for sink in sinks):
            section.fail(f'dimensions.{name}', 'goes to no sink; name it in the dimensions of one',
                         name)
    return tuple(sinks)


def _watchdog(section: Section) -> dict[Layer, LayerLimit]:
    found = {}
    for layer in Layer:
        inner = section.section(layer.value)
        usual, low = _SECONDS[layer]
        limit_ns = inner.seconds('limit', usual, low=low, high=600.0)
        reaction = inner.text('reaction', 'hold', choices=_REACTIONS)
        inner.done()
        found[layer] = LayerLimit(limit_ns, _REACTIONS[reaction])
    section.done()
    return found
