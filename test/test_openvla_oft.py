"""OFT: one pass, all actions, against what the paper's facts say, built a second time by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

torch = pytest.importorskip('torch', reason='the policy needs it')

from vla_ros.policies.openvla import actions, checkpoint, oft_layout  # noqa: E402
from vla_ros.policies.openvla.backend import Frame  # noqa: E402
from vla_ros.policies.openvla.backends import BackendOptions  # noqa: E402
from vla_ros.policies.openvla.config import OpenVlaConfig, Statistics, tiny  # noqa: E402
from vla_ros.policies.openvla.hf_config import write_config  # noqa: E402
from vla_ros.policies.openvla.jpeg import through_jpeg  # noqa: E402
from vla_ros.policies.openvla.model import random_model  # noqa: E402
from vla_ros.policies.openvla.oft import (  # noqa: E402
    L1Head,
    action_rows,
    predict,
    random_head,
    sequence,
)
from vla_ros.policies.openvla.oft_backend import make_oft_backend  # noqa: E402
from vla_ros.policies.openvla.oft_checkpoint import load_oft, save_oft  # noqa: E402
from vla_ros.policies.openvla.oft_layout import LAYOUTS, with_layout  # noqa: E402

torch.set_num_threads(1)
ROBOTS = tuple(LAYOUTS)
HEAD, PROJECTOR = 'action_head--{}_checkpoint.pt', 'proprio_projector--{}_checkpoint.pt'


def small(robot: str = 'libero') -> OpenVlaConfig:
    """The robot's chunk, state and images on a tiny policy."""
    config = with_layout(tiny(), LAYOUTS[robot])
    return replace(config, llama=replace(config.llama, positions=512))


def policy(config: OpenVlaConfig, seed: int = 0) -> tuple[Any, Any]:
    """Drawn weights, large enough that every token tells in every other."""
    model, head = random_model(config, seed=seed), random_head(config, seed=seed)
    with torch.no_grad():
        model.language_model.model.embed_tokens.weight.mul_(50.0)
        if config.state:
            model.proprio_projector.fc1.bias.normal_(
                generator=torch.Generator().manual_seed(seed))
    return model, head


def observation(config: OpenVlaConfig, text: int = 9, seed: int = 0) -> Frame:
    rng = np.random.default_rng(seed)
    side = config.vision.image
    ids = np.array([1, *rng.integers(6, 30, text - 2), config.prompt.last], np.int64)
    state = rng.uniform(-1.0, 1.0, config.state).astype(np.float32) if config.state else None
    return Frame(rng.integers(0, 256, (config.vision.images, side, side, 3), np.uint8), ids, state)


