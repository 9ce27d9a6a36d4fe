"""The control loop behind action_publisher: when to play the plan, and when and how to stop.

Two clocks come in as numbers: ROS time, in which plans are stamped, and the time that really
passed since the last tick. Whatever lasts (slow start, silence, dwell) is counted in the second,
so that a jump of the first can neither stretch nor skip it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from vla_ros.core.control_config import ControlConfig, State, Tick
from vla_ros.core.counting import Counts
from vla_ros.core.player import Player
from vla_ros.core.state_history import dropped_as
from vla_ros.core.types import NS_PER_S, Floats, InferenceStatus, Plan, StateSample
from vla_ros.core.watchdog import WORDS, Ages, Layer, Reaction, Violation, Watchdog

REST_PUBLISHED_NS = NS_PER_S // 2  # commands at rest that are sent before going silent
CLOCK_JUMP_NS = NS_PER_S // 10
FUTURE_TOLERANCE_NS = NS_PER_S // 20  # a plan stamped further ahead than this is not believed
NEVER_NS = 1 << 62
WILD = 1e15                      # no unit needs numbers like this; their differences overflow
QUATERNION_TOLERANCE = 0.1       # how far from 1 the norm of a quaternion in a plan may be
ESTOP_HEARD_NS = NS_PER_S // 2  # several e-stops: each that is pressed says so at least as often
ESTOP_MISSING = 'nobody publishes the topic estop'


class ControlLoop:
    """One instance drives one robot. Not thread-safe: one thread at a time may call."""

    def __init__(self, config: ControlConfig) -> None:
        self.config = config
        self._player = Player(config)
        self._watchdog = Watchdog(dict(config.watchdog))

        self._state = State.WAITING
        self._cause = 'not enabled'
        self._quiet = True            # go silent once at rest
        self._latched: Violation | None = None
        self._requests: list[Violation] = []
        self._auto_enable = config.enable_on_start
        self._estop_last = False            # the last word of the e-stop topic
        self._estop_true_ns: int | None = None  # when it last said that it is pressed
        self.estop_present = False    # whether somebody publishes the e-stop topic

        self._plan: Plan | None = None
        self._plan_played = True
        self._status: InferenceStatus | None = None
        self._status_at_ns = 0
        self._epoch_ns = 0
        self._announce_ns: int | None = None

        self._now_ns: int | None = None
        self._rest_at_ns: int | None = None

        self.counts = Counts()
        self.holds = Counts()  # how often each first cause ended the motion

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
    def clips(self) -> Mapping[str, Floats]:
        """How often each limit was at work, float64 [A] by limit."""
        return self._player.clips

    @property
    def plan(self) -> Plan | None:
        return self._plan

    def on_plan(self, plan: Plan, now_ns: int) -> str:
        """Take a plan; returns why it was dropped, or ''. A malformed plan is a fault."""
        if plan.stamp_ns < self._epoch_ns:
            return self._drop('plan from before the last reset')
        problem = self._malformed(plan)
        if problem:
            return self.on_malformed_plan(f'action chunk: {problem}')
        if self._plan is not None and plan.stamp_ns < self._plan.stamp_ns:
            return self._drop('plan older than the one in hand')
        if plan.stamp_ns > now_ns + FUTURE_TOLERANCE_NS:
            return self._drop('plan stamped in the future: the clocks do not match')
        # One that had to wait for being enabled says nothing of latency.
        self._plan, self._plan_played = plan, self._state is not State.ACTIVE
        return ''

    def on_malformed_plan(self, cause: str) -> str:
        """What came is no plan for this robot: counted, and a fault; returns the cause."""
        self.counts['dropped: malformed action chunk'] += 1
        return self.fault(cause)

    def on_malformed_status(self) -> None:
        """Something came that is no status of inference."""
        self.counts['dropped: inference status that cannot be read'] += 1

    def on_state(self, sample: StateSample) -> str:
        """Take a measurement; returns why some of it was dropped, or ''."""
        reason = self._player.on_state(sample)
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
        self._status_at_ns = self._player.elapsed_ns

    def on_estop(self, pressed: bool, now_ns: int) -> None:
        """The e-stop topic spoke. Pressing latches until reset; releasing alone moves nothing."""
        self.estop_present = True
        if pressed and not self._estop:
            self.counts['e-stop'] += 1
            self._new_epoch(now_ns)
        if pressed:
            self._estop_true_ns = self._player.elapsed_ns
        self._estop_last = pressed
        if pressed:  # here and not in the next period, by which it may be released again
            self._latch(Violation(Reaction.ESTOP, 'e-stop'))

    def fault(self, cause: str) -> str:
        """Latch a fault; returns the cause."""
        self._latch(Violation(Reaction.FAULT, cause))
        return cause

    def enable(self, now_ns: int) -> str:
        """Start to play the plan; returns why not, or ''."""
        if self._state is State.ACTIVE and not (self._estop or self._latched or self._requests):
            return ''
        refusal = self._refusal(now_ns)
        if refusal:
            return refusal
        refusal = self._begin(now_ns, slowly=True)
        if not refusal:
            self._auto_enable = False
        return refusal

    def disable(self, cause: str = 'disabled') -> None:
        """Bring motion to rest and wait to be enabled."""
        self._auto_enable = False
        self._requests.append(Violation(Reaction.WAIT, cause))

    def reset(self, now_ns: int) -> str:
        """Clear latches and begin a new epoch, waiting; returns why not, or ''."""
        if self._estop:
            return 'the e-stop is pressed; release it first: publish false on estop'
        self._latched = None
        self._requests.clear()
        self._status = None
        self._auto_enable = False
        self._new_epoch(now_ns)
        self._watchdog.recovered()
        self._enter(State.WAITING, 'reset', quiet=True)
        return ''

    # --- one control period --------------------------------------------------------------------

    def tick(self, now_ns: int, elapsed_ns: int) -> Tick:
        """Advance by one control period. `elapsed_ns`: the time that really passed in it."""
        self._player.elapsed_ns += elapsed_ns
        violations = self._clock_jump(now_ns, elapsed_ns)
        self._now_ns = now_ns
        if self._auto_enable and self._state is State.WAITING:
            self.enable(now_ns)
        violations += self._violations(now_ns, elapsed_ns)
        self._react(violations, now_ns)

        played = self._state is State.ACTIVE and self._play(now_ns)
        if not played:
            self._player.brake(now_ns)
            if self.at_rest and self._rest_at_ns is None:
                self._rest_at_ns = self._player.elapsed_ns
        if self._state is State.STOPPING and self.at_rest:
            self._state = State.STOPPED

        first: Plan | None = None
        if played and not self._plan_played:
            first, self._plan_played = self._plan, True
        announce, self._announce_ns = self._announce_ns, None
        command = None
        if not self.silent:
            command = self._player.command(self._plan if played else None, now_ns)
        return Tick(self.state, self.cause, command, announce, first)

    def _play(self, now_ns: int) -> bool:
        assert self._plan is not None, 'the watchdog lets nothing be played without a plan'
        played = self._player.play(self._plan, now_ns)
        if not played:
            self._enter(State.FAULT, self.fault('a command that is not finite'), quiet=True)
        return played

    @property
    def at_rest(self) -> bool:
        """Whether no motion is commanded."""
        return self._player.at_rest

    @property
    def silent(self) -> bool:
        """Whether nothing is being published, and nothing will be until enabled."""
        if self._state is State.ACTIVE:
            return False
        if self._player.motion is None:
            return True
        return (self._quiet and self._rest_at_ns is not None
                and self._player.elapsed_ns - self._rest_at_ns > REST_PUBLISHED_NS)

    # --- inside --------------------------------------------------------------------------------

    @property
    def _estop(self) -> bool:
        """Whether any e-stop is pressed: one that still says so outweighs others that do not."""
        if self._estop_true_ns is None:
            return False
        heard_ns = self._player.elapsed_ns - self._estop_true_ns
        return self._estop_last or heard_ns < ESTOP_HEARD_NS

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
            blind = self._player.blind(now_ns)
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
            inference_silence=(
                None if status is None else self._player.elapsed_ns - self._status_at_ns),
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
        refusal = self._begin(now_ns)
        if refusal:
            self._cause = refusal

    def _begin(self, now_ns: int, slowly: bool = False) -> str:
        """Let motion begin; returns why it may not, or ''."""
        assert self._plan is not None, 'the watchdog lets nothing begin without a plan'
        refusal = self._player.begin(self._plan, now_ns, slowly)
        if not refusal:
            self._watchdog.recovered()
            self._state, self._cause, self._rest_at_ns = State.ACTIVE, '', None
        return refusal

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
        target = self._player.setpoint(self._plan, now_ns)
        if target is None:
            return WORDS[Layer.PLAN_EXHAUSTED]
        return self._player.blind(now_ns) or self._player.too_far(target, now_ns)

    def _malformed(self, plan: Plan) -> str:
        names, values = self.config.spec.names, plan.values
        if values.ndim != 2 or values.shape[1] != len(names) or not len(values):
            return f'shape {values.shape}, expected [steps, {len(names)}]'
        wild = ~(np.abs(values) < WILD)
        if wild.any():
            step, column = np.argwhere(wild)[0]
            return (f'{names[column]} of step {step} is {values[step, column]}; all values must '
                    'be finite')
        quaternion = self.config.spec.quaternion()
        if quaternion.size:
            norms = np.linalg.norm(values[:, quaternion], axis=1)
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
        self._player.on_clock_jump(now_ns)
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
