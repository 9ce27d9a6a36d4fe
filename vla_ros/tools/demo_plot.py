"""Draws the demo: what each sentence came to, and the joints' commands below it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.action_spec import Kind
from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.sim.arm import OPENING
from vla_ros.tools.demo_course import Course, End, Turn
from vla_ros.tools.demo_view import BY_US, MARKS
from vla_ros.tools.plot import COMMAND, FAINT, HELD, INK, SOFT, STYLE
from vla_ros.tools.record import ACTIVE, WAITING, Record
from vla_ros.tools.reel import Pixels, Reel

DONE, FAILED, BAND = '#1f9d55', '#d64545', '#f3f5f8'
COLOURS = {End.DONE: DONE, End.FAILED: FAILED, End.IMPOSSIBLE: FAILED}
WIDTH_IN, ROW_IN, DPI = 14.0, 0.92, 110
LEFT, RIGHT = 0.076, 0.982
SHARE = 0.94  # of its place, that a picture takes
MOST_PICTURES = 8
HEAD_IN, TEXT_IN, FOOT_IN = 0.85, 0.62, 0.55  # title, sentences over the axes, time axis
CHARACTER_IN = 0.075
LEAST = 0.2   # rad, that an axis spans
GAP_S = 0.3   # between two commands; beyond, the robot was at rest


def plot_demo(record: Record, course: Course, reel: Reel, until_ns: int, title: str,
              subtitle: str, file: Path) -> None:
    """Write a PNG: an image at the end of each turn, and the commands with the turns behind."""
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    turns = course.turns
    shown = list(enumerate(turns))[-MOST_PICTURES:]
    pictures = _pictures(reel, [turn for _, turn in shown], until_ns)
    dimensions = record.spec.dimensions
    picture_in = _step(shown) * WIDTH_IN * SHARE * 0.75 if pictures else 0.0
    strip_in = picture_in + TEXT_IN + 0.25 if pictures else 0.0
    height_in = HEAD_IN + strip_in + ROW_IN * len(dimensions) + FOOT_IN
    with pyplot.rc_context(STYLE):
        figure = pyplot.figure(figsize=(WIDTH_IN, height_in), dpi=DPI)
        figure.text(0.018, 1.0 - 0.22 / height_in, title, fontsize=15, weight='bold', va='top')
        figure.text(0.018, 1.0 - 0.52 / height_in, subtitle, fontsize=9.5, color=FAINT, va='top')
        if pictures:
            top = 1.0 - HEAD_IN / height_in
            _strip(figure, shown, pictures, top, picture_in / height_in, height_in)
        grid = figure.add_gridspec(
            len(dimensions), 1, left=LEFT, right=RIGHT, hspace=0.14, bottom=FOOT_IN / height_in,
            top=1.0 - (HEAD_IN + strip_in + 0.15) / height_in)
        _rows(figure, grid, record, course, until_ns)
        figure.savefig(file)
        pyplot.close(figure)


def _pictures(reel: Reel, turns: Sequence[Turn], until_ns: int) -> list[Pixels | None]:
    """Of each turn the newest image before its end."""
    found: list[Pixels | None] = [None] * len(turns)
    for stamp_ns, pixels in reel:
        for i, turn in enumerate(turns):
            if turn.shown_ns <= stamp_ns <= (turn.ended_ns or until_ns):
                found[i] = pixels
    return found if any(picture is not None for picture in found) else []


def _step(shown: Sequence[tuple[int, Turn]]) -> float:
    """Share of the width from one picture to the next."""
    return (RIGHT - LEFT) / max(len(shown), 5)


def _strip(figure: Any, shown: Sequence[tuple[int, Turn]], pictures: Sequence[Pixels | None],
           top: float, height: float, height_in: float) -> None:
    """The images side by side, what was said below each, and what came of it."""
    step = _step(shown)
    for i, ((index, turn), pixels) in enumerate(zip(shown, pictures)):  # noqa: B905 (3.10)
        axis = figure.add_axes((LEFT + i * step, top - height, step * SHARE, height))
        axis.set_xticks([])
        axis.set_yticks([])
        if pixels is not None:
            axis.imshow(pixels, aspect='auto')
        end = turn.end or End.CUT
        symbol, known, colour = MARKS[end][0], end in COLOURS, COLOURS.get(end, FAINT)
        axis.spines[:].set_color(colour if known else '#c9cdd3')
        axis.spines[:].set_linewidth(2.0 if known else 0.8)
        wide = int(step * WIDTH_IN / CHARACTER_IN)
        lines = textwrap.wrap(f'{index + 1}  {turn.cue.sentence}', wide, max_lines=2,
                              placeholder=' …')
        axis.annotate('\n'.join(lines), (0.0, 0.0), (0, -5), xycoords='axes fraction',
                      textcoords='offset points', va='top', fontsize=8.5)
        axis.annotate(f'{symbol} {turn.news}'.strip(), (0.0, 0.0), (0, -31),
                      xycoords='axes fraction', textcoords='offset points', va='top',
                      fontsize=8.5, color=colour, weight='bold' if known else 'normal')


def _rows(figure: Any, grid: Any, record: Record, course: Course, until_ns: int) -> None:
    """One small plot for each dimension."""
    dimensions = record.spec.dimensions
    began_ns = course.turns[0].said_ns if course.turns else record.began_ns or until_ns
    seconds = max(until_ns - began_ns, 1) / NS_PER_S
    first = None
    for i, dimension in enumerate(dimensions):
        axis = figure.add_subplot(grid[i], sharex=first)
        first = first or axis
        axis.set_xlim(0.0, seconds)
        _turns(axis, course, began_ns, until_ns, named=i == 0)
        _held(axis, record, began_ns, until_ns)
        times, values = record.commands[dimension.name].arrays()
        seconds_of = (times - began_ns) / NS_PER_S
        # Where the robot was at rest nothing was commanded: no line is drawn across.
        gaps = np.flatnonzero(np.diff(seconds_of) > GAP_S) + 1
        axis.plot(np.insert(seconds_of, gaps, np.nan), np.insert(values, gaps, np.nan),
                  color=COMMAND, linewidth=1.3, zorder=3)
        low, high = _range(values)
        axis.set_ylim(low - 0.14 * (high - low), high + 0.14 * (high - low))
        axis.locator_params(axis='y', nbins=4)
        name = dimension.name.replace('_', '\n')
        axis.set_ylabel(f'{name}\n[{dimension.unit}]')
        if dimension.kind is Kind.GRIPPER:
            axis.set_ylabel(name)
            axis.set_ylim(-0.15 * OPENING, 1.15 * OPENING)
            axis.set_yticks([0.0, OPENING], ['closed', 'open'])
        axis.yaxis.set_label_coords(-0.04, 0.5)
        axis.spines[['top', 'right']].set_visible(False)
        axis.tick_params(length=0, labelbottom=i == len(dimensions) - 1)
        if i == len(dimensions) - 1:
            axis.set_xlabel('time since the first sentence [s]')


def _range(values: Floats) -> tuple[float, float]:
    """Of an axis: wide enough that noise does not look like motion."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 0.0)
    more = max(0.0, LEAST - (high - low)) / 2
    return low - more, high + more


