"""The measured state: by name, interpolated, never extrapolated."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.state_history import StateHistory
from vla_ros.core.types import NS_PER_S, StateSample

T = 1_000 * NS_PER_S


def sample(stamp_ns: int, received_ns: int | None = None, **values: float) -> StateSample:
    return StateSample(stamp_ns, stamp_ns if received_ns is None else received_ns, tuple(values),
                       np.array(list(values.values()), dtype=np.float64))


def history(*names: str) -> StateHistory:
    return StateHistory(names or ('a', 'b'), age_limit_ns=500 * MS)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.0, 1.0))
def test_between_two_samples_lies_the_line(before: float, after: float, share: float) -> None:
    states = history('a')
    states.add(sample(T, a=before))
    states.add(sample(T + 100 * MS, a=after))
    stamp = T + int(share * 100 * MS)
    got = states.at(stamp)
    part = (stamp - T) / (100 * MS)
    assert got.values[0] == pytest.approx(before + part * (after - before), abs=1e-12)
    assert got.problem == ''


def test_after_the_newest_sample_it_holds_up_to_the_age_limit() -> None:
    states = history('a')
    states.add(sample(T, a=1.0))
    states.add(sample(T + MS, a=2.0))
    at_limit = states.at(T + 501 * MS)
    assert at_limit.values[0] == 2.0
    assert at_limit.oldest_ns == T + MS
    beyond = states.at(T + 501 * MS + 1)
    assert np.isnan(beyond.values[0])
    assert beyond.problem == 'the last state of a is 0.50 s old (limit 0.5 s)'
    assert states.at(T + 502 * MS, anyway=True).values[0] == 2.0


def test_a_missing_entry_is_named() -> None:
    states = history()
    states.add(sample(T, a=1.0))
    got = states.at(T)
    assert got.problem == 'b has not been received'
    assert not got.complete


def test_several_publishers_each_bring_a_part_in_any_order() -> None:
    states = history()
    states.add(sample(T + 20 * MS, b=2.0))
    assert states.add(sample(T, a=1.0, unknown=9.0)) == ''
    got = states.at(T + 20 * MS)
    assert got.values.tolist() == [1.0, 2.0]
    assert got.oldest_ns == T


@pytest.mark.parametrize('later', [0, -5])
def test_a_repeated_or_back_dated_stamp_is_dropped_and_named(later: int) -> None:
    states = history('a')
    states.add(sample(T, a=1.0))
    reason = states.add(sample(T + later, a=5.0))
    assert reason == 'joint state: stamp of a does not advance'
    assert states.dropped == {reason: 1}
    assert states.at(T).values[0] == 1.0


def test_a_value_that_is_no_number_is_dropped_alone() -> None:
    states = history()
    assert states.add(sample(T, a=float('nan'), b=2.0)) == 'joint state: a is not finite'
    assert states.at(T).values[1] == 2.0


@pytest.mark.parametrize(('offset_s', 'words'), [
    (-3600.0, '3600.0 s ahead of receipt'), (3600.0, '3600.0 s behind receipt')])
def test_a_clock_mismatch_is_named_and_does_not_shut_out_later_samples(
        offset_s: float, words: str) -> None:
    states = history('a')
    reason = states.add(sample(T, received_ns=T + int(offset_s * NS_PER_S), a=9.0))
    assert reason.startswith('joint state: clock mismatch')
    assert words in reason
    assert states.add(sample(T - 10 * NS_PER_S, a=1.0)) == ''
    assert states.at(T - 10 * NS_PER_S).values[0] == 1.0
    assert states.dropped == {'joint state: clock mismatch': 1}


def test_malformed_and_empty_samples_are_named() -> None:
    states = history()
    assert states.add(StateSample(T, T, ('a', 'b'), np.zeros(3))) == (
        'joint state: 2 names but 3 positions')
    assert states.add(StateSample(T, T, (), np.zeros(0))) == 'joint state: empty'


def test_memory_is_bounded_by_the_kept_time() -> None:
    states = StateHistory(('a',), 500 * MS, keep_ns=100 * MS)
    for k in range(1000):
        states.add(sample(T + k * MS, a=float(k)))
    assert np.isnan(states.at(T + 300 * MS).values[0])
    assert states.at(T + 899 * MS).values[0] == 899.0


def test_before_the_first_sample_the_first_stands_within_the_age_limit() -> None:
    states = history('a')
    states.add(sample(T, a=1.0))
    assert states.at(T - 400 * MS).values[0] == 1.0
    assert np.isnan(states.at(T - 600 * MS).values[0])


def test_cleared_history_knows_nothing() -> None:
    states = history('a')
    states.add(sample(T, a=1.0))
    states.clear()
    assert states.at(T).problem == 'a has not been received'
    assert states.add(sample(T - 1, a=3.0)) == ''
