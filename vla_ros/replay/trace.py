"""The trace of a run: what happened when, in plain arrays; all that figures and report look at."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.chunk_buffer import Seam
from vla_ros.core.control_config import State, Tick
from vla_ros.core.runtime import Event, Instruction, Output
from vla_ros.core.types import NS_PER_S, Floats, Frame, Plan
from vla_ros.replay.bag_events import RecordedAction
from vla_ros.replay.faults import Fault
from vla_ros.replay.hearer import Hearer
from vla_ros.replay.references import ActionError, References
from vla_ros.replay.session import Session

STATES = tuple(state.value for state in State)
MOST_SPANS = 20_000
Ints = NDArray[np.int64]
PLAN_COLUMNS = ('stamp', 'received', 'started', 'arrived', 'start', 'end', 'first_command')


@dataclass(frozen=True)
class Span:
    """A time in one state for one cause; in nanoseconds from the start of the run."""

    begin_ns: int
    end_ns: int
    state: str
    cause: str


@dataclass(frozen=True)
class FaultSeen:
    """A fault and what was counted while it lasted, by reason; and its times, from the start."""

    fault: str
    kind: str
    begin_ns: int
    end_ns: int
    expects: str
    counted: dict[str, int]


@dataclass(frozen=True)
class Trace:
    """A whole run; every time in nanoseconds from its start, of events.

    `ticks` int64 [n]; `commands` and `velocities` float32 [n, A], NaN where nothing was sent:
    what sinks are sent, and its change per second. `plans` int64 [m, 7], see PLAN_COLUMNS (0 for
    no first command); `seams` float32 [m, A], NaN where there was none. `inferences` int64 [k, 3]:
    begin, end (-1: never) and whether it failed. `frames`: stamps by camera. `recorded_stamps`
    int64 [r] and `recorded` float32 [r, A] in the policy's spec.
    """

    about: dict[str, Any]
    ticks: Ints
    commands: NDArray[np.float32]
    velocities: NDArray[np.float32]
    plans: Ints
    seams: NDArray[np.float32]
    inferences: Ints
    frames: dict[str, Ints]
    recorded_stamps: Ints
    recorded: NDArray[np.float32]
    spans: tuple[Span, ...]
    instructions: tuple[tuple[int, str], ...]
    faults: tuple[FaultSeen, ...]
    counts: dict[str, int]
    clips: dict[str, int]
    holds: dict[str, int]
    error: ActionError | None
    length_ns: int

    @property
    def names(self) -> tuple[str, ...]:
        """Dimensions, in order."""
        return tuple(d['name'] for d in self.about['dimensions'])

    def save(self, path: Path) -> None:
        """Write as .npz; the same trace gives the same bytes in every array."""
        plain = {'about': self.about, 'spans': [vars(s) for s in self.spans],
                 'instructions': self.instructions, 'faults': [vars(f) for f in self.faults],
                 'counts': self.counts, 'clips': self.clips, 'holds': self.holds,
                 'error': None if self.error is None else vars(self.error),
                 'length_ns': self.length_ns, 'cameras': list(self.frames)}
        np.savez_compressed(
            path, plain=np.frombuffer(json.dumps(plain).encode(), np.uint8), ticks=self.ticks,
            commands=self.commands, velocities=self.velocities, plans=self.plans,
            seams=self.seams, inferences=self.inferences, recorded_stamps=self.recorded_stamps,
            recorded=self.recorded,
            **{f'frames_{i}': stamps for i, stamps in enumerate(self.frames.values())})

    @staticmethod
    def load(path: Path) -> Trace:
        """Read what `save` wrote. Raises ValueError with one line."""
        try:
            with np.load(path) as file:
                arrays = {name: file[name] for name in file.files}
            plain = json.loads(arrays.pop('plain').tobytes())
            frames = {name: arrays.pop(f'frames_{i}')
                      for i, name in enumerate(plain.pop('cameras'))}
            error = plain.pop('error')
            return Trace(
                frames=frames, spans=tuple(Span(**s) for s in plain.pop('spans')),
                instructions=tuple((t, s) for t, s in plain.pop('instructions')),
                faults=tuple(FaultSeen(**f) for f in plain.pop('faults')),
                error=None if error is None else ActionError(
                    **{**error, 'missing': tuple(error['missing'])}), **plain, **arrays)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f'trace {path}: cannot be read ({" ".join(str(error).split())}); '
                             'replay again') from error


@dataclass
class _Watched:
    """A fault while the run goes on."""

    fault: Fault
    begin_ns: int
    end_ns: int
    before: Counter[str] | None = None
    counted: dict[str, int] | None = None


@dataclass
class _Columns:
    """What grows during a run."""

    ticks: array[int] = field(default_factory=lambda: array('q'))
    commands: array[float] = field(default_factory=lambda: array('f'))
    velocities: array[float] = field(default_factory=lambda: array('f'))
    plans: array[int] = field(default_factory=lambda: array('q'))
    seams: array[float] = field(default_factory=lambda: array('f'))
    inferences: array[int] = field(default_factory=lambda: array('q'))


class TraceRecorder(Hearer):
    """Records the trace of a run; `trace` is there once it has ended."""

    def __init__(self) -> None:
        self.trace: Trace | None = None
        self._columns = _Columns()
        self._frames: dict[str, array[int]] = {}
        self._spans: list[tuple[int, str, str]] = []
        self._said: list[tuple[int, str]] = []
        self._seam: Seam | None = None
        self._plan_rows: dict[int, int] = {}  # row by stamp, of those without a first command
        self._watched: list[_Watched] = []

    def on_begin(self, session: Session) -> None:
        self._session = session
        self._start_ns = session.start_ns
        spec = session.binding.planned
        self._nothing = array('f', [float('nan')] * len(spec.names))
        self._references = References(session.setup.policy.action, session.setup.policy.period_ns)
        self._frames = {name: array('q') for name in session.setup.policy.cameras}
        for fault in session.settings.faults:
            begin_ns = round(fault.at_s * NS_PER_S)
            lasts_s = 1.0 if not fault.kind.lasts else fault.for_s
            end_ns = (session.end_ns - session.start_ns if lasts_s is None
                      else begin_ns + round(lasts_s * NS_PER_S))
            self._watched.append(_Watched(fault, begin_ns, end_ns))

    def on_event(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, Frame):
            self._frames[payload.camera].append(payload.stamp_ns - self._start_ns)
        elif isinstance(payload, Instruction) and (
                not self._said or self._said[-1][1] != payload.text):
            self._said.append((event.time_ns - self._start_ns, payload.text))

    def on_action(self, action: RecordedAction) -> None:
        self._references.on_action(action)

    def on_inference(self, started_ns: int, ended_ns: int | None, failed: bool) -> None:
        self._columns.inferences.extend((
            started_ns - self._start_ns, -1 if ended_ns is None else ended_ns - self._start_ns,
            int(failed)))

    def on_chunk(self, stamp_ns: int, actions: Floats) -> None:
        self._references.on_chunk(stamp_ns, actions)

    def on_output(self, output: Output) -> None:
        now_ns = output.time_ns - self._start_ns
        if isinstance(output.payload, Tick):
            self._on_tick(now_ns, output.payload)
        elif isinstance(output.payload, Plan):
            self._on_plan(now_ns, output.payload)

    def on_end(self, end_ns: int) -> None:
        session, columns = self._session, self._columns
        length_ns = end_ns - self._start_ns
        self._watch(length_ns, ended=True)
        size = len(session.binding.planned.names)
        recorded = self._references.rows
        self.trace = Trace(
            about=_about(session), ticks=_ints(columns.ticks),
            commands=_floats(columns.commands, size), velocities=_floats(columns.velocities, size),
            plans=_ints(columns.plans).reshape(-1, len(PLAN_COLUMNS)),
            seams=_floats(columns.seams, size),
            inferences=_ints(columns.inferences).reshape(-1, 3),
            frames={name: _ints(stamps) for name, stamps in self._frames.items()},
            recorded_stamps=np.array(self._references.stamps, np.int64) - self._start_ns,
            recorded=np.array(recorded, np.float32).reshape(-1, len(
                session.setup.policy.action.names)),
            spans=self._all_spans(length_ns), instructions=tuple(self._said),
            faults=tuple(FaultSeen(str(w.fault), w.fault.kind.name, w.begin_ns, w.end_ns,
                                   w.fault.kind.expects, w.counted or {})
                         for w in self._watched),
            counts=dict(self._counts()), clips=_clips(session),
            holds=dict(session.control.holds), error=self._references.error(),
            length_ns=length_ns)

    # --- inside --------------------------------------------------------------------------------

    def _on_tick(self, now_ns: int, tick: Tick) -> None:
        columns, command = self._columns, tick.command
        columns.ticks.append(now_ns)
        if command is None:
            columns.commands.extend(self._nothing)
            columns.velocities.extend(self._nothing)
        else:
            columns.commands.extend(command.values)
            columns.velocities.extend(command.velocities)
        line = (tick.state.value, tick.cause)
        if not self._spans or self._spans[-1][1:] != line:
            # Causes with a number in them change every period; only the first is kept.
            same = self._spans and self._spans[-1][1] == line[0] and (
                _kind(self._spans[-1][2]) == _kind(line[1]))
            if not same and len(self._spans) < MOST_SPANS:
                self._spans.append((now_ns, *line))
        if tick.first_of_plan is not None:
            row = self._plan_rows.pop(tick.first_of_plan.stamp_ns, None)
            if row is not None:
                columns.plans[row + len(PLAN_COLUMNS) - 1] = now_ns
        self._watch(now_ns)

    def _on_plan(self, now_ns: int, plan: Plan) -> None:
        session, columns = self._session, self._columns
        given = session.inference.answered
        assert given is not None, 'every plan answers something'
        zero_ns = self._start_ns + session.offset_ns
        self._plan_rows = {plan.stamp_ns: len(columns.plans)}
        columns.plans.extend((
            plan.stamp_ns - zero_ns, given.request.observation.received_ns - zero_ns,
            given.request.started_ns - zero_ns, now_ns, plan.start_ns - zero_ns,
            plan.end_ns - zero_ns, 0))
        before, self._seam = self._seam, session.inference.seam
        fresh = self._seam is not None and self._seam is not before
        columns.seams.extend(self._seam.offered if fresh and self._seam else self._nothing)

    def _watch(self, now_ns: int, ended: bool = False) -> None:
        """Count what a fault brings about while it lasts and a second longer."""
        for watched in self._watched:
            if watched.before is None and now_ns >= watched.begin_ns:
                watched.before = self._counts()
            if watched.before is not None and watched.counted is None and (
                    ended or now_ns >= watched.end_ns + NS_PER_S):
                watched.counted = dict(self._counts() - watched.before)

    def _counts(self) -> Counter[str]:
        session = self._session
        inference, control = session.inference, session.control
        return Counter(inference.counts + inference.executor.counts + inference.assembler.counts
                       + control.counts + session.events.counts)

    def _all_spans(self, length_ns: int) -> tuple[Span, ...]:
        ends = [begin for begin, _, _ in self._spans[1:]] + [length_ns]
        return tuple(Span(begin, end, state, cause)
                     for (begin, state, cause), end in zip(self._spans, ends, strict=True))


def _about(session: Session) -> dict[str, Any]:
    setup, settings = session.setup, session.settings
    spec = session.binding.planned
    watchdog = {layer.value: limit.limit_ns for layer, limit in setup.robot.watchdog.items()}
    return {
        'bag': session.bag.path.name, 'robot': setup.robot.name, 'policy': setup.policy.name,
        'family': setup.policy.family, 'delay': settings.delays.says,
        'repeatable': not settings.delays.measured, 'seed': settings.seed,
        'faults': [str(fault) for fault in settings.faults],
        'start_ns': session.start_ns, 'control_period_ns': setup.robot.control_period_ns,
        'policy_period_ns': setup.policy.period_ns, 'horizon': setup.policy.horizon,
        'watchdog_ns': watchdog,
        'dimensions': [{'name': d.name, 'unit': d.unit, 'kind': d.kind.value,
                        'group': d.group.value} for d in spec.dimensions],
        'recorded': [{'name': d.name, 'unit': d.unit, 'kind': d.kind.value}
                     for d in setup.policy.action.dimensions]}


def _clips(session: Session) -> dict[str, int]:
    names = session.binding.planned.names
    return {f'{limit} {name}': int(count) for limit, counts in session.control.clips.items()
            for name, count in zip(names, counts, strict=True) if count}


def _kind(cause: str) -> str:
    return ''.join(c for c in cause if not c.isdigit())


def _ints(column: array[int]) -> Ints:
    return np.frombuffer(column, np.int64).copy() if column else np.empty(0, np.int64)


def _floats(column: array[float], size: int) -> NDArray[np.float32]:
    flat = np.frombuffer(column, np.float32).copy() if column else np.empty(0, np.float32)
    return flat.reshape(-1, size)
