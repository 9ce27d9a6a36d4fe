"""Policy family `scripted`: known motions, latency and faults, for tests and benchmarks.

A chunk depends on nothing but the stamp, the instruction and the state of its observation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import Dimension, Kind
from vla_ros.core.types import NS_PER_S, Floats, Observation
from vla_ros.engines.contract import Engine
from vla_ros.policies.contracts import contract_of
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.reader import Section

BACKENDS = ('numpy',)
MOTIONS = ('sine', 'ramp', 'constant', 'script')
FAULTS = ('stall', 'slow_ramp', 'raise', 'nan', 'wrong_shape', 'wrong_horizon', 'short')
_TIMED = ('stall', 'slow_ramp')
_FAULT_RULE = 'a list of {at: …, fault: …, count: …, seconds: …}'


@dataclass(frozen=True)
class Fault:
    """A fault of the inferences `at` to `at + count - 1`; inferences count from 0, warm-up not.

    stall: takes `seconds` longer. slow_ramp: takes `seconds` longer with every inference more.
    raise, nan, wrong_shape (one dimension more), wrong_horizon (one step more), short (one step
    less).
    """

    kind: str
    at: int
    count: int
    seconds: float

    def strikes(self, index: int) -> bool:
        return self.at <= index < self.at + self.count

    def delay_s(self, index: int) -> float:
        """What it adds to the time of the inference."""
        if self.kind not in _TIMED or not self.strikes(index):
            return 0.0
        return self.seconds * (index - self.at + 1 if self.kind == 'slow_ramp' else 1)


@dataclass(frozen=True)
class Script:
    """The options of the family.

    motion: sine and ramp (a triangle) swing by `amplitude` (one number or one per dimension name;
    unit of the dimension, velocities follow), constant is an offset or a speed per second, script
    repeats `rows`. `around`: positions start at the measured state, or swing around zero.
    `gripper_period`: seconds from one opening to the next. `busy` computes instead of sleeping.
    """

    motion: str
    amplitudes: Floats
    frequency: float
    around: str
    gripper_period_ns: int
    latency_s: float
    busy: bool
    rows: Floats
    faults: tuple[Fault, ...]


class ScriptedEngine(Engine):
    """Plays a script. `sleep` takes seconds; a simulation passes its own."""

    def __init__(self, policy: PolicyProfile, engine: EngineProfile,
                 sleep: Callable[[float], None] = time.sleep) -> None:
        self.contract = contract_of(policy, BACKENDS)
        self.script = read_script(policy)
        self._sleep = _compute if self.script.busy and sleep is time.sleep else sleep
        self._index = 0

    def load(self) -> None:
        """Nothing to load."""

    def infer(self, inputs: Any, prefix: Floats | None = None) -> NDArray[np.float64]:
        observation: Observation = inputs
        index = self._index
        # The observation of the warm-up has no stamp, and faults are for those after it.
        faults: tuple[Fault, ...] = ()
        if observation.stamp_ns:
            self._index += 1
            faults = tuple(f for f in self.script.faults if f.strikes(index))
        delay_s = self.script.latency_s + sum(f.delay_s(index) for f in faults)
        if delay_s:
            self._sleep(delay_s)
        actions = self._actions(observation)
        for fault in faults:
            actions = _spoil(actions, fault, index)
        return actions

    def _actions(self, observation: Observation) -> Floats:
        """The chunk [H, A] without faults."""
        spec, period_ns = self.contract.action, self.contract.period_ns
        starts = [observation.stamp_ns + i * period_ns for i in range(self.contract.horizon + 1)]
        if self.script.motion == 'script':
            rows = self.script.rows
            return np.array([rows[(t // period_ns) % len(rows)] for t in starts[:-1]])
        path = np.array([self._path(t, observation.instruction) for t in starts])[:, None]
        swing = path[:-1] * self.script.amplitudes  # [H, A]
        change = np.diff(path, axis=0) * self.script.amplitudes
        offset = swing - swing[0]
        if self.script.motion == 'constant':
            offset = swing
            change = swing * (period_ns / NS_PER_S)
        actions = np.empty_like(swing)
        for i, dimension in enumerate(spec.dimensions):
            if dimension.kind is Kind.DELTA:
                actions[:, i] = change[:, i]
            elif dimension.kind is Kind.VELOCITY:
                actions[:, i] = change[:, i] * (NS_PER_S / period_ns)
            elif dimension.kind is Kind.RELATIVE:
                actions[:, i] = offset[:, i]
            elif dimension.kind is Kind.POSITION and self.script.around == 'zero':
                actions[:, i] = swing[:, i]
            elif dimension.kind is Kind.POSITION:
                actions[:, i] = offset[:, i] + _measured(observation, dimension)
            else:
                half_ns = self.script.gripper_period_ns // 2
                actions[:, i] = [1.0 - t // half_ns % 2 for t in starts[:-1]]
        quaternion = spec.quaternion()
        if quaternion.size:
            real = spec.dimensions[quaternion[3]]
            measured = self.script.around == 'state' and _measured(observation, real)
            actions[:, quaternion[3]] = measured or 1.0
            actions[:, quaternion] /= np.linalg.norm(actions[:, quaternion], axis=1)[:, None]
        return actions

    def _path(self, time_ns: int, instruction: str) -> float:
        """Where the swing is at this time, -1 to 1; every sentence has a phase of its own."""
        if self.script.motion == 'constant':
            return 1.0
        # Whole nanoseconds: a double does not hold a stamp of today to the microsecond.
        period_ns = round(NS_PER_S / self.script.frequency)
        turns = (time_ns % period_ns) / period_ns + crc32(instruction.encode()) / 2**32
        if self.script.motion == 'sine':
            return math.sin(2.0 * math.pi * turns)
        return 1.0 - 4.0 * abs((turns + 0.25) % 1.0 - 0.5)


def make(policy: PolicyProfile, engine: EngineProfile) -> Engine:
    """The factory of the family. Raises ValueError with one line on options that make no sense."""
    if policy.checkpoint is not None:
        raise ValueError(f'{policy.file}: checkpoint: {policy.checkpoint}: family scripted has '
                         'none; leave checkpoint and model:= away')
    return ScriptedEngine(policy, engine)


def read_script(policy: PolicyProfile) -> Script:
    """The options of a policy profile. Raises ValueError with one line."""
    options = policy.read_options()
    motion = options.text('motion', 'sine', choices=MOTIONS)
    if motion != 'script':
        options.refuse('rows', f'only with motion: script; motion is {motion}')
    script = Script(
        motion=motion,
        rows=_rows(options, policy) if motion == 'script' else np.empty((0, policy.action.size)),
        amplitudes=_amplitudes(options, policy),
        frequency=options.number('frequency', 0.25, above=0.0, high=100.0, unit='Hz'),
        around=options.text('around', 'state', choices=('state', 'zero')),
        gripper_period_ns=options.seconds('gripper_period', 4.0, low=0.01),
        latency_s=options.number('latency', 0.0, low=0.0, high=3600.0, unit='s'),
        busy=options.flag('busy', False),
        faults=tuple(map(_fault, options.listed_sections('faults', _FAULT_RULE)))
        if options.has('faults') else ())
    options.done()
    return script


def _amplitudes(options: Section, policy: PolicyProfile) -> Floats:
    """One amplitude per dimension [A]; dimensions that a mapping leaves out stay still."""
    if not options.is_mapping('amplitude'):
        return np.full(policy.action.size, options.number('amplitude', 0.02))
    by_name = options.section('amplitude')
    values = [by_name.number(name, 0.0) for name in policy.action.names]
    by_name.done()
    return np.array(values)


def _rows(options: Section, policy: PolicyProfile) -> Floats:
    size = policy.action.size
    rule = f'a list of actions, each a list of {size} numbers ({", ".join(policy.action.names)})'
    if not options.has('rows'):
        options.fail('rows', rule)
    rows = policy.options['rows']
    good = isinstance(rows, list) and rows and all(
        isinstance(row, list) and len(row) == size and all(_is_number(x) for x in row)
        for row in rows)
    if not good:
        options.fail('rows', rule)
    return np.array(rows, dtype=np.float64)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _fault(section: Section) -> Fault:
    kind = section.text('fault', choices=FAULTS)
    seconds = 0.0
    if kind in _TIMED:
        seconds = section.number('seconds', above=0.0, high=3600.0, unit='s')
    else:
        section.refuse('seconds', f'only with fault: {" or ".join(_TIMED)}; fault is {kind}')
    fault = Fault(kind=kind, at=section.integer('at', low=0, high=1_000_000_000),
                  count=section.integer('count', 1, low=1, high=1_000_000_000), seconds=seconds)
    section.done()
    return fault


def _spoil(actions: Floats, fault: Fault, index: int) -> Floats:
    if fault.kind == 'raise':
        raise RuntimeError(f'scripted fault at inference {index}')
    if fault.kind == 'nan':
        spoilt = actions.copy()
        spoilt[-1, 0] = np.nan
        return spoilt
    if fault.kind == 'wrong_shape':
        return np.pad(actions, ((0, 0), (0, 1)))
    if fault.kind == 'wrong_horizon':
        return np.pad(actions, ((0, 1), (0, 0)), mode='edge')
    if fault.kind == 'short':
        return actions[:-1]
    return actions


def _measured(observation: Observation, dimension: Dimension) -> float:
    """The state that a dimension moves, by its `state` or its name; 0 where there is none."""
    name = dimension.state or dimension.name
    if name not in observation.state_names:
        return 0.0
    return float(observation.state[observation.state_names.index(name)])


def _compute(seconds: float) -> None:
    """Keep the processor busy, and the interpreter with it."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass
