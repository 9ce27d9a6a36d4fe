"""What `vla-ros replay` says on a terminal: verdicts first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from vla_ros.replay.batch import Outcome
from vla_ros.tools.summary import labelled


def show_run(result: Mapping[str, Any], files: Sequence[str]) -> None:
    """Print one run."""
    console = Console(highlight=False)
    about, figures = result['about'], result['figures']
    rows = labelled(f'{about["bag"]}: {about["policy"]} on {about["robot"]}')
    for label, text in (*_verdicts(result), *_rows(figures), ('delay', about['delay'])):
        rows.add_row(label, Text(text))
    machine = result['machine']
    rows.add_row('took', f'{machine["seconds"]:.1f} s, {machine["times_real_time"]:.0f} times '
                 'real time')
    for file in files:
        rows.add_row('file', Text(file))
    console.print(rows)
    if figures['injected']:
        console.print(_faults(figures['injected']))


def show_batch(outcomes: Sequence[Outcome], files: Sequence[str]) -> None:
    """Print a line for each run."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ('run', 'verdict', 'active', 'starved s', 'holds', 'clips', 'p99 ms',
                    'error of hold'):
        table.add_column(heading, justify='left' if heading in ('run', 'verdict') else 'right')
    for outcome in outcomes:
        if outcome.done is None:
            table.add_row(outcome.task.name, Text('not done', style='red'))
            continue
        result = outcome.done.result
        figures = result['figures']
        error = figures['action_error']
        table.add_row(
            outcome.task.name, Text('passed', style='green') if result['passed']
            else Text('failed', style='red'), f'{figures["active_share"]:.0%}',
            f'{figures["starved_s"]:.1f}', str(figures['holds']['total']),
            str(figures['clips']['total']), _number(figures['latency_ms']['first_command']['p99']),
            _number(None if error is None else error['of_hold']))
    console = Console(highlight=False)
    console.print(table)
    for file in files:
        console.print(f'file  {file}')


@contextmanager
def progress(total: int, quiet: bool) -> Iterator[Callable[[Outcome], None]]:
    """A bar on a terminal, lines anywhere else, on stderr."""
    console = Console(stderr=True, quiet=quiet, highlight=False)
    if not console.is_terminal:
        yield lambda outcome: console.print(_line(outcome))
        return
    with Progress(TextColumn('replay'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                  TextColumn('{task.fields[last]}'), console=console) as bar:
        task = bar.add_task('replay', total=total, last='')

        def step(outcome: Outcome) -> None:
            bar.update(task, advance=1, last=_line(outcome))

        yield step


def _line(outcome: Outcome) -> str:
    if outcome.done is None:
        return f'{outcome.task.name}: not done: {outcome.error}'
    verdict = 'passed' if outcome.done.result['passed'] else 'failed'
    return f'{outcome.task.name}: {verdict}{", done before" if outcome.kept else ""}'


def _verdicts(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    gates = result['gates']
    if not gates:
        return [('gates', 'none given')]
    failed = [gate['line'] for gate in gates if not gate['passed']]
    passed = f'{len(gates) - len(failed)} of {len(gates)} passed'
    return [('gates', '\n'.join([passed, *(f'FAILED  {line}' for line in failed)]))]


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    seconds, first = figures['seconds'], figures['latency_ms']['first_command']
    spent = ', '.join(f'{state} {value:.1f} s' for state, value in seconds.items() if value)
    holds = ', '.join(f'{n} x {cause}' for cause, n in figures['holds']['by_cause'].items())
    rows = [('duration', f'{figures["length_s"]:.1f} s: {spent}'),
            ('in', f'{sum(figures["frames"].values())} frames, {figures["inferences"]} '
                   f'inferences, {figures["plans"]} plans'),
            ('out', f'{figures["commands"]} commands'), ('holds', holds or 'none'),
            ('clips', ', '.join(f'{name} {n}' for name, n in figures['clips'][
                'by_limit'].items()) or 'none')]
    if first['count']:
        rows.append(('latency', f'p50 {first["p50"]:.1f}, p95 {first["p95"]:.1f}, p99 '
                     f'{first["p99"]:.1f} ms from capture to first command'))
    error = figures['action_error']
    if error is not None:
        rows.append(('action error', f'{_number(error["of_hold"])} of holding still, '
                     f'{_number(error["of_mean"])} of the mean action, over '
                     f'{error["compared"]} recorded actions'))
    return rows


def _faults(injected: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title='Faults', title_justify='left')
    for heading in ('fault', 'watchdog', 'after', 'active again', 'expected'):
        table.add_column(heading)
    for each in injected:
        reaction = each['reaction'] or f'none, {each["before"]}'
        cause = f': {each["cause"]}' if each['cause'] else ''
        table.add_row(
            each['fault'], Text(reaction + cause), _seconds(each['after_s']),
            _seconds(each['active_again_s']), Text(each['expects']))
    return table


def _seconds(value: float | None) -> str:
    return '-' if value is None else f'{value:.2f} s'


def _number(value: float | None) -> str:
    return '-' if value is None else f'{value:.3g}'