def inputs(config: OpenVlaConfig, seed: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    side, n = config.vision.image, config.vision.images
    frame = observation(config, seed=seed)
    state = None if frame.state is None else torch.from_numpy(frame.state)[None]
    return (torch.randn(1, 6 * n, side, side, generator=generator),
            torch.from_numpy(frame.ids)[None], state)


# --- layout --------------------------------------------------------------------------------------


@pytest.mark.parametrize(('config', 'sizes'), [
    (oft_layout.libero(), (8, 7, 8, 2, 512 + 1)),
    (oft_layout.aloha(), (25, 14, 14, 3, 768 + 1)),
    (oft_layout.bridge(), (5, 7, 7, 1, 256 + 1))])
def test_each_robot_has_its_chunk_state_and_images(config: OpenVlaConfig,
                                                   sizes: tuple[int, ...]) -> None:
    assert config.parallel
    assert (config.actions.horizon, config.actions.dimensions, config.state, config.vision.images,
            config.visual_tokens) == sizes


# --- sequence ------------------------------------------------------------------------------------


@pytest.mark.parametrize('robot', ROBOTS)
def test_the_sequence_is_bos_patches_state_prompt_zeros_stop(robot: str) -> None:
    config = small(robot)
    model, _ = policy(config)
    pixels, ids, state = inputs(config)
    with torch.inference_mode():
        found = sequence(model, pixels, ids, state)[0]
        table = model.language_model.model.embed_tokens.weight
        rows = [table[int(ids[0, 0])]]
        for image in range(config.vision.images):
            part = pixels[:, 6 * image:6 * image + 6]
            features = torch.cat([model.vision_backbone.featurizer(part[:, :3]),
                                  model.vision_backbone.fused_featurizer(part[:, 3:])], 2)
            rows += list(model.projector(features)[0])
        projector = model.proprio_projector
        rows.append(projector.fc2(torch.nn.functional.gelu(projector.fc1(state[0]))))
        for token in ids[0, 1:]:
            rows.append(table[int(token)])
        for _ in range(config.actions.horizon * config.actions.dimensions):
            rows.append(torch.zeros(config.llama.width))
        rows.append(table[2])
    torch.testing.assert_close(found, torch.stack(rows), atol=1e-5, rtol=1e-5)


def test_without_a_state_its_token_is_not_there() -> None:
    config = replace(small('bridge'), state=0)
    model, _ = policy(config)
    pixels, ids, state = inputs(config)
    assert state is None
    with torch.inference_mode():
        made = sequence(model, pixels, ids)
    assert made.shape[1] == 4 + 9 + 35 + 1


@pytest.mark.parametrize('robot', ROBOTS)
def test_the_action_rows_begin_at_the_last_token_of_the_prompt(robot: str) -> None:
    config = small(robot)
    kinds = ['bos']
    for image in range(config.vision.images):
        kinds += [f'image {image}'] * 4
    kinds += ['state', *(f'text {i}' for i in range(1, 9))]
    kinds += [f'zero {i}' for i in range(config.actions.tokens)] + ['stop']
    found = kinds[action_rows(config, 9)]
    assert found[:2] == ['text 8', 'zero 0']
    assert len(found) == config.actions.tokens
    assert found[-1] == f'zero {config.actions.tokens - 2}'


def test_the_action_embeddings_are_zero_and_not_those_of_an_id() -> None:
    config = small('libero')
    model, head = policy(config)
    given = inputs(config)
    with torch.inference_mode():
        before = sequence(model, *given)
        zeros = before[0, config.prefix_tokens(9):-1]
        assert zeros.shape[0] == 56
        assert not zeros.any()
        answer = predict(model, head, *given)
        model.language_model.model.embed_tokens.weight[config.actions.first:config.actions.top] = 7
        torch.testing.assert_close(predict(model, head, *given), answer, atol=0, rtol=0)


# --- attention -----------------------------------------------------------------------------------


def test_every_token_sees_every_other() -> None:
    config = small('bridge')
    model, _ = policy(config)
    with torch.inference_mode():
        embeddings = sequence(model, *inputs(config))
        before = model.language_model(embeddings, causal=False)
        for changed in (0, 3, embeddings.shape[1] // 2, embeddings.shape[1] - 1):
            other = embeddings.clone()
            other[0, changed] += torch.randn(config.llama.width,
                                             generator=torch.Generator().manual_seed(changed))
            moved = (model.language_model(other, causal=False) - before)[0].abs().amax(1)
            assert float(moved.min()) > 1e-6


def test_the_chunk_depends_on_the_stop_token_behind_it() -> None:
    config = small('libero')
    model, head = policy(config)
    given = inputs(config)
    with torch.inference_mode():
        before = predict(model, head, *given)
        model.language_model.model.embed_tokens.weight[2] += 3.0
        after = predict(model, head, *given)
    assert float((after - before).abs().amax((0, 2)).min()) > 1e-6


# --- head ----------------------------------------------------------------------------------------


def numpy_head(weights: dict[str, NDArray[Any]], hidden: NDArray[Any],
               horizon: int) -> NDArray[Any]:
    """Layer norm, fc1, ReLU, two residual blocks, layer norm, fc2, for each step of the chunk."""
    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        centered = x - x.mean(-1, keepdims=True)
        scale = np.sqrt((centered ** 2).mean(-1, keepdims=True) + 1e-5)
        made: NDArray[Any] = centered / scale * weights[f'{name}.weight'] + weights[f'{name}.bias']
        return made

    def linear(x: NDArray[Any], name: str) -> NDArray[Any]:
        made: NDArray[Any] = x @ weights[f'{name}.weight'].T + weights[f'{name}.bias']
        return made

    steps = []
    for step in np.split(hidden, horizon):  # [A, W]: the tokens of one step
        x = np.maximum(linear(norm(step.reshape(-1), 'model.layer_norm1'), 'model.fc1'), 0)
        for block in range(2):
            name = f'model.mlp_resnet_blocks.{block}.ffn'
            x = x + np.maximum(linear(norm(x, f'{name}.0'), f'{name}.1'), 0)
        steps.append(linear(norm(x, 'model.layer_norm2'), 'model.fc2'))
    return np.array(steps)


@pytest.mark.parametrize('robot', ROBOTS)
def test_the_head_is_the_one_of_the_facts(robot: str) -> None:
    config = small(robot)
    head = random_head(config, seed=3)
    weights = {name: value.double().numpy() for name, value in head.state_dict().items()}
    hidden = torch.randn(2, config.actions.tokens, config.llama.width,
                         generator=torch.Generator().manual_seed(5))
    with torch.inference_mode():
        found = head(hidden).numpy()
    assert found.shape == (2, config.actions.horizon, config.actions.dimensions)
    for answer, rows in zip(found, hidden.double().numpy(), strict=True):
        np.testing.assert_allclose(answer, numpy_head(weights, rows, config.actions.horizon),
                                   atol=1e-5)


def test_the_names_of_the_head_are_those_of_its_files() -> None:
    wide = {f'model.{name}.{kind}' for kind in ('weight', 'bias') for name in (
        'layer_norm1', 'fc1', 'layer_norm2', 'fc2', 'mlp_resnet_blocks.0.ffn.0',
        'mlp_resnet_blocks.0.ffn.1', 'mlp_resnet_blocks.1.ffn.0', 'mlp_resnet_blocks.1.ffn.1')}
    with torch.device('meta'):
        found = {name: tuple(value.shape) for name, value in
                 L1Head(oft_layout.libero()).state_dict().items()}
    assert set(found) == wide
    assert found['model.fc1.weight'] == (4096, 28672)
    assert found['model.fc2.weight'] == (7, 4096)


@pytest.mark.parametrize('robot', ROBOTS)
def test_the_chunk_is_the_head_on_the_hidden_states_one_place_early(robot: str) -> None:
    config = small(robot)
    model, head = policy(config)
    pixels, ids, state = inputs(config)
    with torch.inference_mode():
        whole = model.language_model(sequence(model, pixels, ids, state), causal=False)[0]
        picked = []
        visual = 4 * config.vision.images + 1
        for number in range(config.actions.tokens):  # BOS is row 0, prompt[1:] follows `visual`
            picked.append(whole[visual + (ids.shape[1] - 1) + number])
        expected = head(torch.stack(picked)[None])
        found = predict(model, head, pixels, ids, state)
    assert found.shape == (1, config.actions.horizon, config.actions.dimensions)
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


def test_a_batch_answers_each_as_if_it_were_alone() -> None:
    config = small('libero')
    model, head = policy(config)
    several = [inputs(config, seed) for seed in range(3)]
    batch = [torch.cat([given[part] for given in several]) for part in range(3)]
    with torch.inference_mode():
        found = predict(model, head, *batch)
        for number, given in enumerate(several):
            torch.testing.assert_close(found[number:number + 1], predict(model, head, *given),
                                       atol=1e-5, rtol=1e-4)


def test_the_images_keep_their_order() -> None:
    config = small('aloha')
    model, head = policy(config)
    pixels, ids, state = inputs(config)
    turned = pixels.view(1, 3, 6, 28, 28)[:, [1, 0, 2]].reshape(pixels.shape)
    with torch.inference_mode():
        seen, other = model.see(pixels)[0], model.see(turned)[0]
        torch.testing.assert_close(other, torch.cat([seen[4:8], seen[:4], seen[8:]]), atol=1e-5,
                                   rtol=1e-5)
        assert float((predict(model, head, pixels, ids, state)
                      - predict(model, head, turned, ids, state)).abs().max()) > 1e-4


# --- units ---------------------------------------------------------------------------------------


def test_a_state_is_scaled_to_its_range_and_clipped() -> None:
    low, high = (0.0, -2.0, 0.5, 1.0), (4.0, 2.0, 0.5, 3.0)
    statistics = Statistics((0.0,), (1.0,), (), low, high)
    found = actions.normalize_state([1.0, 5.0, 0.5, 0.0], statistics)
    expected = [min(max(2 * (x - lo) / (hi - lo + 1e-8) - 1, -1.0), 1.0)
                for x, lo, hi in zip([1.0, 5.0, 0.5, 0.0], low, high, strict=True)]
    np.testing.assert_allclose(found, expected, atol=0)
    np.testing.assert_allclose(found, [-0.5, 1.0, -1.0, -1.0], atol=1e-6)


@pytest.mark.parametrize(('robot', 'names'), [('libero', ('q01', 'q99')), ('aloha', ('min', 'max')),
                                              ('bridge', ('q01', 'q99'))])
def test_each_robot_reads_its_kind_of_statistics(robot: str, names: tuple[str, str],
                                                 tmp_path: Path) -> None:
    layout = LAYOUTS[robot]
    write_config(tmp_path, replace(tiny(), vision=replace(tiny().vision, images=1)), 'float32')
    rows = {'min': -4.0, 'q01': -3.0, 'q99': 2.0, 'max': 6.0}
    text = {'task': {part: {name: [value] * size for name, value in rows.items()}
                     for part, size in (('action', layout.dimensions), ('proprio', layout.state))}}
    (tmp_path / 'dataset_statistics.json').write_text(json.dumps(text))
    found = oft_layout.read_oft_config(tmp_path, robot, 'task').statistics['task']
    low, high = (rows[name] for name in names)
    assert found.low == (low,) * layout.dimensions
    assert found.state_high == (high,) * layout.state
    chunk = actions.unnormalize(np.zeros((layout.horizon, layout.dimensions)), found)
    np.testing.assert_allclose(chunk, np.full(chunk.shape, (low + high) / 2))


def test_a_chunk_gets_its_units_step_by_step() -> None:
    statistics = Statistics((-1.0, 0.0, 0.0), (3.0, 0.5, 1.0), (True, True, False))
    normalized = np.array([[-1.0, 0.0, 0.3], [1.0, 1.0, 0.7]], np.float32)
    np.testing.assert_allclose(actions.unnormalize(normalized, statistics),
                               [[-1.0, 0.25, 0.3], [3.0, 0.5, 0.7]], atol=1e-6)


# --- backends ------------------------------------------------------------------------------------


@pytest.mark.parametrize('robot', ROBOTS)
def test_the_static_pass_answers_like_the_plain_one(robot: str) -> None:
    config = small(robot)
    model, head = policy(config)
    plain = make_oft_backend('baseline', model, head, 'fp32')
    static = make_oft_backend('graph', model, head, 'fp32', BackendOptions(buckets=(16, 32)))
    for text in (4, 16, 17, 31):
        frame = observation(config, text, seed=text)
        found = static.step(frame)
        assert found.dtype == np.float32
        assert found.shape == (config.actions.horizon, config.actions.dimensions)
        np.testing.assert_allclose(found, plain.step(frame), atol=1e-5)


def test_padding_changes_nothing() -> None:
    config = small('libero')
    model, head = policy(config)
    answers = [make_oft_backend('graph', model, head, 'fp32', BackendOptions(buckets=(size,))).step(
        observation(config, 9)) for size in (9, 10, 32, 64)]
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], atol=1e-5)


