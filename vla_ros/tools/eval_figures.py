"""The figures of many trials: success with its interval, seams, jerk, delays; as JSON and table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from vla_ros.core.types import Floats
from vla_ros.sim.trial_record import TrialResult
from vla_ros.sim.wilson import wilson


@dataclass(frozen=True)
class TaskFigures:
    """Figures over the episodes of one task; nan where there is nothing to say.

    `outcomes`: success by episode, in order of their seeds. `success_s`: median time to a success.
    Seams: largest jump of a joint's setpoint where a plan replaces another, rad; `offered_*`: how
    far the new chunk alone was from the old plan there. Jerk: third difference of the commanded
    joints, rad/s3. Delays: from capture to plan, s; `inference_*`: what the engine alone took, s.
    """

    outcomes: tuple[bool, ...]
    success_s: float
    seam_p50: float
    seam_p99: float
    seam_max: float
    offered_p50: float
    offered_p99: float
    jerk_rms: float
    jerk_p99: float
    delay_p50: float
    delay_p99: float
    inference_p50: float
    inference_p99: float
    holds: Mapping[str, int]

    @property
    def episodes(self) -> int:
        return len(self.outcomes)

    @property
    def successes(self) -> int:
        return sum(self.outcomes)

    @property
    def ci95(self) -> tuple[float, float]:
        """Wilson's interval of the success rate."""
        return wilson(self.successes, self.episodes)

    def json(self) -> dict[str, Any]:
        """For the report; nan must still be made plain."""
        return {
            'success': round(self.successes / self.episodes, 6), 'episodes': self.episodes,
            'ci95': [round(end, 4) for end in self.ci95], 'successes': self.successes,
            'seconds_to_success_p50': _rounded(self.success_s, 2),
            'seam_rad': {'p50': _rounded(self.seam_p50, 5), 'p99': _rounded(self.seam_p99, 5),
                         'max': _rounded(self.seam_max, 5)},
            'offered_seam_rad': {'p50': _rounded(self.offered_p50, 5),
                                 'p99': _rounded(self.offered_p99, 5)},
            'jerk_rad_s3': {'rms': _rounded(self.jerk_rms, 1), 'p99': _rounded(self.jerk_p99, 1)},
            'delay_ms': {'p50': _rounded(self.delay_p50 * 1e3, 1),
                         'p99': _rounded(self.delay_p99 * 1e3, 1)},
            'inference_ms': {'p50': _rounded(self.inference_p50 * 1e3, 1),
                             'p99': _rounded(self.inference_p99 * 1e3, 1)},
            'holds': dict(self.holds), 'outcomes': [int(success) for success in self.outcomes]}


def figures(results: Sequence[TrialResult]) -> TaskFigures:
    """The figures of the trials of one task, at least one."""
    ordered = sorted(results, key=lambda result: result.seed)
    seams = _together(result.joint_seams for result in ordered)
    offered = _together(result.joint_offers for result in ordered)
    jerk = np.abs(_together(result.jerk.ravel() for result in ordered))
    delays = _together(result.delays_s for result in ordered)
    took = _together(result.inferences_s for result in ordered)
    holds: Counter[str] = Counter()
    for result in ordered:
        holds.update(result.holds)
    return TaskFigures(
        outcomes=tuple(result.success for result in ordered),
        success_s=_percentile(
            np.array([result.success_s for result in ordered if result.success]), 50),
        seam_p50=_percentile(seams, 50), seam_p99=_percentile(seams, 99),
        seam_max=_percentile(seams, 100),
        offered_p50=_percentile(offered, 50), offered_p99=_percentile(offered, 99),
        jerk_rms=float(np.sqrt(np.mean(np.square(jerk)))) if jerk.size else float('nan'),
        jerk_p99=_percentile(jerk, 99),
        delay_p50=_percentile(delays, 50), delay_p99=_percentile(delays, 99),
        inference_p50=_percentile(took, 50), inference_p99=_percentile(took, 99), holds=holds)


def table(found: Mapping[str, TaskFigures], title: str) -> Table:
    """The figures for people."""
    rows = Table(box=box.SIMPLE_HEAD, title=f'[bold]{title}', title_justify='left', pad_edge=False,
                 padding=0)
    rows.add_column('task', style='cyan', no_wrap=True)
    for name in ('success\n%', '95 %\ninterval', 'time\ns', 'seam\nmrad', 'offered\nmrad',
                 'jerk\nrad/s³', 'delay\nms', 'engine\nms', 'holds'):
        rows.add_column(name, justify='right', no_wrap=True)
    for name, f in found.items():
        low, high = f.ci95
        rows.add_row(
            name, f'[bold]{100 * f.successes / f.episodes:.1f}',
            f'{100 * low:.1f}–{100 * high:.1f}', _shown('{:.1f}', f.success_s),
            _shown('{:.0f}/{:.0f}', f.seam_p50 * 1e3, f.seam_p99 * 1e3),
            _shown('{:.0f}/{:.0f}', f.offered_p50 * 1e3, f.offered_p99 * 1e3),
            _shown('{:.0f}/{:.0f}', f.jerk_rms, f.jerk_p99),
            _shown('{:.0f}/{:.0f}', f.delay_p50 * 1e3, f.delay_p99 * 1e3),
            _shown('{:.0f}/{:.0f}', f.inference_p50 * 1e3, f.inference_p99 * 1e3),
            str(sum(f.holds.values())))
    rows.caption = 'time: median to success; jerk: rms/p99; the others p50/p99'
    rows.caption_justify = 'left'
    return rows


def _shown(form: str, *values: float) -> str:
    return form.format(*values) if np.isfinite(values).all() else '–'


def _together(parts: Iterable[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _percentile(values: Floats, percent: float) -> float:
    return float(np.percentile(values, percent)) if len(values) else float('nan')


def _rounded(value: float, digits: int) -> float:
    return round(value, digits)
