"""Draws a run: the commands over the recorded actions, one small plot for each dimension."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_spec import Dimension, Kind
from vla_ros.core.types import NS_PER_S
from vla_ros.tools.record import ACTIVE, WAITING, Record, Span, cause_name
from vla_ros.tools.summary import ActionError

INK, SOFT, RECORDED, COMMAND, HELD = '#22262b', '#8a9099', '#b4bac2', '#1769c4', '#f6d79b'
HELD_INK, FAINT = '#96691a', '#555c66'
STYLE: Any = {'font.family': 'DejaVu Sans', 'font.size': 9, 'axes.edgecolor': '#c9cdd3',
              'axes.labelcolor': INK, 'text.color': INK, 'xtick.color': SOFT, 'ytick.color': SOFT}
LABELS = {'dx': 'x', 'dy': 'y', 'dz': 'z', 'droll': 'roll', 'dpitch': 'pitch', 'dyaw': 'yaw'}
SCALES = {'m': (1e3, 'mm/s'), 'rad': (1.0, 'rad/s')}
WIDTH_IN, ROW_IN, DPI = 14.0, 1.18, 110
PLOT_IN = WIDTH_IN * 0.84
CHARACTER_IN = 0.060  # width of a character of a sentence, on average


def plot(record: Record, error: ActionError, until_ns: int, period_ns: int, title: str,
         subtitle: str, file: Path) -> None:
    """Write a PNG. `period_ns`: of the policy, the time that a recorded action lasts."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    began_ns = record.began_ns if record.began_ns is not None else until_ns
    seconds = max(until_ns - began_ns, 1) / NS_PER_S
    dimensions = record.spec.dimensions
    with pyplot.rc_context(STYLE):
        figure, axes = pyplot.subplots(
            len(dimensions), 1, sharex=True, squeeze=False,
            figsize=(WIDTH_IN, ROW_IN * len(dimensions) + 2.2), dpi=DPI)
        figure.subplots_adjust(left=0.072, right=0.915, top=0.84, bottom=0.06, hspace=0.16)
        for i, (axis, dimension) in enumerate(zip(axes[:, 0], dimensions)):  # noqa: B905 (3.10)
            _held(axis, record.spans(until_ns), began_ns)
            _dimension(axis, record, i, dimension, began_ns, period_ns)
            _error(axis, error, dimension)
            axis.set_xlim(0.0, seconds)
        axes[-1, 0].set_xlabel('time since the first command [s]')
        axes[0, 0].annotate(
            'rms error\n(of standing\nstill)', (1.0, 1.0), (8, 6), xycoords='axes fraction',
            textcoords='offset points', va='bottom', fontsize=8, color=FAINT)
        _how_long(axes[0, 0], record.spans(until_ns), began_ns, seconds)
        _sentences(axes[0, 0], record, began_ns, seconds)
        _heading(figure, axes[0, 0], record, until_ns, title, subtitle)
        figure.align_ylabels()
        figure.savefig(file)
        pyplot.close(figure)


def _dimension(axis: Any, record: Record, index: int, dimension: Dimension, began_ns: int,
               period_ns: int) -> None:
    gripper = dimension.kind is Kind.GRIPPER
    scale, unit = (1.0, '') if gripper else SCALES.get(dimension.unit, (1.0, dimension.unit))
    for i, (times, values) in enumerate(_pieces(record, index, period_ns)):
        values = values * scale / (1.0 if gripper else period_ns / NS_PER_S)
        axis.stairs(values, (times - began_ns) / NS_PER_S, baseline=None, color=RECORDED,
                    linewidth=3.2, label='recorded action' if i == 0 else None, zorder=2)
    times, values = record.commands[dimension.name].arrays()
    axis.plot((times - began_ns) / NS_PER_S, values * scale, color=COMMAND, linewidth=1.3,
              label='command', zorder=3)
    if gripper:
        axis.set_ylim(-0.15, 1.15)
        axis.set_yticks([0, 1], ['closed', 'open'])
    else:
        axis.axhline(0.0, color='#dfe2e6', linewidth=0.8, zorder=1)
        axis.margins(y=0.12)
        axis.locator_params(axis='y', nbins=4)
    name = LABELS.get(dimension.name, dimension.name)
    axis.set_ylabel(f'{name}\n[{unit}]' if unit else name)
    axis.spines[['top', 'right']].set_visible(False)
    axis.tick_params(length=0)


