"""What is written down of one trial: commands, seams and delays, and the figures made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Group
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.types import NS_PER_S, Floats, Plan


@dataclass(frozen=True)
class TrialResult:
    """What a trial came to; times in s from its start.

    `success_s`: when the last task was done, nan where it was not. `joints`: indices of the
    dimensions that are joints. `commands` [n, A]: what each control period sent, nan where nothing.
    `seams` [m, A]: how far the setpoint jumped where a plan replaced another; `offered` [m, A]: how
    far the new chunk alone was from the old plan there, nan where that is not known. `delays_s`
    [k]: from the stamp of an observation to the arrival of its plan; `inferences_s`: time that the
    engine really took. `holds` by cause, `clips` by limit and dimension, `drops` by reason.
    """

    name: str
    seed: int
    sentence: str
    success: bool
    success_s: float
    seconds: float
    control_period_s: float
    joints: tuple[int, ...]
    commands: Floats = field(repr=False)
    seams: Floats = field(repr=False)
    offered: Floats = field(repr=False)
    delays_s: Floats = field(repr=False)
    inferences_s: Floats = field(repr=False)
    holds: Mapping[str, int] = field(default_factory=dict)
    clips: Mapping[str, int] = field(default_factory=dict)
    drops: Mapping[str, int] = field(default_factory=dict)

    @property
    def jerk(self) -> Floats:
        """Third differences [n - 3, joints] of the commanded joints, rad/s3; gaps left out."""
        return jerk(self.commands[:, self.joints], self.control_period_s)

    @property
    def joint_seams(self) -> Floats:
        """The largest jump of a joint at each seam [m], rad."""
        return self._largest(self.seams)

    @property
    def joint_offers(self) -> Floats:
        """How far a joint of the new chunk was at most from the old plan [<= m], rad."""
        return self._largest(self.offered[np.isfinite(self.offered).all(axis=1)])

    @property
    def seam_max(self) -> Floats:
        """By dimension [A]; 0 where no plan replaced another."""
        return np.asarray(self.seams.max(axis=0, initial=0.0))

    @property
    def seam_rms(self) -> Floats:
        """By dimension [A]; 0 where no plan replaced another."""
        squares = np.sum(np.square(self.seams), axis=0)
        return np.asarray(np.sqrt(squares / max(1, len(self.seams))))

    def _largest(self, rows: Floats) -> Floats:
        return np.asarray(rows[:, self.joints].max(axis=1)) if len(rows) else np.empty(0)


def jerk(positions: Floats, period_s: float) -> Floats:
    """Third differences per period cubed [n - 3, J] of positions [n, J]; rows with nan left out."""
    if len(positions) < 4:
        return np.empty((0, positions.shape[1]))
    third = np.diff(positions, n=3, axis=0) / period_s**3
    return np.asarray(third[np.isfinite(third).all(axis=1)])


class TrialRecord:
    """Takes plans and commands as they come; `spec` is the planned one."""

    def __init__(self, spec: ActionSpec) -> None:
        self._size = spec.size
        self.joints = tuple(int(i) for i in spec.of_group(Group.JOINTS))
        self._interpolator = Interpolator(spec)
        self._plan: Plan | None = None
        self._seams: list[Floats] = []
        self._offered: list[Floats] = []
        self._delays: list[float] = []
        self._commands: list[Floats] = []

    def on_plan(self, plan: Plan, now_ns: int, offered: Floats | None = None) -> None:
        """A plan replaces the one before it; `offered` [A] as in TrialResult, where it is known."""
        self._delays.append((now_ns - plan.stamp_ns) / NS_PER_S)
        if self._plan is not None:
            # As it is played: what begins a little later begins at once.
            old = self._interpolator.at(self._plan, max(now_ns, self._plan.start_ns))
            new = self._interpolator.at(plan, max(now_ns, plan.start_ns))
            if old is not None and new is not None:
                self._seams.append(np.abs(new - old))
                self._offered.append(np.full(self._size, np.nan) if offered is None else offered)
        self._plan = plan

    def on_command(self, values: Floats | None) -> None:
        """What one control period sent [A], None for nothing."""
        self._commands.append(np.full(self._size, np.nan) if values is None else values)

    @property
    def commands(self) -> Floats:
        """float64 [n, A]."""
        return np.array(self._commands).reshape(-1, self._size)

    @property
    def seams(self) -> Floats:
        """float64 [m, A]."""
        return np.array(self._seams).reshape(-1, self._size)

    @property
    def offered(self) -> Floats:
        """float64 [m, A]."""
        return np.array(self._offered).reshape(-1, self._size)

    @property
    def delays_s(self) -> Floats:
        """float64 [k]."""
        return np.array(self._delays)
