"""The towers against independent ones with the same weights; the order of what they see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the towers are written in it')

from openvla_rig import config_of, frames, model_of  # noqa: E402

from vla_ros.policies.openvla.config import Tower, Vision, published, tiny  # noqa: E402
from vla_ros.policies.openvla.static import StaticVision  # noqa: E402
from vla_ros.policies.openvla.vision import VisionTower  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 1e-4
SQUARE = tiny().vision
# Names of ours: those of transformers, newer ones first.
DINO = {'attn.qkv': (('attention.q_proj', 'attention.k_proj', 'attention.v_proj'),
                     ('attention.attention.query', 'attention.attention.key',
                      'attention.attention.value')),
        'attn.proj': (('attention.o_proj',), ('attention.output.dense',)),
        'ls1': (('layer_scale1',),), 'ls2': (('layer_scale2',),)}
SIGLIP = {'attn.qkv': (('self_attn.q_proj', 'self_attn.k_proj', 'self_attn.v_proj'),),
          'attn.proj': (('self_attn.out_proj',),),
          'norm1': (('layer_norm1',),), 'norm2': (('layer_norm2',),)}


def pixels(count: int = 1, seed: int = 0, vision: Vision = SQUARE) -> Any:
    """Normalized images [count, 3, S, S]."""
    return torch.randn(count, 3, vision.image, vision.image,
                       generator=torch.Generator().manual_seed(seed))


def blocks_of(theirs: Mapping[str, Any], number: int, layers: str,
              names: Mapping[str, tuple[tuple[str, ...], ...]]) -> dict[str, Any]:
    """The weights of a block of theirs by our names."""
    found = {}
    for ours in ('norm1', 'attn.qkv', 'attn.proj', 'ls1', 'norm2', 'mlp.fc1', 'mlp.fc2', 'ls2'):
        for kind in ('weight', 'bias', 'lambda1'):
            for parts in names.get(ours, ((ours,),)):
                keys = [f'{layers}.{number}.{part}.{kind}' for part in parts]
                if all(key in theirs for key in keys):
                    name = 'scale_factor' if kind == 'lambda1' else kind
                    found[f'blocks.{number}.{ours}.{name}'] = torch.cat([theirs[k] for k in keys])
    return found


def drawn(model: Any, seed: int) -> Any:
    """The weights of a model of transformers, drawn so that each tells."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def dino_of(tower: Tower, vision: Vision, seed: int = 0) -> tuple[VisionTower, Any]:
    """Ours and DINOv2 with registers of transformers. Theirs has a position of the class token."""
    transformers = pytest.importorskip('transformers')
    theirs = drawn(transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(
        hidden_size=tower.width, num_hidden_layers=tower.depth, num_attention_heads=tower.heads,
        mlp_ratio=tower.hidden // tower.width, image_size=vision.image, patch_size=vision.patch,
        num_register_tokens=tower.registers, hidden_act='gelu', layer_norm_eps=tower.epsilon)),
        seed)
    weights = dict(theirs.state_dict())
    before = weights['embeddings.position_embeddings']
    ours = VisionTower(tower, vision)
    ours.load_state_dict({
        'cls_token': weights['embeddings.cls_token'] + before[:, :1],
        'reg_token': weights['embeddings.register_tokens'], 'pos_embed': before[:, 1:],
        'patch_embed.proj.weight': weights['embeddings.patch_embeddings.projection.weight'],
        'patch_embed.proj.bias': weights['embeddings.patch_embeddings.projection.bias'],
        **{key: value for number in range(tower.blocks)
           for key, value in blocks_of(weights, number, 'encoder.layer', DINO).items()}})
    return ours.eval(), theirs


def siglip_of(tower: Tower, vision: Vision, seed: int = 0) -> tuple[VisionTower, Any]:
    """Ours and SigLIP of transformers."""
    transformers = pytest.importorskip('transformers')
    theirs = drawn(transformers.SiglipVisionModel(transformers.SiglipVisionConfig(
        hidden_size=tower.width, num_hidden_layers=tower.depth, num_attention_heads=tower.heads,
        intermediate_size=tower.hidden, image_size=vision.image, patch_size=vision.patch,
        hidden_act='gelu', layer_norm_eps=tower.epsilon)), seed)
    weights = {key.removeprefix('vision_model.'): value
               for key, value in theirs.state_dict().items()}
    ours = VisionTower(tower, vision)
    ours.load_state_dict({
        'pos_embed': weights['embeddings.position_embedding.weight'][None],
        'patch_embed.proj.weight': weights['embeddings.patch_embedding.weight'],
        'patch_embed.proj.bias': weights['embeddings.patch_embedding.bias'],
        **{key: value for number in range(tower.blocks)
           for key, value in blocks_of(weights, number, 'encoder.layers', SIGLIP).items()}})
    return ours.eval(), theirs


