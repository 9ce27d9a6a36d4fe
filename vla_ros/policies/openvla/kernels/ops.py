"""The small operations of a forward pass: Triton on a GPU, plain torch elsewhere.

All write into what they are given or return new tensors of fixed shapes; none waits for the
device, so that they can be captured in a graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from vla_ros.policies.openvla.quantize import FP8_MOST, Packed, unpack

SPLIT = 128  # rows of the cache that one program looks at
_EVEN = 64   # products of many rows like their number to be a multiple of this


@dataclass(frozen=True)
class Shape:
    """How a matrix-vector kernel is cut: rows of the weight and columns of a program, its warps."""

    rows: int
    warps: int
    tile: int


_SHAPES: Mapping[str, Shape] = MappingProxyType({
    'plain': Shape(4, 8, 2048), 'plain gated': Shape(2, 4, 2048),
    'fp8': Shape(4, 2, 1024), 'fp8 gated': Shape(4, 4, 4096),
    'int8': Shape(4, 4, 512), 'int8 gated': Shape(2, 4, 512),
    'int4': Shape(8, 4, 512), 'int4 gated': Shape(4, 4, 512)})


@dataclass(frozen=True)
class Tuning:
    """How the kernels are launched. `dependent`: a kernel starts while the one before ends."""

    dependent: bool = True
    shapes: Mapping[str, Shape] = field(default_factory=lambda: _SHAPES)


PLAIN_TUNING = Tuning()


def kernels() -> Any:
    """The module of Triton kernels; imported where a GPU is used."""
    from vla_ros.policies.openvla.kernels import triton_kernels
    return triton_kernels


@cache
def _pdl(device: torch.device) -> bool:
    """Whether the GPU starts dependent kernels early (Hopper and later)."""
    return torch.cuda.get_device_capability(device)[0] >= 9


@dataclass(frozen=True)
class Activation:
    """Rows [R, K] that enter a product; `scale` float32 [R] where they are float8.

    `block` holds the same rows, perhaps with more after them that mean nothing.
    """

    rows: Tensor
    scale: Tensor | None = None
    block: Tensor | None = None


@dataclass(frozen=True)
class Product:
    """Rows [R, N] of a product; still to be multiplied by `row` [R] and `column` [N], if any."""

    rows: Tensor
    row: Tensor | None = None
    column: Tensor | None = None

    def plain(self) -> Tensor:
        """Multiplied."""
        if self.row is None or self.column is None:
            return self.rows
        return (self.rows.float() * self.row[:, None] * self.column).to(self.rows.dtype)

    def scales(self) -> tuple[Tensor, Tensor]:
        """Of the kernels; anything where there are none."""
        if self.row is None or self.column is None:
            return self.rows, self.rows
        return self.row, self.column


class Weight:
    """A weight as products need it: packed for one row, packed for many rows.

    On a CPU both are unpacked once, so that the numbers are those of the GPU, not its speed.
    """

    def __init__(self, one: Packed, many: Packed, dtype: torch.dtype,
                 tuning: Tuning = PLAIN_TUNING) -> None:
        self.one, self.many, self.tuning = one, many, tuning
        self._unit = torch.ones((), dtype=torch.float32, device=one.data.device)
        self._fast = one.data.is_cuda
        if not self._fast:
            self._plain_one = unpack(one).to(dtype)
            self._plain_many = self._plain_one if many is one else unpack(many).to(dtype)

    @property
    def narrow(self) -> bool:
        """Whether products of many rows take float8."""
        return self.many.format == 'fp8'

    # --- one row -------------------------------------------------------------------------------

    def row(self, x: Tensor, gamma: Tensor | None = None, epsilon: float = 0.0,
            add: Tensor | None = None, gated: bool = False) -> Tensor:
        """W norm(x) for x [1, K]; added to `add` in place, or as gate and up of a SwiGLU."""
        if not self._fast:
            normed = x if gamma is None else _rms(x, gamma, epsilon)
            made = functional.linear(normed, self._plain_one)
            if gated:
                gate, up = made.chunk(2, -1)
                made = functional.silu(gate) * up
            return made if add is None else add.add_(made)
        packed = self.one
        n = packed.rows // 2 if gated else packed.rows
        out = add if add is not None else torch.empty((1, n), dtype=x.dtype, device=x.device)
        shape = self.tuning.shapes[packed.format + (' gated' if gated else '')]
        pdl = self.tuning.dependent and _pdl(x.device)
        common = {'K': packed.width, 'NORM': gamma is not None, 'ADD': add is not None,
                  'GATED': gated, 'PDL': pdl, 'ROWS': shape.rows, 'num_warps': shape.warps,
                  'launch_pdl': pdl}
        grid, gamma = (-(-n // shape.rows),), x if gamma is None else gamma
        scale = x if packed.scale is None else packed.scale
        if packed.bits:
            tile = min(shape.tile, _power(packed.width * packed.bits // 32))
            if packed.bits == 4:
                kernels().matvec_nibbles[grid](x, gamma, packed.data, scale, out, n, epsilon,
                                               GROUP=packed.group, TILE=tile, **common)
            else:
                kernels().matvec_words[grid](x, gamma, packed.data, scale, out, n, epsilon,
                                             BITS=packed.bits, GROUP=packed.group, TILE=tile,
                                             **common)
        else:
            kernels().matvec[grid](
                x, gamma, packed.data, scale, out, n, epsilon,
                TILE=min(shape.tile, _power(packed.width)), SCALED=packed.scale is not None,
                **common)
        return out

    # --- many rows -----------------------------------------------------------------------------

    def rows(self, x: Activation) -> Product:
        """W x for rows [R, K]."""
        packed, count = self.many, len(x.rows)
        if not self._fast:
            rows = x.rows
            if x.scale is not None:
                rows = (rows.float() * x.scale[:, None]).to(self._plain_many.dtype)
            return Product(functional.linear(rows, self._plain_many))
        block = x.rows if x.block is None else x.block
        if x.scale is None:
            weight = packed.data if packed.format == 'plain' else unpack(packed).to(block.dtype)
            return Product(functional.linear(block, weight)[:count])
        made = torch._scaled_mm(block, packed.data.t(), self._unit, self._unit,
                                out_dtype=torch.bfloat16, use_fast_accum=True)
        return Product(made[:count], x.scale, packed.scale)


def narrowed(rows: Tensor, narrow: bool) -> Activation:
    """Rows [R, K] as they are, or as float8."""
    if not narrow:
        return Activation(rows)
    if not rows.is_cuda:
        return _narrow(rows)
    out = torch.empty(rows.shape, dtype=torch.float8_e4m3fn, device=rows.device)
    scale = torch.empty(len(rows), dtype=torch.float32, device=rows.device)
    kernels().quantize_rows[(len(rows),)](rows, out, scale, rows.shape[1],
                                          BLOCK=_power(rows.shape[1]), MOST=FP8_MOST, num_warps=8)
    return Activation(out, scale)


def add_norm(x: Tensor, y: Product | None, gamma: Tensor, epsilon: float,
             narrow: bool = False) -> Activation:
    """x [R, W] += y in place; the root mean square norm of the sum."""
    if not x.is_cuda:
        if y is not None:
            x.add_(y.plain())
        normed = _rms(x, gamma, epsilon)
        return _narrow(normed) if narrow else Activation(normed)
    out = torch.empty_like(x, dtype=torch.float8_e4m3fn if narrow else x.dtype)
    scale = torch.empty(len(x), dtype=torch.float32, device=x.device) if narrow else None
    scales = (x, x) if y is None else y.scales()
    kernels().add_rms_norm[(len(x),)](
        x, x if y is None else y.rows, *scales, gamma, out, x if scale is None else scale, epsilon,
        W=x.shape[1], BLOCK=_power(x.shape[1]), ADD=y is not None,
        SCALED=y is not None and y.row is not None, NARROW=narrow, MOST=FP8_MOST, num_warps=8)
    return Activation(out, scale)


def silu_mul(product: Product, narrow: bool = False) -> Activation:
    """silu(gate) * up of [R, 2 H]."""
    gate_up = product.rows
    if not gate_up.is_cuda:
        gate, up = product.plain().chunk(2, -1)
        return narrowed(functional.silu(gate) * up, narrow)
    count, both = gate_up.shape
    size = count if count < _EVEN else -(-count // _EVEN) * _EVEN
    if narrow:
        block = torch.empty((size, both // 2), dtype=torch.float8_e4m3fn, device=gate_up.device)
        scale = torch.empty(count, dtype=torch.float32, device=gate_up.device)
        kernels().silu_mul_narrow[(count,)](
            gate_up, *product.scales(), block, scale, both // 2, BLOCK=_power(both // 2),
            SCALED=product.row is not None, MOST=FP8_MOST, num_warps=16)
        return Activation(block[:count], scale, block)
    block = torch.empty((size, both // 2), dtype=gate_up.dtype, device=gate_up.device)
    kernels().silu_mul[(count, -(-both // 2048))](
        gate_up, *product.scales(), block, both // 2, BLOCK=1024, SCALED=product.row is not None)
    return Activation(block[:count], block=block)


def add_layer_norm(x: Tensor, y: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """x [R, W] += y in place; returns the layer norm of the sum."""
    if not x.is_cuda:
        x.add_(y)
        return functional.layer_norm(x, x.shape[-1:], gamma, beta, epsilon)
    out = torch.empty_like(x)
    width = x.shape[-1]
    kernels().add_layer_norm[(x.numel() // width,)](
        x, y, gamma, beta, out, epsilon, W=width, BLOCK=_power(width), num_warps=4)
    return out


# --- attention -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeadShape:
    """Of an attention: query heads, heads of keys and values, width of a head."""

    heads: int
    kv: int
    width: int


@dataclass(frozen=True)
class Ring:
    """Keys and values of one layer: [slots, T, kv heads, head]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True)
