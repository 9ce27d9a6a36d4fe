"""`vla-ros eval sim`: how often the simulated arm does what it is told, and how smoothly."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.tools.eval_ablation import add_ablation

if TYPE_CHECKING:
    from rich.console import Console

    from vla_ros.sim.trial_record import TrialResult
    from vla_ros.tools.eval_settings import EvalSettings
    from vla_ros.tools.film import FilmFrame

SIM = """
Plays episodes whose scenes no training has seen; the simulator's own state says whether a task is
done. By default through the whole graph in real time, one episode after the other. With --fast in
process, in simulated time, with the same core: an inference then takes --delay, whatever it really
takes, so that the same seed gives the same commands on any machine.
"""


def add_parser(subparsers: Any) -> None:
    """Add `eval` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser('eval', help='success and smoothness in the simulator')
    kinds = parser.add_subparsers(required=True, metavar='what')
    sim = kinds.add_parser('sim', help='tasks on the simulated arm', description=SIM)
    sim.add_argument('--task', action='append', default=None, metavar='NAME',
                     help='reach, push, pick, bowl, change or all (default all); may be repeated')
    sim.add_argument('--episodes', type=int, default=20, metavar='N',
                     help='of each task (default 20)')
    sim.add_argument('--seed', type=int, default=0, metavar='S', help='of the scenes (default 0)')
    sim.add_argument('--fast', action='store_true', help='in process instead of the graph')
    sim.add_argument('--policy', default='edgevla_sim', help='policy profile: name or path')
    sim.add_argument('--model', default='', help='checkpoint instead of the one of the profile')
    sim.add_argument('--engine', default='cpu', help='engine profile: name or path')
    sim.add_argument('--merge', default='', metavar='NAME',
                     help='merge policy instead of the one of the profile; with --fast also the '
                     'baselines pop_by_count and replace_at_arrival')
    sim.add_argument('--expert', action='store_true',
                     help='the scripted expert, which knows the truth, in place of the policy')
    sim.add_argument('--latency', type=float, default=0.0, metavar='S',
                     help='added to every inference, s (default 0)')
    sim.add_argument('--delay', type=float, default=0.04, metavar='S',
                     help='that an inference takes in simulated time, s (default 0.04)')
    sim.add_argument('--camera-rate', type=float, default=10.0, metavar='HZ',
                     help='images per second of each camera; with --fast also others than 10 whose '
                     'period is a multiple of 10 ms (default 10)')
    sim.add_argument('--workers', type=int, default=len(os.sched_getaffinity(0)), metavar='N',
                     help='processes (default: one per core)')
    sim.add_argument('--json', metavar='FILE', help='where the figures go as JSON; - for stdout')
    sim.add_argument('--gif', type=Path, metavar='FILE',
                     help='a film of the first episode of each task')
    sim.add_argument('--out', type=Path, default=Path('out', 'eval'), metavar='FOLDER',
                     help='where the logs of the graph go (default out/eval)')
    sim.set_defaults(run=run)
    add_ablation(kinds)


def run(args: argparse.Namespace) -> int:
    """Evaluate and print. Raises ValueError with one line."""
    from rich.console import Console

    from vla_ros.tools.eval_figures import figures, table
    from vla_ros.tools.eval_settings import EvalSettings, tasks_of
    from vla_ros.tools.measure import machine, plain
    from vla_ros.tools.writable import check_folder, check_writable

    settings = EvalSettings(
        tasks=tasks_of(args.task or ['all']), episodes=args.episodes, seed=args.seed,
        fast=args.fast, policy=args.policy, model=args.model, engine=args.engine,
        method=args.merge, latency_s=args.latency, delay_s=args.delay,
        camera_rate=args.camera_rate, expert=args.expert)
    if args.workers < 1:
        raise ValueError(f'eval: workers: {args.workers}: at least 1 is needed')
    if args.gif and not args.fast:
        raise ValueError('eval: gif: only with --fast')
    if args.json == '':
        raise ValueError('eval: json: empty: give the name of a file, or - for stdout')
    if args.gif:  # now, and not after an hour
        check_writable(args.gif, '.gif')
    if args.json not in (None, '-'):
        check_writable(Path(args.json))
    if not args.fast:
        check_folder(args.out)
    for number in (signal.SIGTERM, signal.SIGHUP):  # ends all processes in order, as Ctrl-C does
        signal.signal(number, signal.default_int_handler)
    console = Console(stderr=args.json == '-', highlight=False)
    results, film = (_fast(console, settings, args) if args.fast else
                     (_graph(console, settings, args), []))
    found = {task: figures([r for r in results if r.name == task]) for task in settings.tasks}
    console.print(table(found, _title(settings)))
    if args.json:
        report = plain({'tasks': {task: f.json() for task, f in found.items()},
                        'machine': machine(), 'settings': settings.json()})
        text = json.dumps(report, indent=2) + '\n'
        if args.json == '-':
            sys.stdout.write(text)
        else:
            Path(args.json).write_text(text)
    if args.gif:
        from vla_ros.tools.film import write_film
        write_film(film, args.gif)
    return 0


def _fast(console: Console, settings: EvalSettings,
          args: argparse.Namespace) -> tuple[list[TrialResult], list[FilmFrame]]:
    from vla_ros.tools.eval_fast import play_all

    with _Progress(console, settings) as progress:
        played = play_all(settings, args.workers, 1 if args.gif else 0, progress.add)
    return [each.result for each in played], [frame for each in played for frame in each.film]


def _graph(console: Console, settings: EvalSettings, args: argparse.Namespace) -> list[TrialResult]:
    from vla_ros.tools.eval_graph import play_all

    with _Progress(console, settings) as progress:
        return play_all(settings, args.out, progress.add)


def _title(settings: EvalSettings) -> str:
    who = 'the scripted expert' if settings.expert else settings.policy
    how = 'in process' if settings.fast else 'through the graph in real time'
    merge = f', merge {settings.method}' if settings.method else ''
    latency = f', {settings.latency_s * 1e3:.0f} ms injected' if settings.latency_s else ''
    return (f'{who} on {settings.robot}, {settings.episodes} of each task, {how}{merge}'
            f'{latency}')


class _Progress:
    """How far the evaluation is: a line that is renewed on a terminal, else a line per task."""

    def __init__(self, console: Console, settings: EvalSettings) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Remaining

        self._console = console
        self._left = dict.fromkeys(settings.tasks, settings.episodes)
        self._successes = dict.fromkeys(settings.tasks, 0)
        self._episodes = settings.episodes
        self._bar = Progress(
            TextColumn('episodes'), BarColumn(), MofNCompleteColumn(), Remaining(),
            TextColumn('{task.description}'), console=console, transient=True,
            disable=not console.is_terminal)
        self._id = self._bar.add_task('', total=settings.episodes * len(settings.tasks))

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def add(self, result: TrialResult) -> None:
        """An episode has ended."""
        name = result.name
        self._left[name] -= 1
        self._successes[name] += result.success
        self._bar.update(self._id, advance=1, description=(
            f'{name}: {result.sentence}: {"done" if result.success else "not done"}'))
        if not self._left[name] and not self._console.is_terminal:
            self._console.print(f'{name}: {self._successes[name]} of {self._episodes}')
