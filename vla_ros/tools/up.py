"""`vla-ros up`: starts the graph without launch_ros."""

from __future__ import annotations

import argparse
from typing import Any

from vla_ros.bringup.graph import (
    ARGUMENTS,
    REPLAY_ARGUMENTS,
    check_remaps,
    describe,
    describe_replay,
    parse,
)
from vla_ros.bringup.up import up


def add_parser(subparsers: Any) -> None:
    """Add `up` to the subcommands of `vla-ros`."""
    listed = '\n'.join(f'  {a.name}:={a.default or "…"}   {a.description}' for a in ARGUMENTS)
    replay = '\n'.join(f'  {a.name}:={a.default or "…"}   {a.description}'
                       for a in REPLAY_ARGUMENTS)
    parser = subparsers.add_parser(
        'up', help='start camera_node, inference_node and action_publisher',
        description='Starts the same graph as launch/vla.launch.py; with bag:=… the one of '
        'launch/replay.launch.py.', formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f'arguments:\n{listed}\n\nof a replay:\n{replay}')
    parser.add_argument('arguments', nargs='*', metavar='name:=value')
    parser.add_argument('-r', '--remap', action='append', default=[], metavar='FROM:=TO',
                        help='remap a topic in all nodes')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until interrupted. Raises ValueError with one line on arguments that do not fit."""
    check_remaps(args.remap)
    given = parse(args.arguments, ARGUMENTS + REPLAY_ARGUMENTS)
    replay = any(argument.name in given for argument in REPLAY_ARGUMENTS)
    return up((describe_replay if replay else describe)(given), args.remap)
