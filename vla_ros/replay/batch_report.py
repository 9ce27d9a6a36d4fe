"""The report over a batch: one table, a line for each run, with links to their own reports."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_ros.replay.batch import Outcome
from vla_ros.replay.report import NAME, STATES, page_part

COLUMNS = (('active', 'active_share', '{:.0%}'), ('starved s', 'starved_s', '{:.1f}'),
           ('holds', 'holds.total', '{}'), ('faults', 'faults', '{}'),
           ('clips', 'clips.total', '{}'), ('dropped', 'drops.total', '{}'),
           ('p50 ms', 'latency_ms.first_command.p50', '{:.0f}'),
           ('p99 ms', 'latency_ms.first_command.p99', '{:.0f}'),
           ('error of hold', 'action_error.of_hold', '{:.2f}'),
           ('error of mean', 'action_error.of_mean', '{:.2f}'))


def write_batch_report(outcomes: Sequence[Outcome], file: Path) -> Path:
    """Write the table of a batch; every run that was done has its own report already."""
    from vla_ros.replay.figures import flat
    failed = [o for o in outcomes if o.done is None or not o.done.result['passed']]
    rows = []
    for outcome in outcomes:
        if outcome.done is None:
            rows.append(f'<tr><td>{html.escape(outcome.task.name)}</td><td class="bad">not done: '
                        f'{html.escape(outcome.error)}</td>{"<td></td>" * (len(COLUMNS) + 1)}</tr>')
            continue
        figures = outcome.done.result['figures']
        values = flat(figures)
        link = html.escape(os.path.relpath(outcome.task.folder / NAME, file.parent))
        cells = ''.join(f'<td class="n">{_text(values.get(name), form)}</td>'
                        for _, name, form in COLUMNS)
        rows.append(f'<tr><td><a href="{link}">{html.escape(outcome.task.name)}</a></td>'
                    f'<td>{_verdict(outcome.done.result)}</td><td>{_strip(figures)}</td>'
                    f'{cells}</tr>')
    verdict = (f'<p class="verdict bad">✗ {len(failed)} of {len(outcomes)} runs failed</p>'
               if failed else f'<p class="verdict good">✓ {len(outcomes)} runs passed</p>')
    heads = ''.join(f'<th class="n">{name}</th>' for name, _, _ in COLUMNS)
    page = f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,"><title>{len(outcomes)} replays</title>
<style>{page_part('report.css')} a {{ color: var(--a); }}</style></head><body>
<h1>{len(outcomes)} replays</h1>{verdict}
<div class="scroll"><table><tr><th>run</th><th>verdict</th><th>states</th>{heads}</tr>
{''.join(rows)}</table></div>
<p class="dim">Two runs side by side: vla-ros report RUN RUN</p>
</body></html>
"""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page)
    return file


def _verdict(result: dict[str, Any]) -> str:
    failed = [gate['line'] for gate in result['gates'] if not gate['passed']]
    if failed:
        return f'<span class="bad">failed: {html.escape(failed[0])}</span>'
    return '<span class="good">passed</span>' if result['gates'] else 'no gates'


def _strip(figures: dict[str, Any]) -> str:
    """The share of each state as a coloured strip."""
    length = max(figures['length_s'], 1e-9)
    parts, x = [], 0.0
    for state, seconds in figures['seconds'].items():
        width = 120 * seconds / length
        colour = STATES.get(state, '#8c959f')
        if width > 0:
            parts.append(f'<rect x="{x:.2f}" width="{width:.2f}" height="12" fill="{colour}">'
                         f'<title>{state} {seconds:.1f} s</title></rect>')
        x += width
    return f'<svg width="120" height="12" role="img">{"".join(parts)}</svg>'


def _text(value: Any, form: str) -> str:
    return '–' if value is None else form.format(value)
