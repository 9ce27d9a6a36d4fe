"""The same model with fixed shapes: weights fused, keys and values in a ring, no waiting.

Everything here can be captured in a CUDA graph; on a CPU it runs as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from vla_ros.policies.openvla.kernels.ops import (
    PLAIN_TUNING,
    HeadShape,
    Ring,
    Rows,
    Scratch,
    Tuning,
    Weight,
    add_layer_norm,
    add_norm,
    attend,
    narrowed,
    rope_write,
    silu_mul,
)
from vla_ros.policies.openvla.llama import Layer, rotary
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.precision import Precision
from vla_ros.policies.openvla.quantize import Packed, pack
from vla_ros.policies.openvla.vision import Block, VisionTower


@dataclass(frozen=True)
class StaticLayer:
    """One layer of the language model: `qkv` [(H + 2 KV) D, W], `gate_up` [2 hidden, W]."""

    qkv: Weight
    o: Weight
    gate_up: Weight
    down: Weight
    before: Tensor
    after: Tensor


class StaticLlama:
    """The language model of one robot.

    `slots` episodes or frames are kept in the ring, of `length` tokens each. `consume`: take the
    weights out of `model` layer by layer, so that they are never there twice.
    """

    def __init__(self, model: OpenVla, precision: Precision, slots: int, length: int,
                 consume: bool = False,
                 tuning: Tuning = PLAIN_TUNING) -> None:
        config, language = model.config, model.language_model
        self.sizes = sizes = config.llama
        self.shape = HeadShape(sizes.heads, sizes.kv_heads, sizes.head)
        self.slots, self.length = slots, length
        self._tuning, self._consume = tuning, consume
        dtype, device = model.dtype, model.device
        self.turn = rotary(torch.arange(length, device=device), sizes.head, sizes.theta)
        self.embeddings = language.model.embed_tokens.weight.detach()
        self.norm = language.model.norm.weight.detach()
        first, top = config.actions.first, config.actions.top
        self.first = first
        head = language.lm_head.weight.detach()[first:top].contiguous()
        plain = Packed('plain', head, None, sizes.width)
        self.head = Weight(plain, plain, dtype, tuning)
        kept = (sizes.layers, slots, length, sizes.kv_heads, sizes.head)
        self.keys = torch.zeros(kept, dtype=dtype, device=device)
        self.values = torch.zeros(kept, dtype=dtype, device=device)
        self.scratch = Scratch(config.actions.tokens, length, self.shape, device)
        self.layers = [self._layer(layer, precision, dtype)
                       for layer in cast('Iterable[Layer]', language.model.layers)]

    def _layer(self, layer: Layer, precision: Precision, dtype: torch.dtype) -> StaticLayer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv, o, gate_up, down = (
            self._weight([part.weight.detach() for part in parts], precision, dtype)
            for parts in ((attention.q_proj, attention.k_proj, attention.v_proj),
                          (attention.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)))
        made = StaticLayer(qkv, o, gate_up, down, layer.input_layernorm.weight.detach(),
                           layer.post_attention_layernorm.weight.detach())
        if self._consume:
            for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
                         mlp.gate_proj, mlp.up_proj, mlp.down_proj):
                part.weight = torch.nn.Parameter(part.weight.new_empty(0), requires_grad=False)
        return made

    def _weight(self, parts: list[Tensor], precision: Precision, dtype: torch.dtype) -> Weight:
        whole = torch.cat(parts) if len(parts) > 1 else parts[0]
        one = pack(whole, precision.decode)
        many = one if precision.prefill == precision.decode else pack(whole, precision.prefill)
        return Weight(one, many, dtype, self._tuning)

    @property
    def bytes(self) -> int:
        """Of the weights that one decoded token reads."""
        return sum(weight.one.bytes for layer in self.layers
                   for weight in (layer.qkv, layer.o, layer.gate_up, layer.down))

    def ring(self, layer: int) -> Ring:
        return Ring(self.keys[layer], self.values[layer])

    def clear(self) -> None:
        """Empty the ring; what is masked must still be finite."""
        self.keys.zero_()
        self.values.zero_()

    def embed(self, ids: Tensor) -> Tensor:
        """[R, W] of ids [R]."""
        return functional.embedding(ids, self.embeddings)

    def one(self, x: Tensor, at: Rows) -> Tensor:
        """Logits float [1, bins] after one more token, whose embedding [1, W] is overwritten."""
        epsilon = self.sizes.epsilon
        for number, layer in enumerate(self.layers):
            qkv = layer.qkv.row(x, layer.before, epsilon)
            seen = attend(qkv, self.turn, at, self.ring(number), self.shape, False,
                          self.scratch, self._tuning)
            layer.o.row(seen, add=x)
            gated = layer.gate_up.row(x, layer.after, epsilon, gated=True)
            layer.down.row(gated, add=x)
        return self.head.row(x, self.norm, epsilon)

    def many(self, x: Tensor, at: Rows, fresh: int, wanted: Tensor) -> Tensor:
        """Logits [n, bins] of rows `wanted` int64 [n] for rows x [R, W], which are overwritten.

        The first `fresh` rows are one sequence from its beginning, looking at themselves; the
        others look at their slots of the ring. All are written to the ring before.
        """
        last, epsilon = len(self.layers) - 1, self.sizes.epsilon
        normed = add_norm(x, None, self.layers[0].before, epsilon, self.layers[0].qkv.narrow)
        for number, layer in enumerate(self.layers):
            qkv = rope_write(layer.qkv.rows(normed), self.turn, at, self.ring(number), self.shape)
            mixed = self._mix(qkv, at, fresh, number)
            if number == last:  # what no logit needs ends here
                mixed, x = mixed[wanted], x[wanted]
            made = layer.o.rows(narrowed(mixed, layer.o.narrow))
            normed = add_norm(x, made, layer.after, epsilon, layer.gate_up.narrow)
            gated = silu_mul(layer.gate_up.rows(normed), layer.down.narrow)
            after = self.norm if number == last else self.layers[number + 1].before
            narrow = number < last and self.layers[number + 1].qkv.narrow
            normed = add_norm(x, layer.down.rows(gated), after, epsilon, narrow)
        return self.head.rows(normed).plain()

    def _mix(self, qkv: Tensor, at: Rows, fresh: int, layer: int) -> Tensor:
        """Attention [R, H D] of turned rows."""
        heads, kv, d = self.shape.heads, self.shape.kv, self.shape.width
        parts = []
        if fresh:
            split = qkv[:fresh].view(1, fresh, heads + 2 * kv, d).transpose(1, 2)
            seen = functional.scaled_dot_product_attention(
                split[:, :heads], split[:, heads:heads + kv], split[:, heads + kv:],
                is_causal=True, enable_gqa=kv != heads)
            parts.append(seen.transpose(1, 2).reshape(fresh, heads * d))
        if fresh < len(qkv):
            parts.append(attend(qkv[fresh:], self.turn, at.part(fresh), self.ring(layer),
                                self.shape, True, self.scratch))
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@dataclass(frozen=True)
class StaticBlock:
    """A block of a tower; layer scales are folded into the weights before them."""

    norm1: tuple[Tensor, Tensor]
    qkv: tuple[Tensor, Tensor]
    proj: tuple[Tensor, Tensor]
    norm2: tuple[Tensor, Tensor]
    fc1: tuple[Tensor, Tensor]
    fc2: tuple[Tensor, Tensor]


class StaticTower:
    """A vision tower; all images of a frame in one batch."""

    def __init__(self, tower: VisionTower) -> None:
        self._tower = tower
        self.sizes = tower.tower
        self.blocks = [_static_block(block) for block in cast('Iterable[Block]', tower.blocks)]

    def __call__(self, pixels: Tensor) -> Tensor:
        """Features [n, P, W] of normalized images [n, 3, S, S]."""
        sizes, epsilon = self.sizes, self.sizes.epsilon
        start = self._tower.tokens(pixels)
        n, t, w = start.shape
        x = start.reshape(n * t, w)
        normed = functional.layer_norm(x, (w,), *self.blocks[0].norm1, epsilon)
        for number, block in enumerate(self.blocks):
            q, k, v = functional.linear(normed, *block.qkv).view(
                n, t, 3, sizes.heads, w // sizes.heads).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v)
            made = functional.linear(seen.transpose(1, 2).reshape(n * t, w), *block.proj)
            normed = add_layer_norm(x, made, *block.norm2, epsilon)
            made = functional.linear(functional.gelu(functional.linear(normed, *block.fc1)),
                                     *block.fc2)
            if number + 1 < len(self.blocks):
                normed = add_layer_norm(x, made, *self.blocks[number + 1].norm1, epsilon)
            else:
                x = x + made
        return x.view(n, t, w)[:, sizes.prefix:]


class StaticVision:
    """Both towers beside each other on the GPU, and the projector."""

    def __init__(self, model: OpenVla) -> None:
        self.images = model.config.vision.images
        self._dino = StaticTower(model.vision_backbone.featurizer)
        self._siglip = StaticTower(model.vision_backbone.fused_featurizer)
        self._projector = model.projector
        self._side = torch.cuda.Stream(model.device) if model.device.type == 'cuda' else None

    def __call__(self, pixels: Tensor) -> Tensor:
        """Tokens [n P, W] of [1, 6n, S, S]."""
        each = pixels.view(self.images, 6, *pixels.shape[-2:])
        side = self._side
        if side is None:
            dino, siglip = self._dino(each[:, :3]), self._siglip(each[:, 3:])
        else:
            here = torch.cuda.current_stream(pixels.device)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                dino = self._dino(each[:, :3])
            siglip = self._siglip(each[:, 3:])
            here.wait_stream(side)
        features = torch.cat([dino, siglip], 2)
        tokens: Tensor = self._projector(features.view(-1, features.shape[-1]))
        return tokens


def _static_block(block: Block) -> StaticBlock:
    def scaled(layer: torch.nn.Linear, scale: torch.nn.Module | None) -> tuple[Tensor, Tensor]:
        if scale is None:
            return layer.weight.detach(), layer.bias.detach()
        factor = cast('Tensor', scale.scale_factor).detach().float()
        return ((layer.weight.detach().float() * factor[:, None]).to(layer.weight.dtype),
                (layer.bias.detach().float() * factor).to(layer.bias.dtype))

    def plain(layer: torch.nn.Linear | torch.nn.LayerNorm) -> tuple[Tensor, Tensor]:
        return layer.weight.detach(), layer.bias.detach()

    return StaticBlock(plain(block.norm1), plain(block.attn.qkv),
                       scaled(block.attn.proj, block.ls1), plain(block.norm2),
                       plain(block.mlp.fc1), scaled(block.mlp.fc2, block.ls2))