def _turns(axis: Any, course: Course, began_ns: int, until_ns: int, named: bool) -> None:
    """Every second turn on a band, a line where a task was done; numbers on the first plot."""
    for index, turn in enumerate(course.turns):
        begin = (turn.said_ns - began_ns) / NS_PER_S
        end = ((turn.ended_ns or until_ns) - began_ns) / NS_PER_S
        if index % 2 == 0:
            axis.axvspan(begin, end, color=BAND, linewidth=0, zorder=0)
        axis.axvline(begin, color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
        if named:
            axis.annotate(str(index + 1), (begin, 1.0), (1, 2),
                          xycoords=('data', 'axes fraction'), textcoords='offset points',
                          va='bottom', fontsize=8.5, color=INK, weight='bold')
        if turn.done_ns is not None:
            done = (turn.done_ns - began_ns) / NS_PER_S
            axis.axvline(done, color=DONE, linewidth=1.1, zorder=2)
            if named:
                axis.annotate('✓', (done, 1.0), (0, 2), xycoords=('data', 'axes fraction'),
                              textcoords='offset points', ha='center', va='bottom', fontsize=10,
                              color=DONE, weight='bold')


def _held(axis: Any, record: Record, began_ns: int, until_ns: int) -> None:
    for span in record.spans(until_ns):
        if span.state in (ACTIVE, WAITING) or span.cause.startswith(BY_US):
            continue
        axis.axvspan(max(0.0, (span.begin_ns - began_ns) / NS_PER_S),
                     (span.end_ns - began_ns) / NS_PER_S, color=HELD, alpha=0.55, linewidth=0,
                     zorder=1)
