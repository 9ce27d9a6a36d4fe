"""`vla-ros docs`: writes the generated tables of the docs, or checks that they are up to date."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vla_ros.bringup import interface
from vla_ros.bringup.graph import ARGUMENTS, REPLAY_ARGUMENTS, Argument

FILES = ('README.md', 'doc/reference/parameters.md', 'doc/reference/topics.md',
         'doc/reference/launch.md')


def add_parser(subparsers: Any) -> None:
    """Add `docs` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'docs', help='write the generated tables of the docs, from a checkout',
        description='Fills each <!-- table: NAME --> … <!-- end --> in the docs.')
    parser.add_argument('--check', action='store_true', help='write nothing; fail where outdated')
    parser.add_argument('--root', type=Path, default=Path(), help='the checkout (default: here)')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write or check. Returns 1 where --check finds an outdated file."""
    stale = []
    for name in FILES:
        file = args.root / name
        old = file.read_text()
        new = filled(old, TABLES)
        if new != old:
            stale.append(name)
            if not args.check:
                file.write_text(new)
    for name in stale:
        print(f'{name}: {"outdated; run vla-ros docs" if args.check else "written"}')
    return 1 if stale and args.check else 0


def filled(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """The text with every marked table made anew. Raises ValueError on an unknown table."""
    def table(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in tables:
            raise ValueError(f'table {name!r}: there are {", ".join(tables)}')
        return f'<!-- table: {name} -->\n{tables[name]()}\n<!-- end -->'
    return re.sub(r'<!-- table: (\w+) -->\n.*?<!-- end -->', table, text, flags=re.DOTALL)


def _parameters(module: str) -> Callable[[], str]:
    def table() -> str:
        from importlib import import_module
        return str(import_module(f'vla_ros.nodes.{module}').PARAMETERS.markdown())
    return table


def _arguments(arguments: tuple[Argument, ...]) -> Callable[[], str]:
    def table() -> str:
        lines = ['| argument | default | |', '|---|---|---|']
        for a in arguments:
            default = f'`{a.default}`' if a.default else ''
            lines.append(f'| `{a.name}` | {default} | {a.description} |')
        return '\n'.join(lines)
    return table


TABLES: Mapping[str, Callable[[], str]] = {
    **{module: _parameters(module)
       for module in ('camera_node', 'inference_node', 'action_publisher', 'sim_robot')},
    'topics': interface.markdown,
    'launch': _arguments(ARGUMENTS),
    'replay': _arguments(REPLAY_ARGUMENTS),
}
