"""The gripper map, hysteresis and dwell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.gripper import GripperMap, GripperState


@given(st.floats(-10, 10).filter(lambda v: abs(v) > 0.01), st.floats(-5, 5), st.booleans(),
       st.floats(-2, 2))
def test_unmapped_undoes_mapped(scale: float, offset: float, invert: bool, value: float) -> None:
    gripper = GripperMap(scale, offset, invert)
    assert gripper.unmapped(gripper.mapped(value)) == pytest.approx(value, abs=1e-6)


def test_invert_comes_before_scale_and_offset() -> None:
    assert GripperMap(scale=0.08, offset=0.01, invert=True).mapped(0.25) == pytest.approx(0.07)


def test_the_first_value_is_taken_whatever_it_is() -> None:
    gripper = GripperMap(hysteresis=0.5, minimum_dwell_ns=10**9)
    assert GripperState(0.0).moved(0.1, 5, gripper) == GripperState(0.1, 5)


def test_a_change_must_exceed_the_hysteresis() -> None:
    gripper, state = GripperMap(hysteresis=0.25), GripperState(0.5, 0)
    assert state.moved(0.75, 100, gripper) is state
    assert state.moved(0.7500001, 100, gripper).value == 0.7500001


def test_a_change_waits_for_the_dwell_and_then_comes() -> None:
    gripper, state = GripperMap(minimum_dwell_ns=100), GripperState(0.0, 1000)
    assert state.moved(1.0, 1099, gripper) is state
    assert state.moved(1.0, 1100, gripper) == GripperState(1.0, 1100)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 50)), min_size=1, max_size=40))
def test_changes_lie_a_dwell_apart_and_are_larger_than_the_hysteresis(
        asked: list[tuple[float, int]]) -> None:
    gripper = GripperMap(hysteresis=0.2, minimum_dwell_ns=60)
    state, now, changes = GripperState(asked[0][0]), 0, []
    for value, later in asked:
        now += later
        after = state.moved(value, now, gripper)
        if state.changed_ns is not None and after is not state:
            changes.append((now - state.changed_ns, abs(after.value - state.value)))
        state = after
    assert all(apart >= 60 and size > 0.2 for apart, size in changes)


@pytest.mark.parametrize(('values', 'message'), [
    ({'scale': 0.0}, 'scale 0'), ({'scale': float('nan')}, 'finite'),
    ({'offset': float('inf')}, 'finite'), ({'hysteresis': -0.1}, 'must not be negative'),
    ({'minimum_dwell_ns': -1}, 'must not be negative')])
def test_a_map_that_makes_no_sense_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GripperMap(**values)  # type: ignore[arg-type]
