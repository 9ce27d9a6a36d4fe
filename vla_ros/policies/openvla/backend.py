"""What a backend of the family must do: tokens of an action from a frame."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.transforms import Transform

Report = Callable[[str], None]
"""Takes what a warm-up does now, one line."""


@dataclass(frozen=True)
class Frame:
    """One observation: images uint8 [n, h, w, 3], ids int64 [L] with BOS, state float32 [S]."""

    images: NDArray[np.uint8]
    ids: NDArray[np.int64]
    state: NDArray[np.float32] | None = None


class Backend(ABC):
    """Runs one policy for one robot. One thread at a time.

    `lag`: how many frames before the one given the answer belongs to. `step` waits for the device.
    """

    lag = 0
    passes = 0.0  # forward passes of the last action, where that varies

    def __init__(self, config: OpenVlaConfig) -> None:
        self.config = config

    def warm_up(self, report: Report) -> None:  # noqa: B027 (the baseline has none)
        """Compile kernels and capture graphs, so that the first frame costs what all cost."""

    @abstractmethod
    def step(self, frame: Frame) -> NDArray[np.int64] | None:
        """The action ids [K] of frame `lag` frames ago; None while there is none yet."""

    @abstractmethod
    def teacher_logits(self, frame: Frame, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [K, bins] of each action token, told the `ids` [K] before it."""

    def reset(self) -> None:  # noqa: B027 (most remember nothing)
        """Forget all earlier frames."""

    def stages(self) -> Mapping[str, float]:
        """Medians in ms of vision_ms, prefill_ms, decode_ms_per_token, measured now."""
        return {}

    def memory_bytes(self) -> int:
        """Of the device, held by tensors of this process."""
        return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0

    @property
    def margins(self) -> NDArray[np.float32] | None:
        """Difference of the two highest logits of each token of the last action, if known."""
        return None


def on_device(frame: Frame, transform: Transform, device: torch.device, dtype: torch.dtype
              ) -> tuple[Tensor, Tensor, Tensor | None]:
    """Pixels [1, 6n, S, S], ids [1, L], state [1, S] of a frame, plainly copied."""
    pixels = transform(torch.from_numpy(frame.images).to(device))
    ids = torch.from_numpy(frame.ids).to(device)[None]
    state: Any = None
    if frame.state is not None:
        state = torch.from_numpy(frame.state).to(device, dtype)[None]
    return pixels, ids, state
