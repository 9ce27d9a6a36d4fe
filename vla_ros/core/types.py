"""The values that travel between the parts: frames, states, observations, plans, commands.

All times are integer nanoseconds of the ROS clock. Arrays in these values are not written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
NS_PER_S = 1_000_000_000


class Start(str, Enum):
    """When step 0 of a chunk begins."""

    STAMP = 'stamp'      # at the stamp of the observation
    ARRIVAL = 'arrival'  # when the chunk arrives


@dataclass(frozen=True)
class ImageSize:
    """Size of an image in pixels."""

    width: int
    height: int


@dataclass(frozen=True)
class Frame:
    """One camera image: `pixels` uint8 [height, width, 3] RGB, stamped with its capture time."""

    camera: str
    stamp_ns: int
    received_ns: int
    pixels: NDArray[np.uint8]


@dataclass(frozen=True)
class StateSample:
    """One measurement of some or all state entries: `positions` float64 [n], SI units."""

    stamp_ns: int
    received_ns: int
    names: tuple[str, ...]
    positions: Floats


@dataclass(frozen=True)
class Observation:
    """What a policy sees: images by camera name, state [S], instruction.

    `stamp_ns` is the primary camera's capture time, `oldest_stamp_ns` that of the oldest member,
    `received_ns` the time at which the last member arrived. `degraded` names the streams that
    were used in spite of a violation.
    """

    stamp_ns: int
    oldest_stamp_ns: int
    received_ns: int
    images: Mapping[str, NDArray[np.uint8]]
    state: Floats
    state_names: tuple[str, ...]
    instruction: str
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What an engine answers about an earlier observation than the one it was given last.

    `observation`: the very one that it was given; `actions` float [H, A] in the policy's spec.
    """

    observation: Observation
    actions: NDArray[np.floating[Any]]


Result = NDArray[np.floating[Any]] | Answer | None
"""Of an inference: actions [H, A] about the observation just given, about an earlier one, or
nothing yet, as from a pipeline that fills."""


@dataclass(frozen=True)
class ActionChunk:
    """The answer of a policy to one observation: `actions` float64 [H, A] in the policy's spec.

    `stamp_ns` is the stamp of the observation; step 0 begins at `start_ns`.
    """

    stamp_ns: int
    start_ns: int
    period_ns: int
    actions: Floats


@dataclass(frozen=True)
class Plan:
    """What is to be played from now on: `values` float64 [n, A] in the planned spec.

    `stamp_ns` is the stamp of the observation it answers. Step i is valid on
    [start_ns + i * period_ns, start_ns + (i + 1) * period_ns).
    """

    stamp_ns: int
    start_ns: int
    period_ns: int
    values: Floats

    @property
    def end_ns(self) -> int:
        """The time from which the plan is exhausted."""
        return self.start_ns + len(self.values) * self.period_ns


@dataclass(frozen=True)
class Command:
    """What one control period sends: float64 [A] each, in the planned spec.

    `values` holds positions of position dimensions, velocities per second of velocity and delta
    dimensions, gripper values. `velocities` is per second for every dimension. `rollout` [n, A]
    holds the limiter's own next `values`, empty where no sink asked for it.
    """

    stamp_ns: int
    values: Floats
    velocities: Floats
    rollout: Floats = field(default_factory=lambda: np.empty((0, 0)))


@dataclass(frozen=True)
class InferenceStatus:
    """What inference says of itself: the newest observation, and what is wrong, if anything.

    `cause` is empty where all is well; `reaction` is what the control side shall do about it, by
    name: none, hold, wait or fault. `epoch_ns` is the last reset stamp that inference heard of.
    """

    observation_stamp_ns: int
    epoch_ns: int = 0
    cause: str = ''
    reaction: str = 'none'
    instruction: str = ''
