"""Behaviour cloning from recorded episodes: what the families have in common."""

from __future__ import annotations

import json
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.training.dataset import Dataset

HELD_OUT = 0.03      # share of the episodes that is never trained on
OBJECT_SCALE = 0.05  # m
OBJECT_WEIGHT, THING_WEIGHT = 0.5, 0.5
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


class Batches(ABC):
    """Recorded datasets as tensors on the device, to draw batches from.

    `add` may be called from another thread while batches are drawn.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self._parts: list[dict[str, Tensor]] = []

    def __len__(self) -> int:
        """Number of episodes."""
        return sum(len(part['state']) for part in self._parts)

    def add(self, dataset: Dataset) -> None:
        """Bring a dataset to the device; from then on it is drawn from."""
        arrays = {name: self._on_device(array) for name, array in dataset.arrays.items()}
        self._parts.append({**arrays, **self._prepared(dataset)})

    @abstractmethod
    def _prepared(self, dataset: Dataset) -> dict[str, Tensor]:
        """What else is drawn from: the sentences as `ids`, say."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, count: int, held_out: bool = False
             ) -> dict[str, Tensor]:
        """`count` examples."""

    def _part(self, rng: np.random.Generator) -> dict[str, Tensor]:
        """One dataset, the larger the likelier."""
        parts = list(self._parts)
        sizes = np.array([len(part['state']) for part in parts], np.float64)
        return parts[int(rng.choice(len(parts), p=sizes / sizes.sum()))]

    def _on_device(self, array: Any) -> Tensor:
        made = torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)),
                           device=self._device)
        for start in range(0, len(array), 64):
            made[start:start + 64] = torch.from_numpy(np.array(array[start:start + 64]))
        return made


def kept_out(episodes: int) -> int:
    """How many of the first episodes of a dataset are held out."""
    return max(1, round(episodes * HELD_OUT))


def variants(text: str, rng: np.random.Generator) -> list[str]:
    """Wordings of a sentence; in some of them stand words nobody knows."""
    chatty = []
    for _ in range(CHATTY):
        words = ['xx' if word in FILLERS and rng.random() < 0.5 else word
                 for word in text.split()]
        place = int(rng.integers(0, 3))  # nowhere, before or after
        words = ['xx'] * (place == 1) + words + ['xx'] * (place == 2)
        chatty.append(' '.join(words))
    return [text] * PLAIN + chatty


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

    That teaches the encoders to see before the actions could.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.object = nn.Linear(width, 6)
        self.pick = nn.Linear(width, 8)
        self.place = nn.Linear(width, 8 * 4)

    def forward(self, readout: Tensor, visual: Tensor) -> tuple[Tensor, Tensor]:
        """The task's things [..., 6], and all things: place and presence [..., 8, 4].

        `readout` [..., W] has read the sentence, `visual` [..., V, W] are visual tokens.
        """
        share = self.pick(visual).softmax(dim=-2)            # [..., V, 8]
        places = self.place(visual).unflatten(-1, (8, 4))    # [..., V, 8, 4]
        return self.object(readout), (share.unsqueeze(-1) * places).sum(dim=-3)


