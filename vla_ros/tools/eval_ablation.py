"""`vla-ros eval ablation`: what each part of the policy and of its playing is worth, paired.

Every row plays the same scenes, so that rows differ in nothing but what their name says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from vla_ros.sim.trial_record import TrialResult
    from vla_ros.tools.ablation_engine import EngineRow
    from vla_ros.tools.eval_settings import EvalSettings

ABOUT = """
merge: merge policies, and two ways of others, under injected latency. compressor and window: the
policy retrained with other sizes, each from the shipped weights and for the same small number of
steps, unless FOLDER/<variant> holds such a checkpoint already. engine: a policy of the family
openvla on each backend and in each precision. Rows that FILE holds already are not played again.
"""
LATENCIES = (0.0, 0.1, 0.2, 0.4)
REFERENCE = 'crossfade'
BASE = 'learned_query_24'  # the sizes that are shipped, retrained like the others
VARIANTS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    'compressor': {
        BASE: (), 'learned_query_8': ('--keep', '8'),
        'average_pool_24': ('--compressor', 'average_pool'),
        'none': ('--compressor', 'none')},
    'window': {
        BASE: (), 'window_4': ('--window', '4'), 'window_2': ('--window', '2'),
        'window_1': ('--window', '1')},
}
RETRAINING = ('--batch', '24', '--frames', '10', '--rate', '6e-4')


@dataclass(frozen=True)
class Row:
    """One row: its name and settings, and its reference by name; of `engine` also what runs it."""

    name: str
    settings: EvalSettings
    reference: str
    engine: EngineRow | None = None


def add_ablation(kinds: Any) -> None:
    """Add `ablation` to the subcommands of `vla-ros eval`."""
    parser = kinds.add_parser('ablation', help='what each part is worth, on paired scenes',
                              description=ABOUT)
    parser.add_argument('what', choices=('merge', *VARIANTS, 'engine'))
    parser.add_argument('--task', action='append', metavar='NAME', help='default all')
    parser.add_argument('--episodes', type=int, default=20, metavar='N',
                        help='of each task in each row (default 20)')
    parser.add_argument('--seed', type=int, default=0, metavar='S', help='of the scenes')
    parser.add_argument('--workers', type=int, default=len(os.sched_getaffinity(0)), metavar='N')
    parser.add_argument('--json', type=Path, metavar='FILE', help='where the figures go')
    parser.add_argument('--method', action='append', metavar='NAME',
                        help='of merge: these rows only; may be repeated')
    parser.add_argument('--latency', action='append', type=float, metavar='S',
                        help='of merge: these latencies only, s; may be repeated')
    parser.add_argument('--reference', type=Path, metavar='FILE',
                        help='JSON of `eval sim --fast` on the same seed with as many episodes or '
                        'more: rows are compared with it instead of with a row played here')
    parser.add_argument('--data', type=Path, nargs='+', default=[], metavar='FOLDER',
                        help='of compressor and window: recorded by vla-ros train sim')
    parser.add_argument('--checkpoints', type=Path, default=Path('out', 'ablation'),
                        metavar='FOLDER', help='of compressor and window (default out/ablation)')
    parser.add_argument('--steps', type=int, default=500, metavar='N', help='of the retraining')
    parser.add_argument('--row', action='append', metavar='NAME',
                        help='of engine: these rows only; may be repeated')
    parser.add_argument('--policy', default='openvla_small',
                        help='of engine: policy profile, name or path (default openvla_small)')
    parser.add_argument('--model', default='', metavar='FOLDER',
                        help='of engine: checkpoint instead of the one of the profile')
    parser.add_argument('--device', default='cpu',
                        help='of engine and of the retraining: cpu or cuda')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Play all rows and print the table. Raises ValueError with one line."""
    from rich.console import Console

    from vla_ros.engines.atomic import write_text
    from vla_ros.tools.measure import machine, plain
    from vla_ros.tools.writable import check_writable

    if args.workers < 1:
        raise ValueError(f'eval: workers: {args.workers}: at least 1 is needed')
    if args.json is not None:
        check_writable(args.json)
    with tempfile.TemporaryDirectory(prefix='vla_ros_ablation_') as folder:
        rows = list(_rows(args, Path(folder)))
        found = _kept(args.json, args.what, rows)
        outside = None if args.reference is None else _reference(args)
        console = Console(highlight=False)
        for row in rows:
            if row.name not in found:
                found[row.name] = _played(row, args.workers)
            reference = outside or found.get(row.reference)
            for each in found.values():  # kept ones too: the reference may have come later
                if reference is not None or 'points' not in each:
                    compare(each, reference or each)
            console.print(line(row.name, found[row.name]), soft_wrap=True)
            if args.json:
                write_text(args.json, json.dumps(plain(
                    {'what': args.what, 'rows': found, 'machine': machine()}), indent=1) + '\n')
    console.print(markdown(found), soft_wrap=True, markup=False)
    return 0