def test_nothing_looks_at_padding() -> None:
    config = small('libero')
    model, head = policy(config)
    static = make_oft_backend('graph', model, head, 'fp32', BackendOptions(buckets=(32,)))
    frame = observation(config, 9)
    before = static.step(frame)
    used = set(frame.ids.tolist()) | {config.prompt.eos}
    with torch.no_grad():  # whatever id padding has, unless a prompt has it too
        for unused in set(range(config.llama.vocabulary)) - used:
            model.language_model.model.embed_tokens.weight[unused] = 100.0
    np.testing.assert_allclose(static.step(frame), before, atol=0)


def test_an_earlier_frame_leaves_nothing_behind() -> None:
    config = small('bridge')
    model, head = policy(config)
    static = make_oft_backend('graph', model, head, 'fp32', BackendOptions(buckets=(16, 32)))
    first = static.step(observation(config, 12))
    static.step(observation(config, 30, seed=1))
    static.step(observation(config, 5, seed=2))
    np.testing.assert_array_equal(static.step(observation(config, 12)), first)


def test_images_of_another_size_are_squashed_first() -> None:
    config = small('libero')
    model, head = policy(config)
    frame = observation(config)
    large = replace(frame, images=np.random.default_rng(0).integers(
        0, 256, (2, 60, 80, 3), np.uint8))
    plain = make_oft_backend('baseline', model, head, 'fp32')
    static = make_oft_backend('graph', model, head, 'fp32', BackendOptions(image=(60, 80)))
    np.testing.assert_allclose(static.step(large), plain.step(large), atol=1e-5)
    with pytest.raises(ValueError, match=r'^images: \[2, 28, 28, 3\]: the buffers were made for '
                                         r'\[2, 60, 80, 3\]'):
        static.step(frame)


