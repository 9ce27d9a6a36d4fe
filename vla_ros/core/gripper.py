"""The gripper map: from a policy's gripper value to the one the hardware takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class GripperMap:
    """`scale` * value + `offset`, after `invert` (1 - value).

    A change smaller than `hysteresis` (in policy units) is ignored, and two changes lie at least
    `minimum_dwell_ns` apart, so that a policy that dithers does not wear the gripper.
    """

    scale: float = 1.0
    offset: float = 0.0
    invert: bool = False
    hysteresis: float = 0.0
    minimum_dwell_ns: int = 0

    def __post_init__(self) -> None:
        if self.scale == 0.0 or not np.isfinite([self.scale, self.offset]).all():
            raise ValueError(f'gripper: scale {self.scale}, offset {self.offset}: both must be '
                             'finite and scale not 0')
        if self.hysteresis < 0.0 or self.minimum_dwell_ns < 0:
            raise ValueError('gripper: hysteresis and minimum_dwell must not be negative')

    def mapped(self, value: float) -> float:
        """The hardware's value of a policy value."""
        return self.scale * (1.0 - value if self.invert else value) + self.offset

    def unmapped(self, value: float) -> float:
        """The policy value of a hardware value."""
        plain = (value - self.offset) / self.scale
        return 1.0 - plain if self.invert else plain


@dataclass(frozen=True)
class GripperState:
    """The accepted policy value and the time of its last change; None before the first one."""

    value: float
    changed_ns: int | None = None

    def moved(self, value: float, now_ns: int, gripper: GripperMap) -> GripperState:
        """The state after the policy asked for `value`."""
        if self.changed_ns is None:
            return GripperState(value, now_ns)
        settled = now_ns - self.changed_ns >= gripper.minimum_dwell_ns
        if abs(value - self.value) > gripper.hysteresis and settled:
            return GripperState(value, now_ns)
        return self
