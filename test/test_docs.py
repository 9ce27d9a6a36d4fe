"""The generated tables of the docs say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vla_ros.tools import cli
from vla_ros.tools.docs import FILES, TABLES, filled

ROOT = Path(__file__).resolve().parent.parent


def test_generated_tables_are_up_to_date() -> None:
    for name in FILES:
        text = (ROOT / name).read_text()
        assert filled(text, TABLES) == text, f'{name} is outdated; run vla-ros docs'


def test_unknown_table_is_named() -> None:
    with pytest.raises(ValueError, match="table 'nonsense'"):
        filled('<!-- table: nonsense -->\n<!-- end -->', TABLES)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / 'README.md', ROOT / 'CONTRIBUTING.md', *(ROOT / 'doc').rglob('*.md')]:
        for target in re.findall(r'\]\(([^)#:]+)(?:#[^)]*)?\)', page.read_text()):
            assert (page.parent / target).exists(), f'{page.name}: {target}'


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    operator = ('enable', 'disable', 'reset', 'estop', 'instruct')
    for name in (*(name for name in cli.COMMANDS if name != 'operate'), *operator):
        with pytest.raises(SystemExit) as ended:
            cli.main([name.replace('_', '-'), '--help'])
        assert ended.value.code == 0
        assert 'usage: vla-ros' in capsys.readouterr().out
