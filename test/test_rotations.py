"""Quaternions and rotation vectors, against rotation matrices written out independently."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vla_ros.core.rotations import (
    multiply,
    quaternion_from_vector,
    same_side,
    slerp,
    unwrapped,
    vector_from_quaternion,
)
from vla_ros.core.types import Floats


def matrix_of_vector(vector: Floats) -> Floats:
    """Rodrigues' formula."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3)
    x, y, z = vector / angle
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)


def matrix_of_quaternion(quaternion: Floats) -> Floats:
    x, y, z, w = quaternion
    return np.array([
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)]])


vectors = st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3).map(np.array)
unit = vectors.map(quaternion_from_vector)


@given(vectors)
def test_quaternion_of_a_vector_is_its_rotation(vector: Floats) -> None:
    quaternion = quaternion_from_vector(vector)
    assert np.linalg.norm(quaternion) == pytest.approx(1.0)
    np.testing.assert_allclose(
        matrix_of_quaternion(quaternion), matrix_of_vector(vector), atol=1e-12)


@given(vectors)
def test_vector_of_a_quaternion_turns_the_same_and_at_most_half_a_turn(vector: Floats) -> None:
    back = vector_from_quaternion(quaternion_from_vector(vector))
    assert np.linalg.norm(back) <= np.pi + 1e-9
    np.testing.assert_allclose(matrix_of_vector(back), matrix_of_vector(vector), atol=1e-9)


@given(vectors, vectors)
def test_product_is_the_product_of_the_matrices(a: Floats, b: Floats) -> None:
    product = multiply(quaternion_from_vector(a), quaternion_from_vector(b))
    np.testing.assert_allclose(
        matrix_of_quaternion(product), matrix_of_vector(a) @ matrix_of_vector(b), atol=1e-9)


@given(unit, unit, st.floats(0.0, 1.0))
def test_slerp_turns_evenly_on_the_shortest_way(a: Floats, b: Floats, share: float) -> None:
    middle = slerp(a, b, np.array(share))
    assert np.linalg.norm(middle) == pytest.approx(1.0)
    whole = np.arccos(np.clip(abs(a @ b), 0.0, 1.0))
    part = np.arccos(np.clip(abs(a @ middle), 0.0, 1.0))
    assert whole <= np.pi / 2 + 1e-9
    assert part == pytest.approx(share * whole, abs=1e-6)


@given(unit, unit)
def test_slerp_begins_and_ends_at_its_ends(a: Floats, b: Floats) -> None:
    ends = slerp(np.array([a, a]), np.array([b, b]), np.array([0.0, 1.0]))
    np.testing.assert_allclose(ends[0], a, atol=1e-12)
    np.testing.assert_allclose(matrix_of_quaternion(ends[1]), matrix_of_quaternion(b), atol=1e-9)


def test_slerp_of_a_rotation_with_itself_or_its_negative_stays() -> None:
    q = quaternion_from_vector(np.array([0.3, -0.2, 0.5]))
    for other in (q, -q):
        np.testing.assert_allclose(slerp(q, other, np.array(0.4)), q, atol=1e-12)


@given(unit, unit)
def test_same_side_is_the_nearer_of_the_two_signs(a: Floats, b: Floats) -> None:
    chosen = same_side(a, b)
    assert np.linalg.norm(chosen - b) <= np.linalg.norm(-chosen - b)
    np.testing.assert_allclose(matrix_of_quaternion(chosen), matrix_of_quaternion(a), atol=1e-12)


@given(vectors, st.integers(-2, 2), st.floats(-0.4, 0.4))
def test_unwrapped_follows_a_vector_through_whole_turns(
        vector: Floats, turns: int, further: float) -> None:
    angle = float(np.linalg.norm(vector))
    assume(angle > 0.1)
    axis = vector / angle
    near = axis * (angle + 2 * np.pi * turns)
    wanted = near + axis * further
    short = vector_from_quaternion(quaternion_from_vector(wanted))
    assume(np.linalg.norm(short) > 1e-4)
    np.testing.assert_allclose(unwrapped(short, near), wanted, atol=1e-6)


def test_no_rotation_near_a_whole_turn_is_the_whole_turn() -> None:
    near = np.array([0.0, 0.0, 2 * np.pi - 0.01])
    np.testing.assert_allclose(unwrapped(np.zeros(3), near), [0.0, 0.0, 2 * np.pi])
    np.testing.assert_array_equal(unwrapped(np.zeros(3), np.array([0.0, 0.1, 0.0])), np.zeros(3))
