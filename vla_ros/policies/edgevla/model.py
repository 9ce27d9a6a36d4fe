"""The EdgeVLA network: one pass over whole episodes to train, one frame at a time to act."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla_ros.policies.edgevla.config import EdgeVlaConfig
from vla_ros.policies.edgevla.transformer import (
    FrameTransformer,
    GroupNorm,
    LayerNorm,
    RmsNorm,
    Write,
)
from vla_ros.policies.edgevla.vision import Vision, compressor

LONGEST_S = 2.0  # time between two frames beyond which all are alike


class EpisodeOutput(NamedTuple):
    """What comes out of whole episodes of F frames.

    actions: float32 [B, F, H, A], positions absolute, gripper 0 to 1. gripper: logits float32
    [B, F, H], None where there is no gripper. readout: [B, F, d]. visual: [B, F, V, d], the visual
    tokens behind the compressor.
    """

    actions: Tensor
    gripper: Tensor | None
    readout: Tensor
    visual: Tensor


class EdgeVla(nn.Module):
    """Images, sentence and state to an action chunk, with a cache over a window of frames.

    The tokens of a frame: text, visual, state, readout. Positions are predicted as offsets from
    the measured state of the same name, in units of `offset_scale`.
    """

    state_mean: Tensor
    state_std: Tensor
    offset_scale: Tensor
    anchor: Tensor

    def __init__(self, config: EdgeVlaConfig) -> None:
        super().__init__()
        self.config = config
        sizes = config.transformer
        width = sizes.width
        self.vision = Vision(config)
        self.compressor = compressor(config)
        self.words = nn.Embedding(config.text.vocabulary, width)
        self.state = nn.Linear(len(config.state), width)
        self.since = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width))
        self.readout = nn.Parameter(torch.randn(width))
        self.types = nn.Parameter(0.3 * torch.randn(4, width))  # text, visual, state, readout
        self.transformer = FrameTransformer(sizes, config.frame_tokens, config.window)
        self.head = nn.Sequential(
            RmsNorm(width, sizes.epsilon), nn.Linear(width, 2 * width), nn.SiLU(),
            nn.Linear(2 * width, config.horizon * len(config.action)))
        for name, value in (('state_mean', config.normalization.state_mean),
                            ('state_std', config.normalization.state_std),
                            ('offset_scale', config.normalization.offset_scale)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32), persistent=False)
        anchors = [config.state.index(name) for name in config.positions]
        self.register_buffer('anchor', torch.tensor(anchors, dtype=torch.int64), persistent=False)
        self._initialize()

    def _initialize(self) -> None:
        depth = 2 * self.config.transformer.layers
        for block in self.transformer.blocks:
            for name, layer in block.named_children():
                if isinstance(layer, nn.Linear):
                    scale = depth**-0.5 if name in ('output', 'down') else 1.0
                    nn.init.normal_(layer.weight, std=scale / math.sqrt(layer.in_features))
        last = self.head[-1]
        assert isinstance(last, nn.Linear)
        nn.init.normal_(last.weight, std=0.1 / math.sqrt(last.in_features))
        nn.init.zeros_(last.bias)

    def forward(self, images: Tensor, ids: Tensor, state: Tensor, since: Tensor) -> EpisodeOutput:
        """Whole episodes under the banded causal mask that the cache has.

        images [B, F, C, height, width, 3], uint8 or float 0 to 1; ids int64 [B, F, L]; state
        float32 [B, F, S]; since float32 [B, F], seconds since the frame before, 0 for the first.
        """
        batch, frames = state.shape[:2]
        tokens, visual = self._tokens(images.flatten(0, 1), ids.flatten(0, 1),
                                      state.flatten(0, 1), since.flatten())
        readout = self.transformer(tokens.view(batch, frames, *tokens.shape[1:]))
        actions, gripper = self._actions(readout, state)
        visual = visual.view(batch, frames, *visual.shape[1:])
        return EpisodeOutput(actions, gripper, readout, visual)

    def make_ring(self, batch: int = 1) -> Tensor:
        """An empty cache, as it is wanted again after a reset."""
        like = self.words.weight
        return torch.zeros(self.config.ring_shape(batch), dtype=like.dtype, device=like.device)

    @torch.no_grad()
    def step(self, images: Tensor, ids: Tensor, state: Tensor, since: Tensor, ring: Tensor,
             frame: Tensor) -> Tensor:
        """The chunk float32 [B, H, A] for one frame; the ring is written to in place.

        As `forward` without the axis F. `frame` int64 []: how many frames came before.
        """
        slot = (frame % self.config.window).reshape(1)

        def write(layer: int, new: Tensor) -> Tensor:
            return ring[layer].index_copy_(2, slot, new.unsqueeze(2).to(ring.dtype))

        return self.stream(images, ids, state, since, frame, write)[0]

    def stream(self, images: Tensor, ids: Tensor, state: Tensor, since: Tensor, frame: Tensor,
               write: Write) -> tuple[Tensor, Tensor]:
        """The chunk [B, H, A] and the keys and values of a frame; `write` keeps the ring."""
        tokens, _ = self._tokens(images, ids, state, since)
        readout, stored = self.transformer.stream(tokens, frame, write)
        return self._actions(readout, state)[0], stored

    def _tokens(self, images: Tensor, ids: Tensor, state: Tensor,
                since: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [N, T, d] of frames, and the visual ones among them [N, V, d]."""
        dtype = self.words.weight.dtype
        pixels = images.to(dtype) * (2.0 / 255.0 if images.dtype == torch.uint8 else 2.0) - 1.0
        visual = self.compressor(self.vision(pixels.permute(0, 1, 4, 2, 3)))
        measured = (state - self.state_mean) / self.state_std
        passed = since.clamp(0.0, LONGEST_S)[:, None]
        passed = torch.cat((passed, torch.log1p(10.0 * passed) / math.log(10.0)), dim=1)
        body = self.state(measured.to(dtype)) + self.since(passed.to(dtype))
        count = state.shape[0]
        tokens = torch.cat((
            self.words(ids) + self.types[0],
            visual + self.types[1],
            body[:, None] + self.types[2],
            (self.readout + self.types[3]).expand(count, 1, -1)), dim=1)
        return tokens, visual

    def _actions(self, readout: Tensor, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Actions [..., H, A] and gripper logits [..., H] of readouts [..., d]."""
        config = self.config
        raw = self.head(readout).float()
        raw = raw.view(*raw.shape[:-1], config.horizon, len(config.action))
        if not config.gripper:
            return state[..., self.anchor].unsqueeze(-2) + raw * self.offset_scale, None
        at = config.action.index(config.gripper)
        logits = raw[..., at]
        offsets = torch.cat((raw[..., :at], raw[..., at + 1:]), dim=-1) * self.offset_scale
        positions = state[..., self.anchor].unsqueeze(-2) + offsets
        grip = logits.sigmoid().unsqueeze(-1)
        actions = torch.cat((positions[..., :at], grip, positions[..., at:]), dim=-1)
        return actions, logits


def to_precision(model: EdgeVla, dtype: torch.dtype) -> EdgeVla:
    """The weights in `dtype`, those of the norms and the normalization in float32, in place."""
    for module in model.modules():
        if not isinstance(module, (RmsNorm, LayerNorm, GroupNorm)):
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(dtype)
    return model


def count(model: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def macs(config: EdgeVlaConfig) -> int:
    """Multiplications with an addition in one streaming frame, counted without weights."""
    from torch.utils.flop_counter import FlopCounterMode
    with torch.device('meta'):
        model = EdgeVla(config)
        inputs = example_inputs(config)
        frame = torch.zeros((), dtype=torch.int64)
        ring = model.make_ring()
    with FlopCounterMode(display=False) as counter:
        model.step(*inputs, ring, frame)
    return int(counter.get_total_flops()) // 2


def example_inputs(config: EdgeVlaConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zeros in the shapes of `step` for one robot: images, ids, state, since."""
    camera = config.cameras
    return (torch.zeros((1, len(camera.names), camera.height, camera.width, 3),
                        dtype=torch.uint8),
            torch.zeros((1, config.text.length), dtype=torch.int64),
            torch.zeros((1, len(config.state))), torch.zeros(1))
