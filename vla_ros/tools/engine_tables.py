"""The tables of `vla-ros bench engine`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vla_ros.tools.bench_tables import print_machine, print_targets

if TYPE_CHECKING:
    from rich.console import Console

Named = Mapping[str, Mapping[str, Any]]
# Heads and where their figures are in a row.
TIMES = (*((head, 'action_ms', key) for head, key in (
    ('p50', 'p50'), ('p95', 'p95'), ('p99', 'p99'), ('p99.9', 'p999'))),
    ('per s', 'actions_per_s', ''), ('age p50', 'action_age_ms', 'p50'))
PARTS = (('vision', 'vision_ms', ''), ('prefill', 'prefill_ms', ''),
         ('token', 'decode_ms_per_token', ''), ('passes', 'passes', ''), ('GB', 'memory_gb', ''),
         ('over floor', 'times_floor', ''), ('faster', 'times_faster', ''))


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Print the figures for people."""
    on, ceilings, settings = figures['machine'], figures['ceilings'], figures['run']
    print_machine(console, on)
    for line in (
            f'{on["gpu"] or "no GPU"}, driver {on["driver"] or "none"}, torch {on["torch"]}, '
            f'triton {on["triton"] or "none"}, transformers {on["transformers"] or "none"}',
            f'copies {ceilings["copy_tb_s"]:.3g} TB/s; {ceilings["precision"]} products '
            f'{ceilings["matmul_tflops"]:.4g} TFLOP/s, with the {settings["prompt_tokens"]} rows '
            f'of the prompt {ceilings["matmul_prefill_tflops"]:.4g}'):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    every = {'transformers': figures['baseline'], **figures['backends']}
    named = {name: row for name, row in every.items() if 'error' not in row}
    title = f'OpenVLA {settings["shape"]}, {settings["weights"]} weights'
    _print(console, f'{title}: ms of an action', named, TIMES)
    _print(console, 'ms of its parts; p50 over the floor; times faster than transformers',
           {name: row for name, row in named.items() if 'times_floor' in row}, PARTS)
    warm = ', '.join(f'{name} {sum(row["warm_up_s"].values()):.1f}' for name, row in named.items())
    console.print(f'Warm-up, not counted, in s: {warm}', highlight=False, soft_wrap=True)
    for name, row in named.items():
        if 'deterministic' in row:
            told = row['deterministic']
            console.print(f'{name}, deterministic: {told["action_ms"]["p50"]:.2f} ms p50, '
                          f'{told["cost_percent"]:+.1f} %', highlight=False, soft_wrap=True)
    for name, row in every.items():
        if 'error' in row:
            console.print(f'{name}: {row["error"]}', highlight=False, markup=False, soft_wrap=True)
    if figures['targets']:
        print_targets(console, figures['targets'])


def _print(console: Console, title: str, rows: Named, columns: Any) -> None:
    from rich.table import Table
    table = Table(title=title, title_justify='left')
    table.add_column('row', no_wrap=True)
    for head, _, _ in columns:
        table.add_column(head, justify='right')
    for name, row in rows.items():
        values = [row.get(key) if not inner else (row.get(key) or {}).get(inner)
                  for _, key, inner in columns]
        table.add_row(name, *('' if value is None else f'{value:.2f}' for value in values))
    console.print(table)