def test_jpeg_is_for_images_that_are_resized() -> None:
    config = small('bridge')
    model, head = policy(config)
    raw = np.random.default_rng(0).integers(0, 256, (1, 60, 80, 3), np.uint8)
    coded = through_jpeg(raw)
    frame = replace(observation(config), images=raw)
    for name in ('baseline', 'graph'):
        on, off = (make_oft_backend(name, model, head, 'fp32', BackendOptions(image=(60, 80)),
                                    jpeg=jpeg) for jpeg in (True, False))
        np.testing.assert_array_equal(on.step(frame), off.step(replace(frame, images=coded)))
        assert np.abs(on.step(frame) - off.step(frame)).max() > 1e-4
    small_enough = observation(config)
    on, off = (make_oft_backend('graph', model, head, 'fp32', jpeg=jpeg)
               for jpeg in (True, False))
    np.testing.assert_array_equal(on.step(small_enough), off.step(small_enough))


def test_jpeg_keeps_colours_and_places() -> None:
    image = np.zeros((2, 64, 96, 3), np.uint8)
    image[0, :32, :48], image[1] = (250, 20, 60), (10, 200, 90)
    made = through_jpeg(image)
    assert made.dtype == np.uint8
    assert not np.array_equal(made, image)
    inside = np.zeros(image.shape[:3], bool)
    inside[:, 4:28, 4:44] = inside[:, 36:, 52:] = True
    assert np.abs(made.astype(int) - image)[inside].max() <= 4


