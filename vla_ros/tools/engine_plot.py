"""Draws what `vla-ros bench engine` measured: the time of an action, and what it is spent on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ABOUT = """
Draws the JSON of `vla-ros bench engine`: the median time of an action beside transformers, and its
parts beside the floor. Left out are rows that failed, `baseline`, and those whose parts do not
simply follow one another: `jacobi` and `actionflow+overlap`.
"""
INK, SOFT, PLAIN = '#22262b', '#8a9099', '#b4bac2'
PARTS = (('vision', '#ddaa33'), ('prompt', '#4477aa'), ('tokens, one by one', '#66ccee'),
         ('prompt and tokens in one pass', '#228833'))
LEFT_OUT = ('baseline', 'jacobi')
STYLE: Any = {'font.family': 'DejaVu Sans', 'font.size': 9, 'axes.edgecolor': '#c9cdd3',
              'axes.labelcolor': INK, 'text.color': INK, 'xtick.color': SOFT, 'ytick.color': INK}


@dataclass(frozen=True)
class Bar:
    """One row: its median, what follows the bar, its parts in the order of PARTS, its floor; ms."""

    name: str
    action_ms: float
    note: str
    parts: tuple[float, ...] = ()
    floor_ms: float = 0.0


def plot_engine(figures: Mapping[str, Any], picture: Path) -> None:
    """Write a PNG. Raises ValueError with one line where a figure is missing."""
    try:
        bars, title = bars_of(figures), _title(figures)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError('not the figures of vla-ros bench engine '
                         f'({" ".join(repr(error).split())})') from None
    if not any(bar.parts for bar in bars):
        raise ValueError('no row with parts to draw; measure graph or actionflow')
    _draw(bars, title, picture)


def bars_of(figures: Mapping[str, Any]) -> list[Bar]:
    """The slowest first."""
    baseline = figures['baseline']
    bars = [] if 'error' in baseline else [
        Bar(f'transformers {baseline["precision"]}', baseline['action_ms']['p50'],
            f'{baseline["action_ms"]["p50"]:.0f} ms')]
    tokens = int(figures['run']['action_tokens'])
    for row in figures['backends'].values():
        if 'error' in row or row['backend'] in LEFT_OUT or '+' in row['backend']:
            continue
        packed, p50 = row.get('packed_ms'), float(row['action_ms']['p50'])
        parts = (row['vision_ms'], 0.0, 0.0, packed) if packed else (
            row['vision_ms'], row['prefill_ms'], (tokens - 1) * row['decode_ms_per_token'], 0.0)
        note = f'{p50:.1f} ms, {row["actions_per_s"]:.0f} a second'
        if row['lag']:
            note += f', {row["action_age_ms"]["p50"]:.0f} ms old'
        bars.append(Bar(f'{row["backend"]} {row["precision"]}', p50, note,
                        tuple(map(float, parts)), float(row['floor_ms'])))
    return sorted(bars, key=lambda bar: -bar.action_ms)


def _title(figures: Mapping[str, Any]) -> str:
    run, on = figures['run'], figures['machine']
    return (f'One action of OpenVLA {run["shape"]}, {run["weights"]} weights, '
            f'{run["prompt_tokens"]} tokens of prompt and {run["action_tokens"]} of action, '
            f'{on["gpu"] or on["cpu"]}: median')


def _draw(bars: Sequence[Bar], title: str, picture: Path) -> None:
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    places = range(len(bars) - 1, -1, -1)
    most = max(bar.action_ms for bar in bars if bar.parts)
    with pyplot.rc_context(STYLE):
        figure, (whole, split) = pyplot.subplots(
            1, 2, figsize=(11.0, 1.5 + 0.36 * len(bars)), layout='constrained', sharey=True,
            width_ratios=(1.0, 2.2))
        for place, bar in zip(places, bars, strict=True):
            whole.barh(place, bar.action_ms, 0.62, color=INK if bar.parts else PLAIN)
            if not bar.parts:
                split.text(0.01 * most, place, f'{bar.note}; parts not measured', va='center',
                           color=SOFT)
                continue
            left = 0.0
            for (name, colour), part in zip(PARTS, bar.parts, strict=True):
                if part:
                    split.barh(place, part, 0.62, left=left, color=colour, label=name)
                left += part
            split.plot([bar.floor_ms] * 2, [place - 0.42, place + 0.42], color=INK, linewidth=1.6,
                       label='floor of this machine')
            split.text(max(left, bar.action_ms) + 0.012 * most, place, bar.note, va='center')
        whole.set(title='as a whole', xlabel='ms')
        split.set(title='its parts', xlabel='ms', xlim=(0.0, 1.35 * most))
        whole.set_yticks(list(places), [bar.name for bar in bars])
        for axis in (whole, split):
            axis.spines[['top', 'right', 'left']].set_visible(False)
            axis.tick_params(length=0)
            axis.grid(axis='x', alpha=0.25)
            axis.set_axisbelow(True)
        labelled = dict(zip(*split.get_legend_handles_labels()[::-1], strict=True))
        names = [name for name, _ in PARTS if name in labelled] + ['floor of this machine']
        figure.legend([labelled[name] for name in names], names, loc='outside lower center',
                      ncols=len(names), frameon=False)
        figure.suptitle(title, x=0.008, ha='left', fontsize=10)
        figure.savefig(picture, dpi=110)
        pyplot.close(figure)


def add_parser(benches: Any) -> None:
    """Add `engine-plot` to the subcommands of `vla-ros bench`."""
    parser = benches.add_parser('engine-plot', help='draw what bench engine measured',
                                description=ABOUT)
    parser.add_argument('json', type=Path, metavar='JSON', help='written by bench engine --json')
    parser.add_argument('--out', type=Path, default=Path('engine.png'), metavar='FILE')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Raises ValueError with one line."""
    from vla_ros.tools.writable import check_writable
    check_writable(args.out, '.png')
    try:
        figures = json.loads(args.json.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f'{args.json}: not a readable JSON file '
                         f'({" ".join(str(error).split())})') from None
    try:
        plot_engine(figures, args.out)
    except ValueError as error:
        raise ValueError(f'{args.json}: {error}') from None
    print(f'wrote {args.out}')
    return 0
