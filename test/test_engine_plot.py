"""`vla-ros bench engine-plot`: the picture of what `bench engine` measured."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from vla_ros.tools import cli
from vla_ros.tools.engine_plot import bars_of

FILE = Path(__file__).resolve().parent.parent / 'doc' / 'benchmarks' / 'h200_openvla_7b.json'


@pytest.fixture
def figures() -> dict[str, Any]:
    return copy.deepcopy(json.loads(FILE.read_text()))


def test_parts_of_a_bar_add_up_to_about_its_action(figures: dict[str, Any]) -> None:
    bars = [bar for bar in bars_of(figures) if bar.parts]
    assert {'graph bf16', 'actionflow bf16'} <= {bar.name for bar in bars}
    for bar in bars:
        assert sum(bar.parts) == pytest.approx(bar.action_ms, rel=0.1), bar.name
        assert 0.0 < bar.floor_ms < bar.action_ms


def test_rows_that_failed_are_left_out(figures: dict[str, Any]) -> None:
    figures['backends']['graph_bf16'] = {'backend': 'graph', 'precision': 'bf16', 'error': 'no'}
    figures['baseline'] = {'precision': 'bf16', 'error': 'no transformers'}
    names = {bar.name for bar in bars_of(figures)}
    assert 'graph fp8' in names
    assert not names & {'graph bf16', 'transformers bf16'}


def test_picture_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / 'engine.png'
    assert cli.main(['bench', 'engine-plot', str(FILE), '--out', str(picture)]) == 0
    assert picture.read_bytes().startswith(b'\x89PNG')
    assert str(picture) in capsys.readouterr().out


@pytest.mark.parametrize('text', ['{}', '[]', 'nonsense', '{"baseline": {"error": "x"}}'])
def test_other_files_are_refused_in_one_line(tmp_path: Path, text: str,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / 'other.json'
    file.write_text(text)
    assert cli.main(['bench', 'engine-plot', str(file), '--out', str(tmp_path / 'a.png')]) != 0
    told = capsys.readouterr().err.strip()
    assert '\n' not in told
    assert str(file) in told
    assert not (tmp_path / 'a.png').exists()
