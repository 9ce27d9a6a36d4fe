"""Camera images as the policy takes them, on the device that runs it.

The published policies were shown images that Pillow had resized: two passes, first along the rows,
each rounded to whole grey levels, with weights in fixed point. The resize here does the same sums,
so a policy sees the same numbers, to the last bit. (Pillow 13 begins with the columns where an
image is tall, and differs there from itself by some grey levels.)

Sources: cubic convolution with a = -0.5 (Keys 1981), widened by the factor of reduction against
aliasing; the crop of the fine-tuned policies samples the centre bilinearly, corner on corner.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_ros.policies.openvla.config import Vision

_FRACTION = 22  # bits behind the point of a weight of the resize
_Table = tuple[Tensor, Tensor]


def cubic(x: float) -> float:
    """Keys' kernel with a = -0.5; it ends at 2."""
    x = abs(x)
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1.0
    return ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0 if x < 2.0 else 0.0


def lanczos(x: float) -> float:
    """Lanczos' kernel of three lobes; it ends at 3."""
    return float(np.sinc(x) * np.sinc(x / 3.0)) if abs(x) < 3.0 else 0.0


KERNELS: dict[str, tuple[Callable[[float], float], float]] = {
    'bicubic': (cubic, 2.0), 'lanczos': (lanczos, 3.0)}


class Transform:
    """Images uint8 [n, h, w, 3] on the device become pixels [1, 6n, S, S] of `dtype` there.

    Squashed to S x S where they are of another size, cut to the centre where the policy asks for
    it, then normalized twice: six channels an image, DINOv2's first. `resampling`: `bicubic` as the
    published processor, or `lanczos`, without roundings in between, as the data of OFT were made
    (which also went through JPEG once; that is left to the camera).

    One instance, one stream. No call waits for the device; one that meets a new size copies small
    tables to it, so call `prepare` for a size before a CUDA graph is captured.
    """

    def __init__(self, vision: Vision, device: torch.device | str, dtype: torch.dtype,
                 resampling: str = 'bicubic') -> None:
        if resampling not in KERNELS:
            raise ValueError(f'resampling: {resampling}: allowed are {", ".join(KERNELS)}')
        self._vision, self._device, self._dtype = vision, torch.device(device), dtype
        self._resampling = resampling
        # (x / 255 - mean) / std = x * scale + bias
        mean = np.array([vision.dino.mean, vision.siglip.mean], np.float64).reshape(6, 1, 1)
        std = np.array([vision.dino.std, vision.siglip.std], np.float64).reshape(6, 1, 1)
        self._scale = self._there(1.0 / (255.0 * std)).float()
        self._bias = self._there(-mean / std).float()
        self._tables: dict[int, _Table] = {}
        self._crop = None if vision.center_crop == 1.0 else self._crop_table()

    def prepare(self, height: int, width: int) -> None:
        """Make what images of this size need, in pixels."""
        size = self._vision.image
        for length in (height, width):
            if (height, width) != (size, size) and length not in self._tables:
                self._tables[length] = self._resize_table(length)

    def __call__(self, images: Tensor, out: Tensor | None = None) -> Tensor:
        """Pixels [1, 6n, S, S]; written into `out` where given. Raises ValueError: one line."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise ValueError(f'images: {list(images.shape)} {_plain(images.dtype)}: needed are '
                             'uint8 [n, height, width, 3]')
        n, height, width, _ = images.shape
        if n != self._vision.images:
            raise ValueError(f'images: {n}: the policy takes {self._vision.images}')
        self.prepare(height, width)
        pixels = images.permute(0, 3, 1, 2)  # [n, 3, h, w]
        if (height, width) != (self._vision.image,) * 2:
            pixels = self._resize(pixels, height, width)
        if self._crop is not None:
            pixels = self._center(pixels, self._crop)
        both = torch.addcmul(self._bias, pixels.float().repeat(1, 2, 1, 1), self._scale)
        both = both.reshape(1, 6 * n, *both.shape[2:])
        return both.to(self._dtype) if out is None else out.copy_(both)

    def _resize(self, pixels: Tensor, height: int, width: int) -> Tensor:
        """Whole grey levels [n, 3, S, S]."""
        rounding = self._resampling == 'bicubic'
        wide = _resample(pixels, self._tables[width], rounding)
        tall = _resample(wide.transpose(2, 3), self._tables[height], rounding).transpose(2, 3)
        return tall if rounding else tall.round().clamp(0.0, 255.0)

    def _center(self, pixels: Tensor, table: _Table) -> Tensor:
        """The centre of the images, as large as they were, in whole grey levels."""
        index, share = table
        bright = pixels.float() * (1.0 / 255.0)
        rows = bright.index_select(3, index[0])
        rows = rows + (bright.index_select(3, index[1]) - rows) * share
        seen = rows.index_select(2, index[0])
        seen = seen + (rows.index_select(2, index[1]) - seen) * share[:, None]
        return (seen.clamp(0.0, 1.0) * 255.5).floor()

    def _resize_table(self, length: int) -> _Table:
        """Of each of S places: the places it looks at, and their weights. Both [S, T]."""
        index, weights = resize_table(length, self._vision.image, self._resampling)
        if self._resampling != 'bicubic':
            return self._there(index), self._there(weights).float()
        fixed = np.trunc(weights * (1 << _FRACTION) + np.copysign(0.5, weights))
        return self._there(index), self._there(fixed.astype(np.int32))

    def _crop_table(self) -> _Table:
        """Of each of S places: its two neighbours int64 [2, S], and the share of the second."""
        size, one = self._vision.image, np.float32(1.0)
        side = np.sqrt(np.float32(self._vision.center_crop))
        start = (one - side) / np.float32(2.0)
        step = (start + side - start) * np.float32(size - 1) / np.float32(max(size - 1, 1))
        at = start * np.float32(size - 1) + np.arange(size, dtype=np.float32) * step
        first = np.floor(at)
        index = np.stack([first, np.minimum(np.ceil(at), size - 1)]).astype(np.int64)
        return self._there(index), self._there(at - first).float()

    def _there(self, values: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def resize_table(length: int, size: int, resampling: str = 'bicubic'
                 ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices and weights [size, T] that resample `length` places to `size`.

    Rows of weights add up to 1; where fewer than T places count, the rest weigh 0.
    """
    kernel, support = KERNELS[resampling]
    step = length / size
    widened = max(step, 1.0)
    reach = support * widened
    taps = min(2 * math.ceil(reach) + 1, length)
    index = np.zeros((size, taps), np.int64)
    weights = np.zeros((size, taps), np.float64)
    for place in range(size):
        center = (place + 0.5) * step
        first = max(int(center - reach + 0.5), 0)
        seen = range(first, min(int(center + reach + 0.5), length))
        row = [kernel((i - center + 0.5) / widened) for i in seen]
        index[place, :len(row)], weights[place, :len(row)] = seen, np.array(row) / sum(row)
    return index, weights


def _resample(pixels: Tensor, table: _Table, rounding: bool) -> Tensor:
    """The last axis resampled: [..., L] becomes [..., S], int32 grey levels or float32."""
    index, weights = table
    flat = pixels.to(weights.dtype)
    half = 1 << (_FRACTION - 1)
    total = torch.full((*flat.shape[:-1], len(index)), half if rounding else 0,
                       dtype=weights.dtype, device=flat.device)
    for tap in range(index.shape[1]):  # a sum of gathers: exact, and no copy of T times the image
        total.addcmul_(flat.index_select(-1, index[:, tap]), weights[:, tap])
    return (total >> _FRACTION).clamp(0, 255) if rounding else total


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
