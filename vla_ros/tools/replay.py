"""`vla-ros replay`: recordings through the whole runtime, with faults, gates and a report."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vla_ros.replay.batch import Outcome, Task, load_variants, plan, run_all
from vla_ros.replay.delays import MEASURED
from vla_ros.replay.faults import described, load_faults, parse_fault
from vla_ros.replay.job import Job

PASSED, FAILED, BAD_INPUT = 0, 1, 2
DESCRIPTION = """
Plays recordings (rosbag2: MCAP or SQLite) through assembler, executor, buffer, limits and watchdog
in discrete events: as fast as the policy allows, and the same bit for bit each time. Writes into
--out a bag with the topics of a live graph, replay.json, and a report for the browser. Several
bags or --variants make a batch that goes on where it ended. Ends with 0, or 1 where a gate failed,
or 2 where something could not be replayed.
"""
FAULTS = f"""
faults, as KIND@SECOND[+SECONDS][:NAME=VALUE,...]; without seconds to the end:
{described()}
"""


def add_parser(subparsers: Any) -> None:
    """Add `replay` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'replay', help='recordings through the whole runtime: faults, gates, report',
        description=DESCRIPTION, epilog=FAULTS,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('bags', nargs='+', metavar='BAG', help='rosbag2 folder, .mcap or .db3')
    parser.add_argument('--robot', required=True, help='robot profile: name or path')
    parser.add_argument('--policy', required=True, help='policy profile: name or path')
    parser.add_argument('--engine', default='cpu', help='engine profile (default cpu)')
    parser.add_argument('--model', default='', metavar='PATH', help='another checkpoint')
    parser.add_argument('--out', type=Path, default=Path('out', 'replay'), metavar='DIR',
                        help='folder for the results (default out/replay)')
    parser.add_argument('--delay', default='', metavar='D',
                        help='how long an inference takes: ms, a JSON list of ms or a bag with '
                        f'the topic latency to draw from, or {MEASURED} (not repeatable); default: '
                        'inference_time of the engine profile')
    parser.add_argument('--seed', type=int, default=0, help='of drawn delays and lost frames')
    parser.add_argument('--fault', action='append', default=[], metavar='F',
                        help='a fault, see below; may be repeated')
    parser.add_argument('--faults', type=Path, metavar='FILE', help='a schedule of them, YAML')
    parser.add_argument('--gate', type=Path, metavar='FILE', help='limits of figures, YAML')
    parser.add_argument('--remap', nargs='+', default=[], metavar='FROM:=TO',
                        help='a topic of the bag under the name of the graph')
    parser.add_argument('--instruction', default='', help='where the bag has none')
    parser.add_argument('--start', type=float, default=0.0, metavar='S', help='seconds into it')
    parser.add_argument('--seconds', type=float, metavar='S', help='how much of it')
    parser.add_argument('--no-enable', action='store_true', help='enable by fault enable@T only')
    parser.add_argument('--no-bag', action='store_true', help='write no bag')
    parser.add_argument('--observations', action='store_true',
                        help='also the images at the size of the policy, which are large')
    parser.add_argument('--variants', type=Path, metavar='FILE',
                        help='YAML: by name, what differs, such as "slow: {delay: 200}"')
    parser.add_argument('--workers', type=int, default=os.cpu_count() or 1, metavar='N',
                        help='processes of a batch (default: all cores)')
    parser.add_argument('--ray', nargs='?', const='', metavar='ADDRESS',
                        help='on a Ray cluster, or without an address on a local one')
    parser.add_argument('--again', action='store_true', help='also what has been done before')
    parser.add_argument('--no-report', action='store_true', help='write no HTML')
    parser.add_argument('--json', action='store_true', help='JSON, and nothing else, on stdout')
    parser.set_defaults(run=run, bad_input=BAD_INPUT)


