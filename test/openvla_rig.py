"""Small OpenVLA policies whose tokens depend on all that they see, and frames for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vla_ros.policies.openvla.backend import Frame
from vla_ros.policies.openvla.config import OpenVlaConfig, tiny
from vla_ros.policies.openvla.model import OpenVla, random_model
from vla_ros.policies.openvla.oft import random_head
from vla_ros.policies.openvla.oft_checkpoint import save_oft

IMAGES, STATE = 2, 3


def config_of(images: int = IMAGES, state: int = STATE, kv_heads: int = 2, heads: int = 2,
              **changes: Any) -> OpenVlaConfig:
    """`tiny`, with grouped queries where asked for."""
    config = tiny(images=images, state=state, **changes)
    return replace(config, llama=replace(config.llama, heads=heads, kv_heads=kv_heads))


def model_of(config: OpenVlaConfig, seed: int = 0) -> OpenVla:
    """Drawn weights, large enough that every word and the layer scales tell in every token."""
    model = random_model(config, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.language_model.model.embed_tokens.weight.mul_(50.0)
        for name, value in model.named_parameters():
            if 'scale_factor' in name:
                value.uniform_(-1.0, 1.0, generator=generator)
            elif 'pos_embed' in name or name.endswith('_token'):
                value.normal_(0.0, 0.3, generator=generator)
            elif value.ndim == 1 and 'norm' in name:
                value.uniform_(0.5, 1.5, generator=generator)
        if config.state:
            model.proprio_projector.fc1.bias.normal_(generator=generator)
    return model


def save_drawn_oft(folder: Path, config: OpenVlaConfig, seed: int = 0, *,
                   as_published: bool = False) -> None:
    """Write an OFT checkpoint of `model_of` and a drawn head; most of its numbers are in -1 to 1.

    Drawn as it is, a head says larger ones, and rounding then counts for more than it does.
    """
    head = random_head(config, seed=seed)
    with torch.no_grad():
        head.model.fc2.weight.mul_(0.3)
    save_oft(folder, model_of(config, seed), head, as_published=as_published)


def frames(config: OpenVlaConfig, count: int, longest: int = 30, seed: int = 0,
           size: tuple[int, int] | None = None, held: int = 5) -> list[Frame]:
    """Random images and states; the instruction changes every `held` frames, and its length too."""
    rng = np.random.default_rng(seed)
    side = config.vision.image
    made, ids = [], np.zeros(0, np.int64)
    for number in range(count):
        if number % held == 0:
            ids = np.array([config.prompt.bos, *rng.integers(6, 40, rng.integers(3, longest - 1)),
                            5], np.int64)
        shape = (config.vision.images, *(size or (side, side)), 3)
        colors = rng.uniform(0.0, 256.0, (config.vision.images, 2, 2, 3))  # of the quarters
        rows, columns = (2 * np.arange(length) // length for length in shape[1:3])
        images = (colors[:, rows][:, :, columns] + rng.normal(0.0, 20.0, shape)).clip(0.0, 255.0)
        state = rng.uniform(-1.0, 1.0, config.state).astype(np.float32) if config.state else None
        made.append(Frame(images.astype(np.uint8), ids, state))
    return made
