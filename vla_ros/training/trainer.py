"""Behaviour cloning of an EdgeVLA policy from recorded episodes."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
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

PERIOD_S = 0.1       # between two recorded frames
LONGEST_STRIDE = 4   # frames that a busy engine may miss, plus one
STRIDES = (0.72, 0.16, 0.08, 0.04)
HELD_OUT = 0.03      # share of the episodes that is never trained on
LEAST_SCALE = 0.02   # rad: joints that hardly move are not blown up
LATER = 0.94         # weight of each step against the one before
GRIPPER_WEIGHT, OBJECT_WEIGHT, THING_WEIGHT = 0.3, 0.5, 0.5
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
    minutes: float = 1e9
    batch: int = 64
    frames: int = 12
    rate: float = 1.2e-3
    warm_up: int = 300
    decay: float = 0.05
    average: float = 0.999
    seed: int = 0
    device: str = 'cpu'
    precision: str = 'fp32'
    compile: bool = False
    report_every: int = 100
    save_minutes: float = 1e9


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
    """Sequences of frames with random strides, as tensors on the device.

    `add` may be called from another thread while batches are drawn.
    """

    def __init__(self, config: EdgeVlaConfig, recipe: Recipe) -> None:
        self._device, self._frames = torch.device(recipe.device), recipe.frames
        self._tokenizer = Tokenizer(config.text.words, config.text.length)
        self._parts: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        """Number of episodes."""
        return sum(len(part['state']) for part in self._parts)

    def add(self, dataset: Dataset) -> None:
        """Bring a dataset to the device; from then on it is drawn from."""
        ids = np.stack([variants(text, self._tokenizer, np.random.default_rng([6, i]))
                        for i, text in enumerate(dataset.sentences)])
        arrays = {name: self._on_device(array) for name, array in dataset.arrays.items()}
        arrays['ids'] = torch.from_numpy(ids).to(self._device)
        self._parts.append(arrays)

    def _on_device(self, array: Any) -> Tensor:
        made = torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)),
                           device=self._device)
        for start in range(0, len(array), 64):
            made[start:start + 64] = torch.from_numpy(np.array(array[start:start + 64]))
        return made

    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False
             ) -> dict[str, Tensor]:
        """`count` sequences from one dataset; `since` in s, 0 at the first frame."""
        parts = list(self._parts)
        sizes = np.array([len(part['state']) for part in parts], np.float64)
        part = parts[int(rng.choice(len(parts), p=sizes / sizes.sum()))]
        size, length = part['state'].shape[:2]
        kept = max(1, round(size * HELD_OUT))
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
    """Images uint8 [B, F, C, h, w, 3] as floats in 0..1, with other light and some noise.

    A sequence keeps its light; each camera has its own. bfloat16 on a GPU.
    """
    batch, _, cameras = images.shape[:3]
    options: dict[str, Any] = {'device': images.device, 'generator': generator}
    kind = torch.bfloat16 if images.is_cuda else torch.float32
    colour = (batch, 1, cameras, 1, 1, 3)
    gain = 1.0 + 0.12 * (2.0 * torch.rand(colour, **options) - 1.0)
    gain = gain * (1.0 + 0.15 * (2.0 * torch.rand((batch, 1, cameras, 1, 1, 1), **options) - 1.0))
    offset = 0.06 * (2.0 * torch.rand(colour, **options) - 1.0)
    noise = torch.randn(images.shape, dtype=kind, **options)
    return torch.addcmul(offset.to(kind), images.to(kind), (gain / 255.0).to(kind)).add_(
        noise, alpha=0.015).clamp_(0.0, 1.0)


class Helpers(nn.Module):
    """What only training needs: where things are, read from the policy's inner tokens.

    That teaches the encoders and the compressor to see before the actions could.
    """

    def __init__(self, config: EdgeVlaConfig) -> None:
        super().__init__()
        width = config.transformer.width
        self.object = nn.Linear(width, 6)
        self.pick = nn.Linear(width, 8)
        self.place = nn.Linear(width, 8 * 4)

    def forward(self, readout: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """The task's things [B, F, 6], and all things: place and presence [B, F, 8, 4]."""
        share = self.pick(visual).softmax(dim=-2)            # [B, F, V, 8]
        places = self.place(visual).unflatten(-1, (8, 4))    # [B, F, V, 8, 4]
        return self.object(readout), (share.unsqueeze(-1) * places).sum(dim=-3)


