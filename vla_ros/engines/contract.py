"""What a policy promises and what an engine must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.types import Floats, ImageSize, Observation, Result, Start


@dataclass(frozen=True)
class PolicyContract:
    """What a policy needs and gives; checked against the robot profile before activation.

    `cameras`: the primary camera first. `backends`: those the family can run on.
    `prefix_support`: `Engine.infer` can be told the actions that will be executed meanwhile.
    """

    family: str
    horizon: int
    period_ns: int
    start: Start
    cameras: Mapping[str, ImageSize]
    state_names: tuple[str, ...]
    action: ActionSpec
    backends: tuple[str, ...]
    prefix_support: bool = False
    pad_short_chunks: bool = False


def _to_nobody(line: str) -> None:
    """Where nobody listens."""


class Engine(ABC):
    """Runs one policy. All calls come from one thread at a time; none may touch ROS.

    Life: `load` (heavy imports and weights) → `preprocess` and `infer` any number of times
    → `close`. `reset` clears what the engine remembers of earlier observations (KV caches) and
    may come between any two inferences.

    A pipeline of K observations gives None for the first K - 1 of them, counted anew from each
    `reset`, and then with each inference an `Answer` about the one that was given K - 1 before:
    throughput, not latency. Nothing is published for None, and an answer has the age of its
    observation; one about an earlier instruction is dropped. Where inference waits for a trigger,
    what is in the pipeline grows old meanwhile: use the trigger `continuous`.

    `lag`, known once loaded: how many observations come after the one that is answered; K - 1 for
    a pipeline of K. After a reset, more inferences than that without an answer are named.
    """

    contract: PolicyContract
    lag: int = 0
    report: Callable[[str], None] = staticmethod(_to_nobody)  # told in a line what `load` does

    @abstractmethod
    def load(self) -> None:
        """Bring the policy into memory. Raises ValueError or OSError: one line with the fix."""

    def preprocess(self, observation: Observation) -> Any:
        """The inputs of `infer`, made from an observation."""
        return observation

    @abstractmethod
    def infer(self, inputs: Any, prefix: Floats | None = None) -> Result:
        """The action chunk [H, A] in the policy's spec, float32 or float64.

        Of the observation just given; or an `Answer` with an earlier one, the very object that
        `preprocess` was given; or None: nothing yet.
        """

    def notes(self) -> tuple[str, ...]:
        """What a person should know of the last observation, one line each: unknown words, say."""
        return ()

    def reset(self) -> None:  # noqa: B027 (most engines remember nothing)
        """Forget all earlier observations."""

    def close(self) -> None:  # noqa: B027
        """Give back what `load` took."""

    def example(self) -> Observation:
        """An observation that fits the contract, for warm-up: grey images, zero state."""
        images = {name: np.full((size.height, size.width, 3), 128, np.uint8)
                  for name, size in self.contract.cameras.items()}
        names = self.contract.state_names
        return Observation(stamp_ns=0, oldest_stamp_ns=0, received_ns=0, images=images,
                           state=np.zeros(len(names)), state_names=names, instruction='warm up')
