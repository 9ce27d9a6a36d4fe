"""A tiny EdgeVLA config and random episodes for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from vla_ros.policies.edgevla.config import (
    Cameras,
    Compressor,
    ConvEncoder,
    EdgeVlaConfig,
    Normalization,
    Text,
    Transformer,
    VitEncoder,
)

WORDS = ('pick', 'up', 'the', 'red', 'block')
STATE = ('shoulder', 'finger', 'elbow')
ACTION = ('elbow', 'grip', 'shoulder')  # in another order, on purpose


def tiny(**changes: Any) -> EdgeVlaConfig:
    """Two cameras of 32x16 pixels, 4x2 cells each, 14 tokens a frame, a window of 4 frames."""
    config = EdgeVlaConfig(
        cameras=Cameras(('front', 'side'), height=32, width=16),
        spatial=ConvEncoder((8, 8), (3, 3), (4, 2), groups=4),
        semantic=VitEncoder(patch=8, width=8, depth=1, heads=2, shuffle=2),
        compressor=Compressor('learned_query', keep=6, heads=2),
        text=Text(WORDS, length=6),
        transformer=Transformer(width=16, layers=2, heads=4, kv_heads=2, hidden=24),
        state=STATE, action=ACTION, gripper='grip', horizon=3, period=0.1, window=4,
        normalization=Normalization((0.1, 0.2, 0.3), (0.5, 0.1, 2.0),
                                    ((0.1, 0.2), (0.3, 0.4), (0.5, 0.6))))
    return replace(config, **changes)


def episode(config: EdgeVlaConfig, frames: int, batch: int = 1, seed: int = 0) -> dict[str, Any]:
    """Random images uint8 [B, F, C, h, w, 3], ids [B, F, L], state [B, F, S], since [B, F]."""
    random = np.random.default_rng(seed)
    camera = config.cameras
    since = random.uniform(0.0, 2.5, (batch, frames)).astype(np.float32)
    since[:, 0] = 0.0
    return {
        'images': random.integers(0, 256, (batch, frames, len(camera.names), camera.height,
                                           camera.width, 3), dtype=np.uint8),
        'ids': random.integers(0, config.text.vocabulary, (batch, frames, config.text.length)),
        'state': random.standard_normal((batch, frames, len(config.state))).astype(np.float32),
        'since': since,
    }


def by_frame(inputs: dict[str, Any]) -> Iterator[list[Any]]:
    """The inputs of one frame after the other."""
    for frame in range(inputs['since'].shape[1]):
        yield [values[:, frame] for values in inputs.values()]
