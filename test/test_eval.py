"""`vla-ros eval sim`: intervals, settings, figures, film, and a run in process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import yaml

from vla_ros.profiles.locate import config_folder
from vla_ros.sim.kinematics import reach_down
from vla_ros.sim.trial import HELD_OUT, TRIALS, Trial, make_trial
from vla_ros.sim.trial_record import TrialResult
from vla_ros.sim.wilson import wilson
from vla_ros.tools.cli import main
from vla_ros.tools.eval_settings import EvalSettings, tasks_of

ROOT = Path(__file__).resolve().parent.parent
needs_mujoco = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')


# --- the interval --------------------------------------------------------------------------------

@pytest.mark.parametrize(('successes', 'episodes', 'low', 'high'), [
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
])
def test_wilson_gives_known_intervals(
        successes: int, episodes: int, low: float, high: float) -> None:
    np.testing.assert_allclose(wilson(successes, episodes), (low, high), atol=6e-5)


def test_wilson_is_symmetric_and_holds_the_rate() -> None:
    for successes in range(21):
        low, high = wilson(successes, 20)
        other = wilson(20 - successes, 20)
        assert 0.0 <= low <= successes / 20 <= high <= 1.0
        np.testing.assert_allclose((low, high), (1 - other[1], 1 - other[0]))


@pytest.mark.parametrize('numbers', [(1, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_cannot_be(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match='wilson'):
        wilson(*numbers)


# --- settings ------------------------------------------------------------------------------------

def test_evaluation_seeds_are_no_training_seeds_and_differ_by_seed() -> None:
    seeds = [EvalSettings(('reach',), 100_000, seed).seeds() for seed in (0, 1, 9999)]
    assert min(seeds[0]) == HELD_OUT
    assert not {*seeds[0]} & {*seeds[1]}
    assert EvalSettings(('reach',), 3, 2).seeds() == range(1_200_000, 1_200_003)


def test_all_stands_for_every_task_once() -> None:
    assert tasks_of(['push', 'all']) == ('push', *[name for name in TRIALS if name != 'push'])


@pytest.mark.parametrize(('changes', 'message'), [
    ({'tasks': ('juggle',)}, 'task: juggle: allowed is reach, push, pick, bowl, change, all'),
    ({'episodes': 0}, 'episodes: 0: allowed is 1 to 100000'),
    ({'seed': -1}, 'seed: -1: allowed is 0 to 9999'),
    ({'method': 'blend'}, 'merge: blend: allowed is latest_only'),
    ({'latency_s': -0.1}, 'latency: -0.1: allowed is 0 to 10 s'),
    ({'delay_s': float('nan')}, 'delay: nan'),
    ({'camera_rate': 30.0}, 'camera-rate: 30.0: allowed is 2 to 100 Hz with a period that is a '
                            'multiple of 10 ms: 100, 50, 25'),
    ({'camera_rate': 0.0}, 'camera-rate: 0.0'),
    ({'camera_rate': 1000.0}, 'camera-rate: 1000.0'),
    ({'camera_rate': float('nan')}, 'camera-rate: nan'),
    ({'fast': False, 'camera_rate': 50.0}, 'camera-rate: 50.0: allowed is 10, or others with'),
    ({'fast': False, 'method': 'pop_by_count'}, 'baselines only with --fast'),
    ({'fast': False, 'latency_s': 0.2}, 'latency: 0.2: allowed is 0, or any with --fast'),
    ({'fast': False, 'expert': True}, 'expert: True: allowed is only with --fast'),
])
def test_wrong_setting_is_one_line(changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        replace(EvalSettings(('reach',), 3, fast=True), **changes)
    assert message in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(('rate', 'frame_ms'), [
    (100.0, 10), (50.0, 20), (33.33, 30), (25.0, 40), (10.0, 100), (2.0, 500)])
def test_camera_rate_reaches_the_trials_and_the_report(rate: float, frame_ms: int) -> None:
    settings = EvalSettings(('reach',), 1, fast=True, camera_rate=rate)
    assert settings.loop().frame_ns == frame_ms * 1_000_000
    assert settings.json()['camera_rate_hz'] == pytest.approx(1000 / frame_ms)


# --- figures -------------------------------------------------------------------------------------

def result(seed: int, success: bool, **changes: object) -> TrialResult:
    """A trial of a robot with one joint and a gripper."""
    made = TrialResult(
        name='reach', seed=seed, sentence='reach', success=success,
        success_s=2.0 if success else float('nan'), seconds=4.0, control_period_s=0.02,
        joints=(0,), commands=np.zeros((10, 2)), seams=np.array([[0.1, 9.0], [0.3, 9.0]]),
        offered=np.array([[np.nan, np.nan], [0.5, 0.0]]), delays_s=np.array([0.05, 0.07]),
        inferences_s=np.array([0.01]), holds={'plan exhausted': 1})
    return replace(made, **changes)


def test_figures_are_pooled_over_episodes_in_order_of_seeds() -> None:
    pytest.importorskip('rich', reason='rich is not installed')
    from vla_ros.tools.eval_figures import figures
    found = figures([result(2, False), result(1, True), result(0, True)])
    assert found.outcomes == (True, True, False)
    assert (found.episodes, found.successes) == (3, 2)
    assert found.success_s == 2.0
    assert found.seam_p50 == pytest.approx(0.2), 'the gripper is no joint'
    assert found.offered_p50 == pytest.approx(0.5)
    assert found.delay_p50 == pytest.approx(0.06)
    assert found.jerk_rms == 0.0
    assert found.holds == {'plan exhausted': 3}
    assert found.json()['success'] == pytest.approx(2 / 3, abs=1e-6)
    assert found.json()['ci95'] == [round(end, 4) for end in wilson(2, 3)]


def test_figures_of_trials_in_which_nothing_happened_are_nothing() -> None:
    pytest.importorskip('rich', reason='rich is not installed')
    from vla_ros.tools.eval_figures import figures, table
    from vla_ros.tools.measure import plain
    empty = result(0, False, commands=np.full((9, 2), np.nan), seams=np.empty((0, 2)),
                   offered=np.empty((0, 2)), delays_s=np.empty(0), inferences_s=np.empty(0))
    found = figures([empty])
    assert plain(found.json())['jerk_rad_s3'] == {'rms': None, 'p99': None}
    assert table({'reach': found}, 'title').row_count == 1


def test_film_shows_every_frame_in_its_colours(tmp_path: Path) -> None:
    image = pytest.importorskip('PIL.Image', reason='Pillow is not installed')
    from vla_ros.tools.film import FilmFrame, write_film
    frames = []
    for episode in range(2):
        for i in range(4):
            pixels = np.full((60, 80, 3), 60 + 40 * episode, np.uint8)
            pixels[10:20, 10 + 10 * i:20 + 10 * i] = (240, 200, 20)
            frames.append(FilmFrame(pixels, f'sentence {episode}', i == 3, last=i == 3))
    write_film(frames, tmp_path / 'film.gif')
    film = image.open(tmp_path / 'film.gif')
    assert film.n_frames == 8
    for i, frame in enumerate(frames):
        film.seek(i)
        shown = np.asarray(film.convert('RGB')).astype(int)
        assert shown.shape[1] == 80
        assert np.abs(shown[:60] - frame.pixels).max() < 24
        assert film.info['duration'] == (900 if frame.last else 100)


def test_film_of_nothing_is_refused(tmp_path: Path) -> None:
    from vla_ros.tools.film import write_film
    with pytest.raises(ValueError, match='no frames'):
        write_film([], tmp_path / 'film.gif')


# --- the command ---------------------------------------------------------------------------------

@needs_mujoco
def test_fast_evaluation_is_the_same_with_any_number_of_workers(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('rich', reason='rich is not installed')
    found = []
    for workers in (1, 2):
        assert main(['eval', 'sim', '--fast', '--expert', '--task', 'reach', '--task', 'pick',
                     '--episodes', '2', '--workers', str(workers), '--json', '-']) == 0
        captured = capsys.readouterr()
        assert 'the scripted expert on sim_arm' in captured.err
        report = json.loads(captured.out)
        assert {'tasks', 'machine', 'settings'} == set(report)
        assert report['tasks']['pick']['episodes'] == 2
        assert report['tasks']['pick']['success'] == 1.0
        assert report['settings']['first_trial_seed'] == HELD_OUT
        for task in report['tasks'].values():
            del task['inference_ms']  # how long it really took
        found.append(report['tasks'])
    assert found[0] == found[1]


@needs_mujoco
def test_film_of_the_first_episode_is_written(tmp_path: Path) -> None:
    image = pytest.importorskip('PIL.Image', reason='Pillow is not installed')
    file = tmp_path / 'film.gif'
    assert main(['eval', 'sim', '--fast', '--expert', '--task', 'reach', '--episodes', '1',
                 '--gif', str(file)]) == 0
    film = image.open(file)
    assert film.n_frames > 10
    assert film.size[0] == 400


@pytest.mark.parametrize(('words', 'message'), [
    (['--task', 'juggle'], 'task: juggle'),
    (['--workers', '0'], 'workers: 0'),
    (['--fast', '--camera-rate', '30'], 'camera-rate: 30.0: allowed is 2 to 100 Hz'),
    (['--gif', 'film.gif'], 'gif: only with --fast'),
    (['--json', '/nowhere/at/all.json'], 'no such folder'),
])
def test_wrong_word_is_one_line(
        words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('rich', reason='rich is not installed')
    assert main(['eval', 'sim', *words]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@needs_mujoco
def test_worker_that_fails_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip('rich', reason='rich is not installed')
    assert main(['eval', 'sim', '--fast', '--episodes', '1', '--task', 'reach',
                 '--model', '/nowhere/at/all']) == 1
    error = capsys.readouterr().err
    assert '/nowhere/at/all' in error
    assert 'Traceback' not in error


# --- through the graph ---------------------------------------------------------------------------

def arm_goes_to(trial: Trial, folder: Path) -> Path:
    """A policy that knows where this trial's thing is, and always answers that."""
    task = trial.said[-1].task
    things = trial.scene.bowls if task.thing == 'bowl' else trial.scene.blocks
    thing = next(thing for thing in things if thing.colour == task.colour)
    profile = yaml.safe_load((config_folder() / 'policies' / 'edgevla_sim.yaml').read_text())
    del profile['checkpoint']
    row = [*reach_down([thing.x, thing.y, 0.10]).tolist(), 1.0]
    profile |= {'family': 'scripted', 'options': {
        'motion': 'script', 'rows': [row], 'latency': 0.02}}
    file = folder / 'goes_there.yaml'
    file.write_text(yaml.safe_dump(profile, sort_keys=False))
    return file


