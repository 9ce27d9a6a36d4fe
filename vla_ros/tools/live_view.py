"""What a person sees while the graph runs: a live view on a terminal, lines anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from vla_ros.core.action_spec import Dimension, Kind
from vla_ros.core.types import NS_PER_S
from vla_ros.tools.record import ACTIVE, FAULT, PUBLISHER, WAITING, Record, Span, stops
from vla_ros.tools.summary import amount

STREAMS = {'image in': 'camera images', 'observation': 'observations',
           'chunk': 'action chunks', 'command': 'commands'}
STAGES = {'capture_to_receipt': 'capture → received', 'convert': 'decode, resize',
          'queue': 'wait for engine', 'preprocess': 'preprocess', 'infer': 'infer',
          'merge': 'merge', 'tick_wait': 'wait for tick',
          'first_command': 'capture → command'}
COLOURS = {ACTIVE: 'green', WAITING: 'bright_black', 'holding': 'yellow', FAULT: 'red'}
LINE_S = 2.0       # between two plain lines
HISTORY = 200      # commands in a sparkline: 4 s at 50 Hz
SPARK_CELLS = 25
BARS = '▁▂▃▄▅▆▇█'
WIDTH = 96


@dataclass(frozen=True)
class Run:
    """What is being shown: how long it takes, how long a whole plan is, which nodes run.

    `source`: what the first command is waited for from.
    """

    title: str
    seconds: float
    plan_s: float
    nodes: tuple[str, ...]
    source: str = 'the recording'


class View(Protocol):
    """Shows a record. A context manager; `update` is called a few times in a second."""

    def __enter__(self) -> View: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...
    def update(self, now_ns: int) -> None: ...


class LiveView:
    """Redraws in place. Draws only when told to: no thread of its own.

    `picture` draws: time in nanoseconds, width and height of the terminal in, one picture out.
    """

    def __init__(self, console: Console, picture: Callable[[int, int, int], RenderableType]
                 ) -> None:
        self._console, self._picture = console, picture
        self._live = Live(console=console, auto_refresh=False, transient=True,
                          redirect_stderr=False, vertical_overflow='crop')

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._live.stop()

    def update(self, now_ns: int) -> None:
        size = self._console.size
        self._live.update(self._picture(now_ns, size.width, size.height), refresh=True)


class PlainView:
    """A line every two seconds and one whenever the state of the control loop changes."""

    def __init__(self, console: Console, record: Record, run: Run) -> None:
        self._console, self._record, self._run = console, record, run
        self._next_ns = 0
        self._told = 0

    def __enter__(self) -> PlainView:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        pass

    def update(self, now_ns: int) -> None:
        spans = self._record.spans(now_ns)
        for span in filter(self.worth_a_line, spans[self._told:]):
            self.tell(span.begin_ns, span.state + (f': {span.cause}' if span.cause else ''))
        self._told = len(spans)
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + round(LINE_S * NS_PER_S)
            self._print(self._line(now_ns))

    def worth_a_line(self, span: Span) -> bool:
        """Whether a state of the control loop is told."""
        return True

    def tell(self, time_ns: int, what: str) -> None:
        """A line of its own for something that has happened."""
        self._print(f'{self._passed(time_ns):5.1f} s  {what}')

    def _line(self, now_ns: int) -> str:
        silent = silent_nodes(self._record, self._run)
        if silent or self._record.began_ns is None:
            return f'starting {silent or self._run.source}'
        rates = ', '.join(f'{name} {self._record.rate(stream, now_ns):.1f} Hz'
                          for stream, name in STREAMS.items())
        first = self._record.latencies().get('first_command')
        latency = f'; to command p50 {first["p50"]:.1f} p99 {first["p99"]:.1f} ms' if first else ''
        sentence = f'; "{self._record.sentence}"' if self._record.sentence else ''
        return f'{self._passed(now_ns):5.1f} s  {rates}{latency}{sentence}'

    def _passed(self, time_ns: int) -> float:
        began_ns = self._record.began_ns
        return 0.0 if began_ns is None else max(0.0, (time_ns - began_ns) / NS_PER_S)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def frame(record: Record, run: Run, now_ns: int, width: int, height: int) -> RenderableType:
    """One picture of the live view; a part that does not fit into `height` lines is left out."""
    spans = record.spans(now_ns)
    held = stops(spans, record.spec)
    parts: list[tuple[int, RenderableType]] = [
        (6, _head(record, run, spans, now_ns, min(width, WIDTH))),
        (10, side_by_side(_rates(record, now_ns), _latencies(record))),
        (3 + max(1, len(held)), Group(Text(), _holds(held))),
        (3 + record.spec.size, Group(Text(), _dimensions(record)))]
    shown, left = [], height - 1
    for lines, part in parts:
        left -= lines
        if left >= 0:
            shown.append(part)
    return Group(*shown)


def silent_nodes(record: Record, run: Run) -> str:
    """The nodes that have not spoken yet."""
    return ', '.join(name for name in run.nodes if name not in record.statuses)


def _head(record: Record, run: Run, spans: Sequence[Span], now_ns: int,
          width: int) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style='cyan', no_wrap=True, min_width=11)
    rows.add_column(no_wrap=True, overflow='ellipsis')
    began_ns = record.began_ns
    passed = 0.0 if began_ns is None else (now_ns - began_ns) / NS_PER_S
    cells = max(10, width - 33)
    rows.add_row('instruction', Text(f'“{record.sentence}”' if record.sentence else 'none yet',
                                     style='bold'))
    rows.add_row('watchdog', state_text(record, run, spans))
    rows.add_row('run', _timeline(spans, began_ns, run.seconds, now_ns, cells)
                 + Text(f' {min(passed, run.seconds):4.1f} of {run.seconds:g} s'))
    rows.add_row('plan left', plan_left(record, run, now_ns, cells))
    return boxed(rows, run, width)


def boxed(rows: RenderableType, run: Run, width: int) -> Panel:
    """Rows in a frame with the title of the run."""
    return Panel(rows, title=f'[bold]{run.title}', title_align='left', box=box.ROUNDED,
                 border_style='bright_black', width=width)


def plan_left(record: Record, run: Run, now_ns: int, cells: int) -> Text:
    """How much of the plan is still to come, as a bar and in seconds."""
    left_s = 0.0
    if record.plan is not None:
        left_s = min(max(0.0, (record.plan.end_ns - now_ns) / NS_PER_S), run.plan_s)
    return bar(left_s / run.plan_s, cells, 'blue') + f' {left_s:4.2f} of {run.plan_s:g} s'


def bar(share: float, cells: int, colour: str) -> Text:
    """A share from 0 to 1 of a row of cells."""
    full = round(cells * min(1.0, share))
    return Text('█' * full, style=colour) + Text('░' * (cells - full), 'dim')


def state_text(record: Record, run: Run, spans: Sequence[Span]) -> Text:
    """What the control loop does, for how long, and why."""
    silent = silent_nodes(record, run)
    if silent or not spans:
        return Text(f'starting {silent}', style='bright_black')
    span = spans[-1]
    colour = COLOURS.get(span.state, 'red')
    text = Text(f'● {span.state}', style=f'bold {colour}')
    cause = f'  {span.cause}' if span.cause else ''
    return text + Text(f' {span.seconds:.1f} s{cause}', style=colour)


def _timeline(spans: Sequence[Span], began_ns: int | None, seconds: float, now_ns: int,
              cells: int) -> Text:
    """The run as a bar, each cell in the colour of the state at its middle."""
    text = Text()
    for cell in range(cells):
        time_ns = (began_ns or now_ns) + round((cell + 0.5) * seconds / cells * NS_PER_S)
        state = next((s.state for s in spans if s.begin_ns <= time_ns < s.end_ns), '')
        if began_ns is None or not state:
            text.append('░', 'dim')
        else:
            text.append('█' if state == ACTIVE else '▒', COLOURS.get(state, 'red'))
    return text


def _rates(record: Record, now_ns: int) -> Table:
    rows = listing('rates', 'Hz', 'total')
    for stream, name in STREAMS.items():
        rows.add_row(name, f'{record.rate(stream, now_ns):.1f}', str(record.counts[stream]))
    rows.add_row('', '', '')
    rows.add_row('ticks missed', '', str(record.number(PUBLISHER, 'missed ticks')))
    rows.add_row('commands clipped', '', str(sum(record.clips().values())))
    return rows


def _latencies(record: Record) -> Table:
    rows = listing('latency, ms', 'p50', 'p99')
    known = record.latencies()
    for stage, name in STAGES.items():
        found = known.get(stage)
        style = 'bold' if stage == 'first_command' else ''
        rows.add_row(name, *(f'{found[p]:.1f}' if found else '-' for p in ('p50', 'p99')),
                     style=style)
    return rows


def _holds(held: Mapping[str, tuple[int, float]]) -> Table:
    rows = listing('watchdog holds', 'times', 'seconds')
    for cause, (count, seconds) in held.items():
        rows.add_row(Text(cause, style='yellow'), str(count), f'{seconds:.1f}')
    if not held:
        rows.add_row('none yet', '', '')
    return rows


def _dimensions(record: Record) -> Table:
    rows = listing('dimension', 'command', 'last 4 s', 'seam', 'largest seam', 'clips')
    clips = record.clips()
    for i, dimension in enumerate(record.spec.dimensions):
        history = record.commands[dimension.name].newest(HISTORY)
        flow = dimension.kind is not Kind.GRIPPER
        seam = '-' if record.seam is None else amount(float(record.seam[i]), dimension.unit)
        rows.add_row(
            dimension.name, _now(history, dimension),
            Text(sparkline(history, _scale(record, dimension), flow), 'green'),
            seam, amount(float(record.seam_max[i]), dimension.unit), str(clips[dimension.name]))
    return rows


def _now(history: Sequence[float], dimension: Dimension) -> str:
    if not history:
        return '-'
    return amount(history[-1], dimension.unit, '' if dimension.kind is Kind.GRIPPER else '/s')


def _scale(record: Record, dimension: Dimension) -> float:
    """The largest command of late in any dimension of the same unit."""
    same = [record.commands[d.name].newest(HISTORY) for d in record.spec.dimensions
            if d.unit == dimension.unit]
    return max((abs(value) for values in same for value in values), default=0.0)


def sparkline(values: Sequence[float], scale: float, signed: bool) -> str:
    """The values as one row of block characters; a signed zero is in the middle."""
    size = HISTORY // SPARK_CELLS
    first = len(values) % size  # what fills no cell is left out at the old end
    cells = np.asarray(values[first:], dtype=np.float64).reshape(-1, size).mean(axis=1)
    shares = cells / scale if scale else np.zeros(len(cells))
    if signed:
        shares = (shares + 1.0) / 2.0
    levels = np.clip(np.round(shares * (len(BARS) - 1)), 0, len(BARS) - 1).astype(int)
    return ''.join(BARS[level] for level in levels).rjust(SPARK_CELLS)


def side_by_side(left: RenderableType, right: RenderableType) -> Table:
    """Two parts beside each other."""
    both = Table.grid(padding=(0, 4))
    both.add_row(left, right)
    return both


def listing(first: str, *others: str) -> Table:
    """A table with these headings: names at the left, numbers at the right."""
    rows = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style='cyan', padding=(0, 1),
                 show_edge=False)
    rows.add_column(first, no_wrap=True)
    for name in others:
        rows.add_column(name, justify='right', no_wrap=True)
    return rows
