"""The sizes of an OpenVLA policy: every width, special id and bin, from tiny to 7B."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)
TEMPLATE = 'In: What action should the robot take to {instruction}?\nOut:'


@dataclass(frozen=True)
class Tower:
    """A vision transformer whose features come from its block `depth - 2`, before any final norm.

    `hidden`: width of its MLP. `registers`: register tokens beside one class token where
    `class_token`; both are dropped from the features. `mean`, `std`: of RGB in 0..1.
    """

    width: int
    depth: int
    heads: int
    hidden: int
    registers: int = 0
    class_token: bool = False
    layer_scale: bool = False
    mean: tuple[float, ...] = HALF
    std: tuple[float, ...] = HALF
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        if self.depth < 2:
            _refuse('depth', self.depth, 'at least 2: features come from the last block but one')
        _divides('width', self.width, 'heads', self.heads)

    @property
    def blocks(self) -> int:
        """Blocks that matter: all but the last."""
        return self.depth - 1

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.registers + int(self.class_token)


@dataclass(frozen=True)
class Vision:
    """Two towers that look at the same square images; features side by side for each patch.

    `image`, `patch` in pixels; `images`: cameras. `center_crop`: area of the centre that is kept,
    for policies that were fine-tuned with augmentation; 1 = everything.
    """

    image: int
    patch: int
    dino: Tower
    siglip: Tower
    images: int = 1
    center_crop: float = 1.0

    def __post_init__(self) -> None:
        _divides('image', self.image, 'patch', self.patch)
        if not 0.0 < self.center_crop <= 1.0:
            _refuse('center_crop', self.center_crop, 'above 0 and at most 1')

    @property
    def patches(self) -> int:
        """Of one image."""
        return (self.image // self.patch) ** 2

    @property
    def width(self) -> int:
        """Of the features of a patch."""
        return self.dino.width + self.siglip.width


@dataclass(frozen=True)
class Llama:
    """The language model: pre-norm, rotary positions, SwiGLU of width `hidden`, no biases."""

    vocabulary: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    positions: int = 2048
    epsilon: float = 1e-6
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        _divides('width', self.width, 'heads', self.heads)
        _divides('heads', self.heads, 'kv_heads', self.kv_heads)
        if self.head % 2:
            _refuse('width', self.width, f'width / heads must be even; it is {self.head}')

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Prompt:
    """How an instruction becomes token ids. `last`: the id that must end the prompt, if any."""

    template: str = TEMPLATE
    bos: int = 1
    eos: int = 2
    pad: int = 32_000
    last: int | None = 29_871

    def __post_init__(self) -> None:
        if '{instruction}' not in self.template:
            _refuse('template', repr(self.template[:60]), 'a text with {instruction} in it')
        if min(self.ids) < 0:
            _refuse('prompt', min(self.ids), 'ids of at least 0')

    @property
    def ids(self) -> tuple[int, ...]:
        """The special ids that prompts use; padding, which no prompt has, is not among them."""
        return (self.bos, self.eos, *(() if self.last is None else (self.last,)))


@dataclass(frozen=True)
class Actions:
    """Actions as tokens: bin b of `bins` (0 lowest) is the id `top - 1 - b`.

    `dimensions` tokens make one step, `horizon` steps one chunk. `names` of the dimensions, where
    the checkpoint tells them.
    """

    dimensions: int = 7
    horizon: int = 1
    bins: int = 256
    top: int = 32_000
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ('dimensions', 'horizon'):
            if getattr(self, name) < 1:
                _refuse(name, getattr(self, name), 'at least 1')
        if self.bins < 2 or self.bins > self.top:
            _refuse('bins', self.bins, f'2 to {self.top}')
        if self.names and len(self.names) != self.dimensions:
            _refuse('names', ', '.join(self.names), f'{self.dimensions} names')

    @property
    def first(self) -> int:
        """The lowest action id."""
        return self.top - self.bins

    @property
    def tokens(self) -> int:
        """Tokens of one chunk."""
        return self.dimensions * self.horizon


@dataclass(frozen=True)
class Statistics:
    """Of one dataset: what un-normalizes actions [A] and normalizes the state [S].

    `mask`, `state_mask`: False where a dimension passes unchanged; empty = True everywhere. Units
    of the robot.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    mask: tuple[bool, ...]
    state_low: tuple[float, ...] = ()
    state_high: tuple[float, ...] = ()
    state_mask: tuple[bool, ...] = ()

    def __post_init__(self) -> None:
        _check_range('', self.low, self.high, self.mask)
        _check_range('state_', self.state_low, self.state_high, self.state_mask)