def helper_losses(objects: Tensor, things: Tensor, batch: Mapping[str, Tensor]
                  ) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of what `Helpers` say, and how far off that is in cm."""
    aside = (objects.float() - batch['objects']).abs()
    present = batch['things'].isfinite().all(-1)  # [..., 8]
    off = (things[..., :3].float() - batch['things'].nan_to_num()).abs().mean(-1)
    off = (off * present).sum() / present.sum().clamp_min(1)
    there = functional.binary_cross_entropy_with_logits(things[..., 3].float(), present.float())
    total = (OBJECT_WEIGHT * (aside / OBJECT_SCALE).mean()
             + THING_WEIGHT * (off / OBJECT_SCALE + there))
    return total, {'object_cm': 100.0 * aside.mean(), 'thing_cm': 100.0 * off}


class Trainer(ABC):
    """Trains one policy; `batches` may grow meanwhile.

    `model` is what is kept, `helpers` are only for training. `before`: what is told of earlier
    trainings.
    """

    def __init__(self, batches: Batches, model: nn.Module, helpers: nn.Module, recipe: Recipe,
                 before: Sequence[dict[str, Any]] = ()) -> None:
        torch.set_float32_matmul_precision('high')
        self.recipe, self.batches = recipe, batches
        self._device = device = torch.device(recipe.device)
        self._model: Any = model.to(device)
        self._helpers: Any = helpers.to(device)
        self._parameters = [*self._model.parameters(), *self._helpers.parameters()]
        heavy = [p for p in self._parameters if p.ndim > 1]
        light = [p for p in self._parameters if p.ndim <= 1]
        self._optimizer = torch.optim.AdamW(
            [{'params': heavy, 'weight_decay': recipe.decay},
             {'params': light, 'weight_decay': 0.0}],
            lr=recipe.rate, betas=(0.9, 0.98), fused=device.type == 'cuda')
        self._averaged = [p.detach().clone() for p in self._model.parameters()]
        self._network: Any = self._as_network(self._model)
        self._forward = self._network
        self._autocast = torch.autocast(device.type, torch.bfloat16,
                                        enabled=recipe.precision == 'bf16')
        self.curves: list[dict[str, float]] = []
        self._before = list(before)

    def _as_network(self, model: nn.Module) -> nn.Module:
        """What is run in training, around the model."""
        return model

    @abstractmethod
    def _inputs(self, images: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
        """What the network takes. `images`: those of the batch as floats in 0..1."""

    @abstractmethod
    def _losses(self, output: Any, batch: Mapping[str, Tensor]
                ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of what the network gave, and what it consists of."""

    @abstractmethod
    def _readout(self, output: Any) -> Tensor:
        """The output by which a compiled network is compared with the plain one."""

    @abstractmethod
    def _empty(self) -> nn.Module:
        """Another model of the same sizes."""

    @abstractmethod
    def _write(self, folder: Path, model: Any) -> None:
        """Write a checkpoint."""

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
        self._copy_averaged(self._model)
        self._tell(report, step + 1, (time.monotonic() - begin) / 60.0, 16, {})
        self._write_with_story(folder, self._model)

    def _compile(self, rng: np.random.Generator, noise: torch.Generator) -> None:
        """Compile the policy, and go on without where that fails or changes what comes out."""
        import torch._dynamo
        torch._dynamo.config.suppress_errors = True
        compiled: Any = torch.compile(self._network)
        batch = self.batches.draw(rng, self.recipe.batch)
        inputs = self._inputs(augmented(batch['images'], noise), batch)
        with self._autocast:
            found = self._readout(compiled(*inputs))
            expected = self._readout(self._network(*inputs))
        difference = float((found.float() - expected.float()).abs().mean().detach())
        good = difference < 0.05 * float(expected.float().abs().mean().detach())
        print(f'compiled: mean difference {difference:.2g}: {"used" if good else "not used"}',
              flush=True)
        if good:
            self._forward = compiled

    def _step(self, batch: dict[str, Tensor], images: Tensor, step: int) -> dict[str, Tensor]:
        inputs = self._inputs(images, batch)
        with self._autocast:
            output = self._forward(*inputs)
            total, parts = self._losses(output, batch)
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
            kind = torch.bfloat16 if batch['images'].is_cuda else torch.float32
            inputs = self._inputs(batch['images'].to(kind) / 255.0, batch)
            with self._autocast:
                found = self._losses(self._network(*inputs), batch)[1]
            for name, value in found.items():
                sums[f'held_out_{name}'] = sums.get(f'held_out_{name}', 0.0) + float(value) / count
        return sums

    def _save(self, folder: Path) -> None:
        model = self._empty()
        self._copy_averaged(model)
        self._write_with_story(folder, model)

    def _write_with_story(self, folder: Path, model: Any) -> None:
        """A checkpoint that others can go on from, also where this training is then cut off."""
        self._write(folder, model)
        (folder / 'training.json').write_text(json.dumps(
            {'recipe': asdict(self.recipe), 'episodes': len(self.batches), 'curves': self.curves,
             'before': self._before}, indent=1))

    def _copy_averaged(self, model: nn.Module) -> None:
        with torch.no_grad():
            for parameter, mean in zip(model.parameters(), self._averaged, strict=True):
                parameter.copy_(mean)


def taken_over(model: nn.Module, known: Mapping[str, Tensor]) -> None:
    """Give a model what `known` has in the same shape."""
    own = model.state_dict()
    model.load_state_dict({name: known[name] if name in known and (
        known[name].shape == value.shape) else value for name, value in own.items()})


def stages(start: Path) -> list[dict[str, Any]]:
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
