"""Other people's ways to turn chunks into motion, against which ours is measured."""

from __future__ import annotations

import numpy as np
import pytest

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind
from vla_ros.core.executor_state import Trigger
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.merging import Merge
from vla_ros.core.types import ActionChunk, Start
from vla_ros.core.watchdog import Layer
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.sim.baselines import METHODS, CountQueue, arranged, method_loop

SPEC = ActionSpec((Dimension('a', 'rad', Kind.POSITION, Group.JOINTS),
                   Dimension('g', '1', Kind.GRIPPER, Group.GRIPPER)))
PERIOD = 100  # ns, so that times can be read
ROBOT, POLICY = load_robot('sim_arm'), load_policy('edgevla_sim')


def chunk(stamp: int, values: list[float]) -> ActionChunk:
    return ActionChunk(stamp, stamp, PERIOD, np.array([[value, value] for value in values]))


def queue() -> CountQueue:
    return CountQueue(SPEC, PERIOD)


def values(made: CountQueue) -> list[float]:
    assert made.plan is not None
    return made.plan.values[:, 0].tolist()


def test_first_chunk_is_popped_from_its_first_action_on_when_it_arrives() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0, 2.0, 3.0]), 250)
    assert made.plan is not None
    assert values(made) == [0.0, 1.0, 2.0, 3.0]
    assert (made.plan.stamp_ns, made.plan.start_ns) == (0, 250), 'late by the whole delay'


def test_steps_are_matched_by_what_was_executed_at_the_observation() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0, 2.0, 3.0]), 0)     # popped at 0: number 0, at 100: 1, at 200: 2
    made.merge(chunk(150, [11.0, 12.0, 13.0, 14.0]), 220)
    # Number 1 had been executed last at 150, so the chunk is 1, 2, 3, 4; 2 is being executed.
    assert values(made) == [2.0, 3.0 + 0.7 * (13.0 - 3.0), 14.0]
    assert made.plan is not None
    assert made.plan.start_ns == 200


def test_all_dimensions_are_averaged_as_lerobot_does() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 0.0, 0.0]), 0)
    made.merge(chunk(0, [1.0, 1.0, 1.0]), 50)
    assert made.plan is not None
    np.testing.assert_allclose(made.plan.values[1:, 1], 0.7)


def test_empty_queue_stops_counting_whatever_time_passes() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0]), 0)
    assert made.remaining_ns(50) == 1 * PERIOD
    assert made.remaining_ns(1000) == 0
    made.merge(chunk(900, [5.0, 6.0, 7.0]), 1030)
    # By time, the step of now would be 6.0; by count it is the one after the last executed, 6.0
    # of number 2, since number 1 is skipped. It is popped at the next period.
    assert values(made) == [6.0, 7.0]
    assert made.plan is not None
    assert made.plan.start_ns == 1100


def test_stale_steps_are_played_after_a_pause_where_time_would_have_left_them_out() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0]), 0)
    made.merge(chunk(300, [3.0, 4.0, 5.0, 6.0, 7.0]), 690)
    assert values(made)[0] == 4.0, 'at 700 ns the chunk says 7.0'


def test_chunk_whose_numbers_are_all_executed_is_dropped() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0, 2.0, 3.0]), 0)
    merged = made.merge(chunk(0, [9.0, 9.0]), 290)
    assert merged.plan is None
    assert merged.dropped == 'all steps are past'


def test_plan_plays_the_action_that_was_popped_last() -> None:
    made, interpolator = queue(), Interpolator(SPEC)
    made.merge(chunk(0, [0.0, 1.0, 2.0, 3.0]), 7)
    for now in range(20, 300, 20):
        made.merge(chunk(now - 10, [(now - 10) / 100 + i for i in range(4)]), now)
        assert made.plan is not None
        assert made.plan.start_ns <= now < made.plan.start_ns + PERIOD
        assert interpolator.at(made.plan, now) is not None


def test_cleared_queue_begins_anew() -> None:
    made = queue()
    made.merge(chunk(0, [0.0, 1.0, 2.0, 3.0]), 0)
    made.clear()
    assert made.plan is None
    assert made.remaining_ns(50) == 0
    made.merge(chunk(400, [4.0, 5.0]), 450)
    assert values(made) == [4.0, 5.0]


# --- profiles ------------------------------------------------------------------------------------

def test_no_method_leaves_the_profiles_alone() -> None:
    assert arranged(POLICY, ROBOT, '') == (POLICY, ROBOT)


@pytest.mark.parametrize('method', [merge.value for merge in Merge])
def test_merge_policy_changes_nothing_else(method: str) -> None:
    policy, robot = arranged(POLICY, ROBOT, method)
    assert (policy.merge, policy.start, policy.trigger) == (
        Merge(method), POLICY.start, POLICY.trigger)
    assert robot is ROBOT


def test_baselines_start_at_arrival_and_know_no_age() -> None:
    policy, robot = arranged(POLICY, ROBOT, 'pop_by_count')
    assert (policy.start, policy.trigger, policy.threshold) == (
        Start.ARRIVAL, Trigger.THRESHOLD, 0.5)
    assert robot.watchdog[Layer.INFERENCE_DEADLINE].limit_ns > 60_000_000_000
    assert isinstance(
        method_loop(robot, policy, bind(policy, robot), 'pop_by_count').buffer, CountQueue)
    policy, _ = arranged(POLICY, ROBOT, 'replace_at_arrival')
    assert (policy.start, policy.merge) == (Start.ARRIVAL, Merge.LATEST_ONLY)


def test_unknown_method_is_named_in_one_line() -> None:
    with pytest.raises(ValueError, match="merge: 'blend': allowed are") as caught:
        arranged(POLICY, ROBOT, 'blend')
    assert all(method in str(caught.value) for method in METHODS)
