"""Greedy Jacobi decoding: guess all tokens, correct all in one pass, until nothing changes.

The fixed point is the greedy answer: token k is right as soon as those before it are, so that each
pass settles one more at least. The first guess is the action before, and its first correction comes
with the prompt's own pass, which reads all weights anyway.

Source: parallel Jacobi decoding (arXiv 2305.10427).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from vla_ros.policies.openvla.backend import Frame, Report
from vla_ros.policies.openvla.captured import Captured
from vla_ros.policies.openvla.kernels.ops import Rows
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.static_backend import StaticBackend, StaticOptions


class Jacobi(StaticBackend):
    """`passes` of the last action: 1 + corrections; plain decoding needs K."""

    def __init__(self, model: OpenVla, options: StaticOptions) -> None:
        tokens = model.config.actions.tokens
        super().__init__(model, options, slots=1, extra=tokens - 1)
        self._guess = torch.zeros(tokens, dtype=torch.int64, device=self.device)
        self._again: Captured | None = None
        self.reset()

    def work(self, bucket: int) -> None:
        """The prompt, and a correction of the whole guess."""
        prefix, device = self.config.prefix_tokens(bucket), self.inputs.device
        self.inputs.upload()
        x = torch.cat([self.embeddings(self.see(), bucket), self.llama.embed(self._guess[:-1])])
        logits = self.llama.many(x, self.rows(prefix + self.extra), prefix, device['wanted'])
        self._take(logits)

    def _correct(self) -> None:
        """Correct the guess once more; token 0 is settled by the prompt."""
        device = self.inputs.device
        x = self.llama.embed(self._guess[:-1])
        at = Rows(device['steps'][:-1], device['slots'][:self.extra])
        logits = self.llama.many(x, at, 0, torch.arange(self.extra, device=self.device))
        found = logits.argmax(-1) + self.llama.first
        self._guess[1:] = found
        self.outputs.device['ids'].copy_(self._guess)
        self.outputs.download()

    def _take(self, logits: torch.Tensor) -> None:
        self._guess.copy_(logits.argmax(-1) + self.llama.first)
        self.outputs.device['ids'].copy_(self._guess)
        self.outputs.download()

    def step(self, frame: Frame) -> NDArray[np.int64]:
        bucket = self.bucket(len(frame.ids))
        guessed = self.answer()
        self.prepare(frame, bucket)
        self.graph(bucket)()
        self.wait()
        found, self.passes = self.answer(), 1.0
        # Right up to the first token that was told wrongly, and that one's correction too.
        while (settled := _same(guessed, found)) < self.extra:
            assert self.passes <= self.count, 'each pass settles one token at least'
            guessed = found
            self.graph_again()()
            self.wait()
            found = self.answer()
            self.passes += 1.0
            del settled
        return found

    def prepare(self, frame: Frame, bucket: int) -> None:
        length, host = self.fill(frame, bucket), self.inputs.host
        prefix = self.config.prefix_tokens(bucket)
        host['positions'][prefix:prefix + self.extra] = length + np.arange(self.extra)
        host['slots'][prefix:prefix + self.extra] = 0
        host['wanted'][1:] = prefix + np.arange(self.extra)

    def graph_again(self) -> Captured:
        """The captured correction."""
        if self._again is None:
            self._again = Captured(self._correct, self.device)
        return self._again

    def warm_up(self, report: Report) -> None:
        super().warm_up(report)
        report('capturing the correction of a guess')
        self.graph_again()
        self.reset()

    def reset(self) -> None:
        self.llama.clear()
        self._guess.fill_(self.llama.first)
        self.outputs.device['ids'].copy_(self._guess)
        self.outputs.download()
        self.wait()


def _same(told: NDArray[np.int64], found: NDArray[np.int64]) -> int:
    """How many tokens were told as they were then found, from the first on."""
    different = np.flatnonzero(told != found)
    return int(different[0]) if len(different) else len(told)
