"""Binds a policy to a robot: whatever does not fit is refused here, before anything moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NoReturn, Protocol

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind, Rotation
from vla_ros.core.executor_state import Trigger
from vla_ros.core.gripper import GripperMap
from vla_ros.core.limits import Limits
from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.core.watchdog import Layer
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.reader import hint, show
from vla_ros.profiles.robot import RobotProfile
from vla_ros.profiles.sink import Interface, SinkProfile, SinkType

_FLOWING = (Kind.VELOCITY, Kind.DELTA)
_TWISTS = (SinkType.TWIST, SinkType.TWIST_STAMPED)


class Bindable(Protocol):
    """What a binding looks at; a PolicyProfile and a policy contract both have it."""

    @property
    def family(self) -> str: ...
    @property
    def horizon(self) -> int: ...
    @property
    def period_ns(self) -> int: ...
    @property
    def cameras(self) -> Mapping[str, Any]: ...
    @property
    def state_names(self) -> tuple[str, ...]: ...
    @property
    def action(self) -> ActionSpec: ...


@dataclass(frozen=True)
class Binding:
    """A policy on a robot.

    `spec`: the policy's action, each dimension with the measured state that it moves. `absolute`:
    delta dimensions that are anchored because a sink takes positions. `planned`: the spec of
    plans. `limits` and `activation_tolerance` [A] are in planned order; the tolerance is inf for
    all but position dimensions. `grippers`: the map of each gripper by its index. `notes`: one
    line each on what a user should know.
    """

    spec: ActionSpec
    absolute: frozenset[str]
    planned: ActionSpec
    limits: Limits
    activation_tolerance: Floats
    grippers: Mapping[int, GripperMap]
    notes: tuple[str, ...]


def bind(policy: Bindable, robot: RobotProfile) -> Binding:
    """Check a policy against a robot. Raises ValueError with one line."""
    return _Binder(policy, robot).bind()


class _Binder:
    """One check after the other; each refuses with the file in which to mend it."""

    def __init__(self, policy: Bindable, robot: RobotProfile) -> None:
        self._policy = policy
        self._robot = robot

    def bind(self) -> Binding:
        self._check_inputs()
        self._check_times()
        self._check_names()
        self._check_units()
        own = self._robot.dimensions
        spec = ActionSpec(tuple(replace(d, state=own[d.name].state)
                                for d in self._policy.action.dimensions))
        if spec.quaternion().size:
            self._policy_fails('action', ', '.join(spec.names[i] for i in spec.quaternion()),
                               'rotation vector or euler is needed: a quaternion cannot be '
                               'limited yet')
        absolute = self._absolute(spec)
        self._check_anchors(spec, absolute)
        planned = spec.as_planned(absolute)
        for number, sink in enumerate(self._robot.sinks):
            for name in sink.dimensions:
                self._check_servable(f'sinks[{number}]', sink, spec, planned, name)
        for dimension in planned.dimensions:
            self._check_limits(dimension)
        grippers = {int(i): own[planned.names[i]].gripper or GripperMap()
                    for i in planned.of_kind(Kind.GRIPPER)}
        return Binding(spec, absolute, planned, self._limits(planned), self._tolerance(planned),
                       grippers, self._notes(spec, planned))

    def _check_times(self) -> None:
        policy, robot = self._policy, self._robot
        period = policy.period_ns / NS_PER_S
        control = robot.control_period_ns / NS_PER_S
        if policy.horizon < 1:
            self._policy_fails('horizon', policy.horizon, 'at least 1 step')
        if policy.period_ns < robot.control_period_ns:
            self._policy_fails('period', period, f'at least the control period of robot '
                               f'{robot.name}, which is {control:g} s (rate {robot.rate:g} Hz)')
        # An observation or a chunk is at least as old as whatever brings them is slow.
        slow = [(period, 'the policy period')]
        slow += [(robot.cameras[name].period_ns / NS_PER_S, f'the period of camera {name}')
                 for name in policy.cameras]
        if isinstance(policy, PolicyProfile) and policy.trigger is Trigger.RATE:
            least = 1.0 / (policy.horizon * period)
            if policy.trigger_rate < least:
                self._policy_fails('trigger_rate', policy.trigger_rate,
                                   f'at least {least:g} Hz, else every plan of {policy.horizon} '
                                   f'steps is exhausted before the next one')
            slow.append((1.0 / policy.trigger_rate, 'the time between two inferences'))
        fresh, why = max(slow)
        for layer in (Layer.OBSERVATION_AGE, Layer.INFERENCE_DEADLINE):
            limit = robot.watchdog[layer].limit_ns / NS_PER_S
            if limit <= fresh:
                self._robot_fails(f'watchdog.{layer.value}.limit', limit,
                                  f'above {fresh:g} s, {why} of {self._name()}')
        output = robot.watchdog[Layer.OUTPUT_AGE].limit_ns / NS_PER_S
        if output <= control:
            self._robot_fails('watchdog.output_age.limit', output,
                              f'above {control:g} s, the control period')

    def _check_inputs(self) -> None:
        policy, robot = self._policy, self._robot
        if not policy.cameras:
            self._policy_fails('cameras', {}, 'at least one camera; observations bear its stamp')
        for camera in policy.cameras:
            if camera not in robot.cameras:
                self._policy_fails('cameras', camera, f'cameras of robot {robot.name} are '
                                   f'{", ".join(robot.cameras)}{hint(camera, robot.cameras)}')
        for i, name in enumerate(policy.state_names):
            if name not in robot.state_names:
                known = ', '.join(robot.state_names) or 'nothing'
                self._policy_fails(f'state[{i}]', name, f'robot {robot.name} measures {known}'
                                                        f'{hint(name, robot.state_names)}')

    def _check_names(self) -> None:
        own, offered = self._robot.dimensions, self._policy.action.names
        for i, name in enumerate(offered):
            if name not in own:
                self._policy_fails(f'action[{i}].name', name, f'dimensions of robot '
                                   f'{self._robot.name} are {", ".join(own)}{hint(name, own)}')
        for name in own:
            if name not in offered:
                self._policy_fails('action', offered, f'all dimensions of robot '
                                   f'{self._robot.name}; {name} is missing')

    def _check_units(self) -> None:
        for i, dimension in enumerate(self._policy.action.dimensions):
            own = self._robot.dimensions[dimension.name]
            unit = f'{own.unit}/s' if dimension.kind is Kind.VELOCITY else own.unit
            if dimension.unit != unit:
                self._policy_fails(f'action[{i}].unit', dimension.unit,
                                   f'{unit} for kind {dimension.kind.value}, since robot '
                                   f'{self._robot.name} has {dimension.name} in {own.unit}')
            if own.gripper is not None and dimension.kind is not Kind.GRIPPER:
                self._robot_fails(f'dimensions.{dimension.name}.gripper', dimension.kind.value,
                                  f'only for a dimension of kind gripper in {self._name()}')

    def _absolute(self, spec: ActionSpec) -> frozenset[str]:
        """The deltas that a sink of positions takes; each sink type takes one way or the other."""
        takers: dict[str, dict[Interface, str]] = {}
        for number, sink in enumerate(self._robot.sinks):
            for name in sink.dimensions:
                takers.setdefault(name, {}).setdefault(sink.interface, f'sinks[{number}]')
        absolute = set()
        for dimension in spec.dimensions:
            if dimension.kind is not Kind.DELTA:
                continue
            taker = takers[dimension.name]
            if len(taker) == 2:
                self._robot_fails(
                    f'{taker[Interface.POSITION]}.dimensions', dimension.name,
                    f'a delta goes to sinks of positions or of velocities; '
                    f'{taker[Interface.VELOCITY]} takes it as a velocity')
            if Interface.POSITION in taker:
                absolute.add(dimension.name)
        return frozenset(absolute)

    def _check_anchors(self, spec: ActionSpec, absolute: frozenset[str]) -> None:
        rotation = [d.name for d in spec.dimensions if d.group is Group.ROTATION]
        anchored = [name for name in rotation if name in absolute]
        if anchored and len(anchored) < len(rotation):
            other = next(name for name in rotation if name not in absolute)
            self._robot_fails('sinks', f'{anchored[0]}, {other}',
                              'the rotation deltas go all to sinks of positions or none')
        for dimension in spec.dimensions:
            if dimension.kind is Kind.RELATIVE or dimension.name in absolute:
                self._needs_state(dimension, f'its {dimension.kind.value} values are added to it')
            elif dimension.kind is Kind.POSITION:
                self._needs_state(dimension, 'motion starts from it')

    def _needs_state(self, dimension: Dimension, why: str) -> None:
        if not dimension.state:
            self._robot_fails(f'dimensions.{dimension.name}.state', None,
                              f'one of state.names: {", ".join(self._robot.state_names)}; {why}')

    def _check_servable(self, place: str, sink: SinkProfile, spec: ActionSpec,
                        planned: ActionSpec, name: str) -> None:
        index = planned.names.index(name)
        dimension, kind = planned.dimensions[index], spec.dimensions[index].kind.value
        where = f'{place}.dimensions'
        if sink.interface is Interface.VELOCITY and dimension.kind not in _FLOWING:
            way = ('' if sink.type is not SinkType.FLOAT64_MULTI_ARRAY
                   else '; or set interface: position')
            self._robot_fails(where, name, f'type {sink.type.value} takes velocity or delta as '
                              f'velocities; {self._name()} gives kind {kind}{way}')
        if sink.interface is Interface.POSITION and dimension.kind in _FLOWING:
            way = ('' if sink.type is not SinkType.FLOAT64_MULTI_ARRAY
                   else '; or set interface: velocity')
            self._robot_fails(where, name, f'type {sink.type.value} takes positions and grippers; '
                              f'{self._name()} gives kind {kind}{way}')
        if sink.type in _TWISTS and dimension.group not in (Group.TRANSLATION, Group.ROTATION):
            self._robot_fails(where, name, f'type {sink.type.value} takes groups translation and '
                              f'rotation; {self._name()} gives group {dimension.group.value}')
        if sink.type is SinkType.JOINT_JOG and dimension.group is not Group.JOINTS:
            self._robot_fails(where, name, f'type joint_jog takes group joints; {self._name()} '
                                           f'gives group {dimension.group.value}')

    def _check_limits(self, dimension: Dimension) -> None:
        own, place = self._robot.dimensions[dimension.name], f'dimensions.{dimension.name}'
        if dimension.kind is Kind.GRIPPER:
            return
        for key in ('velocity', 'acceleration'):
            if getattr(own, key) == inf:
                per = 's' if key == 'velocity' else 's²'
                self._robot_fails(f'{place}.{key}', None, f'a limit in {own.unit}/{per}, here or '
                                  f'in joint_limits; nothing moves without one')
        if (dimension.kind is Kind.POSITION and dimension.group is not Group.ROTATION
                and own.position is None):
            self._robot_fails(f'{place}.position', None, f'[low, high] in {own.unit}, here or in '
                              f'joint_limits, since it is commanded as a position')

    def _limits(self, planned: ActionSpec) -> Limits:
        own = [self._robot.dimensions[name] for name in planned.names]
        return Limits(
            position_low=_array(d.position[0] if d.position else -inf for d in own),
            position_high=_array(d.position[1] if d.position else inf for d in own),
            velocity=_array(d.velocity for d in own),
            acceleration=_array(d.acceleration for d in own),
            jerk=_array(d.jerk for d in own),
            stop_deceleration=_array(d.stop_deceleration for d in own))

    def _tolerance(self, planned: ActionSpec) -> Floats:
        return _array(self._robot.dimensions[d.name].activation_tolerance
                      if d.kind is Kind.POSITION else inf for d in planned.dimensions)

    def _notes(self, spec: ActionSpec, planned: ActionSpec) -> tuple[str, ...]:
        notes = []
        rotation = [d for d in spec.dimensions if d.group is Group.ROTATION]
        names = ', '.join(d.name for d in rotation)
        if rotation and rotation[0].rotation is Rotation.EULER:
            if planned.dimensions[spec.names.index(rotation[0].name)].kind is Kind.DELTA:
                notes.append(f'{names}: small Euler angles are sent as a rotation vector')
            elif rotation[0].kind in (Kind.DELTA, Kind.RELATIVE):
                notes.append(f'{names}: Euler angles are added to the measured ones one by one')
        elif (rotation and rotation[0].rotation is Rotation.VECTOR
                and rotation[0].kind in (Kind.DELTA, Kind.RELATIVE)
                and planned.dimensions[spec.names.index(rotation[0].name)].kind is Kind.POSITION):
            states = ', '.join(d.state for d in rotation)
            notes.append(f'{names}: the measured {states} are read as a rotation vector')
        unbound = [d.name for d in planned.dimensions if d.kind in _FLOWING
                   and self._robot.dimensions[d.name].position is not None and not d.state]
        notes.extend(f'{name}: its position limits have no effect, since no measured state is '
                     f'named for it' for name in unbound)
        return tuple(notes)

    def _name(self) -> str:
        policy = self._policy
        return f'policy {policy.name if isinstance(policy, PolicyProfile) else policy.family}'

    def _policy_fails(self, key: str, value: object, allowed: str) -> NoReturn:
        policy = self._policy
        place = policy.file if isinstance(policy, PolicyProfile) else self._name()
        raise ValueError(f'{place}: {key}: {show(value)}: {allowed}')

    def _robot_fails(self, key: str, value: object, allowed: str) -> NoReturn:
        shown = 'missing' if value is None else show(value)
        raise ValueError(f'{self._robot.file}: {key}: {shown}: {allowed}')


def _array(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)
