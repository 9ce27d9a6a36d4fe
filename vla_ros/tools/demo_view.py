"""What a person sees of the demo: sentences with their ticks, the graph's figures, warnings."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from vla_ros.core.action_spec import Kind
from vla_ros.core.types import NS_PER_S
from vla_ros.tools.demo_course import Course, End, Turn
from vla_ros.tools.live_view import (
    WIDTH,
    PlainView,
    Run,
    bar,
    boxed,
    listing,
    plan_left,
    side_by_side,
    state_text,
)
from vla_ros.tools.record import PUBLISHER, Record, Span
from vla_ros.tools.summary import amount

MARKS = {End.DONE: ('✓', 'bold green'), End.FAILED: ('✗', 'bold red'),
         End.IMPOSSIBLE: ('✗', 'bold red'), End.CHANGED: ('↷', 'cyan'),
         End.UNJUDGED: ('?', 'cyan'), End.CUT: ('-', 'bright_black')}
NOW, TO_COME = ('▸', 'bold'), ('·', 'bright_black')
# Causes of a rest that was asked for.
BY_US = ('disabled', 'not enabled', 'no instruction')
BEHIND = 'periods fallen behind'
SETTLED_NS = 2 * NS_PER_S  # after the first sentence: what was counted before is known by then
HEAD_LINES, FIGURES_LINES = 6, 9  # with the blank line between
LEAST_TURNS = 3


class Troubles:
    """What is wrong and not seen in the state of the publisher; at the start nothing is yet."""

    def __init__(self, course: Course, record: Record) -> None:
        self._course, self._record = course, record
        self._before: int | None = None

    def lines(self, now_ns: int) -> list[str]:
        """A line for each."""
        turns = self._course.turns
        if not turns or now_ns < turns[0].said_ns + SETTLED_NS:
            return []
        camera = self._record.troubles.get('camera_node')
        behind = self._record.number('sim_robot', BEHIND)
        if self._before is None:
            self._before = behind
        lines = [f'camera_node: {camera}'] if camera else []
        if behind > self._before:
            lines.append('sim_robot: simulated time has fallen behind: the machine is busy')
        return lines


class TaskView:
    """The live view: draws a picture of what has been heard."""

    def __init__(self, course: Course, record: Record, run: Run, warnings: Sequence[str]) -> None:
        self._course, self._record, self._run = course, record, run
        self._warnings, self._troubles = warnings, Troubles(course, record)

    def picture(self, now_ns: int, width: int, height: int) -> RenderableType:
        """One picture; a part that does not fit into `height` lines is left out."""
        width = min(width, WIDTH)
        warnings = [*self._warnings, *self._troubles.lines(now_ns)]
        room = height - 1 - HEAD_LINES
        warnings = warnings[:max(0, room - 1)]
        room -= len(warnings)
        figures = room >= FIGURES_LINES + LEAST_TURNS
        room -= FIGURES_LINES if figures else 0
        parts: list[RenderableType] = [self._head(now_ns, width)]
        if room > 0:
            parts.append(turns_table(self._course, now_ns, room, width))
        if figures:
            parts += [Text(), self._figures(now_ns)]
        return Group(*parts, *(Text(f'! {line}', 'yellow', no_wrap=True, overflow='ellipsis')
                               for line in warnings))

    def _head(self, now_ns: int, width: int) -> RenderableType:
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style='cyan', no_wrap=True, min_width=11)
        rows.add_column(no_wrap=True, overflow='ellipsis')
        cells = max(10, width - 33)
        record, turns = self._record, self._course.turns
        sentence, time = Text('none yet', 'bright_black'), bar(0.0, cells, 'green')
        if self._course.laying_out:
            sentence = Text('a new table is being laid out', 'bright_black')
        elif turns:
            turn = turns[-1]
            sentence = Text(f'“{turn.cue.sentence}”', 'bold')
            if turn.done_ns is not None:
                sentence = Text('✓ ', 'bold green') + sentence
            passed = turn.seconds(now_ns)
            time = bar(passed / turn.cue.limit_s, cells, 'green') + (
                f' {min(passed, turn.cue.limit_s):4.1f} of {turn.cue.limit_s:g} s')
        rows.add_row('instruction', sentence)
        rows.add_row('time on it', time)
        rows.add_row('publisher', state_text(record, self._run, record.spans(now_ns)))
        rows.add_row('plan left', plan_left(record, self._run, now_ns, cells))
        return boxed(rows, self._run, width)

    def _figures(self, now_ns: int) -> RenderableType:
        record, known = self._record, self._record.latencies()
        rates = listing('rates', 'Hz', 'total')
        for stream, name in (('command', 'commands'), ('observation', 'observations'),
                             ('chunk', 'action chunks')):
            rates.add_row(name, f'{record.rate(stream, now_ns):.1f}', str(record.counts[stream]))
        rates.add_row('ticks missed', '', str(record.number(PUBLISHER, 'missed ticks')))
        times = listing('latency, ms', 'p50', 'p99')
        for stage, name in (('first_command', 'capture → command'), ('infer', 'policy, inference')):
            found = known.get(stage)
            times.add_row(name, *(f'{found[p]:.1f}' if found else '-' for p in ('p50', 'p99')))
        seams = listing('seams', 'now', 'largest')
        seams.add_row('joints', *seam_amounts(record))
        return side_by_side(rates, Group(times, Text(), seams))


class TaskLines(PlainView):
    """Lines for where there is no terminal: what is said and what comes of it, and the figures."""

    def __init__(self, console: Console, course: Course, record: Record, run: Run) -> None:
        super().__init__(console, record, run)
        self._course, self._troubles = course, Troubles(course, record)
        self._said = self._done = self._ended = 0
        self._told_of: set[str] = set()

    def update(self, now_ns: int) -> None:
        turns = self._course.turns
        for index, turn in enumerate(turns):
            if index >= self._said:
                self._said += 1
                self.tell(turn.said_ns, f'“{turn.cue.sentence}”')
            if index >= self._ended and turn.end is not None:
                self._ended += 1
                mark, _ = MARKS[turn.end]
                self.tell(turn.ended_ns or now_ns, f'{mark} {turn.news}: “{turn.cue.sentence}”')
        for line in self._troubles.lines(now_ns):
            if line not in self._told_of:
                self._told_of.add(line)
                self.tell(now_ns, f'! {line}')
        super().update(now_ns)

    def worth_a_line(self, span: Span) -> bool:
        return not span.cause.startswith(BY_US)


def turns_table(course: Course, now_ns: int, room: int, width: int) -> Table:
    """The sentences in order, at most `room` of them around the one now, with what came of each."""
    rows = Table.grid(padding=(0, 1))
    rows.add_column(width=1)
    rows.add_column(no_wrap=True, overflow='ellipsis', width=max(10, width - 24))
    rows.add_column(no_wrap=True, width=18)
    cues, turns = course.script.cues, course.turns
    first = min(max(0, len(turns) - 1 - room // 2), max(0, len(cues) - room))
    for index in range(first, min(len(cues), first + room)):
        turn = turns[index] if index < len(turns) else None
        (mark, style), news = _shown(turn, now_ns)
        rows.add_row(Text(mark, style), Text(cues[index].sentence, _style(turn)),
                     Text(news, style))
    return rows


def seam_amounts(record: Record) -> tuple[str, str]:
    """The largest step of a joint from one plan to the next: at the last one, and so far."""
    joints = [i for i, d in enumerate(record.spec.dimensions) if d.kind is not Kind.GRIPPER]
    unit = record.spec.dimensions[joints[0]].unit
    now = '-' if record.seam is None else amount(float(record.seam[joints].max()), unit)
    return now, amount(float(record.seam_max[joints].max()), unit)


def _shown(turn: Turn | None, now_ns: int) -> tuple[tuple[str, str], str]:
    if turn is None:
        return TO_COME, ''
    if turn.end is not None:
        return MARKS[turn.end], turn.news
    if turn.done_ns is not None:
        return MARKS[End.DONE], f'{turn.took_s:.1f} s'
    return NOW, f'{turn.seconds(now_ns):.1f} s'


def _style(turn: Turn | None) -> str:
    if turn is None:
        return 'bright_black'
    return 'bold' if turn.end is None else ''
