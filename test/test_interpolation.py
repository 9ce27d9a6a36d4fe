"""Reading a plan by the clock: each kind as it is meant, nothing outside its time."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import dimension, quaternion_spec, spec_of
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.action_spec import ActionSpec, Group, Kind
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.types import Floats, Plan

ALL = ActionSpec((
    dimension('p', Kind.POSITION), dimension('v', Kind.VELOCITY), dimension('d', Kind.DELTA),
    dimension('g', Kind.GRIPPER, Group.GRIPPER)))

tables = st.integers(1, 6).flatmap(lambda n: st.lists(
    st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=n, max_size=n).map(np.array))
periods = st.integers(1, 10**9)
starts = st.integers(-10**12, 10**18)


@given(tables, periods, starts, st.integers(-3 * 10**9, 9 * 10**9))
def test_a_step_is_valid_exactly_in_its_window(
        values: Floats, period: int, start: int, offset: int) -> None:
    plan = Plan(start, start, period, values)
    result = Interpolator(ALL).at(plan, start + offset)
    inside = 0 <= offset < len(values) * period
    assert (result is not None) == inside
    assert (start + offset < plan.end_ns) or result is None
    if result is not None:
        step = offset // period
        np.testing.assert_array_equal(result[1:], values[step, 1:])


@given(tables, periods, starts)
def test_the_edges_of_a_plan_are_exact_to_the_nanosecond(
        values: Floats, period: int, start: int) -> None:
    plan, read = Plan(start, start, period, values), Interpolator(ALL).at
    assert read(plan, start - 1) is None
    assert read(plan, plan.end_ns) is None
    np.testing.assert_array_equal(read(plan, start), values[0])
    last = read(plan, plan.end_ns - 1)
    np.testing.assert_array_equal(last, values[-1])


@given(tables, st.floats(0.0, 0.999))
def test_a_position_goes_linearly_to_the_next_step_and_stays_at_the_last(
        values: Floats, fraction: float) -> None:
    period = 1_000_000
    plan = Plan(0, 0, period, values)
    within_ns = int(fraction * period)
    for i in range(len(values)):
        result = Interpolator(ALL).at(plan, i * period + within_ns)
        assert result is not None
        after = values[min(i + 1, len(values) - 1), 0]
        share = within_ns / period
        assert result[0] == pytest.approx((1 - share) * values[i, 0] + share * after, abs=1e-12)


@given(tables, st.floats(0.0, 0.999))
def test_nothing_is_ever_outside_the_values_of_the_plan(values: Floats, share: float) -> None:
    plan = Plan(0, 0, 1000, values)
    result = Interpolator(ALL).at(plan, int(share * plan.end_ns))
    assert result is not None
    assert np.all(result >= values.min(axis=0) - 1e-12)
    assert np.all(result <= values.max(axis=0) + 1e-12)


@given(st.lists(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(
    lambda q: np.linalg.norm(q) > 0.1), min_size=1, max_size=4), st.floats(0.0, 0.999))
def test_a_quaternion_keeps_unit_norm(rows: list[list[float]], share: float) -> None:
    values = np.array([np.array(q) / np.linalg.norm(q) for q in rows])
    plan = Plan(0, 0, 1000, values)
    result = Interpolator(quaternion_spec()).at(plan, int(share * plan.end_ns))
    assert result is not None
    assert np.linalg.norm(result) == pytest.approx(1.0, abs=1e-12)


def test_setpoint_gives_a_delta_per_second_and_leaves_the_rest() -> None:
    plan = Plan(0, 0, 200_000_000, np.array([[1.0, 2.0, 3.0, 0.5]]))
    np.testing.assert_allclose(Interpolator(ALL).setpoint(plan, 0), [1.0, 2.0, 15.0, 0.5])
    assert Interpolator(ALL).setpoint(plan, 200_000_000) is None


def test_reading_a_plan_does_not_change_it() -> None:
    values = np.arange(8.0).reshape(2, 4)
    plan = Plan(0, 0, 1000, values.copy())
    result = Interpolator(ALL).setpoint(plan, 500)
    assert result is not None
    result[:] = 99.0
    np.testing.assert_array_equal(plan.values, values)


def test_rows_outside_the_plan_are_marked() -> None:
    plan = Plan(0, 0, 10, np.zeros((2, 1)))
    _, valid = Interpolator(spec_of(Kind.POSITION)).resample(
        plan, np.array([-1, 0, 19, 20], dtype=np.int64))
    assert valid.tolist() == [False, True, True, False]
