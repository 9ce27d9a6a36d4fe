"""Wrong arguments of the simulator's tools: one line before any work, and nothing lost."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from vla_ros.tools.cli import main
from vla_ros.tools.writable import check_folder, check_writable

needs_torch = pytest.mark.skipif(find_spec('torch') is None, reason='torch is not installed')


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 1
    told = capsys.readouterr()
    assert told.out == ''
    assert told.err.count('\n') == 1
    return told.err


@pytest.mark.parametrize(('words', 'message'), [
    (['--batch', '0'], 'batch: 0; allowed is 1 to'),
    (['--frames', '0'], 'frames: 0; allowed is 1 to'),
    (['--window', '-3'], 'window: -3; allowed is 1 to'),
    (['--steps', '0'], 'steps: 0; allowed is 1 to'),
    (['--minutes', 'nan'], 'minutes: nan; allowed is'),
    (['--rate', '-1'], 'rate: -1; allowed is'),
    (['--seed', '-1'], 'seed: -1; allowed is 0 to'),
    (['--device', 'foo'], 'device: foo; allowed are cpu, cuda and cuda:<number>'),
    (['--out', '/dev/null/x'], '/dev/null/x: no folder can be made there'),
])
@needs_torch
def test_wrong_recipe_is_one_line(words: list[str], message: str, tmp_path: Path,
                                  capsys: pytest.CaptureFixture[str]) -> None:
    out = [] if '--out' in words else ['--out', str(tmp_path / 'c')]
    assert message in one_line(capsys, 'train', 'sim', 'fit', str(tmp_path), *out, *words)


@pytest.mark.parametrize(('words', 'message'), [
    (['--episodes', '0'], 'episodes: 0; allowed is 1 to'),
    (['--workers', '0'], 'workers: 0; allowed is 1 to'),
    (['--frames', '1'], 'frames: 1; allowed is 2 to'),
    (['--driver', '/nope'], '/nope: no such checkpoint'),
])
def test_wrong_recording_is_one_line(words: list[str], message: str, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert message in one_line(capsys, 'train', 'sim', 'record', str(tmp_path / 'd'), *words)


def test_recorded_data_are_never_overwritten(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'dataset.json').write_text('precious')
    told = one_line(capsys, 'train', 'sim', 'record', str(tmp_path), '--episodes', '1')
    assert 'holds a recorded dataset already' in told
    assert (tmp_path / 'dataset.json').read_text() == 'precious'


@pytest.mark.parametrize(('words', 'message'), [
    (['sim', '--fast', '--gif', '{}/film.txt'], 'the name must end with .gif'),
    (['sim', '--fast', '--gif', '/nope/film.gif'], 'no such folder: /nope'),
    (['sim', '--fast', '--json', '{}'], 'it is a folder'),
    (['sim', '--fast', '--json', '/dev/full'], 'no ordinary file'),
    (['sim', '--fast', '--json', ''], 'json: empty'),
    (['sim', '--out', '/dev/null/x'], 'no folder can be made there'),
    (['ablation', 'merge', '--workers', '0'], 'workers: 0: at least 1 is needed'),
    (['ablation', 'merge', '--json', '/nope/x'], 'no such folder: /nope'),
])
def test_what_cannot_be_written_is_told_before_the_evaluation(
        words: list[str], message: str, tmp_path: Path,
        capsys: pytest.CaptureFixture[str]) -> None:
    told = one_line(capsys, 'eval', *[word.format(tmp_path) for word in words])
    assert message in told


@pytest.mark.parametrize(('words', 'message'), [
    (['--threads', '99999'], 'threads: 99999; allowed is 1 to 1024'),
    (['--threads', '0'], 'threads: 0; allowed is 1 to 1024'),
    (['--precision', 'bf16'], 'onnxruntime runs it in fp32 only'),
])
def test_wrong_bench_is_one_line(words: list[str], message: str,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    assert message in one_line(capsys, 'bench', 'policy', *words)


def test_what_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / 'a.json'
    check_writable(file)
    assert not file.exists()
    file.write_text('kept')
    check_writable(file, '.json')
    assert file.read_text() == 'kept'
    check_folder(tmp_path / 'new' / 'one')
    assert (tmp_path / 'new' / 'one').is_dir()
