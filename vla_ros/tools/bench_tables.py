"""The tables that benchmarks print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from vla_ros.tools.measure import PERCENTILES

HEADS = {'p50': 'p50', 'p99': 'p99', 'p999': 'p99.9', 'max': 'max'}


def print_spreads(console: Console, title: str, first: str, rows: Mapping[str, Mapping[str, Any]],
                  counts: Sequence[str] = ()) -> None:
    """One line per row: its name, its `counts` by key, and the percentiles of `spread`, in ms."""
    table = Table(title=title, title_justify='left')
    table.add_column(first)
    for name in (*counts, *(f'{HEADS[p]} [ms]' for p in PERCENTILES)):
        table.add_column(name, justify='right')
    for name, row in rows.items():
        table.add_row(name, *(str(row.get(count, '')) for count in counts),
                      *(f'{row["spread"][p]:.2f}' for p in PERCENTILES))
    console.print(table)


def print_targets(console: Console, targets: Sequence[Mapping[str, Any]]) -> None:
    """Figures beside their limits."""
    table = Table(title='targets (printed, never a test)', title_justify='left')
    for head in ('what', 'measured', 'limit', ''):
        table.add_column(head, justify='left' if head in ('what', '') else 'right')
    for target in targets:
        unit, least = target['unit'], target.get('least', False)
        table.add_row(target['name'], f'{target["value"]:.3g} {unit}',
                      f'{"at least " if least else ""}{target["limit"]:.3g} {unit}',
                      '[green]ok[/green]' if target['met'] else '[red]missed[/red]')
    console.print(table)


def print_machine(console: Console, machine: Mapping[str, Any]) -> None:
    """Where the figures were taken."""
    console.print(f'{machine["cores"]} cores, {machine["cpu"]}, Linux {machine["kernel"]}, '
                  f'Python {machine["python"]}', highlight=False)
