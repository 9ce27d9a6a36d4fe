"""Plays a plan within the limits: where motion begins, how it goes on, how it comes to rest."""

from __future__ import annotations

from collections import deque

import numpy as np

from vla_ros.core.action_spec import Kind
from vla_ros.core.control_config import ControlConfig
from vla_ros.core.gripper import GripperState
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.limits import Limiter, Motion
from vla_ros.core.rotations import same_side
from vla_ros.core.state_history import StateHistory
from vla_ros.core.types import NS_PER_S, Command, Floats, Plan, StateSample

SLOW_START_NS = 2 * NS_PER_S  # after enabling …
SLOW_START_SCALE = 0.25       # … at this share of the velocity limits
SEED_AGE_NS = NS_PER_S        # a last command younger than this may seed the limits
UNSEEN = 'no state has been measured since the last motion ended'


class Player:
    """The motion of one robot. Not thread-safe.

    `elapsed_ns` is the time that really passed since construction; `motion` is None before the
    first one. `clips` counts by limit, float64 [A] each.
    """

    def __init__(self, config: ControlConfig) -> None:
        spec, limits = config.spec, config.limits
        self._config = config
        self._limiter = Limiter(spec, limits, config.period_ns / NS_PER_S)
        self._interpolator = Interpolator(spec)
        states = tuple(d.state for d in spec.dimensions)
        self._measured = np.array([i for i, name in enumerate(states) if name], dtype=np.intp)
        self._position = spec.of_kind(Kind.POSITION)
        self._flow = spec.of_kind(Kind.VELOCITY, Kind.DELTA)
        self._gripper = spec.of_kind(Kind.GRIPPER)
        self._quaternion = spec.quaternion()
        limited = np.isfinite(limits.position_low) | np.isfinite(limits.position_high)
        # Only their measured state can tell how much room these dimensions have left.
        self._bounded = [int(i) for i in self._flow if states[i] and limited[i]]
        self._history = StateHistory((states[i] for i in self._measured), config.state_age_ns)
        self._grippers: dict[int, GripperState] = {}
        self.elapsed_ns = 0
        self.motion: Motion | None = None
        self._braking = False
        self._slow_from_ns = -SLOW_START_NS
        self._moved_ns = 0  # ROS time of the last commanded motion
        self._sent_at_ns: int | None = None
        # When and how fast, for as long as a measured state may be old.
        self._sent: deque[tuple[int, Floats]] = deque(
            maxlen=1 + -(-config.state_age_ns // config.period_ns))
        self.clips: dict[str, Floats] = {
            name: np.zeros(spec.size)
            for name in ('position', 'velocity', 'acceleration', 'jerk')}

    @property
    def at_rest(self) -> bool:
        """Whether no motion is commanded."""
        return self.motion is None or self.motion.at_rest

    def on_state(self, sample: StateSample) -> str:
        """Take a measurement; returns why some of it was dropped, or ''."""
        return self._history.add(sample)

    def on_clock_jump(self, now_ns: int) -> None:
        """Forget what was stamped by the clock as it was."""
        self._history.clear()
        self._sent.clear()
        self._moved_ns = now_ns

    def setpoint(self, plan: Plan, time_ns: int) -> Floats | None:
        """What the plan wants at a time [A]; one stamped a little ahead begins at once."""
        time_ns = max(time_ns + self._config.command_latency_ns, plan.start_ns)
        return self._interpolator.setpoint(plan, time_ns)

    # --- may it begin --------------------------------------------------------------------------

    def blind(self, now_ns: int) -> str:
        """The first dimension whose position limits cannot be kept for want of a state, or ''."""
        if not self._bounded:
            return ''
        measured, problem = self._measured_at(now_ns)
        for i in self._bounded:
            if not np.isfinite(measured[i]):
                return f'no fresh state: {problem}'
        return ''

    def too_far(self, target: Floats, now_ns: int) -> str:
        """Which first target is too far from the measured state, in one line, or ''."""
        measured, problem = self._measured_at(now_ns)
        if self._quaternion.size:
            columns = self._quaternion
            target[columns] = same_side(target[columns], measured[columns])
        for i in self._position:
            dimension = self._config.spec.dimensions[i]
            if not np.isfinite(measured[i]):
                return f'{dimension.name}: no fresh state: {problem or "none is named for it"}'
            away, allowed = abs(target[i] - measured[i]), self._config.tolerance[i]
            if away > allowed:
                return (f'{dimension.name}: the first target {target[i]:.3f} {dimension.unit} is '
                        f'{away:.3f} {dimension.unit} from the measured {measured[i]:.3f} '
                        f'(activation_tolerance {allowed:g}); bring the robot nearer')
        return ''

    def _measured_at(self, now_ns: int) -> tuple[Floats, str]:
        """Measured state [A] by dimension, nan where unknown, and the first problem."""
        state = self._history.at(now_ns)
        values = np.full(self._config.spec.size, np.nan)
        values[self._measured] = state.values
        return values, state.problem

    def begin(self, plan: Plan, now_ns: int, slowly: bool = False) -> str:
        """Let motion begin, at rest, where the robot is; returns why it may not, or ''.

        From the last command if that is fresh and near the measured state, else from that. A state
        from before the last motion ended does not tell where that motion ended. `slowly`: at a
        part of the velocity limits at first.
        """
        measured, problem = self._measured_at(now_ns)
        columns = self._position
        if not np.isfinite(measured[columns]).all():
            return f'no fresh state: {problem}'
        start = np.zeros(self._config.spec.size)
        start[columns] = measured[columns]
        if self.motion is not None:
            start[self._gripper] = self.motion.position[self._gripper]
        elif (target := self.setpoint(plan, now_ns)) is not None:
            start[self._gripper] = target[self._gripper]
        fresh = self._sent_at_ns is not None and self.elapsed_ns - self._sent_at_ns < SEED_AGE_NS
        if fresh and self.motion is not None:
            last = self.motion.position
            if np.all(np.abs(last[columns] - measured[columns]) <= self._config.tolerance[columns]):
                start[columns] = last[columns]
            elif self._history.at(now_ns).oldest_ns < self._moved_ns:
                return UNSEEN
        self.motion = self._limiter.at_rest(start)
        self._braking = False
        if slowly:
            self._slow_from_ns = self.elapsed_ns
        return ''

    # --- one control period --------------------------------------------------------------------

    def play(self, plan: Plan, now_ns: int) -> bool:
        """Move one step along the plan; False, and no step, where it would not be finite.

        Where the plan is exhausted and the watchdog tolerates it for a while, motion comes to rest
        before it goes on.
        """
        assert self.motion is not None
        setpoint = self.setpoint(plan, now_ns)
        if setpoint is None or (self._braking and not self.at_rest):
            self.brake(now_ns)
            return True
        self._braking = False
        for i, gripper in self._config.grippers.items():
            before = self._grippers.get(i, GripperState(setpoint[i]))
            self._grippers[i] = before.moved(setpoint[i], self.elapsed_ns, gripper)
            setpoint[i] = self._grippers[i].value
        motion, clips = self._limiter.step(
            self.motion, setpoint, self._flow_state(now_ns), self._scale(self.elapsed_ns))
        if not np.isfinite([motion.position, motion.velocity]).all():
            return False  # whatever may have made it, nothing moves on from it
        self.motion = motion
        for name, counts in self.clips.items():
            counts += getattr(clips, name)
        return True

    def brake(self, now_ns: int) -> None:
        """One step towards rest."""
        if self.motion is not None:
            self._braking = True
            if not self.motion.at_rest:
                self._moved_ns = now_ns
            self.motion = self._limiter.brake(self.motion)

    def command(self, plan: Plan | None, now_ns: int) -> Command:
        """What to send now; `plan` is the one that is played, None while braking or at rest."""
        assert self.motion is not None
        self._sent_at_ns = self.elapsed_ns
        self._sent.append((now_ns, self.motion.velocity))
        return Command(now_ns, self._values(self.motion), self.motion.velocity,
                       self._rollout(plan, now_ns))

    def _flow_state(self, now_ns: int) -> Floats | None:
        """Where what flows is now [A]: as measured, and on from there as it was commanded since.

        Braking for a limit by a state that lags would begin late and end too sharp.
        """
        if not self._bounded:
            return None
        state = self._history.at(now_ns)
        values = np.full(self._config.spec.size, np.nan)
        values[self._measured] = state.values
        for sent_ns, velocity in reversed(self._sent):
            moved_ns = min(sent_ns + self._config.period_ns, now_ns) - max(sent_ns, state.oldest_ns)
            if moved_ns <= 0:
                break
            values[self._flow] += velocity[self._flow] * (moved_ns / NS_PER_S)
        return values

    def _scale(self, elapsed_ns: int) -> float:
        slow = elapsed_ns - self._slow_from_ns < SLOW_START_NS
        return SLOW_START_SCALE if slow else 1.0

    def _values(self, motion: Motion) -> Floats:
        values = motion.position.copy()
        values[self._flow] = motion.velocity[self._flow]
        if self._quaternion.size:  # the average of rotations is a little shorter than they are
            values[self._quaternion] /= np.linalg.norm(values[self._quaternion])
        for i, gripper in self._config.grippers.items():
            values[i] = gripper.mapped(values[i])
        return values

    def _rollout(self, plan: Plan | None, now_ns: int) -> Floats:
        """The limiter's own next positions [n, A]: the plan as limited, or the braking."""
        assert self.motion is not None
        motion, rows = self.motion, []
        for k in range(1, self._config.rollout_steps + 1):
            ahead_ns = k * self._config.period_ns
            setpoint = None
            if plan is not None and not (self._braking and not motion.at_rest):
                setpoint = self.setpoint(plan, now_ns + ahead_ns)
            if setpoint is None:
                motion = self._limiter.brake(motion)
            else:
                for i in self._config.grippers:
                    setpoint[i] = self._grippers[i].value
                motion, _ = self._limiter.step(
                    motion, setpoint, None, self._scale(self.elapsed_ns + ahead_ns))
            rows.append(self._values(motion))
        return np.array(rows) if rows else np.empty((0, self._config.spec.size))
