"""Parts of the transformer: norms, rotary positions, the causal block, whole or frame by frame.

Norms are computed in float32 whatever the precision of the rest: in half precision they cost the
published policy a third of its success.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_ros.policies.edgevla.config import Transformer

# Puts the keys and values of a frame [2, B, T, kv, head] of a layer into its ring and gives the
# ring [2, B, W, T, kv, head].
Write = Callable[[int, Tensor], Tensor]


class RmsNorm(nn.Module):
    """Root mean square norm over the last axis."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale * self.weight.float()).to(x.dtype)


class LayerNorm(nn.LayerNorm):
    """Layer norm over the last axis, in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), self.normalized_shape, self.weight.float(),
                            self.bias.float(), self.eps).to(x.dtype)


class GroupNorm(nn.GroupNorm):
    """Group norm over channels, in float32."""

    def forward(self, x: Tensor) -> Tensor:
        return F.group_norm(x.float(), self.num_groups, self.weight.float(), self.bias.float(),
                            self.eps).to(x.dtype)


def rotations(positions: Tensor, head: int, theta: float) -> Tensor:
    """Cosine and sine [2, N, head / 2] for positions [N]; float32 of angles in float64."""
    powers = torch.arange(0, head, 2, dtype=torch.float64, device=positions.device) / head
    angles = positions.double()[:, None] / theta**powers
    return torch.stack((angles.cos(), angles.sin())).float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """x [..., N, heads, head] turned by a table [2, N, head / 2]."""
    cos, sin = table[0].unsqueeze(-2), table[1].unsqueeze(-2)
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


class Block(nn.Module):
    """Pre-norm attention with grouped queries, then a SwiGLU."""

    def __init__(self, sizes: Transformer) -> None:
        super().__init__()
        self.sizes = sizes
        width, narrow = sizes.width, sizes.kv_heads * sizes.head
        self.attention_norm = RmsNorm(width, sizes.epsilon)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, narrow, bias=False)
        self.value = nn.Linear(width, narrow, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.mlp_norm = RmsNorm(width, sizes.epsilon)
        self.gate = nn.Linear(width, sizes.hidden, bias=False)
        self.up = nn.Linear(width, sizes.hidden, bias=False)
        self.down = nn.Linear(sizes.hidden, width, bias=False)

    def keys_and_values(self, normed: Tensor) -> Tensor:
        """[2, B, N, kv, head] of tokens [B, N, d], keys not turned."""
        shape = (*normed.shape[:2], self.sizes.kv_heads, self.sizes.head)
        return torch.stack((self.key(normed).view(shape), self.value(normed).view(shape)))

    def finish(self, x: Tensor, normed: Tensor, keys: Tensor, values: Tensor, table: Tensor,
               mask: Tensor | None) -> Tensor:
        """The tokens [B, N, d] behind the block.

        keys (turned) and values [B, M, kv, head]; `table` turns the N queries; `mask` bool [N, M],
        None = causal.
        """
        batch, count, width = x.shape
        heads, groups, head = self.sizes.heads, self.sizes.kv_heads, self.sizes.head
        queries = rotate(self.query(normed).view(batch, count, heads, head), table)
        if mask is None:
            keys, values = (part.repeat_interleave(heads // groups, dim=2)
                            for part in (keys, values))
            mixed = F.scaled_dot_product_attention(
                queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2),
                is_causal=True)  # [B, heads, N, head]
        else:
            # The queries of a group stand one below the other: its keys need no copies.
            each = heads // groups
            folded = queries.view(batch, count, groups, each, head).permute(0, 2, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(
                folded.reshape(batch, groups, each * count, head), keys.transpose(1, 2),
                values.transpose(1, 2), attn_mask=mask.repeat(each, 1))
            mixed = mixed.view(batch, heads, count, head)
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, count, width))
        normed = self.mlp_norm(x)
        x = x + self.down(F.silu(self.gate(normed)) * self.up(normed))
        return x


class FrameTransformer(nn.Module):
    """Blocks over the tokens of frames; each frame's last token, the readout, comes out.

    A token sees those before it in its own frame and all of the `window` - 1 frames before.
    """

    table: Tensor  # rotations of the positions of a window

    def __init__(self, sizes: Transformer, frame_tokens: int, window: int) -> None:
        super().__init__()
        self.sizes, self.frame_tokens, self.window = sizes, frame_tokens, window
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = RmsNorm(sizes.width, sizes.epsilon)
        table = rotations(torch.arange(window * frame_tokens), sizes.head, sizes.theta)
        self.register_buffer('table', table, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Readouts [B, F, d] of whole episodes [B, F, T, d]."""
        batch, frames, count, width = tokens.shape
        device = tokens.device
        index = torch.arange(frames * count, device=device)
        table = rotations(index, self.sizes.head, self.sizes.theta)
        frame = index // count
        allowed = (index[:, None] >= index) & (frame[:, None] - frame < self.window)
        mask = allowed if frames > self.window else None
        x = tokens.reshape(batch, frames * count, width)
        readouts = slice(count - 1, None, count)
        for i, block in enumerate(self._blocks()):
            normed = block.attention_norm(x)
            keys, values = block.keys_and_values(normed)
            keys = rotate(keys, table)
            if i + 1 < len(self.blocks):
                x = block.finish(x, normed, keys, values, table, mask)
            else:  # nothing reads the other tokens
                x = block.finish(x[:, readouts], normed[:, readouts], keys, values,
                                 table[:, readouts], allowed[readouts])
        readout: Tensor = self.norm(x)
        return readout

    def stream(self, tokens: Tensor, frame: Tensor, write: Write) -> tuple[Tensor, Tensor]:
        """The readout [B, d] of one frame [B, T, d], and its keys and values.

        `frame` int64 [] counts the frames since the reset. The ring holds keys that are not
        turned: a frame of age a is read as if the present one were always number `window` - 1,
        so that positions stay small for ever. Returns [layers, 2, B, T, kv, head] second.
        """
        window, count, device = self.window, self.frame_tokens, tokens.device
        index = torch.arange(window * count, device=device)
        own = self.table[:, -count:]
        ages = (frame % window + window - torch.arange(window, device=device)) % window
        positions = ((window - 1 - ages)[:, None] * count
                     + torch.arange(count, device=device)).reshape(-1)
        table = self.table[:, positions]
        seen = (ages <= frame)[:, None].expand(window, count).reshape(-1)
        mask = seen & (positions <= index[-count:, None])  # [T, W * T]
        stored = []
        x = tokens
        for i, block in enumerate(self._blocks()):
            normed = block.attention_norm(x)
            new = block.keys_and_values(normed)
            stored.append(new)
            keys, values = write(i, new).flatten(2, 3)  # [2, B, W * T, kv, head]
            keys = rotate(keys, table)
            if i + 1 < len(self.blocks):
                x = block.finish(x, normed, keys, values, own, mask)
            else:
                x = block.finish(x[:, -1:], normed[:, -1:], keys, values, own[:, -1:], mask[-1:])
        return self.norm(x)[:, 0], torch.stack(stored)

    def _blocks(self) -> Iterable[Block]:
        return cast('Iterable[Block]', self.blocks)