def _pieces(record: Record, index: int, period_ns: int) -> list[tuple[Any, Any]]:
    """The recorded actions without gaps: edges int64 [n + 1] and values [n] of each piece."""
    if not record.actions:
        return []
    stamps = np.array([stamp for stamp, _ in record.actions], dtype=np.int64)
    values = np.array([action[index] for _, action in record.actions])
    cuts = np.flatnonzero(np.diff(stamps) > period_ns * 3 // 2) + 1
    return [(np.append(times, times[-1] + period_ns), part)
            for times, part in zip(np.split(stamps, cuts),  # noqa: B905 (3.10)
                                   np.split(values, cuts))]


def _held(axis: Any, spans: Sequence[Span], began_ns: int) -> None:
    for span in spans:
        if span.state not in (ACTIVE, WAITING):
            axis.axvspan((span.begin_ns - began_ns) / NS_PER_S, (span.end_ns - began_ns) / NS_PER_S,
                         color=HELD, alpha=0.55, linewidth=0, zorder=0)


def _how_long(axis: Any, spans: Sequence[Span], began_ns: int, seconds: float) -> None:
    for span in spans:
        room_in = span.seconds / seconds * PLOT_IN
        if span.state in (ACTIVE, WAITING) or room_in < CHARACTER_IN * 8:
            continue
        middle = (span.begin_ns + span.end_ns) / 2
        axis.annotate(f'{span.seconds:.1f} s', ((middle - began_ns) / NS_PER_S, 0.97),
                      xycoords=('data', 'axes fraction'), ha='center', va='top', fontsize=7.5,
                      color=HELD_INK)


def _error(axis: Any, error: ActionError, dimension: Dimension) -> None:
    """How far the commands were off and, in brackets, what standing still would have had."""
    if dimension.name in error.rms:
        scale, _ = SCALES.get(dimension.unit, (1.0, ''))
        digits = 0 if scale > 1.0 else 2
        rms, still = error.rms[dimension.name] * scale, error.still[dimension.name] * scale
        text = f'{rms:.{digits}f}\n({still:.{digits}f})'
    elif dimension.kind is Kind.GRIPPER and np.isfinite(error.agreement):
        text = f'{error.agreement:.0%} as\nrecorded'
    else:
        return
    axis.annotate(text, (1.0, 0.5), (8, 0), xycoords='axes fraction', textcoords='offset points',
                  va='center', fontsize=8.5, color=FAINT, linespacing=1.5)


def _sentences(axis: Any, record: Record, began_ns: int, seconds: float) -> None:
    """Each instruction above the stretch of time that it was in force."""
    starts = [(time_ns - began_ns) / NS_PER_S for time_ns, _ in record.sentences]
    for start, end, (_, text) in zip(starts, [*starts[1:], seconds],  # noqa: B905 (3.10)
                                     record.sentences):
        start = max(start, 0.0)
        room_in = (end - start) / seconds * PLOT_IN
        if start >= seconds or room_in < CHARACTER_IN * 8:
            continue
        lines = textwrap.wrap(text, max(8, int(room_in / CHARACTER_IN)), max_lines=4,
                              placeholder=' …')
        axis.annotate('\n'.join(lines), (start, 1.0), (3, 6), xycoords=('data', 'axes fraction'),
                      textcoords='offset points', va='bottom', fontsize=8, style='italic')
        axis.annotate('', (start, 1.0), (start, 1.28), xycoords=('data', 'axes fraction'),
                      textcoords=('data', 'axes fraction'),
                      arrowprops={'arrowstyle': '-', 'color': SOFT, 'linewidth': 0.8})


def _heading(figure: Any, axis: Any, record: Record, until_ns: int, title: str,
             subtitle: str) -> None:
    from matplotlib.patches import Patch

    figure.text(0.018, 0.975, title, fontsize=15, weight='bold', va='top')
    figure.text(0.018, 0.945, subtitle, fontsize=9.5, color=FAINT, va='top')
    handles, labels = axis.get_legend_handles_labels()
    causes = dict.fromkeys(cause_name(span.cause, record.spec) for span in record.spans(until_ns)
                           if span.state not in (ACTIVE, WAITING))
    if causes:
        handles.append(Patch(color=HELD, alpha=0.55))
        labels.append(f'watchdog holds: {", ".join(causes)}')
    if handles:
        figure.legend(handles, labels, loc='upper right', bbox_to_anchor=(0.99, 0.985), ncols=3,
                      frameon=False, fontsize=9.5)
