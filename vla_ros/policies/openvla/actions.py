"""Actions as token ids and back, and the statistics that give them units.

Arrays are float64 and the formulas those of the reference, so that equal ids make equal actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_ros.policies.openvla.config import Actions, Statistics

Floats = NDArray[np.float64]
_TINY = 1e-8  # keeps a dimension that never moves from dividing by zero
_NAMED = 40   # keys that a message lists


def edges(bins: int) -> Floats:
    """The `bins` edges from -1 to 1."""
    return np.linspace(-1.0, 1.0, bins, dtype=np.float64)


def centers(bins: int) -> Floats:
    """What the ids stand for: the middles between the edges, one fewer than edges."""
    at = edges(bins)
    made: Floats = (at[:-1] + at[1:]) / 2.0
    return made


def encode(normalized: ArrayLike, actions: Actions) -> NDArray[np.int64]:
    """Ids of normalized actions of any shape; what lies beyond -1 and 1 is clipped."""
    values = np.clip(np.asarray(normalized, np.float64), -1.0, 1.0)
    return np.asarray(actions.top - np.digitize(values, edges(actions.bins)), np.int64)


def decode(ids: ArrayLike, actions: Actions) -> Floats:
    """Normalized actions of ids of any shape; an id that is none of an action counts as nearest."""
    places = actions.top - np.asarray(ids, np.int64) - 1
    found: Floats = centers(actions.bins)[np.clip(places, 0, actions.bins - 2)]
    return found


def chunk(ids: ArrayLike, actions: Actions) -> Floats:
    """Normalized actions [H, A] of the ids [K] of one chunk."""
    return decode(ids, actions).reshape(actions.horizon, actions.dimensions)


def unnormalize(normalized: ArrayLike, statistics: Statistics) -> Floats:
    """Actions [..., A] in the units of the robot; where the mask is False they pass unchanged."""
    values = np.asarray(normalized, np.float64)
    low, high = np.asarray(statistics.low), np.asarray(statistics.high)
    return np.where(_mask(statistics.mask, low), 0.5 * (values + 1) * (high - low) + low, values)


def normalize(actions: ArrayLike, statistics: Statistics) -> Floats:
    """What a policy is trained on for actions [..., A] in the units of the robot, in -1 to 1."""
    return _normalize(actions, statistics.low, statistics.high, statistics.mask)


def normalize_state(state: ArrayLike, statistics: Statistics) -> Floats:
    """The state [..., S] as the policy takes it, clipped to -1 and 1."""
    return _normalize(state, statistics.state_low, statistics.state_high, statistics.state_mask)


def choose(statistics: Mapping[str, Statistics], key: str | None = None) -> Statistics:
    """The statistics named `key`, or the only ones. Raises ValueError with one line."""
    names = ', '.join(list(statistics)[:_NAMED]) + (
        f' and {len(statistics) - _NAMED} more' if len(statistics) > _NAMED else '')
    if not statistics:
        raise ValueError('unnorm_key: the checkpoint has no statistics: neither norm_stats in its '
                         'config.json nor a dataset_statistics.json; copy that file beside it')
    if key is None:
        if len(statistics) > 1:
            raise ValueError(f'unnorm_key: missing: the checkpoint was trained on more than one '
                             f'dataset; name one of {names}')
        return next(iter(statistics.values()))
    if key not in statistics:
        near = get_close_matches(key, list(statistics), 1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise ValueError(f'unnorm_key: {key!r}: allowed are {names}{hint}')
    return statistics[key]


def _normalize(values: ArrayLike, low: tuple[float, ...], high: tuple[float, ...],
               mask: tuple[bool, ...]) -> Floats:
    given = np.asarray(values, np.float64)
    lowest, highest = np.asarray(low), np.asarray(high)
    scaled = 2.0 * (given - lowest) / (highest - lowest + _TINY) - 1.0
    return np.clip(np.where(_mask(mask, lowest), scaled, given), -1.0, 1.0)


def _mask(mask: tuple[bool, ...], like: Floats) -> NDArray[Any]:
    """An empty mask is one of True only."""
    return np.asarray(mask, bool) if mask else np.ones(like.shape, bool)
