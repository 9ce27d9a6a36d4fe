"""The value of a plan at any time: each kind read as it is meant, nothing ever extrapolated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.rotations import slerp
from vla_ros.core.types import NS_PER_S, Floats, Plan


class Interpolator:
    """Reads plans of one spec.

    Positions go linearly from step i to step i + 1 and the last step is held for its period;
    quaternions go along the great circle; velocities, deltas and grippers stay over their step.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self._position = spec.of_kind(Kind.POSITION)
        self._delta = spec.of_kind(Kind.DELTA)
        self._quaternion = spec.quaternion()

    def resample(self, plan: Plan, times_ns: NDArray[np.int64]) -> tuple[Floats, NDArray[np.bool_]]:
        """Values [n, A] at times [n], in the units of the spec, and where the plan is valid [n].

        Rows outside the validity of the plan are undefined.
        """
        steps = len(plan.values)
        since_start = times_ns - plan.start_ns
        step = since_start // plan.period_ns
        valid = (step >= 0) & (step < steps)
        step = np.clip(step, 0, steps - 1)
        towards = np.minimum(step + 1, steps - 1)
        fraction = (since_start - step * plan.period_ns) / plan.period_ns
        values = plan.values[step]  # a copy: fancy indexing
        here, there = plan.values[step], plan.values[towards]
        columns = self._position
        values[:, columns] += fraction[:, None] * (there[:, columns] - here[:, columns])
        if self._quaternion.size:
            columns = self._quaternion
            values[:, columns] = slerp(here[:, columns], there[:, columns], fraction)
        return values, valid

    def at(self, plan: Plan, time_ns: int) -> Floats | None:
        """Values [A] at one time, in the units of the spec; None outside the plan's validity."""
        values, valid = self.resample(plan, np.array([time_ns], dtype=np.int64))
        return values[0] if valid[0] else None

    def setpoint(self, plan: Plan, time_ns: int) -> Floats | None:
        """As `at`, with deltas as the velocity that makes them over one period, per second."""
        values = self.at(plan, time_ns)
        if values is not None:
            values[self._delta] *= NS_PER_S / plan.period_ns
        return values
