"""Recording episodes of the expert, and fitting a policy to them."""

from __future__ import annotations

import json
import multiprocessing
import os
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from vla_ros.core.types import ImageSize
from vla_ros.sim.arm import HIGH, LOW
from vla_ros.sim.expert import Expert, gripper_position
from vla_ros.sim.judge import Judge
from vla_ros.sim.tasks import parse
from vla_ros.sim.trial import TRIALS, make_trial
from vla_ros.sim.world import World
from vla_ros.tools.cli import main

pytestmark = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
SIDE, FRAMES, HORIZON = 128, 24, 16


@pytest.fixture(scope='module')
def world() -> World:
    made = World(dict.fromkeys(('base', 'wrist'), ImageSize(SIDE, SIDE)))
    yield made
    made.close()


@pytest.mark.parametrize('name', TRIALS)
def test_the_expert_does_every_task(world: World, name: str) -> None:
    for seed in range(4):
        trial, said, expert = make_trial(name, seed), -1, Expert()
        world.reset(trial.scene)
        judge = Judge(trial.said[0].task, world.snapshot())
        while not (judge.success and said + 1 == len(trial.said)):
            now = world.snapshot()
            assert now.time_ns < trial.limit_s * 1e9, f'{name} {seed} is not done'
            if said + 1 < len(trial.said) and now.time_ns >= trial.said[said + 1].time_s * 1e9:
                said += 1
                judge = Judge(trial.said[said].task, now)
            judge.update(now)
            joints, gripper = expert.act(now, trial.said[said].task)
            world.command(joints, gripper_position(gripper))
            world.step_to(now.time_ns + 20_000_000)


def test_an_episode_is_drawn_from_its_seed_and_labels_only_what_the_expert_did(
        world: World) -> None:
    from vla_ros.training.episodes import record
    episodes = [record(world, seed, FRAMES, HORIZON) for seed in (11, 12, 11)]
    for name in ('images', 'state', 'targets', 'valid', 'objects', 'things'):
        np.testing.assert_array_equal(getattr(episodes[0], name), getattr(episodes[2], name))
    assert episodes[0].sentences == episodes[2].sentences
    assert (episodes[0].state != episodes[1].state).any()
    valid = np.concatenate([episode.valid for episode in episodes[:2]])
    assert valid.any()
    assert (~valid).any()
    # A label ends with the segment that it belongs to: later steps are never valid again.
    assert (np.diff(valid.astype(int), axis=1) <= 0).all()
    for episode in episodes[:2]:
        assert all(parse(sentence) for sentence in episode.sentences)
        joints = episode.targets[..., :6]
        assert (joints >= np.array(LOW, np.float32)).all()
        assert (joints <= np.array(HIGH, np.float32)).all()
        present = np.isfinite(episode.things).all(-1)
        assert (present.sum(axis=1) == 5).all()  # three blocks, two bowls


def test_a_driver_moves_the_arm_between_the_corrections(world: World) -> None:
    from vla_ros.training.episodes import record
    asked = []

    def stay(images: dict, state: np.ndarray, sentence: str, time_ns: int) -> np.ndarray:
        asked.append((set(images), sentence, time_ns))
        return np.tile([*state[:6], 1.0], (HORIZON, 1))

    episode = record(world, 3, 3 * FRAMES, HORIZON, stay)
    assert len(asked) == 3 * FRAMES
    assert asked[0][0] == {'base', 'wrist'}
    assert episode.valid.any()
    assert not episode.valid.all()


def test_recording_refuses_seeds_of_the_evaluation(capsys: pytest.CaptureFixture[str],
                                                   tmp_path: Path) -> None:
    assert main(['train', 'sim', 'record', str(tmp_path / 'x'), '--episodes', '2', '--seed',
                 '999999']) == 1
    assert 'seeds from 0 to 999999 are for training' in capsys.readouterr().err


@pytest.mark.parametrize('how', ['grow', 'fit'])
def test_a_checkpoint_to_go_on_from_is_looked_at_before_anything_else(
        capsys: pytest.CaptureFixture[str], tmp_path: Path, how: str) -> None:
    begin = ['train', 'sim', how, str(tmp_path / 'data'), '--out', str(tmp_path / 'out')]
    half = tmp_path / 'half'
    half.mkdir()
    (half / 'config.json').write_text('{"model_type": "openvla"}')
    for start, family, told in (
            ('nope', 'openvla', 'nope: no such checkpoint'),
            (str(Path(__file__).parents[1] / 'models/edgevla_sim'), 'openvla',
             'a checkpoint of family edgevla'),
            (str(half), 'openvla', 'has no model.safetensors')):
        assert main([*begin, '--start', start, '--family', family]) == 1
        assert told in capsys.readouterr().err
    assert not (tmp_path / 'data').exists()


def test_what_is_no_dataset_is_one_line(tmp_path: Path) -> None:
    from vla_ros.training.dataset import load
    with pytest.raises(ValueError, match='not a recorded dataset'):
        load(tmp_path)


@pytest.fixture(scope='module')
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vla_ros.training.dataset import Shape, generate
    folder = tmp_path_factory.mktemp('data') / 'episodes'
    generate(folder, Shape(4, FRAMES, HORIZON, SIDE), seed=40, workers=2)
    return folder


