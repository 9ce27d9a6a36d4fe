"""Latency windows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from core_rig import MS
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.latency import LatencyAccount, LatencyWindow


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=60), st.integers(1, 20))
def test_a_window_speaks_of_its_last_durations_only(durations: list[int], size: int) -> None:
    window = LatencyWindow(size)
    for duration in durations:
        window.add(duration)
    kept = np.array(durations[-size:]) / 1e9
    summary = window.summary()
    assert len(window) == summary.count == len(kept)
    assert window.total == len(durations)
    assert summary.max == kept.max()
    assert summary.p50 == pytest.approx(np.percentile(kept, 50))
    assert summary.p99 == pytest.approx(np.percentile(kept, 99))
    assert summary.p50 <= summary.p95 <= summary.p99 <= summary.max + 1e-12


@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=60), st.sampled_from([50, 95, 99]))
def test_a_percentile_is_a_duration_that_was_measured(durations: list[int], percent: int) -> None:
    window = LatencyWindow()
    for duration in durations:
        window.add(duration)
    assert window.percentile_ns(percent) == np.percentile(durations, percent, method='lower')


def test_one_outlier_among_few_does_not_move_the_95th_percentile() -> None:
    window = LatencyWindow()
    for duration in (50, 51, 52, 53, 3_000):
        window.add(duration)
    assert window.percentile_ns(95) == 53


def test_an_empty_window_says_nan_and_not_zero() -> None:
    window = LatencyWindow()
    assert window.summary().count == 0
    assert math.isnan(window.summary().p99)
    assert math.isnan(window.percentile_ns(95))


def test_an_account_keeps_its_stages_apart_and_knows_no_others() -> None:
    account = LatencyAccount(('infer', 'merge'))
    account.add(infer=30 * MS, merge=MS)
    account.add(infer=50 * MS)
    summaries = account.summaries()
    assert summaries['infer'].count == 2
    assert summaries['infer'].max == pytest.approx(0.05)
    assert summaries['merge'].count == 1
    with pytest.raises(KeyError):
        account.add(teleport=1)
