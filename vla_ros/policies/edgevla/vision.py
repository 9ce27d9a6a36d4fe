"""From images to a few visual tokens: two encoders of different kind, fusion, compressor."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vla_ros.policies.edgevla.config import ConvEncoder, EdgeVlaConfig, Encoder, VitEncoder
from vla_ros.policies.edgevla.transformer import GroupNorm, LayerNorm


class ConvNet(nn.Sequential):
    """[N, 3, height, width] to [N, C, rows, columns]."""

    def __init__(self, sizes: ConvEncoder) -> None:
        layers: list[nn.Module] = []
        before = 3
        for channels, kernel, stride in zip(sizes.channels, sizes.kernels, sizes.strides,
                                            strict=True):
            layers += [nn.Conv2d(before, channels, kernel, stride, kernel // 2, bias=False),
                       GroupNorm(sizes.groups, channels), nn.SiLU()]
            before = channels
        super().__init__(*layers)


class VitBlock(nn.Module):
    """Pre-norm attention among the patches of an image, then an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp_norm = LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, count, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, count, 3, self.heads, -1)
        mixed = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        x = x + self.output(mixed.transpose(1, 2).reshape(batch, count, width))
        x = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return x


class Vit(nn.Module):
    """[N, 3, height, width] to [N, C, rows, columns], cells shuffled together where asked."""

    def __init__(self, sizes: VitEncoder, height: int, width: int) -> None:
        super().__init__()
        self.shuffle = sizes.shuffle
        self.patches = nn.Conv2d(3, sizes.width, sizes.patch, sizes.patch)
        grid = height // sizes.patch, width // sizes.patch
        self.place = nn.Parameter(0.5 * waves(*grid, sizes.width))
        self.blocks = nn.ModuleList(VitBlock(sizes.width, sizes.heads)
                                    for _ in range(sizes.depth))
        self.norm = LayerNorm(sizes.width)

    def forward(self, images: Tensor) -> Tensor:
        cells: Tensor = self.patches(images)
        x = cells.flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            x = block(x)
        x = self.norm(x).transpose(1, 2).reshape(cells.shape)
        return F.pixel_unshuffle(x, self.shuffle) if self.shuffle > 1 else x


class Vision(nn.Module):
    """Images to visual tokens before the compressor."""

    def __init__(self, config: EdgeVlaConfig) -> None:
        super().__init__()
        self.config = config
        width = config.transformer.width
        fused = len(config.cameras.names) // config.grids  # cameras in one token
        self.spatial = _encoder(config, config.spatial)
        self.semantic = _encoder(config, config.semantic)
        # One linear layer on the two side by side, in halves: the coarse one before its repetition.
        self.from_spatial = nn.Linear(fused * config.spatial.size, width)
        self.from_semantic = nn.Linear(fused * config.semantic.size, width, bias=False)
        self.place = nn.Parameter(0.5 * waves(*config.grid, width))
        self.camera = nn.Parameter(0.3 * torch.randn(config.grids, 1, width))
        self.norm = LayerNorm(width)

    def forward(self, images: Tensor) -> Tensor:
        """[N, C, 3, height, width], about -1 to 1, to [N, grid tokens, d]."""
        count = images.shape[0]
        flat = images.flatten(0, 1)
        fine = self.from_spatial(self._cells(self.spatial(flat), count))
        coarse = self.from_semantic(self._cells(self.semantic(flat), count))
        x = (fine + _spread(coarse, fine.shape[2], fine.shape[3])).flatten(2, 3)
        tokens: Tensor = self.norm(x + self.place + self.camera)
        return tokens.flatten(1, 2)

    def _cells(self, features: Tensor, count: int) -> Tensor:
        """[N, grids, rows, columns, C] of [N * cameras, C, rows, columns]."""
        _, _, rows, columns = features.shape
        x = features.reshape(count, self.config.grids, -1, rows, columns)
        return x.permute(0, 1, 3, 4, 2)


