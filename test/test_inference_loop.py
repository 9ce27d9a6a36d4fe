"""The inference side: streams in, plans out, and what is said when there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core_rig import MS, spec_of

from vla_ros.core.action_spec import Kind
from vla_ros.core.assembler import Assembler, CameraStream
from vla_ros.core.chunk_buffer import ChunkBuffer
from vla_ros.core.executor_state import ExecutorState, Request, Trigger
from vla_ros.core.inference_loop import InferenceConfig, InferenceLoop, Timing
from vla_ros.core.types import NS_PER_S, Frame, Plan, StateSample

PERIOD = 200 * MS
CAMERA = 100 * MS
T = 1_000 * NS_PER_S
SPEC = spec_of(Kind.POSITION, Kind.DELTA)


class Side:
    """An inference loop with one camera and a state, fed by hand."""

    def __init__(self, kinds: Any = SPEC, absolute: Any = (), horizon: int = 4,
                 executor: ExecutorState | None = None, instruction: str = 'lift',
                 **changes: Any) -> None:
        config = InferenceConfig(spec=kinds, absolute=frozenset(absolute), horizon=horizon,
                                 period_ns=PERIOD, interval_ns=CAMERA, deadline_ns=NS_PER_S,
                                 **changes)
        assembler = Assembler([CameraStream('front', 4, 4, CAMERA, CAMERA)], ('d0', 'd1'),
                              500 * MS, NS_PER_S)
        planned = kinds.as_planned(frozenset(absolute))
        self.loop = InferenceLoop(config, assembler, executor or ExecutorState(),
                                  ChunkBuffer(planned))
        self.now = T
        if instruction:
            self.loop.on_instruction(instruction, self.now)

    def see(self, after_ns: int = CAMERA, state: tuple[float, float] = (0.0, 0.0)) -> None:
        self.now += after_ns
        self.loop.on_state(StateSample(self.now, self.now, ('d0', 'd1'), np.array(state)))
        self.loop.on_frame(Frame('front', self.now, self.now, np.zeros((4, 4, 3), np.uint8)),
                           self.now)

    def request(self) -> Request:
        request = self.loop.poll(self.now)
        assert request is not None
        return request

    def answer(self, request: Request, actions: Any, delay_ns: int = 20 * MS) -> Plan | None:
        self.now += delay_ns
        timing = Timing(request.started_ns + delay_ns // 2, self.now)
        return self.loop.on_result(request, np.array(actions), timing, self.now)

    def cycle(self, value: float = 0.0, delay_ns: int = 20 * MS) -> Plan | None:
        self.see()
        return self.answer(self.request(), np.full((self.loop.config.horizon, 2), value), delay_ns)

    def trouble(self) -> tuple[str, str]:
        status = self.loop.status(self.now)
        return status.cause, status.reaction


# --- results that count ---

def test_a_plan_answers_its_observation() -> None:
    side = Side()
    side.see()
    stamp = side.now
    plan = side.answer(side.request(), np.ones((4, 2)))
    assert plan is not None
    assert plan.stamp_ns == stamp
    assert plan.start_ns == stamp
    assert side.trouble() == ('', 'none')
    assert side.loop.status(side.now).observation_stamp_ns == stamp


def test_a_chunk_that_starts_on_arrival_does() -> None:
    side = Side(horizon=1, arrival=True)
    side.see()
    stamp = side.now
    plan = side.answer(side.request(), np.ones((1, 2)), delay_ns=350 * MS)
    assert plan is not None
    assert (plan.stamp_ns, plan.start_ns) == (stamp, stamp + 350 * MS)


def test_deltas_are_anchored_at_the_state_of_the_observation_and_not_of_the_arrival() -> None:
    side = Side(spec_of(Kind.DELTA, Kind.RELATIVE), absolute=('d0',))
    side.see(state=(1.0, 5.0))
    request = side.request()
    side.see(state=(2.0, 6.0))
    plan = side.answer(request, [[0.1, 0.1], [0.1, 0.2], [0.1, 0.3], [0.1, 0.4]])
    assert plan is not None
    np.testing.assert_allclose(
        plan.values, [[1.0, 5.1], [1.1, 5.2], [1.2, 5.3], [1.3, 5.4], [1.4, 5.4]])


def test_without_a_state_at_the_stamp_nothing_is_anchored() -> None:
    side = Side(spec_of(Kind.DELTA, Kind.DELTA), absolute=('d0', 'd1'))
    side.see()
    request = side.request()
    for _ in range(30):
        side.see()
    assert side.answer(request, np.zeros((4, 2))) is None
    assert any('no anchor' in key or 'past' in key for key in side.loop.counts)


def test_a_short_chunk_is_padded_only_where_the_policy_may_give_one() -> None:
    side = Side(pad_short_chunks=True)
    side.see()
    plan = side.answer(side.request(), [[1.0, 0.5], [2.0, 0.5]])
    assert plan is not None
    np.testing.assert_array_equal(plan.values[2:], [[2.0, 0.0], [2.0, 0.0]])


def test_a_chunk_that_comes_after_all_of_its_steps_is_counted() -> None:
    side = Side()
    assert side.cycle(delay_ns=4 * PERIOD) is None
    assert side.loop.counts == {'dropped: chunk: all steps are past': 1}


@pytest.mark.parametrize('kind', [np.float32, np.float64])
def test_float32_and_float64_are_taken(kind: Any) -> None:
    side = Side()
    side.see()
    plan = side.answer(side.request(), np.ones((4, 2), kind))
    assert plan is not None
    assert plan.values.dtype == np.float64


# --- results that do not ---

@pytest.mark.parametrize(('actions', 'message'), [
    (np.zeros((4, 3)), 'engine gave shape (4, 3); the policy promises (4, 2)'),
    (np.zeros(8), 'engine gave shape (8,); the policy promises (4, 2)'),
    (np.zeros((3, 2)), 'engine gave 3 steps; the policy promises a horizon of 4'),
    (np.zeros((0, 2)), 'engine gave 0 steps'),
    ([[0, 0], [0, np.nan], [0, 0], [0, 0]], 'engine gave nan for d1 of step 1'),
    ([[0, 0], [0, 0], [-np.inf, 0], [0, 0]], 'engine gave -inf for d0 of step 2'),
    (np.array([['a', 'b']] * 4), 'engine gave values of type <U1'),
    (np.array(None), 'engine gave values of type object')])
def test_a_malformed_chunk_latches_a_failure_that_names_it(actions: Any, message: str) -> None:
    side = Side()
    side.see()
    assert side.answer(side.request(), actions) is None
    cause, reaction = side.trouble()
    assert message in cause
    assert reaction == 'fault'
    side.see()
    assert side.loop.poll(side.now) is None
    assert side.loop.buffer.plan is None
    side.loop.on_reset(side.now)
    assert side.trouble()[1] == 'none'
    assert side.cycle() is not None


def test_too_many_steps_are_as_wrong_as_too_few() -> None:
    side = Side(pad_short_chunks=True)
    side.see()
    side.answer(side.request(), np.zeros((5, 2)))
    assert 'engine gave 5 steps' in side.trouble()[0]


def test_an_engine_that_raises_latches_until_reset() -> None:
    side = Side()
    side.see()
    side.loop.on_failure(side.request(), 'CUDA out of memory')
    assert side.trouble() == ('engine failed: CUDA out of memory', 'fault')
    side.loop.on_reset(side.now)
    assert side.cycle() is not None


def test_a_result_from_before_a_reset_is_dropped_and_nothing_old_stays() -> None:
    side = Side()
    side.cycle(1.0)
    side.see()
    request = side.request()
    side.loop.on_reset(side.now + 1)
    assert side.loop.buffer.plan is None
    assert side.answer(request, np.ones((4, 2))) is None
    assert side.loop.executor.counts['dropped: result from before the last reset'] == 1
    status = side.loop.status(side.now)
    assert status.observation_stamp_ns == 0
    assert status.epoch_ns == side.loop.executor.epoch_ns
    plan = side.cycle(2.0)
    assert plan is not None
    np.testing.assert_array_equal(plan.values, np.full((4, 2), 2.0))


def test_a_frame_from_before_a_reset_makes_no_observation() -> None:
    side = Side()
    side.loop.on_reset(side.now + NS_PER_S)
    side.see()
    assert side.loop.poll(side.now) is None
    assert side.loop.counts['dropped: observation from before the last reset'] == 1


def test_the_same_reset_heard_twice_is_one() -> None:
    side = Side()
    side.loop.on_reset(T)
    plan = side.cycle()
    side.loop.on_reset(T)
    assert side.loop.buffer.plan is plan


# --- instructions ---

def test_without_an_instruction_nothing_is_inferred_and_the_control_side_waits() -> None:
    side = Side(instruction='')
    side.see()
    side.see()
    assert side.loop.poll(side.now) is None
    assert side.trouble() == ('no instruction; publish one on the topic instruction', 'wait')
    assert not side.loop.executor.counts
    side.loop.on_instruction('  lift  ', side.now)
    assert side.request().observation.instruction == 'lift'


def test_results_in_flight_for_an_earlier_instruction_are_dropped() -> None:
    side = Side()
    side.see()
    request = side.request()
    side.loop.on_instruction('drop', side.now)
    assert side.answer(request, np.zeros((4, 2))) is None
    assert side.request().observation.instruction == 'drop'


def test_a_new_instruction_uses_the_newest_frame_at_once_even_under_a_threshold() -> None:
    side = Side(executor=ExecutorState(Trigger.THRESHOLD, threshold_ns=100 * MS))
    side.cycle()
    side.see()
    assert side.loop.poll(side.now) is None
    side.loop.on_instruction('drop', side.now)
    assert side.request().observation.instruction == 'drop'


def test_the_old_plan_plays_for_the_grace_and_not_longer() -> None:
    side = Side(horizon=50)
    side.cycle()
    side.loop.on_instruction('drop', side.now)
    side.now += NS_PER_S
    assert side.trouble()[1] == 'none'
    side.now += 1
    assert side.trouble() == ('instruction changed, no action chunk for it yet', 'hold')


def test_changing_the_instruction_again_and_again_does_not_prolong_the_grace() -> None:
    side = Side(horizon=50)
    side.cycle()
    for word in ('a', 'b', 'c', 'd'):
        side.loop.on_instruction(word, side.now)
        side.now += 300 * MS
    assert side.trouble()[1] == 'hold'


def test_the_first_chunk_for_a_new_instruction_fades_in_and_ends_the_grace() -> None:
    side = Side()
    side.cycle(0.0)
    side.loop.on_instruction('drop', side.now)
    request = side.request()
    plan = side.answer(request, np.ones((4, 2)), delay_ns=100 * MS)
    assert plan is not None
    assert plan.values[-1, 0] == 1.0
    assert plan.values[0, 0] < 1.0
    side.now += 2 * NS_PER_S
    assert side.trouble()[1] == 'none'


def test_an_emptied_instruction_forgets_the_plan() -> None:
    side = Side()
    side.cycle()
    side.see()
    request = side.request()
    side.loop.on_instruction('', side.now)
    assert side.trouble() == ('no instruction; publish one on the topic instruction', 'wait')
    assert side.answer(request, np.zeros((4, 2))) is None
    assert side.loop.buffer.plan is None


def test_the_same_instruction_again_changes_nothing() -> None:
    side = Side()
    side.see()
    request = side.request()
    side.loop.on_instruction('lift ', side.now)
    assert side.answer(request, np.zeros((4, 2))) is not None


# --- slow engines ---

def assert_lasts(side: Side, needed_ns: int) -> None:
    """Plans are slower than asked, but no slower than it takes to last until the next one."""
    plan = side.loop.buffer.plan
    assert plan is not None
    lasts_ns = plan.end_ns - plan.stamp_ns
    assert 0.5 <= side.loop.rate < 1.0
    assert needed_ns <= lasts_ns <= needed_ns + 2 * PERIOD


def test_plans_are_stretched_when_the_delay_nears_the_horizon() -> None:
    side = Side()
    for _ in range(20):
        side.cycle(delay_ns=500 * MS)
    assert_lasts(side, 1000 * MS)  # delay 0.5 s, and 0.5 s to the next result; horizon 0.8 s
    fast = Side()
    for _ in range(20):
        fast.cycle(delay_ns=50 * MS)
    assert fast.loop.rate == 1.0


def test_a_chunk_on_arrival_is_never_stretched() -> None:
    side = Side(horizon=1, arrival=True)
    for _ in range(20):
        side.cycle(delay_ns=900 * MS)
    assert side.loop.rate == 1.0
    assert side.trouble()[1] == 'none'


def test_an_inference_slower_than_the_horizon_is_named() -> None:
    side = Side()
    for _ in range(10):
        side.cycle(delay_ns=900 * MS)
    cause, reaction = side.trouble()
    assert cause == 'inference too slow: 0.90 s (p95) exceeds the horizon of 0.8 s'
    assert reaction == 'hold'


def test_a_warm_up_slower_than_the_horizon_refuses_to_drive() -> None:
    side = Side()
    assert side.loop.on_warm_up([100 * MS, 120 * MS]) == ''
    refusal = side.loop.on_warm_up([900 * MS] * 3)
    assert refusal == 'inference too slow: 0.90 s (p95) exceeds the horizon of 0.8 s'
    assert side.trouble()[1] == 'hold'


def test_warm_up_stays_out_of_every_statistic() -> None:
    side = Side()
    side.loop.on_warm_up([700 * MS] * 5)
    assert all(s.count == 0 for s in side.loop.latency.summaries().values())
    for _ in range(10):
        side.cycle(delay_ns=50 * MS)
    assert side.loop.rate == 1.0
    assert side.loop.latency.summaries()['infer'].max <= 0.05


def test_the_first_chunks_are_stretched_by_what_the_warm_up_showed() -> None:
    side = Side()
    side.loop.on_warm_up([500 * MS] * 5)
    side.cycle(delay_ns=100 * MS)
    assert_lasts(side, 1000 * MS)


def test_an_engine_that_does_not_answer_is_named_and_leaves_the_reaction_to_the_watchdog() -> None:
    side = Side()
    side.see()
    side.request()
    side.now += 1200 * MS
    cause, reaction = side.trouble()
    assert cause == 'engine has not answered for 1.20 s'
    assert reaction == 'none'


def test_a_silent_camera_is_named() -> None:
    side = Side()
    side.cycle()
    side.now += NS_PER_S
    assert side.trouble()[0].startswith('front: no frame for 1.0')


# --- accounts ---

def test_each_stage_of_the_latency_is_accounted_for_and_they_add_up() -> None:
    side = Side()
    side.now += 100 * MS
    stamp = side.now - 30 * MS
    side.loop.on_state(StateSample(stamp, side.now, ('d0', 'd1'), np.zeros(2)))
    side.loop.on_frame(Frame('front', stamp, side.now, np.zeros((4, 4, 3), np.uint8)), side.now)
    side.now += 7 * MS
    request = side.request()
    timing = Timing(side.now + 5 * MS, side.now + 45 * MS)
    side.now += 47 * MS
    assert side.loop.on_result(request, np.zeros((4, 2)), timing, side.now) is not None
    got = {name: round(s.max * 1000) for name, s in side.loop.latency.summaries().items()}
    assert got == {'receive': 30, 'queue': 7, 'preprocess': 5, 'infer': 40, 'merge': 2}
    assert sum(got.values()) == (side.now - stamp) // MS


def test_the_seam_is_kept_for_diagnostics() -> None:
    side = Side()
    side.cycle(0.0)
    assert side.loop.seam is None
    side.cycle(1.0)
    assert side.loop.seam is not None
    assert side.loop.seam.offered[0] == pytest.approx(1.0)
