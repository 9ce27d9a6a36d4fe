"""Faults in the discrete-event runtime, each with its expected reaction.

Every play is also checked by `scenarios.check`: whatever happens, no command breaks a limit, is
stale or comes where silence is due.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scenarios import ORIGIN_NS, Scenario, Story

from vla_ros.core.action_spec import Kind
from vla_ros.core.merging import Merge
from vla_ros.core.runtime import ClockJump, Enable, EStop, InferenceGone, Reset
from vla_ros.core.types import NS_PER_S, ImageSize, Start
from vla_ros.core.watchdog import Layer, LayerLimit, Reaction
from vla_ros.profiles.policy import PolicyProfile

BOTH = pytest.mark.parametrize('robot', ['widowx_bridge', 'so101'])
FAULT_AT = 3.0     # s, well past the slow start
BACK_AT = 6.0
HORIZON_S = 1.0    # the longer of the two
RESUMED_S = 0.5    # what resuming may take once all is well again


# Fast enough that a stop takes several periods; slow enough for answers that are late.
FAST = {'widowx_bridge': {'amplitude': 0.05, 'frequency': 0.5},
        'so101': {'amplitude': 0.3, 'frequency': 0.5}}
GENTLE = {'amplitude': 0.02}


def driving(robot: str, **changes: Any) -> Scenario:
    return Scenario(robot, **{'options': FAST[robot], **changes}).told('swing').enabled()


def between(begin: float, end: float, change: Callable[[Any], Any]) -> Callable[[Any, float], Any]:
    """Change what arrives in this time, leave the rest."""
    return lambda item, time: change(item) if begin < time < end else item


def patient(scenario: Scenario) -> Scenario:
    """Observations and chunks may be 3 s old."""
    limit = LayerLimit(3 * NS_PER_S)
    return scenario.changing(watchdog={
        **scenario.robot.watchdog, Layer.OBSERVATION_AGE: limit, Layer.INFERENCE_DEADLINE: limit})


def held_and_resumed(story: Story, cause: str) -> None:
    """Active until the plan runs out, then at rest with this cause until the fault is over."""
    hold = story.first('holding', after=FAULT_AT)
    assert cause in hold.tick.cause
    assert hold.time <= FAULT_AT + HORIZON_S + 0.1
    assert story.states(1.0, hold.time) == {'active'}
    assert story.causes(hold.time, BACK_AT) == [hold.tick.cause], 'the first cause is kept'
    assert story.rests(hold.time + 0.3, BACK_AT)
    assert story.states(hold.time, BACK_AT) == {'holding'}
    assert story.states(BACK_AT + RESUMED_S, BACK_AT + 3.0) == {'active'}
    assert not story.rests(BACK_AT + RESUMED_S, BACK_AT + 3.0)


def faulted(story: Story, cause: str, at: float = FAULT_AT) -> None:
    """At rest soon, silent half a second later, and so until the end."""
    fault = story.first('fault')
    assert at <= fault.time <= at + 0.5
    assert cause in fault.tick.cause
    assert story.states(fault.time, 99.0) == {'fault'}
    assert story.rests(fault.time + 0.3, 99.0)
    assert story.silent(fault.time + 1.0, 99.0)


# --- nothing is wrong ---------------------------------------------------------------------------

@BOTH
def test_nothing_wrong_means_active_all_the_time(robot: str) -> None:
    story = driving(robot).play(8.0)
    assert story.states(0.1, 8.0) == {'active'}
    assert not story.rests(1.0, 8.0)
    assert not story.control.holds


def test_not_enabled_means_silence() -> None:
    story = Scenario().told('swing').play(2.0)
    assert story.states(0.1, 2.0) == {'waiting'}
    assert story.silent(0.0, 2.0)


# --- the engine ---------------------------------------------------------------------------------

@BOTH
def test_stalled_engine_is_named_held_and_resumed(robot: str) -> None:
    story = driving(robot).stalling(FAULT_AT, for_s=BACK_AT - FAULT_AT).play(9.0)
    held_and_resumed(story, 'engine has not answered')


@BOTH
def test_engine_stalled_for_ever_is_held_for_ever(robot: str) -> None:
    story = driving(robot).stalling(FAULT_AT).play(12.0)
    hold = story.first('holding')
    assert 'engine has not answered' in hold.tick.cause
    assert story.states(hold.time, 12.0) == {'holding'}
    assert story.rests(hold.time + 0.3, 12.0)


@BOTH
def test_stalled_engine_stays_a_reason_after_reset(robot: str) -> None:
    story = (driving(robot).stalling(FAULT_AT).when(5.0, Reset()).when(8.0, Enable()).play(9.0))
    assert story.answers[0] == ''
    assert story.answers[1].startswith('no plan yet: engine has not answered for')
    assert story.states(5.1, 9.0) == {'waiting'}


@BOTH
def test_engine_that_answers_nothing_is_named_held_and_resumed(robot: str) -> None:
    story = driving(robot).answering(
        lambda observation, actions, time: None if FAULT_AT < time < BACK_AT else actions
    ).play(9.0)
    held_and_resumed(story, 'engine gives no action chunk: ')


@BOTH
@pytest.mark.parametrize(('answer', 'cause'), [
    (lambda actions: 1 / 0, 'engine failed: ZeroDivisionError: division by zero'),
    (lambda actions: actions * np.nan, 'engine gave nan for'),
    (lambda actions: np.full_like(actions, np.inf), 'engine gave inf for'),
    (lambda actions: actions[:, 1:], 'engine gave shape'),
    (lambda actions: actions[0], 'engine gave shape'),
    (lambda actions: actions.astype(str), 'engine gave values of type <U'),
    (lambda actions: [[1.0], [2.0, 3.0]], 'engine failed: ValueError'),
    (lambda actions: np.vstack([actions, actions[:1]]), 'the policy promises a horizon of'),
    (lambda actions: actions[:-1], 'the policy promises a horizon of'),
    (lambda actions: actions[:0], 'engine gave 0 steps'),
], ids=['raises', 'nan', 'inf', 'too few dimensions', 'no steps axis', 'text', 'ragged',
        'too long', 'too short', 'empty'])
def test_nonsense_of_the_engine_is_a_fault(
        robot: str, answer: Callable[[Any], Any], cause: str) -> None:
    story = driving(robot).answering(
        lambda observation, actions, time: actions if time < FAULT_AT else answer(actions)
    ).play(5.0)
    faulted(story, cause)


@BOTH
def test_fault_is_over_after_reset_and_enable(robot: str) -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        return actions * np.nan if FAULT_AT < time < FAULT_AT + 0.3 else actions

    story = (driving(robot).answering(answer).when(4.0, Enable()).when(5.0, Reset())
             .when(6.0, Enable()).play(8.0))
    refused, reset, enabled = story.answers
    assert 'reset first' in refused
    assert (reset, enabled) == ('', '')
    assert story.states(5.1, 6.0) == {'waiting'}
    assert story.states(6.1, 8.0) == {'active'}


@BOTH
def test_huge_actions_move_no_faster_than_the_limits(robot: str) -> None:
    story = driving(robot).answering(
        lambda observation, actions, time: actions * (1e9 if time > 3.0 else 1.0)).play(6.0)
    assert story.states(0.1, 6.0) == {'active'}
    assert story.control.clips['velocity'].any()
    assert story.control.clips['position'].any()
    low, high = story.binding.limits.position_low, story.binding.limits.position_high
    for m in story.moments:
        reached = m.measured[:3]
        assert np.all((reached > low[:3] - 1e-3) & (reached < high[:3] + 1e-3)), m.time


def test_position_limit_is_kept_though_the_state_comes_at_5_hz() -> None:
    """As in the bags: between two measurements the arm moves by up to 50 mm."""
    def seldom(sample: Any, time: float) -> Any:
        return sample if round(time * 100) % 20 == 0 else None

    def outwards(observation: Any, actions: Any, time: float) -> Any:
        wanted = np.zeros_like(actions)
        wanted[:, 0] = 0.05
        return wanted

    story = driving('widowx_bridge').answering(outwards).measuring(seldom).play(6.0)
    high = story.binding.limits.position_high[0]
    reached = np.array([m.measured[0] for m in story.moments])
    assert reached.max() == pytest.approx(high, abs=1e-3)
    assert story.states(0.4, 6.0) == {'active'}


@BOTH
def test_engine_slow_towards_the_horizon_stretches_then_holds(robot: str) -> None:
    horizon = 0.8 if robot == 'widowx_bridge' else 1.0
    story = patient(driving(robot)).taking(
        lambda time: min(1.3 * horizon, 0.02 + 0.1 * time)).play(25.0, oldest_plan_s=3.0)
    stretched = [time for time, plan in story.plans
                 if plan.end_ns - plan.stamp_ns > horizon * NS_PER_S]
    assert stretched, 'no plan was stretched'
    assert story.inference.rate == 0.5
    hold = story.first('holding', after=stretched[0])
    assert 'inference too slow' in story.line()
    last = story.between(24.0, 25.0)[-1]
    assert last.tick.state.value == 'holding'
    assert hold.time > stretched[0], 'first slower, then held'
    assert any(s.cause.startswith('inference too slow') and s.reaction == 'hold'
               for _, s in story.statuses)


@BOTH
def test_constantly_slow_engine_is_played_slower_without_a_hold(robot: str) -> None:
    """0.6 of the horizon until the result and 0.6 more until the next: too long at full rate."""
    horizon = 0.8 if robot == 'widowx_bridge' else 1.0
    story = patient(driving(robot, delay=0.6 * horizon, options=GENTLE)).play(
        30.0, oldest_plan_s=3.0)
    assert 0.5 <= story.inference.rate < 1.0
    assert story.states(12.0, 30.0) == {'active'}
    assert not story.rests(12.0, 30.0)


def test_one_stall_early_in_life_is_no_slow_engine() -> None:
    story = driving('widowx_bridge').stalling(1.5, for_s=3.0).play(8.0)
    assert 'inference too slow' not in story.line()
    assert story.inference.rate == 1.0
    assert story.states(5.2, 8.0) == {'active'}


@BOTH
def test_dead_inference_process_is_named_and_held(robot: str) -> None:
    story = driving(robot).when(FAULT_AT, InferenceGone()).play(8.0)
    hold = story.first('holding')
    assert hold.tick.cause.startswith('inference_node silent')
    assert hold.time <= FAULT_AT + 0.65
    assert story.states(hold.time, 8.0) == {'holding'}
    assert story.rests(hold.time + 0.3, 8.0)


# --- the cameras --------------------------------------------------------------------------------

@BOTH
def test_frozen_camera_is_named_held_and_resumed(robot: str) -> None:
    story = driving(robot).seeing(between(FAULT_AT, BACK_AT, lambda f: None)).play(9.0)
    held_and_resumed(story, ': no frame for')


@BOTH
def test_repeated_stamps_count_as_no_frames(robot: str) -> None:
    stamp_ns = ORIGIN_NS + round(FAULT_AT * NS_PER_S)
    story = driving(robot).seeing(
        between(FAULT_AT, BACK_AT, lambda f: replace(f, stamp_ns=stamp_ns))).play(9.0)
    held_and_resumed(story, ': stamp repeated')
    assert sum(count for reason, count in story.inference.assembler.counts.items()
               if 'stamp repeated' in reason) > 5


@BOTH
def test_backdated_stamps_are_named_held_and_resumed(robot: str) -> None:
    story = driving(robot).seeing(between(
        FAULT_AT, BACK_AT, lambda f: replace(f, stamp_ns=f.stamp_ns - 2 * NS_PER_S))).play(9.0)
    held_and_resumed(story, ': stamp goes back')


@BOTH
def test_one_backdated_frame_is_dropped_without_a_hold(robot: str) -> None:
    story = driving(robot).seeing(between(
        3.0, 3.05, lambda f: replace(f, stamp_ns=f.stamp_ns - NS_PER_S // 2))).play(6.0)
    assert any('stamp goes back' in reason for reason in story.inference.assembler.counts)
    assert story.states(0.1, 6.0) == {'active'}


@BOTH
@pytest.mark.parametrize('off_s', [-200, 200])
def test_clock_mismatch_of_a_camera_is_named_as_one(robot: str, off_s: int) -> None:
    story = driving(robot).seeing(
        lambda f, time: replace(f, stamp_ns=f.stamp_ns + off_s * NS_PER_S)).when(
            2.0, Enable()).play(3.0)
    assert story.states(0.1, 3.0) == {'waiting'}
    side = 'behind' if off_s < 0 else 'ahead of'
    assert f'clock mismatch: stamps are 200.0 s {side} receipt; replay with use_sim_time' in (
        story.answers[0])
    kinds = [reason for reason in story.inference.assembler.counts if 'clock' in reason]
    assert len(kinds) == 1, 'counted under one name'


@BOTH
def test_clock_mismatch_of_the_state_is_named_as_one(robot: str) -> None:
    story = driving(robot).measuring(lambda s, time: replace(
        s, stamp_ns=s.stamp_ns - round((200 + time) * NS_PER_S))).when(2.0, Enable()).play(3.0)
    assert 'clock mismatch' in story.answers[0]
    assert story.states(0.1, 3.0) == {'waiting'}
    for counts in (story.control.counts, story.inference.assembler.counts):
        assert len([reason for reason in counts if 'clock mismatch' in reason]) == 1


def two_cameras() -> Scenario:
    scenario = driving('so101')
    cameras = {name: ImageSize(224, 224) for name in ('base', 'wrist')}
    scenario.policy = replace(scenario.policy, cameras=cameras)
    scenario._camera_delay = dict.fromkeys(cameras, 0.0)
    return scenario


def test_skew_within_the_limit_is_no_fault() -> None:
    story = two_cameras().delayed('wrist', by=0.03).play(4.0)
    assert story.states(0.2, 4.0) == {'active'}


def test_skew_beyond_the_limit_is_named_with_both_cameras() -> None:
    story = two_cameras().delayed('wrist', by=0.2).when(3.0, Enable()).play(4.0)
    assert story.states(0.1, 4.0) == {'waiting'}
    assert 'wrist: 0.2' in story.answers[0]
    assert 'apart from base (limit 0.05 s)' in story.answers[0]
    assert story.inference.assembler.counts['wrist: rejected or degraded'] > 10


def test_skew_is_tolerated_and_counted_where_the_profile_says_so() -> None:
    story = two_cameras().changing(on_violation='degrade').delayed('wrist', by=0.2).play(4.0)
    assert story.states(0.5, 4.0) == {'active'}
    assert story.inference.assembler.counts['wrist: rejected or degraded'] > 10


def test_second_camera_that_freezes_is_named_and_held() -> None:
    story = two_cameras().seeing(lambda f, time: None if f.camera == 'wrist' and
                                 FAULT_AT < time < BACK_AT else f).play(9.0)
    held_and_resumed(story, 'wrist: no frame for')


# --- the clock ----------------------------------------------------------------------------------

@BOTH
@pytest.mark.parametrize('by_s', [-30.0, -0.5, 0.5, 30.0])
def test_clock_jump_rests_and_goes_on_in_a_new_epoch(robot: str, by_s: float) -> None:
    story = driving(robot).when(FAULT_AT, ClockJump(round(by_s * NS_PER_S))).play(6.0)
    hold = story.first('holding')
    assert hold.time <= FAULT_AT + 0.021
    assert hold.tick.cause == f'clock jump: {by_s:+.2f} s'
    assert story.causes(hold.time, 6.0) == [hold.tick.cause]
    resumed = story.first('active', after=hold.time)
    assert resumed.time <= FAULT_AT + 0.6
    assert story.states(resumed.time, 6.0) == {'active'}
    assert story.control.counts['clock jump'] == 1


def test_clock_that_drifts_is_no_jump() -> None:
    scenario = driving('widowx_bridge')
    for i in range(40):
        scenario.when(1.0 + 0.1 * i, ClockJump(1_000_000))
    story = scenario.play(6.0)
    assert story.states(0.1, 6.0) == {'active'}


# --- the state ----------------------------------------------------------------------------------

def test_state_dropout_holds_where_position_limits_need_it() -> None:
    story = driving('widowx_bridge').measuring(between(FAULT_AT, BACK_AT, lambda s: None)).play(9.0)
    held_and_resumed(story, 'no fresh state: the last state of x is')
    assert story.control.holds == {'no fresh state': 1}


def test_state_dropout_starves_inference_and_is_named() -> None:
    story = driving('so101').measuring(between(FAULT_AT, BACK_AT, lambda s: None)).play(9.0)
    hold = story.first('holding')
    assert 'joint state: the last state of shoulder_pan is' in hold.tick.cause
    assert hold.time <= FAULT_AT + 1.6
    assert story.rests(hold.time + 0.3, BACK_AT)
    assert story.states(BACK_AT + RESUMED_S, 9.0) == {'active'}


def test_short_state_dropout_is_bridged() -> None:
    story = driving('so101').measuring(between(3.0, 3.3, lambda s: None)).play(5.0)
    assert story.states(0.1, 5.0) == {'active'}


def without(name: str) -> Callable[[Any], Any]:
    def change(sample: Any) -> Any:
        kept = [i for i, n in enumerate(sample.names) if n != name]
        return replace(sample, names=tuple(sample.names[i] for i in kept),
                       positions=sample.positions[kept])
    return change


@pytest.mark.parametrize(('robot', 'joint'), [('widowx_bridge', 'yaw'), ('so101', 'wrist_roll')])
def test_missing_joint_is_named_and_nothing_moves(robot: str, joint: str) -> None:
    story = driving(robot).measuring(lambda sample, time: without(joint)(sample)).when(
        2.0, Enable()).play(3.0)
    assert f'joint state: {joint} has not been received' in story.answers[0]
    assert story.silent(0.0, 3.0)


@pytest.mark.parametrize(('robot', 'joint'), [('widowx_bridge', 'yaw'), ('so101', 'wrist_roll')])
def test_joint_that_vanishes_is_named_held_and_resumed(robot: str, joint: str) -> None:
    story = driving(robot).measuring(between(FAULT_AT, BACK_AT, without(joint))).play(9.0)
    hold = story.first('holding')
    assert f'joint state: the last state of {joint} is' in hold.tick.cause
    assert story.rests(hold.time + 0.3, BACK_AT)
    assert story.states(BACK_AT + RESUMED_S, 9.0) == {'active'}


@BOTH
def test_order_of_the_names_does_not_matter(robot: str) -> None:
    def shuffled(sample: Any, time: float) -> Any:
        order = np.random.default_rng(int(time * 100)).permutation(len(sample.names))
        return replace(sample, names=tuple(sample.names[i] for i in order),
                       positions=sample.positions[order])

    plain, mixed = driving(robot).play(4.0), driving(robot).measuring(shuffled).play(4.0)
    np.testing.assert_array_equal(plain.values(0.0, 4.0), mixed.values(0.0, 4.0))


@BOTH
def test_parts_of_the_state_may_come_from_two_publishers(robot: str) -> None:
    def halves(sample: Any, time: float) -> Any:
        """Turn about the first and the second half of the joints."""
        half = len(sample.names) // 2
        part = slice(0, half) if round(time * 1000) // 10 % 2 else slice(half, None)
        return replace(sample, names=sample.names[part], positions=sample.positions[part])

    story = driving(robot).measuring(halves).play(4.0)
    assert story.states(0.3, 4.0) == {'active'}


@BOTH
def test_state_that_is_not_finite_is_dropped_and_starves(robot: str) -> None:
    story = driving(robot).measuring(between(FAULT_AT, BACK_AT, lambda s: replace(
        s, positions=s.positions * np.nan))).play(9.0)
    hold = story.first('holding')
    assert story.rests(hold.time + 0.3, BACK_AT)
    assert story.states(BACK_AT + RESUMED_S, 9.0) == {'active'}
    assert any('not finite' in reason for reason in story.control.counts)


# --- the instruction ----------------------------------------------------------------------------

def by_instruction(observation: Any, actions: Any, time: float) -> Any:
    """dx of 0.05 m/s, to the right or to the left."""
    wanted = np.zeros_like(actions)
    wanted[:, 0] = 0.01 if observation.instruction == 'right' else -0.01
    wanted[:, -1] = 1.0
    return wanted


def right_then_left(**changes: Any) -> Scenario:
    return (Scenario('widowx_bridge', **changes).told('right').told('left', at=FAULT_AT).enabled()
            .answering(by_instruction))


def test_new_instruction_crossfades_in() -> None:
    story = right_then_left().play(6.0)
    assert story.states(0.1, 6.0) == {'active'}
    velocity = story.values(0.0, 6.0)[:, 0]
    assert np.allclose(story.values(2.5, 3.0)[:, 0], 0.05)
    assert np.allclose(story.values(4.0, 6.0)[:, 0], -0.05)
    fade = story.values(3.0, 4.0)[:, 0]
    assert np.all(np.diff(fade) <= 1e-9), 'never back towards the old instruction'
    assert np.any(np.abs(fade) < 0.04), 'a fade and no switch'
    assert np.abs(velocity).max() <= 0.05 + 1e-9


@pytest.mark.parametrize('merge', list(Merge))
def test_new_instruction_crossfades_in_whatever_the_merge(merge: Merge) -> None:
    """Over two steps, though the old plan would have lasted for two seconds."""
    story = right_then_left(merge=merge, horizon=10).play(6.0)
    fade = story.values(3.0, 3.7)[:, 0]
    assert np.all(np.diff(fade) <= 1e-9)
    assert np.sum(np.abs(fade) < 0.045) > 8, 'a fade and no switch'
    assert np.allclose(story.values(3.7, 6.0)[:, 0], -0.05), 'nothing of the old one is left'


def test_result_in_flight_for_the_old_instruction_is_dropped() -> None:
    """An inference of 0.5 s begun just before the change ends after it."""
    story = Scenario('widowx_bridge').told('right').told('left', at=3.25).enabled().answering(
        by_instruction).taking(lambda time: 0.5 if 3.0 < time < 3.3 else 0.02).play(6.0)
    assert story.inference.executor.counts['dropped: result for an earlier instruction'] == 1
    assert np.allclose(story.values(4.6, 6.0)[:, 0], -0.05)
    assert story.states(0.1, 6.0) == {'active'}


def test_old_plan_outlives_the_grace_by_nothing() -> None:
    """A plan of 2 s is stopped one second after the change, though it would last longer."""
    story = patient(right_then_left(horizon=10)).taking(
        lambda time: 1.5 if 3.0 <= time < 3.5 else 0.02).play(8.0, oldest_plan_s=3.0)
    hold = story.first('holding')
    assert 'instruction changed, no action chunk for it yet' in hold.tick.cause
    assert FAULT_AT + 0.99 <= hold.time <= FAULT_AT + 1.15  # status at 10 Hz
    resumed = story.first('active', after=hold.time)
    after = story.values(resumed.time, 8.0)[:, 0]
    assert np.all(after <= 1e-12), 'nothing of the old instruction after the grace'
    first = next(plan for time, plan in story.plans if time > hold.time)
    assert np.all(first.values[:, 0] == -0.01)
    assert np.allclose(after[-25:], -0.05)


def test_second_change_does_not_prolong_the_grace() -> None:
    scenario = patient(right_then_left(horizon=10)).taking(
        lambda time: None if time >= FAULT_AT else 0.02).told('right again', at=3.9)
    hold = scenario.play(8.0, oldest_plan_s=3.0).first('holding')
    assert 'instruction changed' in hold.tick.cause
    assert hold.time <= FAULT_AT + 1.15


@BOTH
def test_emptied_instruction_comes_to_rest_and_waits(robot: str) -> None:
    story = driving(robot).told('', at=FAULT_AT).play(6.0)
    waiting = story.first('waiting', after=FAULT_AT)
    assert waiting.time <= FAULT_AT + 0.03
    assert waiting.tick.cause.startswith('no instruction')
    assert story.rests(FAULT_AT + 0.4, 6.0)
    assert story.silent(FAULT_AT + 1.0, 6.0)


@BOTH
def test_after_an_empty_instruction_a_new_one_needs_enabling(robot: str) -> None:
    story = (driving(robot).told('', at=FAULT_AT).told('again', at=4.0).when(5.5, Enable())
             .play(7.0))
    assert story.states(4.0, 5.5) == {'waiting'}
    assert story.answers == ['']
    assert story.states(5.52, 7.0) == {'active'}


@BOTH
def test_enabling_after_an_empty_instruction_never_plays_the_old_plan(robot: str) -> None:
    """The old plan would last until 3.8 s; nothing for the new sentence comes before 4 s."""
    story = (driving(robot).taking(lambda time: 1.0 if 3.0 < time < 3.3 else 0.02)
             .told('', at=3.05).told('again', at=3.1).when(3.4, Enable()).play(3.9))
    assert story.answers[0].startswith('no plan yet')
    assert story.rests(3.4, 3.9)


@BOTH
def test_empty_instruction_counts_though_a_new_one_follows_at_once(robot: str) -> None:
    story = driving(robot).told('', at=3.005).told('again', at=3.01).play(6.0)
    assert story.states(3.02, 6.0) == {'waiting'}
    assert story.rests(3.5, 6.0)


def test_empty_instruction_drops_the_result_in_flight() -> None:
    story = driving('widowx_bridge').taking(lambda time: 0.3).told('', at=FAULT_AT).play(5.0)
    assert story.inference.executor.counts['dropped: result for an earlier instruction'] == 1
    assert not [time for time, _ in story.plans if time > FAULT_AT]


# --- e-stop and reset ---------------------------------------------------------------------------

@BOTH
def test_estop_rests_latches_and_needs_reset_and_enable(robot: str) -> None:
    story = (driving(robot).when(3.0, EStop(True)).when(3.5, Enable()).when(4.0, Reset())
             .when(4.5, EStop(False)).when(5.0, Enable()).when(5.5, Reset()).when(6.5, Enable())
             .play(8.0))
    assert story.answers == [
        'the e-stop is pressed; release it, then reset',
        'the e-stop is pressed; release it first: publish false on estop',
        'e-stop; reset first', '', '']
    stop = story.first('stopping', 'stopped')
    assert stop.time <= 3.021
    assert stop.tick.cause == 'e-stop'
    assert story.states(3.4, 5.5) == {'stopped'}
    assert story.rests(3.4, 6.5)
    assert story.silent(4.0, 6.5)
    assert story.states(5.52, 6.5) == {'waiting'}
    assert story.states(6.52, 8.0) == {'active'}


@BOTH
def test_estop_between_two_ticks_is_not_missed(robot: str) -> None:
    story = driving(robot).when(3.005, EStop(True)).when(3.01, EStop(False)).play(5.0)
    assert story.states(3.5, 5.0) == {'stopped'}
    assert story.rests(3.5, 5.0)


@BOTH
def test_reset_in_motion_rests_and_waits(robot: str) -> None:
    story = driving(robot).when(3.0, Reset()).play(5.0)
    assert story.states(3.0, 5.0) == {'waiting'}
    assert story.rests(3.4, 5.0)
    assert story.silent(4.0, 5.0)


@BOTH
def test_result_from_before_a_reset_never_becomes_a_plan(robot: str) -> None:
    """The first and the second: the one in flight and the one that waits in the mailbox."""
    story = (driving(robot, delay=0.3, options=GENTLE).when(3.25, Reset())
             .when(5.0, Enable()).play(7.0))
    assert story.inference.executor.counts['dropped: result from before the last reset'] == 1
    epoch_ns = story.at(3.3).epoch_ns
    after = [plan for time, plan in story.plans if time > 3.25]
    assert after
    assert all(plan.stamp_ns >= epoch_ns for plan in after)
    assert story.answers == ['', '']
    assert story.states(5.02, 7.0) == {'active'}


def test_failure_of_an_inference_from_before_a_reset_does_not_count() -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        return actions if time < FAULT_AT or time > 3.4 else actions * np.nan

    story = driving('widowx_bridge').answering(answer).taking(
        lambda time: 0.6 if 3.0 < time < 3.3 else 0.02).when(3.3, Reset()).when(
            5.0, Enable()).play(6.0)
    assert 'fault' not in story.states(0.0, 6.0)
    assert story.answers == ['', '']


@BOTH
def test_disable_rests_and_goes_silent(robot: str) -> None:
    story = driving(robot).when(3.0, Enable(False)).when(4.5, Enable()).play(6.0)
    assert story.states(3.02, 4.5) == {'waiting'}
    assert story.rests(3.4, 4.5)
    assert story.silent(4.0, 4.5)
    assert story.states(4.52, 6.0) == {'active'}


# --- other reactions ----------------------------------------------------------------------------

def reacting(scenario: Scenario, reaction: Reaction) -> Scenario:
    return scenario.changing(watchdog={
        layer: replace(limit, reaction=reaction)
        for layer, limit in scenario.robot.watchdog.items()})


@BOTH
@pytest.mark.parametrize(('reaction', 'speaks'), [
    (Reaction.DECELERATE, True), (Reaction.STOP_PUBLISHING, False)])
def test_severer_reactions_do_not_resume(robot: str, reaction: Reaction, speaks: bool) -> None:
    scenario = reacting(driving(robot), reaction)
    story = scenario.seeing(between(FAULT_AT, BACK_AT, lambda f: None)).when(
        7.0, Enable()).play(9.0)
    stop = story.first('stopping', 'stopped')
    assert ': no frame for' in stop.tick.cause
    assert story.states(stop.time + 0.5, 7.0) == {'stopped'}
    assert story.rests(stop.time + 0.4, 7.0)
    assert story.silent(stop.time + 1.2, 7.0) is not speaks
    assert story.answers == ['']
    assert story.states(7.02, 9.0) == {'active'}


# --- kinds of action ----------------------------------------------------------------------------

def one_step(robot: str, **changes: Any) -> Scenario:
    """A policy of one step; the plan may run out for as long as frames and results jitter."""
    scenario = driving(robot, horizon=1, fade_steps=1, start=Start.ARRIVAL, **changes)
    return scenario.changing(watchdog={
        **scenario.robot.watchdog, Layer.PLAN_EXHAUSTED: LayerLimit(NS_PER_S // 10)})


@BOTH
def test_single_step_runs_from_its_arrival(robot: str) -> None:
    story = one_step(robot, delay=0.15).play(5.0, exhausted_s=0.1)
    assert story.states(0.3, 5.0) == {'active'}
    for time, plan in story.plans:
        assert plan.start_ns == ORIGIN_NS + round(time * NS_PER_S)
        assert len(plan.values) == 1


@BOTH
def test_single_step_that_is_not_renewed_comes_to_rest(robot: str) -> None:
    story = one_step(robot).seeing(between(FAULT_AT, BACK_AT, lambda f: None)).play(
        8.0, exhausted_s=0.1)
    hold = story.first('holding')
    assert hold.tick.cause.startswith('plan exhausted')
    assert hold.time <= FAULT_AT + 0.6
    assert story.rests(hold.time + 0.3, BACK_AT)
    assert story.states(BACK_AT + RESUMED_S, 8.0) == {'active'}


def test_single_step_of_a_slow_engine_is_never_too_slow_but_too_old() -> None:
    story = one_step('widowx_bridge', delay=1.2).when(4.0, Enable()).play(6.0, exhausted_s=0.1)
    assert 'active' not in story.states(0.0, 6.0), 'an answer to what was seen 1.2 s ago'
    assert 'inference too slow' not in story.line()
    assert story.inference.rate == 1.0


def delta_policy(each: float, **changes: Any) -> Scenario:
    """so101 takes positions; the policy gives this change per step for shoulder_pan."""
    def answer(observation: Any, actions: Any, time: float) -> Any:
        wanted = np.zeros_like(actions)
        wanted[:, 0] = each
        return wanted

    return driving('so101', **changes).acting(Kind.DELTA).answering(answer)


def test_deltas_on_a_position_sink_reach_their_sum() -> None:
    """One chunk of 20 deltas, begun where the arm was measured."""
    scenario = delta_policy(0.01).seeing(lambda f, time: f if time < 0.02 else None)
    scenario._home['shoulder_pan'] = 0.3
    story = scenario.play(4.0)
    assert len(story.plans) == 1
    way = story.values(0.0, 4.0)[:, 0]
    assert np.all(np.diff(way) >= -1e-12)
    assert way[0] == pytest.approx(0.3, abs=0.02), 'begins where the arm is'
    # The age limit of 1 s ends it in the last period of the 20 steps.
    assert way[-1] == pytest.approx(0.3 + 20 * 0.01, abs=2e-3)


@pytest.mark.parametrize('merge', list(Merge))
def test_deltas_on_a_position_sink_are_never_applied_twice(merge: Merge) -> None:
    """0.1 rad/s, anchored anew 30 times a second: the arm moves as fast as the policy says.

    An arm that lags is where it was told to be before; `command_latency` makes up for that.
    """
    for lag in (0.01, 0.05, 0.1):
        scenario = delta_policy(0.005, merge=merge, lag=lag)
        scenario.robot = replace(scenario.robot, command_latency_ns=round((lag + 0.01) * 1e9))
        way = scenario.play(6.0).values(3.0, 6.0)[:, 0]
        assert (way[-1] - way[0]) / (len(way) / 50) == pytest.approx(0.1, rel=0.05), lag


@pytest.mark.parametrize('merge', list(Merge))
def test_deltas_on_an_arm_without_lag_never_move_it_faster_than_they_say(merge: Merge) -> None:
    way = delta_policy(0.005, merge=merge).play(6.0).values(3.0, 6.0)[:, 0]
    assert 0.08 < (way[-1] - way[0]) / (len(way) / 50) <= 0.1


def test_opposite_deltas_end_where_they_began() -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        wanted = np.zeros_like(actions)
        wanted[:10, 0], wanted[10:, 0] = 0.01, -0.01
        return wanted

    story = driving('so101').acting(Kind.DELTA).answering(answer).seeing(
        lambda f, time: f if time < 0.02 else None).play(4.0)
    way = story.values(0.0, 4.0)[:, 0]
    assert way.max() == pytest.approx(0.1, abs=0.01)
    assert way[-1] == pytest.approx(0.0, abs=1e-3)


def test_relative_actions_are_added_to_the_state_at_the_observation() -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        wanted = np.zeros_like(actions)
        target = 0.5  # wherever the arm is when it is seen
        at = observation.state[observation.state_names.index('shoulder_pan')]
        wanted[:, 0] = np.clip(target - at, -0.05, 0.05)
        return wanted

    story = driving('so101').acting(Kind.RELATIVE).answering(answer).play(8.0)
    way = story.values(0.0, 8.0)[:, 0]
    assert story.states(0.1, 8.0) == {'active'}
    assert np.all(way <= 0.5 + 1e-6), 'never past the target'
    assert way[-1] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize('kind', [Kind.VELOCITY, Kind.DELTA])
def test_short_chunk_is_padded_with_zeros(kind: Kind) -> None:
    """Two steps of four: the rest of the horizon stands still."""
    scenario = driving('widowx_bridge', pad_short_chunks=True, merge=Merge.LATEST_ONLY)
    if kind is Kind.VELOCITY:
        scenario.acting(kind)
        scenario.policy = with_velocity_units(scenario.policy)
    scale = 0.2 if kind is Kind.DELTA else 1.0

    def answer(observation: Any, actions: Any, time: float) -> Any:
        wanted = np.zeros_like(actions)
        wanted[:, 0], wanted[:, -1] = 0.05 * scale, 1.0
        return wanted[:2]

    story = scenario.answering(answer).seeing(
        lambda f, time: f if time < 3.0 else None).play(4.5)
    plan = story.plans[-1][1]
    assert len(plan.values) == 4
    assert np.all(plan.values[2:, 0] == 0.0)
    assert story.rests(3.3, 4.5)
    assert np.allclose(story.values(0.5, 3.0)[:, 0], 0.05)
    assert np.all(story.values(3.3, 4.5)[:, -1] == 1.0), 'the gripper keeps its value'


def with_velocity_units(policy: PolicyProfile) -> PolicyProfile:
    dimensions = tuple(d if d.kind is Kind.GRIPPER else replace(d, unit=f'{d.unit}/s')
                       for d in policy.action.dimensions)
    return replace(policy, action=replace(policy.action, dimensions=dimensions))


def test_short_chunk_of_positions_keeps_its_last_value() -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        return np.full_like(actions, 0.05)[:5]

    story = driving('so101', pad_short_chunks=True).answering(answer).play(4.0)
    assert all(np.allclose(plan.values, 0.05) for _, plan in story.plans)
    assert np.allclose(story.values(2.0, 4.0)[:, :5], 0.05)
    assert story.states(0.2, 4.0) == {'active'}


# --- where the arm really is --------------------------------------------------------------------

def test_far_first_target_refuses_to_enable() -> None:
    def answer(observation: Any, actions: Any, time: float) -> Any:
        return np.full_like(actions, 0.5)

    story = driving('so101').answering(answer).when(2.0, Enable()).play(3.0)
    assert story.states(0.1, 3.0) == {'waiting'}
    assert story.answers[0].startswith('shoulder_pan: the first target 0.500 rad is 0.500 rad from '
                                       'the measured 0.000 (activation_tolerance 0.1)')


def test_arm_moved_by_hand_during_a_hold_resumes_from_where_it_is() -> None:
    """Someone moves the arm by 0.3 rad: no jump back, and no jump of the command either."""
    def by_hand(sample: Any, time: float) -> Any:
        if time < FAULT_AT + 1.5 or time > BACK_AT + 0.2:
            return sample
        return replace(sample, positions=sample.positions + np.array([0.3, 0, 0, 0, 0, 0]))

    story = driving('so101').seeing(between(FAULT_AT, BACK_AT, lambda f: None)).measuring(
        by_hand).play(8.0, moved=True)
    hold = story.first('holding')
    resumed = story.first('active', after=hold.time)
    before = story.values(hold.time, resumed.time)[-1][0]
    first = story.values(resumed.time, 8.0)[0][0]
    assert first == pytest.approx(before + 0.3, abs=0.01), 'from the measured state'
