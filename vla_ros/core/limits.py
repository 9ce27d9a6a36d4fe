"""Limits of the commanded motion: position, velocity, acceleration and optionally jerk.

The limiter works on what the robot really receives: positions one control period apart, and their
finite differences. Each step picks the next velocity from what the limits leave, in this order of
priority: position, velocity, acceleration, jerk.

Two properties carry the proof that from rest inside the limits none is ever violated:

* `stopping_velocity` is the exact discrete-time bound. If a velocity meets it, then braking by one
  acceleration step meets it again in the next period.
* Jerk is limited by a moving average over the acceleration-limited motion. An average of motions
  that keep their position, velocity and acceleration limits keeps them too, since those sets are
  convex; its jerk is at most 2 a / (n dt) for n samples.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Group, Kind
from vla_ros.core.rotations import same_side
from vla_ros.core.types import Floats

# Slack for rounding when two floats that should be equal are compared, relative.
EPSILON = 1e-9


@dataclass(frozen=True)
class Limits:
    """Limits per dimension of the planned spec, float64 [A] each; inf where there is none.

    Units per second, per second squared, per second cubed. `position_low` and `position_high` of
    a velocity or delta dimension bound the measured state that it moves.
    """

    position_low: Floats
    position_high: Floats
    velocity: Floats
    acceleration: Floats
    jerk: Floats
    stop_deceleration: Floats

    def __post_init__(self) -> None:
        # Written so that a nan fails, too: it would pass for no limit at all.
        if not np.all(self.position_low <= self.position_high):
            raise ValueError('limits: a lower position limit lies above the upper one')
        if not all(np.all(v > 0) for v in (self.velocity, self.acceleration, self.jerk)):
            raise ValueError('limits: velocity, acceleration and jerk must be greater than 0')
        if not np.all(self.stop_deceleration >= self.acceleration):
            raise ValueError('limits: stop_deceleration must be at least the acceleration limit')


@dataclass(frozen=True)
class Clips:
    """Which dimensions could not get what was asked, bool [A] each, by the limit at work.

    A limit of one dimension clips its whole group. To slow down ahead of a target is no clip.
    """

    position: NDArray[np.bool_]
    velocity: NDArray[np.bool_]
    acceleration: NDArray[np.bool_]
    jerk: NDArray[np.bool_]


@dataclass(frozen=True)
class Motion:
    """The limiter's memory: commanded `position` and `velocity`, float64 [A].

    `inner_*` is the acceleration-limited motion before the jerk average, `history` [n, A] the last
    inner velocities. Positions of velocity and delta dimensions carry no meaning.
    """

    position: Floats
    velocity: Floats
    inner_position: Floats
    inner_velocity: Floats
    history: Floats = field(repr=False)

    @property
    def at_rest(self) -> bool:
        """Whether nothing moves any more, the average included."""
        return not (np.any(self.velocity) or np.any(self.inner_velocity) or np.any(self.history))


def stopping_velocity(distance: Floats, brake: Floats, period: float) -> Floats:
    """The fastest velocity from which braking by `brake` per period still stops within `distance`.

    Exact for motion in steps of `period` seconds: the way of this step and of all braking steps
    after it, period * (v + (v - brake) + …), is at most `distance`. Zero for negative distances.
    `brake` is the velocity that one period of deceleration takes away, > 0 or inf.
    """
    distance = np.maximum(distance, 0.0)
    unit = brake * period
    with np.errstate(invalid='ignore', over='ignore'):
        steps = np.floor((np.sqrt(1.0 + 8.0 * distance / unit) - 1.0) / 2.0)
        exact = (distance / period + brake * steps * (steps + 1.0) / 2.0) / (steps + 1.0)
    # inf brake: 0 steps times inf is nan, and the answer is to arrive at once.
    return np.where(np.isfinite(exact), exact, distance / period)


class Limiter:
    """Steps a `Motion` by one control `period` (seconds). Pure: every call returns a new motion."""

    def __init__(self, spec: ActionSpec, limits: Limits, period: float) -> None:
        if not period > 0.0:
            raise ValueError(f'period: {period}: must be greater than 0 s')
        self._period = period
        self.limits = limits
        self._gripper = spec.of_kind(Kind.GRIPPER)
        self._position = spec.of_kind(Kind.POSITION)
        self._placeable = np.array([d.kind is Kind.POSITION for d in spec.dimensions])
        self._quaternion = spec.quaternion()
        self._flow = spec.of_kind(Kind.VELOCITY, Kind.DELTA)
        groups = (spec.of_group(g) for g in (Group.TRANSLATION, Group.ROTATION, Group.JOINTS))
        self._groups = tuple(group for group in groups if group.size)
        self._accelerate = limits.acceleration * period
        self._brake = limits.stop_deceleration * period
        self._samples = self._average_samples()

    def _average_samples(self) -> int:
        with np.errstate(invalid='ignore'):
            needed = 2.0 * self.limits.acceleration / (self.limits.jerk * self._period)
        needed = needed[np.isfinite(needed)]
        return max(1, int(np.ceil(needed.max(initial=1.0) - EPSILON)))

    def at_rest(self, position: Floats) -> Motion:
        """Motion that rests at `position` [A]."""
        zero = np.zeros_like(position)
        history = np.zeros((self._samples, len(position)))
        return Motion(position.copy(), zero, position.copy(), zero, history)

    def step(self, motion: Motion, setpoint: Floats, measured: Floats | None = None,
             velocity_scale: float = 1.0) -> tuple[Motion, Clips]:
        """Move towards `setpoint` [A]: positions, velocities per second, gripper values.

        `measured` [A] is the state that velocity and delta dimensions move, nan where unknown;
        `velocity_scale` in (0, 1] shrinks the velocity limits.
        """
        limits, period = self.limits, self._period
        top = limits.velocity * velocity_scale
        position, velocity = motion.inner_position, motion.inner_velocity
        up, down = self._room(position, self._arriving(motion, measured))

        target = np.clip(setpoint, limits.position_low, limits.position_high)
        target[self._flow] = np.clip(setpoint, -down, up)[self._flow]
        clip_position = target != setpoint
        if self._quaternion.size:
            columns = self._quaternion
            target[columns] = same_side(target[columns], position[columns])

        # What each dimension would do if it were alone.
        wish = (target - position) / period
        wish[self._flow] = target[self._flow]
        wish[self._gripper] = 0.0
        reach = stopping_velocity(np.abs(target - position), self._accelerate, period)
        reach[self._flow] = np.inf
        allowed = np.minimum(top, reach)

        wanted = self._scaled(wish, np.minimum(allowed, np.where(wish > 0.0, up, down)))
        change = wanted - velocity
        chosen = velocity + self._scaled(change, self._accelerate)
        # Scaling a group may have slowed the braking of a member: braking for a target, a position
        # or velocity limit comes before direction, and so does turning back from one passed by.
        away = np.where(self._placeable, 0.0, top)
        towards = np.where(wish >= 0.0, allowed, away)
        back = np.where(wish <= 0.0, allowed, away)
        slowest = velocity - self._accelerate
        fastest = velocity + self._accelerate
        chosen = np.clip(chosen, slowest, np.maximum(towards, slowest))
        chosen = np.clip(chosen, np.minimum(-back, fastest), fastest)
        chosen = np.clip(chosen, -down, up)

        after = self._advance(motion, chosen, target)
        return after, Clips(clip_position, _differ(wish, self._scaled(wish, top)),
                            _differ(wanted, chosen), _differ(chosen, after.velocity))

    def brake(self, motion: Motion) -> Motion:
        """One step towards rest with `stop_deceleration`, without jerk limit; grippers stay."""
        velocity = motion.velocity
        chosen = velocity + self._scaled(-velocity, self._brake)
        up, down = self._room(motion.position, np.full(len(velocity), np.nan))
        chosen = np.clip(chosen, -down, up)
        position = motion.position + self._period * self._placed(chosen)
        history = np.repeat(chosen[None, :], self._samples, axis=0)
        return Motion(position, chosen, position, chosen, history)

    def _advance(self, motion: Motion, chosen: Floats, target: Floats) -> Motion:
        history = np.vstack([motion.history[1:], chosen])
        velocity = history.mean(axis=0) if self._samples > 1 else chosen
        inner = motion.inner_position + self._period * self._placed(chosen)
        position = motion.position + self._period * self._placed(velocity)
        inner[self._gripper] = target[self._gripper]
        position[self._gripper] = target[self._gripper]
        return Motion(position, velocity, inner, chosen, history)

    def _placed(self, velocity: Floats) -> Floats:
        """Velocities of position dimensions only; the others have no commanded position."""
        placed = np.zeros_like(velocity)
        placed[self._position] = velocity[self._position]
        return placed

    def _arriving(self, motion: Motion, measured: Floats | None) -> Floats:
        """Where velocity and delta dimensions [A] get to by what the average still holds back."""
        if measured is None:
            return np.full(len(motion.position), np.nan)
        held_back = np.arange(self._samples) / self._samples
        return np.asarray(measured + self._period * (held_back @ motion.history))

    def _room(self, position: Floats, flow_position: Floats) -> tuple[Floats, Floats]:
        """The fastest velocities up and down [A] that can still stop at the position limits."""
        place = flow_position.copy()
        place[self._position] = position[self._position]
        known = np.isfinite(place)
        place = np.where(known, place, 0.0)
        up = stopping_velocity(self.limits.position_high - place, self._accelerate, self._period)
        down = stopping_velocity(place - self.limits.position_low, self._accelerate, self._period)
        return np.where(known, up, np.inf), np.where(known, down, np.inf)

    def _scaled(self, vector: Floats, bound: Floats) -> Floats:
        """`vector` [A], each group shrunk as a whole until every member keeps its `bound` [A]."""
        result = vector.copy()
        size = np.abs(vector)
        for group in self._groups:
            over = size[group] > bound[group]
            if over.any():
                result[group] *= np.min(bound[group][over] / size[group][over])
        return result


def _differ(asked: Floats, given: Floats) -> NDArray[np.bool_]:
    return np.asarray(np.abs(asked - given) > EPSILON * np.maximum(1.0, np.abs(asked)))
