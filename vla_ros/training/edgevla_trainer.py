"""Behaviour cloning of an EdgeVLA policy: sequences of frames under its banded mask."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.edgevla import checkpoint
from vla_ros.policies.edgevla.config import EdgeVlaConfig, Normalization
from vla_ros.policies.edgevla.model import EdgeVla
from vla_ros.policies.edgevla.tokenizer import Tokenizer
from vla_ros.training.dataset import Dataset
from vla_ros.training.trainer import (
    CHATTY,
    PLAIN,
    Batches,
    Helpers,
    Recipe,
    Trainer,
    helper_losses,
    kept_out,
    stages,
    taken_over,
    variants,
)

PERIOD_S = 0.1       # between two recorded frames
LONGEST_STRIDE = 4   # frames that a busy engine may miss, plus one
STRIDES = (0.72, 0.16, 0.08, 0.04)
LEAST_SCALE = 0.02   # rad: joints that hardly move are not blown up
LATER = 0.94         # weight of each step against the one before
GRIPPER_WEIGHT = 0.3


def normalization(dataset: Dataset) -> Normalization:
    """Mean and spread of the state, and of the targets' offsets from it."""
    state = np.asarray(dataset.arrays['state'], np.float64)
    offsets = np.asarray(dataset.arrays['targets'], np.float64)[..., :6] - state[:, :, None, :6]
    valid = dataset.arrays['valid']
    scale = np.stack([offsets[:, :, h][valid[:, :, h]].std(axis=0) for h in range(valid.shape[2])])
    flat = state.reshape(-1, state.shape[-1])
    return Normalization(
        tuple(map(float, flat.mean(axis=0))),
        tuple(map(float, np.maximum(flat.std(axis=0), 1e-2 * np.r_[np.ones(6), 0.1]))),
        tuple(tuple(map(float, row)) for row in np.maximum(scale, LEAST_SCALE)))


class Sequences(Batches):
    """Sequences of frames with random strides."""

    def __init__(self, config: EdgeVlaConfig, recipe: Recipe) -> None:
        super().__init__(recipe.device)
        self._frames = recipe.frames
        self._tokenizer = Tokenizer(config.text.words, config.text.length)

    def _prepared(self, dataset: Dataset) -> dict[str, Tensor]:
        ids = np.stack([
            np.stack([self._tokenizer.encode(each).ids
                      for each in variants(text, np.random.default_rng([6, i]))])
            for i, text in enumerate(dataset.sentences)])
        return {'ids': torch.from_numpy(ids).to(self._device)}

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False
             ) -> dict[str, Tensor]:
        """`count` sequences from one dataset; `since` in s, 0 at the first frame."""
        part = self._part(rng)
        size, length = part['state'].shape[:2]
        kept = kept_out(size)
        episodes = (rng.integers(0, kept, count) if held_out
                    else rng.integers(min(kept, size - 1), size, count))
        strides = 1 + rng.choice(LONGEST_STRIDE, (count, self._frames), p=STRIDES)
        even = rng.random(count) < 0.5  # half of the sequences come at one pace
        strides[even] = 1 + rng.choice(3, (int(even.sum()), 1), p=(0.7, 0.2, 0.1))
        strides[:, 0] = 0
        at = np.cumsum(strides, axis=1)
        at += rng.integers(0, np.maximum(1, length - at[:, -1:]), (count, 1))
        at = np.minimum(at, length - 1)
        rows = torch.from_numpy(episodes[:, None].repeat(self._frames, 1)).to(self._device)
        columns = torch.from_numpy(at).to(self._device)
        batch = {name: part[name][rows, columns]
                 for name in ('images', 'state', 'targets', 'valid', 'objects', 'things')}
        variant = torch.from_numpy(rng.integers(0, PLAIN + CHATTY, count)).to(self._device)
        batch['ids'] = part['ids'][part['sentence'][rows, columns], variant[:, None]]
        batch['since'] = torch.from_numpy(
            np.diff(at, axis=1, prepend=at[:, :1]).astype(np.float32) * PERIOD_S).to(self._device)
        return batch


class Losses:
    """The loss of a batch and what it consists of."""

    def __init__(self, config: EdgeVlaConfig, device: str) -> None:
        self._scale = torch.tensor(config.normalization.offset_scale, device=device)
        self._later = LATER ** torch.arange(config.horizon, device=device)

    def __call__(self, output: Any, objects: Tensor, things: Tensor, batch: Mapping[str, Tensor]
                 ) -> tuple[Tensor, dict[str, Tensor]]:
        valid = batch['valid'].float() * self._later  # [B, F, H]
        share = valid / valid.sum().clamp_min(1.0)
        error = (output.actions[..., :6].float() - batch['targets'][..., :6]) / self._scale
        joints = (functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.1,
                                            reduction='none').mean(-1) * share).sum()
        wanted = batch['targets'][..., 6]
        gripper = (functional.binary_cross_entropy_with_logits(
            output.gripper.float(), wanted, reduction='none') * share).sum()
        helped, parts = helper_losses(objects, things, batch)
        right = ((output.gripper > 0) == (wanted > 0.5)).float()
        return joints + GRIPPER_WEIGHT * gripper + helped, {
            'joints': joints, 'gripper': gripper, **parts,
            'gripper_wrong': ((1.0 - right) * share).sum()}


class EdgeVlaTrainer(Trainer):
    """Trains an EdgeVLA.

    `start`: a checkpoint to go on from; what it has in the same shape is taken over.
    """

    def __init__(self, batches: Sequences, config: EdgeVlaConfig, recipe: Recipe,
                 start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        self.config = config
        model = EdgeVla(config)
        if start is not None:
            taken_over(model, checkpoint.load(start).state_dict())
        super().__init__(batches, model, Helpers(config.transformer.width), recipe,
                         () if start is None else stages(start))
        self._loss = Losses(config, recipe.device)

    def _inputs(self, images: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        return images, batch['ids'], batch['state'], batch['since']

    def _losses(self, output: Any, batch: Mapping[str, Tensor]
                ) -> tuple[Tensor, dict[str, Tensor]]:
        objects, things = self._helpers(output.readout, output.visual)
        return self._loss(output, objects, things, batch)

    def _readout(self, output: Any) -> Tensor:
        readout: Tensor = output.readout
        return readout

    def _empty(self) -> nn.Module:
        return EdgeVla(self.config)

    def _write(self, folder: Path, model: Any) -> None:
        checkpoint.save(folder, model)
