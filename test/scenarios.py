"""Scenarios for the discrete-event runtime: a robot that follows, a policy, and what befalls them.

Times are seconds from the start. Every scenario that is played is checked by `check`: whatever the
fault, no command may break a limit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.control_config import State, Tick
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.executor_state import Request
from vla_ros.core.inference_loop import InferenceLoop
from vla_ros.core.player import SLOW_START_NS, SLOW_START_SCALE
from vla_ros.core.runtime import ClockJump, Event, Instruction, Output, Payload, Runtime
from vla_ros.core.types import (
    NS_PER_S,
    Floats,
    Frame,
    InferenceStatus,
    Observation,
    Plan,
    StateSample,
)
from vla_ros.policies.scripted import ScriptedEngine
from vla_ros.profiles.binding import Binding, bind
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.loops import control_loop, inference_loop
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot

ORIGIN_NS = 1_700_000_000 * NS_PER_S
TRANSPORT_NS = 12_000_000   # from the stamp of a frame to its arrival, as in the bags
STATE_NS = 10_000_000       # between two measurements of the state
STATE_PHASE_NS = 3_000_000  # a measurement never arrives at the moment of a tick
PUBLISHED_AT_REST = 25      # periods, before the loop goes silent
POLICIES = {'widowx_bridge': 'scripted_bridge', 'so101': 'scripted_so101'}
HOMES = {'widowx_bridge': {'x': 0.28, 'z': 0.12, 'gripper': 1.0}, 'so101': {}}

Infer = Callable[[Observation, Floats, float], Any]
"""The observation, the chunk [H, A] that the script gives, the time: what the engine answers."""
Change = Callable[[Any, float], Any]
"""A frame or state sample and its time: what arrives in its place, None for nothing."""


def seconds(time_ns: int) -> float:
    return (time_ns - ORIGIN_NS) / NS_PER_S


@dataclass(frozen=True)
class Moment:
    """One control period. `epoch_ns`: the last reset stamp; `measured`: by dimension [A]."""

    time: float
    tick: Tick
    plan: Plan | None
    epoch_ns: int
    measured: Floats

    @property
    def moving(self) -> bool:
        return self.tick.command is not None and bool(np.any(self.tick.command.velocities))


@dataclass
class Story:
    """What happened. `answers`: what the services said."""

    binding: Binding
    robot: RobotProfile
    control: ControlLoop
    inference: InferenceLoop
    moments: list[Moment] = field(default_factory=list)
    plans: list[tuple[float, Plan]] = field(default_factory=list)
    statuses: list[tuple[float, InferenceStatus]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    jumps: list[ClockJump] = field(default_factory=list)

    def between(self, begin: float, end: float) -> list[Moment]:
        return [m for m in self.moments if begin <= m.time < end]

    def at(self, time: float) -> Moment:
        return next(m for m in self.moments if m.time >= time - 1e-9)

    def states(self, begin: float, end: float) -> set[str]:
        return {m.tick.state.value for m in self.between(begin, end)}

    def first(self, *states: str, after: float = 0.0) -> Moment:
        """The first period in one of these states."""
        found = [m for m in self.moments if m.time >= after and m.tick.state.value in states]
        assert found, f'never {states} after {after} s; {self.line()}'
        return found[0]

    def rests(self, begin: float, end: float) -> bool:
        return not any(m.moving for m in self.between(begin, end))

    def silent(self, begin: float, end: float) -> bool:
        return all(m.tick.command is None for m in self.between(begin, end))

    def values(self, begin: float, end: float) -> Floats:
        """Commanded values [n, A]."""
        return np.array([m.tick.command.values for m in self.between(begin, end)
                         if m.tick.command is not None])

    def causes(self, begin: float, end: float) -> list[str]:
        """Causes without their numbers in the order in which they came, repetitions left out."""
        found: list[str] = []
        for m in self.between(begin, end):
            if m.tick.cause and m.tick.cause not in found:
                found.append(m.tick.cause)
        return found

    def line(self) -> str:
        """States and causes in the order in which they came."""
        parts: list[str] = []
        for m in self.moments:
            part = f'{m.tick.state.value} ({m.tick.cause})' if m.tick.cause else m.tick.state.value
            if not parts or not parts[-1].endswith(' ' + part):
                parts.append(f'{m.time:.2f} {part}')
        return ' → '.join(parts)


class Scenario:
    """Built by calls that read as a sentence; `play` runs and checks it.

    The robot does what it is told `lag` later, at once by default. `home`: measured values by
    name. `changes` are those of the policy profile.
    """

    def __init__(self, robot: str = 'widowx_bridge', delay: float = 0.02, lag: float = 0.0,
                 home: dict[str, float] | None = None, **changes: Any) -> None:
        self.robot = load_robot(robot)
        self.policy = load_policy(POLICIES[robot])
        if changes:
            self.policy = replace(self.policy, **changes)
        self._home = dict(HOMES[robot]) if home is None else home
        self._lag_ns = round(lag * NS_PER_S)
        self._delay_s: Callable[[float], float | None] = lambda time: delay
        self._infer: Infer = lambda observation, actions, time: actions
        self._forget: Callable[[], None] = lambda: None
        self._lag = 0
        self._frames: list[Change] = []
        self._states: list[Change] = []
        self._arrivals: list[tuple[int, str, Payload]] = []
        self._auto = False
        self._camera_delay = dict.fromkeys(self.policy.cameras, 0.0)

    # --- the sentence --------------------------------------------------------------------------

    def changing(self, **changes: Any) -> Scenario:
        """Change the robot profile."""
        self.robot = replace(self.robot, **changes)
        return self

    def acting(self, kind: Kind) -> Scenario:
        """All dimensions but the gripper are of this kind."""
        spec = self.policy.action
        dimensions = tuple(d if d.kind is Kind.GRIPPER else replace(d, kind=kind)
                           for d in spec.dimensions)
        self.policy = replace(self.policy, action=ActionSpec(dimensions))
        return self

    def told(self, text: str, at: float = 0.0) -> Scenario:
        return self.when(at, Instruction(text), 'instruction')

    def enabled(self) -> Scenario:
        """Enabled as soon as that is allowed."""
        self._auto = True
        return self

    def when(self, at: float, payload: Payload, topic: str = 'service') -> Scenario:
        self._arrivals.append((ORIGIN_NS + round(at * NS_PER_S), topic, payload))
        return self

    def taking(self, delay: Callable[[float], float | None]) -> Scenario:
        """How long an inference takes that starts at this time; None: for ever."""
        self._delay_s = delay
        return self

    def stalling(self, at: float, for_s: float | None = None) -> Scenario:
        """The first inference after `at` takes `for_s` longer, or for ever."""
        usual, done = self._delay_s, []

        def delay(time: float) -> float | None:
            if time < at or done:
                return usual(time)
            done.append(time)
            return for_s

        return self.taking(delay)

    def answering(self, infer: Infer, forget: Callable[[], None] = lambda: None,
                  lag: int = 0) -> Scenario:
        """Another engine; `forget` is its reset, `lag` as in `Engine`."""
        self._infer, self._forget, self._lag = infer, forget, lag
        return self

    def seeing(self, change: Change) -> Scenario:
        """Change or drop frames."""
        self._frames.append(change)
        return self

    def measuring(self, change: Change) -> Scenario:
        """Change or drop state samples."""
        self._states.append(change)
        return self

    def delayed(self, camera: str, by: float) -> Scenario:
        """The stamps of a camera lie behind those of the others."""
        self._camera_delay[camera] = by
        return self

    # --- the play ------------------------------------------------------------------------------

    def play(self, until: float, oldest_plan_s: float = 1.0, exhausted_s: float = 0.0,
             moved: bool = False) -> Story:
        """Run to this time and check.

        `oldest_plan_s` and `exhausted_s`: what the watchdog allows. `moved`: by hand, so that
        motion may begin somewhere else.
        """
        binding = bind(self.policy, self.robot)
        inference = inference_loop(self.robot, self.policy, binding)
        inference.lag = self._lag
        control = control_loop(self.robot, self.policy, binding, enable_on_start=self._auto)
        story = Story(binding, self.robot, control, inference)
        engine = ScriptedEngine(self.policy, load_engine('cpu'), sleep=lambda _: None)
        arm = _Arm(binding, self.robot.state_names, self._home, self._lag_ns)
        running: list[float] = []

        def delay(request: Request) -> int | None:
            running.append(self._started)
            taken = self._delay_s(self._started)
            return None if taken is None else round(taken * NS_PER_S)

        def infer(observation: Observation) -> Any:
            return self._infer(observation, engine.infer(observation), self._started)

        runtime = _Timed(self, inference, control, infer, delay, self._forget)
        epoch_ns = 0
        end_ns = ORIGIN_NS + round(until * NS_PER_S)
        for output in runtime.run(self._events(arm), ORIGIN_NS, end_ns):
            time, payload = seconds(output.time_ns), output.payload
            if isinstance(payload, Tick):
                epoch_ns = payload.reset_stamp_ns or epoch_ns
                arm.follow(payload, output.time_ns)
                story.moments.append(
                    Moment(time, payload, control.plan, epoch_ns, arm.by_dimension()))
            elif isinstance(payload, Plan):
                story.plans.append((time, payload))
            else:
                story.statuses.append((time, payload))
        story.answers = runtime.answers
        story.jumps = [p for _, _, p in self._arrivals if isinstance(p, ClockJump)]
        check(story, oldest_plan_s, exhausted_s, moved)
        return story

    def _events(self, arm: _Arm) -> Iterator[Event]:
        """All that arrives, in order of time; the state is measured when its turn comes."""
        arrivals = sorted(self._arrivals, key=lambda a: a[0])
        frame_ns = {name: self.robot.cameras[name].period_ns for name in self.policy.cameras}
        next_frame = dict.fromkeys(frame_ns, ORIGIN_NS)
        next_state = ORIGIN_NS + STATE_PHASE_NS
        while True:
            camera = min(next_frame, key=lambda name: next_frame[name])
            frame_at = next_frame[camera] + TRANSPORT_NS
            now_ns = min(frame_at, next_state, *(a[0] for a in arrivals[:1]))
            if arrivals and now_ns == arrivals[0][0]:
                time_ns, topic, payload = arrivals.pop(0)
                yield Event(time_ns, topic, payload)
            elif now_ns == next_state:
                next_state += STATE_NS
                yield _Measurement(now_ns, arm, self._states)
            else:
                next_frame[camera] += frame_ns[camera]
                frame = _changed(self._frame(camera, now_ns), self._frames, seconds(now_ns))
                if frame is not None:
                    yield Event(now_ns, f'observation/{camera}/image', frame)

    def _frame(self, camera: str, now_ns: int) -> Frame:
        size = self.policy.cameras[camera]
        stamp_ns = now_ns - TRANSPORT_NS - round(self._camera_delay[camera] * NS_PER_S)
        return Frame(camera, stamp_ns, now_ns, np.zeros((size.height, size.width, 3), np.uint8))

    _started = 0.0


class _Timed(Runtime):
    """Tells the scenario when an inference starts."""

    def __init__(self, scenario: Scenario, inference: InferenceLoop, control: ControlLoop,
                 infer: Any, delay: Any, forget: Any) -> None:
        super().__init__(inference, control, infer, delay, forget)
        self._scenario = scenario

    def _start(self) -> None:
        self._scenario._started = seconds(self._time_ns)
        super()._start()


class _Arm:
    """A robot that is where the last command puts it, and moves on as it was told."""

    def __init__(self, binding: Binding, names: tuple[str, ...], home: dict[str, float],
                 lag_ns: int) -> None:
        self._lag_ns = lag_ns
        self._before: deque[tuple[int, dict[str, float]]] = deque(maxlen=50)
        self._names = names
        self._spec = binding.planned
        self._state = {name: home.get(name, 0.0) for name in names}
        self._flow = dict.fromkeys(names, 0.0)  # per second
        self._time_ns = 0

    def follow(self, tick: Tick, time_ns: int) -> None:
        self._state = self._at(time_ns)
        self._time_ns = time_ns
        for i, dimension in enumerate(self._spec.dimensions):
            value = float(tick.command.values[i]) if tick.command is not None else None
            if dimension.kind in (Kind.VELOCITY, Kind.DELTA):
                self._flow[dimension.state] = value or 0.0
            elif dimension.state and value is not None:
                self._state[dimension.state] = value
        self._before.append((time_ns, dict(self._state)))

    def _at(self, time_ns: int) -> dict[str, float]:
        since = max(0, time_ns - self._time_ns) / NS_PER_S
        return {name: value + since * self._flow[name] for name, value in self._state.items()}

    def by_dimension(self) -> Floats:
        return np.array([self._state.get(d.state, np.nan) for d in self._spec.dimensions])

    def sample(self, now_ns: int) -> StateSample:
        state = self._at(now_ns)
        if self._lag_ns:  # to the last tick; finer than that nothing looks
            old = [s for time_ns, s in self._before if time_ns <= now_ns - self._lag_ns]
            state = old[-1] if old else self._before[0][1] if self._before else state
        return StateSample(now_ns, now_ns, self._names, np.array([state[n] for n in self._names]))


class _Measurement(Event):
    """A state sample that is taken when it is delivered, not when it is asked for."""

    def __init__(self, time_ns: int, arm: _Arm, changes: list[Change]) -> None:
        super().__init__(time_ns, 'joint_states', None)  # type: ignore[arg-type]
        object.__setattr__(self, '_take', lambda: _changed(
            arm.sample(time_ns), changes, seconds(time_ns)))

    def __getattribute__(self, name: str) -> Any:
        if name == 'payload':
            return object.__getattribute__(self, '_take')()
        return object.__getattribute__(self, name)


def _changed(item: Any, changes: list[Change], time: float) -> Any:
    for change in changes:
        item = change(item, time) if item is not None else None
    return item


# --- what must be true whatever happens ---------------------------------------------------------

def check(story: Story, oldest_plan_s: float = 1.0, exhausted_s: float = 0.0,
          moved: bool = False) -> None:
    """No command of a story is non-finite, outside limits, stale or where silence is due."""
    _check_values(story)
    _check_motion(story, moved)
    _check_plans(story, oldest_plan_s, exhausted_s)
    _check_stamps(story)
    _check_silence(story)


def _check_values(story: Story) -> None:
    spec, limits = story.binding.planned, story.binding.limits
    position = spec.of_kind(Kind.POSITION)
    for m in story.moments:
        command = m.tick.command
        if command is None:
            continue
        assert np.isfinite(command.values).all(), m
        assert np.isfinite(command.velocities).all(), m
        assert np.isfinite(command.rollout).all(), m
        values = command.values[position]
        assert np.all(values >= limits.position_low[position] - 1e-9), m
        assert np.all(values <= limits.position_high[position] + 1e-9), m


def _check_motion(story: Story, moved: bool) -> None:
    """Velocity and acceleration as the robot sees them: from one published command to the next."""
    spec, limits = story.binding.planned, story.binding.limits
    period = story.robot.control_period_ns / NS_PER_S
    position, flow = spec.of_kind(Kind.POSITION), spec.of_kind(Kind.VELOCITY, Kind.DELTA)
    moving = np.concatenate([position, flow])
    slack = 1e-6
    enabled, before = 0.0, None
    last, last_velocity = np.zeros(spec.size), np.zeros(spec.size)
    for m in story.moments:
        command, active = m.tick.command, m.tick.state is State.ACTIVE
        begins = active and (before is None or before.tick.state is not State.ACTIVE)
        if begins and (before is None or before.tick.state is State.WAITING
                       or before.tick.state is State.STOPPED):
            enabled = m.time
        if command is None:
            last_velocity = np.zeros(spec.size)
            before = m
            continue
        if begins:
            # Motion begins at rest, at the last command or where the robot is measured.
            assert not np.any(last_velocity[moving]), f'{m.time}: resumed in motion'
            start = before.measured if before is not None else m.measured
            fresh = before is not None and before.tick.command is not None
            near = np.abs(last - start)[position] <= story.binding.activation_tolerance[position]
            last = last if fresh and near.all() else start
            if moved:
                last = command.values - command.velocities * period
        velocity = command.values.copy()
        velocity[position] = (command.values - last)[position] / period
        assert np.allclose(velocity[moving], command.velocities[moving], atol=1e-6), m
        top = limits.velocity.copy()
        if active and m.time - enabled < SLOW_START_NS / NS_PER_S - period - 1e-6:
            top *= SLOW_START_SCALE
        change = np.abs(velocity - last_velocity) / period
        played = active and m.plan is not None and m.plan.end_ns > command.stamp_ns
        bound = limits.acceleration if played else limits.stop_deceleration
        assert np.all(np.abs(velocity)[moving] <= top[moving] * (1 + slack) + slack), (
            f'{m.time}: velocity {velocity} above {top}')
        assert np.all(change[moving] <= bound[moving] * (1 + slack) + slack), (
            f'{m.time}: acceleration {change} above {bound}')
        if not active:
            slower = np.abs(velocity) <= np.abs(last_velocity) + slack
            assert slower[moving].all(), f'{m.time}: a stop that speeds up'
            assert np.all(velocity[moving] * last_velocity[moving] >= -slack), m
        last, last_velocity, before = command.values, velocity, m


def _check_plans(story: Story, oldest_s: float, exhausted_s: float) -> None:
    """While active the plan is of this epoch, not exhausted and not too old."""
    for m in story.moments:
        played = m.tick.first_of_plan
        if played is not None:
            assert played.stamp_ns >= m.epoch_ns, f'{m.time}: a plan from before the last reset'
        if m.tick.state is State.ACTIVE and m.tick.command is not None:
            now_ns = m.tick.command.stamp_ns
            assert m.plan is not None, m.time
            assert m.plan.stamp_ns >= m.epoch_ns, f'{m.time}: a plan from before the last reset'
            assert m.plan.end_ns > now_ns - exhausted_s * NS_PER_S, f'{m.time}: exhausted'
            assert now_ns - m.plan.stamp_ns <= oldest_s * NS_PER_S, f'{m.time}: a stale plan'


def _check_stamps(story: Story) -> None:
    jumps_back = {jump.by_ns for jump in story.jumps if jump.by_ns < 0}
    period_ns = story.robot.control_period_ns
    stamps = [m.tick.command.stamp_ns for m in story.moments if m.tick.command is not None]
    for before, after in zip(stamps, stamps[1:], strict=False):
        assert after > before or after - before - period_ns in jumps_back, (before, after)


def _check_silence(story: Story) -> None:
    """Zeros for half a second before silence; silence only where nothing is to be said."""
    at_rest = 0
    spoke = False
    for m in story.moments:
        state = m.tick.state
        if state in (State.ACTIVE, State.HOLDING):
            assert m.tick.command is not None, f'{m.time}: silent while {state.value}'
        if m.tick.command is None:
            assert not spoke or at_rest >= PUBLISHED_AT_REST, f'{m.time}: silent too early'
            spoke, at_rest = False, 0
            continue
        spoke = True
        at_rest = 0 if m.moving else at_rest + 1
        if state in (State.WAITING, State.FAULT):
            assert at_rest <= PUBLISHED_AT_REST + 2, f'{m.time}: speaks where silence is due'


def output_bytes(outputs: list[Output]) -> bytes:
    """All commands of a run, with their stamps, bit for bit."""
    parts: list[bytes] = []
    for output in outputs:
        if isinstance(output.payload, Tick) and output.payload.command is not None:
            command = output.payload.command
            parts += [command.stamp_ns.to_bytes(8, 'little'), command.values.tobytes(),
                      command.velocities.tobytes(), command.rollout.tobytes()]
    return b''.join(parts)


def names_of(policy: PolicyProfile) -> tuple[str, ...]:
    return policy.action.names
