"""The named merge policies, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS, quaternion_spec, spec_of
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.action_spec import Kind
from vla_ros.core.chunk_buffer import ChunkBuffer
from vla_ros.core.merging import Merge, Mixer
from vla_ros.core.rotations import quaternion_from_vector
from vla_ros.core.types import ActionChunk, Floats

SPEC = spec_of(Kind.POSITION, Kind.DELTA, Kind.GRIPPER)
PERIOD = 100 * MS


def merged(merge: Merge, *chunks: tuple[int, Floats]) -> Floats:
    """Chunks with their stamps in periods, each merged at its stamp; the last plan."""
    buffer = ChunkBuffer(SPEC, merge)
    for step, actions in chunks:
        stamp = step * PERIOD
        plan = buffer.merge(ActionChunk(stamp, stamp, PERIOD, actions), stamp).plan
        assert plan is not None
    return plan.values


def rows(*values: tuple[float, float, float]) -> Floats:
    return np.array(values)


OLD = rows((1.0, 0.1, 0.0), (2.0, 0.2, 0.0), (3.0, 0.3, 0.0), (4.0, 0.4, 0.0))
NEW = rows((12.0, 1.2, 1.0), (13.0, 1.3, 1.0), (14.0, 1.4, 1.0), (15.0, 1.5, 1.0))


@pytest.mark.parametrize(('merge', 'share'), [
    (Merge.LATEST_ONLY, 1.0), (Merge.WEIGHTED_AVERAGE, 0.7), (Merge.AVERAGE, 0.5),
    (Merge.CONSERVATIVE, 0.3)])
def test_lerobot_aggregates_equal_times_and_takes_new_ones_whole(
        merge: Merge, share: float) -> None:
    values = merged(merge, (0, OLD), (1, NEW))
    overlap = [(1 - share) * o + share * n for o, n in zip(OLD[1:, 0], NEW[:, 0], strict=False)]
    np.testing.assert_allclose(values[:3, 0], overlap)
    assert values[3, 0] == 15.0
    deltas = [(1 - share) * o + share * n for o, n in zip(OLD[1:, 1], NEW[:, 1], strict=False)]
    np.testing.assert_allclose(values[:3, 1], deltas)


@pytest.mark.parametrize('merge', Merge)
def test_a_gripper_is_never_mixed(merge: Merge) -> None:
    np.testing.assert_array_equal(merged(merge, (0, OLD), (1, NEW))[:, 2], np.ones(4))


def test_temporal_ensemble_weighs_the_oldest_prediction_most_as_act_does() -> None:
    third = rows(*[(20.0 + i, 0.0, 0.5) for i in range(4)])
    values = merged(Merge.TEMPORAL_ENSEMBLE, (0, OLD), (1, NEW), (2, third))
    weights = np.exp(-0.01 * np.arange(3))
    # At period 2: the third step of OLD, the second of NEW, the first of the last chunk.
    assert values[0, 0] == pytest.approx(weights @ [3.0, 13.0, 20.0] / weights.sum())
    assert values[1, 0] == pytest.approx(weights @ [4.0, 14.0, 21.0] / weights.sum())
    # At period 4 OLD has ended, so NEW is the oldest that speaks.
    assert values[2, 0] == pytest.approx(weights[:2] @ [15.0, 22.0] / weights[:2].sum())
    assert values[3, 0] == 23.0


def test_the_ensemble_averages_predictions_and_not_earlier_averages() -> None:
    flat = [np.full((8, 3), float(k)) for k in range(5)]
    values = merged(Merge.TEMPORAL_ENSEMBLE, *[(k, flat[k]) for k in range(5)])
    weights = np.exp(-0.01 * np.arange(5))
    assert values[0, 0] == pytest.approx(weights @ np.arange(5.0) / weights.sum())


@given(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.booleans(), st.floats(0.0, 1.0))
def test_a_quaternion_is_mixed_on_the_shortest_way(
        first: float, second: float, flip: bool, share: float) -> None:
    mixer = Mixer(quaternion_spec())
    old = quaternion_from_vector(np.array([first, 0.0, 0.0]))
    new = quaternion_from_vector(np.array([second, 0.0, 0.0])) * (-1.0 if flip else 1.0)
    wanted = quaternion_from_vector(np.array([first + share * (second - first), 0.0, 0.0]))
    mixed = mixer.mix(old[None], new[None], np.array([share]))[0]
    assert abs(mixed @ wanted) == pytest.approx(1.0, abs=1e-9)
    speaks = np.array([True])
    blend = mixer.ensemble([old[None], new[None]], [speaks, speaks])[0]
    halfway = quaternion_from_vector(np.array([(first + second) / 2, 0.0, 0.0]))
    assert np.linalg.norm(blend) == pytest.approx(1.0)
    assert abs(blend @ halfway) == pytest.approx(1.0, abs=1e-3)


def test_mixing_changes_neither_side() -> None:
    old, new = OLD.copy(), NEW.copy()
    mixer, speaks = Mixer(SPEC), np.ones(4, dtype=bool)
    mixer.mix(old, new, np.full(4, 0.5))
    mixer.ensemble([old, new], [speaks, speaks])
    np.testing.assert_array_equal(old, OLD)
    np.testing.assert_array_equal(new, NEW)
