"""What an action of an OpenVLA policy costs at least: arithmetic and weights, over the ceilings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vla_ros.policies.openvla.config import OpenVlaConfig, Tower

# Bytes of a weight; scales of groups and rows are left out, so that a floor stays one.
WEIGHT_BYTES = {'fp32': 4.0, 'bf16': 2.0, 'fp16': 2.0, 'fp8': 1.0, 'int8-weight': 1.0,
                'int4-weight': 0.5}
MS = 1e3


@dataclass(frozen=True)
class Ceilings:
    """What the machine gives at most: bytes/s read and written, FLOP/s of matrix products.

    `rates`: FLOP/s by the precision that is multiplied in; other precisions multiply as `plain`.
    """

    bandwidth: float
    rates: Mapping[str, float]
    plain: str = 'bf16'

    def rate(self, precision: str) -> float:
        """FLOP/s of products in a precision; weight-only ones multiply as the plain one."""
        return self.rates.get(precision, self.rates[self.plain])


@dataclass(frozen=True)
class Work:
    """What one pass cannot do without: FLOPs, and bytes read (weights, keys and values)."""

    flops: float
    bytes: float

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def ms(self, ceilings: Ceilings, precision: str) -> float:
        """The longer of multiplying and reading, which may overlap."""
        return MS * max(self.flops / ceilings.rate(precision), self.bytes / ceilings.bandwidth)


@dataclass(frozen=True)
class Floor:
    """The least that the parts of an action cost, in ms. `tick_ms`: of a full pipeline."""

    vision_ms: float
    prefill_ms: float
    decode_ms_per_token: float
    action_ms: float
    tick_ms: float

    def of(self, lag: int, passes: float, tokens: int) -> float:
        """For a backend: a tick where it lags, `passes` passes where it says so, all tokens else.

        The first pass is the prefill, each later one reads the weights once.
        """
        if lag:
            return self.tick_ms
        later = passes - 1.0 if passes else tokens - 1.0
        return self.vision_ms + self.prefill_ms + later * self.decode_ms_per_token


def floor(config: OpenVlaConfig, text: int, ceilings: Ceilings, precision: str,
          prefill: str = '') -> Floor:
    """The floor with weights of the language model in `precision`, for `text` prompt ids.

    `prefill`: the precision of the prefill, where it is another one. Vision and projector stay
    in the plain precision.
    """
    first, later = prefill or precision, precision
    tokens = config.actions.tokens
    vision = vision_work(config, ceilings.plain)
    before = prefill_work(config, text, first)
    one = decode_work(config, text, later)
    parts = (vision.ms(ceilings, ceilings.plain), before.ms(ceilings, first),
             one.ms(ceilings, later))
    packed = prefill_work(config, text, first, rows=tokens - 1)
    tick = parts[0] + packed.ms(ceilings, first)
    action = parts[0] + parts[1] + (tokens - 1) * parts[2]
    if config.parallel:  # one pass, with a row for each token
        action = tick
    return Floor(*parts, action_ms=action, tick_ms=tick)


def vision_work(config: OpenVlaConfig, precision: str) -> Work:
    """Both towers without their dead blocks, and the projector, for all images."""
    vision = config.vision
    widths = (vision.width, config.projector, config.llama.width, config.llama.width)
    weights = sum(a * b for a, b in zip(widths, widths[1:], strict=False))
    rows = vision.patches * vision.images
    projector = Work(2.0 * rows * weights, weights * WEIGHT_BYTES[precision])
    towers = [_tower_work(tower, vision.patches, vision.patch, vision.images, precision)
              for tower in (vision.dino, vision.siglip)]
    return towers[0] + towers[1] + projector


def prefill_work(config: OpenVlaConfig, text: int, precision: str, rows: int = 0) -> Work:
    """The whole prompt in one pass, and `rows` rows of other actions packed with it."""
    llama = config.llama
    prompt = config.prefix_tokens(text)
    layer = layer_weights(config)
    pairs = prompt * prompt if config.parallel else prompt * (prompt + 1) / 2.0
    attention = 4.0 * llama.width * llama.layers * (pairs + rows * (prompt + rows / 2.0))
    head = config.actions.bins * llama.width
    return Work(2.0 * (prompt + rows) * layer * llama.layers + attention
                + 2.0 * (1 + rows) * head,
                (layer * llama.layers + head) * WEIGHT_BYTES[precision])


def decode_work(config: OpenVlaConfig, text: int, precision: str) -> Work:
    """One more token: every weight of the language model once, and the cache."""
    llama = config.llama
    seen = config.prefix_tokens(text) + (config.actions.tokens - 1) / 2.0
    weights = layer_weights(config) * llama.layers + config.actions.bins * llama.width
    cache = 2.0 * llama.layers * seen * llama.kv_heads * llama.head
    wide = 4.0 if precision == 'fp32' else 2.0
    return Work(2.0 * weights + 4.0 * llama.width * llama.layers * seen,
                weights * WEIGHT_BYTES[precision] + cache * wide)


def layer_weights(config: OpenVlaConfig) -> int:
    """Weights of the linear layers of one layer of the language model."""
    llama = config.llama
    kv = llama.kv_heads * llama.head
    return 2 * llama.width * llama.width + 2 * llama.width * kv + 3 * llama.width * llama.hidden


def _tower_work(tower: Tower, patches: int, patch: int, images: int, precision: str) -> Work:
    tokens = patches + tower.prefix
    block = 4 * tower.width * tower.width + 2 * tower.width * tower.hidden
    embed = 3 * patch * patch * tower.width
    flops = images * (tower.blocks * (2.0 * tokens * block + 4.0 * tokens * tokens * tower.width)
                      + 2.0 * patches * embed)
    return Work(flops, (tower.blocks * block + embed) * WEIGHT_BYTES[precision])
