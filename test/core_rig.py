"""What the tests of the core share: small specs, limits, and a robot that does as it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind, Rotation
from vla_ros.core.control_config import ControlConfig, Tick
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.limits import Limits
from vla_ros.core.types import NS_PER_S, Command, Floats, InferenceStatus, Plan, StateSample
from vla_ros.core.watchdog import Layer, LayerLimit, Reaction

TICK_NS = NS_PER_S // 50
START_NS = 1_000 * NS_PER_S
MS = NS_PER_S // 1000


def dimension(name: str, kind: Kind = Kind.POSITION, group: Group = Group.JOINTS,
              state: str | None = None, rotation: Rotation = Rotation.VECTOR) -> Dimension:
    unit = '1' if kind is Kind.GRIPPER else 'rad'
    return Dimension(name, unit, kind, group, name if state is None else state, rotation)


def spec_of(*kinds: Kind, group: Group = Group.JOINTS) -> ActionSpec:
    """Dimensions d0, d1, … of these kinds, each with a measured state of its own name."""
    return ActionSpec(tuple(
        dimension(f'd{i}', kind, Group.GRIPPER if kind is Kind.GRIPPER else group)
        for i, kind in enumerate(kinds)))


def quaternion_spec(kind: Kind = Kind.POSITION) -> ActionSpec:
    return ActionSpec(tuple(
        dimension(name, kind, Group.ROTATION, rotation=Rotation.QUATERNION)
        for name in ('qx', 'qy', 'qz', 'qw')))


def limits_of(size: int, low: float = -1.0, high: float = 1.0, velocity: float = 1.0,
              acceleration: float = 4.0, jerk: float = np.inf, stop: float = 8.0) -> Limits:
    return Limits(*(np.full(size, value) for value in (
        low, high, velocity, acceleration, jerk, stop)))


def watchdog_limits(reaction: Reaction = Reaction.HOLD) -> dict[Layer, LayerLimit]:
    seconds = {Layer.INFERENCE_SILENCE: 0.5, Layer.OBSERVATION_AGE: 1.0,
               Layer.INFERENCE_DEADLINE: 1.0, Layer.PLAN_EXHAUSTED: 0.0, Layer.OUTPUT_AGE: 0.1}
    return {layer: LayerLimit(int(s * NS_PER_S), reaction) for layer, s in seconds.items()}


def config_of(spec: ActionSpec, **changes: Any) -> ControlConfig:
    tolerance = np.full(spec.size, np.inf)
    tolerance[spec.of_kind(Kind.POSITION)] = 0.1
    config = ControlConfig(spec=spec, limits=limits_of(spec.size), tolerance=tolerance,
                           policy_period_ns=NS_PER_S // 5, watchdog=watchdog_limits())
    return replace(config, **changes)


class Rig:
    """A control loop on a robot that is where the last command put it, ticking at 50 Hz.

    `alive`: inference tells that it is well in each period. `measuring`: joint states arrive.
    """

    def __init__(self, config: ControlConfig, measured: Sequence[float] | None = None) -> None:
        self.loop = ControlLoop(config)
        self.spec = config.spec
        self.now_ns = START_NS
        self.measured = np.zeros(self.spec.size) if measured is None else np.array(measured, float)
        self.alive = True
        self.measuring = True
        self.follow = True
        self.ticks: list[Tick] = []
        self.sent: list[Command | None] = []
        self.tick()

    def tick(self, real_ns: int = TICK_NS, jump_ns: int = 0) -> Tick:
        """One control period, `real_ns` after the last, the ROS clock jumping by `jump_ns`."""
        self.now_ns += real_ns + jump_ns
        if self.measuring:
            self.measure()
        if self.alive:
            self.status()
        tick = self.loop.tick(self.now_ns, real_ns)
        command = tick.command
        if command is not None and self.follow:
            flow = self.spec.of_kind(Kind.VELOCITY, Kind.DELTA)
            place = command.values.copy()
            place[flow] = self.measured[flow] + command.values[flow] * (TICK_NS / NS_PER_S)
            self.measured = place
        self.ticks.append(tick)
        self.sent.append(command)
        return tick

    def run(self, seconds: float) -> list[Tick]:
        return [self.tick() for _ in range(round(seconds * 50))]

    def measure(self) -> None:
        names = tuple(d.state for d in self.spec.dimensions)
        self.loop.on_state(StateSample(self.now_ns, self.now_ns, names, self.measured.copy()))

    def status(self, reaction: str = 'none', cause: str = '', epoch_ns: int | None = None) -> None:
        epoch_ns = self.loop.epoch_ns if epoch_ns is None else epoch_ns
        self.loop.on_status(InferenceStatus(self.now_ns, epoch_ns, cause, reaction))

    def plan(self, values: Sequence[Sequence[float]] | Floats, stamp_ns: int | None = None,
             start_ns: int | None = None) -> str:
        stamp_ns = self.now_ns if stamp_ns is None else stamp_ns
        return self.loop.on_plan(self.make(values, stamp_ns, start_ns), self.now_ns)

    def make(self, values: Any, stamp_ns: int, start_ns: int | None = None) -> Plan:
        return Plan(stamp_ns, stamp_ns if start_ns is None else start_ns,
                    self.loop.config.policy_period_ns, np.array(values, dtype=np.float64))

    def steady(self, row: Sequence[float], steps: int = 4) -> str:
        """A plan that wants the same all the time."""
        return self.plan([list(row)] * steps)

    def drive(self, row: Sequence[float], seconds: float) -> list[Tick]:
        """Renew a steady plan in every period."""
        ticks = []
        for _ in range(round(seconds * 50)):
            self.steady(row)
            ticks.append(self.tick())
        return ticks

    def enable(self) -> str:
        return self.loop.enable(self.now_ns)

    def start(self, row: Sequence[float] | None = None) -> None:
        """Enabled and past the slow start, at rest where the robot is unless `row` moves it."""
        row = self.measured if row is None else row
        self.steady(row)
        assert self.enable() == ''
        self.drive(row, 2.1)

    def commands(self) -> Floats:
        """The values that were sent, float64 [n, A]."""
        return np.array([command.values for command in self.sent if command is not None])