def test_workers_record_what_one_process_would(recorded: Path, world: World) -> None:
    from vla_ros.training.dataset import load
    from vla_ros.training.episodes import record
    dataset, alone = load(recorded), record(world, 42, FRAMES, HORIZON)
    np.testing.assert_array_equal(dataset.arrays['targets'][2], alone.targets)
    np.testing.assert_array_equal(dataset.arrays['state'][2], alone.state)
    assert tuple(dataset.sentences[i] for i in dataset.arrays['sentence'][2]) == alone.sentences


def test_a_worker_that_dies_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                        capfd: pytest.CaptureFixture[str]) -> None:
    from vla_ros.training import dataset
    monkeypatch.setattr(dataset, '_prepare', partial(os._exit, 9))  # in each worker, at its start
    folder = tmp_path / 'episodes'
    assert main(['train', 'sim', 'record', str(folder), '--episodes', '3', '--frames', '2',
                 '--workers', '2']) == 1
    assert capfd.readouterr().err == (
        f'vla-ros: {folder}: a process that recorded for it died after 0 of 3 episodes (memory, or '
        'a crash told above); record again with fewer workers\n')


def test_what_a_worker_left_unfinished_is_no_dataset(tmp_path: Path) -> None:
    from vla_ros.training.dataset import BLOCK, Shape, generate, load

    def kill(done: int) -> None:
        """As a kernel that is out of memory does."""
        for process in multiprocessing.active_children():
            process.kill()

    shape = Shape(4 * BLOCK, 2, HORIZON, SIDE)
    with pytest.raises(ValueError, match=rf' died after \d+ of {4 * BLOCK} episodes '):
        generate(tmp_path, shape, seed=0, workers=1, report=kill)
    with pytest.raises(ValueError, match='not a recorded dataset'):
        load(tmp_path)
    assert not multiprocessing.active_children()


def test_sequences_have_random_strides_and_true_times(recorded: Path) -> None:
    pytest.importorskip('torch')
    from vla_ros.policies.edgevla.config import small
    from vla_ros.sim.tasks import VOCABULARY
    from vla_ros.training.dataset import load
    from vla_ros.training.edgevla_trainer import Sequences
    from vla_ros.training.trainer import Recipe
    batches = Sequences(small(VOCABULARY), Recipe(frames=6))
    batches.add(load(recorded))
    batch = batches.draw(np.random.default_rng(0), 32)
    since = batch['since'].numpy()
    assert (since[:, 0] == 0.0).all()
    assert len(np.unique(since[:, 1:].round(3))) > 2
    assert batch['images'].shape == (32, 6, 2, SIDE, SIDE, 3)
    kept = batches.draw(np.random.default_rng(0), 8, held_out=True)
    assert (kept['state'][0, 0].numpy() == batches._parts[0]['state'][0].numpy()).all(-1).any()


def test_fitting_learns_and_writes_a_checkpoint_that_runs(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip('torch')
    pytest.importorskip('onnx')
    from vla_ros.engines.registry import make_engine
    from vla_ros.profiles.engine import load_engine
    from vla_ros.profiles.policy import load_policy
    out = tmp_path / 'made'
    assert main(['train', 'sim', 'fit', str(recorded), '--out', str(out), '--steps', '12',
                 '--batch', '2', '--frames', '4', '--rate', '3e-3']) == 0
    curves = json.loads((out / 'training.json').read_text())['curves']
    assert curves[-1]['held_out_thing_cm'] < curves[0]['held_out_thing_cm']
    engine = make_engine(replace(load_policy('edgevla_sim'), checkpoint=out), load_engine('cpu'))
    engine.load()
    chunk = engine.infer(engine.preprocess(engine.example()))
    assert chunk.shape == (16, 7)
    assert np.isfinite(chunk).all()


class CutOff(Exception):
    """Raised in the middle of a training."""


def test_a_training_that_is_cut_off_can_be_gone_on_from(recorded: Path, tmp_path: Path) -> None:
    pytest.importorskip('torch')
    pytest.importorskip('onnx')
    from vla_ros.policies.edgevla import checkpoint
    from vla_ros.training.dataset import load
    from vla_ros.training.families import EdgeVlaFamily, add_all
    from vla_ros.training.trainer import Recipe, stages
    recipe = Recipe(steps=1000, batch=1, frames=2, report_every=1, save_minutes=0.0)
    batches, trainer = EdgeVlaFamily().begin(load(recorded), recipe, None)
    add_all(batches, [load(recorded)])

    def cut(folder: Path) -> None:
        raise CutOff(folder)

    with pytest.raises(CutOff) as ended:
        trainer.train(tmp_path / 'cut', lambda row: None, cut)
    start = tmp_path / 'cut' / 'after_1'
    assert ended.value.args == (start,)
    assert set(EdgeVlaFamily.files) <= {file.name for file in start.iterdir()}
    story, = stages(start)
    assert story['recipe'] == asdict(recipe)
    assert story['episodes'] == len(batches)
    assert story['curves'] == trainer.curves
    assert [row['step'] for row in story['curves']] == list(range(len(story['curves'])))

    out = tmp_path / 'made'
    assert main(['train', 'sim', 'fit', str(recorded), '--out', str(out), '--start', str(start),
                 '--steps', '1', '--batch', '1', '--frames', '2', '--rate', '1e-9']) == 0
    first, second = stages(out)
    assert first == story
    assert second['recipe']['steps'] == 1
    weights = checkpoint.load(start).state_dict()
    for name, value in checkpoint.load(out).state_dict().items():
        assert (value - weights[name]).abs().max() < 1e-6, name
