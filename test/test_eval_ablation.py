"""`vla-ros eval ablation`: paired scenes, rows against their reference, and retraining."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vla_ros.engines.rules import Rule
from vla_ros.engines.verdict import Key, Verdict
from vla_ros.policies.openvla.options import BACKENDS, check_precision, read_engine_options
from vla_ros.profiles.engine import load_engine
from vla_ros.sim.baselines import BASELINES, METHODS
from vla_ros.tools import eval_ablation
from vla_ros.tools.ablation_engine import (
    FASTER,
    REFERENCE,
    ROWS,
    EngineRow,
    checked,
    chosen,
    settings_of,
    told,
)
from vla_ros.tools.cli import main
from vla_ros.tools.eval_ablation import (
    BASE,
    LATENCIES,
    VARIANTS,
    Row,
    _kept,
    _reference,
    _rows,
    _settings,
    compare,
    markdown,
)
from vla_ros.tools.eval_settings import EvalSettings

KEY = Key('weights', 'graph', 'fp8', 'cpu', '2', '')
BROKEN = (Rule('action error, mean', 1.5, 1.0, 'bins'),)


def row(outcomes: list[int]) -> dict:
    return {'outcomes': outcomes, 'success': sum(outcomes) / len(outcomes), 'ci95': [0.1, 0.9],
            'episodes': len(outcomes), 'seam_rad': {'p99': None}, 'jerk_rad_s3': {'rms': 40.0},
            'seconds_to_success_p50': float('nan'), 'inference_ms': {'p50': 7.0},
            'delay_ms': {'p50': 60.0}}


def arguments(what: str, tmp_path: Path, **changes: object) -> argparse.Namespace:
    values = {'what': what, 'task': None, 'episodes': 3, 'seed': 1, 'method': None,
              'latency': None, 'data': [], 'checkpoints': tmp_path, 'steps': 5, 'device': 'cpu',
              'row': None, 'policy': 'openvla_small', 'model': ''}
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
    rows = list(_rows(arguments('merge', tmp_path), tmp_path))
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
    rows = list(_rows(arguments('window', tmp_path), tmp_path))
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
    table = markdown({'w': one})
    assert 'jerk rms rad/s³ | engine p50 ms |\n' in table
    assert '| w | 0.0 | 10.0–90.0 | +0.0 | 0/0 | – | – | 40 | 7.0 |' in table


@pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
def test_an_unknown_method_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['eval', 'ablation', 'merge', '--method', 'blend']) == 1
    assert 'merge: blend: allowed is latest_only' in capsys.readouterr().err


# --- engine --------------------------------------------------------------------------------------

PLAIN = EvalSettings(('reach',), 3, 1, fast=True, policy='openvla_small')


def engine_rows(folder: Path, *names: str, **changes: object) -> list[Row]:
    args = arguments('engine', folder, **{'task': ['reach'], 'row': list(names), **changes})
    return list(_rows(args, folder))


def report(file: Path, rows: list[Row], what: str = 'engine') -> Path:
    """A file as a run with these rows leaves it; nothing succeeded."""
    file.write_text(json.dumps({'what': what, 'rows': {
        each.name: {**row([0] * each.settings.episodes), 'settings': _settings(each),
                    'tasks': dict.fromkeys(each.settings.tasks, 0)} for each in rows}}))
    return file


def test_engine_rows_have_names_of_their_own_and_are_compared_with_the_plain_baseline(
        tmp_path: Path) -> None:
    assert len({each.name for each in ROWS}) == len(ROWS)
    rows = engine_rows(tmp_path)
    assert [each.name for each in rows] == [each.name for each in ROWS]
    assert rows[0].name == 'baseline fp32'
    assert {each.reference for each in rows} == {rows[0].name}
    assert len({(each.settings.seeds(), each.settings.tasks) for each in rows}) == 1


def test_engine_rows_are_chosen_by_name_and_keep_their_order() -> None:
    assert chosen(()) == ROWS
    assert [each.name for each in chosen(['graph fp8', 'baseline fp32'])] == [
        'baseline fp32', 'graph fp8']


def test_an_engine_row_that_there_is_not_is_one_line_with_those_there_are(
        capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['eval', 'ablation', 'engine', '--row', 'graph fp8', '--row', 'graph int2']) == 1
    assert capsys.readouterr().err == ('vla-ros: eval: row: graph int2: allowed is '
                                       f'{"; ".join(each.name for each in ROWS)}\n')


@pytest.mark.parametrize('device', ['cpu', 'cuda:1'])
def test_the_profile_of_every_engine_row_is_one_that_the_family_reads(device: str, tmp_path: Path
                                                                      ) -> None:
    files = set()
    for each in ROWS:
        settings = settings_of(each, PLAIN, tmp_path, device)
        assert (settings.camera_rate, settings.delay_s) == (each.camera_rate, each.delay_s)
        assert replace(settings, engine='cpu', camera_rate=10.0, delay_s=0.04) == PLAIN
        profile = load_engine(settings.engine)
        files.add(profile.file)
        assert (profile.backends, profile.device, profile.precision) == (
            (each.backend,), device, each.precision)
        options = read_engine_options(profile)
        assert options.prefill_precision == each.prefill
        # What fails its check is played all the same; the baseline has nothing to be checked by.
        assert options.allow_failed_check is (each.backend != 'baseline')
        check_precision(profile, profile.backend_for(BACKENDS))
    assert len(files) == len(ROWS)


def test_cameras_and_prefill_are_told_in_the_name_where_they_are_not_as_usual() -> None:
    assert EngineRow('actionflow', camera_rate=FASTER).name == 'actionflow fp32, camera 50 Hz'
    assert EngineRow('graph', 'int4-weight', 'fp8').name == 'graph int4-weight with fp8 prefill'


def test_rows_that_were_played_with_the_same_settings_are_kept(tmp_path: Path) -> None:
    file = report(tmp_path / 'rows.json', engine_rows(tmp_path, 'baseline fp32', 'graph fp8'))
    (tmp_path / 'again').mkdir()  # the profiles are written anew each time
    rows = engine_rows(tmp_path / 'again', 'baseline fp32', 'graph fp8', 'graph bf16')
    assert list(_kept(file, 'engine', rows)) == ['baseline fp32', 'graph fp8']
    for nothing in (None, tmp_path / 'nowhere.json'):
        assert _kept(nothing, 'engine', rows) == {}
    (tmp_path / 'empty.json').touch()
    assert _kept(tmp_path / 'empty.json', 'engine', rows) == {}


@pytest.mark.parametrize('names', [('baseline fp32', 'graph fp8'), ('graph bf16',)])
@pytest.mark.parametrize('changes', [
    {'episodes': 4}, {'seed': 2}, {'task': ['push']}, {'task': ['reach', 'push']},
    {'policy': 'another'}, {'model': '/elsewhere'}])
def test_rows_of_other_scenes_or_policies_are_never_put_into_one_table(
        changes: dict[str, Any], names: tuple[str, ...], tmp_path: Path) -> None:
    """Also where the file has none of the rows that are to be played."""
    file = report(tmp_path / 'rows.json', engine_rows(tmp_path, 'baseline fp32', 'graph fp8'))
    rows = engine_rows(tmp_path, *names, **changes)
    with pytest.raises(ValueError) as refused:
        _kept(file, 'engine', rows)
    assert str(refused.value) == (f'{file}: holds rows with other settings; give another file, or '
                                  'the same settings to go on with it')


def test_a_row_that_ran_on_another_device_is_not_kept(tmp_path: Path) -> None:
    file = report(tmp_path / 'rows.json', engine_rows(tmp_path, 'baseline fp32'))
    with pytest.raises(ValueError, match='holds rows with other settings'):
        _kept(file, 'engine', engine_rows(tmp_path, 'baseline fp32', device='cuda'))


def test_variants_have_models_of_their_own_and_are_kept_together(tmp_path: Path) -> None:
    for name in VARIANTS['window']:
        (tmp_path / name).mkdir()
        (tmp_path / name / 'model.onnx').touch()
    rows = list(_rows(arguments('window', tmp_path), tmp_path))
    file = report(tmp_path / 'rows.json', rows, 'window')
    assert list(_kept(file, 'window', rows)) == list(VARIANTS['window'])
    with pytest.raises(ValueError, match='holds rows with other settings'):
        _kept(file, 'compressor', rows)


@pytest.mark.parametrize('text', ['no JSON', '[]', '{"rows": {}}', '{"what": "engine"}',
                                  '{"what": "engine", "rows": {"graph fp8": {}}}'])
def test_a_file_of_something_else_is_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / 'rows.json'
    file.write_text(text)
    with pytest.raises(ValueError) as refused:
        _kept(file, 'engine', engine_rows(tmp_path, 'graph fp8'))
    assert str(refused.value).startswith(f'{file}: not a report of vla-ros eval ablation (')
    assert '\n' not in str(refused.value)


def test_a_run_goes_on_with_what_is_kept_and_compares_it_with_a_reference_that_came_later(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
        ) -> None:
    file, played = tmp_path / 'rows.json', []

    def play(each: Row, workers: int) -> dict[str, Any]:
        played.append(each.name)
        return {**row([1, 1, 0] if each.name == REFERENCE.name else [0, 0, 1]),
                'settings': _settings(each), 'tasks': dict.fromkeys(each.settings.tasks, 0)}

    monkeypatch.setattr(eval_ablation, '_played', play)
    words = ['eval', 'ablation', 'engine', '--task', 'reach', '--episodes', '3', '--json',
             str(file), '--row', 'graph fp8']
    assert main(words) == 0
    assert main([*words, '--row', REFERENCE.name]) == 0
    assert played == ['graph fp8', REFERENCE.name]
    rows = json.loads(file.read_text())['rows']
    assert (rows['graph fp8']['lost'], rows['graph fp8']['gained']) == (2, 1)
    assert (rows[REFERENCE.name]['lost'], rows[REFERENCE.name]['gained']) == (0, 0)
    assert main([*words, '--seed', '2']) == 1
    assert 'holds rows with other settings' in capsys.readouterr().err.splitlines()[-1]
    assert len(played) == 2


def test_a_verdict_is_told_by_its_result_and_errors() -> None:
    figures = {'error_bins': {'mean': 1.5, 'p99': 3.0, 'max': 9}, 'passes': 2.25}
    assert told(Verdict(KEY, BROKEN, 'shipped', 32, figures)) == {
        'passed': False, 'observations': 32, 'gpu': 'cpu', **{
            name: figures[name] for name in ('error_bins', 'passes')},
        'broken': 'action error, mean: 1.5 bins, allowed is at most 1 bins'}
    assert told(Verdict(KEY, (Rule('tokens that differ', 0, 0),), 'shipped', 32)) == {
        'passed': True, 'observations': 32, 'gpu': 'cpu', 'error_bins': None, 'passes': None,
        'broken': ''}


def test_the_table_of_engines_tells_what_the_check_said() -> None:
    rows = {'baseline fp32': {**row([1, 0]), 'check': {}},
            'jacobi fp32': {**row([1, 0]), 'check': told(Verdict(
                KEY, (Rule('tokens that differ', 0, 0),), 'shipped', 32,
                {'error_bins': {'mean': 0.0, 'p99': 0.0, 'max': 0}, 'passes': 2.25}))},
            'graph fp8': {**row([0, 0]), 'check': told(Verdict(KEY, BROKEN, 'shipped', 32))}}
    for each in rows.values():
        compare(each, rows['baseline fp32'])
    lines = markdown(rows).splitlines()
    assert lines[0].endswith('| delay p50 ms | error bins | passes | check |')
    assert lines[2].endswith('| +0.0 | 0/0 | – | – | 40 | 60 | – | – | – |')
    assert lines[3].endswith('| 60 | 0.00/0.0 | 2.25 | passed |')
    assert lines[4].endswith('| -50.0 | 1/0 | – | – | 40 | 60 | – | – | failed |')


def test_the_baseline_is_not_checked_against_itself(tmp_path: Path) -> None:
    assert checked(REFERENCE, settings_of(REFERENCE, PLAIN, tmp_path, 'cpu')) == {}


def test_a_policy_of_another_family_is_one_line(tmp_path: Path) -> None:
    graph = EngineRow('graph')
    for policy in ('edgevla_sim', 'scripted_so101'):
        settings = settings_of(graph, replace(PLAIN, policy=policy), tmp_path, 'cpu')
        with pytest.raises(ValueError) as refused:
            checked(graph, settings)
        assert '\n' not in str(refused.value)
