"""The fixed rate: deadlines on a clock of the test's own, and what is recorded of them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from vla_ros.ros.pacing import Pacer, TickRecorder, raise_priority

PERIOD_NS = 20_000_000
needs_fifo = pytest.mark.skipif(
    not hasattr(os, 'sched_setscheduler'), reason='this system has no SCHED_FIFO')


class Clock:
    """Time moves only when the pacer serves callbacks, by what it allows times `slowness`."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.slowness = 1.0
        self.allowed_s: list[float] = []

    def __call__(self) -> int:
        return self.now_ns

    def serve(self, seconds: float) -> None:
        self.allowed_s.append(seconds)
        self.now_ns += max(1, round(seconds * 1e9 * self.slowness))


def test_time_before_a_deadline_is_served_but_for_a_quiet_rest() -> None:
    clock = Clock()
    pacer = Pacer(PERIOD_NS, clock)
    pacer.wait(clock.serve)
    assert len(clock.allowed_s) == 1
    assert 0.018 < clock.allowed_s[0] < 0.02
    assert (pacer.ticks, pacer.missed) == (1, 0)


def test_callbacks_are_served_again_while_there_is_time() -> None:
    clock = Clock()
    clock.slowness = 0.5
    Pacer(PERIOD_NS, clock).wait(clock.serve)
    assert len(clock.allowed_s) > 2
    assert clock.allowed_s == sorted(clock.allowed_s, reverse=True)


def test_a_missed_deadline_is_counted_and_skipped_and_the_grid_stays() -> None:
    clock = Clock()
    pacer = Pacer(PERIOD_NS, clock)
    begin_ns = clock.now_ns
    clock.slowness = 3.2  # one callback takes 62 ms
    elapsed_ns = pacer.wait(clock.serve)
    assert elapsed_ns == clock.now_ns - begin_ns
    assert (pacer.ticks, pacer.missed) == (1, 2)
    clock.slowness = 1.0
    pacer.wait(clock.serve)
    quiet_ns = begin_ns + 4 * PERIOD_NS - clock.now_ns
    assert 0 < quiet_ns < 2_000_000  # the next multiple of the period, no tick in between
    assert (pacer.ticks, pacer.missed) == (2, 2)


def test_a_late_tick_is_not_a_missed_one() -> None:
    clock = Clock()
    pacer = Pacer(PERIOD_NS, clock)
    clock.slowness = 1.9
    pacer.wait(clock.serve)
    clock.slowness = 1.0
    pacer.wait(clock.serve)
    assert (pacer.ticks, pacer.missed) == (2, 0)


def test_recorded_ticks_are_written_in_order(tmp_path: Path) -> None:
    recorder = TickRecorder(tmp_path / 'ticks.npy', capacity=3)
    for _ in range(4):
        recorder.add()
    recorder.write()
    times = np.load(tmp_path / 'ticks.npy')
    assert times.dtype == np.int64
    assert len(times) == 3
    assert (np.diff(times) >= 0).all()
    assert times[0] > 0


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r'nowhere/ticks\.npy'):
        TickRecorder(tmp_path / 'nowhere' / 'ticks.npy')


@needs_fifo
def test_a_refused_priority_says_how_to_allow_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, 'Operation not permitted')
    monkeypatch.setattr(os, 'sched_getscheduler', lambda thread: os.SCHED_OTHER)
    monkeypatch.setattr(os, 'sched_setscheduler', refuse)
    notice = raise_priority()
    assert 'Operation not permitted' in notice
    assert 'ulimit -r 50' in notice


@needs_fifo
def test_the_calling_thread_comes_before_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[int, int] = {}

    def note(thread: int, policy: int, parameter: os.sched_param) -> None:
        assert policy == os.SCHED_FIFO
        given[thread] = parameter.sched_priority

    monkeypatch.setattr(os, 'sched_getscheduler', lambda thread: os.SCHED_OTHER)
    monkeypatch.setattr(os, 'sched_setscheduler', note)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert raise_priority(30) == ''
    finally:
        done.set()
        other.join()
    assert given[threading.get_native_id()] == 30
    assert given[other.native_id] == 29


@needs_fifo
def test_a_priority_that_the_process_was_started_with_stays(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        pytest.fail('the priority was changed')
    monkeypatch.setattr(os, 'sched_getscheduler', lambda thread: os.SCHED_RR)
    monkeypatch.setattr(os, 'sched_setscheduler', fail)
    assert raise_priority() == ''
