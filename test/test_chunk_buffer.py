"""Splicing chunks by time: no jump at the seam, and whatever is new gets in."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS, dimension, quaternion_spec, spec_of
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.action_spec import ActionSpec, Group, Kind
from vla_ros.core.chunk_buffer import ChunkBuffer, stretch
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.merging import Merge
from vla_ros.core.padding import pad
from vla_ros.core.types import ActionChunk, Floats, Plan

PERIOD = 200 * MS
POSITION = spec_of(Kind.POSITION)
FLOW = spec_of(Kind.VELOCITY, Kind.DELTA)
ALL = ActionSpec((
    dimension('p', Kind.POSITION), dimension('v', Kind.VELOCITY), dimension('d', Kind.DELTA),
    dimension('g', Kind.GRIPPER, Group.GRIPPER)))


def chunk(values: object, stamp_ns: int, start_ns: int | None = None) -> ActionChunk:
    return ActionChunk(stamp_ns, stamp_ns if start_ns is None else start_ns, PERIOD,
                       np.array(values, dtype=np.float64))


def flat(value: float, steps: int, size: int = 1) -> Floats:
    return np.full((steps, size), value)


def table(steps: int) -> st.SearchStrategy[Floats]:
    return st.lists(st.floats(-5, 5), min_size=steps, max_size=steps).map(
        lambda v: np.array(v)[:, None])


# --- what is dropped ---

def test_the_plan_begins_with_the_step_of_now() -> None:
    buffer = ChunkBuffer(POSITION)
    plan = buffer.merge(chunk([[0.0], [1.0], [2.0], [3.0]], 0), 2 * PERIOD + 7).plan
    assert plan is not None
    assert plan.start_ns == 2 * PERIOD
    assert plan.values[:, 0].tolist() == [2.0, 3.0]
    assert plan.stamp_ns == 0


def test_an_older_chunk_is_dropped_and_the_plan_stays() -> None:
    buffer = ChunkBuffer(POSITION)
    kept = buffer.merge(chunk(flat(1.0, 4), 100), 100).plan
    merged = buffer.merge(chunk(flat(2.0, 4), 99), 100)
    assert merged.plan is None
    assert 'older' in merged.dropped
    assert buffer.plan is kept


def test_a_chunk_whose_steps_are_all_past_is_dropped() -> None:
    buffer = ChunkBuffer(POSITION)
    assert 'past' in buffer.merge(chunk(flat(1.0, 4), 0), 4 * PERIOD).dropped
    assert buffer.plan is None
    assert buffer.merge(chunk(flat(1.0, 4), 0), 4 * PERIOD - 1).plan is not None


def test_cleared_buffer_starts_fresh() -> None:
    for merge in Merge:
        buffer = ChunkBuffer(POSITION, merge)
        buffer.merge(chunk(flat(1.0, 4), 0), 0)
        buffer.clear()
        assert buffer.remaining_ns(0) == 0
        plan = buffer.merge(chunk(flat(9.0, 4), PERIOD), PERIOD).plan
        assert plan is not None
        np.testing.assert_array_equal(plan.values, flat(9.0, 4))


def test_an_exhausted_plan_leaves_no_trace_in_the_next() -> None:
    buffer = ChunkBuffer(POSITION)
    buffer.merge(chunk(flat(1.0, 2), 0), 0)
    plan = buffer.merge(chunk(flat(9.0, 4), 2 * PERIOD), 2 * PERIOD).plan
    assert plan is not None
    np.testing.assert_array_equal(plan.values, flat(9.0, 4))


def test_remaining_time_never_goes_below_zero() -> None:
    buffer = ChunkBuffer(POSITION)
    buffer.merge(chunk(flat(1.0, 2), 0), 0)
    assert buffer.remaining_ns(PERIOD) == PERIOD
    assert buffer.remaining_ns(5 * PERIOD) == 0


# --- the seam ---

@given(table(6), table(6), st.integers(0, 3 * PERIOD), st.floats(0.0, 0.999999), st.integers(1, 4))
def test_the_position_does_not_jump_at_the_seam_at_any_moment(
        old: Floats, new: Floats, stamp: int, late: float, fade: int) -> None:
    buffer = ChunkBuffer(POSITION, fade_steps=fade)
    before = buffer.merge(chunk(old, 0), 0).plan
    now = stamp + int(late * 2 * PERIOD)
    after = buffer.merge(chunk(new, stamp), now).plan
    assert before is not None
    assert after is not None
    read = Interpolator(POSITION).at
    was, is_now = read(before, now), read(after, now)
    assert was is not None
    assert is_now is not None
    assert abs(is_now - was)[0] < 1e-6


@given(table(6), table(6), st.floats(0.0, 0.999999), st.floats(0.0, 0.2))
def test_the_position_moves_on_from_the_seam_without_a_kick(
        old: Floats, new: Floats, late: float, soon: float) -> None:
    buffer = ChunkBuffer(POSITION)
    buffer.merge(chunk(old, 0), 0)
    now = PERIOD + int(late * PERIOD)
    before, after = buffer.plan, buffer.merge(chunk(new, PERIOD // 2), now).plan
    assert before is not None
    assert after is not None
    read = Interpolator(POSITION).at
    start, then = read(after, now), read(after, now + int(soon * PERIOD))
    assert start is not None
    assert then is not None
    # All values lie within 10 of one another, so no honest line is steeper than a few of that.
    assert abs(then - start)[0] <= 25.0 * soon + 1e-6


@given(table(6), st.integers(1, 4))
def test_a_fade_is_over_after_its_steps(new: Floats, fade: int) -> None:
    buffer = ChunkBuffer(POSITION, fade_steps=fade)
    buffer.merge(chunk(flat(3.0, 12), 0), 0)
    plan = buffer.merge(chunk(new, PERIOD), PERIOD).plan
    assert plan is not None
    np.testing.assert_allclose(plan.values[fade:], new[fade:], atol=1e-12)
    for i in range(min(fade, 6)):
        assert plan.values[i, 0] == pytest.approx(3.0 + i / fade * (new[i, 0] - 3.0))


def test_steps_that_the_old_plan_does_not_reach_are_all_new() -> None:
    buffer = ChunkBuffer(POSITION, fade_steps=10)
    buffer.merge(chunk(flat(0.0, 2), 0), 0)
    plan = buffer.merge(chunk(flat(1.0, 4), PERIOD), PERIOD).plan
    assert plan is not None
    np.testing.assert_allclose(plan.values[1:], flat(1.0, 3))


@pytest.mark.parametrize('horizon', [1, 2, 4, 8])
@pytest.mark.parametrize('every', [0.1, 0.5, 0.99, 1.0])
@pytest.mark.parametrize('delay', [0.0, 0.25, 0.9])
@pytest.mark.parametrize('merge', [m for m in Merge if m is not Merge.TEMPORAL_ENSEMBLE])
def test_replanning_all_the_time_still_gets_to_what_is_new(
        horizon: int, every: float, delay: float, merge: Merge) -> None:
    buffer = ChunkBuffer(ALL, merge)
    buffer.merge(chunk(flat(0.0, horizon, 4), 0), 0)
    now = 0
    for k in range(1, round(12 / every)):
        stamp = int(k * every * PERIOD)
        now = stamp + int(delay * PERIOD)
        buffer.merge(chunk(flat(1.0, horizon, 4), stamp), now)
    assert buffer.plan is not None
    played = Interpolator(ALL).at(buffer.plan, now)
    np.testing.assert_allclose(played, np.ones(4), atol=0.02)


@pytest.mark.parametrize('merge', [m for m in Merge if m is not Merge.TEMPORAL_ENSEMBLE])
def test_short_remainders_of_late_chunks_get_in_too(merge: Merge) -> None:
    buffer = ChunkBuffer(ALL, merge)
    buffer.merge(chunk(flat(0.0, 4, 4), 0), 0)
    now = 0
    for k in range(1, 40):
        stamp = int(k * 0.3 * PERIOD)
        now = stamp + int(3.5 * PERIOD)
        assert buffer.merge(chunk(flat(1.0, 4, 4), stamp), now).plan is not None
    assert buffer.plan is not None
    np.testing.assert_allclose(Interpolator(ALL).at(buffer.plan, now), np.ones(4), atol=0.02)


def test_the_only_step_of_a_one_step_policy_is_played_as_it_is() -> None:
    buffer = ChunkBuffer(ALL)
    for k in range(4):
        now = int(k * 0.4 * PERIOD)
        plan = buffer.merge(chunk(flat(float(k), 1, 4), now - 30 * MS, now), now).plan
        assert plan is not None
        assert plan.start_ns == now
        np.testing.assert_array_equal(plan.values, flat(float(k), 1, 4))


def test_a_gripper_takes_its_newest_value_at_once() -> None:
    buffer = ChunkBuffer(ALL)
    buffer.merge(chunk(flat(0.0, 6, 4), 0), 0)
    plan = buffer.merge(chunk(flat(1.0, 6, 4), PERIOD), PERIOD + PERIOD // 3).plan
    assert plan is not None
    np.testing.assert_array_equal(plan.values[:, 3], np.ones(6))


def test_the_seam_tells_how_far_apart_old_and_new_were() -> None:
    buffer = ChunkBuffer(POSITION)
    assert buffer.merge(chunk(flat(1.0, 6), 0), 0).seam is None
    seam = buffer.merge(chunk(flat(3.5, 6), PERIOD), PERIOD + PERIOD // 2).seam
    assert seam is not None
    assert seam.offered[0] == pytest.approx(2.5)
    assert seam.left[0] == pytest.approx(0.0, abs=1e-9)


def test_a_quaternion_plan_keeps_unit_norm_through_every_merge() -> None:
    spec = quaternion_spec()
    rng = np.random.default_rng(7)
    for merge in Merge:
        buffer = ChunkBuffer(spec, merge)
        for k in range(10):
            values = rng.normal(size=(5, 4))
            values /= np.linalg.norm(values, axis=1, keepdims=True)
            stamp = int(k * 0.7 * PERIOD)
            plan = buffer.merge(chunk(values, stamp), stamp + PERIOD // 3).plan
            assert plan is not None
            np.testing.assert_allclose(np.linalg.norm(plan.values, axis=1), 1.0, atol=1e-9)


@pytest.mark.parametrize('merge', Merge)
def test_a_fade_that_is_asked_for_comes_whatever_the_merge_policy(merge: Merge) -> None:
    buffer = ChunkBuffer(POSITION, merge)
    buffer.merge(chunk(flat(0.0, 8), 0), 0)
    plan = buffer.merge(chunk(flat(1.0, 8), PERIOD), PERIOD, fade=True).plan
    assert plan is not None
    np.testing.assert_allclose(plan.values[:, 0], [0.0, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])


def test_after_a_fade_an_ensemble_hears_no_predictions_from_before_it() -> None:
    buffer = ChunkBuffer(POSITION, Merge.TEMPORAL_ENSEMBLE)
    for k in range(3):
        buffer.merge(chunk(flat(-9.0, 8), k * PERIOD), k * PERIOD)
    buffer.merge(chunk(flat(1.0, 8), 3 * PERIOD), 3 * PERIOD, fade=True)
    plan = buffer.merge(chunk(flat(1.0, 8), 5 * PERIOD), 5 * PERIOD).plan
    assert plan is not None
    np.testing.assert_allclose(plan.values, flat(1.0, 8))


def test_merging_does_not_write_into_the_chunk_or_the_old_plan() -> None:
    for merge in Merge:
        buffer = ChunkBuffer(ALL, merge)
        first, second = chunk(flat(0.0, 6, 4), 0), chunk(flat(1.0, 6, 4), PERIOD)
        old = buffer.merge(first, 0).plan
        assert old is not None
        kept = old.values.copy()
        buffer.merge(second, PERIOD + 1)
        np.testing.assert_array_equal(first.actions, flat(0.0, 6, 4))
        np.testing.assert_array_equal(second.actions, flat(1.0, 6, 4))
        np.testing.assert_array_equal(old.values, kept)


def test_a_fade_of_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match='fade_steps: 0: at least 1'):
        ChunkBuffer(POSITION, fade_steps=0)


# --- slower, and longer ---

@given(st.integers(1, 8), st.floats(0.5, 1.0), st.data())
def test_stretching_keeps_the_way_of_what_flows(
        steps: int, rate: float, data: st.DataObject) -> None:
    actions = np.array(data.draw(st.lists(st.lists(st.floats(-2, 2), min_size=2, max_size=2),
                                          min_size=steps, max_size=steps)))
    slow = stretch(ActionChunk(0, 0, PERIOD, actions), rate, FLOW)
    way = np.vstack([np.zeros(2), np.cumsum(actions, axis=0)])
    reached = np.cumsum(slow.actions, axis=0)
    for i, row in enumerate(reached):
        local = (i + 1) * rate
        wanted = [np.interp(local, np.arange(steps + 1), way[:, c]) for c in (0, 1)]
        np.testing.assert_allclose(row, wanted, atol=1e-9)
    assert len(slow.actions) == int(np.floor(steps / rate + 1e-9))


@given(table(5), st.floats(0.5, 1.0))
def test_stretching_keeps_positions_on_the_same_path(actions: Floats, rate: float) -> None:
    slow = stretch(ActionChunk(0, 0, PERIOD, actions), rate, POSITION)
    read, plan = Interpolator(POSITION).at, Plan(0, 0, PERIOD, actions)
    for i, row in enumerate(slow.actions):
        wanted = read(plan, round(i * rate * PERIOD))
        np.testing.assert_allclose(row, wanted, atol=1e-9)


def test_stretching_by_half_doubles_the_steps_and_halves_what_flows() -> None:
    slow = stretch(ActionChunk(0, 0, PERIOD, np.array([[1.0, 0.2], [3.0, 0.4]])), 0.5, FLOW)
    np.testing.assert_allclose(slow.actions, [[0.5, 0.1], [0.5, 0.1], [1.5, 0.2], [1.5, 0.2]])


def test_a_rate_of_one_changes_nothing() -> None:
    same = ActionChunk(3, 4, PERIOD, flat(0.1, 3, 2))
    assert stretch(same, 1.0, FLOW) is same


@pytest.mark.parametrize('rate', [0.49, 1.01, float('nan')])
def test_a_rate_out_of_range_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match='rate'):
        stretch(ActionChunk(0, 0, PERIOD, flat(0.1, 3, 2)), rate, FLOW)


def test_padding_keeps_places_and_stops_what_flows() -> None:
    spec = ActionSpec((*ALL.dimensions, dimension('r', Kind.RELATIVE)))
    padded = pad(np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [6.0, 7.0, 8.0, 9.0, 10.0]]), 4, spec)
    np.testing.assert_array_equal(padded[2:], [[6.0, 0.0, 0.0, 9.0, 10.0]] * 2)
    assert pad(padded, 3, spec) is padded
