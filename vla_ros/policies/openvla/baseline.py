"""The plain twin of all that is fast: eager torch, a cache that grows, greedy decoding."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_ros.policies.openvla.backend import Backend, Frame, on_device
from vla_ros.policies.openvla.llama import Cache
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.transforms import Transform


class Baseline(Backend):
    """What a person would write first. Kept for ever: it says what the others must answer."""

    def __init__(self, model: OpenVla) -> None:
        super().__init__(model.config)
        self._model = model
        self._transform = Transform(model.config.vision, model.device, model.dtype)

    @torch.inference_mode()
    def step(self, frame: Frame) -> NDArray[np.int64]:
        cache: Cache = []
        hidden = self._model.language_model(self._prefix(frame), cache)[:, -1]
        ids: list[Tensor] = []
        for number in range(self.config.actions.tokens):
            if number:
                hidden = self._model.language_model(self._model.embed(ids[-1][:, None]),
                                                    cache)[:, -1]
            ids.append(self.config.actions.first
                       + self._model.action_logits(hidden).argmax(-1))
        return torch.cat(ids).cpu().numpy()

    @torch.inference_mode()
    def teacher_logits(self, frame: Frame, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        told = torch.from_numpy(ids[:-1]).to(self._model.device)[None]
        whole = torch.cat([self._prefix(frame), self._model.embed(told)], 1)
        hidden = self._model.language_model(whole)[0, -len(ids):]
        return self._model.action_logits(hidden).float().cpu().numpy()

    def _prefix(self, frame: Frame) -> Tensor:
        return self._model.prefix(*on_device(frame, self._transform, self._model.device,
                                             self._model.dtype))