def test_float8_stays_near_the_plain_answer() -> None:
    config = small('libero')
    model, head = (part.to(torch.bfloat16) for part in policy(config))
    plain = make_oft_backend('baseline', model, head, 'bf16')
    narrow = make_oft_backend('graph', model, head, 'fp8')
    frame = observation(config)
    expected = plain.step(frame)
    error = np.abs(narrow.step(frame) - expected).mean()
    other = np.abs(plain.step(observation(config, seed=3)) - expected).mean()
    assert 0.0 < error < 0.25 * other  # 0.09 where another frame's answer is 1.0 away


def test_a_warm_up_captures_every_bucket_and_says_so() -> None:
    config = small('bridge')
    static = make_oft_backend('graph', *policy(config), 'fp32', BackendOptions(buckets=(16, 32)))
    said: list[str] = []
    static.warm_up(said.append)
    assert [line.split('(')[1] for line in said] == ['1 of 2)', '2 of 2)']
    assert set(static.stages()) == {'vision_ms', 'pass_ms'}


@pytest.mark.parametrize(('name', 'precision', 'line'), [
    ('jacobi', 'fp32', 'backend: jacobi: OFT has baseline, graph; the others are for policies that '
                       'decode token by token'),
    ('graph', 'int8-weight', 'precision: int8-weight: OFT is one pass of many rows, which it does '
                             'not speed up; choose bf16 or fp8')])
def test_what_cannot_run_oft_is_named(name: str, precision: str, line: str) -> None:
    dtype = torch.float32 if precision == 'fp32' else torch.bfloat16
    model, head = (part.to(dtype) for part in policy(small('bridge')))
    with pytest.raises(ValueError) as error:
        make_oft_backend(name, model, head, precision)
    assert str(error.value) == line


