"""Engines that answer an earlier observation than the one they were just given."""

from __future__ import annotations

import threading
from collections import deque
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np
import pytest
from core_rig import MS, spec_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scenarios import ORIGIN_NS, Scenario, Story

from vla_ros.core.action_spec import Kind
from vla_ros.core.assembler import Assembler, CameraStream
from vla_ros.core.chunk_buffer import ChunkBuffer
from vla_ros.core.executor_state import ExecutorState, Request
from vla_ros.core.in_progress import KEPT, Given, InProgress
from vla_ros.core.inference_loop import InferenceConfig, InferenceLoop, Timing
from vla_ros.core.merging import Merge
from vla_ros.core.runtime import ClockJump, Enable, Instruction, Reset
from vla_ros.core.types import (
    NS_PER_S,
    Answer,
    Floats,
    Frame,
    Observation,
    Plan,
    Result,
    Start,
    StateSample,
)
from vla_ros.core.watchdog import Layer
from vla_ros.engines.contract import Engine
from vla_ros.engines.executor import AsyncExecutor, Outcome, warm_up
from vla_ros.policies.contracts import contract_of
from vla_ros.profiles.policy import load_policy

K = 3
HORIZON = 8
PERIOD, CAMERA = 200 * MS, 100 * MS
T = 1_000 * NS_PER_S
POLICY = load_policy('scripted_bridge')


class Pipeline(Engine):
    """Answers an observation when it has been given `lag` more. `forgetful`: no reset reaches it.

    An answer repeats the time of its observation since T, in s, in every step.
    """

    def __init__(self, lag: int = K - 1, forgetful: bool = False) -> None:
        self.contract = contract_of(POLICY, ('test',))
        self.lag = lag
        self.shape = (HORIZON, 2)
        self.resets = 0
        self._forgetful = forgetful
        self._seen: deque[Observation] = deque()

    def load(self) -> None:
        pass

    def infer(self, inputs: Any, prefix: Floats | None = None) -> Result:
        self._seen.append(inputs)
        if len(self._seen) <= self.lag:
            return None
        observation = self._seen.popleft()
        return Answer(observation, np.full(self.shape, seconds(observation.stamp_ns)))

    def reset(self) -> None:
        self.resets += 1
        if not self._forgetful:
            self._seen.clear()


def seconds(stamp_ns: int) -> float:
    return (stamp_ns - T) / NS_PER_S


