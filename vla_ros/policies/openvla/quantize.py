"""Weights in fewer bits: how they are packed, and what they are worth when unpacked.

fp8: e4m3 with one scale a row (largest value 448). int8 and int4: symmetric, one scale for each
128 weights of a row (64 or 32 where the row is narrow). Activations stay as they are, but for
fp8 products of many rows, whose rows get a scale each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FORMATS = ('plain', 'fp8', 'int8', 'int4')
FP8_MOST = 448.0
BITS = {'int8': 8, 'int4': 4}
GROUPS = (128, 64, 32)  # weights that share a scale: the first that divides the width
_GROUPS_OF_A_ROW = 8       # at least, so that narrow policies are cut as finely as wide ones
_SEARCH = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)  # of the largest value: clipping few helps the many


@dataclass(frozen=True)
class Packed:
    """A weight [N, K]. `scale` float32 [N] for fp8, bfloat16 [N, K / group] for integers.

    Integers lie in int32 words [N, K bits / 32] as unsigned fields, half the range added: field i
    of word j of a group belongs to weight i * (words of a group) + j, so that neighbouring words
    ask for neighbouring activations.
    """

    format: str
    data: Tensor
    scale: Tensor | None
    width: int
    group: int = 0

    @property
    def rows(self) -> int:
        return len(self.data)

    @property
    def bits(self) -> int:
        """Of a field; 0 where there are none."""
        return BITS.get(self.format, 0)

    @property
    def bytes(self) -> int:
        """Of memory."""
        scale = self.scale
        return self.data.nbytes + (0 if scale is None else scale.nbytes)


def pack(weight: Tensor, form: str) -> Packed:
    """A weight [N, K] in one of FORMATS. Raises ValueError with one line."""
    n, k = weight.shape
    if form == 'plain':
        return Packed(form, weight.contiguous(), None, k)
    wide = weight.float()
    if form == 'fp8':
        scale = wide.abs().amax(1).clamp_min(1e-12) / FP8_MOST
        return Packed(form, (wide / scale[:, None]).to(torch.float8_e4m3fn), scale, k)
    if form not in BITS:
        raise ValueError(f'format: {form}: allowed are {", ".join(FORMATS)}')
    bits, group = BITS[form], _group(k, form)
    half, fields = 1 << (bits - 1), 32 // bits
    groups = wide.view(n, k // group, group)
    scale = _best_scale(groups, half)
    whole = (groups / scale.float()[..., None]).round().clamp(-half, half - 1).long() + half
    parts = whole.view(n, k // group, fields, group // fields)
    words = sum(parts[:, :, i] << (bits * i) for i in range(fields))
    assert isinstance(words, Tensor)
    words = torch.where(words >= 1 << 31, words - (1 << 32), words)
    return Packed(form, words.to(torch.int32).reshape(n, -1).contiguous(), scale, k, group)


def unpack(packed: Packed) -> Tensor:
    """What a packed weight is worth, float32 [N, K] (plain ones in their own dtype)."""
    if packed.scale is None:
        return packed.data
    if not packed.bits:
        return packed.data.float() * packed.scale[:, None]
    n, bits, fields = packed.rows, packed.bits, 32 // packed.bits
    words = packed.data.view(n, packed.width // packed.group, 1, -1)
    shifts = torch.arange(fields, device=words.device)[:, None] * bits
    whole = ((words >> shifts) & ((1 << bits) - 1)) - (1 << (bits - 1))
    groups = whole.reshape(n, -1, packed.group).float() * packed.scale.float()[..., None]
    return groups.view(n, packed.width)


def packed_bytes(n: int, k: int, form: str, plain_bytes: int) -> int:
    """Memory of a weight [N, K] in a format, without making it."""
    if form == 'plain':
        return n * k * plain_bytes
    if form == 'fp8':
        return n * k + 4 * n
    return n * k * BITS[form] // 8 + 2 * n * (k // _group(k, form))


def _group(width: int, form: str) -> int:
    for group in GROUPS:
        if width % group == 0 and width >= _GROUPS_OF_A_ROW * group:
            return group
    if width % GROUPS[-1] == 0:
        return GROUPS[-1]
    raise ValueError(f'precision: {form}: a weight of width {width}: allowed are multiples of '
                     f'{GROUPS[-1]}; choose fp8 or bf16')


def _best_scale(groups: Tensor, half: int) -> Tensor:
    """For each group the scale with the least squared error, of a few."""
    largest = groups.abs().amax(-1).clamp_min(1e-12)
    # Where even the squares of the errors are too large for a number, nothing is clipped.
    best, error = largest / (half - 1), torch.full_like(largest, torch.inf)
    for share in _SEARCH:
        scale = (share * largest / (half - 1)).to(torch.bfloat16).float()
        back = (groups / scale[..., None]).round().clamp(-half, half - 1) * scale[..., None]
        now = (back - groups).square().sum(-1)
        best, error = torch.where(now < error, scale, best), torch.minimum(now, error)
    return best.to(torch.bfloat16)