class Losses:
    """The loss of a batch and what it consists of."""

    def __init__(self, config: EdgeVlaConfig, device: torch.device) -> None:
        self._scale = torch.tensor(config.normalization.offset_scale, device=device)
        self._later = LATER ** torch.arange(config.horizon, device=device)

    def __call__(self, output: Any, objects: Tensor, things: Tensor, batch: dict[str, Tensor]
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
        present = batch['things'].isfinite().all(-1)  # [B, F, 8]
        off = (things[..., :3].float() - batch['things'].nan_to_num()).abs().mean(-1)
        off = (off * present).sum() / present.sum().clamp_min(1)
        there = functional.binary_cross_entropy_with_logits(things[..., 3].float(),
                                                            present.float())
        total = (joints + GRIPPER_WEIGHT * gripper + OBJECT_WEIGHT * (aside / OBJECT_SCALE).mean()
                 + THING_WEIGHT * (off / OBJECT_SCALE + there))
        right = ((output.gripper > 0) == (wanted > 0.5)).float()
        return total, {'joints': joints, 'gripper': gripper, 'object_cm': 100.0 * aside.mean(),
                       'thing_cm': 100.0 * off, 'gripper_wrong': ((1.0 - right) * share).sum()}


class Trainer:
    """Trains one policy; `batches` may grow meanwhile.

    `start`: a checkpoint to go on from; what it has in the same shape is taken over.
    """

    def __init__(self, batches: Batches, config: EdgeVlaConfig, recipe: Recipe,
                 start: Path | None = None) -> None:
        torch.manual_seed(recipe.seed)
        torch.set_float32_matmul_precision('high')
        self.config, self.recipe, self.batches = config, recipe, batches
        self._device = device = torch.device(recipe.device)
        model = EdgeVla(config)
        if start is not None:
            known, own = checkpoint.load(start).state_dict(), model.state_dict()
            model.load_state_dict({name: known[name] if name in known and (
                known[name].shape == value.shape) else value for name, value in own.items()})
        self._model: Any = model.to(device)
        self._helpers = Helpers(config).to(device)
        self._parameters = [*self._model.parameters(), *self._helpers.parameters()]
        heavy = [p for p in self._parameters if p.ndim > 1]
        light = [p for p in self._parameters if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [{'params': heavy, 'weight_decay': recipe.decay},
             {'params': light, 'weight_decay': 0.0}],
            lr=recipe.rate, betas=(0.9, 0.98), fused=device.type == 'cuda')
        self._averaged = [p.detach().clone() for p in self._model.parameters()]
        self._losses = Losses(config, device)
        self._forward = self._model
        self._autocast = torch.autocast(device.type, torch.bfloat16,
                                        enabled=recipe.precision == 'bf16')
        self.curves: list[dict[str, float]] = []
        self._before = [] if start is None else _stages(start)

    def train(self, folder: Path, report: Callable[[dict[str, float]], None],
              saved: Callable[[Path], None] | None = None) -> None:
        """Train and write a checkpoint into `folder`; `saved` is told of those in between."""
        recipe, rng = self.recipe, np.random.default_rng([5, self.recipe.seed])
        noise = torch.Generator(self._device).manual_seed(recipe.seed)
        begin, count, step = time.monotonic(), 0, 0
        if recipe.compile:
            self._compile(rng, noise)
        for step in range(recipe.steps):
            minutes = (time.monotonic() - begin) / 60.0
            progress = max(step / recipe.steps, minutes / recipe.minutes)
            if progress >= 1.0:
                break
            for group in self._optimizer.param_groups:
                group['lr'] = recipe.rate * _rate(step, progress, recipe.warm_up)
            batch = self.batches.draw(rng, recipe.batch)
            parts = self._step(batch, augmented(batch['images'], noise), step)
            if step % recipe.report_every == 0:
                self._tell(report, step, minutes, 2,
                           {name: float(value.detach()) for name, value in parts.items()})
            if saved is not None and minutes > (count + 1) * recipe.save_minutes:
                count += 1
                at = folder / f'after_{count}'
                self._save(at)
                saved(at)
        self._copy_averaged()
        self._tell(report, step + 1, (time.monotonic() - begin) / 60.0, 16, {})
        checkpoint.save(folder, self._model)
        (folder / 'training.json').write_text(json.dumps(
            {'recipe': asdict(recipe), 'episodes': len(self.batches), 'curves': self.curves,
             'before': self._before}, indent=1))

    def _compile(self, rng: np.random.Generator, noise: torch.Generator) -> None:
        """Compile the policy, and go on without where that fails or changes what comes out."""
        import torch._dynamo
        torch._dynamo.config.suppress_errors = True
        compiled = torch.compile(self._model)
        batch = self.batches.draw(rng, self.recipe.batch)
        inputs = (augmented(batch['images'], noise), batch['ids'], batch['state'], batch['since'])
        with self._autocast:
            found, expected = compiled(*inputs).readout, self._model(*inputs).readout
        difference = float((found.float() - expected.float()).abs().mean().detach())
        good = difference < 0.02 * float(expected.float().abs().mean().detach())
        print(f'compiled: mean difference {difference:.2g}: {"used" if good else "not used"}',
              flush=True)
        if good:
            self._forward = compiled

    def _step(self, batch: dict[str, Tensor], images: Tensor, step: int) -> dict[str, Tensor]:
        with self._autocast:
            output = self._forward(images, batch['ids'], batch['state'], batch['since'])
            objects, things = self._helpers(output.readout, output.visual)
        total, parts = self._losses(output, objects, things, batch)
        self._optimizer.zero_grad(set_to_none=True)
        total.backward()
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        keep = min(self.recipe.average, (1.0 + step) / (10.0 + step))
        with torch.no_grad():
            torch._foreach_lerp_(self._averaged, list(self._model.parameters()), 1.0 - keep)
        return parts

    def _tell(self, report: Callable[[dict[str, float]], None], step: int, minutes: float,
              count: int, parts: dict[str, float]) -> None:
        row = {'step': step, 'minutes': round(minutes, 3), 'episodes': len(self.batches), **parts,
               **self._held_out(count)}
        self.curves.append(row)
        report(row)

    @torch.no_grad()
    def _held_out(self, count: int) -> dict[str, float]:
        rng = np.random.default_rng(9)
        sums: dict[str, float] = {}
        for _ in range(count):
            batch = self.batches.draw(rng, self.recipe.batch, held_out=True)
            with self._autocast:
                kind = torch.bfloat16 if batch['images'].is_cuda else torch.float32
                output = self._model(batch['images'].to(kind) / 255.0, batch['ids'],
                                     batch['state'], batch['since'])
                objects, things = self._helpers(output.readout, output.visual)
            for name, value in self._losses(output, objects, things, batch)[1].items():
                sums[f'held_out_{name}'] = sums.get(f'held_out_{name}', 0.0) + float(value) / count
        return sums

    def _copy_averaged(self) -> None:
        with torch.no_grad():
            for parameter, mean in zip(self._model.parameters(), self._averaged, strict=True):
                parameter.copy_(mean)

    def _save(self, folder: Path) -> None:
        model = EdgeVla(self.config)
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), self._averaged, strict=True):
                parameter.copy_(mean)
        checkpoint.save(folder, model)


