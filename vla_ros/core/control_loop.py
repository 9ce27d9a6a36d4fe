"""The control loop behind action_publisher: sample the plan by clock, limit, watch, stop.

Two clocks come in as numbers: ROS time, in which plans are stamped, and the time that really
passed since the last tick. Whatever lasts (slow start, silence, dwell) is counted in the second,
so that a jump of the first can neither stretch nor skip it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.gripper import GripperMap, GripperState
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.limits import Clips, Limiter, Limits, Motion
from vla_ros.core.rotations import same_side
from vla_ros.core.state_history import StateHistory, dropped_as
from vla_ros.core.types import NS_PER_S, Command, Floats, InferenceStatus, Plan, StateSample
from vla_ros.core.watchdog import (
    WORDS,
    Ages,
    Layer,
    LayerLimit,
    Reaction,
    Violation,
    Watchdog,
)

SLOW_START_NS = 2 * NS_PER_S     # after enabling …
SLOW_START_SCALE = 0.25          # … at this share of the velocity limits
REST_PUBLISHED_NS = NS_PER_S // 2  # commands at rest that are sent before going silent
SEED_AGE_NS = NS_PER_S           # a last command younger than this may seed the limits
CLOCK_JUMP_NS = NS_PER_S // 10
FUTURE_TOLERANCE_NS = NS_PER_S // 20  # a plan stamped further ahead than this is not believed
NEVER_NS = 1 << 62
UNSEEN = 'no state has been measured since the last motion ended'
WILD = 1e15                      # no unit needs numbers like this; their differences overflow
QUATERNION_TOLERANCE = 0.1       # how far from 1 the norm of a quaternion in a plan may be
ESTOP_MISSING = 'nobody publishes the topic estop'


class State(str, Enum):
    """What the control loop is doing."""

    WAITING = 'waiting'    # not enabled
    ACTIVE = 'active'      # plays the plan
    SHADOW = 'shadow'      # plays the plan on the shadow topics only
    HOLDING = 'holding'    # comes to rest, stays, resumes by itself
    STOPPING = 'stopping'  # comes to rest …
    STOPPED = 'stopped'    # … and needs to be enabled
    FAULT = 'fault'        # at rest, needs a reset


@dataclass(frozen=True)
class ControlConfig:
    """Everything the control loop is told, in the order of the planned `spec`.

    `grippers`: map by dimension index. `tolerance` float64 [A]: how far the first target of a
    position dimension may be from the measured state. `rollout_steps`: control periods ahead.
    """

    spec: ActionSpec
    limits: Limits
    tolerance: Floats
    policy_period_ns: int
    watchdog: Mapping[Layer, LayerLimit]
    period_ns: int = NS_PER_S // 50
    grippers: Mapping[int, GripperMap] = field(default_factory=dict)
    state_age_ns: int = NS_PER_S // 2
    command_latency_ns: int = 0
    rollout_steps: int = 0
    shadow: bool = False
    enable_on_start: bool = False
    estop_required: bool = False


@dataclass(frozen=True)
class Tick:
    """Outcome of one control period. `command` is None where nothing is to be sent.

    `reset_stamp_ns` is set in the period in which a new epoch begins.
    """

    state: State
    cause: str
    command: Command | None = None
    reset_stamp_ns: int | None = None
    first_of_plan: Plan | None = None


class ControlLoop:
    """One instance drives one robot. Not thread-safe: one thread at a time may call."""

    def __init__(self, config: ControlConfig) -> None:
        self.config = config
        spec = config.spec
        self._limiter = Limiter(spec, config.limits, config.period_ns / NS_PER_S)
        self._interpolator = Interpolator(spec)
        self._watchdog = Watchdog(dict(config.watchdog))
        self._states = tuple(d.state for d in spec.dimensions)
        self._measured = np.array([i for i, name in enumerate(self._states) if name], dtype=np.intp)
        self._position = spec.of_kind(Kind.POSITION)
        self._flow = spec.of_kind(Kind.VELOCITY, Kind.DELTA)
        self._gripper = spec.of_kind(Kind.GRIPPER)
        self._quaternion = spec.quaternion()
        limited = np.isfinite(config.limits.position_low) | np.isfinite(config.limits.position_high)
        # Only their measured state can tell how much room these dimensions have left.
        self._bounded = [int(i) for i in self._flow if self._states[i] and limited[i]]
        self._history = StateHistory(
            (self._states[i] for i in self._measured), config.state_age_ns)
        self._grippers: dict[int, GripperState] = {}

        self._state = State.WAITING
        self._cause = 'not enabled'
        self._quiet = True            # go silent once at rest
        self._latched: Violation | None = None
        self._requests: list[Violation] = []
        self._auto_enable = config.enable_on_start
        self._estop = False
        self.estop_present = False    # whether somebody publishes the e-stop topic

        self._plan: Plan | None = None
        self._plan_played = True
        self._status: InferenceStatus | None = None
        self._status_at_ns = 0
        self._epoch_ns = 0
        self._announce_ns: int | None = None

        self._now_ns: int | None = None
        self._elapsed_ns = 0          # time that really passed, since construction
        self._enabled_at_ns = 0
        self._rest_at_ns: int | None = None
        self._moved_ns = 0            # ROS time of the last commanded motion
        self._sent_at_ns: int | None = None
        self._motion: Motion | None = None
        # When and how fast, for as long as a measured state may be old.
        self._sent: deque[tuple[int, Floats]] = deque(
            maxlen=1 + -(-config.state_age_ns // config.period_ns))

        self.counts: Counter[str] = Counter()
        self.holds: Counter[str] = Counter()  # how often each first cause ended the motion
        self.clips: dict[str, Floats] = {
            name: np.zeros(spec.size)
            for name in ('position', 'velocity', 'acceleration', 'jerk')}

    # --- what comes in -------------------------------------------------------------------------

    @property
    def state(self) -> State:
        shadowed = self._state is State.ACTIVE and self.config.shadow
        return State.SHADOW if shadowed else self._state

    @property
    def cause(self) -> str:
        """Why the loop is not active; empty while it is."""
        return '' if self._state is State.ACTIVE else self._cause

    @property
    def epoch_ns(self) -> int:
        """Plans of observations older than this are dropped."""
        return self._epoch_ns

    @property
    def plan(self) -> Plan | None:
        return self._plan

    def on_plan(self, plan: Plan, now_ns: int) -> str:
        """Take a plan; returns why it was dropped, or ''. A malformed plan is a fault."""
        if plan.stamp_ns < self._epoch_ns:
            return self._drop('plan from before the last reset')
        problem = self._malformed(plan)
        if problem:
            return self.fault(f'action chunk: {problem}')
        if self._plan is not None and plan.stamp_ns < self._plan.stamp_ns:
            return self._drop('plan older than the one in hand')
        if plan.stamp_ns > now_ns + FUTURE_TOLERANCE_NS:
            return self._drop('plan stamped in the future: the clocks do not match')
        self._plan, self._plan_played = plan, False
        return ''

    def on_state(self, sample: StateSample) -> str:
        """Take a measurement; returns why some of it was dropped, or ''."""
        reason = self._history.add(sample)
        return self._drop(reason, dropped_as(reason)) if reason else ''

    def on_status(self, status: InferenceStatus) -> None:
        """Take a sign of life; what it says counts only if it speaks of this epoch."""
        if status.epoch_ns != self._epoch_ns:
            status = InferenceStatus(0, status.epoch_ns)
        if status.reaction.upper() not in Reaction.__members__:
            allowed = ', '.join(reaction.name.lower() for reaction in Reaction)
            self.fault(f'inference status: reaction {status.reaction!r}; allowed are {allowed}')
            status = replace(status, reaction='none')
        if status.reaction == 'wait':  # here, too: by the next period it may be taken back
            self._requests.append(Violation(Reaction.WAIT, status.cause))
        self._status = status
        self._status_at_ns = self._elapsed_ns

    def on_estop(self, pressed: bool, now_ns: int) -> None:
        """The e-stop topic spoke. Pressing latches until reset; releasing alone moves nothing."""
        self.estop_present = True
        if pressed and not self._estop:
            self.counts['e-stop'] += 1
            self._new_epoch(now_ns)
        if pressed:  # here and not in the next period, by which it may be released again
            self._latch(Violation(Reaction.ESTOP, 'e-stop'))
        self._estop = pressed

    def fault(self, cause: str) -> str:
        """Latch a fault; returns the cause."""
        self._latch(Violation(Reaction.FAULT, cause))
        return cause

    def enable(self, now_ns: int) -> str:
        """Start to play the plan; returns why not, or ''."""
        if self._state is State.ACTIVE:
            return ''
        refusal = self._refusal(now_ns)
        if refusal:
            return refusal
        seed = self._seed(now_ns)
        if seed is None:
            return UNSEEN
        self._begin(seed)
        self._enabled_at_ns = self._elapsed_ns
        self._auto_enable = False
        return ''

    def disable(self, cause: str = 'disabled') -> None:
        """Bring motion to rest and wait to be enabled."""
        self._auto_enable = False
        self._requests.append(Violation(Reaction.WAIT, cause))

    def reset(self, now_ns: int) -> str:
        """Clear latches and begin a new epoch, waiting; returns why not, or ''."""
        if self._estop:
            return 'the e-stop is pressed; release it first'
        self._latched = None
        self._requests.clear()
        self._status = None
        self._auto_enable = False
        self._new_epoch(now_ns)
        self._watchdog.recovered()
        self._enter(State.WAITING, 'not enabled', quiet=True)
        return ''

    # --- one control period --------------------------------------------------------------------

    def tick(self, now_ns: int, elapsed_ns: int) -> Tick:
        """Advance by one control period. `elapsed_ns`: the time that really passed in it."""
        self._elapsed_ns += elapsed_ns
        violations = self._clock_jump(now_ns, elapsed_ns)
        self._now_ns = now_ns
        if self._auto_enable and self._state is State.WAITING:
            self.enable(now_ns)
        violations += self._violations(now_ns, elapsed_ns)
        self._react(violations, now_ns)

        played: Plan | None = None
        if self._state is State.ACTIVE:
            played = self._play(now_ns)
        elif self._motion is not None:
            if not self._motion.at_rest:
                self._moved_ns = now_ns
            self._motion = self._limiter.brake(self._motion)
            if self._motion.at_rest and self._rest_at_ns is None:
                self._rest_at_ns = self._elapsed_ns
        if self._state is State.STOPPING and self.at_rest:
            self._state = State.STOPPED

        announce, self._announce_ns = self._announce_ns, None
        command = self._output(now_ns)
        return Tick(self.state, self.cause, command, announce, played)

    @property
    def at_rest(self) -> bool:
        """Whether no motion is commanded."""
        return self._motion is None or self._motion.at_rest

    @property
    def silent(self) -> bool:
        """Whether nothing is being published, and nothing will be until enabled."""
        if self._state is State.ACTIVE:
            return False
        if self._motion is None:
            return True
        return (self._quiet and self._rest_at_ns is not None
                and self._elapsed_ns - self._rest_at_ns > REST_PUBLISHED_NS)

    # --- inside --------------------------------------------------------------------------------

    @property
    def _estop_missing(self) -> bool:
        return self.config.estop_required and not self.estop_present

    def _violations(self, now_ns: int, elapsed_ns: int) -> list[Violation]:
        """All that is wrong now, the first cause first."""
        found = list(self._requests)
        self._requests.clear()
        if self._latched is not None:
            found.append(self._latched)
        if self._estop_missing:
            found.append(Violation(Reaction.DECELERATE, ESTOP_MISSING))
        status = self._status
        if status is not None and status.reaction != 'none':
            reaction = Reaction[status.reaction.upper()]
            if reaction is Reaction.FAULT:
                self._latch(Violation(reaction, status.cause))
            found.append(Violation(reaction, status.cause))
        if self._state in (State.ACTIVE, State.HOLDING):
            late = self._watchdog.late(self._ages(now_ns, elapsed_ns))
            because = f' ({status.cause})' if status is not None and status.cause else ''
            found += [replace(violation, cause=violation.cause + because) for violation in late]
            blind = self._blind(now_ns)
            found += [Violation(Reaction.HOLD, blind)] if blind else []
        return found

    def _ages(self, now_ns: int, elapsed_ns: int) -> Ages:
        plan, status = self._plan, self._status
        newest_ns = plan.stamp_ns if plan is not None else None
        if status is not None and status.observation_stamp_ns:
            newest_ns = max(newest_ns or 0, status.observation_stamp_ns)
        ahead_ns = now_ns + self.config.command_latency_ns
        exhausted = NEVER_NS if plan is None else ahead_ns + 1 - plan.end_ns
        return Ages(
            inference_silence=None if status is None else self._elapsed_ns - self._status_at_ns,
            observation_age=None if newest_ns is None else now_ns - newest_ns,
            inference_deadline=None if plan is None else now_ns - plan.stamp_ns,
            plan_exhausted=exhausted,
            output_age=elapsed_ns if self._state is State.ACTIVE else None)

    def _react(self, violations: list[Violation], now_ns: int) -> None:
        worst = self._watchdog.judge(violations) if self._watched(violations) else None
        if worst is None:
            if self._state is State.HOLDING and self.at_rest:
                self._resume(now_ns)
            elif self._state is State.WAITING:
                self._cause = 'not enabled'
            return
        first = self._watchdog.first_cause
        if worst.reaction is Reaction.FAULT:
            self._enter(State.FAULT, first, quiet=True)
        elif self._state is State.FAULT:
            return
        elif worst.reaction in (Reaction.ESTOP, Reaction.STOP_PUBLISHING):
            self._enter_stop(first, quiet=True)
        elif worst.reaction is Reaction.DECELERATE:
            self._enter_stop(first, quiet=False)
        elif worst.reaction is Reaction.WAIT:
            if self._state in (State.ACTIVE, State.HOLDING, State.WAITING):
                self._enter(State.WAITING, first, quiet=True)
                self._plan = None
                self._watchdog.recovered()
        elif self._state is State.ACTIVE:
            self._enter(State.HOLDING, first, quiet=False)

    def _watched(self, violations: list[Violation]) -> bool:
        """Whether the violations count: a loop that is not enabled only minds the latching ones."""
        if not violations:
            return False
        if self._state in (State.ACTIVE, State.HOLDING):
            return True
        return any(v.reaction >= Reaction.ESTOP or v.reaction is Reaction.WAIT for v in violations)

    def _enter(self, state: State, cause: str, quiet: bool) -> None:
        if self._state is State.ACTIVE:
            self._rest_at_ns = None
            self.holds[cause.split(':')[0].split(' (')[0]] += 1
        self._state, self._cause, self._quiet = state, cause, quiet

    def _enter_stop(self, cause: str, quiet: bool) -> None:
        if self._state in (State.STOPPING, State.STOPPED):
            self._quiet = self._quiet or quiet
            return
        self._enter(State.STOPPING, cause, quiet)

    def _resume(self, now_ns: int) -> None:
        """Go on after a hold, from where the robot really is."""
        seed = self._seed(now_ns)
        if seed is None:
            problem = self._measured_at(now_ns)[1]
            self._cause = f'no fresh state: {problem}' if problem else UNSEEN
        else:
            self._begin(seed)

    def _begin(self, seed: Motion) -> None:
        self._motion = seed
        self._watchdog.recovered()
        self._state, self._cause, self._rest_at_ns = State.ACTIVE, '', None

    def _refusal(self, now_ns: int) -> str:
        """Why the loop may not be enabled now, in one line; '' if it may."""
        if self._estop:
            return 'the e-stop is pressed; release it, then reset'
        if self._estop_missing:
            return f'{ESTOP_MISSING}, and the robot profile requires one'
        if self._latched is not None:
            return f'{self._latched.cause}; reset first'
        if self._state is State.FAULT:
            return f'{self._cause}; reset first'
        if self._requests:
            return f'being stopped: {self._requests[0].cause}'
        if not self.at_rest:
            return 'the robot is still coming to rest'
        status = self._status
        if status is not None and status.reaction != 'none':
            return status.cause
        if self._plan is None:
            return 'no plan yet' + (f': {status.cause}' if status and status.cause else '')
        late = self._watchdog.late(replace(self._ages(now_ns, 0), output_age=None))
        if late:
            return late[0].cause
        target = self._setpoint(now_ns)
        if target is None:
            return WORDS[Layer.PLAN_EXHAUSTED]
        return self._blind(now_ns) or self._too_far(target, now_ns)

    def _blind(self, now_ns: int) -> str:
        """The first dimension whose position limits cannot be kept for want of a state, or ''."""
        if not self._bounded:
            return ''
        measured, problem = self._measured_at(now_ns)
        for i in self._bounded:
            if not np.isfinite(measured[i]):
                return f'no fresh state: {problem}'
        return ''

    def _too_far(self, target: Floats, now_ns: int) -> str:
        measured, problem = self._measured_at(now_ns)
        if self._quaternion.size:
            columns = self._quaternion
            target[columns] = same_side(target[columns], measured[columns])
        for i in self._position:
            dimension = self.config.spec.dimensions[i]
            if not np.isfinite(measured[i]):
                return f'{dimension.name}: no fresh state: {problem or "none is named for it"}'
            away, allowed = abs(target[i] - measured[i]), self.config.tolerance[i]
            if away > allowed:
                return (f'{dimension.name}: the first target {target[i]:.3f} {dimension.unit} is '
                        f'{away:.3f} {dimension.unit} from the measured {measured[i]:.3f} '
                        f'(activation_tolerance {allowed:g}); bring the robot nearer')
        return ''

    def _measured_at(self, now_ns: int) -> tuple[Floats, str]:
        """Measured state [A] by dimension, nan where unknown, and the first problem."""
        state = self._history.at(now_ns)
        values = np.full(self.config.spec.size, np.nan)
        values[self._measured] = state.values
        return values, state.problem

    def _seed(self, now_ns: int) -> Motion | None:
        """Where motion begins, at rest; None while the measured state is not known.

        A state from before the last motion ended does not tell where that motion ended.
        """
        measured, _ = self._measured_at(now_ns)
        columns = self._position
        if not np.isfinite(measured[columns]).all():
            return None
        start = np.zeros(self.config.spec.size)
        start[columns] = measured[columns]
        if self._motion is not None:
            start[self._gripper] = self._motion.position[self._gripper]
        elif (target := self._setpoint(now_ns)) is not None:
            start[self._gripper] = target[self._gripper]
        fresh = self._sent_at_ns is not None and self._elapsed_ns - self._sent_at_ns < SEED_AGE_NS
        if fresh and self._motion is not None:
            last = self._motion.position
            if np.all(np.abs(last[columns] - measured[columns]) <= self.config.tolerance[columns]):
                start[columns] = last[columns]
            elif self._history.at(now_ns).oldest_ns < self._moved_ns:
                return None
        return self._limiter.at_rest(start)

    def _play(self, now_ns: int) -> Plan | None:
        """Move one step along the plan; returns the plan if this is its first command."""
        assert self._motion is not None
        setpoint = self._setpoint(now_ns)
        if setpoint is None:  # exhausted, and the watchdog tolerates it for a while
            self._motion = self._limiter.brake(self._motion)
            return None
        for i, gripper in self.config.grippers.items():
            before = self._grippers.get(i, GripperState(setpoint[i]))
            self._grippers[i] = before.moved(setpoint[i], self._elapsed_ns, gripper)
            setpoint[i] = self._grippers[i].value
        measured = self._flow_state(now_ns)
        motion, clips = self._limiter.step(
            self._motion, setpoint, measured, self._scale(self._elapsed_ns))
        if not np.isfinite([motion.position, motion.velocity]).all():
            # Whatever may have made it: it does not leave, and nothing moves on from it.
            self._enter(State.FAULT, self.fault('a command that is not finite'), quiet=True)
            self._motion = self._limiter.brake(self._motion)
            return None
        self._motion = motion
        self._count(clips)
        first, self._plan_played = not self._plan_played, True
        return self._plan if first else None

    def _setpoint(self, time_ns: int) -> Floats | None:
        """What the plan wants at a time; a plan stamped a little ahead begins at once."""
        if self._plan is None:
            return None
        time_ns = max(time_ns + self.config.command_latency_ns, self._plan.start_ns)
        return self._interpolator.setpoint(self._plan, time_ns)

    def _flow_state(self, now_ns: int) -> Floats | None:
        """Where what flows is now [A]: as measured, and on from there as it was commanded since.

        Braking for a limit by a state that lags would begin late and end too sharp.
        """
        if not self._bounded:
            return None
        state = self._history.at(now_ns)
        values = np.full(self.config.spec.size, np.nan)
        values[self._measured] = state.values
        for sent_ns, velocity in reversed(self._sent):
            moved_ns = min(sent_ns + self.config.period_ns, now_ns) - max(sent_ns, state.oldest_ns)
            if moved_ns <= 0:
                break
            values[self._flow] += velocity[self._flow] * (moved_ns / NS_PER_S)
        return values

    def _scale(self, elapsed_ns: int) -> float:
        slow = elapsed_ns - self._enabled_at_ns < SLOW_START_NS
        return SLOW_START_SCALE if slow else 1.0

    def _count(self, clips: Clips) -> None:
        for name, counts in self.clips.items():
            counts += getattr(clips, name)

    def _output(self, now_ns: int) -> Command | None:
        if self.silent or self._motion is None:
            return None
        self._sent_at_ns = self._elapsed_ns
        self._sent.append((now_ns, self._motion.velocity))
        return Command(now_ns, self._values(self._motion), self._motion.velocity,
                       self._rollout(now_ns))

    def _values(self, motion: Motion) -> Floats:
        values = motion.position.copy()
        values[self._flow] = motion.velocity[self._flow]
        if self._quaternion.size:  # the average of rotations is a little shorter than they are
            values[self._quaternion] /= np.linalg.norm(values[self._quaternion])
        for i, gripper in self.config.grippers.items():
            values[i] = gripper.mapped(values[i])
        return values

    def _rollout(self, now_ns: int) -> Floats:
        """The limiter's own next positions [n, A]: the plan as limited, or the braking."""
        assert self._motion is not None
        motion, rows = self._motion, []
        for k in range(1, self.config.rollout_steps + 1):
            setpoint, ahead_ns = None, k * self.config.period_ns
            if self._state is State.ACTIVE:
                setpoint = self._setpoint(now_ns + ahead_ns)
            if setpoint is None:
                motion = self._limiter.brake(motion)
            else:
                for i in self.config.grippers:
                    setpoint[i] = self._grippers[i].value
                motion, _ = self._limiter.step(
                    motion, setpoint, None, self._scale(self._elapsed_ns + ahead_ns))
            rows.append(self._values(motion))
        return np.array(rows) if rows else np.empty((0, self.config.spec.size))

    def _malformed(self, plan: Plan) -> str:
        names, values = self.config.spec.names, plan.values
        if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
            return f'shape {values.shape}, expected [steps, {len(names)}]'
        wild = ~(np.abs(values) < WILD)
        if wild.any():
            step, column = np.argwhere(wild)[0]
            return (f'{names[column]} of step {step} is {values[step, column]}; all values must '
                    'be finite')
        if self._quaternion.size:
            norms = np.linalg.norm(values[:, self._quaternion], axis=1)
            off = np.abs(norms - 1.0) > QUATERNION_TOLERANCE
            if off.any():
                step = int(np.argmax(off))
                return f'the quaternion of step {step} has norm {norms[step]:.3f}; it must be 1'
        if plan.period_ns != self.config.policy_period_ns:
            return (f'period {plan.period_ns / NS_PER_S:g} s, the policy profile says '
                    f'{self.config.policy_period_ns / NS_PER_S:g} s')
        return ''

    def _clock_jump(self, now_ns: int, elapsed_ns: int) -> list[Violation]:
        if self._now_ns is None:
            self._new_epoch(now_ns)  # whatever ran before this process is not ours
            return []
        jump_ns = now_ns - self._now_ns - elapsed_ns
        if abs(jump_ns) <= CLOCK_JUMP_NS:
            return []
        self._history.clear()
        self._sent.clear()
        self._moved_ns = now_ns
        self._new_epoch(now_ns)
        self.counts['clock jump'] += 1
        return [Violation(Reaction.HOLD, f'clock jump: {jump_ns / NS_PER_S:+.2f} s')]

    def _new_epoch(self, now_ns: int) -> None:
        self._epoch_ns = self._announce_ns = now_ns
        self._plan = None
        if self._status is not None:  # what it says of observations belongs to the old epoch
            self._status = replace(self._status, observation_stamp_ns=0)

    def _latch(self, violation: Violation) -> None:
        if self._latched is None or violation.reaction > self._latched.reaction:
            self._latched = violation

    def _drop(self, reason: str, kind: str = '') -> str:
        self.counts[f'dropped: {kind or reason}'] += 1
        return reason
