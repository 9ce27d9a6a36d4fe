"""`vla-ros bench`: what it prints and how it ends. How fast this machine is, is no test."""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')
pytest.importorskip('rich', reason='rich is not installed')
pytest.importorskip('psutil', reason='psutil is not installed')

from vla_ros.tools.bench_control import targets as control_targets  # noqa: E402
from vla_ros.tools.bench_pipeline import targets as pipeline_targets  # noqa: E402
from vla_ros.tools.latency_join import (  # noqa: E402
    MOMENTS,
    STAGES,
    LatencyJoin,
    overhead_ms,
    stage_ms,
)
from vla_ros.tools.measure import (  # noqa: E402
    Target,
    missed,
    period_errors_ms,
    plain,
    spread,
    within,
)

ROOT = Path(__file__).parents[1]
MS = 1_000_000
PERIOD_NS = 20 * MS
PERCENTILES = {'p50', 'p99', 'p999', 'max'}


def start(words: Sequence[str]) -> subprocess.Popen[str]:
    environment = dict(os.environ) | {'ROS_DOMAIN_ID': str(random.SystemRandom().randint(1, 100))}
    environment['PYTHONPATH'] = os.pathsep.join([str(ROOT), environment.get('PYTHONPATH', '')])
    return subprocess.Popen(
        [sys.executable, '-m', 'vla_ros.tools.cli', 'bench', *words], cwd=ROOT, env=environment,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def bench(*words: str) -> tuple[int, str, str]:
    process = start(words)
    output, errors = process.communicate(timeout=100.0)
    return process.returncode, output, errors


def check_spread(figures: dict[str, float]) -> None:
    assert set(figures) == PERCENTILES
    ordered = [figures[name] for name in ('p50', 'p99', 'p999', 'max')]
    assert ordered == sorted(ordered)


# Figures of known times

def grid(*periods_ms: float) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.cumsum([7, *(round(p * MS) for p in periods_ms)]).astype(np.int64)


def test_a_period_error_is_the_distance_from_the_period_either_way() -> None:
    assert period_errors_ms(grid(20, 21, 18.5), PERIOD_NS).tolist() == [0.0, 1.0, 1.5]


@pytest.mark.parametrize(('periods', 'count'), [
    ((20, 20, 20), 0), ((20, 40, 20), 1), ((35, 5, 20), 0), ((20, 75, 5, 20), 2), ((), 0)])
def test_a_missed_tick_is_one_that_the_grid_has_and_the_loop_has_not(
        periods: tuple[float, ...], count: int) -> None:
    assert missed(grid(*periods), PERIOD_NS) == count


def test_a_spread_has_the_percentiles_and_nan_where_there_is_nothing() -> None:
    assert spread(range(1001)) == {'p50': 500.0, 'p99': 990.0, 'p999': 999.0, 'max': 1000.0}
    assert all(math.isnan(value) for value in spread([]).values())


def test_too_few_ticks_are_named() -> None:
    with pytest.raises(ValueError, match=r'^floor: 1 ticks in 1\.0 s; at least 2 are needed'):
        within(np.array([5, 1000 * MS]), 0, 1000 * MS, 'floor')


def test_a_target_without_a_figure_is_missed() -> None:
    assert Target('a', 1.0, 1.0).met
    assert not Target('a', 1.1, 1.0).met
    assert not Target('a', math.nan, 1.0).met


def test_json_has_null_where_a_figure_is_not_known() -> None:
    assert plain({'a': [1.0, math.nan, {'b': math.inf}]}) == {'a': [1.0, None, {'b': None}]}


# Stages

def moments(stamp: int, **changed: int) -> dict[str, int]:
    """All moments of an observation, 1 ms apart; `free` is found out, not said."""
    values = {name: stamp + i * MS for i, name in enumerate(MOMENTS) if name != 'free'}
    return values | changed


def joined(*records: dict[str, int]) -> list[dict[str, int]]:
    join = LatencyJoin()
    for record in records:
        for name, value in record.items():  # every moment in a message of its own
            join.add({'stamp': str(record['stamp']), name: str(value)})
    return join.complete(0, 1 << 62)


def test_stages_together_are_the_whole_way() -> None:
    records = joined(moments(1000 * MS))
    total = sum(float(stage_ms(records, stage)[0]) for stage in STAGES)
    assert total == pytest.approx((records[0]['command'] - records[0]['stamp']) / MS)


def test_waiting_for_a_busy_engine_is_a_stage_of_its_own_and_no_overhead() -> None:
    first = moments(1000 * MS)
    busy_until_ns = first['inferred'] + 80 * MS
    first |= {'inferred': busy_until_ns, 'taken': busy_until_ns, 'merged': busy_until_ns}
    second = moments(1020 * MS, started=busy_until_ns + 2 * MS,
                     preprocessed=busy_until_ns + 2 * MS, inferred=busy_until_ns + 2 * MS)
    records = joined(first, second)
    waited = stage_ms(records, 'engine busy with an earlier one')[1]
    assert waited == pytest.approx((busy_until_ns - second['image_received']) / MS)
    assert stage_ms(records, 'queue')[1] == pytest.approx(2.0)
    assert overhead_ms(records)[1] == pytest.approx(
        (second['plan_received'] - second['stamp']) / MS - waited)


def test_an_observation_that_never_became_a_command_is_no_record() -> None:
    unplayed = moments(1000 * MS)
    del unplayed['plan_received'], unplayed['command']
    assert joined(unplayed) == []


# The commands

def test_control_prints_the_figures_that_it_promises() -> None:
    status, output, errors = bench('control', '--seconds', '3', '--load', 'cpu', '--json')
    assert status == 0, errors
    figures = json.loads(output)
    assert {'ticks', 'missed', 'fifo', 'cpu_percent', 'period_error_ms', 'subscriber',
            'rclpy_timer', 'floor', 'machine', 'targets'} <= set(figures)
    for loop in (figures, figures['rclpy_timer'], figures['floor']):
        check_spread(loop['period_error_ms'])
        assert loop['ticks'] + loop['missed'] == pytest.approx(150, abs=2)
    check_spread(figures['subscriber']['period_error_ms'])
    assert figures['subscriber']['ticks'] > 0
    assert figures['cpu_percent'] > 0.0
    assert figures['libraries'] == {'torch': False, 'cv2': False}
    assert figures['image_topics'] == []
    assert figures['load'] == 'cpu'
    assert [target['met'] for target in figures['targets']] == [
        target.met for target in control_targets(figures)]
    assert 'rclpy timer' in errors  # the table


def test_pipeline_prints_the_figures_that_it_promises() -> None:
    status, output, errors = bench('pipeline', '--seconds', '2', '--json')
    assert status == 0, errors
    figures = json.loads(output)
    assert set(figures['engines_ms']) == {'0', '80'}
    for run in (figures, *figures['engines_ms'].values()):
        check_spread(run['overhead_ms'])
        assert set(run['stages_ms']) == set(STAGES)
        for stage in run['stages_ms'].values():
            check_spread(stage)
        assert run['lost_frames'] >= 0
    slow = figures['engines_ms']['80']
    assert slow['stages_ms']['engine']['p50'] >= 80.0
    assert 0 < slow['commanded'] <= slow['frames']
    assert figures['size'] == [640, 480]
    assert [target['met'] for target in figures['targets']] == [
        target.met for target in pipeline_targets(figures)]
    assert 'tick_wait' in errors  # the table


@pytest.mark.parametrize(('words', 'line'), [
    (('control', '--seconds', '0'), 'vla-ros: --seconds: 0: must be greater than 0'),
    (('pipeline', '--seconds', 'nan'), 'vla-ros: --seconds: nan: must be greater than 0'),
    (('pipeline', '--size', '640'),
     "vla-ros: --size: '640': width and height in pixels, such as 640x480"),
    (('pipeline', '--size', '0x480'),
     "vla-ros: --size: '0x480': width and height in pixels, such as 640x480")])
def test_arguments_that_make_no_sense_are_one_line(words: tuple[str, ...], line: str) -> None:
    assert bench(*words) == (1, '', f'{line}\n')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_bench_leaves_no_process(number: signal.Signals) -> None:
    process = start(('control', '--seconds', '60', '--load', 'cpu'))
    deadline = time.monotonic() + 40.0
    while len(children := offspring(process.pid)) < 5:  # load, publisher, feed, timer, floor
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 130, errors
    assert 'Traceback' not in errors
    assert not [child for child in children if Path(f'/proc/{child}').exists()]


def offspring(pid: int) -> list[int]:
    return [int(child) for child in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]
