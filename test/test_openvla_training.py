"""Fitting an OpenVLA policy to recorded episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ('mujoco', 'torch', 'tokenizers', 'safetensors')),
    reason='MuJoCo, torch, tokenizers or safetensors is not installed')
FRAMES = 20


@pytest.fixture(scope='module')
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from vla_ros.training.dataset import Shape, generate
    folder = tmp_path_factory.mktemp('data') / 'episodes'
    generate(folder, Shape(3, FRAMES), seed=60, workers=1)
    return folder


def parts(folder: Path) -> tuple:
    """Dataset, config of a policy that a test can train, tokenizer."""
    from vla_ros.policies.openvla.config import Llama, Tower, Vision
    from vla_ros.training.dataset import load
    from vla_ros.training.openvla_trainer import make_config, tokenizer_of
    dataset = load(folder)
    config = make_config(dataset)
    vision = Vision(image=128, patch=32, images=2, dino=replace(
        config.vision.dino, width=32, depth=3, heads=2, hidden=64),
        siglip=Tower(32, 3, 2, 64))
    llama = Llama(config.llama.vocabulary, 64, 128, 2, 2, 2, positions=128)
    return dataset, replace(config, vision=vision, llama=llama, projector=64), tokenizer_of(
        dataset.sentences)


def test_an_action_is_the_way_from_the_measured_joints_to_the_command_ahead(
        recorded: Path) -> None:
    from vla_ros.policies.openvla.actions import encode, unnormalize
    from vla_ros.training.openvla_trainer import DATA, Frames, labels, places
    from vla_ros.training.trainer import Recipe
    dataset, config, tokenizer = parts(recorded)
    actions, valid = labels(dataset)
    assert 0 < valid.sum() < valid.size
    episode, frame, _ = np.argwhere(valid)[5]
    told = dataset.arrays
    np.testing.assert_allclose(
        actions[episode, frame, 0],
        [*(told['targets'][episode, frame, 2, :6] - told['state'][episode, frame, :6]),
         told['targets'][episode, frame, 1, 6]], atol=1e-6)
    batches = Frames(config, tokenizer, Recipe())
    batches.add(dataset)
    batch = batches.draw(np.random.default_rng(0), 64, held_out=True)
    normal = batch['actions'][:, 0].numpy()
    assert np.abs(normal).max() <= 1.0
    units = unnormalize(normal, config.statistics[DATA])
    near = np.abs(units[:, None] - actions[valid][None]).max(axis=-1).min(axis=1)
    assert np.median(near) < 1e-5
    # The bins are those of the family; the value 1 alone has two ids, which mean the same.
    inside = np.where(normal >= 1.0, 1.0 - 1e-6, normal)
    ids = config.actions.top - 1 - places(batch['actions'][:, 0], config.actions.bins).numpy()
    np.testing.assert_array_equal(ids, encode(inside, config.actions))


def test_one_image_is_asked_about_many_things(tmp_path: Path) -> None:
    from vla_ros.training.dataset import Shape, generate
    from vla_ros.training.openvla_trainer import DATA, Frames, labels
    from vla_ros.training.trainer import Recipe
    dataset = generate(tmp_path, Shape(2, 8, advised=3), seed=61, workers=1)
    told = dataset.arrays
    np.testing.assert_array_equal(told['advised'][..., 0], told['sentence'])
    actions, valid = labels(dataset)
    assert valid.all()
    assert actions.shape == (2, 8, 3, 7)
    apart = np.abs(actions[:, :, 1:] - actions[:, :, :1]).max(axis=-1)
    assert np.median(apart) > 0.02
    _, config, tokenizer = parts(tmp_path)
    batches = Frames(config, tokenizer, Recipe())
    batches.add(dataset)
    drawn = batches.draw(np.random.default_rng(0), 64, held_out=True)
    said = config.statistics[DATA]
    assert drawn['actions'].shape == (64, 3, 7)
    assert set(map(tuple, drawn['ids'].flatten(0, 1).tolist())) <= {
        tuple(row) for rows in batches._parts[0]['ids'].tolist() for row in rows}
    assert said.low[0] == -said.high[0]


def test_what_is_seen_once_answers_as_if_it_were_seen_for_each_sentence(recorded: Path) -> None:
    import torch

    from vla_ros.policies.openvla.model import random_model
    from vla_ros.training.openvla_trainer import Told
    _, config, _ = parts(recorded)
    model, tokens = random_model(config), config.actions.tokens
    generator = torch.Generator().manual_seed(0)
    size = config.vision.image
    pixels = torch.randn(2, 6 * config.vision.images, size, size, generator=generator)
    state = torch.randn(2, config.state, generator=generator)
    ids = torch.randint(0, 100, (2, 3, 20), generator=generator)
    ids[..., 0] = config.prompt.bos  # all begin alike
    lengths = torch.tensor([[5, 9, 13], [13, 7, 2]])
    at = lengths[..., None] - 1 + torch.arange(tokens)
    logits, readout, visual = Told(model)(pixels, ids, state, at)
    assert visual.shape == (2, config.vision.patches * config.vision.images, config.llama.width)
    for row in range(2):
        for asked in range(3):
            hidden = model.language_model(model.prefix(
                pixels[row:row + 1], ids[row, asked][None], state[row:row + 1]))[0]
            rows = hidden[config.visual_tokens + at[row, asked]]
            torch.testing.assert_close(readout[row, asked], rows[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(logits[row, asked], model.language_model.lm_head(rows),
                                       atol=1e-5, rtol=1e-5)


def test_parts_that_were_asked_about_more_are_one_line(recorded: Path, tmp_path: Path) -> None:
    from vla_ros.training.dataset import Shape, generate
    from vla_ros.training.openvla_trainer import Frames
    from vla_ros.training.trainer import Recipe
    dataset, config, tokenizer = parts(recorded)
    batches = Frames(config, tokenizer, Recipe())
    batches.add(dataset)
    with pytest.raises(ValueError, match='^dataset: 2 sentences a frame; the others have 1; rec'):
        batches.add(generate(tmp_path, Shape(2, 4, advised=2), seed=61, workers=1))


def test_what_is_seen_in_a_mirror_is_what_the_expert_would_do_there() -> None:
    from vla_ros.sim.scene import Placed
    from vla_ros.sim.tasks import parse
    from vla_ros.sim.trial import make_trial
    from vla_ros.sim.world import World
    from vla_ros.training.advice import Adviser
    from vla_ros.training.openvla_trainer import SIDES, mirrored
    assert mirrored('push the red block to the left') == 'push the red block to the right'
    world, adviser = World(), Adviser()
    scene = make_trial('push', 4).scene

    def across(placed: tuple[Placed, ...]) -> tuple[Placed, ...]:
        return tuple(replace(each, y=-each.y, turn=-each.turn) for each in placed)

    turned = replace(scene, blocks=across(scene.blocks), bowls=across(scene.bowls),
                     tool=(scene.tool[0], -scene.tool[1], scene.tool[2]))
    colour = scene.blocks[0].colour
    for sentence in (f'push the {colour} block left', f'pick up the {colour} block'):
        world.reset(scene)
        there = adviser.targets(world, parse(sentence))
        world.reset(turned)
        here = adviser.targets(world, parse(mirrored(sentence)))
        assert np.abs(there[:, 0]).max() > 0.01
        np.testing.assert_allclose(there * SIDES, here, atol=1e-6)


def test_no_motion_is_exactly_one_bin(recorded: Path) -> None:
    from vla_ros.policies.openvla.actions import decode, encode, normalize, unnormalize
    from vla_ros.training.openvla_trainer import DATA
    _, config, _ = parts(recorded)
    said = config.statistics[DATA]
    rest = np.array([0.0] * 6 + [1.0])
    found = unnormalize(decode(encode(normalize(rest, said), config.actions), config.actions), said)
    np.testing.assert_allclose(found, rest, atol=0.005)
    np.testing.assert_allclose(found[:6], 0.0, atol=1e-9)


def test_what_is_learned_by_heart_is_said_word_by_word_by_the_checkpoint(
        recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from vla_ros.policies.openvla.backend import Frame
    from vla_ros.policies.openvla.baseline import Baseline
    from vla_ros.policies.openvla.checkpoint import load
    from vla_ros.policies.openvla.tokenizer import load as load_tokenizer
    from vla_ros.training import openvla_trainer
    from vla_ros.training.openvla_trainer import Frames, OpenVlaTrainer, places
    from vla_ros.training.trainer import Recipe
    monkeypatch.setattr(openvla_trainer, 'MIRRORED', 0.0)  # twice as much to learn
    dataset, config, tokenizer = parts(recorded)
    recipe = Recipe(steps=150, batch=12, rate=4e-3, warm_up=10, decay=0.0, average=0.9,
                    report_every=100)
    batches = Frames(config, tokenizer, recipe)
    batches.add(dataset)
    part = batches._parts[0]
    sentences = part['asked'][tuple(part['kept'].T)][:, 0].numpy()
    few = part['kept'][np.unique(sentences, return_index=True)[1]]  # one frame of each
    assert len(few) > 1
    part['kept'] = part['held_out'] = few
    OpenVlaTrainer(batches, config, tokenizer, recipe).train(tmp_path, lambda row: None)
    curves = json.loads((tmp_path / 'training.json').read_text())['curves']
    assert curves[-1]['held_out_joints'] < 0.1 * curves[0]['held_out_joints']

    backend = Baseline(load(tmp_path, dtype=torch.float32))
    assert (load_tokenizer(tmp_path).encode('pick up the red block')
            == tokenizer.encode('pick up the red block'))
    for episode, frame in few.tolist():
        sentence = part['asked'][episode, frame, 0]
        seen = Frame(part['images'][episode, frame].numpy(),
                     part['ids'][sentence, 0, :part['lengths'][sentence, 0]].numpy(),
                     part['state'][episode, frame].numpy())
        ids = backend.step(seen)
        told = backend.teacher_logits(seen, ids)
        np.testing.assert_array_equal(config.actions.first + told.argmax(-1), ids)
        wanted = config.actions.top - 1 - places(
            part['actions'][episode, frame, 0], config.actions.bins).numpy()
        assert np.abs(ids - wanted).max() <= 3


def test_a_policy_of_the_family_drives_while_more_is_recorded(recorded: Path, tmp_path: Path
                                                               ) -> None:
    from vla_ros.policies.openvla.checkpoint import save
    from vla_ros.policies.openvla.model import random_model
    from vla_ros.training.dataset import Shape, generate
    _, config, tokenizer = parts(recorded)
    save(tmp_path / 'driver', random_model(config))
    tokenizer.save(tmp_path / 'driver')
    driven = generate(tmp_path / 'driven', Shape(1, FRAMES), 60, 1, tmp_path / 'driver')
    assert np.isfinite(driven.arrays['targets']).all()
    assert not driven.arrays['valid'][..., 0].all()
    assert (driven.arrays['state'] != np.load(recorded / 'state.npy')[:1]).any()


def test_a_checkpoint_on_the_way_tells_its_story_to_those_that_go_on_from_it(
        recorded: Path, tmp_path: Path) -> None:
    from vla_ros.training.families import OpenVlaFamily
    from vla_ros.training.openvla_trainer import Frames, OpenVlaTrainer
    from vla_ros.training.trainer import Recipe, stages
    dataset, config, tokenizer = parts(recorded)
    recipe = Recipe(steps=4, batch=1, report_every=2, save_minutes=0.0)
    batches = Frames(config, tokenizer, recipe)
    batches.add(dataset)
    saved: list[Path] = []
    OpenVlaTrainer(batches, config, tokenizer, recipe).train(tmp_path / 'one', lambda row: None,
                                                             saved.append)
    assert saved[0] == tmp_path / 'one' / 'after_1'
    for folder in (saved[0], tmp_path / 'one'):
        assert set(OpenVlaFamily.files) <= {file.name for file in folder.iterdir()}
    whole, = stages(tmp_path / 'one')
    story, = stages(saved[0])
    rows = len(story['curves'])
    assert 0 < rows < len(whole['curves'])
    assert story == {**whole, 'curves': whole['curves'][:rows]}

    again, trainer = OpenVlaFamily().begin(dataset, replace(recipe, steps=1), saved[0])
    again.add(dataset)
    trainer.train(tmp_path / 'two', lambda row: None)
    first, second = stages(tmp_path / 'two')
    assert first == story
    assert second['recipe']['steps'] == 1