@dataclass(frozen=True)
class OpenVlaConfig:
    """One OpenVLA policy.

    `projector`: width of its first hidden layer; the second is as wide as the language model.
    `state`: numbers of the state that enters as one token, 0 = none. `parallel`: all actions in
    one bidirectional pass (OFT). `statistics` by the name of the dataset.
    """

    vision: Vision
    llama: Llama
    projector: int
    prompt: Prompt = field(default_factory=Prompt)
    actions: Actions = field(default_factory=Actions)
    state: int = 0
    parallel: bool = False
    statistics: Mapping[str, Statistics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.actions.top > self.llama.vocabulary:
            _refuse('actions.top', self.actions.top,
                    f'at most the vocabulary, {self.llama.vocabulary}')
        if max(self.prompt.ids) >= self.llama.vocabulary:
            _refuse('prompt', max(self.prompt.ids),
                    f'ids below the vocabulary, {self.llama.vocabulary}')

    @property
    def visual_tokens(self) -> int:
        """Tokens of all images and of the state."""
        return self.vision.patches * self.vision.images + int(self.state > 0)

    def prefix_tokens(self, text: int) -> int:
        """Tokens before the first action, for a prompt of `text` ids with its BOS."""
        return self.visual_tokens + text


def published() -> OpenVlaConfig:
    """OpenVLA-7B: DINOv2 ViT-L/14 with registers, SigLIP So400m/14, Llama-2-7B."""
    return OpenVlaConfig(
        vision=Vision(
            image=224, patch=14,
            dino=Tower(1024, 24, 16, 4096, registers=4, class_token=True, layer_scale=True,
                       mean=IMAGENET_MEAN, std=IMAGENET_STD),
            siglip=Tower(1152, 27, 16, 4304)),
        llama=Llama(32_064, 4096, 11_008, 32, 32, 32), projector=8704)


def small(vocabulary: int = 512, prompt: Prompt | None = None,
          names: Sequence[str] = ()) -> OpenVlaConfig:
    """The policy that is trained and shipped here: two 128x128 cameras, the measured state."""
    return OpenVlaConfig(
        vision=Vision(
            image=128, patch=16, images=2,
            dino=Tower(192, 5, 6, 768, registers=4, class_token=True, layer_scale=True,
                       mean=IMAGENET_MEAN, std=IMAGENET_STD),
            siglip=Tower(192, 5, 6, 768)),
        llama=Llama(vocabulary, 256, 640, 4, 4, 4, positions=512), projector=512,
        prompt=prompt or Prompt(pad=0, last=None), state=7,
        actions=Actions(top=vocabulary, names=tuple(names)))


def tiny(parallel: bool = False, images: int = 1, state: int = 0, horizon: int = 1,
         dimensions: int = 7) -> OpenVlaConfig:
    """For tests: every part there, none larger than needed."""
    return OpenVlaConfig(
        vision=Vision(
            image=28, patch=14, images=images,
            dino=Tower(32, 3, 2, 64, registers=4, class_token=True, layer_scale=True,
                       mean=IMAGENET_MEAN, std=IMAGENET_STD),
            siglip=Tower(32, 4, 2, 48)),
        llama=Llama(320, 64, 96, 3, 2, 2, positions=128), projector=96,
        prompt=Prompt(pad=0, last=5),
        actions=Actions(dimensions, horizon, bins=256, top=300), state=state, parallel=parallel)


def _check_range(prefix: str, low: Sequence[float], high: Sequence[float],
                 mask: Sequence[bool]) -> None:
    if len(high) != len(low):
        _refuse(f'{prefix}high', f'{len(high)} numbers', f'{len(low)}, as in {prefix}low')
    if len(mask) not in (0, len(low)):
        _refuse(f'{prefix}mask', f'{len(mask)} entries', f'{len(low)}, or none')
    for name, values in (('low', low), ('high', high)):
        for value in values:
            if not math.isfinite(value):
                _refuse(prefix + name, value, 'a finite number')
    for i, (lowest, highest) in enumerate(zip(low, high, strict=True)):
        if highest < lowest and (not mask or mask[i]):
            _refuse(f'{prefix}high[{i}]', highest, f'at least {prefix}low[{i}], {lowest}')


def _divides(name: str, value: int, by: str, divisor: int) -> None:
    if divisor < 1 or value % divisor:
        _refuse(name, value, f'a multiple of {by}, {divisor}')


def _refuse(name: str, value: object, allowed: str) -> NoReturn:
    raise ValueError(f'{name}: {value}: allowed is {allowed}')
