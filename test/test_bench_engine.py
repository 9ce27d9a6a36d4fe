"""`vla-ros bench engine`: its arithmetic and what it prints. How fast a machine is, is no test."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rich', reason='rich is not installed')

from vla_ros.policies.openvla.config import OpenVlaConfig, published, small, tiny  # noqa: E402
from vla_ros.tools.bench_engine import add_parser, rows_of  # noqa: E402
from vla_ros.tools.engine_floor import (  # noqa: E402
    Ceilings,
    decode_work,
    floor,
    layer_weights,
    prefill_work,
    vision_work,
)
from vla_ros.tools.engine_rows import Row, StageClock, Steps, figures_of, run_steps  # noqa: E402
from vla_ros.tools.engine_targets import targets  # noqa: E402

ROOT = Path(__file__).parents[1]
H200 = Ceilings(4.24e12, {'bf16': 785e12, 'fp8': 1500e12})
TEXT = 22  # with 256 patches: 278 tokens
PERCENTILES = ('p50', 'p95', 'p99', 'p999', 'max')
MS = 1_000_000


# The floor

def test_the_floor_of_7b_is_what_a_person_reckons_by_hand() -> None:
    least = floor(published(), TEXT, H200, 'bf16')
    assert published().prefix_tokens(TEXT) == 278
    assert least.decode_ms_per_token == pytest.approx(13.2e9 / 4.24e12 * 1e3, abs=0.05)  # 3.1
    assert least.prefill_ms == pytest.approx(4.7, abs=0.1)
    assert least.action_ms == pytest.approx(
        least.vision_ms + least.prefill_ms + 6 * least.decode_ms_per_token)
    assert least.tick_ms == pytest.approx(
        least.vision_ms + least.prefill_ms * (278 + 6) / 278, rel=0.01)


def test_the_language_model_of_7b_has_its_weights() -> None:
    config = published()
    both = 2 * config.llama.vocabulary * config.llama.width
    assert layer_weights(config) * 32 + both == pytest.approx(6.74e9, rel=1e-3)


def test_vision_of_7b_has_the_weights_of_its_towers_without_the_dead_blocks() -> None:
    # 304 M of ViT-L and 412 M of So400m, less a block each (and its pooling), and the projector.
    live = 304e6 * 23 / 24 + 412e6 * 26 / 27 + 71.4e6
    assert vision_work(published(), 'bf16').bytes / 2 == pytest.approx(live, rel=0.02)


@pytest.mark.parametrize('make', [tiny, small])
def test_work_grows_with_the_parameters_of_the_real_module(make: Any) -> None:
    torch = pytest.importorskip('torch')
    from vla_ros.policies.openvla.model import OpenVla
    config: OpenVlaConfig = make()
    with torch.device('meta'):
        model = OpenVla(config)
    matrices = sum(p.numel() for name, p in model.language_model.named_parameters()
                   if p.ndim == 2 and 'embed' not in name and 'lm_head' not in name)
    head = config.actions.bins * config.llama.width
    assert prefill_work(config, TEXT, 'fp32').bytes == 4 * (matrices + head)
    vision = sum(p.numel() for part in (model.vision_backbone, model.projector)
                 for name, p in part.named_parameters() if p.ndim > 1 and 'embed.proj' in name
                 or p.ndim == 2)
    assert vision_work(config, 'fp32').bytes == 4 * vision


@pytest.mark.parametrize(('precision', 'share'), [
    ('bf16', 1.0), ('fp8', 0.5), ('int8-weight', 0.5), ('int4-weight', 0.25)])
def test_fewer_bits_are_fewer_bytes_for_a_token(precision: str, share: float) -> None:
    cache = 2 * 32 * (278 + 3) * 4096 * 2
    wide = decode_work(published(), TEXT, 'bf16').bytes - cache
    assert decode_work(published(), TEXT, precision).bytes - cache == pytest.approx(share * wide)


def test_only_fp8_multiplies_faster() -> None:
    plain = floor(published(), TEXT, H200, 'bf16')
    assert floor(published(), TEXT, H200, 'int4-weight').prefill_ms == pytest.approx(
        plain.prefill_ms)
    assert floor(published(), TEXT, H200, 'fp8').prefill_ms == pytest.approx(
        plain.prefill_ms * 785 / 1500)
    mixed = floor(published(), TEXT, H200, 'int4-weight', prefill='fp8')
    assert mixed.prefill_ms == floor(published(), TEXT, H200, 'fp8').prefill_ms
    assert mixed.decode_ms_per_token < plain.decode_ms_per_token / 3


def test_reading_is_the_floor_where_there_is_little_to_multiply() -> None:
    slow_memory = replace(H200, bandwidth=1e12)
    assert floor(published(), TEXT, slow_memory, 'bf16').prefill_ms == pytest.approx(12.95, abs=0.1)


def test_a_pipeline_and_passes_have_floors_of_their_own() -> None:
    least = floor(published(), TEXT, H200, 'bf16')
    assert least.of(0, 0.0, 7) == least.action_ms
    assert least.of(6, 0.0, 7) == least.tick_ms
    assert least.of(0, 1.0, 7) == pytest.approx(least.vision_ms + least.prefill_ms)
    assert least.of(0, 3.0, 7) == pytest.approx(
        least.vision_ms + least.prefill_ms + 2 * least.decode_ms_per_token)


def test_parallel_decoding_is_one_pass() -> None:
    config = tiny(parallel=True)
    least = floor(config, TEXT, H200, 'bf16')
    assert least.action_ms == least.tick_ms


# Times

class Clockwork:
    """A backend that answers `lag` frames later, or never."""

    def __init__(self, lag: int, silent: bool = False) -> None:
        self.lag, self.passes, self._silent = lag, 0.0, silent
        self.seen: list[Any] = []

    def step(self, frame: Any) -> Any:
        self.seen.append(frame)
        return None if self._silent or len(self.seen) <= self.lag else np.zeros(7, np.int64)


def steps(begin_ms: list[int], end_ms: list[int], passes: float = 0.0) -> Steps:
    return Steps(np.array(begin_ms) * MS, np.array(end_ms) * MS, np.full(len(end_ms), passes))


def test_the_age_of_an_action_counts_from_its_own_frame() -> None:
    first, timed = steps([0, 10, 20], [10, 20, 30]), steps([30, 40, 50], [40, 50, 65])
    at_once = figures_of(first, timed, 0)
    assert at_once['action_age_ms'] == at_once['action_ms']
    assert at_once['action_ms']['max'] == 15.0
    piped = figures_of(first, timed, 2)
    assert piped['action_ms'] == at_once['action_ms']
    # 10 -> 40 and 20 -> 50 lie across the pause before the timed steps; 30 -> 65 does not.
    assert piped['action_age_ms']['p50'] == piped['action_age_ms']['max'] == 35.0
    short = figures_of(first, steps([30, 40], [40, 50]), 2)
    assert short['action_age_ms']['p50'] == 30.0           # there are no others
    assert piped['actions_per_s'] == pytest.approx(3 / 0.035, abs=1e-3)


def test_passes_are_told_only_where_they_are_known() -> None:
    first = steps([0], [1])
    assert figures_of(first, steps([1], [2]), 0)['passes'] is None
    assert figures_of(first, steps([1], [2], 3.0), 0)['passes'] == 3.0


def test_frames_are_given_in_turn_and_each_step_is_timed() -> None:
    backend: Any = Clockwork(lag=2)
    first = run_steps(backend, ['a', 'b', 'c'], 4)
    timed = run_steps(backend, ['a', 'b', 'c'], 3, 4)
    assert backend.seen == ['a', 'b', 'c', 'a', 'b', 'c', 'a']
    times = np.concatenate([np.stack([s.begin_ns, s.end_ns], 1).ravel() for s in (first, timed)])
    assert (np.diff(times) >= 0).all()


def test_a_backend_that_gives_no_action_is_no_row() -> None:
    backend: Any = Clockwork(lag=2, silent=True)
    with pytest.raises(ValueError, match=r'^step 2: no action; the pipeline is full after 2'):
        run_steps(backend, ['a'], 4)


def test_warm_up_is_told_stage_by_stage() -> None:
    lines: list[str] = []
    now = iter([0.0, 2.0, 2.0, 2.5, 2.5, 5.5])
    clock = StageClock(lines.append, lambda: next(now))
    for stage in ('build', 'capture', 'build'):
        clock(stage)
    clock.stop()
    clock.stop()
    assert clock.seconds == {'build': 5.0, 'capture': 0.5}
    assert len(lines) == 3


# Targets

def row(backend: str, precision: str, p50: float, **changes: Any) -> dict[str, Any]:
    return {'backend': backend, 'precision': precision, 'actions_per_s': 1e3 / p50,
            'action_ms': dict.fromkeys(PERCENTILES, p50), 'vision_ms': 2.5, 'prefill_ms': 7.0,
            'decode_ms_per_token': 3.5, 'allocations_after_warm_up': 0, **changes}


def found(*rows: dict[str, Any], baseline: float | None = 175.0) -> dict[str, Any]:
    """Targets by name."""
    named = {f'{each["backend"]}_{each["precision"]}': each for each in rows}
    return {target.name: target
            for target in targets({'action_ms': {'p50': baseline}}, named)}


def test_the_targets_of_7b_are_those_that_were_promised() -> None:
    made = found(row('graph', 'bf16', 31.9), row('actionflow', 'bf16', 11.0),
                 row('graph', 'fp8', 18.0), row('graph', 'int4-weight', 15.0))
    assert {name: (target.limit, target.least, target.met) for name, target in made.items()
            if 'p99.9' not in name and 'allocations' not in name} == {
        'graph bf16, action p50': (32.0, False, True),
        'graph bf16, decode': (3.7, False, True),
        'graph bf16, prefill': (7.5, False, True),
        'graph bf16, vision': (3.0, False, True),
        'graph bf16, times faster than transformers': (5.0, True, True),
        'actionflow bf16, actions': (90.0, True, True),
        'actionflow bf16, times faster than transformers': (15.0, True, True),
        'graph int4-weight, action p50': (20.0, False, True)}
    assert made['graph bf16, times faster than transformers'].value == pytest.approx(175 / 31.9)
    assert made['actionflow bf16, times faster than transformers'].value == pytest.approx(175 / 11)


def test_the_tail_and_allocations_are_targets_of_every_captured_row() -> None:
    spiked = row('graph', 'fp8', 10.0, allocations_after_warm_up=1)
    spiked['action_ms']['p999'] = 11.6
    made = found(spiked, row('actionflow', 'bf16', 10.0), row('jacobi', 'bf16', 10.0),
                 row('actionflow+overlap', 'fp8/bf16', 10.0))
    assert made['actionflow+overlap fp8/bf16, p99.9 over p50'].met
    assert not made['graph fp8, p99.9 over p50'].met
    assert not made['graph fp8, allocations after warm-up'].met
    assert made['actionflow bf16, p99.9 over p50'].met
    assert not any('jacobi' in name for name in made)


def test_a_missing_figure_misses_its_target() -> None:
    made = found(row('graph', 'bf16', 20.0, decode_ms_per_token=None), baseline=None)
    assert not made['graph bf16, decode'].met
    assert not made['graph bf16, times faster than transformers'].met
    assert math.isnan(made['graph bf16, times faster than transformers'].value)


def test_a_row_that_failed_has_no_targets() -> None:
    assert found({'backend': 'graph', 'precision': 'bf16', 'error': 'out of memory'}) == {}


# Arguments

def parsed(*words: str) -> Namespace:
    parser = ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(['engine', '--random-weights', *words])


def test_every_backend_is_measured_with_every_precision_that_it_has() -> None:
    rows = rows_of(parsed('--backend', 'baseline', 'graph', '--precision', 'bf16', 'fp8'), 'cuda')
    assert rows == [Row('baseline', 'bf16', 200), Row('graph', 'bf16', 2000),
                    Row('graph', 'fp8', 2000)]


def test_without_choices_a_gpu_has_all_rows_that_have_targets() -> None:
    rows = rows_of(parsed(), 'cuda:0')
    names = [each.name for each in rows]
    assert {each.backend: each.actions for each in rows} == {
        'graph': 2000, 'actionflow': 2000, 'actionflow+overlap': 2000, 'jacobi': 500,
        'baseline': 200}
    assert {'graph_bf16', 'actionflow_bf16', 'actionflow+overlap_bf16', 'graph_fp8',
            'graph_int8-weight', 'graph_int4-weight', 'graph_int4-weight/fp8', 'jacobi_bf16',
            'baseline_bf16'} == set(names)
    assert {each.precision for each in rows_of(parsed(), 'cpu')} == {'fp32'}


def test_the_prompt_can_have_a_precision_of_its_own() -> None:
    rows = rows_of(parsed('--backend', 'graph', 'actionflow+overlap', '--precision',
                          'int4-weight/fp8'), 'cuda')
    assert [each.name for each in rows] == ['graph_int4-weight/fp8',
                                            'actionflow+overlap_int4-weight/fp8']


def test_rows_can_have_their_own_number_of_actions() -> None:
    args = parsed('--backend', 'graph', 'jacobi', '--precision', 'bf16', 'fp8',
                  '--actions', '100', 'jacobi=50', 'graph_fp8=7')
    assert {each.name: each.actions for each in rows_of(args, 'cuda')} == {
        'graph_bf16': 100, 'graph_fp8': 7, 'jacobi_bf16': 50, 'jacobi_fp8': 50}


# The command

def start(*words: str, path: str = '', **environment: str) -> tuple[int, str, str]:
    known = {**os.environ, **environment,
             'PYTHONPATH': os.pathsep.join(filter(None, [path, str(ROOT)]))}
    done = subprocess.run(
        [sys.executable, '-m', 'vla_ros.tools.cli', 'bench', 'engine', *words], cwd=ROOT,
        env=known, capture_output=True, text=True, timeout=110.0, check=False)
    return done.returncode, done.stdout, done.stderr


TINY = ('--shape', 'tiny', '--device', 'cpu', '--random-weights')


def check_row(figures: dict[str, Any], actions: int) -> None:
    assert figures['actions'] == actions
    for times in ('action_ms', 'action_age_ms'):
        ordered = [figures[times][name] for name in PERCENTILES]
        assert ordered == sorted(ordered)
        assert ordered[0] > 0.0
    assert figures['actions_per_s'] > 0.0
    assert figures['floor_ms'] > 0.0
    assert figures['times_floor'] == pytest.approx(
        figures['action_ms']['p50'] / figures['floor_ms'], rel=0.05)
    assert {'vision_ms', 'prefill_ms', 'decode_ms_per_token', 'memory_gb', 'warm_up_s', 'lag',
            'allocations_after_warm_up', 'peak_memory_gb', 'passes'} <= set(figures)
    assert 'build' in figures['warm_up_s']


def test_the_json_has_what_it_promises(tmp_path: Path) -> None:
    pytest.importorskip('torch')
    pytest.importorskip('transformers')
    file = tmp_path / 'found.json'
    status, output, errors = start(*TINY, '--actions', '6', 'jacobi=4', '--baseline-actions', '3',
                                   '--json', str(file))
    assert status == 0, errors
    figures = json.loads(file.read_text())
    assert set(figures) == {'run', 'machine', 'ceilings', 'floor', 'baseline', 'backends',
                            'targets'}
    assert {'cores', 'cpu', 'gpu', 'driver', 'torch', 'triton'} <= set(figures['machine'])
    assert figures['ceilings']['copy_tb_s'] > 0.0
    assert figures['ceilings']['matmul_tflops'] > 0.0
    assert figures['ceilings']['matmul_prefill_rows'] == 4 + 22
    assert figures['run']['prompt_tokens'] == 4 + 22
    assert set(figures['floor']['fp32']) == {
        'vision_ms', 'prefill_ms', 'decode_ms_per_token', 'action_ms', 'tick_ms'}
    assert set(figures['baseline']['action_ms']) == set(PERCENTILES)
    assert figures['baseline']['action_ms']['p50'] > 0.0
    assert figures['baseline']['actions'] == 3
    rows = figures['backends']
    assert set(rows) == {'baseline_fp32', 'graph_fp32', 'actionflow_fp32', 'jacobi_fp32'}
    for name, actions in (('baseline_fp32', 3), ('graph_fp32', 6), ('actionflow_fp32', 6),
                          ('jacobi_fp32', 4)):
        check_row(rows[name], actions)
        assert rows[name]['times_faster'] > 0.0
    for name in ('baseline_fp32', 'graph_fp32', 'jacobi_fp32'):
        assert rows[name]['action_age_ms'] == rows[name]['action_ms']
    flow = rows['actionflow_fp32']
    assert flow['lag'] == 6
    assert flow['action_age_ms']['p50'] > 3 * flow['action_ms']['p50']
    assert 1.0 <= rows['jacobi_fp32']['passes'] <= 7.0
    for stage in ('vision_ms', 'prefill_ms', 'decode_ms_per_token'):
        assert rows['graph_fp32'][stage] > 0.0
    assert figures['targets'] == []  # they are of 7B on a GPU
    for text in ('transformers', 'graph_fp32', 'Warm-up, not counted'):
        assert text in output


TOO_LONG = ('--text-tokens', '70')  # for the buckets of graphs, not for the baseline


def test_what_fails_leaves_the_other_rows(tmp_path: Path) -> None:
    """Rows that cannot run, and no transformers."""
    pytest.importorskip('torch')
    (tmp_path / 'transformers.py').write_text("raise ImportError('no transformers here')\n")
    status, output, errors = start(
        *TINY, *TOO_LONG, '--actions', '2', '--baseline-actions', '2', '--backend', 'graph',
        'baseline', '--json', path=str(tmp_path))
    assert status == 0, errors
    figures = json.loads(output)
    assert 'no transformers here' in figures['baseline']['error']
    assert figures['baseline']['action_ms'] == dict.fromkeys(PERCENTILES)
    rows = figures['backends']
    assert '70 tokens' in rows['graph_fp32']['error']
    assert '\n' not in rows['graph_fp32']['error']
    assert rows['graph_fp32']['error'] in errors
    check_row(rows['baseline_fp32'], 2)
    assert rows['baseline_fp32']['times_faster'] is None


def test_a_bench_of_which_every_row_failed_ends_with_one() -> None:
    pytest.importorskip('torch')
    status, output, _ = start(*TINY, *TOO_LONG, '--backend', 'graph', '--actions', '1',
                              '--baseline-actions', '0', '--json')
    assert status == 1
    assert 'error' in json.loads(output)['backends']['graph_fp32']


@pytest.mark.parametrize(('words', 'line'), [
    (('--actions', '0'), "--actions: '0': a number from 1 on"),
    (('--actions', 'graph='), "--actions: 'graph=': a number from 1 on"),
    (('--actions', 'grph=5'), '--actions: grph: no such row; there are baseline_fp32, graph_fp32'),
    (('--baseline-actions', '-1'), '--baseline-actions: -1; allowed is 0 or more'),
    (('--text-tokens', '1'), '--text-tokens: 1; allowed is 2 to 117'),
    (('--text-tokens', '500'), '--text-tokens: 500; allowed is 2 to 117'),
    (('--threads', '0'), '--threads: 0; allowed is 1 to 1024'),
    (('--device', 'tpu'), '--device: tpu; allowed are cpu, cuda and cuda:<number>'),
    (('--backend', 'baseline', '--precision', 'fp8'), '--precision: fp8: the baseline runs in'),
    (('--json', '/nowhere/x.json'), '/nowhere/x.json: no such folder'),
    (('--json', 'x.txt'), 'x.txt: the name must end with .json')])
def test_arguments_that_make_no_sense_are_one_line(
        words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('torch')
    from vla_ros.tools import cli
    assert cli.main(['bench', 'engine', *TINY, *words]) == 1
    written = capsys.readouterr()
    assert written.err.startswith(f'vla-ros: {line}')
    assert written.err.count('\n') == 1


@pytest.mark.parametrize('words', [
    ('--shape', 'tiny'), ('--random-weights', '--model', 'x'),
    ('--random-weights', '--backend', 'fast'), ('--random-weights', '--precision', 'int2')])
def test_choices_that_do_not_exist_are_refused(words: tuple[str, ...]) -> None:
    from vla_ros.tools import cli
    with pytest.raises(SystemExit) as ended:
        cli.main(['bench', 'engine', *words])
    assert ended.value.code == 2
