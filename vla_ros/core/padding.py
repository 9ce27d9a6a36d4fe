"""What is assumed of the steps that a short chunk does not have."""

from __future__ import annotations

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.types import Floats


def pad(actions: Floats, horizon: int, spec: ActionSpec) -> Floats:
    """Actions [horizon, A] from a shorter chunk: zero deltas and velocities, else the last value.

    `spec` is the policy's own: a relative offset keeps its last value, as a position does.
    """
    missing = horizon - len(actions)
    if missing <= 0:
        return actions
    tail = np.repeat(actions[-1:], missing, axis=0)
    tail[:, spec.of_kind(Kind.DELTA, Kind.VELOCITY)] = 0.0
    return np.vstack([actions, tail])
