"""The network: the cache against one pass, the window's edge, sizes, precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip('torch', reason='training and the torch backend need it')

from edgevla_rig import ACTION, STATE, by_frame, episode, tiny  # noqa: E402

from vla_ros.policies.edgevla.config import (  # noqa: E402
    Cameras,
    Compressor,
    EdgeVlaConfig,
    Text,
    VitEncoder,
    published,
    small,
)
from vla_ros.policies.edgevla.model import (  # noqa: E402
    EdgeVla,
    count,
    example_inputs,
    macs,
    to_precision,
)
from vla_ros.policies.edgevla.vision import AveragePool, LearnedQueries, compressor  # noqa: E402

torch.set_num_threads(1)  # such small sums are slower on more
TOLERANCE = 1e-4
STEREO = {'cameras': Cameras(('left', 'right'), 32, 16, fuse='channels')}
ONE_LAYER = {'transformer': replace(tiny().transformer, layers=1)}


def make(seed: int = 0, **changes: Any) -> EdgeVla:
    """A model whose actions are as large as those of a trained one."""
    torch.manual_seed(seed)
    model = EdgeVla(tiny(**changes)).eval()
    torch.nn.init.normal_(model.head[-1].weight, std=0.5)
    return model


def tensors(inputs: dict[str, Any]) -> dict[str, Any]:
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


@torch.no_grad()
def whole(model: EdgeVla, inputs: dict[str, Any]) -> Any:
    return model(**inputs).actions


def streamed(model: EdgeVla, inputs: dict[str, Any], ring: Any = None) -> Any:
    """The actions [B, F, H, A], frame by frame."""
    ring = model.make_ring(len(inputs['since'])) if ring is None else ring
    steps = [model.step(*frame, ring, torch.tensor(i))
             for i, frame in enumerate(by_frame(inputs))]
    return torch.stack(steps, dim=1)


def largest(difference: Any) -> float:
    return float(difference.detach().abs().max())


# The cache

@pytest.mark.parametrize('changes', [
    {}, STEREO, {'compressor': Compressor('average_pool', keep=4)},
    {'compressor': Compressor('none')}, {'window': 1}, {'gripper': '', 'action': STATE[::2]},
    {'transformer': replace(tiny().transformer, layers=3, heads=2, kv_heads=1)}])
def test_cached_forward_equals_one_pass_over_the_whole_episode(changes: dict[str, Any]) -> None:
    model = make(**changes)
    frames = 3 * model.config.window + 2
    inputs = tensors(episode(model.config, frames, batch=2))
    expected = whole(model, inputs)
    assert expected.std() > 0.1
    assert largest(streamed(model, inputs) - expected) <= TOLERANCE


def test_short_episode_equals_the_beginning_of_a_long_one() -> None:
    """Up to the length of the window there is another way through the attention."""
    model = make()
    inputs = tensors(episode(model.config, 9))
    short = {name: values[:, :4] for name, values in inputs.items()}
    assert largest(whole(model, short) - whole(model, inputs)[:, :4]) <= TOLERANCE


@pytest.mark.parametrize('run', [whole, streamed])
def test_one_layer_sees_exactly_the_frames_of_the_window(run: Any) -> None:
    model = make(**ONE_LAYER)
    window, changed = model.config.window, 2
    inputs = tensors(episode(model.config, 3 * window))
    other = {name: values.clone() for name, values in inputs.items()}
    other['images'][:, changed] = 255 - other['images'][:, changed]
    difference = (run(model, inputs) - run(model, other)).abs().amax(dim=(0, 2, 3))
    assert (difference[:changed] == 0.0).all()
    assert (difference[changed:changed + window] > 1e-6).all()
    assert (difference[changed + window:] == 0.0).all()


def test_memory_of_layers_reaches_as_far_as_their_windows_do_together() -> None:
    model = make()
    reach = model.config.transformer.layers * (model.config.window - 1)
    inputs = tensors(episode(model.config, reach + 4))
    other = {name: values.clone() for name, values in inputs.items()}
    other['state'][:, 0] += 1.0
    difference = (streamed(model, inputs) - streamed(model, other)).abs().amax(dim=(0, 2, 3))
    assert difference[reach] > 0.0
    assert (difference[reach + 1:] == 0.0).all()


def test_every_kind_of_input_counts() -> None:
    model = make()
    inputs = tensors(episode(model.config, 3))
    for name, change in (('images', 100), ('ids', 1), ('state', 0.5), ('since', 0.5)):
        other = {key: values.clone() for key, values in inputs.items()}
        other[name][:, 1] = (other[name][:, 1] + change) % 7
        difference = (whole(model, inputs) - whole(model, other)).abs().amax(dim=(0, 2, 3))
        assert difference[0] == 0.0, name
        assert (difference[1:] > 1e-6).all(), name


def test_ring_is_written_in_place_and_only_where_the_frame_belongs() -> None:
    model = make()
    ring = model.make_ring()
    assert tuple(ring.shape) == model.config.ring_shape() == (2, 2, 1, 4, 14, 2, 4)
    place = ring.data_ptr()
    for i, frame in enumerate(by_frame(tensors(episode(model.config, 9)))):
        before = ring.clone()
        model.step(*frame, ring, torch.tensor(i))
        changed = (ring != before).flatten(4).any(dim=4)[:, :, 0]  # [layers, 2, W]
        assert changed[..., i % 4].all()
        assert int(changed.sum()) == 4
    assert ring.data_ptr() == place


def test_positions_stay_the_same_for_ever() -> None:
    model = make()
    inputs = tensors(episode(model.config, 9))
    ring = model.make_ring()
    frames = list(by_frame(inputs))
    for i, frame in enumerate(frames[:8]):
        model.step(*frame, ring, torch.tensor(i))
    soon = model.step(*frames[8], ring.clone(), torch.tensor(8))
    late = model.step(*frames[8], ring.clone(), torch.tensor(8 + 4 * 10**12))
    assert torch.equal(soon, late)


def test_frames_of_an_episode_before_are_not_seen() -> None:
    model = make()
    inputs = tensors(episode(model.config, 6))
    used = model.make_ring()
    streamed(model, tensors(episode(model.config, 7, seed=1)), used)
    assert torch.equal(streamed(model, inputs, used), streamed(model, inputs))


# What goes in and out

def test_positions_are_offsets_from_the_measured_state_of_the_same_name() -> None:
    model = make()
    torch.nn.init.zeros_(model.head[-1].weight)
    inputs = tensors(episode(model.config, 3))
    output = model(**inputs)
    assert output.actions.shape == (1, 3, 3, 3)
    for i, name in enumerate(ACTION):
        if name == 'grip':
            assert (output.actions[..., i] == 0.5).all()
            continue
        measured = inputs['state'][..., STATE.index(name), None].expand(-1, -1, 3)
        assert torch.equal(output.actions[..., i], measured)


def test_offsets_have_the_scale_of_their_step_and_dimension() -> None:
    model = make()
    torch.nn.init.zeros_(model.head[-1].weight)
    torch.nn.init.ones_(model.head[-1].bias)
    inputs = tensors(episode(model.config, 1))
    inputs['state'].zero_()
    actions = model(**inputs).actions[0, 0]
    scale = torch.tensor(model.config.normalization.offset_scale)
    assert torch.equal(actions[:, [0, 2]], scale)
    assert torch.allclose(actions[:, 1], torch.sigmoid(torch.ones(3)))


def test_episode_output_has_what_training_needs() -> None:
    model = make()
    output = model(**tensors(episode(model.config, 5, batch=2)))
    assert output.gripper.shape == (2, 5, 3)
    assert torch.equal(output.gripper.sigmoid(), output.actions[..., ACTION.index('grip')])
    assert output.readout.shape == (2, 5, 16)
    assert output.visual.shape == (2, 5, 6, 16)


def test_images_as_bytes_and_as_fractions_are_the_same() -> None:
    model = make()
    inputs = tensors(episode(model.config, 2))
    floats = {**inputs, 'images': inputs['images'].float() / 255.0}
    assert largest(whole(model, inputs) - whole(model, floats)) <= TOLERANCE


def test_times_beyond_two_seconds_and_below_zero_are_clamped() -> None:
    model = make()
    inputs = tensors(episode(model.config, 2))
    def at(seconds: float) -> Any:
        return whole(model, {**inputs, 'since': torch.tensor([[0.0, seconds]])})
    assert torch.equal(at(2.0), at(1000.0))
    assert torch.equal(at(0.0), at(-1.0))
    assert largest(at(0.1) - at(0.2)) > 1e-6


# Compressor

@pytest.mark.parametrize('sizes', [
    Compressor('learned_query', keep=6, heads=2), Compressor('average_pool', keep=4),
    Compressor('none')])
@pytest.mark.parametrize('cameras', [{}, STEREO])
def test_compressor_keeps_as_many_tokens_as_it_says(sizes: Compressor,
                                                    cameras: dict[str, Any]) -> None:
    config = tiny(compressor=sizes, **cameras)
    grid = 8 if cameras else 16
    assert config.grid_tokens == grid
    kept = compressor(config)(torch.randn(5, grid, 16))
    assert kept.shape == (5, sizes.keep or grid, 16)
    assert config.visual_tokens == kept.shape[1]


def test_average_pool_takes_means_of_rectangles_of_each_grid() -> None:
    pool = AveragePool(grids=2, rows=4, columns=2, keep=4)
    tokens = torch.arange(16.0).view(1, 16, 1)
    assert pool(tokens).flatten().tolist() == [1.5, 5.5, 9.5, 13.5]
    uneven = AveragePool(grids=1, rows=16, columns=16, keep=12)
    assert torch.allclose(uneven(torch.ones(1, 256, 1)), torch.ones(1, 12, 1))


def test_learned_queries_do_not_mind_the_order_of_tokens() -> None:
    torch.manual_seed(0)
    queries = LearnedQueries(16, keep=3, heads=2)
    tokens = torch.randn(2, 10, 16)
    assert largest(queries(tokens) - queries(tokens.flip(1))) <= TOLERANCE


# Sizes

def test_small_policy_fits_what_is_shipped() -> None:
    config = small(tuple(f'word{i}' for i in range(100)))
    parameters = count(EdgeVla(config))
    assert parameters <= 1_950_000
    assert 2 * 4 * parameters + 400_000 <= 16_000_000  # weights and graph in float32
    assert macs(config) <= 500_000_000
    assert config.frame_tokens == 38


def test_counted_operations_are_those_of_the_layers() -> None:
    def in_transformer(layers: int) -> int:
        return macs(tiny(transformer=replace(tiny().transformer, layers=layers)))
    linear = 14 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24)
    attention = 2 * 14 * (4 * 14) * 16
    assert in_transformer(3) - in_transformer(2) == linear + attention


def test_published_size_builds() -> None:
    config = published()
    assert (config.grid_tokens, config.visual_tokens, config.window) == (256, 64, 60)
    with torch.device('meta'):
        model = EdgeVla(config)
        *_, state, _ = example_inputs(config)
    assert state.shape == (1, 80)
    assert 1_300_000_000 < count(model.transformer) < 1_500_000_000
    assert 1_500_000_000 < count(model) < 2_500_000_000
    with torch.device('meta'):
        actions = model.step(*example_inputs(config), model.make_ring(),
                             torch.zeros((), dtype=torch.int64))
    assert actions.shape == (1, 30, 80)


# Training and precision

def test_every_weight_learns_under_autocast() -> None:
    model = make().train()
    inputs = tensors(episode(model.config, 6, batch=2))
    with torch.autocast('cpu', torch.bfloat16):
        output = model(**inputs)
    assert output.actions.dtype == output.gripper.dtype == torch.float32
    output.actions.square().sum().backward()
    idle = [name for name, weight in model.named_parameters()
            if weight.grad is None or not torch.isfinite(weight.grad).all()
            or not weight.grad.any()]
    # All values get the same from a key's bias: the softmax takes it away.
    assert [name for name in idle if name != 'compressor.key.bias'] == []


def test_a_few_steps_learn_to_follow_the_sentence() -> None:
    model = make().train()
    inputs = tensors(episode(model.config, 4, batch=4))
    target = (inputs['ids'][:, :, 0] % 2).float()[..., None].expand(-1, -1, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            model(**inputs).gripper, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_half_precision_keeps_norms_and_normalization_in_float32(dtype: Any) -> None:
    model, exact = to_precision(make(), dtype), make()
    kinds = {name: weight.dtype for name, weight in model.named_parameters()}
    assert {kind for name, kind in kinds.items() if 'norm' in name} == {torch.float32}
    assert kinds['transformer.blocks.0.query.weight'] == dtype
    assert {buffer.dtype for name, buffer in model.named_buffers() if name != 'anchor'} == {
        torch.float32}
    assert model.make_ring().dtype == dtype
    inputs = tensors(episode(model.config, 9))
    found = streamed(model, inputs)
    assert found.dtype == torch.float32
    assert largest(found - streamed(exact, inputs)) < 0.1


def test_vision_transformers_can_stand_on_both_sides() -> None:
    vit: EdgeVlaConfig = tiny(spatial=VitEncoder(patch=4, width=8, depth=1, heads=2),
                              text=Text((), length=2, size=50))
    assert vit.grid == (8, 4)
    output = EdgeVla(vit)(**tensors(episode(vit, 2)))
    assert output.actions.shape == (1, 2, 3, 3)
