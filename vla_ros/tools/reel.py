"""Keeps the images of a run, small enough to be held in memory while it goes on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
FASTEST = 1


class Reel:
    """Images with their stamps, each as what has changed since the one before; nothing is lost."""

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()
        self._newest: Pixels | None = None
        self._parts: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, stamp_ns: int, pixels: Pixels) -> None:
        """Take an image uint8 [h, w, 3]; one of another size than the first is left out."""
        if self._newest is None:
            self._shape, self._newest = pixels.shape, np.zeros_like(pixels)
        if pixels.shape != self._shape:
            return
        change = np.bitwise_xor(pixels, self._newest)
        self._parts.append((stamp_ns, zlib.compress(change.tobytes(), FASTEST)))
        self._newest = np.array(pixels)

    def __iter__(self) -> Iterator[tuple[int, Pixels]]:
        """Stamps and images, in order."""
        pixels = np.zeros(self._shape, np.uint8)
        for stamp_ns, part in self._parts:
            change = np.frombuffer(zlib.decompress(part), np.uint8).reshape(self._shape)
            pixels = np.bitwise_xor(pixels, change)
            yield stamp_ns, pixels
