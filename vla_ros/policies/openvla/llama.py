"""The language model, with the parameter names of the checkpoint.

Source: Llama 2 (arXiv 2307.09288); rotary positions (arXiv 2104.09864), halves rotated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from vla_ros.policies.openvla.config import Llama

Cache = list[tuple[Tensor, Tensor]]
"""Keys and values [B, kv heads, T, head] of each layer; grows with every pass."""


class RmsNorm(nn.Module):
    """Root mean square norm, in float32."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(hidden.dtype)


def rotary(positions: Tensor, head: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines float32 [T, head / 2] of positions int64 [T]."""
    exponents = torch.arange(0, head, 2, dtype=torch.float32, device=positions.device) / head
    angles = positions.float()[:, None] * (theta ** -exponents)
    return angles.cos(), angles.sin()


def rotate(vectors: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn [..., T, head] by [T, head / 2]; the two halves of a head are the pairs."""
    cosines, sines = cosines.to(vectors.dtype), sines.to(vectors.dtype)
    first, second = vectors.chunk(2, -1)
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], -1)


class SelfAttention(nn.Module):
    """Grouped queries; causal unless told otherwise."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        self.sizes = sizes
        kv = sizes.kv_heads * sizes.head
        self.q_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k_proj = nn.Linear(sizes.width, kv, bias=False)
        self.v_proj = nn.Linear(sizes.width, kv, bias=False)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None, layer: int,
                mask: Tensor | None, causal: bool) -> Tensor:
        b, t, _ = hidden.shape
        q, k, v = (proj(hidden).view(b, t, -1, self.sizes.head).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotate(q, *turn), rotate(k, *turn)
        if cache is not None:
            if layer < len(cache):
                k, v = torch.cat([cache[layer][0], k], 2), torch.cat([cache[layer][1], v], 2)
                cache[layer] = k, v
            else:
                cache.append((k, v))
        if causal and t > 1 and k.shape[2] > t:  # new rows after cached ones
            mask = torch.ones(t, k.shape[2], dtype=torch.bool, device=k.device).tril(
                k.shape[2] - t)
        seen = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal and t > 1 and mask is None,
            enable_gqa=self.sizes.kv_heads != self.sizes.heads)
        made: Tensor = self.o_proj(seen.transpose(1, 2).reshape(b, t, -1))
        return made


class GatedMlp(nn.Module):
    """SwiGLU."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down_proj = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        gated = functional.silu(self.gate_proj(hidden)) * self.up_proj(hidden)
        made: Tensor = self.down_proj(gated)
        return made


class Layer(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        self.self_attn = SelfAttention(sizes)
        self.mlp = GatedMlp(sizes)
        self.input_layernorm = RmsNorm(sizes.width, sizes.epsilon)
        self.post_attention_layernorm = RmsNorm(sizes.width, sizes.epsilon)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], cache: Cache | None, layer: int,
                mask: Tensor | None, causal: bool) -> Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), turn, cache, layer, mask,
                                         causal)
        made: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return made


class Decoder(nn.Module):
    """Embeddings, layers, final norm."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.width, sizes.epsilon)


class LanguageModel(nn.Module):
    """Embeddings in, normalized hidden states out; `lm_head` makes logits of them."""

    def __init__(self, sizes: Llama) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = Decoder(sizes)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, embeddings: Tensor, cache: Cache | None = None, mask: Tensor | None = None,
                causal: bool = True) -> Tensor:
        """Hidden states [B, T, W] after the final norm for embeddings [B, T, W].

        `cache` is extended in place; the new rows follow what it holds. `mask` bool [T, T'], True
        where a row may look; in place of `causal`.
        """
        past = cache[0][0].shape[2] if cache else 0
        positions = torch.arange(past, past + embeddings.shape[1], device=embeddings.device)
        turn = rotary(positions, self.sizes.head, self.sizes.theta)
        hidden = embeddings
        for number, layer in enumerate(cast('Iterable[Layer]', self.model.layers)):
            hidden = layer(hidden, turn, cache, number, mask, causal)
        normed: Tensor = self.model.norm(hidden)
        return normed