class Rows:
    """Where rows stand: int32 [R] position (-1: padding) and slot of the ring."""

    positions: Tensor
    slots: Tensor

    def part(self, first: int) -> Rows:
        """From row `first` on."""
        return Rows(self.positions[first:], self.slots[first:])


class Scratch:
    """Where the parts of an attention of up to `rows` rows wait for the last of them."""

    def __init__(self, rows: int, length: int, shape: HeadShape, device: torch.device) -> None:
        self.splits = -(-length // SPLIT)
        self.parts = torch.zeros((rows, shape.heads, self.splits, _power(shape.width) + 2),
                                 dtype=torch.float32, device=device)
        self.arrived = torch.zeros((rows, shape.heads), dtype=torch.int32, device=device)


def rope_write(product: Product, turn: tuple[Tensor, Tensor], at: Rows, ring: Ring,
               shape: HeadShape) -> Tensor:
    """Turn q and k of [R, (H + 2 KV) D] in place and put k and v into the ring; returns them."""
    heads, kv, d = shape.heads, shape.kv, shape.width
    qkv = product.rows
    if qkv.is_cuda:
        block = 32
        kernels().rope_write[(len(qkv), -(-(heads + 2 * kv) // block))](
            qkv, *product.scales(), *turn, at.positions, at.slots, ring.keys, ring.values,
            HEADS=heads, KV=kv, T=ring.keys.shape[1], D=d, D2=_power(d // 2), BLOCK=block,
            SCALED=product.row is not None, num_warps=4)
        return qkv
    qkv = product.plain()
    places = at.positions.clamp_min(0).long()
    cosines, sines = (table[places][:, None].to(qkv.dtype) for table in turn)
    view = qkv.view(len(qkv), heads + 2 * kv, d)
    first, second = view[:, :heads + kv, :d // 2].clone(), view[:, :heads + kv, d // 2:].clone()
    view[:, :heads + kv, :d // 2] = first * cosines - second * sines
    view[:, :heads + kv, d // 2:] = second * cosines + first * sines
    real = at.positions >= 0
    slots = at.slots.long()[real]
    ring.keys[slots, places[real]] = view[real, heads:heads + kv]
    ring.values[slots, places[real]] = view[real, heads + kv:]
    return qkv


def attend(qkv: Tensor, turn: tuple[Tensor, Tensor], at: Rows, ring: Ring, shape: HeadShape,
           turned: bool, scratch: Scratch, tuning: Tuning = PLAIN_TUNING) -> Tensor:
    """[R, H D]: each row looks at what its slot of the ring holds up to its position.

    Unless `turned`, the rows are turned and written first; then no two may share a slot.
    """
    heads, kv, d = shape.heads, shape.kv, shape.width
    if not qkv.is_cuda:
        if not turned:
            rope_write(Product(qkv), turn, at, ring, shape)
        slots = at.slots.long()
        query = qkv.view(len(qkv), heads + 2 * kv, d)[:, :heads, None]
        keys, values = (part[slots].transpose(1, 2) for part in (ring.keys, ring.values))
        steps = torch.arange(keys.shape[2], device=qkv.device)
        mask = (steps[None] <= at.positions[:, None])[:, None, None]
        # A frame that was not finite must not spoil those that come after it.
        keys, values = (part.masked_fill(~mask.mT, 0.0) for part in (keys, values))
        seen = functional.scaled_dot_product_attention(query, keys, values, mask,
                                                       enable_gqa=kv != heads)
        return seen.reshape(len(qkv), heads * d)
    out = torch.empty((len(qkv), heads * d), dtype=qkv.dtype, device=qkv.device)
    pdl = tuning.dependent and not turned and _pdl(qkv.device)
    kernels().attend[(len(qkv), heads, scratch.splits)](
        qkv, *turn, at.positions, at.slots, ring.keys, ring.values, out, scratch.parts,
        scratch.arrived, HEADS=heads, KV=kv, T=ring.keys.shape[1], D=d, DP=_power(d), BLOCK=SPLIT,
        SPLITS=scratch.splits, TURN=not turned, PDL=pdl, num_warps=8, launch_pdl=pdl)
    return out


# --- plain ---------------------------------------------------------------------------------------


def _rms(x: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return gamma * wide.to(x.dtype)


def _narrow(rows: Tensor) -> Activation:
    """Rows [R, K] as float8 with a scale each."""
    scale = rows.float().abs().amax(1).clamp_min(1e-12) / FP8_MOST
    return Activation((rows.float() / scale[:, None]).to(torch.float8_e4m3fn), scale)


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
