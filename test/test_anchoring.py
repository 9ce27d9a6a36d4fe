"""Deltas and relative actions: made absolute once, at the state of the observation."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS, dimension, spec_of
from hypothesis import given
from hypothesis import strategies as st
from test_rotations import matrix_of_vector

from vla_ros.core.action_spec import ActionSpec, Group, Kind, Rotation
from vla_ros.core.anchoring import Anchoring
from vla_ros.core.chunk_buffer import ChunkBuffer
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.types import ActionChunk, Floats

NAMES = ('rx', 'ry', 'rz')


def rotation_spec(kind: Kind, rotation: Rotation) -> ActionSpec:
    return ActionSpec(tuple(
        dimension(name, kind, Group.ROTATION, rotation=rotation) for name in NAMES))


small = st.lists(st.floats(-0.9, 0.9), min_size=3, max_size=3).map(np.array)
chunks = st.lists(small, min_size=1, max_size=6).map(np.array)


@given(chunks, small)
def test_deltas_add_up_from_the_anchor(deltas: Floats, anchor: Floats) -> None:
    anchoring = Anchoring(spec_of(*[Kind.DELTA] * 3), {'d0', 'd1', 'd2'})
    absolute = anchoring.apply(deltas, anchor)
    assert len(absolute) == len(deltas) + 1
    for i in range(len(absolute)):
        np.testing.assert_allclose(absolute[i], anchor + deltas[:i].sum(axis=0), atol=1e-12)
    assert all(d.kind is Kind.POSITION for d in anchoring.planned.dimensions)


@given(chunks, small)
def test_relative_values_are_added_each_for_itself(values: Floats, anchor: Floats) -> None:
    absolute = Anchoring(spec_of(*[Kind.RELATIVE] * 3), ()).apply(values, anchor)
    np.testing.assert_allclose(absolute, anchor + values, atol=1e-12)


@given(chunks, small)
def test_euler_deltas_add_up_component_by_component(deltas: Floats, anchor: Floats) -> None:
    absolute = Anchoring(rotation_spec(Kind.DELTA, Rotation.EULER), NAMES).apply(deltas, anchor)
    np.testing.assert_allclose(absolute[0], anchor, atol=1e-12)
    np.testing.assert_allclose(absolute[1:], anchor + np.cumsum(deltas, axis=0), atol=1e-12)


@given(chunks, small)
def test_rotation_vectors_compose_in_the_fixed_frame(deltas: Floats, anchor: Floats) -> None:
    absolute = Anchoring(rotation_spec(Kind.DELTA, Rotation.VECTOR), NAMES).apply(deltas, anchor)
    wanted = matrix_of_vector(anchor)
    np.testing.assert_allclose(matrix_of_vector(absolute[0]), wanted, atol=1e-8)
    for delta, row in zip(deltas, absolute[1:], strict=True):
        wanted = matrix_of_vector(delta) @ wanted
        np.testing.assert_allclose(matrix_of_vector(row), wanted, atol=1e-8)


@given(chunks, small)
def test_relative_rotation_vectors_each_compose_with_the_anchor(
        values: Floats, anchor: Floats) -> None:
    absolute = Anchoring(rotation_spec(Kind.RELATIVE, Rotation.VECTOR), ()).apply(values, anchor)
    for value, row in zip(values, absolute, strict=True):
        np.testing.assert_allclose(matrix_of_vector(row),
                                   matrix_of_vector(value) @ matrix_of_vector(anchor), atol=1e-8)


def test_a_rotation_past_half_a_turn_goes_on_and_does_not_jump() -> None:
    anchoring = Anchoring(rotation_spec(Kind.DELTA, Rotation.VECTOR), NAMES)
    absolute = anchoring.apply(np.tile([0.0, 0.0, 0.2], (40, 1)), np.array([0.0, 0.0, 2.5]))
    np.testing.assert_allclose(absolute[:, 2], 2.5 + 0.2 * np.arange(41), atol=1e-9)


def test_other_dimensions_and_the_input_stay_as_they_are() -> None:
    spec = ActionSpec((dimension('a', Kind.DELTA), dimension('b', Kind.DELTA),
                       dimension('g', Kind.GRIPPER, Group.GRIPPER), dimension('v', Kind.VELOCITY)))
    actions = np.ones((3, 4))
    anchoring = Anchoring(spec, {'b'})
    absolute = anchoring.apply(actions, np.array([10.0]))
    assert anchoring.state_names == ('b',)
    np.testing.assert_array_equal(absolute[:3, [0, 2, 3]], np.ones((3, 3)))
    np.testing.assert_array_equal(absolute[3, [0, 2, 3]], [0.0, 1.0, 0.0])  # as padding is
    np.testing.assert_array_equal(absolute[:, 1], [10.0, 11.0, 12.0, 13.0])
    np.testing.assert_array_equal(actions, np.ones((3, 4)))


def test_a_delta_without_a_measured_state_is_refused_by_name() -> None:
    spec = ActionSpec((dimension('dx', Kind.DELTA, state=''),))
    with pytest.raises(ValueError, match="dimension 'dx'.*no measured state"):
        Anchoring(spec, {'dx'})


@given(st.lists(st.floats(-0.2, 0.2), min_size=4, max_size=4), st.floats(-1.0, 1.0),
       st.lists(st.integers(0, 799), min_size=1, max_size=5))
def test_a_delta_is_never_applied_twice_however_often_its_chunk_comes(
        deltas: list[float], anchor: float, replays: list[int]) -> None:
    spec = spec_of(Kind.DELTA)
    anchoring = Anchoring(spec, {'d0'})
    absolute = anchoring.apply(np.array(deltas)[:, None], np.array([anchor]))
    chunk = ActionChunk(0, 0, 200 * MS, absolute)
    buffer = ChunkBuffer(anchoring.planned)
    buffer.merge(chunk, 0)
    now = 0
    for now in sorted(replays):
        buffer.merge(chunk, now * MS)
    assert buffer.plan is not None
    reached = Interpolator(anchoring.planned).at(buffer.plan, 800 * MS)
    assert reached is not None
    assert reached[0] == pytest.approx(anchor + sum(deltas), abs=1e-9)