# --- against transformers ------------------------------------------------------------------------


@pytest.mark.parametrize('seed', [0, 1])
@pytest.mark.parametrize(('make', 'tower'), [
    (dino_of, SQUARE.dino), (dino_of, Tower(48, 4, 3, 96, 2, True, True)),
    (siglip_of, SQUARE.siglip), (siglip_of, Tower(24, 2, 4, 40))])
@torch.no_grad()
def test_features_are_those_of_the_block_before_the_last(make: Any, tower: Tower,
                                                         seed: int) -> None:
    vision = Vision(56, 14, SQUARE.dino, SQUARE.siglip)
    ours, theirs = make(tower, vision, seed)
    seen = pixels(3, seed, vision)
    hidden = theirs(seen, output_hidden_states=True).hidden_states
    assert len(hidden) == tower.depth + 1  # what enters the first block comes first
    found, wanted = ours(seen), hidden[tower.depth - 1][:, tower.prefix:]
    assert found.shape == (3, 16, tower.width)
    assert wanted.std() > 0.5
    assert (found - wanted).abs().max() <= TOLERANCE
    # Neither the block before nor the one after: the index is told by the numbers.
    for other in (tower.depth - 2, tower.depth):
        assert (found - hidden[other][:, tower.prefix:]).abs().max() > 0.1


@torch.no_grad()
def test_class_token_and_registers_come_first_and_have_no_position() -> None:
    ours, theirs = dino_of(SQUARE.dino, SQUARE)
    assert ours.pos_embed.shape == (1, SQUARE.patches, SQUARE.dino.width)
    seen = pixels(2)
    tokens = ours.tokens(seen)
    assert (tokens - theirs(seen, output_hidden_states=True).hidden_states[0]).abs().max() < 1e-5
    assert torch.equal(tokens[1, 0], ours.cls_token[0, 0])
    assert torch.equal(tokens[1, 1:5], ours.reg_token[0])
    ours.pos_embed.add_(7.0)
    moved = ours.tokens(seen) - tokens
    assert torch.equal(moved[:, :5], torch.zeros_like(moved[:, :5]))
    assert torch.allclose(moved[:, 5:], torch.full_like(moved[:, 5:], 7.0), atol=1e-5)


@torch.no_grad()
def test_prefix_tells_in_the_features_though_it_is_dropped() -> None:
    ours, _ = dino_of(SQUARE.dino, SQUARE)
    before = ours(pixels())
    ours.reg_token[0, 3].mul_(-1.0)
    assert (ours(pixels()) - before).abs().max() > 1e-3


# --- order ---------------------------------------------------------------------------------------


@torch.no_grad()
def test_patches_are_told_row_by_row() -> None:
    ours, _ = siglip_of(SQUARE.siglip, SQUARE)
    image = torch.zeros(1, 3, 28, 28)
    dark = ours.patch_embed(image)
    for token, (row, column) in enumerate([(0, 0), (0, 1), (1, 0), (1, 1)]):
        lit = image.clone()
        lit[..., 14 * row:14 * (row + 1), 14 * column:14 * (column + 1)] = 1.0
        changed = (ours.patch_embed(lit) - dark).abs().amax((0, 2))
        assert changed.nonzero().ravel().tolist() == [token]


@torch.no_grad()
def test_first_three_channels_are_dinos_and_the_next_three_siglips() -> None:
    backbone = model_of(config_of(images=1)).vision_backbone
    left, right = pixels(seed=1), pixels(seed=2)
    features = backbone(torch.cat([left, right], 1))
    width = SQUARE.dino.width
    assert features.shape == (1, SQUARE.patches, SQUARE.width)
    assert torch.allclose(features[..., :width], backbone.featurizer(left), atol=1e-5)
    assert torch.allclose(features[..., width:], backbone.fused_featurizer(right), atol=1e-5)
    swapped = backbone(torch.cat([right, left], 1))
    assert (swapped - features).abs().max() > 0.1


