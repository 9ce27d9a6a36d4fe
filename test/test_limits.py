"""The limiter: what no sequence of targets may ever bring about."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from core_rig import dimension, limits_of, quaternion_spec, spec_of
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.core.action_spec import ActionSpec, Group, Kind
from vla_ros.core.limits import Clips, Limiter, Limits, Motion, stopping_velocity
from vla_ros.core.types import Floats

PERIOD = 0.02
INF = float('inf')


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, width=64)


@st.composite
def limits(draw: st.DrawFn, size: int = 3, jerk: bool = True) -> Limits:
    column = st.lists
    acceleration = np.array(draw(column(numbers(0.2, 10.0), min_size=size, max_size=size)))
    stop = acceleration * np.array(draw(column(numbers(1.0, 3.0), min_size=size, max_size=size)))
    velocity = np.array(draw(column(numbers(0.1, 2.0), min_size=size, max_size=size)))
    jerks = np.full(size, INF)
    if jerk and draw(st.booleans()):
        jerks = np.array(draw(column(numbers(30.0, 400.0), min_size=size, max_size=size)))
    return Limits(np.full(size, -1.0), np.full(size, 1.0), velocity, acceleration, jerks, stop)


def rows(size: int = 3, reach: float = 3.0) -> st.SearchStrategy[list[tuple[list[float], int]]]:
    """Targets, each kept for a number of periods."""
    row = st.lists(numbers(-reach, reach) | st.sampled_from([-1.0, 0.0, 1.0]),
                   min_size=size, max_size=size)
    return st.lists(st.tuples(row, st.integers(1, 25)), min_size=1, max_size=8)


def starts(size: int = 3, reach: float = 1.0) -> st.SearchStrategy[list[float]]:
    return st.lists(numbers(-reach, reach), min_size=size, max_size=size)


@dataclass
class Track:
    """Positions [n + 1, A] with the start first, and the motion at the end."""

    positions: Floats
    velocities: Floats
    motion: Motion
    clips: list[Clips]

    def derivative(self, order: int) -> Floats:
        """Finite differences of the positions; before the start there was rest."""
        rest = np.repeat(self.positions[:1], order, axis=0)
        return np.asarray(
            np.diff(np.vstack([rest, self.positions]), n=order, axis=0) / PERIOD ** order)


def follow(limiter: Limiter, start: Motion, sequence: list[tuple[list[float], int]],
           scale: float = 1.0) -> Track:
    motion, clips = start, []
    positions, velocities = [motion.position], []
    for row, periods in sequence:
        for _ in range(periods):
            motion, clip = limiter.step(motion, np.array(row), velocity_scale=scale)
            positions.append(motion.position)
            velocities.append(motion.velocity)
            clips.append(clip)
    return Track(np.array(positions), np.array(velocities), motion, clips)


def braked(limiter: Limiter, motion: Motion, periods: int = 2000) -> Track:
    positions, velocities = [motion.position], []
    while not motion.at_rest:
        motion = limiter.brake(motion)
        positions.append(motion.position)
        velocities.append(motion.velocity)
        assert len(positions) < periods, 'braking does not end'
    return Track(np.array(positions), np.array(velocities), motion, [])


def within(values: Floats, bound: Floats, slack: float = 1e-7) -> None:
    excess = np.abs(values) - bound * (1.0 + 1e-7)
    assert excess.max(initial=-1.0) <= slack, f'exceeded by {excess.max()}'


JOINTS = spec_of(Kind.POSITION, Kind.POSITION, Kind.POSITION)


# --- positions ---

@given(limits(), starts(), rows())
def test_no_target_sequence_breaks_a_limit_from_rest_inside(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.array(start)), sequence)
    assert track.positions.max() <= 1.0 + 1e-9
    assert track.positions.min() >= -1.0 - 1e-9
    within(track.derivative(1), bounds.velocity)
    within(track.derivative(2), bounds.acceleration)
    finite = np.isfinite(bounds.jerk)
    within(track.derivative(3)[:, finite], bounds.jerk[finite], 1e-5)


@given(limits(), starts(), rows())
def test_reported_velocity_is_the_finite_difference_of_the_positions(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.array(start)), sequence)
    np.testing.assert_allclose(track.velocities, track.derivative(1)[1:], atol=1e-9)


@given(limits(), starts(), starts())
def test_a_straight_way_from_rest_keeps_its_direction(
        bounds: Limits, start: list[float], target: list[float]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    begin, way = np.array(start), np.array(target) - np.array(start)
    track = follow(limiter, limiter.at_rest(begin), [(target, 150)])
    moved = track.positions - begin
    length = float(way @ way)
    share = moved @ way / length if length > 0.0 else np.zeros(len(moved))
    np.testing.assert_allclose(moved, share[:, None] * way, atol=1e-9)


@given(limits(), starts(), starts())
def test_a_static_target_is_never_overshot_and_is_reached(
        bounds: Limits, start: list[float], target: list[float]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    begin, goal = np.array(start), np.array(target)
    motion = limiter.at_rest(begin)
    for _ in range(3000):
        motion, _ = limiter.step(motion, goal)
        assert ((goal - motion.position) * np.sign(goal - begin)).min() >= -1e-9
        if np.abs(goal - motion.position).max() < 1e-9 and np.abs(motion.velocity).max() < 1e-9:
            return
    pytest.fail(f'still {goal - motion.position} away')


@given(limits(jerk=False), starts(), rows(), starts())
def test_a_target_that_can_still_be_stopped_for_is_not_overshot_whatever_came_before(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]],
        target: list[float]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    motion = follow(limiter, limiter.at_rest(np.array(start)), sequence).motion
    goal, brake = np.array(target), bounds.acceleration * PERIOD
    side = np.sign(goal - motion.position)
    in_time = np.abs(motion.velocity) - brake <= stopping_velocity(
        np.abs(goal - motion.position), brake, PERIOD)
    bound = in_time & (side != 0)
    for _ in range(60):
        motion, _ = limiter.step(motion, goal)
        assert np.all(((goal - motion.position) * side)[bound] >= -1e-9)


@given(limits(), starts(reach=2.5), rows())
def test_from_outside_the_position_limits_only_inward_motion_comes(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.array(start)), sequence)
    outside = np.maximum(np.abs(track.positions) - 1.0, 0.0)
    assert np.diff(outside, axis=0).max(initial=0.0) <= 1e-9
    within(track.derivative(1), bounds.velocity)
    within(track.derivative(2), bounds.acceleration)


@given(limits(), starts(), rows())
def test_braking_from_any_reachable_state_ends_at_rest_within_the_limits(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    moving = follow(limiter, limiter.at_rest(np.array(start)), sequence).motion
    stop = braked(limiter, moving)
    assert np.abs(stop.positions).max() <= 1.0 + 1e-9
    speeds = np.vstack([moving.velocity, stop.velocities]) if len(stop.velocities) else np.zeros(
        (1, 3))
    within(np.diff(speeds, axis=0) / PERIOD, bounds.stop_deceleration)
    assert np.diff(np.abs(speeds), axis=0).max(initial=0.0) <= 1e-12
    assert not np.any(stop.motion.velocity)


@given(limits(), starts(), rows(), rows())
def test_after_a_stop_in_mid_motion_the_limits_hold_on(
        bounds: Limits, start: list[float], first: list[tuple[list[float], int]],
        second: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    moving = follow(limiter, limiter.at_rest(np.array(start)), first).motion
    resting = braked(limiter, moving).motion
    seeded = limiter.at_rest(resting.position)
    track = follow(limiter, seeded, second)
    np.testing.assert_array_equal(track.positions[0], resting.position)
    assert np.abs(track.positions).max() <= 1.0 + 1e-9
    within(track.derivative(2), bounds.acceleration)
    finite = np.isfinite(bounds.jerk)
    within(track.derivative(3)[:, finite], bounds.jerk[finite], 1e-5)


@given(limits(), starts(), rows(), numbers(0.05, 1.0))
def test_velocity_scale_shrinks_the_velocity_limits(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]],
        scale: float) -> None:
    limiter = Limiter(JOINTS, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.array(start)), sequence, scale)
    within(track.derivative(1), bounds.velocity * scale)


def test_velocity_returns_below_a_scale_that_falls_in_mid_motion() -> None:
    limiter = Limiter(spec_of(Kind.POSITION), limits_of(1, velocity=1.0, acceleration=4.0), PERIOD)
    fast = follow(limiter, limiter.at_rest(np.array([-1.0])), [([1.0], 20)]).motion
    assert fast.velocity[0] > 0.9
    slowed = follow(limiter, fast, [([1.0], 12)], scale=0.25)
    assert slowed.motion.velocity[0] <= 0.25 + 1e-9
    within(np.diff(slowed.velocities, axis=0) / PERIOD, limiter.limits.acceleration)


def test_a_plan_within_the_limits_is_followed_at_its_own_speed() -> None:
    limiter = Limiter(spec_of(Kind.POSITION), limits_of(1, velocity=1.0, acceleration=4.0), PERIOD)
    motion = limiter.at_rest(np.array([0.0]))
    for k in range(1, 101):
        motion, _ = limiter.step(motion, np.array([0.2 * k * PERIOD]))
    assert motion.velocity[0] == pytest.approx(0.2, rel=1e-3)
    assert 0.4 - motion.position[0] < 0.2 ** 2 / (2 * 4.0) + 0.2 * PERIOD * 2


@given(limits(), starts(), rows())
def test_the_same_targets_give_the_same_motion_bit_for_bit(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    tracks = []
    for _ in range(2):
        limiter = Limiter(JOINTS, bounds, PERIOD)
        tracks.append(follow(limiter, limiter.at_rest(np.array(start)), sequence))
    np.testing.assert_array_equal(tracks[0].positions, tracks[1].positions)


def test_a_step_leaves_its_inputs_alone() -> None:
    limiter = Limiter(JOINTS, limits_of(3, jerk=100.0), PERIOD)
    motion = limiter.at_rest(np.zeros(3))
    setpoint = np.array([5.0, -5.0, 0.5])
    before = (motion.position.copy(), motion.history.copy(), setpoint.copy())
    for _ in range(3):
        limiter.step(motion, setpoint)
        limiter.brake(motion)
    for kept, now in zip(before, (motion.position, motion.history, setpoint), strict=True):
        np.testing.assert_array_equal(kept, now)


# --- velocities and deltas ---

@given(limits(), rows())
def test_velocity_dimensions_ramp_within_the_limits_and_to_exactly_zero(
        bounds: Limits, sequence: list[tuple[list[float], int]]) -> None:
    spec = spec_of(Kind.VELOCITY, Kind.DELTA, Kind.VELOCITY)
    limiter = Limiter(spec, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.zeros(3)), sequence)
    within(track.velocities, bounds.velocity)
    speeds = np.vstack([np.zeros(3), track.velocities])
    within(np.diff(speeds, axis=0) / PERIOD, bounds.acceleration)
    stop = braked(limiter, track.motion)
    speeds = np.vstack([track.motion.velocity, *stop.velocities])
    within(np.diff(speeds, axis=0) / PERIOD, bounds.stop_deceleration)
    np.testing.assert_array_equal(stop.motion.velocity, np.zeros(3))
    asked = track.motion
    for _ in range(1000):
        if asked.at_rest:
            break
        asked, _ = limiter.step(asked, np.zeros(3))
    np.testing.assert_array_equal(asked.velocity, np.zeros(3))


@given(limits(), starts(), rows(), st.sampled_from([Kind.VELOCITY, Kind.DELTA]))
def test_velocity_dimensions_stop_at_the_position_limits_of_the_measured_state(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]],
        kind: Kind) -> None:
    limiter = Limiter(spec_of(kind, kind, kind), bounds, PERIOD)
    motion, measured = limiter.at_rest(np.zeros(3)), np.array(start)
    for row, periods in sequence:
        for _ in range(periods):
            motion, _ = limiter.step(motion, np.array(row), measured)
            measured = measured + PERIOD * motion.velocity
            assert np.abs(measured).max() <= 1.0 + 1e-9


@given(limits(jerk=False), starts(), rows())
def test_velocity_dimensions_brake_in_time_for_the_position_limit(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY, Kind.VELOCITY, Kind.VELOCITY), bounds, PERIOD)
    motion, measured = limiter.at_rest(np.zeros(3)), np.array(start)
    for row, periods in sequence:
        for _ in range(periods):
            after, _ = limiter.step(motion, np.array(row), measured)
            within((after.velocity - motion.velocity) / PERIOD, bounds.acceleration)
            motion, measured = after, measured + PERIOD * after.velocity


@pytest.mark.parametrize('sign', [-1.0, 1.0])
def test_what_the_jerk_average_holds_back_does_not_cross_the_position_limit(sign: float) -> None:
    bounds = limits_of(1, velocity=2.0, acceleration=10.0, stop=10.0, jerk=50.0)
    limiter = Limiter(spec_of(Kind.VELOCITY), bounds, PERIOD)
    motion, measured = limiter.at_rest(np.zeros(1)), np.zeros(1)
    for _ in range(150):
        motion, _ = limiter.step(motion, np.array([sign * 2.0]), measured)
        measured = measured + PERIOD * motion.velocity
        assert abs(measured[0]) <= 1.0 + 1e-9
    assert abs(measured[0]) > 0.99


def test_a_velocity_dimension_outside_its_limits_moves_inward_only() -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY), limits_of(1), PERIOD)
    outward, clips = limiter.step(limiter.at_rest(np.zeros(1)), np.array([0.5]), np.array([1.2]))
    assert outward.velocity[0] == 0.0
    assert clips.position[0]
    inward, _ = limiter.step(limiter.at_rest(np.zeros(1)), np.array([-0.5]), np.array([1.2]))
    assert inward.velocity[0] < 0.0


def test_a_member_at_its_position_limit_does_not_freeze_its_group() -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY, Kind.VELOCITY), limits_of(2), PERIOD)
    motion, measured = limiter.at_rest(np.zeros(2)), np.array([1.0, 0.0])
    for _ in range(50):
        motion, _ = limiter.step(motion, np.array([0.01, 0.3]), measured)
    np.testing.assert_allclose(motion.velocity, [0.0, 0.3], atol=1e-12)


def test_an_unmeasured_velocity_dimension_has_no_position_to_keep() -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY), limits_of(1), PERIOD)
    motion, _ = limiter.step(limiter.at_rest(np.zeros(1)), np.array([0.05]), np.array([np.nan]))
    assert motion.velocity[0] == pytest.approx(0.05)


# --- mixed specs, grippers, quaternions ---

MIXED = ActionSpec((
    dimension('x', Kind.POSITION, Group.TRANSLATION),
    dimension('y', Kind.POSITION, Group.TRANSLATION),
    dimension('wheel', Kind.VELOCITY), dimension('grip', Kind.GRIPPER, Group.GRIPPER)))


@given(limits(4), starts(4), rows(4))
def test_mixed_kinds_keep_their_limits_side_by_side(
        bounds: Limits, start: list[float], sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(MIXED, bounds, PERIOD)
    track = follow(limiter, limiter.at_rest(np.array(start)), sequence)
    arms = track.derivative(2)[:, :2]
    assert np.abs(track.positions[:, :2]).max() <= 1.0 + 1e-9
    within(arms, bounds.acceleration[:2])
    within(track.velocities, bounds.velocity)
    within(np.diff(np.vstack([np.zeros(4), track.velocities]), axis=0)[:, 2] / PERIOD,
           bounds.acceleration[2])


def test_a_gripper_takes_its_value_at_once_and_keeps_it_while_braking() -> None:
    limiter = Limiter(MIXED, limits_of(4, low=0.0), PERIOD)
    motion, clips = limiter.step(limiter.at_rest(np.zeros(4)), np.array([0.0, 0.0, 0.3, 0.7]))
    assert motion.position[3] == 0.7
    assert not clips.velocity[3]
    assert not clips.acceleration[3]
    assert limiter.brake(motion).position[3] == 0.7
    beyond, clips = limiter.step(motion, np.array([0.0, 0.0, 0.0, 1.4]))
    assert beyond.position[3] == 1.0
    assert clips.position[3]


def test_one_group_is_not_slowed_by_another() -> None:
    spec = ActionSpec((dimension('x', Kind.VELOCITY, Group.TRANSLATION),
                       dimension('j', Kind.VELOCITY, Group.JOINTS)))
    limiter = Limiter(spec, limits_of(2, velocity=0.5, acceleration=1000.0, stop=1000.0), PERIOD)
    motion, _ = limiter.step(limiter.at_rest(np.zeros(2)), np.array([5.0, 0.4]))
    np.testing.assert_allclose(motion.velocity, [0.5, 0.4])


def test_a_quaternion_and_its_negative_are_one_target() -> None:
    free = Limits(*(np.full(4, v) for v in (-INF, INF, INF, INF, INF, INF)))
    limiter = Limiter(quaternion_spec(), free, PERIOD)
    here = np.array([0.0, 0.0, np.sin(0.1), np.cos(0.1)])
    motion, _ = limiter.step(limiter.at_rest(here), -here)
    np.testing.assert_allclose(motion.position, here, atol=1e-15)


# --- clips ---

@given(limits(), rows())
def test_whatever_a_velocity_dimension_does_not_get_is_flagged(
        bounds: Limits, sequence: list[tuple[list[float], int]]) -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY, Kind.DELTA, Kind.VELOCITY), bounds, PERIOD)
    motion = limiter.at_rest(np.zeros(3))
    measured = np.zeros(3)
    for row, periods in sequence:
        for _ in range(periods):
            motion, clips = limiter.step(motion, np.array(row), measured)
            measured = measured + PERIOD * motion.velocity
            denied = np.abs(motion.velocity - row) > 1e-8 * np.maximum(1.0, np.abs(row))
            flagged = clips.position | clips.velocity | clips.acceleration | clips.jerk
            assert not np.any(denied & ~flagged)


def test_each_limit_at_work_is_flagged_by_its_name() -> None:
    def flags(setpoint: float, **changes: float) -> dict[str, bool]:
        limiter = Limiter(spec_of(Kind.POSITION), limits_of(1, **changes), PERIOD)
        _, clips = limiter.step(limiter.at_rest(np.zeros(1)), np.array([setpoint]))
        return {name: bool(getattr(clips, name)[0]) for name in (
            'position', 'velocity', 'acceleration', 'jerk')}

    quick = {'velocity': 1e3, 'acceleration': 1e6, 'stop': 1e6}
    assert flags(0.01, **quick) == {
        'position': False, 'velocity': False, 'acceleration': False, 'jerk': False}
    assert flags(2.0, **quick)['position']
    assert flags(0.5, **{**quick, 'velocity': 1.0})['velocity']
    assert flags(0.5, **{**quick, 'acceleration': 1.0})['acceleration']
    assert flags(0.01, **{**quick, 'acceleration': 100.0, 'jerk': 2000.0})['jerk']


def test_a_limit_of_one_member_flags_the_whole_group() -> None:
    limiter = Limiter(spec_of(Kind.VELOCITY, Kind.VELOCITY),
                      limits_of(2, acceleration=1e6, stop=1e6), PERIOD)
    motion, clips = limiter.step(limiter.at_rest(np.zeros(2)), np.array([4.0, 0.4]))
    np.testing.assert_allclose(motion.velocity, [1.0, 0.1])
    assert clips.velocity.all()


# --- the bound itself, and bad limits ---

@given(numbers(0.0, 10.0), numbers(1e-4, 1.0))
def test_stopping_velocity_just_stops_within_the_distance(distance: float, brake: float) -> None:
    speed = float(stopping_velocity(np.array([distance]), np.array([brake]), PERIOD)[0])
    way, steps = 0.0, speed
    while steps > 0.0:
        way += steps * PERIOD
        steps -= brake
    assert way == pytest.approx(distance, rel=1e-6, abs=1e-9)


def test_stopping_velocity_without_a_brake_limit_arrives_at_once() -> None:
    speeds = stopping_velocity(np.array([1.0, -1.0, INF]), np.array([INF, 1.0, 1.0]), PERIOD)
    np.testing.assert_array_equal(speeds, [50.0, 0.0, INF])


@pytest.mark.parametrize('field', ['position_low', 'velocity', 'acceleration', 'jerk',
                                   'stop_deceleration'])
def test_a_limit_that_is_nan_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match='limits: '):
        replace(limits_of(2), **{field: np.array([1.0, np.nan])})


@pytest.mark.parametrize(('field', 'value', 'message'), [
    ('position_low', 2.0, 'lower position limit lies above'),
    ('velocity', 0.0, 'must be greater than 0'),
    ('jerk', -1.0, 'must be greater than 0'),
    ('stop_deceleration', 1.0, 'at least the acceleration')])
def test_limits_that_make_no_sense_are_refused_by_name(
        field: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(limits_of(1), **{field: np.array([value])})


@pytest.mark.parametrize('period', [0.0, -0.02, float('nan')])
def test_a_period_that_is_no_time_is_refused(period: float) -> None:
    with pytest.raises(ValueError, match='period'):
        Limiter(JOINTS, limits_of(3), period)