def test_a_prompt_that_fits_no_bucket_and_a_missing_state_are_named() -> None:
    config = small('bridge')
    static = make_oft_backend('graph', *policy(config), 'fp32', BackendOptions(buckets=(16,)))
    with pytest.raises(ValueError, match='^instruction: 17 tokens with its prompt; at most 16 fit'):
        static.step(observation(config, 17))
    with pytest.raises(ValueError, match='^state: missing: the policy takes 7 values$'):
        static.step(replace(observation(config), state=None))


# --- files ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A LIBERO checkpoint as the published ones are, of step 40."""
    save_oft(tmp_path / 'oft', *policy(small()), 40, as_published=True)
    return tmp_path / 'oft'


def load(folder: Path, layout: str = 'libero') -> Any:
    return load_oft(folder, dtype=torch.float32, layout=layout)


@pytest.mark.parametrize('robot', ROBOTS)
@pytest.mark.parametrize('as_published', [True, False])
def test_a_checkpoint_comes_back_bit_by_bit(robot: str, as_published: bool,
                                            tmp_path: Path) -> None:
    model, head = policy(small(robot), seed=4)
    save_oft(tmp_path, model, head, 7, as_published=as_published, shard_bytes=60_000)
    assert oft_layout.is_oft(tmp_path)
    config = oft_layout.read_oft_config(tmp_path, robot if as_published else '')
    found = load_oft(tmp_path, dtype=torch.float32, config=config)
    assert found.step == '7'
    assert (found.model.config.actions, found.model.config.state, found.model.config.vision) == (
        model.config.actions, model.config.state, model.config.vision)
    for mine, theirs in ((found.model, model), (found.head, head)):
        assert set(mine.state_dict()) == set(theirs.state_dict())
        for name, value in mine.state_dict().items():
            assert torch.equal(value, theirs.state_dict()[name]), name


def test_the_files_hold_the_published_names(folder: Path) -> None:
    head = torch.load(folder / HEAD.format(40), weights_only=True)
    assert 'module.model.mlp_resnet_blocks.1.ffn.1.weight' in head
    assert all(name.startswith('module.model.') for name in head)
    projector = torch.load(folder / PROJECTOR.format(40), weights_only=True)
    assert set(projector) == {f'module.fc{i}.{kind}' for i in (1, 2) for kind in ('weight', 'bias')}
    keys = {found.name for found in checkpoint.read_headers(folder)}
    assert not [key for key in keys if 'proprio' in key or 'action_head' in key]


def test_names_without_module_are_read_too(folder: Path) -> None:
    file = folder / HEAD.format(40)
    values = {name.removeprefix('module.'): value
              for name, value in torch.load(file, weights_only=True).items()}
    torch.save(values, file)
    assert torch.equal(load(folder).head.model.fc2.weight, values['model.fc2.weight'])


@pytest.mark.parametrize(('steps', 'newest'), [((40, 9), '40'), ((40, 150_000, 9), '150000'),
                                               ((40, 150_000, 'latest'), 'latest')])
def test_the_newest_step_is_taken_and_named(steps: tuple[int | str, ...], newest: str,
                                            folder: Path) -> None:
    values = torch.load(folder / HEAD.format(40), weights_only=True)
    projector = (folder / PROJECTOR.format(40)).read_bytes()
    for number, step in enumerate(steps):
        values['module.model.fc2.bias'].fill_(number)
        torch.save(values, folder / HEAD.format(step))
        (folder / PROJECTOR.format(step)).write_bytes(projector)
    found = load(folder)
    assert found.step == newest
    assert found.head.model.fc2.bias[0].item() == list(map(str, steps)).index(newest)


def change(folder: Path, file: str, how: Callable[[dict[str, Any]], object]) -> None:
    values = torch.load(folder / file, weights_only=True)
    how(values)
    torch.save(values, folder / file)


def _nan(values: dict[str, Any]) -> None:
    values['module.model.fc1.bias'][3] = float('nan')


