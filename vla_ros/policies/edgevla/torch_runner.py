"""Runs the policy with torch on a CPU or a GPU; the cache stays in one tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from vla_ros.policies.edgevla.checkpoint import load
from vla_ros.policies.edgevla.model import to_precision

PRECISIONS = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}


class TorchRunner:
    """One policy in torch. Raises ValueError with one line on a device that is not there.

    `ring` [layers, 2, 1, W, T, kv, head] in the precision of the weights is written in place.
    """

    def __init__(self, folder: Path, threads: int, device: str, precision: str) -> None:
        if device != 'cpu' and not torch.cuda.is_available():
            raise ValueError(f'device: {device}: torch finds no GPU; choose an engine profile '
                             'with device: cpu, or install a torch with CUDA')
        if device == 'cpu':
            torch.set_num_threads(threads)
        self._device = torch.device(device)
        self._model = to_precision(load(folder), PRECISIONS[precision]).to(self._device)
        self.ring = self._model.make_ring()

    def run(self, images: NDArray[np.uint8], ids: NDArray[np.int64], state: NDArray[np.float32],
            since: NDArray[np.float32], frame: int) -> NDArray[np.float32]:
        """The chunk [H, A] for [1, C, height, width, 3], [1, L], [1, S], [1]; keeps the frame."""
        pixels, tokens, measured, passed = (torch.from_numpy(value).to(self._device)
                                            for value in (images, ids, state, since))
        actions = self._model.step(pixels, tokens, measured, passed, self.ring,
                                   torch.tensor(frame, device=self._device))
        chunk: NDArray[np.float32] = actions[0].cpu().numpy()
        return chunk

    def clear(self) -> None:
        """Empty the ring; what is masked must still be finite."""
        self.ring.zero_()
