"""What the engine was given and has not answered yet: several observations in a pipeline."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from vla_ros.core.executor_state import Request
from vla_ros.core.types import Observation

# Longer than any pipeline; a bound, so that an engine that never answers keeps memory flat.
KEPT = 64


@dataclass(frozen=True)
class Given:
    """A request that the engine has begun, and when its inputs were ready, in ns of ROS time."""

    request: Request
    preprocessed_ns: int


class InProgress:
    """The requests of one epoch that await their answer, in order. Not thread-safe."""

    def __init__(self) -> None:
        self._given: deque[Given] = deque(maxlen=KEPT)

    def __len__(self) -> int:
        return len(self._given)

    def add(self, given: Given) -> None:
        self._given.append(given)

    def take(self, observation: Observation) -> Given | None:
        """What was given with this very observation, None for nothing.

        It is answered then, and what was given before it will not be any more.
        """
        for i, given in enumerate(self._given):
            if given.request.observation is observation:
                for _ in range(i + 1):
                    self._given.popleft()
                return given
        return None

    def clear(self) -> None:
        """A new epoch: nothing that was given counts any more."""
        self._given.clear()