@pytest.mark.parametrize(('part', 'how', 'line'), [
    (HEAD, lambda v: v.pop('module.model.fc1.bias'),
     'model.fc1.bias: missing; copy the checkpoint again'),
    (HEAD, lambda v: v.update({'module.model.fc3.bias': torch.zeros(2)}),
     'model.fc3.bias: unknown tensor; only the L1 head and the projector of the state are read'),
    (HEAD, lambda v: v.update({'module.model.fc2.bias': torch.zeros(14)}),
     'model.fc2.bias: shape [14]: [7] is needed; is the checkpoint for another robot '
     '(option oft)?'),
    (HEAD, lambda v: v.update({'module.model.fc2.bias': torch.zeros(7, dtype=torch.int64)}),
     'model.fc2.bias: int64: floating point numbers are needed; copy the checkpoint again'),
    (HEAD, lambda v: v.update({'model.fc2.bias': torch.zeros(7)}),
     'model.fc2.bias: it is there with and without module.'),
    (HEAD, lambda v: v.update({'module.step': 40}),
     "'module.step': a int: tensors by name are needed; copy the checkpoint again"),
    (HEAD, _nan, 'model.fc1.bias: it holds numbers that are not finite in float32; copy the '
                 'checkpoint again'),
    (PROJECTOR, lambda v: v.pop('module.fc2.weight'),
     'fc2.weight: missing; copy the checkpoint again')])
def test_what_is_wrong_with_a_file_is_told_in_one_line(
        part: str, how: Callable[[dict[str, Any]], object], line: str, folder: Path) -> None:
    change(folder, part.format(40), how)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == f'{folder / part.format(40)}: {line}'


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04 cut off', b'version https://git-lfs\n',
                                     b'\x80\x02cos\nsystem\n'])
def test_a_file_that_is_no_file_of_tensors_is_told_in_one_line(content: bytes,
                                                               folder: Path) -> None:
    file = folder / HEAD.format(40)
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value).startswith(f'{file}: ')
    assert '\n' not in str(error.value)


def test_a_file_that_would_run_code_is_refused(folder: Path) -> None:
    file = folder / HEAD.format(40)
    torch.save({'module.model.fc1.bias': Path}, file)
    with pytest.raises(ValueError, match='not a file of tensors that torch wrote'):
        load(folder)


def _drop(part: str) -> Callable[[Path], object]:
    return lambda folder: (folder / part.format(40)).unlink()


def _other_step(folder: Path) -> None:
    (folder / PROJECTOR.format(40)).rename(folder / PROJECTOR.format(30))


def _adapter_only(folder: Path) -> None:
    (folder / 'model.safetensors').unlink()
    (folder / 'lora_adapter').mkdir()


def _film(folder: Path) -> None:
    (folder / 'vision_backbone--40_checkpoint.pt').touch()


@pytest.mark.parametrize(('how', 'line'), [
    (_drop(HEAD), ': action_head--<step>_checkpoint.pt: no such file; OFT keeps its action head '
                  'there: copy it from the checkpoint'),
    (_drop(PROJECTOR), ': proprio_projector--40_checkpoint.pt: no such file, but '
                       'action_head--40_checkpoint.pt is there; copy both of one step'),
    (_other_step, ': proprio_projector--40_checkpoint.pt: no such file, but '
                  'action_head--40_checkpoint.pt is there; there is one of step 30; copy both of '
                  'one step'),
    (_adapter_only, '/lora_adapter: its LoRA weights are not merged into a policy; merge them with '
                    'merge_lora_weights_and_save.py of OpenVLA-OFT, which writes '
                    'model.safetensors.index.json and its files beside it'),
    (_film, '/vision_backbone--40_checkpoint.pt: the checkpoint uses FiLM; only OFT with the L1 '
            'head and without FiLM is read')])
def test_what_is_missing_from_a_folder_is_told_in_one_line(
        how: Callable[[Path], object], line: str, folder: Path) -> None:
    how(folder)
    with pytest.raises(ValueError) as error:
        load(folder)
    assert str(error.value) == f'{folder}{line}'


def test_a_merged_policy_may_keep_its_adapter(folder: Path) -> None:
    (folder / 'lora_adapter').mkdir()
    assert load(folder).step == '40'


def test_a_published_config_needs_the_name_of_the_robot(folder: Path) -> None:
    with pytest.raises(ValueError) as error:
        load(folder, '')
    assert str(error.value) == (
        f'{folder}: oft: missing: its config.json does not say which robot the checkpoint is for; '
        'name one of libero, aloha, bridge')
    with pytest.raises(ValueError, match='^oft: kitchen: allowed are libero, aloha, bridge$'):
        load(folder, 'kitchen')
