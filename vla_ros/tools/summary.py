"""What a run came to: counts, rates, holds, latencies, and how far it was from a recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from vla_ros.core.action_spec import Kind
from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.tools.record import ACTIVE, PUBLISHER, WAITING, Record, Span, stops

NOT_SKILL = 'plumbing, not skill'


@dataclass(frozen=True)
class ActionError:
    """Commands against recorded actions, as the root of the mean square over the run.

    `rms` and `still` by dimension, per second: the error of the commands, and what standing still
    would have had. `agreement`: share of commands within 0.5 of the recorded gripper; nan without
    one. `actions`: recorded actions that had commands.
    """

    actions: int
    rms: dict[str, float]
    still: dict[str, float]
    agreement: float

    def json(self) -> dict[str, Any]:
        """For `summary.json`."""
        return {
            'note': f'{NOT_SKILL}: root mean square of command minus recorded action, per second; '
                    '"standing_still" is what commanding nothing would have had',
            'recorded_actions': self.actions,
            'rms': {name: float(f'{v:.4g}') for name, v in self.rms.items()},
            'standing_still': {name: float(f'{v:.4g}') for name, v in self.still.items()},
            'gripper_agreement': _number(self.agreement)}


@dataclass(frozen=True)
class Summary:
    """The figures of a run; times in seconds, latencies in milliseconds.

    `rate`: commands per second while the control loop did not wait, as is the longest gap.
    `error`: None where there was nothing recorded to compare with.
    """

    seconds: float
    active_s: float
    waiting_s: float
    rate: float
    images: int
    observations: int
    chunks: int
    commands: int
    longest_gap_ms: float
    ticks_missed: int
    stops: dict[str, tuple[int, float]]
    latencies_ms: dict[str, dict[str, float]]
    seam_max: dict[str, float]
    clips: dict[str, int]
    error: ActionError | None
    units: dict[str, str]
    notes: dict[str, Any] = field(default_factory=dict)

    def json(self) -> dict[str, Any]:
        """For `summary.json`."""
        return {
            'seconds': round(self.seconds, 3), 'active_seconds': round(self.active_s, 3),
            'waiting_seconds': round(self.waiting_s, 3),
            'images': self.images, 'observations': self.observations, 'chunks': self.chunks,
            'commands': self.commands, 'commands_per_second': round(self.rate, 3),
            'longest_gap_between_commands_ms': round(self.longest_gap_ms, 2),
            'ticks_missed': self.ticks_missed,
            'holds': {cause: {'count': count, 'seconds': round(seconds, 3)}
                      for cause, (count, seconds) in self.stops.items()},
            'latency_ms': self.latencies_ms,
            'seam_max_per_step': {name: float(f'{v:.4g}') for name, v in self.seam_max.items()},
            'clips': self.clips,
            **({} if self.error is None else {'action_error': self.error.json()}),
            'units': self.units, **self.notes}


def summarize(record: Record, until_ns: int, period_ns: int | None,
              notes: dict[str, Any]) -> Summary:
    """The summary of what was heard from the first command on.

    `period_ns`: of the policy, the time that a recorded action lasts; None: nothing was recorded.
    """
    began_ns = record.began_ns if record.began_ns is not None else until_ns
    spans = record.spans(until_ns)
    waiting = [span for span in spans if span.state == WAITING and span.end_ns > began_ns]
    gaps = _gaps_ns(next(iter(record.commands.values())).arrays()[0], waiting)
    return Summary(
        seconds=max(until_ns - began_ns, 1) / NS_PER_S,
        active_s=sum(span.seconds for span in spans if span.state == ACTIVE),
        waiting_s=sum(min(span.seconds, (span.end_ns - began_ns) / NS_PER_S) for span in waiting),
        images=record.counts['image in'], observations=record.counts['observation'],
        chunks=record.counts['chunk'], commands=record.counts['command'],
        rate=NS_PER_S / float(gaps.mean()) if len(gaps) else 0.0,
        longest_gap_ms=float(gaps.max()) / 1e6 if len(gaps) else 0.0,
        ticks_missed=record.number(PUBLISHER, 'missed ticks'),
        stops=stops(spans, record.spec), latencies_ms=record.latencies(),
        seam_max=dict(zip(record.spec.names, record.seam_max.tolist())),  # noqa: B905 (3.10)
        clips=dict(record.clips()),
        error=None if period_ns is None else action_error(record, period_ns),
        units={d.name: d.unit for d in record.spec.dimensions}, notes=notes)


def action_error(record: Record, period_ns: int) -> ActionError:
    """Every command against the recorded action that was in force at its stamp."""
    if not record.actions:
        return ActionError(0, {}, {}, float('nan'))
    stamps = np.array([stamp for stamp, _ in record.actions], dtype=np.int64)
    actions = np.array([action for _, action in record.actions])
    rms, still, agreement, used = {}, {}, float('nan'), 0
    for i, dimension in enumerate(record.spec.dimensions):
        times, commands = record.commands[dimension.name].arrays()
        index = np.searchsorted(stamps, times, side='right') - 1
        inside = (index >= 0) & (times < stamps[np.maximum(index, 0)] + period_ns)
        if not inside.any():
            continue
        wanted, given = actions[index[inside], i], commands[inside]
        used = max(used, len(np.unique(index[inside])))
        if dimension.kind is Kind.GRIPPER:
            agreement = float(np.mean(np.abs(given - wanted) < 0.5))
            continue
        wanted = wanted * NS_PER_S / period_ns
        rms[dimension.name] = _rms(given - wanted)
        still[dimension.name] = _rms(wanted)
    return ActionError(used, rms, still, agreement)


def table(summary: Summary, files: Sequence[str]) -> RenderableType:
    """The summary for people."""
    rows = labelled('What the run came to')
    for label, text in (*figure_rows(summary), *_error_rows(summary.error, summary.units)):
        rows.add_row(label, text)
    for file in files:
        rows.add_row('file', file)
    return Group(Text(), rows)


def labelled(title: str) -> Table:
    """A table without rows yet: labels and texts."""
    rows = Table(box=box.SIMPLE_HEAD, title=f'[bold]{title}', title_justify='left',
                 show_header=False, pad_edge=False)
    rows.add_column(style='cyan', no_wrap=True)
    rows.add_column()
    return rows


def figure_rows(summary: Summary) -> list[tuple[str, str]]:
    """The figures with their labels."""
    still = max(0.0, summary.seconds - summary.active_s - summary.waiting_s)
    waited = f', waiting {summary.waiting_s:.1f} s' if summary.waiting_s >= 0.05 else ''
    held = [f'{count} x {cause}, {seconds:.1f} s in all'
            for cause, (count, seconds) in summary.stops.items()]
    clipped = ', '.join(f'{name} {count}' for name, count in summary.clips.items() if count)
    rows = [
        ('duration', f'{summary.seconds:.1f} s: moving with a plan {summary.active_s:.1f} s, held '
         f'{still:.1f} s{waited}'),
        ('in', f'{summary.images} camera images, {summary.observations} observations, '
         f'{summary.chunks} action chunks'),
        ('out', f'{summary.commands} commands at {summary.rate:.1f} Hz; longest gap heard '
         f'{summary.longest_gap_ms:.1f} ms; {summary.ticks_missed} ticks missed'),
        ('watchdog holds', '\n'.join(held) or 'none')]
    first = summary.latencies_ms.get('first_command')
    if first:
        rows.append(('latency', f'p50 {first["p50"]:.1f} ms, p99 {first["p99"]:.1f} ms from '
                     'capture to first command'))
    return [*rows, ('largest seam', _largest(summary, summary.seam_max, 'per policy step')),
            ('clipped by limits', clipped or 'nothing')]


def amount(value: float, unit: str, per: str = '') -> str:
    """For people: lengths in mm, angles in mrad but in rad per second, others as they are."""
    if unit == 'm':
        return f'{value * 1e3:.1f} mm{per}'
    if unit == 'rad':
        return f'{value:.2f} rad{per}' if per else f'{value * 1e3:.1f} mrad'
    return f'{value:.2f}'


def group_rms(values: dict[str, float], units: dict[str, str], unit: str) -> float:
    """Length of the error vector over the dimensions of one unit; nan where there are none."""
    chosen = [value for name, value in values.items() if units[name] == unit]
    return float(np.linalg.norm(chosen)) if chosen else float('nan')


def _error_rows(error: ActionError | None, units: dict[str, str]) -> list[tuple[str, str]]:
    if error is None:
        return []
    lines = []
    for what, unit in (('translation', 'm'), ('rotation', 'rad')):
        value = group_rms(error.rms, units, unit)
        if np.isfinite(value):
            still = group_rms(error.still, units, unit)
            lines.append(f'{what} off by {amount(value, unit, "/s")} (rms); standing still: '
                         f'{amount(still, unit, "/s")}')
    if np.isfinite(error.agreement):
        lines.append(f'gripper as recorded {error.agreement:.0%} of the time')
    lines.append(f'[dim]over {error.actions} recorded actions; {NOT_SKILL}: the policy looks up '
                 'its nearest memory')
    return [('commands against\nrecorded actions', '\n'.join(lines))]


def _largest(summary: Summary, values: dict[str, float], per: str) -> str:
    parts = []
    for unit in dict.fromkeys(summary.units.values()):
        named = {name: v for name, v in values.items() if summary.units[name] == unit}
        name = max(named, key=lambda n: named[n])
        parts.append(f'{name} {amount(named[name], unit)}')
    return f'{", ".join(parts)} ({per})'


def _gaps_ns(times: NDArray[np.int64], waiting: Sequence[Span]) -> NDArray[np.int64]:
    """Between two commands, without those in which the control loop waited."""
    kept = np.ones(max(0, len(times) - 1), dtype=bool)
    for span in waiting:
        kept &= (times[:-1] >= span.end_ns) | (times[1:] <= span.begin_ns)
    gaps: NDArray[np.int64] = np.diff(times)[kept]
    return gaps


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _number(value: float) -> float | None:
    return round(value, 4) if np.isfinite(value) else None