def run(args: argparse.Namespace) -> int:
    """Replay; returns the exit status. Raises ValueError with one line."""
    base = _job(args)
    variants = load_variants(args.variants) if args.variants else {}
    tasks = plan(base, args.bags, variants, args.out)
    for task in tasks:
        if not Path(task.job.bag).exists():
            raise ValueError(f'bag {task.job.bag}: does not exist; give a rosbag2 folder, '
                             'an .mcap file or a .db3 file')
    if not 1 <= args.workers <= 1024:
        raise ValueError(f'replay: workers: {args.workers}; allowed is 1 to 1024')
    if len(tasks) == 1 and args.ray is None:
        return _one(tasks[0], args)
    return _many(tasks, args)


def _one(task: Task, args: argparse.Namespace) -> int:
    """One replay, in this process: its errors are those of the command."""
    from vla_ros.replay.job import run_job
    done = run_job(task.job, task.folder)
    files = _report([Outcome(task, done)], args)
    if args.json:
        print(json.dumps(done.result, indent=1))
    else:
        from vla_ros.tools.replay_view import show_run
        show_run(done.result, [str(task.folder / 'replay.json'), *files])
    return _status([Outcome(task, done)])


def _many(tasks: Sequence[Task], args: argparse.Namespace) -> int:
    from vla_ros.tools.replay_view import progress, show_batch
    found: dict[Path, Outcome] = {}
    with progress(len(tasks), quiet=args.json) as step:
        for outcome in run_all(tasks, args.workers, args.again, args.ray):
            found[outcome.task.folder] = outcome
            step(outcome)
    outcomes = [found[task.folder] for task in tasks]  # in the order in which they were asked for
    files = _report(outcomes, args)
    if args.json:
        print(json.dumps([{
            'variant': o.task.variant, 'folder': str(o.task.folder), 'error': o.error,
            'result': o.done.result if o.done else None} for o in outcomes], indent=1))
    else:
        show_batch(outcomes, files)
    return _status(outcomes)


def _status(outcomes: Sequence[Outcome]) -> int:
    """The status, with a line on stderr for everything that failed."""
    for outcome in outcomes:
        if outcome.done is None:
            print(f'vla-ros: replay: {outcome.task.name}: {outcome.error}', file=sys.stderr)
        else:
            for line in outcome.done.failures:
                print(f'gate failed: {outcome.task.name}: {line}', file=sys.stderr)
    if any(outcome.done is None for outcome in outcomes):
        return BAD_INPUT
    passed = all(outcome.done.result['passed'] for outcome in outcomes if outcome.done)
    return PASSED if passed else FAILED


def _report(outcomes: Sequence[Outcome], args: argparse.Namespace) -> list[str]:
    """Write the reports, that of a batch with links to the others; returns the paths to name."""
    if args.no_report:
        return []
    from vla_ros.replay.report import NAME, write_report
    written = [write_report([outcome.done], outcome.task.folder / NAME)
               for outcome in outcomes if outcome.done is not None]
    if len(outcomes) == 1:
        return [str(file) for file in written]
    from vla_ros.replay.batch_report import write_batch_report
    return [str(write_batch_report(outcomes, args.out / NAME))]


def _job(args: argparse.Namespace) -> Job:
    faults = [str(parse_fault(word)) for word in args.fault]
    if args.faults:
        faults += [str(fault) for fault in load_faults(args.faults)]
    remaps = {}
    for rule in args.remap:
        old, _, new = rule.partition(':=')
        if not old or not new:
            raise ValueError(f'replay: remap: {rule!r}; write it as FROM:=TO')
        remaps[old] = new
    if args.seconds is not None and args.seconds <= 0:
        raise ValueError(f'replay: seconds: {args.seconds:g}; allowed are more than 0')
    if args.seed < 0:
        raise ValueError(f'replay: seed: {args.seed}; allowed is 0 or more')
    return Job(
        bag='', robot=args.robot, policy=args.policy, engine=args.engine, model=args.model,
        delay=args.delay, seed=args.seed, faults=tuple(faults),
        gates=str(args.gate) if args.gate else '', remaps=remaps, instruction=args.instruction,
        start=args.start, seconds=args.seconds, enable=not args.no_enable,
        write_bag=not args.no_bag, observations=args.observations)
