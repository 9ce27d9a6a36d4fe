"""How a new chunk and the plan in hand are mixed, step by step on the same times."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.rotations import slerp
from vla_ros.core.types import Floats


class Merge(str, Enum):
    """The named merge policies."""

    LATEST_ONLY = 'latest_only'
    CROSSFADE = 'crossfade'
    WEIGHTED_AVERAGE = 'weighted_average'
    AVERAGE = 'average'
    CONSERVATIVE = 'conservative'
    TEMPORAL_ENSEMBLE = 'temporal_ensemble'


# Share of the new chunk. Source: LeRobot, async_inference aggregate functions.
FIXED_SHARE = {
    Merge.LATEST_ONLY: 1.0,
    Merge.WEIGHTED_AVERAGE: 0.7,
    Merge.AVERAGE: 0.5,
    Merge.CONSERVATIVE: 0.3,
}

# Weight of prediction i is exp(-m i), i = 0 the oldest. Source: ACT, arXiv 2304.13705.
ENSEMBLE_DECAY = 0.01


class Mixer:
    """Mixes rows of one planned spec: lines for numbers, great circles for quaternions.

    Grippers are never mixed: the newest value counts.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self._gripper = spec.of_kind(Kind.GRIPPER)
        self._quaternion = spec.quaternion()

    def mix(self, old: Floats, new: Floats, share: Floats) -> Floats:
        """Rows [n, A] that hold `share` [n] of `new` and the rest of `old`."""
        mixed = old + share[:, None] * (new - old)
        if self._quaternion.size:
            columns = self._quaternion
            mixed[:, columns] = slerp(old[:, columns], new[:, columns], share)
        mixed[:, self._gripper] = new[:, self._gripper]
        return mixed

    def ensemble(self, predictions: Sequence[Floats],
                 valid: Sequence[NDArray[np.bool_]]) -> Floats:
        """ACT's temporal ensemble of predictions [n, A], the oldest first.

        `valid` [n] says where each prediction speaks; the newest must speak everywhere.
        """
        newest = predictions[-1]
        stack = np.stack(predictions)                               # [C, n, A]
        speaks = np.stack(valid)                                    # [C, n]
        # i counts the predictions that speak of this very step, the oldest being 0.
        order = np.cumsum(speaks, axis=0) - 1
        weight = np.where(speaks, np.exp(-ENSEMBLE_DECAY * order), 0.0)
        weight /= weight.sum(axis=0)
        if self._quaternion.size:
            columns = self._quaternion
            dot = np.sum(stack[:, :, columns] * newest[None, :, columns], axis=-1, keepdims=True)
            stack[:, :, columns] *= np.where(dot < 0.0, -1.0, 1.0)
        mixed = np.einsum('cn,cna->na', weight, np.where(speaks[:, :, None], stack, 0.0))
        if self._quaternion.size:
            mixed[:, columns] /= np.linalg.norm(mixed[:, columns], axis=-1, keepdims=True)
        mixed[:, self._gripper] = newest[:, self._gripper]
        return np.asarray(mixed)