@torch.no_grad()
def test_images_follow_each_other_and_do_not_see_each_other() -> None:
    config = config_of(images=3)
    model, alone = model_of(config), model_of(config_of(images=1))
    alone.load_state_dict(model.state_dict())
    many = torch.cat([torch.randn(2, 6, 28, 28, generator=torch.Generator().manual_seed(i))
                      for i in range(3)], 1)
    seen = model.see(many)
    assert seen.shape == (2, 3 * SQUARE.patches, config.llama.width)
    for image in range(3):
        own = alone.see(many[:, 6 * image:6 * (image + 1)])
        part = seen[:, SQUARE.patches * image:SQUARE.patches * (image + 1)]
        assert torch.allclose(part, own, atol=1e-4)
        assert seen.std() > 0.05


@torch.no_grad()
def test_prefix_is_bos_then_patches_then_state_then_the_prompt() -> None:
    config = config_of()
    model = model_of(config)
    ids = torch.tensor([[1, 9, 8, 7, 5]])
    state = torch.tensor([[0.5, -0.5, 1.0]])
    many = torch.randn(1, 12, 28, 28, generator=torch.Generator().manual_seed(0))
    found = model.prefix(many, ids, state)[0]
    patches = 2 * SQUARE.patches
    assert len(found) == config.prefix_tokens(5) == 5 + patches + 1
    words = model.language_model.model.embed_tokens.weight
    assert torch.equal(found[0], words[1])
    assert torch.equal(found[1:1 + patches], model.see(many)[0])
    assert torch.equal(found[1 + patches], model.proprio_projector(state)[0, 0])
    assert torch.equal(found[2 + patches:], words[ids[0, 1:]])
    with pytest.raises(ValueError, match='state: missing: the policy takes 3 values'):
        model.prefix(many, ids)


# --- static --------------------------------------------------------------------------------------


@pytest.mark.parametrize('images', [1, 3])
@torch.no_grad()
def test_static_vision_equals_the_plain_one(images: int) -> None:
    """Layer scales are folded into the weights before them; there are some of both signs."""
    model = model_of(config_of(images=images), seed=images)
    scales = model.vision_backbone.featurizer.blocks[0].ls1.scale_factor
    assert scales.min() < -0.5 < 0.5 < scales.max()
    static, generator = StaticVision(model), torch.Generator().manual_seed(0)
    for _ in range(3):
        many = torch.randn(1, 6 * images, 28, 28, generator=generator)
        found, wanted = static(many), model.see(many)[0]
        assert wanted.std() > 0.05
        assert (found - wanted).abs().max() <= 1e-5 * (1.0 + wanted.abs().max())


@torch.no_grad()
def test_static_vision_leaves_the_model_as_it_was() -> None:
    model = model_of(config_of())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    StaticVision(model)(torch.randn(1, 12, 28, 28))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_published_towers_run_all_blocks_but_the_last() -> None:
    vision = published().vision
    with torch.device('meta'):
        dino, siglip = (VisionTower(tower, vision) for tower in (vision.dino, vision.siglip))
    assert (len(dino.blocks), len(siglip.blocks)) == (23, 26)
    assert dino.pos_embed.shape == (1, 256, 1024)
    assert siglip.pos_embed.shape == (1, 256, 1152)
    assert not any('norm.' in name and 'blocks' not in name for name in siglip.state_dict())
    assert dino.blocks[0].mlp.fc1.weight.shape == (4096, 1024)
    assert siglip.blocks[0].mlp.fc1.weight.shape == (4304, 1152)


@torch.no_grad()
def test_frames_of_the_rig_tell_in_what_is_seen() -> None:
    """The comparisons above and in the other files would be empty without it."""
    config = config_of()
    model = model_of(config)
    first, second = (torch.from_numpy(np.ascontiguousarray(frame.images)).float() / 255.0
                     for frame in frames(config, 2))
    one, two = (model.see(torch.cat([image.permute(0, 3, 1, 2)] * 2, 1).reshape(1, 12, 28, 28))
                for image in (first, second))
    assert (one - two).abs().mean() > 0.01