def _stages(start: Path) -> list[dict[str, Any]]:
    """What is told of the trainings that a checkpoint comes from, the first one first."""
    try:
        told = json.loads((start / 'training.json').read_text())
        return [*told.pop('before', ()), told]
    except (OSError, ValueError, AttributeError):
        return []  # a checkpoint runs and goes on without its story


def growing(batches: Batches, found: Callable[[], Sequence[Dataset]], most_bytes: float,
            stop: threading.Event) -> threading.Thread:
    """A thread that adds datasets as they are `found`, until there is too much or `stop`."""
    def work() -> None:
        held = 0.0
        while not stop.wait(1.0) and held < most_bytes:
            for dataset in found():
                held += dataset.arrays['images'].nbytes
                if held < most_bytes:
                    batches.add(dataset)

    thread = threading.Thread(target=work, name='growing', daemon=True)
    thread.start()
    return thread


def _rate(step: int, progress: float, warm_up: int) -> float:
    return min(1.0, (step + 1) / warm_up) * (0.02 + 0.98 * 0.5 * (1.0 + math.cos(
        math.pi * progress)))


def rows_of(curves: Sequence[dict[str, float]]) -> Iterator[str]:
    """The curves as lines of text."""
    for row in curves:
        yield '  '.join(f'{name} {value:.4g}' for name, value in row.items())
