"""One block of memory for all small inputs of a pass: written on the host, copied at once."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ALIGNED = 16  # bytes; what a view of any dtype may begin at


class Staging:
    """Named arrays that lie in one pinned block on the host and in one on the device.

    `fields`: shape and dtype by name. `host` are numpy views to write, `device` tensors of the
    same shapes, which hold what was written after the copy of `upload`.
    """

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
                 device: torch.device) -> None:
        places, size = {}, 0
        for name, (shape, dtype) in fields.items():
            count = prod(shape) * dtype.itemsize
            places[name] = size, count
            size += -(-count // _ALIGNED) * _ALIGNED
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == 'cuda')
        self._device = (self._host if device.type == 'cpu'
                        else torch.zeros(size, dtype=torch.uint8, device=device))
        self.host: dict[str, NDArray[Any]] = {}
        self.device: dict[str, Tensor] = {}
        for name, (shape, dtype) in fields.items():
            start, count = places[name]
            for block, views in ((self._host, 'host'), (self._device, 'device')):
                view = block[start:start + count].view(dtype).view(shape)
                if views == 'host':
                    self.host[name] = _numpy(view)
                else:
                    self.device[name] = view

    def upload(self) -> None:
        """Copy everything to the device; waits for nothing."""
        if self._device is not self._host:
            self._device.copy_(self._host, non_blocking=True)

    def download(self) -> None:
        """Copy everything to the host; there only after the device has been waited for."""
        if self._device is not self._host:
            self._host.copy_(self._device, non_blocking=True)


def _numpy(view: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = view.numpy()
    assert not array.size or np.shares_memory(array, view.numpy())
    return array
