"""The mailbox, the triggers and the latch of the async executor."""

from __future__ import annotations

import numpy as np
import pytest
from core_rig import MS

from vla_ros.core.executor_state import ExecutorState, Request, Trigger
from vla_ros.core.types import Observation


def seen(stamp_ns: int, instruction: str = 'lift') -> Observation:
    return Observation(stamp_ns, stamp_ns, stamp_ns, {}, np.zeros(0), (), instruction)


def started(state: ExecutorState, now_ns: int = 0, remaining_ns: int = 0) -> Request:
    request = state.poll(now_ns, remaining_ns)
    assert request is not None
    return request


def test_the_newest_observation_wins_and_the_replaced_ones_are_counted() -> None:
    state = ExecutorState()
    for stamp in (1, 2, 3):
        state.offer(seen(stamp))
    assert started(state).observation.stamp_ns == 3
    assert state.counts['observation replaced by a newer one'] == 2


def test_one_inference_at_a_time_and_one_per_observation() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    first = started(state)
    state.offer(seen(2))
    assert state.poll(5, 0) is None
    state.finish()
    assert state.refusal(first, 'lift') == ''
    second = started(state, 6)
    assert second.observation.stamp_ns == 2
    assert second.sequence == first.sequence + 1
    state.finish()
    assert state.poll(7, 0) is None


def test_threshold_waits_until_the_plan_runs_low() -> None:
    state = ExecutorState(Trigger.THRESHOLD, threshold_ns=100)
    state.offer(seen(1))
    assert state.poll(0, 101) is None
    assert state.poll(0, 100) is not None


def test_rate_keeps_the_starts_apart() -> None:
    state = ExecutorState(Trigger.RATE, rate_period_ns=100)
    starts = []
    for now in range(0, 1000, 7):
        state.offer(seen(now))
        request = state.poll(now, 10**12)
        if request is not None:
            starts.append(now)
            state.finish()
    assert len(starts) == 10
    assert np.diff(starts).min() >= 100


def test_a_result_for_an_earlier_instruction_does_not_count() -> None:
    state = ExecutorState()
    state.offer(seen(1, 'lift'))
    request = started(state)
    state.finish()
    assert state.refusal(request, 'drop') == 'result for an earlier instruction'
    assert state.counts['dropped: result for an earlier instruction'] == 1
    assert state.running is None


def test_a_result_from_before_a_reset_does_not_count() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    request = started(state)
    state.reset(50)
    state.finish()
    assert state.refusal(request, 'lift') == 'result from before the last reset'


def test_a_failure_latches_until_reset() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    state.fail(started(state), 'out of memory')
    state.offer(seen(2))
    assert state.poll(1, 0) is None
    assert state.failure == 'out of memory'
    state.reset(10)
    assert state.failure == ''
    state.offer(seen(11))
    assert started(state, 12).observation.stamp_ns == 11


def test_a_failure_from_before_a_reset_is_counted_and_does_not_latch() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    request = started(state)
    state.reset(10)
    state.fail(request, 'late crash')
    assert state.failure == ''
    assert state.counts['failure'] == 1


def test_reset_empties_the_mailbox_and_clears_the_engine_once() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    first = started(state)
    assert first.reset
    state.finish()
    state.offer(seen(2))
    second = started(state)
    assert not second.reset
    state.offer(seen(3))
    state.reset(10)
    assert state.poll(11, 0) is None
    state.finish()
    state.offer(seen(12))
    assert started(state).reset


def test_the_next_inference_waits_for_one_that_a_reset_has_outdated() -> None:
    state = ExecutorState()
    state.offer(seen(1))
    started(state)
    state.reset(10)
    state.offer(seen(11))
    assert state.poll(12, 0) is None
    state.finish()
    assert started(state, 13).epoch_ns == 10


def test_busy_time_runs_while_an_inference_does() -> None:
    state = ExecutorState()
    assert state.busy_ns(5) == 0
    state.offer(seen(1))
    started(state, 10 * MS)
    assert state.busy_ns(30 * MS) == 20 * MS
    state.finish()
    assert state.busy_ns(40 * MS) == 0


@pytest.mark.parametrize('trigger', Trigger)
def test_discarded_observations_are_not_inferred(trigger: Trigger) -> None:
    state = ExecutorState(trigger)
    state.offer(seen(1))
    state.discard()
    assert state.poll(10**12, 0) is None