class LearnedQueries(nn.Module):
    """`keep` learned queries look at all tokens; residual on the queries, layer norm."""

    def __init__(self, width: int, keep: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.queries = nn.Parameter(0.5 * torch.randn(keep, width))
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)
        self.norm = LayerNorm(width)
        # Wide enough that the queries look at different places from the beginning.
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight, gain=2.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, tokens, d] to [N, keep, d]."""
        batch, count, width = tokens.shape
        shape = (batch, count, self.heads, width // self.heads)
        queries = self.query(self.queries).view(1, -1, *shape[2:]).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            queries.expand(batch, -1, -1, -1), self.key(tokens).view(shape).transpose(1, 2),
            self.value(tokens).view(shape).transpose(1, 2))
        mixed = mixed.transpose(1, 2).reshape(batch, -1, width)
        kept: Tensor = self.norm(self.queries + self.output(mixed))
        return kept


class AveragePool(nn.Module):
    """Means over rectangles of each grid, as even as the sizes allow."""

    weights: Tensor

    def __init__(self, grids: int, rows: int, columns: int, keep: int) -> None:
        super().__init__()
        high, wide = _rectangles(rows, columns, keep // grids)
        one = np.kron(_bins(rows, high), _bins(columns, wide))
        weights = torch.from_numpy(np.kron(np.eye(grids), one)).float()
        self.register_buffer('weights', weights, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """[N, tokens, d] to [N, keep, d]."""
        return self.weights.to(tokens.dtype) @ tokens


def compressor(config: EdgeVlaConfig) -> nn.Module:
    """The compressor of a config: [N, grid tokens, d] to [N, visual tokens, d]."""
    sizes = config.compressor
    if sizes.kind == 'learned_query':
        return LearnedQueries(config.transformer.width, sizes.keep, sizes.heads)
    if sizes.kind == 'average_pool':
        return AveragePool(config.grids, *config.grid, sizes.keep)
    return nn.Identity()


def waves(rows: int, columns: int, size: int) -> Tensor:
    """Sines and cosines of the place in a grid [rows * columns, size], about -1 to 1."""
    quarter = math.ceil(size / 4)
    rates = math.pi * torch.logspace(-1, math.log2(max(rows, columns, 2)) - 1, quarter, base=2.0)
    down = torch.linspace(-1, 1, rows)[:, None, None] * rates
    right = torch.linspace(-1, 1, columns)[None, :, None] * rates
    down, right = down.expand(rows, columns, -1), right.expand(rows, columns, -1)
    parts = torch.cat((down.sin(), down.cos(), right.sin(), right.cos()), dim=-1)
    return parts.reshape(rows * columns, -1)[:, :size]


def _encoder(config: EdgeVlaConfig, sizes: Encoder) -> nn.Module:
    if isinstance(sizes, ConvEncoder):
        return ConvNet(sizes)
    return Vit(sizes, config.cameras.height, config.cameras.width)


def _spread(coarse: Tensor, rows: int, columns: int) -> Tensor:
    """Cells [N, grids, r, c, d] repeated to [N, grids, rows, columns, d]."""
    count, grids, r, c, width = coarse.shape
    if (r, c) == (rows, columns):
        return coarse
    repeated = coarse[:, :, :, None, :, None].expand(-1, -1, -1, rows // r, -1, columns // c, -1)
    return repeated.reshape(count, grids, rows, columns, width)


def _rectangles(rows: int, columns: int, keep: int) -> tuple[int, int]:
    """How many bins high and wide `keep` rectangles stand, the closest to squares that fits."""
    fitting = [(high, keep // high) for high in range(1, keep + 1)
               if keep % high == 0 and high <= rows and keep // high <= columns]
    if not fitting:
        raise ValueError(f'compressor.keep: {keep} of a {rows}x{columns} grid: choose a number '
                         'with factors that fit the grid')
    return min(fitting, key=lambda pair: abs(math.log(pair[0] * columns / (pair[1] * rows))))


def _bins(size: int, count: int) -> NDArray[np.float64]:
    """Means of `count` stretches of `size` cells: [count, size], rows sum to 1."""
    weights = np.zeros((count, size))
    for i in range(count):
        low, high = i * size // count, -(-(i + 1) * size // count)
        weights[i, low:high] = 1.0 / (high - low)
    return weights
