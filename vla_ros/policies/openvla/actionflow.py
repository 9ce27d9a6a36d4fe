"""ActionFlow: the prompt of the newest frame and one token of each frame before it, in one pass.

At tick n the pass holds the prompt of frame n and, for j = 1 … K - 1, the token j of frame n - j.
Weights are read once a tick, and one action is completed a tick: that of frame n - K + 1. Keys and
values lie in a ring, slot = frame mod K; nothing is ever moved. Throughput, not latency: the action
is K - 1 ticks old when it is complete.

Source: ActionFlow (cross-request pipelining for autoregressive VLAs).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from vla_ros.policies.openvla.backend import Frame
from vla_ros.policies.openvla.captured import Captured
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.static_backend import StaticBackend, StaticOptions


class ActionFlow(StaticBackend):
    """A pipeline of K frames. With `overlap`, the images of a frame are looked at while the frame
    before it goes through the language model: one tick more of age, a shorter tick.
    """

    def __init__(self, model: OpenVla, options: StaticOptions) -> None:
        tokens = model.config.actions.tokens
        super().__init__(model, options, slots=tokens, extra=tokens - 1)
        self.lag = tokens - 1 + int(options.overlap)
        self._side = (torch.cuda.Stream(self.device)
                      if options.overlap and self.device.type == 'cuda' else None)
        width = self.config.llama.width
        seen = self.config.vision.patches * self.config.vision.images
        self._seen = torch.zeros((seen, width), dtype=self.dtype, device=self.device)
        self._lengths = [0] * tokens
        self._frames = 0
        self._waiting: Frame | None = None

    def fields(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        return {'told': ((self.count - 1,), torch.int64), 'found': ((self.count,), torch.int64),
                'done': ((1,), torch.int64)}

    def work(self, bucket: int) -> None:
        device = self.inputs.device
        self.inputs.upload()
        if not self.options.overlap:
            self._pass(self.see(), bucket)
        elif self._side is None:
            self._pass(self._seen, bucket)
            self._seen.copy_(self.see())
        else:
            here = torch.cuda.current_stream(self.device)
            self._side.wait_stream(here)
            with torch.cuda.stream(self._side):
                seen = self.see()
            self._pass(self._seen, bucket)
            here.wait_stream(self._side)
            self._seen.copy_(seen)
        self.outputs.device['ids'].copy_(self.tokens.index_select(0, device['done'])[0])
        self.outputs.download()

    def _pass(self, seen: torch.Tensor, bucket: int) -> None:
        """Prompt and single rows; the tokens found go into the table."""
        device, prefix = self.inputs.device, self.config.prefix_tokens(bucket)
        table = self.tokens.view(-1)
        told = self.llama.embed(table[device['told']])
        x = torch.cat([self.embeddings(seen, bucket), told])
        logits = self.llama.many(x, self.rows(prefix + self.extra), prefix, device['wanted'])
        table.index_copy_(0, device['found'], logits.argmax(-1) + self.llama.first)

    def step(self, frame: Frame) -> NDArray[np.int64] | None:
        if not self.options.overlap:
            return self._tick(frame)
        self.bucket(len(frame.ids))  # what does not fit is refused now, not a tick later
        self.check(frame)
        before, found = self._waiting, None
        if before is None:
            self._look(frame)
        else:
            found = self._tick(Frame(frame.images, before.ids, before.state))
        self._waiting = frame
        return found

    @torch.inference_mode()
    def _look(self, frame: Frame) -> None:
        """See the first frame, whose prompt goes through the next pass."""
        self.fill(frame, self.bucket(len(frame.ids)))
        self.inputs.upload()
        self._seen.copy_(self.see())
        self.wait()

    def _tick(self, frame: Frame) -> NDArray[np.int64] | None:
        bucket, count = self.bucket(len(frame.ids)), self.count
        self.prepare(frame, bucket)
        self.graph(bucket)()
        self.wait()
        now, self._frames = self._frames, self._frames + 1
        return self.answer() if now >= count - 1 else None

    def prepare(self, frame: Frame, bucket: int) -> None:
        """Also: where the single rows stand, which tokens they are, where the new ones go."""
        host, count, now = self.inputs.host, self.count, self._frames
        prefix = self.config.prefix_tokens(bucket)
        self._lengths[now % count] = self.fill(frame, bucket, slot=now % count)
        host['found'][0] = now % count * count
        for back in range(1, count):
            slot, row = (now - back) % count, prefix + back - 1
            there = now >= back
            host['slots'][row] = slot
            host['positions'][row] = self._lengths[slot] + back - 1 if there else -1
            host['told'][back - 1] = slot * count + back - 1
            host['found'][back] = slot * count + back
            host['wanted'][back] = row
        host['done'][0] = (now + 1) % count  # slot of frame now - K + 1

    def reset(self) -> None:
        self._frames, self._waiting = 0, None
        self._lengths = [0] * self.count
        self.llama.clear()
        self.tokens.fill_(self.llama.first)

    def stages(self) -> Mapping[str, float]:
        found = dict(super().stages())
        bucket = min(self.options.buckets)
        self.prepare(self.blank(bucket), bucket)
        self.inputs.upload()
        seen = self._seen

        def packed() -> None:
            self._pass(seen, bucket)

        found['packed_ms'] = Captured(packed, self.device).milliseconds(self.device)
        self.reset()
        return found
