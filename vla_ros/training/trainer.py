"""Behaviour cloning of an EdgeVLA policy from recorded episodes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from vla_ros.policies.edgevla import checkpoint
from vla_ros.policies.edgevla.config import EdgeVlaConfig, Normalization
from vla_ros.policies.edgevla.model import EdgeVla
from vla_ros.policies.edgevla.tokenizer import Tokenizer
from vla_ros.training.dataset import Dataset

PERIOD_S = 0.1       # between two recorded frames
LONGEST_STRIDE = 4   # frames that a busy engine may miss, plus one
STRIDES = (0.72, 0.16, 0.08, 0.04)
HELD_OUT = 0.03      # share of the episodes that is never trained on
LEAST_SCALE = 0.02   # rad: joints that hardly move are not blown up
LATER = 0.94         # weight of each step against the one before
OBJECT_WEIGHT, GRIPPER_WEIGHT = 0.5, 0.3
OBJECT_SCALE = 0.05  # m
# Variants of a sentence that are read as often as each other: most plain, the others as people
# who say more than they need would put it.
PLAIN, CHATTY = 5, 3
FILLERS = ('the', 'to', 'up', 'in', 'into', 'over')


@dataclass(frozen=True)
class Recipe:
    """How to train. Ends after `steps`, or after `minutes` where that comes first.

    `batch` sequences of `frames` frames each; `average`: decay of the weights' running mean, which
    is what is kept; `precision`: bf16 or fp32.
    """

    steps: int = 12_000
    minutes: float = math.inf
    batch: int = 64
    frames: int = 12
    rate: float = 1.2e-3
    warm_up: int = 300
    decay: float = 0.02
    average: float = 0.999
    seed: int = 0
    device: str = 'cpu'
    precision: str = 'fp32'
    compile: bool = False
    report_every: int = 100


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


class Batches:
    """Sequences of frames with random strides, as tensors on the device."""

    def __init__(self, datasets: list[Dataset], config: EdgeVlaConfig, recipe: Recipe) -> None:
        self._device, self._frames = torch.device(recipe.device), recipe.frames
        tokenizer = Tokenizer(config.text.words, config.text.length)
        self._parts = []
        for dataset in datasets:
            ids = np.stack([variants(text, tokenizer, np.random.default_rng([6, i]))
                            for i, text in enumerate(dataset.sentences)])
            arrays = {name: self._on_device(array) for name, array in dataset.arrays.items()}
            arrays['ids'] = torch.from_numpy(ids).to(self._device)
            self._parts.append(arrays)
        sizes = [len(dataset) for dataset in datasets]
        self._kept = [max(1, round(size * HELD_OUT)) for size in sizes]
        self._sizes = np.array(sizes, np.float64) / sum(sizes)
        self._length = int(self._parts[0]['state'].shape[1])

    def _on_device(self, array: Any) -> Tensor:
        made = torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)),
                           device=self._device)
        for start in range(0, len(array), 64):
            made[start:start + 64] = torch.from_numpy(np.array(array[start:start + 64]))
        return made

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False
             ) -> dict[str, Tensor]:
        """`count` sequences from one dataset; `since` in s, 0 at the first frame."""
        index = int(rng.choice(len(self._parts), p=self._sizes))
        part, kept = self._parts[index], self._kept[index]
        size = len(part['state'])
        episodes = (rng.integers(0, kept, count) if held_out
                    else rng.integers(min(kept, size - 1), size, count))
        strides = 1 + rng.choice(LONGEST_STRIDE, (count, self._frames), p=STRIDES)
        even = rng.random(count) < 0.5  # half of the sequences come at one pace
        strides[even] = 1 + rng.choice(3, (int(even.sum()), 1), p=(0.7, 0.2, 0.1))
        strides[:, 0] = 0
        at = np.cumsum(strides, axis=1)
        at += rng.integers(0, np.maximum(1, self._length - at[:, -1:]), (count, 1))
        at = np.minimum(at, self._length - 1)
        rows = torch.from_numpy(episodes[:, None].repeat(self._frames, 1)).to(self._device)
        columns = torch.from_numpy(at).to(self._device)
        batch = {name: part[name][rows, columns]
                 for name in ('images', 'state', 'targets', 'valid', 'objects')}
        variant = torch.from_numpy(rng.integers(0, PLAIN + CHATTY, count)).to(self._device)
        batch['ids'] = part['ids'][part['sentence'][rows, columns], variant[:, None]]
        batch['since'] = torch.from_numpy(
            np.diff(at, axis=1, prepend=at[:, :1]).astype(np.float32) * PERIOD_S).to(self._device)
        return batch


def variants(text: str, tokenizer: Tokenizer, rng: np.random.Generator) -> Any:
    """Token ids int64 [variants, L] of a sentence; in some of them stand words nobody knows."""
    chatty = []
    for _ in range(CHATTY):
        words = ['xx' if word in FILLERS and rng.random() < 0.5 else word
                 for word in text.split()]
        place = int(rng.integers(0, 3))  # nowhere, before or after
        words = ['xx'] * (place == 1) + words + ['xx'] * (place == 2)
        chatty.append(' '.join(words))
    return np.stack([tokenizer.encode(each).ids for each in [text] * PLAIN + chatty])


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images uint8 [B, F, C, h, w, 3] as half floats in 0..1, with other light and some noise.

    A sequence keeps its light; each camera has its own.
    """
    batch, _, cameras = images.shape[:3]
    size, options = (batch, 1, cameras, 1, 1, 3), {'device': images.device, 'generator': generator}
    kind = torch.bfloat16 if images.is_cuda else torch.float32
    gain = 1.0 + 0.12 * (2.0 * torch.rand(size, **options) - 1.0)
    gain = gain * (1.0 + 0.15 * (2.0 * torch.rand((batch, 1, cameras, 1, 1, 1), **options) - 1.0))
    offset = 0.06 * (2.0 * torch.rand(size, **options) - 1.0)
    made = images.to(kind) * (gain / 255.0).to(kind) + offset.to(kind)
    made = made + 0.015 * torch.randn(made.shape, dtype=kind, **options)
    return made.clamp_(0.0, 1.0)


