"""Bins, ids and units, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.policies.openvla.actions import (
    centers,
    choose,
    chunk,
    decode,
    edges,
    encode,
    normalize,
    normalize_state,
    unnormalize,
)
from vla_ros.policies.openvla.config import Actions, Statistics

LLAMA = Actions()  # 256 bins below id 32000
# Of a made-up dataset: powers of two, so that all is exact.
STATISTICS = Statistics(low=(-0.5, -1.0, 0.0), high=(0.5, 3.0, 1.0), mask=(True, True, False),
                        state_low=(-2.0, 0.0), state_high=(2.0, 4.0))


def test_edges_and_centers_are_those_of_the_published_policy() -> None:
    assert len(edges(256)) == 256
    assert len(centers(256)) == 255
    assert edges(256)[[0, 255]].tolist() == [-1.0, 1.0]
    # -1 + 1/255 and its mirror image; the middle one is 0.
    np.testing.assert_allclose(centers(256)[[0, 127, 254]], [-254 / 255, 0.0, 254 / 255],
                               atol=1e-15)


@pytest.mark.parametrize(('value', 'number'), [
    (-1.0, 31999), (-0.999, 31999), (-254 / 255, 31999), (-0.9921, 31998), (0.0, 31872),
    (0.99, 31746), (0.9999, 31745), (1.0, 31744), (-7.0, 31999), (7.0, 31744), (np.inf, 31744)])
def test_a_value_becomes_the_id_that_the_reference_gives(value: float, number: int) -> None:
    assert encode(value, LLAMA) == number


@pytest.mark.parametrize(('number', 'value'), [
    (31999, -254 / 255), (31998, -252 / 255), (31872, 0.0), (31871, 2 / 255), (31745, 254 / 255),
    (31744, 254 / 255),  # there is one id more than there are centers
    (0, 254 / 255), (31743, 254 / 255), (32000, -254 / 255), (32063, -254 / 255)])
def test_an_id_becomes_the_value_that_the_reference_gives(number: int, value: float) -> None:
    assert decode(number, LLAMA) == pytest.approx(value, abs=1e-15)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1), st.integers(2, 300))
def test_a_value_comes_back_within_half_a_bin(values: list[float], bins: int) -> None:
    actions = Actions(bins=bins, top=1000)
    ids = encode(values, actions)
    assert ids.min() >= actions.first
    assert ids.max() < actions.top
    assert np.abs(decode(ids, actions) - values).max() <= 1 / (bins - 1) + 1e-12


def test_a_chunk_is_step_by_step() -> None:
    actions = Actions(dimensions=2, horizon=3, bins=5, top=20)  # centers -0.75, -0.25, 0.25, 0.75
    assert chunk([19, 18, 17, 16, 15, 19], actions).tolist() == [
        [-0.75, -0.25], [0.25, 0.75], [0.75, -0.75]]


def test_actions_get_their_units_but_where_the_mask_is_false() -> None:
    found = unnormalize([[-1.0, -1.0, -1.0], [0.0, 0.5, 0.25], [1.0, 1.0, 0.75]], STATISTICS)
    assert found.tolist() == [[-0.5, -1.0, -1.0], [0.0, 2.0, 0.25], [0.5, 3.0, 0.75]]


def test_a_missing_mask_is_true_everywhere() -> None:
    found = unnormalize([0.0, 0.0, 0.0], replace(STATISTICS, mask=()))
    assert found.tolist() == [0.0, 1.0, 0.5]


def test_an_action_of_the_published_policy_is_exact() -> None:
    """The first dimension of bridge_orig, quantiles as published, computed in fractions."""
    low, high = -0.02872725307941437, 0.028309678435325586
    found = unnormalize(decode([31900], LLAMA), Statistics((low,), (high,), (True,)))
    center = (2 * 99 + 1) / 255 - 1  # bin 99
    assert found[0] == pytest.approx((center + 1) / 2 * (high - low) + low, rel=1e-14)


def test_what_a_policy_is_trained_on_is_the_inverse_within_the_range() -> None:
    normalized = np.array([[-1.0, 0.25, 0.5], [1.0, -1.0, -0.5]])
    np.testing.assert_allclose(normalize(unnormalize(normalized, STATISTICS), STATISTICS),
                               normalized, atol=1e-7)
    assert normalize([9.0, -9.0, 0.5], STATISTICS).tolist() == [1.0, -1.0, 0.5]


def test_the_state_is_normalized_and_clipped() -> None:
    found = normalize_state([[-2.0, 3.0], [1.0, 99.0]], STATISTICS)
    # The divisor has 1e-8 on top.
    assert found[0].tolist() == [-1.0, 2 * 3.0 / (4.0 + 1e-8) - 1]
    assert found[1].tolist() == [2 * 3.0 / (4.0 + 1e-8) - 1, 1.0]


def test_a_state_that_never_moved_stays_finite() -> None:
    still = Statistics((), (), (), state_low=(0.5,), state_high=(0.5,))
    assert normalize_state([0.5], still).tolist() == [-1.0]
    assert normalize_state([0.6], still).tolist() == [1.0]


def test_a_masked_state_passes_clipped_only() -> None:
    masked = replace(STATISTICS, state_mask=(False, True))
    assert normalize_state([0.25, 0.0], masked).tolist() == [0.25, -1.0]
    assert normalize_state([-5.0, 0.0], masked).tolist() == [-1.0, -1.0]


def test_the_only_statistics_need_no_name() -> None:
    assert choose({'bridge_orig': STATISTICS}) is STATISTICS
    assert choose({'a': STATISTICS, 'b': replace(STATISTICS, mask=())}, 'a') is STATISTICS


@pytest.mark.parametrize(('names', 'key', 'line'), [
    ((), None, 'unnorm_key: the checkpoint has no statistics'),
    (('bridge_orig', 'fractal'), None, 'name one of bridge_orig, fractal'),
    (('bridge_orig', 'fractal'), 'bridge', "unnorm_key: 'bridge': allowed are bridge_orig, "
                                           "fractal; did you mean 'bridge_orig'?"),
    (('bridge_orig',), 'x', "unnorm_key: 'x': allowed are bridge_orig"),
    (tuple(f'd{i}' for i in range(100)), None, 'd39 and 60 more'),
])
def test_statistics_that_cannot_be_chosen_are_told_in_one_line(
        names: tuple[str, ...], key: str | None, line: str) -> None:
    with pytest.raises(ValueError) as caught:
        choose(dict.fromkeys(names, STATISTICS), key)
    assert line in str(caught.value)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(('changes', 'line'), [
    ({'high': (0.5, 3.0)}, 'high: 2 numbers'),
    ({'mask': (True,)}, 'mask: 1 entries'),
    ({'low': (float('nan'), 0.0, 0.0)}, 'low: nan'),
    ({'state_high': (2.0, float('inf'))}, 'state_high: inf'),
    ({'high': (0.5, -3.0, 1.0)}, r'high\[1\]: -3.0: allowed is at least low\[1\], -1.0'),
])
def test_statistics_that_make_no_sense_are_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line):
        replace(STATISTICS, **changes)


def test_a_range_that_the_mask_leaves_out_may_be_anything() -> None:
    assert unnormalize([0.0, 0.0, 0.25], replace(STATISTICS, high=(0.5, 3.0, -9.0)))[2] == 0.25
