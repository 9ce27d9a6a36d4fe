"""`vla-ros report`: the report of a run, or of two side by side, for the browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from vla_ros.replay.job import RESULT, Done, load_done


def add_parser(subparsers: Any) -> None:
    """Add `report` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'report', help='compare two replays in one HTML file, or write the report of one anew',
        description='Writes one self-contained HTML file about one run of vla-ros replay, or '
        'about two, with their figures side by side and their timelines on one axis.')
    parser.add_argument('runs', nargs='+', type=Path, metavar='RUN',
                        help=f'folder of a run: the one with {RESULT} in it; one or two')
    parser.add_argument('--out', type=Path, default=Path('out', 'report.html'), metavar='FILE',
                        help='to write (default out/report.html)')
    parser.set_defaults(run=run, bad_input=2)


def run(args: argparse.Namespace) -> int:
    """Write the report. Raises ValueError with one line."""
    from vla_ros.replay.report import write_report
    print(write_report([_done(folder) for folder in args.runs], args.out))
    return 0


def _done(folder: Path) -> Done:
    done = load_done(folder)
    if done is None:
        near = sorted(str(p.parent) for p in folder.glob(f'*/{RESULT}'))[:3]
        hint = f'there are runs in {", ".join(near)}' if near else 'make one with vla-ros replay'
        raise ValueError(f'report: {folder}: no {RESULT} in it that this version can read; {hint}')
    return done
