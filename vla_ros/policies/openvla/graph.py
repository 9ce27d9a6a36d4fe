"""One action as one CUDA graph: upload, vision, prompt, all tokens, download."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vla_ros.policies.openvla.backend import Frame
from vla_ros.policies.openvla.kernels.ops import Rows
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.static_backend import StaticBackend, StaticOptions


class GraphBackend(StaticBackend):
    """Greedy tokens of the frame it is given, without waiting for the device in between."""

    def __init__(self, model: OpenVla, options: StaticOptions) -> None:
        super().__init__(model, options, slots=1, extra=0)

    def work(self, bucket: int) -> None:
        inputs, prefix = self.inputs, self.config.prefix_tokens(bucket)
        inputs.upload()
        x = self.embeddings(self.see(), bucket)
        logits = self.llama.many(x, self.rows(prefix), prefix, inputs.device['wanted'][:1])
        out = self.outputs.device['ids']
        for number in range(self.count):
            if number:
                at = Rows(inputs.device['steps'][number - 1:number], inputs.device['slots'][:1])
                logits = self.llama.one(self.llama.embed(out[number - 1:number]).clone(), at)
            out[number:number + 1] = logits.argmax(-1) + self.llama.first
        self.outputs.download()

    def step(self, frame: Frame) -> NDArray[np.int64]:
        bucket = self.bucket(len(frame.ids))
        self.prepare(frame, bucket)
        self.graph(bucket)()
        self.wait()
        return self.answer()