class Side:
    """An inference loop with one camera, a state and an engine, fed by hand."""

    def __init__(self, engine: Engine | None = None, kind: Kind = Kind.POSITION,
                 instruction: str = 'lift', **changes: Any) -> None:
        self.engine = Pipeline() if engine is None else engine
        spec = spec_of(kind, kind)
        config = InferenceConfig(spec=spec, absolute=frozenset(), horizon=HORIZON,
                                 period_ns=PERIOD, interval_ns=CAMERA, deadline_ns=NS_PER_S,
                                 **changes)
        assembler = Assembler([CameraStream('front', 4, 4, CAMERA, CAMERA)], ('d0', 'd1'),
                              500 * MS, NS_PER_S)
        self.loop = InferenceLoop(config, assembler, ExecutorState(),
                                  ChunkBuffer(spec.as_planned(frozenset()), Merge.LATEST_ONLY))
        self.loop.lag = self.engine.lag
        self.now = T
        self.running: tuple[Request, Result] | None = None
        if instruction:
            self.loop.on_instruction(instruction, self.now)

    def see(self, after_ns: int = CAMERA) -> int:
        """A frame arrives, and a state that is its time; returns its stamp."""
        self.now += after_ns
        state = np.full(2, seconds(self.now))
        self.loop.on_state(StateSample(self.now, self.now, ('d0', 'd1'), state))
        self.loop.on_frame(Frame('front', self.now, self.now, np.zeros((4, 4, 3), np.uint8)),
                           self.now)
        return self.now

    def start(self) -> Request | None:
        """Start an inference, if it is time for one."""
        request = self.loop.poll(self.now)
        if request is not None:
            if request.reset:
                self.engine.reset()
            self.running = request, self.engine.infer(request.observation)
        return request

    def end(self, delay_ns: int = 20 * MS) -> Plan | None:
        """The inference ends after this time."""
        assert self.running is not None
        (request, result), self.running = self.running, None
        self.now += delay_ns
        timing = Timing(request.started_ns + delay_ns // 2, self.now)
        return self.loop.on_result(request, result, timing, self.now)

    def cycle(self, delay_ns: int = 20 * MS) -> Plan | None:
        self.see()
        assert self.start() is not None
        return self.end(delay_ns)

    def cause(self) -> str:
        status = self.loop.status(self.now)
        assert status.reaction == 'none'
        return status.cause


# --- which observation a plan answers ------------------------------------------------------------

def test_nothing_is_published_while_the_pipeline_fills_and_then_frame_n_minus_k_plus_1() -> None:
    side = Side()
    stamps, plans = [], []
    for _ in range(8):
        stamps.append(side.see())
        side.start()
        plans.append(side.end())
    assert plans[:K - 1] == [None] * (K - 1)
    assert [plan and plan.stamp_ns for plan in plans[K - 1:]] == stamps[:-(K - 1)]
    assert [plan and plan.values[-1, 0] for plan in plans[K - 1:]] == [
        seconds(stamp) for stamp in stamps[:-(K - 1)]]
    assert side.loop.counts == {'inference without an answer': K - 1}


def test_offsets_are_anchored_at_the_state_of_the_observation_that_is_answered() -> None:
    side = Side(kind=Kind.RELATIVE)
    plan = next(plan for plan in (side.cycle() for _ in range(K)) if plan is not None)
    assert plan.values[-1, 0] == pytest.approx(2 * seconds(plan.stamp_ns))


def test_answer_about_the_observation_just_given_is_like_a_bare_array() -> None:
    side = Side(Pipeline(lag=0))
    stamp = side.see()
    side.start()
    plan = side.end()
    assert plan is not None
    assert plan.stamp_ns == stamp


def test_what_an_array_overtakes_is_not_answered_any_more() -> None:
    side = Side()
    stale = side.see()
    side.start()
    assert side.running is not None
    old = side.running[0].observation
    side.end()
    side.see()
    request = side.start()
    assert request is not None
    side.running = request, np.zeros((HORIZON, 2))
    assert side.end() is not None
    side.see()
    request = side.start()
    assert request is not None
    side.running = request, Answer(old, np.zeros((HORIZON, 2)))
    assert old.stamp_ns == stale
    assert side.end() is None
    assert side.loop.counts['dropped: answer to what is not in progress'] == 1


def test_observation_is_answered_once_and_only_if_it_was_given() -> None:
    side = Side()
    for _ in range(K):
        side.cycle()
    side.see()
    request = side.start()
    assert request is not None
    assert side.running is not None
    result = side.running[1]
    assert isinstance(result, Answer)
    assert side.end() is not None
    for observation in (result.observation, side.engine.example()):
        side.see()
        request = side.start()
        assert request is not None
        side.running = request, Answer(observation, np.zeros((HORIZON, 2)))
        assert side.end() is None
    assert side.loop.counts['dropped: answer to what is not in progress'] == 2


def test_malformed_answer_is_a_fault_as_a_malformed_array_is() -> None:
    side = Side()
    side.engine.shape = (HORIZON, 3)  # type: ignore[attr-defined]
    for _ in range(K):
        side.cycle()
    status = side.loop.status(side.now)
    assert (status.cause, status.reaction) == (
        f'engine gave shape ({HORIZON}, 3); the policy promises ({HORIZON}, 2)', 'fault')


# --- age -----------------------------------------------------------------------------------------

def test_latency_from_capture_to_plan_is_the_true_age() -> None:
    side = Side()
    plan = None
    while plan is None:
        plan = side.cycle(delay_ns=30 * MS)
    age_ns = side.now - plan.stamp_ns
    assert age_ns > (K - 1) * CAMERA
    got = {name: round(s.max * 1000) for name, s in side.loop.latency.summaries().items()}
    assert got == {'receive': 0, 'queue': 0, 'preprocess': 15, 'infer': age_ns // MS - 15,
                   'merge': 0}
    assert side.loop.answered is not None
    assert side.loop.answered.request.observation.stamp_ns == plan.stamp_ns


def test_plans_are_stretched_by_the_age_of_answers_and_not_by_the_time_of_an_inference() -> None:
    side = Side(Pipeline(lag=7))
    for _ in range(20):
        side.cycle(delay_ns=100 * MS)
    assert side.loop.rate < 1.0
    quick = Side(Pipeline(lag=0))
    for _ in range(20):
        quick.cycle(delay_ns=100 * MS)
    assert quick.loop.rate == 1.0


def test_pipeline_older_than_the_horizon_is_named_and_held() -> None:
    side = Side(Pipeline(lag=10), state_age_ns=NS_PER_S)
    for _ in range(30):
        side.cycle(delay_ns=100 * MS)
    status = side.loop.status(side.now)
    assert status.cause == 'inference too slow: 2.10 s (p95) exceeds the horizon of 1.6 s'
    assert status.reaction == 'hold'


def test_warm_up_refuses_a_pipeline_whose_answers_would_be_older_than_the_horizon() -> None:
    assert Side(Pipeline(lag=14)).loop.on_warm_up([80 * MS] * 5) == ''
    assert Side(Pipeline(lag=16)).loop.on_warm_up([80 * MS] * 5) == (
        'inference too slow: 1.68 s (p95) exceeds the horizon of 1.6 s')
    assert Side(Pipeline(lag=6)).loop.on_warm_up([250 * MS] * 5).startswith('inference too slow')


# --- epochs and instructions ---------------------------------------------------------------------

@pytest.mark.parametrize('forgetful', [False, True])
def test_reset_fills_the_pipeline_anew_and_nothing_from_before_is_published(
        forgetful: bool) -> None:
    side = Side(Pipeline(forgetful=forgetful))
    for _ in range(K + 2):
        side.cycle()
    side.loop.on_reset(side.now)
    epoch_ns = side.now
    plans = [side.cycle() for _ in range(5)]
    assert plans[:K - 1] == [None] * (K - 1)
    assert all(plan is not None and plan.stamp_ns > epoch_ns for plan in plans[K - 1:])
    name = 'dropped: answer to what is not in progress'
    assert side.loop.counts[name] == (K - 1 if forgetful else 0)


def test_reset_during_an_inference_drops_what_it_gives() -> None:
    side = Side()
    for _ in range(K):
        side.cycle()
    side.see()
    side.start()
    side.loop.on_reset(side.now)
    assert side.end() is None
    assert side.loop.executor.counts['dropped: result from before the last reset'] == 1
    assert [side.cycle() is None for _ in range(K)] == [True] * (K - 1) + [False]


@pytest.mark.parametrize('forgetful', [False, True])
def test_reset_to_an_earlier_time_drops_answers_that_are_stamped_later(forgetful: bool) -> None:
    side = Side(Pipeline(forgetful=forgetful))
    for _ in range(K + 2):
        side.cycle()
    before_ns = side.now
    side.now -= 10 * NS_PER_S
    side.loop.on_reset(side.now)
    plans = [side.cycle() for _ in range(2 * K)]
    assert [plan is None for plan in plans[:K]] == [True] * (K - 1) + [False]
    assert all(plan.stamp_ns < before_ns - 5 * NS_PER_S for plan in plans if plan is not None)


def test_change_of_instruction_drops_the_answers_in_flight() -> None:
    side = Side()
    for _ in range(K):
        side.cycle()
    side.loop.on_instruction('drop', side.now)
    changed_ns = side.now
    plans = [side.end() for _ in range(5) if side.start() or (side.see() and side.start())]
    assert plans[:K - 1] == [None] * (K - 1)
    # The newest frame is inferred anew for the new sentence, and answered first.
    assert plans[K - 1] is not None
    assert plans[K - 1].stamp_ns <= changed_ns
    name = 'dropped: result for an earlier instruction'
    assert side.loop.executor.counts[name] == K - 1


@pytest.mark.parametrize('pause_ns', [1, 10 * NS_PER_S])
def test_instruction_that_changes_back_does_not_bring_its_old_answers_back(pause_ns: int) -> None:
    side = Side(arrival=True)
    for _ in range(K):
        side.cycle()
    side.see()
    side.loop.on_instruction('', side.now)
    side.now += pause_ns
    side.loop.on_instruction('lift', side.now)
    begin_ns = side.now
    plans = [side.cycle() for _ in range(K)]
    assert plans[:K - 1] == [None] * (K - 1)
    assert plans[K - 1] is not None
    assert plans[K - 1].stamp_ns > begin_ns


STEPS = st.lists(st.sampled_from(
    [*['cycle'] * 10, 'see', 'see', 'start', 'start', 'end', 'end', 'reset', 'back', 'lift', 'lift',
     'drop', '', 'wait']), min_size=10, max_size=60)


@settings(deadline=None, max_examples=150)
@given(STEPS, st.integers(0, 3), st.booleans(), st.booleans())
def test_every_plan_answers_an_observation_of_this_epoch_and_instruction(
        steps: list[str], lag: int, forgetful: bool, arrival: bool) -> None:
    side = Side(Pipeline(lag, forgetful), instruction='', arrival=arrival)
    said, given_in = '', {}      # by the object: what was in force when the engine was given it
    epoch, change, kept = count(1), count(1), []
    now_in = 0, 0
    singly = [part for step in ['lift', *steps]
              for part in (('end', 'see', 'start', 'end') if step == 'cycle' else (step,))]
    for step in singly:
        if step == 'see':
            side.see()
        elif step == 'start':
            request = side.start() if side.running is None else None
            if request is not None:
                kept.append(request.observation)
                given_in[id(request.observation)] = now_in
        elif step == 'end' and side.running is not None:
            plan = side.end()
            if plan is not None:
                answered = side.loop.answered
                assert answered is not None
                observation = answered.request.observation
                assert given_in[id(observation)] == now_in
                assert observation.instruction == said != ''
                assert plan.stamp_ns == observation.stamp_ns >= side.loop.executor.epoch_ns
                assert plan.values[-1, 0] == pytest.approx(seconds(plan.stamp_ns)), 'its answer'
        elif step in ('reset', 'back'):
            side.now += MS if step == 'reset' else -NS_PER_S
            side.loop.on_reset(side.now)
            now_in = next(epoch), now_in[1]
        elif step == 'wait':
            side.now += 700 * MS
        elif step in ('lift', 'drop', '') and step != said:
            said = step
            side.loop.on_instruction(said, side.now)
            now_in = now_in[0], next(change)


# --- an engine that never answers ----------------------------------------------------------------

def test_pipeline_that_fills_says_how_far_it_is() -> None:
    side = Side()
    side.cycle()
    assert side.cause() == 'pipeline of the engine fills: 1 of 2 inferences'
    side.cycle()
    side.cycle()
    assert side.cause() == ''


def test_engine_that_never_answers_is_named() -> None:
    side = Side(Pipeline(lag=10**6))
    side.loop.lag = 2
    for _ in range(3):
        side.cycle()
    assert side.cause() == (
        'engine gives no action chunk: 3 inferences without; its pipeline takes 2')
    side.loop.on_reset(side.now)
    side.cycle()
    assert side.cause() == 'pipeline of the engine fills: 1 of 2 inferences'


def test_what_is_never_answered_is_forgotten_some_time() -> None:
    waiting = InProgress()
    side = Side()
    observations = [side.engine.example() for _ in range(KEPT + 5)]
    for i, observation in enumerate(observations):
        waiting.add(Given(Request(i, observation, 0, 0, False), 0))
    assert len(waiting) == KEPT
    assert waiting.take(observations[4]) is None
    assert waiting.take(observations[5]) is not None
    assert waiting.take(observations[5]) is None
    assert len(waiting) == KEPT - 1


# --- in the runtime ------------------------------------------------------------------------------

class Scripted(Pipeline):
    """A pipeline of what a scenario's own engine answers; `mute` after this many inferences."""

    def __init__(self, lag: int = K - 1, mute: int = 10**6) -> None:
        super().__init__(lag)
        self._left = mute
        self._actions: dict[int, Floats] = {}

    def answer(self, observation: Observation, actions: Floats, time: float) -> Result:
        self._left -= 1
        if self._left < 0:
            return None
        self._actions[observation.stamp_ns] = actions
        result = self.infer(observation)
        if not isinstance(result, Answer):
            return result
        return Answer(result.observation, self._actions[result.observation.stamp_ns])

    def into(self, scenario: Scenario) -> Scenario:
        return scenario.answering(self.answer, self.reset, self.lag)


def swinging(robot: str = 'so101', lag: int = K - 1, mute: int = 10**6) -> Scenario:
    return Scripted(lag, mute).into(Scenario(robot).told('swing').enabled())


def gaps_ns(story: Story) -> list[int]:
    """From stamp to plan."""
    return [round(time * NS_PER_S) + ORIGIN_NS - plan.stamp_ns for time, plan in story.plans]


@pytest.mark.parametrize('robot', ['widowx_bridge', 'so101'])
def test_pipeline_drives_and_its_plans_are_as_old_as_their_frames(robot: str) -> None:
    story = swinging(robot).play(6.0)
    assert story.states(2.0, 6.0) == {'active'}
    assert not story.rests(2.0, 6.0)
    stamps = [plan.stamp_ns for _, plan in story.plans]
    assert stamps == sorted(set(stamps))
    period_ns = next(iter(story.robot.cameras.values())).period_ns
    assert min(gaps_ns(story)) >= (K - 1) * period_ns


def test_pipeline_in_the_runtime_gives_the_same_commands_every_time() -> None:
    first, second = (swinging().when(2.0, Reset()).when(2.5, Enable()).play(4.0)
                     for _ in range(2))
    assert [plan.stamp_ns for _, plan in first.plans] == [
        plan.stamp_ns for _, plan in second.plans]
    assert len(first.plans) > 10
    values = [story.values(0.0, 4.0) for story in (first, second)]
    assert len(values[0]) > 50
    np.testing.assert_array_equal(*values)


@pytest.mark.parametrize('event', [Reset(), ClockJump(-2 * NS_PER_S), ClockJump(2 * NS_PER_S)],
                         ids=['reset', 'clock back', 'clock ahead'])
def test_new_epoch_in_the_runtime_fills_the_pipeline_anew(event: Any) -> None:
    engine = Scripted()
    story = (engine.into(Scenario('so101').told('swing').enabled())
             .when(2.003, event).when(3.0, Enable()).play(5.0))
    assert engine.resets >= 2
    lost = story.inference.counts['inference without an answer']
    assert lost == engine.resets * (K - 1)
    assert story.states(4.0, 5.0) == {'active'}
    (begin,) = {m.epoch_ns for m in story.between(4.0, 5.0)}
    assert all(plan.stamp_ns >= begin for time, plan in story.plans if time > 2.1)


def test_new_instruction_in_the_runtime_is_followed_within_the_length_of_the_pipeline() -> None:
    story = swinging().when(3.0, Instruction('swing on')).play(5.0)
    counts = story.inference.executor.counts
    assert counts['dropped: result for an earlier instruction'] >= K - 1
    assert story.states(4.0, 5.0) == {'active'}


def test_engine_that_never_answers_refuses_to_be_enabled_and_says_why() -> None:
    story = swinging(mute=0).when(1.5, Enable()).play(2.0)
    assert not story.plans
    assert story.silent(0.0, 2.0)
    assert 'active' not in story.states(0.0, 2.0)
    assert any(answer.startswith('no plan yet: engine gives no action chunk: ')
               for answer in story.answers)


def test_engine_that_falls_silent_is_held_and_both_causes_are_named() -> None:
    story = swinging(mute=60).play(6.0)
    hold = story.first('holding', after=1.0)
    assert 'pipeline of the engine fills' in hold.tick.cause or (
        'engine gives no action chunk' in hold.tick.cause)
    assert hold.tick.cause.startswith(('plan exhausted', 'no new action chunk in time'))
    assert story.states(hold.time, 6.0) == {'holding'}
    assert story.rests(hold.time + 0.5, 6.0)


def test_answers_older_than_the_deadline_never_drive() -> None:
    limit_ns = NS_PER_S
    story = Scripted(lag=40).into(
        Scenario('so101', start=Start.ARRIVAL).told('swing').when(4.0, Enable())).play(6.0)
    assert story.robot.watchdog[Layer.INFERENCE_DEADLINE].limit_ns == limit_ns
    assert len(story.plans) > 10
    assert min(gaps_ns(story)) > limit_ns
    assert story.answers[0].startswith('no new action chunk in time: 1.')
    assert story.states(0.0, 6.0) == {'waiting'}
    assert story.silent(0.0, 6.0)


# --- warm-up and the engine's thread -------------------------------------------------------------

def none_wrong(actions: Any) -> str:
    return ''


def test_warm_up_fills_the_pipeline_times_whole_runs_only_and_leaves_it_empty() -> None:
    engine, clock = Pipeline(), count(0, 10)
    calls: list[Any] = []
    infer = engine.infer
    engine.infer = lambda inputs, prefix=None: calls.append(inputs) or infer(inputs)  # type: ignore
    assert warm_up(engine, 4, lambda: next(clock), none_wrong) == [10] * 4
    assert len(calls) == 1 + (K - 1) + 4
    assert engine.resets == 1
    assert [infer(engine.example()) for _ in range(K - 1)] == [None] * (K - 1)


def test_warm_up_looks_at_the_actions_of_answers() -> None:
    with pytest.raises(ValueError, match=r'^warm-up: shape \(8, 2\)$'):
        warm_up(Pipeline(), 1, lambda: 0, lambda actions: f'shape {actions.shape}')


def test_warm_up_names_an_engine_that_answers_later_than_it_says_or_never() -> None:
    engine = Pipeline()
    engine.infer = lambda inputs, prefix=None: None  # type: ignore[method-assign]
    with pytest.raises(ValueError) as caught:
        warm_up(engine, 5, lambda: 0, none_wrong)
    assert str(caught.value) == (
        'warm-up: engine gave no action chunk in 3 inferences; its lag is 2')


def test_warm_up_names_an_engine_that_answers_a_copy() -> None:
    engine = Pipeline(lag=0)
    engine.preprocess = lambda observation: engine.example()  # type: ignore[method-assign]
    with pytest.raises(ValueError, match='answered an observation that it was not given'):
        warm_up(engine, 1, lambda: 0, none_wrong)


def test_engine_thread_hands_over_answers_and_nothing_as_they_are() -> None:
    arrived = threading.Semaphore(0)
    executor = AsyncExecutor(Pipeline(lag=1), lambda: 0, arrived.release)
    engine = Pipeline()
    outcomes: list[Outcome] = []
    requests = [Request(i, engine.example(), 0, 0, i == 0) for i in range(3)]
    for request in requests:
        executor.submit(request)
        assert arrived.acquire(timeout=10.0)
        outcome = executor.take()
        assert outcome is not None
        outcomes.append(outcome)
    assert executor.stop(10.0)
    assert [outcome.failure for outcome in outcomes] == [''] * 3
    assert outcomes[0].result is None
    for outcome, request in zip(outcomes[1:], requests, strict=False):
        assert isinstance(outcome.result, Answer)
        assert outcome.result.observation is request.observation


# --- trials in process ---------------------------------------------------------------------------

@pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
@pytest.mark.parametrize('frame_ms', [100, 50, 20])
def test_delays_of_a_trial_are_true_ages_and_fall_with_the_camera_rate(frame_ms: int) -> None:
    from vla_ros.profiles.robot import load_robot
    from vla_ros.sim.closed_loop import LoopSettings, run_trial
    from vla_ros.sim.oracle import Oracle
    from vla_ros.sim.trial import make_trial
    from vla_ros.sim.world import World

    class Late(Oracle):
        """Answers two observations late."""

        lag = K - 1

        def __init__(self, world: World) -> None:
            super().__init__(load_policy('edgevla_sim'), world)
            self._waiting: deque[Answer] = deque()

        def infer(self, inputs: Any, prefix: Floats | None = None) -> Any:
            self._waiting.append(Answer(inputs, super().infer(inputs)))
            return self._waiting.popleft() if len(self._waiting) == K else None

        def reset(self) -> None:
            self._waiting.clear()

    world = World()
    engine = Late(world)
    engine.load()
    try:
        result = run_trial(
            make_trial('reach', 3), world, engine, load_robot('sim_arm'),
            load_policy('edgevla_sim'),
            LoopSettings(images=False, delay=10 * MS, frame_ns=frame_ms * MS))
    finally:
        engine.close()
        world.close()
    assert result.success
    # two frames late, 20 ms from capture to arrival, 10 ms of inference
    np.testing.assert_allclose(result.delays_s, (K - 1) * frame_ms / 1000 + 0.03)
    assert result.drops['inference without an answer'] == K - 1


def test_wrong_time_between_images_is_one_line() -> None:
    from vla_ros.sim.closed_loop import LoopSettings
    for wrong in (0, -10 * MS, 15 * MS):
        with pytest.raises(ValueError, match='frame_ns: .*: allowed are multiples of') as caught:
            LoopSettings(frame_ns=wrong)
        assert '\n' not in str(caught.value)
