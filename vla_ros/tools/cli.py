"""`vla-ros`: everything that is not a node, one subcommand each."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

COMMANDS = ('up', 'operate', 'play', 'replay', 'report', 'build_knn', 'train', 'eval', 'demo',
            'bench', 'check', 'docs')


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: bad input gives one line on stderr and status 1, a traceback with --debug.

    A command whose status 1 means something else says so with the default `bad_input`.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = '--debug' in words
    if debug:
        words.remove('--debug')
    _prepare(os.environ)
    refused = 1
    try:
        args = _parser(words[:1]).parse_args(words)
        refused = getattr(args, 'bad_input', refused)
        status = args.run(args)
        return int(status)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError, ImportError) as error:
        if debug:
            raise
        print(f'vla-ros: {" ".join(str(error).split())}', file=sys.stderr)
        return refused


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; of the commands only the first word's, so that others' needs are not its own."""
    parser = argparse.ArgumentParser(
        prog='vla-ros', description='Vision-Language-Action policies on ROS 2.',
        epilog='--debug anywhere shows the traceback of an error.')
    subparsers: Any = parser.add_subparsers(required=True, metavar='command')
    asked = [word.replace('-', '_') for word in first]
    for name in asked if asked and asked[0] in COMMANDS else COMMANDS:
        import_module(f'vla_ros.tools.{name}').add_parser(subparsers)
    return parser


def _prepare(environment: Any) -> None:
    """What rclpy needs in a venv that nobody has sourced."""
    if sys.prefix != sys.base_prefix:
        prefixes = environment.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
        if sys.prefix not in prefixes:
            environment['AMENT_PREFIX_PATH'] = os.pathsep.join(
                [sys.prefix, *filter(None, prefixes)])
    if not environment.get('HOME'):
        environment.setdefault('ROS_LOG_DIR', '/tmp/ros_log')


if __name__ == '__main__':
    sys.exit(main())
