"""`vla-ros eval ablation`: paired scenes, rows against their reference, and retraining."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from vla_ros.sim.baselines import BASELINES, METHODS
from vla_ros.tools.cli import main
from vla_ros.tools.eval_ablation import (
    BASE,
    LATENCIES,
    VARIANTS,
    _reference,
    _rows,
    compare,
    markdown,
)


def row(outcomes: list[int]) -> dict:
    return {'outcomes': outcomes, 'success': sum(outcomes) / len(outcomes), 'ci95': [0.1, 0.9],
            'seam_rad': {'p99': None}, 'jerk_rad_s3': {'rms': 40.0},
            'seconds_to_success_p50': float('nan'), 'inference_ms': {'p50': 7.0}}


def arguments(what: str, tmp_path: Path, **changes: object) -> argparse.Namespace:
    values = {'what': what, 'task': None, 'episodes': 3, 'seed': 1, 'method': None,
              'latency': None, 'data': [], 'checkpoints': tmp_path, 'steps': 5, 'device': 'cpu'}
    return argparse.Namespace(**{**values, **changes})


def test_scenes_lost_and_gained_are_counted_pair_by_pair() -> None:
    reference, other = row([1, 1, 1, 0]), row([1, 0, 0, 1])
    compare(other, reference)
    assert (other['lost'], other['gained'], other['points']) == (2, 1, -25.0)
    compare(reference, reference)
    assert (reference['lost'], reference['gained'], reference['points']) == (0, 0, 0.0)


def test_rows_with_other_scenes_are_never_compared() -> None:
    with pytest.raises(ValueError):
        compare(row([1, 0]), row([1, 0, 1]))


def test_every_way_of_merging_meets_every_latency_on_the_same_scenes(tmp_path: Path) -> None:
    rows = list(_rows(arguments('merge', tmp_path)))
    assert len(rows) == len(METHODS) * len(LATENCIES)
    assert rows[0].name == rows[0].reference == 'crossfade + 0 ms'
    assert set(BASELINES) <= {each.settings.method for each in rows}
    assert len({(each.settings.seeds(), each.settings.tasks) for each in rows}) == 1
    assert {each.settings.latency_s for each in rows} == set(LATENCIES)


def test_rows_can_be_compared_with_a_report(tmp_path: Path) -> None:
    report = tmp_path / 'report.json'
    tasks = {name: {'outcomes': outcomes} for name, outcomes in (
        ('reach', [1, 1, 0]), ('pick', [0, 1, 1]))}
    report.write_text(json.dumps({'tasks': tasks, 'settings': {'mode': 'fast', 'seed': 1}}))
    args = arguments('merge', tmp_path, task=['reach', 'pick'], episodes=2, reference=report)
    assert _reference(args) == {'outcomes': [0, 1, 1, 1]}  # in the order of rows: by name
    for changes in ({'episodes': 4}, {'seed': 2}):
        args = arguments('merge', tmp_path, **{
            'task': ['reach'], 'episodes': 2, 'reference': report, **changes})
        with pytest.raises(ValueError, match='at least'):
            _reference(args)
    with pytest.raises(ValueError, match='not a report of vla-ros eval sim'):
        _reference(arguments('merge', tmp_path, task=['push'], reference=report))


def test_a_variant_that_is_there_is_not_trained_again(tmp_path: Path) -> None:
    for name in VARIANTS['window']:
        (tmp_path / name).mkdir()
        (tmp_path / name / 'model.onnx').touch()
    rows = list(_rows(arguments('window', tmp_path)))
    assert [each.name for each in rows] == list(VARIANTS['window'])
    assert rows[0].name == BASE
    assert rows[1].settings.model == str(tmp_path / 'window_4')


def test_a_variant_that_is_not_there_asks_for_data(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['eval', 'ablation', 'compressor', '--checkpoints', str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f'vla-ros: eval: data: missing: {tmp_path / BASE} holds no checkpoint, and to train one '
        'takes folders recorded by vla-ros train sim\n')


def test_the_table_shows_what_is_unknown_as_a_dash() -> None:
    one = row([0, 0])
    compare(one, one)
    assert '| w | 0.0 | 10.0–90.0 | +0.0 | 0/0 | – | – | 40 | 7.0 |' in markdown({'w': one})


@pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
def test_an_unknown_method_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['eval', 'ablation', 'merge', '--method', 'blend']) == 1
    assert 'merge: blend: allowed is latest_only' in capsys.readouterr().err