@needs_mujoco
def test_an_episode_through_the_graph_in_real_time(tmp_path: Path) -> None:
    pytest.importorskip('rclpy', reason='ROS 2 is not installed')
    policy = arm_goes_to(make_trial('reach', HELD_OUT), tmp_path)
    report = tmp_path / 'report.json'
    words = ['--task', 'reach', '--episodes', '1', '--policy', str(policy), '--json', str(report),
             '--merge', 'latest_only', '--out', str(tmp_path / 'out')]
    done = subprocess.run(
        [sys.executable, '-m', 'vla_ros.tools.cli', 'eval', 'sim', *words], cwd=ROOT,
        env=os.environ | {'PYTHONPATH': str(ROOT)}, capture_output=True, text=True, timeout=100,
        check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(report.read_text())
    task = found['tasks']['reach']
    assert task['success'] == 1.0, done.stdout
    assert task['holds'] == {}
    assert 20.0 <= task['inference_ms']['p50'] <= task['delay_ms']['p50']
    assert task['jerk_rad_s3']['rms'] > 0.0
    assert found['settings']['merge'] == 'latest_only'
    logs = {file.stem for file in (tmp_path / 'out' / 'logs').glob('*.log')}
    assert logs == {'sim_robot', 'camera_node', 'inference_node', 'action_publisher'}


@needs_mujoco
def test_node_that_cannot_start_is_named_with_its_last_line(tmp_path: Path) -> None:
    pytest.importorskip('rclpy', reason='ROS 2 is not installed')
    done = subprocess.run(
        [sys.executable, '-m', 'vla_ros.tools.cli', 'eval', 'sim', '--model', '/nowhere/at/all',
         '--out', str(tmp_path / 'out')], cwd=ROOT, env=os.environ | {'PYTHONPATH': str(ROOT)},
        capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert '/nowhere/at/all' in done.stderr
    assert 'Traceback' not in done.stderr
