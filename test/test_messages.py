"""Messages become core values and back without loss, and nonsense is named in one line."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from builtin_interfaces.msg import Duration, Time  # noqa: E402
from diagnostic_msgs.msg import DiagnosticStatus, KeyValue  # noqa: E402
from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from sensor_msgs.msg import JointState  # noqa: E402
from trajectory_msgs.msg import JointTrajectory  # noqa: E402

from vla_ros.core.types import InferenceStatus, Plan  # noqa: E402
from vla_ros.ros.messages import (  # noqa: E402
    most_plan_bytes,
    plan_from_message,
    plan_to_message,
    state_from_message,
    status_from_message,
    status_to_message,
    to_duration,
    to_ns,
    to_time,
)

NAMES = ('dx', 'dy', 'gripper')
STAMP_NS = 1_796_078_664_123_456_789
PERIOD_NS = 200_000_000


def sent(message: JointTrajectory) -> JointTrajectory:
    """What arrives on the other side."""
    return deserialize_message(serialize_message(message), JointTrajectory)


def plan(steps: int = 4, offset_ns: int = 0) -> Plan:
    values = np.arange(3.0 * steps).reshape(steps, 3) / 7.0
    return Plan(STAMP_NS, STAMP_NS + offset_ns, PERIOD_NS, values)


def message() -> JointTrajectory:
    return plan_to_message(plan(), NAMES, 'base_link')


@given(st.integers(0, 2**31 * 10**9 - 1))
def test_times_and_durations_go_there_and_back(time_ns: int) -> None:
    assert to_ns(to_time(time_ns)) == time_ns
    assert to_ns(to_duration(time_ns)) == time_ns


def test_a_negative_duration_has_nanoseconds_of_its_own() -> None:
    assert to_duration(-1) == Duration(sec=-1, nanosec=999_999_999)
    assert to_ns(to_duration(-1)) == -1


@given(steps=st.integers(1, 6), offset_ns=st.integers(-10**9, 10**9))
def test_a_plan_goes_there_and_back_bit_for_bit(steps: int, offset_ns: int) -> None:
    before = plan(steps, offset_ns)
    after = plan_from_message(sent(plan_to_message(before, NAMES, 'base_link')), NAMES, PERIOD_NS)
    assert (after.stamp_ns, after.start_ns, after.period_ns) == (
        before.stamp_ns, before.start_ns, before.period_ns)
    assert (after.values == before.values).all()


def test_a_plan_on_the_wire_is_a_trajectory_of_the_observation() -> None:
    wire = plan_to_message(plan(2, offset_ns=50_000_000), NAMES, 'base_link')
    assert wire.header.stamp == Time(sec=1_796_078_664, nanosec=123_456_789)
    assert wire.header.frame_id == 'base_link'
    assert wire.joint_names == ['dx', 'dy', 'gripper']
    assert [to_ns(point.time_from_start) for point in wire.points] == [50_000_000, 250_000_000]
    assert not any(len(point.velocities) for point in wire.points)


def test_dimensions_are_matched_by_name() -> None:
    wire = plan_to_message(plan(), ('gripper', 'dx', 'dy'), '')
    values = plan_from_message(wire, NAMES, PERIOD_NS).values
    assert (values == plan().values[:, [1, 2, 0]]).all()


def test_one_point_takes_the_period_of_the_policy() -> None:
    assert plan_from_message(plan_to_message(plan(1), NAMES, ''), NAMES, 77).period_ns == 77


@pytest.mark.parametrize(('names', 'line'), [
    (['dx', 'dy'], 'joint_names are dx, dy; the profiles say dx, dy, gripper'),
    ([], 'joint_names are empty; the profiles say dx, dy, gripper'),
    (['dx', 'dy', 'jaw'], 'joint_names are dx, dy, jaw; the profiles say dx, dy, gripper'),
    (['dx', 'dx', 'dy'], 'joint_names are dx, dx, dy; the profiles say dx, dy, gripper')])
def test_other_dimensions_are_named(names: list[str], line: str) -> None:
    wire = message()
    wire.joint_names = names
    with pytest.raises(ValueError) as error:
        plan_from_message(wire, NAMES, PERIOD_NS)
    assert str(error.value) == f'action chunk: {line}'


def test_a_plan_without_points_is_named() -> None:
    with pytest.raises(ValueError, match='^action chunk: no points; at least one is needed$'):
        plan_from_message(JointTrajectory(joint_names=list(NAMES)), NAMES, PERIOD_NS)


@pytest.mark.parametrize(('positions', 'line'), [
    ([1.0], 'points have 1, 3 positions; 3 are needed'),
    ([], 'points have 0, 3 positions; 3 are needed'),
    ([1.0] * 4, 'points have 3, 4 positions; 3 are needed')])
def test_points_of_another_size_are_named(positions: list[float], line: str) -> None:
    wire = message()
    wire.points[2].positions = array('d', positions)
    with pytest.raises(ValueError) as error:
        plan_from_message(wire, NAMES, PERIOD_NS)
    assert str(error.value) == f'action chunk: {line}'


@pytest.mark.parametrize('time_ns', [200_000_000, 100_000_000, 450_000_000, -1])
def test_times_that_do_not_rise_in_equal_steps_are_named(time_ns: int) -> None:
    wire = message()
    wire.points[2].time_from_start = to_duration(time_ns)
    with pytest.raises(ValueError, match='time_from_start must rise in equal steps'):
        plan_from_message(wire, NAMES, PERIOD_NS)


def test_a_joint_state_without_stamp_is_as_old_as_its_receipt() -> None:
    sample = state_from_message(JointState(name=['x'], position=[1.5]), 42)
    assert (sample.stamp_ns, sample.received_ns, sample.names) == (42, 42, ('x',))
    assert sample.positions.tolist() == [1.5]


def test_a_joint_state_keeps_its_own_stamp() -> None:
    state = JointState(name=['b', 'a'], position=[1.0, 2.0])
    state.header.stamp = to_time(STAMP_NS)
    sample = state_from_message(state, STAMP_NS + 5)
    assert (sample.stamp_ns, sample.received_ns) == (STAMP_NS, STAMP_NS + 5)
    assert dict(zip(sample.names, sample.positions, strict=True)) == {'b': 1.0, 'a': 2.0}


def test_an_empty_joint_state_is_an_empty_sample() -> None:
    assert state_from_message(JointState(), 1).positions.shape == (0,)


@pytest.mark.parametrize(('status', 'level'), [
    (InferenceStatus(STAMP_NS, 5, '', 'none', 'pick up the spoon'), DiagnosticStatus.OK),
    (InferenceStatus(0, 0, 'primary: no frame yet', 'none', ''), DiagnosticStatus.WARN),
    (InferenceStatus(1, 2, 'no instruction', 'wait', ''), DiagnosticStatus.WARN),
    (InferenceStatus(1, 2, 'a: "b"\nc', 'hold', "ü: 'x' # 1"), DiagnosticStatus.WARN),
    (InferenceStatus(1, 2, 'engine failed', 'fault', 'x'), DiagnosticStatus.ERROR)])
def test_a_status_goes_there_and_back_with_a_level_for_people(
        status: InferenceStatus, level: bytes) -> None:
    wire = status_to_message(status, '/inference_node')
    assert wire.level == level
    assert wire.name == '/inference_node'
    assert status_from_message(wire) == status


@pytest.mark.parametrize('values', [
    {}, {'observation_stamp_ns': 'soon', 'epoch_ns': '0', 'reaction': 'none', 'instruction': ''},
    {'observation_stamp_ns': '1', 'epoch_ns': '0', 'instruction': ''}])
def test_a_status_of_something_else_is_named(values: dict[str, str]) -> None:
    wire = DiagnosticStatus(values=[KeyValue(key=k, value=v) for k, v in values.items()])
    with pytest.raises(ValueError, match='^inference_status: .* not a status of inference_node$'):
        status_from_message(wire)


def test_a_plan_in_another_frame_is_refused() -> None:
    message = plan_to_message(Plan(0, 0, 10**8, np.zeros((2, 1))), ('dx',), 'mars')
    with pytest.raises(ValueError, match="frame_id is 'mars'; the robot profile says 'base_link'"):
        plan_from_message(message, ('dx',), 10**8, 'base_link')
    assert plan_from_message(message, ('dx',), 10**8, '').period_ns == 10**8


@pytest.mark.parametrize('size', [1, 7, 14])
@pytest.mark.parametrize('horizon', [1, 20, 100])
def test_a_plan_of_the_longest_length_fits_into_the_most_bytes(size: int, horizon: int) -> None:
    names = tuple(f'a_rather_long_joint_name_{i}' for i in range(size))
    plan = Plan(0, 0, 10**8, np.zeros((2 * (horizon + 1), size)))
    taken = len(serialize_message(plan_to_message(plan, names, 'base_link')))
    assert taken <= most_plan_bytes(horizon, names) <= 2 * taken + 2048
