"""The control loop: what a person with a hand near the arm relies on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from core_rig import (
    MS,
    TICK_NS,
    Rig,
    config_of,
    limits_of,
    quaternion_spec,
    spec_of,
    watchdog_limits,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from vla_ros.core.action_spec import Kind
from vla_ros.core.control_config import State
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.counting import MOST_REASONS, Counts
from vla_ros.core.gripper import GripperMap
from vla_ros.core.limits import Limits
from vla_ros.core.types import NS_PER_S, InferenceStatus, Plan, StateSample
from vla_ros.core.watchdog import Layer, LayerLimit, Reaction

PERIOD = TICK_NS / NS_PER_S
TWO = spec_of(Kind.POSITION, Kind.POSITION)
FLOW = spec_of(Kind.VELOCITY, Kind.DELTA)


def rig_of(*kinds: Kind, **changes: Any) -> Rig:
    return Rig(config_of(spec_of(*(kinds or (Kind.POSITION, Kind.POSITION))), **changes))


def driving(*kinds: Kind, row: list[float] | None = None, **changes: Any) -> Rig:
    """A rig in full motion towards `row`, past the slow start."""
    rig = rig_of(*kinds, **changes)
    rig.start()
    rig.drive(row or [0.9] * rig.spec.size, 0.3)
    assert not rig.loop.at_rest
    return rig


def until_rest(rig: Rig, periods: int = 200) -> None:
    for _ in range(periods):
        if rig.loop.at_rest:
            return
        rig.tick()
    pytest.fail('the motion does not come to rest')


def assert_smooth(rig: Rig) -> None:
    """Positions that were sent, silence standing for the last one, keep every limit."""
    limits, columns = rig.loop.config.limits, rig.spec.of_kind(Kind.POSITION)
    place = [np.zeros(len(columns))]
    for command in rig.sent:
        if command is not None:
            assert np.isfinite(command.values).all()
            assert np.isfinite(command.velocities).all()
            assert np.isfinite(command.rollout).all()
            assert np.all(np.abs(command.velocities) <= limits.velocity * (1 + 1e-7))
        place.append(place[-1] if command is None else command.values[columns])
    track = np.array(place)
    speed = np.diff(track, axis=0) / PERIOD
    assert np.all(np.abs(speed) <= limits.velocity[columns] * (1 + 1e-7) + 1e-9)
    change = np.diff(np.vstack([np.zeros(len(columns)), speed]), axis=0) / PERIOD
    assert np.all(np.abs(change) <= limits.stop_deceleration[columns] * (1 + 1e-7) + 1e-7)
    assert np.all(track >= limits.position_low[columns] - 1e-9)
    assert np.all(track <= limits.position_high[columns] + 1e-9)


# --- before anything is enabled ---

def test_nothing_is_sent_before_it_is_enabled() -> None:
    rig = rig_of()
    rig.drive([0.5, 0.5], 1.0)
    assert rig.loop.state is State.WAITING
    assert rig.loop.cause == 'not enabled'
    assert rig.loop.silent
    assert not any(rig.sent)


def test_first_command_after_enable_is_at_most_one_step_from_the_measured_state() -> None:
    rig = Rig(config_of(TWO), measured=[0.30, -0.20])
    rig.steady([0.35, -0.25])
    assert rig.enable() == ''
    first = rig.tick().command
    assert first is not None
    slow = 0.25 * 4.0 * PERIOD * PERIOD
    assert np.all(np.abs(first.values - [0.30, -0.20]) <= 4.0 * PERIOD * PERIOD + 1e-12)
    assert np.all(np.abs(first.values - [0.30, -0.20]) > slow * 0.5)


def test_the_first_two_seconds_run_at_a_quarter_of_the_velocity_limits() -> None:
    rig = rig_of()
    rig.steady([0.05, 0.0])
    assert rig.enable() == ''
    rig.drive([0.9, 0.0], 1.98)
    slow = max(abs(c.velocities).max() for c in rig.sent if c is not None)
    assert slow == pytest.approx(0.25)
    rig.drive([0.9, 0.0], 0.5)
    assert max(abs(c.velocities).max() for c in rig.sent if c is not None) > 0.5


def refusal_cases() -> dict[str, tuple[Any, str]]:
    def no_plan(rig: Rig) -> None:
        pass

    def far(rig: Rig) -> None:
        rig.steady([0.0, 0.5])

    def stateless(rig: Rig) -> None:
        rig.measuring = False
        rig.run(0.8)
        rig.steady([0.0, 0.0])

    def pressed(rig: Rig) -> None:
        rig.loop.on_estop(True, rig.now_ns)
        rig.tick()
        rig.steady([0.0, 0.0])

    def released(rig: Rig) -> None:
        pressed(rig)
        rig.loop.on_estop(False, rig.now_ns)
        rig.run(0.6)

    def faulty(rig: Rig) -> None:
        rig.steady([0.0, np.nan])
        rig.tick()

    def waiting(rig: Rig) -> None:
        rig.alive = False
        rig.steady([0.0, 0.0])
        rig.status('wait', 'no instruction')

    def held(rig: Rig) -> None:
        rig.steady([0.0, 0.0])
        rig.status('hold', 'inference too slow: 1.2 s')

    def old(rig: Rig) -> None:
        rig.alive = False
        rig.plan([[0.0, 0.0]] * 20)
        for _ in range(60):
            rig.now_ns += TICK_NS
            rig.measure()
            rig.loop.on_status(InferenceStatus(0, rig.loop.epoch_ns))
            rig.loop.tick(rig.now_ns, TICK_NS)

    def exhausted(rig: Rig) -> None:
        rig.plan([[0.0, 0.0]])
        rig.run(0.3)

    def silent(rig: Rig) -> None:
        rig.alive = False
        rig.plan([[0.0, 0.0]] * 20)
        rig.run(0.6)

    return {'no plan': (no_plan, 'no plan yet'), 'far': (far, 'd1: the first target 0.500 rad'),
            'stateless': (stateless, 'd0: no fresh state'),
            'pressed': (pressed, 'e-stop is pressed'), 'released': (released, 'reset first'),
            'faulty': (faulty, 'd1 of step 0 is nan'), 'waiting': (waiting, 'no instruction'),
            'held': (held, 'inference too slow'), 'old': (old, 'observation too old'),
            'exhausted': (exhausted, 'plan exhausted'), 'silent': (silent, 'inference_node silent')}


@pytest.mark.parametrize('case', refusal_cases())
def test_enabling_is_refused_with_the_reason(case: str) -> None:
    prepare, message = refusal_cases()[case]
    rig = rig_of()
    prepare(rig)
    assert message in rig.enable()
    rig.run(0.2)
    assert rig.loop.state is not State.ACTIVE
    assert not any(rig.sent)


def test_enabling_needs_an_estop_publisher_where_the_robot_requires_one() -> None:
    rig = rig_of(estop_required=True)
    rig.steady([0.0, 0.0])
    assert 'nobody publishes the topic estop' in rig.enable()
    rig.loop.on_estop(False, rig.now_ns)
    assert rig.enable() == ''


def test_motion_stops_when_the_required_estop_publisher_vanishes() -> None:
    rig = rig_of(estop_required=True)
    rig.loop.on_estop(False, rig.now_ns)
    rig.start()
    rig.loop.estop_present = False
    rig.drive([0.9, 0.9], 1.0)
    assert rig.loop.state is State.STOPPED
    assert 'estop' in rig.loop.cause
    assert 'estop' in rig.enable()


def test_enabling_is_refused_while_the_motion_still_comes_to_rest() -> None:
    rig = driving()
    rig.loop.disable()
    rig.tick()
    rig.steady([0.9, 0.9])
    assert 'still coming to rest' in rig.enable()


def test_enabling_is_refused_between_a_disable_and_its_period() -> None:
    rig = driving()
    rig.loop.disable()
    until_rest(rig)
    rig.loop.disable('shut down')
    rig.steady(rig.measured)
    assert 'shut down' in rig.enable()


def test_tolerance_is_met_at_exactly_its_value() -> None:
    rig = rig_of(tolerance=np.array([0.125, 0.125]))
    rig.steady([0.125, -0.125])
    assert rig.enable() == ''
    rig = rig_of(tolerance=np.array([0.125, 0.125]))
    rig.steady([0.126, 0.0])
    assert 'd0' in rig.enable()


def test_enable_on_start_waits_until_enabling_is_allowed_and_happens_once() -> None:
    rig = rig_of(enable_on_start=True)
    rig.run(0.1)
    assert rig.loop.state is State.WAITING
    rig.steady([0.5, 0.0])
    rig.tick()
    assert rig.loop.state is State.WAITING
    rig.steady([0.0, 0.0])
    assert rig.tick().state is State.ACTIVE
    rig.loop.disable()
    rig.drive([0.0, 0.0], 0.5)
    assert rig.loop.state is State.WAITING


def test_enable_on_start_does_not_start_again_after_a_reset() -> None:
    rig = rig_of(enable_on_start=True)
    assert rig.loop.reset(rig.now_ns) == ''
    rig.drive([0.0, 0.0], 0.5)
    assert rig.loop.state is State.WAITING


# --- seeds ---

def test_a_fresh_last_command_near_the_robot_seeds_the_motion() -> None:
    rig = driving()
    rig.loop.disable()
    until_rest(rig)
    last = rig.commands()[-1]
    rig.follow = False
    rig.measured = last + 0.05
    rig.run(0.1)
    rig.steady(last)
    assert rig.enable() == ''
    np.testing.assert_allclose(rig.tick().command.values, last, atol=1e-12)


def test_a_last_command_far_from_the_robot_does_not_seed_the_motion() -> None:
    rig = driving()
    rig.loop.disable()
    until_rest(rig)
    rig.follow = False
    rig.measured = rig.commands()[-1] - 0.2
    rig.run(0.1)
    rig.steady(rig.measured)
    assert rig.enable() == ''
    np.testing.assert_allclose(rig.tick().command.values, rig.measured, atol=1e-12)


def test_an_old_last_command_does_not_seed_the_motion() -> None:
    rig = driving()
    rig.loop.disable()
    until_rest(rig)
    rig.run(2.0)
    assert rig.loop.silent
    rig.follow = False
    rig.measured = rig.commands()[-1] - 0.05
    rig.run(0.1)
    rig.steady(rig.measured)
    assert rig.enable() == ''
    np.testing.assert_allclose(rig.tick().command.values, rig.measured, atol=1e-12)


# --- stopping ---

def stops() -> dict[str, tuple[Any, State, State]]:
    """How motion can end: what to do, the state at once, the state at rest."""
    def disable(rig: Rig) -> None:
        rig.loop.disable()

    def estop(rig: Rig) -> None:
        rig.loop.on_estop(True, rig.now_ns)

    def fault(rig: Rig) -> None:
        rig.loop.fault('second publisher')

    def nan(rig: Rig) -> None:
        rig.steady([np.nan] * rig.spec.size)

    def reset(rig: Rig) -> None:
        assert rig.loop.reset(rig.now_ns) == ''

    def wait(rig: Rig) -> None:
        rig.alive = False
        rig.status('wait', 'no instruction')

    def broken(rig: Rig) -> None:
        rig.alive = False
        rig.status('fault', 'engine failed')

    def decelerate(rig: Rig) -> None:
        rig.alive = False
        rig.status('decelerate', 'as asked')

    def quit_publishing(rig: Rig) -> None:
        rig.alive = False
        rig.status('stop_publishing', 'as asked')

    def hold(rig: Rig) -> None:
        rig.alive = False
        rig.status('hold', 'inference too slow')

    return {'disable': (disable, State.WAITING, State.WAITING),
            'estop': (estop, State.STOPPING, State.STOPPED),
            'fault': (fault, State.FAULT, State.FAULT), 'nan': (nan, State.FAULT, State.FAULT),
            'reset': (reset, State.WAITING, State.WAITING),
            'wait': (wait, State.WAITING, State.WAITING),
            'broken': (broken, State.FAULT, State.FAULT),
            'decelerate': (decelerate, State.STOPPING, State.STOPPED),
            'stop_publishing': (quit_publishing, State.STOPPING, State.STOPPED),
            'hold': (hold, State.HOLDING, State.HOLDING)}


@pytest.mark.parametrize('kinds', [(Kind.POSITION, Kind.POSITION), (Kind.VELOCITY, Kind.DELTA)])
@pytest.mark.parametrize('case', stops())
def test_every_stop_brakes_to_rest_within_the_limits(case: str, kinds: tuple[Kind, ...]) -> None:
    stop, at_once, at_rest = stops()[case]
    rig = driving(*kinds, row=[0.9, 0.9] if kinds[0] is Kind.POSITION else [0.4, 0.08])
    before = rig.sent[-1]
    stop(rig)
    assert rig.tick().state is at_once
    first = rig.sent[-1]
    assert before is not None
    assert first is not None
    slowing = (before.velocities - first.velocities) / PERIOD
    assert np.all((slowing > 0.0) & (slowing <= 8.0 + 1e-9))
    until_rest(rig)
    assert rig.loop.state is at_rest
    assert_smooth(rig)
    np.testing.assert_array_equal(rig.sent[-1].velocities, [0.0, 0.0])
    resting = rig.sent[-1].values
    for tick in rig.run(0.48):
        assert tick.command is not None
        np.testing.assert_array_equal(tick.command.values, resting)


@pytest.mark.parametrize('case', [c for c in stops() if c not in ('decelerate', 'hold')])
def test_a_stop_that_ends_in_silence_sends_half_a_second_of_rest_first(case: str) -> None:
    stop, *_ = stops()[case]
    rig = driving(Kind.VELOCITY, Kind.VELOCITY, row=[0.4, 0.4])
    stop(rig)
    before = len(rig.sent)
    rig.run(2.0)
    assert rig.loop.silent
    assert rig.sent[-1] is None
    after = rig.sent[before:]
    assert len([c for c in after if c is not None and not c.values.any()]) >= 25
    gap = [command is None for command in rig.sent[-100:]]
    assert gap == sorted(gap), 'it fell silent and spoke again'


@pytest.mark.parametrize('case', ['decelerate', 'hold'])
def test_a_stop_that_keeps_publishing_never_falls_silent(case: str) -> None:
    stop, _, at_rest = stops()[case]
    rig = driving()
    stop(rig)
    assert all(tick.command is not None for tick in rig.run(3.0))
    assert rig.loop.state in (at_rest, State.HOLDING)


@pytest.mark.parametrize('case', [c for c in stops() if c != 'hold'])
def test_nothing_but_a_hold_moves_again_by_itself(case: str) -> None:
    stop, *_ = stops()[case]
    rig = driving(row=[0.5, 0.5])
    stop(rig)
    rig.tick()
    rig.alive = True
    rig.loop.on_estop(False, rig.now_ns)
    until_rest(rig)
    place = rig.measured.copy()
    rig.drive([0.9, -0.9], 2.0)
    np.testing.assert_array_equal(rig.measured, place)
    assert rig.loop.state is not State.ACTIVE


@pytest.mark.parametrize('case', ['estop', 'fault', 'nan', 'broken'])
def test_latched_stops_need_a_reset_and_an_enable(case: str) -> None:
    stop, *_ = stops()[case]
    rig = driving(row=[0.5, 0.5])
    stop(rig)
    rig.tick()
    rig.alive = True
    rig.loop.on_estop(False, rig.now_ns)
    until_rest(rig)
    rig.run(0.6)
    rig.steady(rig.measured)
    assert 'reset first' in rig.enable()
    assert rig.loop.reset(rig.now_ns) == ''
    rig.tick()
    assert rig.loop.state is State.WAITING
    rig.drive(rig.measured.tolist(), 0.1)
    assert rig.loop.state is State.WAITING
    assert rig.enable() == ''
    assert rig.tick().state is State.ACTIVE


def test_one_of_several_estops_that_is_pressed_outweighs_the_others() -> None:
    rig = driving(row=[0.5, 0.5])
    for _ in range(20):
        rig.loop.on_estop(True, rig.now_ns)
        rig.loop.on_estop(False, rig.now_ns)
        assert 'pressed' in rig.loop.reset(rig.now_ns)
        assert 'pressed' in rig.enable()
        rig.run(0.1)
    rig.run(0.6)
    assert rig.loop.reset(rig.now_ns) == ''


def test_enabling_while_a_stop_is_pending_is_refused() -> None:
    rig = driving(row=[0.5, 0.5])
    rig.loop.on_estop(True, rig.now_ns)
    assert 'pressed' in rig.enable()
    rig = driving(row=[0.5, 0.5])
    rig.loop.disable()
    assert rig.enable() == 'being stopped: disabled'


def test_reasons_of_any_text_are_counted_in_a_bounded_number() -> None:
    counts = Counts()
    for i in range(1000):
        counts[f'reason {i}'] += 1
    assert len(counts) == MOST_REASONS + 1
    assert sum(counts.values()) == 1000


@pytest.mark.parametrize('case', ['decelerate', 'stop_publishing', 'disable', 'wait'])
def test_other_stops_need_an_enable_only(case: str) -> None:
    stop, *_ = stops()[case]
    rig = driving(row=[0.5, 0.5])
    stop(rig)
    rig.tick()
    rig.alive = True
    until_rest(rig)
    rig.steady(rig.measured)
    rig.tick()
    assert rig.enable() == ''
    assert rig.tick().state is State.ACTIVE


# --- e-stop ---

def test_an_estop_pressed_and_released_between_two_periods_still_latches() -> None:
    rig = driving()
    rig.loop.on_estop(True, rig.now_ns)
    rig.loop.on_estop(False, rig.now_ns)
    assert rig.tick().state is State.STOPPING
    until_rest(rig)
    place = rig.measured.copy()
    rig.drive([0.9, -0.9], 2.0)
    np.testing.assert_array_equal(rig.measured, place)
    assert rig.loop.state is State.STOPPED
    assert rig.loop.cause == 'e-stop'


def test_reset_is_refused_while_the_estop_is_pressed() -> None:
    rig = driving()
    rig.loop.on_estop(True, rig.now_ns)
    rig.run(1.0)
    assert 'pressed' in rig.loop.reset(rig.now_ns)
    rig.loop.on_estop(False, rig.now_ns)
    assert rig.loop.reset(rig.now_ns) == ''


def test_an_estop_while_waiting_latches_too() -> None:
    rig = rig_of()
    rig.loop.on_estop(True, rig.now_ns)
    rig.tick()
    rig.loop.on_estop(False, rig.now_ns)
    rig.drive([0.0, 0.0], 0.2)
    assert rig.loop.state is State.STOPPED
    assert 'reset' in rig.enable()


def test_an_estop_drops_the_plan_and_begins_an_epoch() -> None:
    rig = driving()
    before = rig.now_ns
    rig.loop.on_estop(True, rig.now_ns + 1)
    assert rig.tick().reset_stamp_ns == before + 1
    assert rig.loop.plan is None
    assert 'before the last reset' in rig.plan([[0.0, 0.0]] * 4, stamp_ns=before)
    assert rig.loop.counts['e-stop'] == 1


# --- epochs and plans ---

def test_no_plan_older_than_a_reset_is_played() -> None:
    rig = rig_of()
    rig.steady([0.05, 0.05])
    assert rig.loop.reset(rig.now_ns + 5) == ''
    assert rig.loop.plan is None
    assert 'before the last reset' in rig.plan([[0.0, 0.0]] * 4, stamp_ns=rig.now_ns + 4)
    assert 'no plan yet' in rig.enable()
    assert rig.tick().reset_stamp_ns == rig.loop.epoch_ns
    assert rig.tick().reset_stamp_ns is None
    assert rig.plan([[0.0, 0.0]] * 4) == ''
    assert rig.loop.counts['dropped: plan from before the last reset'] == 1


def test_a_malformed_plan_from_before_the_reset_is_no_fault_of_the_new_epoch() -> None:
    rig = rig_of()
    sent = rig.make([[np.nan, 0.0]], rig.now_ns - 1)
    assert rig.loop.reset(rig.now_ns) == ''
    assert 'before the last reset' in rig.loop.on_plan(sent, rig.now_ns)
    assert rig.tick().state is State.WAITING


def test_a_reset_forgets_what_inference_said_before_it() -> None:
    rig = rig_of()
    rig.alive = False
    rig.status('fault', 'engine failed')
    assert rig.tick().state is State.FAULT
    assert rig.loop.reset(rig.now_ns) == ''
    assert rig.tick().state is State.WAITING
    rig.steady([0.0, 0.0])
    assert rig.enable() == ''


def test_an_older_plan_does_not_replace_a_newer_one() -> None:
    rig = rig_of()
    rig.run(0.2)
    rig.plan([[0.1, 0.1]] * 4, stamp_ns=rig.now_ns)
    assert 'older' in rig.plan([[0.2, 0.2]] * 4, stamp_ns=rig.now_ns - 1)
    assert rig.loop.plan is not None
    assert rig.loop.plan.values[0, 0] == 0.1


def test_a_plan_from_the_future_is_not_believed() -> None:
    rig = rig_of()
    assert 'future' in rig.plan([[0.0, 0.0]], stamp_ns=rig.now_ns + 60 * MS)
    assert rig.plan([[0.0, 0.0]], stamp_ns=rig.now_ns + 40 * MS) == ''


@pytest.mark.parametrize(('values', 'message'), [
    ([[0.0, float('nan')]], 'd1 of step 0 is nan; all values must be finite'),
    ([[0.0, 0.0], [float('inf'), 0.0]], 'd0 of step 1 is inf'),
    ([[0.0, -1e300], [0.0, 1e300]], 'd1 of step 0 is -1e+300'),
    ([[0.0, 0.0, 0.0]], 'shape (1, 3), expected [steps, 2]'),
    ([0.0, 0.0], 'shape (2,), expected [steps, 2]'),
    (np.empty((0, 2)), 'shape (0, 2)')])
def test_a_malformed_plan_is_a_fault_that_names_it(values: Any, message: str) -> None:
    rig = driving()
    assert message in rig.plan(values)
    assert rig.tick().state is State.FAULT
    assert message in rig.loop.cause
    until_rest(rig)
    assert_smooth(rig)


def test_a_plan_of_another_period_is_a_fault_that_names_both() -> None:
    rig = rig_of()
    plan = Plan(rig.now_ns, rig.now_ns, NS_PER_S // 10, np.zeros((4, 2)))
    assert 'period 0.1 s, the policy profile says 0.2 s' in rig.loop.on_plan(plan, rig.now_ns)
    assert rig.tick().state is State.FAULT


def test_a_quaternion_that_is_none_is_a_fault() -> None:
    free = Limits(*(np.full(4, v) for v in (-np.inf, *[np.inf] * 5)))
    spec = quaternion_spec()
    rig = Rig(config_of(spec, limits=free), measured=[0.0, 0.0, 0.0, 1.0])
    assert 'quaternion of step 1 has norm 0.000' in rig.plan(
        [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])


def test_a_quaternion_is_sent_with_unit_norm_and_either_sign_enables() -> None:
    limits = Limits(*(np.full(4, v) for v in (-np.inf, *[np.inf] * 5)))
    spec = quaternion_spec()
    rig = Rig(config_of(spec, limits=limits), measured=[0.0, 0.0, 0.0, 1.0])
    rig.steady([0.0, 0.0, 0.0, -1.0])
    assert rig.enable() == ''
    turned = [0.0, 0.0, np.sin(0.6), np.cos(0.6)]
    rig.plan([[0.0, 0.0, 0.0, -1.0], turned, turned, turned])
    for tick in rig.run(0.7):
        assert tick.command is not None
        assert np.linalg.norm(tick.command.values) == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(np.abs(rig.commands()[-1] @ turned), 1.0, atol=1e-9)


def test_the_first_command_of_a_plan_is_told_once() -> None:
    rig = rig_of()
    rig.steady([0.0, 0.0])
    rig.enable()
    assert rig.tick().first_of_plan is None, 'it had to wait for being enabled'
    rig.steady([0.0, 0.0])
    assert rig.tick().first_of_plan is rig.loop.plan
    assert rig.tick().first_of_plan is None


def test_a_number_gone_wrong_inside_never_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = driving()
    step = rig.loop._player._limiter.step

    def broken(*arguments: Any) -> Any:
        motion, clips = step(*arguments)
        return replace(motion, velocity=motion.velocity * np.nan), clips

    monkeypatch.setattr(rig.loop._player._limiter, 'step', broken)
    rig.steady([0.9, 0.9])
    assert rig.tick().state is State.FAULT
    assert 'not finite' in rig.loop.cause
    until_rest(rig)
    assert_smooth(rig)
    assert 'reset first' in rig.enable()


# --- holds ---

def test_an_exhausted_plan_holds_and_a_fresh_one_resumes_by_itself() -> None:
    rig = rig_of()
    rig.start()
    rig.plan([[0.9, 0.9]])
    rig.run(0.18)
    assert rig.loop.state is State.ACTIVE
    rig.run(0.06)
    assert rig.loop.state is State.HOLDING
    assert rig.loop.cause == 'plan exhausted'
    assert rig.loop.holds == {'plan exhausted': 1}
    rig.run(1.0)
    rig.drive([0.5, 0.5], 3.0)
    assert rig.loop.state is State.ACTIVE
    np.testing.assert_allclose(rig.measured, 0.5, atol=1e-9)
    assert_smooth(rig)


def test_a_plan_is_played_up_to_its_end_and_not_beyond() -> None:
    rig = rig_of()
    rig.start()
    rig.plan([[0.0, 0.0]] * 2)
    end = rig.now_ns + 2 * NS_PER_S // 5
    while rig.now_ns + TICK_NS < end:
        assert rig.tick().state is State.ACTIVE
    assert rig.tick().state is State.HOLDING


def test_a_hold_ends_only_at_rest() -> None:
    rig = driving()
    rig.alive = False
    rig.status('hold', 'too slow')
    rig.tick()
    rig.alive = True
    rig.steady([0.9, 0.9])
    states = []
    for _ in range(20):
        rig.steady([0.9, 0.9])
        states.append((rig.tick().state, rig.loop.at_rest))
    resumed = next(i for i, (state, _) in enumerate(states) if state is State.ACTIVE)
    assert resumed > 0
    assert states[resumed - 1][1]
    assert_smooth(rig)


def test_resume_waits_for_a_measured_state_and_says_so() -> None:
    rig = driving()
    rig.measuring = False
    rig.run(2.0)
    assert rig.loop.state is State.HOLDING
    rig.drive([0.9, 0.9], 0.2)
    assert rig.loop.state is State.HOLDING
    assert 'no fresh state' in rig.loop.cause
    rig.measuring = True
    rig.drive([0.9, 0.9], 0.1)
    assert rig.loop.state is State.ACTIVE


@pytest.mark.parametrize('by_hand', [False, True])
def test_motion_does_not_begin_from_a_state_that_was_measured_before_the_last_one_ended(
        by_hand: bool) -> None:
    rig = driving()
    rig.measuring = False
    rig.drive([0.9, 0.9], 0.2)
    if by_hand:
        rig.loop.disable()
        rig.run(0.2)
        rig.steady([rig.measured[0] - 0.25] * 2)  # near what was measured long ago
        assert rig.enable() == 'no state has been measured since the last motion ended'
    else:
        rig.alive = False
        rig.status('hold', 'late news')
        rig.run(0.2)
        rig.alive = True
        rig.drive([0.9, 0.9], 0.06)
        assert rig.loop.state is State.HOLDING
    rig.measuring = True
    rig.tick()
    rig.drive([rig.measured[0]] * 2, 0.1)
    assert_smooth(rig)
    if by_hand:
        assert rig.enable() == ''
    rig.drive([0.9, 0.9], 0.5)
    assert rig.loop.state is State.ACTIVE
    assert_smooth(rig)


def test_a_robot_that_was_pushed_during_a_hold_resumes_from_where_it_is() -> None:
    rig = driving()
    rig.run(2.0)
    rig.follow = False
    rig.measured = rig.measured - 0.3
    rig.run(0.1)
    rig.steady(rig.measured)
    assert rig.tick().state is State.ACTIVE
    np.testing.assert_allclose(rig.sent[-1].values, rig.measured, atol=1e-12)


def test_the_first_cause_of_a_hold_stays_while_others_follow() -> None:
    rig = driving()
    rig.alive = False
    rig.run(0.55)
    assert rig.loop.state is State.HOLDING
    assert rig.loop.cause.startswith('inference_node silent')
    rig.run(2.0)
    assert rig.loop.cause.startswith('inference_node silent')


@pytest.mark.parametrize(('reaction', 'state'), [
    (Reaction.HOLD, State.HOLDING), (Reaction.DECELERATE, State.STOPPED),
    (Reaction.STOP_PUBLISHING, State.STOPPED)])
def test_silence_of_inference_has_the_configured_reaction(reaction: Reaction, state: State) -> None:
    watchdog = watchdog_limits()
    watchdog[Layer.INFERENCE_SILENCE] = LayerLimit(NS_PER_S // 2, reaction)
    rig = driving(watchdog=watchdog)
    rig.alive = False
    for _ in range(100):
        rig.steady([0.9, 0.9])
        rig.tick()
    assert rig.loop.state is state
    assert 'inference_node silent' in rig.loop.cause
    assert rig.loop.silent == (reaction is Reaction.STOP_PUBLISHING)


def test_a_plan_without_new_observations_is_not_played_for_ever() -> None:
    rig = rig_of()
    rig.start()
    stamp = rig.now_ns
    rig.plan([[0.5, 0.5]] * 50)
    while rig.now_ns - stamp < NS_PER_S:
        assert rig.tick().state is State.ACTIVE
    assert rig.tick().state is State.HOLDING
    assert 'no new action chunk in time' in rig.loop.cause


def test_a_tolerated_exhausted_plan_brakes_and_does_not_crash() -> None:
    watchdog = watchdog_limits()
    watchdog[Layer.PLAN_EXHAUSTED] = LayerLimit(NS_PER_S // 2, Reaction.DECELERATE)
    rig = driving(watchdog=watchdog)
    rig.plan([[0.9, 0.9]])
    rig.run(0.5)
    assert rig.loop.state is State.ACTIVE
    assert rig.loop.at_rest
    rig.run(0.3)
    assert rig.loop.state is State.STOPPED
    assert_smooth(rig)


def test_a_late_period_holds_and_continues_by_itself() -> None:
    rig = driving()
    rig.steady([0.9, 0.9])
    rig.tick(real_ns=150 * MS)
    assert rig.loop.state is State.HOLDING
    assert 'control loop late: 0.15 s' in rig.loop.cause
    rig.drive([0.9, 0.9], 1.0)
    assert rig.loop.state is State.ACTIVE
    assert_smooth(rig)


def test_status_of_an_older_epoch_is_a_sign_of_life_and_nothing_else() -> None:
    rig = driving()
    rig.alive = False
    for _ in range(50):
        rig.status('fault', 'engine failed', epoch_ns=1)
        rig.steady([0.9, 0.9])
        assert rig.tick().state is State.ACTIVE


def test_a_status_with_an_unknown_reaction_is_a_fault_and_no_crash() -> None:
    rig = driving()
    rig.alive = False
    rig.status('panic', 'nonsense')
    assert rig.tick().state is State.FAULT
    assert "reaction 'panic'; allowed are none, hold" in rig.loop.cause


def test_the_cause_that_inference_tells_is_appended_to_what_is_late() -> None:
    rig = driving()
    rig.alive = False
    for _ in range(60):
        rig.status('none', 'primary: no frame for 0.9 s')
        rig.tick()
    assert rig.loop.cause == 'plan exhausted (primary: no frame for 0.9 s)'


def test_severity_wins_and_the_first_cause_is_told() -> None:
    rig = driving()
    rig.alive = False
    rig.status('hold', 'first')
    rig.tick()
    assert rig.loop.state is State.HOLDING
    rig.loop.on_estop(True, rig.now_ns)
    rig.tick()
    assert rig.loop.state is State.STOPPING
    assert rig.loop.cause == 'first'
    rig.loop.fault('third')
    assert rig.tick().state is State.FAULT
    rig.status('hold', 'fourth')
    assert rig.tick().state is State.FAULT


# --- velocity dimensions ---

def test_a_bounded_velocity_dimension_holds_without_a_measured_state() -> None:
    rig = driving(Kind.VELOCITY, Kind.DELTA, row=[0.2, 0.02])
    rig.measuring = False
    for _ in range(35):
        rig.steady([0.2, 0.02])
        rig.tick()
    assert rig.loop.state is State.HOLDING
    assert 'no fresh state: the last state of d0' in rig.loop.cause
    until_rest(rig)
    rig.measuring = True
    rig.drive([0.2, 0.02], 0.1)
    assert rig.loop.state is State.ACTIVE


def test_a_velocity_never_drives_the_measured_state_out_of_its_limits() -> None:
    rig = rig_of(Kind.VELOCITY, Kind.DELTA)
    rig.start([0.0, 0.0])
    rig.drive([5.0, 1.0], 3.0)
    assert np.all(rig.measured <= 1.0 + 1e-9)
    np.testing.assert_allclose(rig.measured, 1.0, atol=1e-6)
    assert rig.loop.clips['position'].min() > 0


@pytest.mark.parametrize('row', [[5.0, 1.0], [-5.0, -1.0]])
def test_a_state_that_is_measured_seldom_still_stops_the_velocity_in_time(row: list[float]) -> None:
    rig = rig_of(Kind.VELOCITY, Kind.DELTA)
    rig.start([0.0, 0.0])
    for k in range(200):
        rig.measuring = k % 10 == 0
        rig.steady(row)
        rig.tick()
        assert np.all(np.abs(rig.measured) <= 1.0 + 1e-6)
    assert np.all(np.abs(rig.measured) > 0.95)
    speeds = np.array([c.velocities for c in rig.sent if c is not None])
    assert np.all(np.abs(np.diff(speeds, axis=0)) <= 4.0 * PERIOD + 1e-9)


def test_a_delta_is_sent_as_the_velocity_that_makes_it_in_one_policy_period() -> None:
    rig = rig_of(Kind.DELTA, Kind.DELTA)
    rig.start([0.0, 0.0])
    begin = rig.measured.copy()
    rig.drive([0.02, -0.01], 1.0)
    np.testing.assert_allclose(rig.commands()[-1], [0.1, -0.05])
    np.testing.assert_allclose(rig.measured - begin, [0.1, -0.05], atol=0.003)


# --- clocks ---

@pytest.mark.parametrize('jump_s', [-5.0, -0.2, 0.2, 5.0, 3600.0])
def test_a_clock_jump_brings_rest_a_new_epoch_and_then_a_fresh_plan_resumes(jump_s: float) -> None:
    rig = driving()
    old = rig.loop.plan
    tick = rig.tick(jump_ns=int(jump_s * NS_PER_S))
    assert tick.state is State.HOLDING
    assert tick.cause.startswith('clock jump')
    assert tick.reset_stamp_ns == rig.now_ns == rig.loop.epoch_ns
    assert old is not None
    if jump_s > 0:
        assert 'before the last reset' in rig.loop.on_plan(old, rig.now_ns)
    else:
        assert rig.loop.on_plan(old, rig.now_ns)
    until_rest(rig)
    assert rig.loop.cause.startswith('clock jump')
    assert rig.loop.counts['clock jump'] == 1
    rig.drive([0.9, 0.9], 3.0)
    assert rig.loop.state is State.ACTIVE
    assert_smooth(rig)
    np.testing.assert_allclose(rig.measured, 0.9, atol=1e-6)


def test_a_small_step_of_the_clock_is_no_jump() -> None:
    rig = driving()
    rig.tick(jump_ns=90 * MS)
    assert rig.loop.state is State.ACTIVE


def test_a_clock_jump_neither_stretches_nor_skips_the_slow_start() -> None:
    rig = rig_of()
    rig.steady([0.0, 0.0])
    assert rig.enable() == ''
    rig.drive([0.9, 0.9], 0.5)
    rig.tick(jump_ns=100 * NS_PER_S)
    rig.drive([0.9, 0.9], 1.4)
    assert np.abs([c.velocities for c in rig.sent if c is not None]).max() <= 0.25 + 1e-9


# --- gripper ---

def gripper_rig(**changes: Any) -> Rig:
    return rig_of(Kind.POSITION, Kind.GRIPPER, grippers={1: GripperMap(**changes)},
                  limits=limits_of(2, low=0.0))


def test_the_gripper_map_is_applied_to_what_is_sent() -> None:
    rig = gripper_rig(scale=0.08, offset=0.01, invert=True)
    rig.start([0.0, 0.25])
    assert rig.commands()[-1, 1] == pytest.approx(0.08 * 0.75 + 0.01)


def test_a_dithering_gripper_does_not_move() -> None:
    rig = gripper_rig(hysteresis=0.2)
    rig.start([0.0, 0.5])
    sent = len(rig.commands())
    for k in range(50):
        rig.steady([0.0, 0.5 + 0.15 * (-1) ** k])
        rig.tick()
    assert set(rig.commands()[sent:, 1]) == {0.5}
    rig.drive([0.0, 0.9], 0.1)
    assert rig.commands()[-1, 1] == 0.9


def test_gripper_changes_lie_a_dwell_apart() -> None:
    rig = gripper_rig(minimum_dwell_ns=NS_PER_S // 5)
    rig.start([0.0, 0.0])
    for k in range(100):
        rig.steady([0.0, float(k % 2)])
        rig.tick()
    changes = np.flatnonzero(np.diff(rig.commands()[-100:, 1]))
    assert len(changes) > 3
    assert np.diff(changes).min() >= 10


@pytest.mark.parametrize('case', stops())
def test_the_gripper_keeps_its_value_through_every_stop(case: str) -> None:
    stop, *_ = stops()[case]
    rig = gripper_rig()
    rig.start([0.0, 0.8])
    rig.drive([0.9, 0.8], 0.3)
    stop(rig)
    sent = len(rig.commands())
    rig.run(2.0)
    assert set(rig.commands()[sent:, 1]) == {0.8}


def test_the_gripper_keeps_its_value_from_a_stop_to_the_next_enable() -> None:
    rig = gripper_rig()
    rig.start([0.0, 0.8])
    rig.loop.disable()
    rig.run(2.0)
    rig.steady([0.0, 0.3])
    assert rig.enable() == ''
    rig.alive = False
    rig.status('hold', 'late news')
    assert rig.tick().state is State.HOLDING
    assert rig.sent[-1] is not None
    assert rig.sent[-1].values[1] == 0.8


def test_a_hold_before_the_first_command_does_not_send_an_invented_gripper_value() -> None:
    rig = gripper_rig()
    rig.measured = np.array([0.0, 0.8])
    rig.measure()
    rig.steady([0.0, 0.8])
    assert rig.enable() == ''
    rig.alive = False
    rig.status('hold', 'late news')
    rig.tick()
    assert rig.sent[-1] is not None
    assert rig.sent[-1].values[1] == 0.8


# --- roll-out, shadow, counts ---

@pytest.mark.parametrize('stopping', [False, True])
def test_the_roll_out_is_what_the_limiter_then_really_does(stopping: bool) -> None:
    rig = rig_of(rollout_steps=5)
    rig.start()
    rig.plan([[0.2, 0.1], [0.5, -0.2], [0.6, 0.3], [0.9, 0.0]])
    rig.run(0.3)
    if stopping:
        rig.loop.on_estop(True, rig.now_ns)
    for _ in range(3):
        promised = rig.tick().command.rollout
        assert promised.shape == (5, 2)
        before = len(rig.commands())
        rig.run(0.1)
        np.testing.assert_allclose(rig.commands()[before:before + 5], promised, atol=1e-12)


def test_the_roll_out_across_the_end_of_the_slow_start_and_of_the_plan_comes_true() -> None:
    rig = rig_of(rollout_steps=5)
    rig.plan([[0.0, 0.0]] + [[0.9, 0.9]] * 4)
    assert rig.enable() == ''
    ticks = rig.run(1.2)
    sent = rig.commands()
    for k, tick in enumerate(ticks[:-5]):
        np.testing.assert_allclose(tick.command.rollout, sent[k + 1:k + 6], atol=1e-12)
    assert rig.loop.state is State.HOLDING


def test_a_shadow_says_that_it_is_one_and_computes_the_same() -> None:
    shadow, real = rig_of(shadow=True), rig_of()
    for rig in (shadow, real):
        rig.start([0.0, 0.0])
        rig.drive([0.4, 0.2], 0.5)
    assert shadow.loop.state is State.SHADOW
    np.testing.assert_array_equal(shadow.commands(), real.commands())


def test_clips_are_counted_by_limit_and_dimension() -> None:
    rig = driving(row=[5.0, 0.0])
    assert rig.loop.clips['position'][0] > 0
    assert rig.loop.clips['velocity'][0] > 0
    assert set(rig.loop.clips) == {'position', 'velocity', 'acceleration', 'jerk'}
    assert rig.loop.clips['position'][1] == 0


def test_the_same_inputs_give_the_same_commands_bit_for_bit() -> None:
    runs = []
    for _ in range(2):
        rig = driving(row=[0.7, -0.3])
        rig.run(1.0)
        rig.drive([0.1, 0.1], 1.0)
        runs.append(rig.commands())
    np.testing.assert_array_equal(*runs)


def test_a_measurement_that_is_no_number_is_dropped_and_counted() -> None:
    rig = driving()
    reason = rig.loop.on_state(StateSample(
        rig.now_ns + 1, rig.now_ns + 1, ('d0', 'd1'), np.array([np.nan, 0.1])))
    assert 'd0 is not finite' in reason
    assert rig.loop.counts['dropped: joint state: d0 is not finite'] == 1


def test_the_first_period_begins_an_epoch_so_that_older_plans_are_nothing() -> None:
    loop = ControlLoop(config_of(TWO))
    early = Plan(NS_PER_S, NS_PER_S, NS_PER_S // 5, np.zeros((4, 2)))
    assert loop.on_plan(early, NS_PER_S) == ''
    tick = loop.tick(NS_PER_S + 1, TICK_NS)
    assert tick.reset_stamp_ns == NS_PER_S + 1
    assert loop.plan is None


# --- whatever happens ---

EVENTS = st.one_of(
    st.tuples(st.just('plan'), st.lists(st.lists(st.floats(-1.5, 1.5), min_size=3, max_size=3),
                                        min_size=1, max_size=4)),
    st.tuples(st.just('plan'), st.lists(st.lists(st.floats(-0.3, 0.3), min_size=3, max_size=3),
                                        min_size=1, max_size=4)),
    st.tuples(st.sampled_from(['none', 'estop', 'recover', 'recover', 'disable', 'enable', 'hold',
                               'wait', 'silence', 'late', 'fault', 'nan', 'drop out']), st.none()),
    st.tuples(st.just('jump'), st.floats(-3.0, 3.0)))
SCRIPT = st.lists(st.tuples(EVENTS, st.integers(1, 15)), min_size=3, max_size=12)


def happen(rig: Rig, event: str, argument: Any) -> None:
    loop = rig.loop
    if event == 'plan':
        rig.plan(argument)
    elif event == 'estop':
        loop.on_estop(True, rig.now_ns)
    elif event == 'recover':
        loop.on_estop(False, rig.now_ns)
        loop.reset(rig.now_ns)
        rig.alive = rig.measuring = True
        rig.run(0.5)
        rig.steady(rig.measured, steps=10)
        rig.enable()
    elif event == 'disable':
        loop.disable()
    elif event == 'enable':
        rig.steady(rig.measured)
        rig.enable()
    elif event in ('hold', 'wait'):
        rig.alive = False
        rig.status(event, event)
    elif event == 'silence':
        rig.alive = False
    elif event == 'none':
        rig.alive = rig.measuring = True
    elif event == 'late':
        rig.tick(real_ns=180 * MS)
    elif event == 'fault':
        loop.fault('something')
    elif event == 'nan':
        rig.steady([np.nan] * 3)
    elif event == 'drop out':
        rig.measuring = False
    elif event == 'jump':
        rig.tick(jump_ns=int(argument * NS_PER_S))


@settings(max_examples=40)
@given(SCRIPT, st.sampled_from([np.inf, 60.0]))
def test_no_command_ever_breaks_a_limit_whatever_happens(script: Any, jerk: float) -> None:
    spec = spec_of(Kind.POSITION, Kind.POSITION, Kind.VELOCITY)
    limits = Limits(*(np.array(v) for v in (
        [-0.5, -1.0, -0.4], [0.5, 1.0, 0.4], [1.0, 0.6, 0.8], [4.0, 2.0, 3.0], [jerk] * 3,
        [8.0, 2.0, 4.0])))
    rig = Rig(config_of(spec, limits=limits, rollout_steps=1))
    rig.start([0.0, 0.0, 0.0])
    for (event, argument), periods in script:
        happen(rig, event, argument)
        for _ in range(periods):
            rig.tick()
        state = rig.loop.state
        assert state is not State.ACTIVE or rig.loop.plan is not None
    assert_smooth(rig)
    assert np.abs(rig.measured[2]) <= 0.4 + 0.05
    assert np.all(np.abs(np.diff([0.0] + [
        0.0 if c is None else c.velocities[2] for c in rig.sent])) <= 4.0 * PERIOD + 1e-9)