def _played(row: Row, workers: int) -> dict[str, Any]:
    from vla_ros.tools.eval_fast import play_all

    check = {}
    if row.engine is not None:
        from vla_ros.tools.ablation_engine import checked
        check = {'check': checked(row.engine, row.settings)}
    results = [each.result for each in play_all(row.settings, workers, 0, lambda _: None)]
    return {**summary(results), 'settings': _settings(row), **check}


def _settings(row: Row) -> dict[str, Any]:
    """For the report. An engine profile that is gone afterwards is told by what is in it."""
    told = row.settings.json()
    if row.engine is not None:
        told['engine'] = yaml.safe_load(Path(row.settings.engine).read_text())
    return told


def _kept(file: Path | None, what: str, rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Rows that have been played before. Raises ValueError with one line on a file of others."""
    if file is None or not file.is_file() or not file.stat().st_size:
        return {}
    try:
        report = json.loads(file.read_text())
        found: dict[str, dict[str, Any]] = report['rows']
        same = report['what'] == what and all(
            found[row.name]['settings'] == _settings(row)
            and set(found[row.name]['tasks']) == set(row.settings.tasks)
            for row in rows if row.name in found)
        scenes = {_scenes(what, each['settings'], each['tasks']) for each in found.values()}
        scenes |= {_scenes(what, _settings(row), row.settings.tasks) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f'{file}: not a report of vla-ros eval ablation '
                         f'({" ".join(str(error).split())}); give another file') from None
    if not same or len(scenes) > 1:
        raise ValueError(f'{file}: holds rows with other settings; give another file, or the same '
                         'settings to go on with it')
    return found


def _scenes(what: str, settings: Mapping[str, Any], tasks: Iterable[str]) -> tuple[Any, ...]:
    """What all rows of a table have in common. Retrained variants have models of their own."""
    policy = (settings['policy'], settings['model']) if what == 'engine' else ()
    return settings['episodes'], settings['seed'], *policy, *sorted(tasks)


def _rows(args: argparse.Namespace, folder: Path) -> Iterable[Row]:
    from vla_ros.sim.baselines import METHODS
    from vla_ros.tools.eval_settings import EvalSettings, tasks_of

    plain = EvalSettings(tasks=tasks_of(args.task or ['all']), episodes=args.episodes,
                         seed=args.seed, fast=True)
    if args.what == 'engine':
        from vla_ros.tools.ablation_engine import REFERENCE as PLAIN
        from vla_ros.tools.ablation_engine import chosen, settings_of
        plain = replace(plain, policy=args.policy, model=args.model)
        for each in chosen(args.row or ()):
            yield Row(each.name, settings_of(each, plain, folder, args.device), PLAIN.name, each)
        return
    if args.what != 'merge':
        for name, options in VARIANTS[args.what].items():
            folder = args.checkpoints / name
            if not (folder / 'model.onnx').exists():
                _retrain(args, folder, options)
        for name in VARIANTS[args.what]:
            yield Row(name, replace(plain, model=str(args.checkpoints / name)), BASE)
        return
    methods = sorted(args.method or METHODS, key=lambda name: name != REFERENCE)
    reference = f'{REFERENCE} + 0 ms'
    for latency in args.latency or LATENCIES:
        for method in methods:
            yield Row(f'{method} + {latency * 1e3:.0f} ms',
                      replace(plain, method=method, latency_s=latency), reference)


def _reference(args: argparse.Namespace) -> dict[str, Any]:
    """Outcomes of the same scenes out of a report. Raises ValueError with one line."""
    from vla_ros.tools.eval_settings import tasks_of

    names, report = sorted(tasks_of(args.task or ['all'])), {}
    try:
        report = json.loads(args.reference.read_text())
        outcomes = [report['tasks'][name]['outcomes'][:args.episodes] for name in names]
        settings = report['settings']
        fits = settings['mode'] == 'fast' and settings['seed'] == args.seed
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f'{args.reference}: not a report of vla-ros eval sim with these tasks '
                         f'({" ".join(str(error).split())})') from None
    if not fits or any(len(each) < args.episodes for each in outcomes):
        raise ValueError(f'{args.reference}: a report of --fast with seed {args.seed} and at least '
                         f'{args.episodes} episodes of each task is needed')
    return {'outcomes': [outcome for each in outcomes for outcome in each]}


def _retrain(args: argparse.Namespace, folder: Path, options: Sequence[str]) -> None:
    """Train one variant from the shipped weights. Raises ValueError with one line."""
    from vla_ros.profiles.policy import load_policy

    if not args.data:
        raise ValueError(f'eval: data: missing: {folder} holds no checkpoint, and to train one '
                         'takes folders recorded by vla-ros train sim')
    shipped = load_policy('edgevla_sim').checkpoint
    command = [sys.executable, '-m', 'vla_ros.tools.cli', 'train', 'sim', 'fit',
               *map(str, args.data), '--out', str(folder), '--start', str(shipped),
               '--steps', str(args.steps), '--device', args.device, *RETRAINING, *options]
    if subprocess.run(command, check=False).returncode:
        raise ValueError(f'eval: {folder.name} could not be trained (see above)')


def summary(results: Sequence[TrialResult]) -> dict[str, Any]:
    """Success, jerk, seams and the engine's time over all tasks of a row."""
    from vla_ros.tools.eval_figures import figures

    f = figures(results)
    ordered = sorted(results, key=lambda result: (result.name, result.seed))
    values = f.json()
    kept = ('success', 'episodes', 'ci95', 'successes', 'seconds_to_success_p50', 'seam_rad',
            'jerk_rad_s3', 'delay_ms', 'inference_ms')
    tasks = sorted({result.name for result in ordered})
    return {**{key: values[key] for key in kept},
            'tasks': {task: sum(r.success for r in ordered if r.name == task) for task in tasks},
            'outcomes': [int(result.success) for result in ordered]}


def compare(row: dict[str, Any], reference: Mapping[str, Any]) -> None:
    """Note how many of the paired scenes were lost and gained against the reference."""
    pairs = list(zip(row['outcomes'], reference['outcomes'], strict=True))
    row['lost'] = sum(before and not now for now, before in pairs)
    row['gained'] = sum(now and not before for now, before in pairs)
    row['points'] = round(100.0 * (row['gained'] - row['lost']) / len(pairs), 2)


def line(name: str, row: Mapping[str, Any]) -> str:
    """A row for people, while the others are played."""
    low, high = row['ci95']
    return (f'{name}: {100 * row["success"]:.1f} % ({100 * low:.1f}–{100 * high:.1f}) of '
            f'{row["episodes"]}, {row["points"]:+.1f} points, jerk {row["jerk_rad_s3"]["rms"]}')


def markdown(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as it stands in the documentation."""
    head = ['row', 'success %', '95 %', 'points', 'lost/gained', 'time to success s',
            'seam p99 mrad', 'jerk rms rad/s³']
    engines = any('check' in row for row in found.values())
    head += (['delay p50 ms', 'error bins', 'passes', 'check'] if engines else ['engine p50 ms'])
    lines = [_line(head), _line(['---'] * len(head)).replace(' ', '')]
    for name, row in found.items():
        low, high = row['ci95']
        seam = row['seam_rad']['p99']
        cells = [name, f'{100 * row["success"]:.1f}', f'{100 * low:.1f}–{100 * high:.1f}',
                 f'{row["points"]:+.1f}', f'{row["lost"]}/{row["gained"]}',
                 _shown(row['seconds_to_success_p50']),
                 _shown(None if seam is None else 1e3 * seam), f'{row["jerk_rad_s3"]["rms"]:.0f}']
        cells += (_checked(row) if engines else [f'{row["inference_ms"]["p50"]:.1f}'])
        lines.append(_line(cells))
    return '\n'.join(lines)


def _line(cells: Sequence[str]) -> str:
    return f'| {" | ".join(cells)} |'


def _checked(row: Mapping[str, Any]) -> list[str]:
    delay, check = f'{row["delay_ms"]["p50"]:.0f}', row.get('check') or {}
    if not check:
        return [delay, '–', '–', '–']
    error, passes = check['error_bins'], check['passes']
    return [delay, '–' if error is None else f'{error["mean"]:.2f}/{error["p99"]:.1f}',
            '–' if passes is None else f'{passes:.2f}', 'passed' if check['passed'] else 'failed']


def _shown(value: float | None) -> str:
    return '–' if value is None or value != value else f'{value:.1f}'