class Losses:
    """The loss of a batch and what it consists of."""

    def __init__(self, config: EdgeVlaConfig, device: torch.device) -> None:
        self._scale = torch.tensor(config.normalization.offset_scale, device=device)
        self._later = LATER ** torch.arange(config.horizon, device=device)

    def __call__(self, output: Any, objects: Tensor, batch: dict[str, Tensor]
                 ) -> tuple[Tensor, dict[str, Tensor]]:
        valid = batch['valid'].float() * self._later  # [B, F, H]
        share = valid / valid.sum().clamp_min(1.0)
        error = (output.actions[..., :6].float() - batch['targets'][..., :6]) / self._scale
        joints = (functional.smooth_l1_loss(error, torch.zeros_like(error), beta=0.1,
                                            reduction='none').mean(-1) * share).sum()
        wanted = batch['targets'][..., 6]
        gripper = (functional.binary_cross_entropy_with_logits(
            output.gripper.float(), wanted, reduction='none') * share).sum()
        aside = (objects.float() - batch['objects']).abs()
        where = (aside / OBJECT_SCALE).mean()
        total = joints + GRIPPER_WEIGHT * gripper + OBJECT_WEIGHT * where
        right = ((output.gripper > 0) == (wanted > 0.5)).float()
        return total, {'joints': joints, 'gripper': gripper, 'object_cm': 100.0 * aside.mean(),
                       'gripper_wrong': ((1.0 - right) * share).sum()}


def train(datasets: list[Dataset], config: EdgeVlaConfig, recipe: Recipe, folder: Path,
          start: Path | None = None, report: Callable[[dict[str, float]], None] | None = None
          ) -> list[dict[str, float]]:
    """Train and write a checkpoint into `folder`; returns the loss curves.

    `start`: a checkpoint to go on from.
    """
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision('high')
    device = torch.device(recipe.device)
    rng = np.random.default_rng([5, recipe.seed])
    noise = torch.Generator(device).manual_seed(recipe.seed)
    batches = Batches(datasets, config, recipe)
    begin = time.monotonic()
    model: Any = (EdgeVla(config) if start is None else checkpoint.load(start)).to(device)
    config = model.config if start is not None else config
    head = torch.nn.Linear(config.transformer.width, 6).to(device)
    parameters = [*model.parameters(), *head.parameters()]
    heavy = [p for p in parameters if p.ndim > 1]
    light = [p for p in parameters if p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{'params': heavy, 'weight_decay': recipe.decay}, {'params': light, 'weight_decay': 0.0}],
        lr=recipe.rate, betas=(0.9, 0.98), fused=device.type == 'cuda')
    averaged = [p.detach().clone() for p in model.parameters()]
    losses = Losses(config, device)
    forward = torch.compile(model) if recipe.compile else model
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == 'bf16')
    curves: list[dict[str, float]] = []
    for step in range(recipe.steps):
        elapsed = (time.monotonic() - begin) / 60.0
        progress = max(step / recipe.steps, elapsed / recipe.minutes)
        if progress >= 1.0:
            break
        for group in optimizer.param_groups:
            group['lr'] = recipe.rate * _rate(step, progress, recipe.warm_up)
        batch = batches.draw(rng, recipe.batch)
        with autocast:
            output = forward(augmented(batch['images'], noise), batch['ids'], batch['state'],
                             batch['since'])
            objects = head(output.readout)
        total, parts = losses(output, objects, batch)
        optimizer.zero_grad(set_to_none=True)
        total.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        keep = min(recipe.average, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            torch._foreach_lerp_(averaged, list(model.parameters()), 1.0 - keep)
        if step % recipe.report_every == 0:
            row = {'step': step, 'minutes': round(elapsed, 3),
                   **{name: float(value.detach()) for name, value in parts.items()},
                   **_held_out(model, head, batches, losses, recipe, autocast)}
            curves.append(row)
            if report is not None:
                report(row)
    with torch.no_grad():
        for parameter, mean in zip(model.parameters(), averaged, strict=True):
            parameter.copy_(mean)
    curves.append({'step': step + 1, 'minutes': round((time.monotonic() - begin) / 60.0, 3),
                   **_held_out(model, head, batches, losses, recipe, autocast, 16)})
    if report is not None:
        report(curves[-1])
    checkpoint.save(folder, model)
    (folder / 'training.json').write_text(json.dumps(
        {'recipe': {name: value for name, value in asdict(replace(
            recipe, minutes=min(recipe.minutes, 1e9))).items()},
         'episodes': [len(dataset) for dataset in datasets],
         'frames': int(datasets[0].arrays['state'].shape[1]), 'curves': curves}, indent=1))
    return curves


def _rate(step: int, progress: float, warm_up: int) -> float:
    return min(1.0, (step + 1) / warm_up) * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(
        math.pi * progress)))


@torch.no_grad()
def _held_out(model: Any, head: Any, batches: Batches, losses: Losses, recipe: Recipe,
              autocast: Any, count: int = 2) -> dict[str, float]:
    rng = np.random.default_rng(9)
    sums: dict[str, float] = {}
    for _ in range(count):
        batch = batches.draw(rng, recipe.batch, held_out=True)
        with autocast:
            images = batch['images'].to(torch.bfloat16 if batch['images'].is_cuda else
                                        torch.float32) / 255.0
            output = model(images, batch['ids'], batch['state'], batch['since'])
            objects = head(output.readout)
        for name, value in losses(output, objects, batch)[1].items():
            sums[f'held_out_{name}'] = sums.get(f'held_out_{name}', 0.0) + float(value) / count
    return sums


def rows_of(curves: list[dict[str, float]]) -> Iterator[str]:
    """The curves as lines of text."""
    for row in curves:
        yield '  '.join(f'{name} {value:.4g}' for name, value in row.items())
