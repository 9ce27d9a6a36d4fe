"""Binding a policy to a robot: what fits is planned and limited, what does not is refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind
from vla_ros.core.anchoring import Anchoring
from vla_ros.core.gripper import GripperMap
from vla_ros.core.limits import Limiter
from vla_ros.core.types import NS_PER_S, ImageSize
from vla_ros.profiles.binding import Binding, bind
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.profiles.sink import Interface, SinkProfile, SinkType

ROBOT = """\
robot: arm
state: {names: [x, y, yaw, shoulder, jaw]}
cameras:
  front: {source: topic, topic: camera/image_raw, rate: 30}
dimensions:
  dx: {unit: m, state: x, position: [0, 1], velocity: 1.0, acceleration: 2.0}
  dy: {unit: m, state: y, position: [0, 1], velocity: 1.1, acceleration: 2.1, jerk: 50}
  turn: {unit: rad, state: yaw, velocity: 1.2, acceleration: 2.2, stop_deceleration: 7}
  shoulder: {unit: rad, position: [-2, 2], velocity: 1.3, acceleration: 2.3}
  hand: {unit: '1', state: jaw, position: [0, 1], gripper: {scale: 2.0}}
sinks:
  - {type: twist, topic: cmd_vel, dimensions: [dx, dy, turn], axes: [linear.x, linear.y, angular.z]}
  - {type: float64_multi_array, topic: arm/commands, dimensions: [shoulder]}
  - {type: gripper_command, topic: hand/command, dimensions: [hand]}
"""

POLICY = """\
policy: reach
family: scripted
horizon: 4
period: 0.1
cameras:
  front: {width: 224, height: 224}
state: [yaw, x]
action:
  - {name: hand, unit: '1', kind: gripper, group: gripper}
  - {name: dx, unit: m, kind: delta, group: translation}
  - {name: dy, unit: m/s, kind: velocity, group: translation}
  - {name: turn, unit: rad, kind: delta, group: rotation, rotation: euler}
  - {name: shoulder, unit: rad, kind: position, group: joints}
"""

TO_POSITIONS = ('type: twist, topic: cmd_vel, dimensions: [dx, dy, turn], '
                'axes: [linear.x, linear.y, angular.z]',
                'type: joint_state, topic: cmd, dimensions: [dx, dy, turn]')
DY_AS_DELTA = ('dy, unit: m/s, kind: velocity', 'dy, unit: m, kind: delta')

Edit = tuple[str, str]

# edits of the robot, edits of the policy, the file to mend, the message after it
REFUSED: list[tuple[Sequence[Edit], Sequence[Edit], str, str]] = [
    # names and units
    ([], [('name: turn', 'name: trun')], 'policy',
     "action[3].name: 'trun': dimensions of robot arm are dx, dy, turn, shoulder, hand; did you "
     "mean 'turn'?"),
    ([], [('  - {name: dx, unit: m, kind: delta, group: translation}\n', '')], 'policy',
     "action: ('hand', 'dy', 'turn', 'shoulder'): all dimensions of robot arm; dx is missing"),
    ([('shoulder: {unit: rad', 'shoulder: {unit: m')], [], 'policy',
     "action[4].unit: 'rad': m for kind position, since robot arm has shoulder in m"),
    ([('dy: {unit: m,', 'dy: {unit: rad,'), ('linear.y', 'angular.y')], [], 'policy',
     "action[2].unit: 'm/s': rad/s for kind velocity, since robot arm has dy in rad"),
    ([('shoulder: {unit: rad, position: [-2, 2], velocity: 1.3, acceleration: 2.3}',
       'shoulder: {unit: rad, position: [-2, 2], gripper: {}}')], [], 'robot',
     "dimensions.shoulder.gripper: 'position': only for a dimension of kind gripper in policy "
     "reach"),
    # inputs
    ([], [('  front:', '  frnt:')], 'policy',
     "cameras: 'frnt': cameras of robot arm are front; did you mean 'front'?"),
    ([], [('[yaw, x]', '[yaw, z]')], 'policy',
     "state[1]: 'z': robot arm measures x, y, yaw, shoulder, jaw"),
    # times
    ([('robot: arm', 'robot: arm\nrate: 10')], [('period: 0.1', 'period: 0.05')], 'policy',
     'period: 0.05: at least the control period of robot arm, which is 0.1 s (rate 10 Hz)'),
    ([], [('period: 0.1', 'period: 1.0')], 'robot',
     'watchdog.observation_age.limit: 1.0: above 1 s, the policy period of policy reach'),
    ([('rate: 30', 'rate: 0.5')], [], 'robot',
     'watchdog.observation_age.limit: 1.0: above 2 s, the period of camera front of policy reach'),
    ([('robot: arm', 'robot: arm\nwatchdog: {inference_deadline: {limit: 0.1}}')], [], 'robot',
     'watchdog.inference_deadline.limit: 0.1: above 0.1 s, the policy period of policy reach'),
    ([('robot: arm', 'robot: arm\nwatchdog: {observation_age: {limit: 0.3}}')],
     [('horizon: 4', 'horizon: 4\ntrigger: rate\ntrigger_rate: 2.5')], 'robot',
     'watchdog.observation_age.limit: 0.3: above 0.4 s, the time between two inferences of policy '
     'reach'),
    ([], [('horizon: 4', 'horizon: 4\ntrigger: rate\ntrigger_rate: 2')], 'policy',
     'trigger_rate: 2.0: at least 2.5 Hz, else every plan of 4 steps is exhausted before the next '
     'one'),
    ([('robot: arm', 'robot: arm\nwatchdog: {output_age: {limit: 0.02}}')], [], 'robot',
     'watchdog.output_age.limit: 0.02: above 0.02 s, the control period'),
    # kinds and sinks
    ([('type: float64_multi_array', 'type: joint_jog')], [], 'robot',
     "sinks[1].dimensions: 'shoulder': type joint_jog takes velocity or delta as velocities; "
     "policy reach gives kind position"),
    ([('[shoulder]}', '[shoulder], interface: velocity}')], [], 'robot',
     "sinks[1].dimensions: 'shoulder': type float64_multi_array takes velocity or delta as "
     "velocities; policy reach gives kind position; or set interface: position"),
    ([], [('shoulder, unit: rad, kind: position', 'shoulder, unit: rad/s, kind: velocity')],
     'robot', "sinks[1].dimensions: 'shoulder': type float64_multi_array takes positions and "
              "grippers; policy reach gives kind velocity; or set interface: velocity"),
    ([('type: float64_multi_array', 'type: joint_trajectory')],
     [('shoulder, unit: rad, kind: position', 'shoulder, unit: rad/s, kind: velocity')], 'robot',
     "sinks[1].dimensions: 'shoulder': type joint_trajectory takes positions and grippers; policy "
     "reach gives kind velocity"),
    ([], [('unit: m, kind: delta', 'unit: m, kind: position')], 'robot',
     "sinks[0].dimensions: 'dx': type twist takes velocity or delta as velocities; policy reach "
     "gives kind position"),
    ([], [('unit: m, kind: delta', 'unit: m, kind: relative')], 'robot',
     "sinks[0].dimensions: 'dx': type twist takes velocity or delta as velocities; policy reach "
     "gives kind relative"),
    ([('type: gripper_command', 'type: joint_jog')], [], 'robot',
     "sinks[2].dimensions: 'hand': type joint_jog takes velocity or delta as velocities; policy "
     "reach gives kind gripper"),
    ([], [('kind: delta, group: translation', 'kind: delta, group: joints')], 'robot',
     "sinks[0].dimensions: 'dx': type twist takes groups translation and rotation; policy reach "
     "gives group joints"),
    ([('type: twist, topic: cmd_vel, dimensions: [dx, dy, turn], '
       'axes: [linear.x, linear.y, angular.z]',
       'type: joint_jog, topic: jog, dimensions: [dx, dy, turn]')], [], 'robot',
     "sinks[0].dimensions: 'dx': type joint_jog takes group joints; policy reach gives group "
     "translation"),
    ([TO_POSITIONS], [], 'robot',
     "sinks[0].dimensions: 'dy': type joint_state takes positions and grippers; policy reach gives "
     "kind velocity"),
    ([('dimensions: [shoulder]}', 'dimensions: [shoulder, dx]}')], [], 'robot',
     "sinks[1].dimensions: 'dx': a delta goes to sinks of positions or of velocities; sinks[0] "
     "takes it as a velocity"),
    # anchors and measured state
    ([TO_POSITIONS, ('unit: m, state: x', 'unit: m')], [DY_AS_DELTA], 'robot',
     'dimensions.dx.state: missing: one of state.names: x, y, yaw, shoulder, jaw; its delta '
     'values are added to it'),
    ([TO_POSITIONS, ('unit: m, state: x', 'unit: m')],
     [DY_AS_DELTA, ('dx, unit: m, kind: delta', 'dx, unit: m, kind: relative')], 'robot',
     'dimensions.dx.state: missing: one of state.names: x, y, yaw, shoulder, jaw; its relative '
     'values are added to it'),
    ([('[x, y, yaw, shoulder, jaw]', '[x, y, yaw, elbow, jaw]')], [], 'robot',
     'dimensions.shoulder.state: missing: one of state.names: x, y, yaw, elbow, jaw; motion '
     'starts from it'),
    ([TO_POSITIONS,
      (', turn]}', ']}\n  - {type: twist, topic: spin, dimensions: [turn], axes: [angular.z]}')],
     [DY_AS_DELTA, ('shoulder, unit: rad, kind: position, group: joints',
                    'shoulder, unit: rad, kind: delta, group: rotation, rotation: euler')],
     'robot', "sinks: 'shoulder, turn': the rotation deltas go all to sinks of positions or none"),
    # limits
    ([('dx: {unit: m, state: x, position: [0, 1], velocity: 1.0,',
       'dx: {unit: m, state: x, position: [0, 1],')], [], 'robot',
     'dimensions.dx.velocity: missing: a limit in m/s, here or in joint_limits; nothing moves '
     'without one'),
    ([(', velocity: 1.3, acceleration: 2.3', ', velocity: 1.3')], [], 'robot',
     'dimensions.shoulder.acceleration: missing: a limit in rad/s², here or in joint_limits; '
     'nothing moves without one'),
    ([('shoulder: {unit: rad, position: [-2, 2],', 'shoulder: {unit: rad,')], [], 'robot',
     'dimensions.shoulder.position: missing: [low, high] in rad, here or in joint_limits, since '
     'it is commanded as a position'),
    ([TO_POSITIONS, ('x, position: [0, 1]', 'x')], [DY_AS_DELTA], 'robot',
     'dimensions.dx.position: missing: [low, high] in m, here or in joint_limits, since it is '
     'commanded as a position'),
]

QUATERNION_ROBOT = """\
robot: pose
state: {names: [qx, qy, qz, qw]}
cameras:
  front: {source: topic, topic: camera/image_raw, rate: 30}
dimensions:
  qx: {unit: '1'}
  qy: {unit: '1'}
  qz: {unit: '1'}
  qw: {unit: '1'}
sinks:
  - {type: joint_state, topic: pose, dimensions: [qx, qy, qz, qw]}
"""

QUATERNION_POLICY = """\
policy: look
family: scripted
horizon: 4
period: 0.1
cameras:
  front: {width: 224, height: 224}
action:
""" + ''.join(f"  - {{name: {name}, unit: '1', kind: position, group: rotation, "
              f"rotation: quaternion}}\n" for name in ('qx', 'qy', 'qz', 'qw'))


def edited(text: str, edits: Sequence[Edit]) -> str:
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def loaded(folder: Path, robot: Sequence[Edit] = (), policy: Sequence[Edit] = (),
           texts: tuple[str, str] = (ROBOT, POLICY)) -> tuple[PolicyProfile, RobotProfile]:
    robot_file, policy_file = folder / 'robot.yaml', folder / 'policy.yaml'
    robot_file.write_text(edited(texts[0], robot))
    policy_file.write_text(edited(texts[1], policy))
    return load_policy(policy_file), load_robot(robot_file)


def refusal(policy: Any, robot: RobotProfile) -> str:
    with pytest.raises(ValueError) as caught:
        bind(policy, robot)
    return str(caught.value)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(('robot', 'policy', 'mend', 'message'), REFUSED,
                         ids=[str(i) for i in range(len(REFUSED))])
def test_misfit_gives_one_line_with_the_file_to_mend(tmp_path, robot, policy, mend, message):
    assert refusal(*loaded(tmp_path, robot, policy)) == f'{tmp_path / mend}.yaml: {message}'


def test_quaternion_is_refused_since_it_cannot_be_limited(tmp_path):
    assert refusal(*loaded(tmp_path, texts=(QUATERNION_ROBOT, QUATERNION_POLICY))) == (
        f'{tmp_path / "policy.yaml"}: action: \'qx, qy, qz, qw\': rotation vector or euler '
        f'is needed: a quaternion cannot be limited yet')


@pytest.mark.parametrize(('policy', 'robot'), [('scripted_so101', 'widowx_bridge'),
                                               ('knn_bridge', 'so101')])
def test_shipped_policy_of_another_robot_is_refused(policy, robot):
    assert refusal(load_policy(policy), load_robot(robot)).startswith(
        f'{load_policy(policy).file}: ')


# --- what is bound ----------------------------------------------------------------------------


def test_dimensions_take_the_order_of_the_policy_and_the_state_of_the_robot(tmp_path):
    binding = bind(*loaded(tmp_path))
    assert binding.spec.names == ('hand', 'dx', 'dy', 'turn', 'shoulder')
    assert [d.state for d in binding.spec.dimensions] == ['jaw', 'x', 'y', 'yaw', 'shoulder']
    inf = np.inf
    limits = binding.limits
    np.testing.assert_array_equal(limits.position_low, [0.0, 0.0, 0.0, -inf, -2.0])
    np.testing.assert_array_equal(limits.position_high, [1.0, 1.0, 1.0, inf, 2.0])
    np.testing.assert_array_equal(limits.velocity, [inf, 1.0, 1.1, 1.2, 1.3])
    np.testing.assert_array_equal(limits.acceleration, [inf, 2.0, 2.1, 2.2, 2.3])
    np.testing.assert_array_equal(limits.jerk, [inf, inf, 50.0, inf, inf])
    np.testing.assert_array_equal(limits.stop_deceleration, [inf, 2.0, 2.1, 7.0, 2.3])
    np.testing.assert_array_equal(binding.activation_tolerance, [inf, inf, inf, inf, 0.1])
    assert binding.grippers == {0: GripperMap(scale=2.0)}


def test_delta_to_a_velocity_sink_stays_a_delta(tmp_path):
    binding = bind(*loaded(tmp_path))
    assert binding.absolute == frozenset()
    assert binding.planned == binding.spec
    assert binding.notes == ('turn: small Euler angles are sent as a rotation vector',)


def test_delta_to_a_position_sink_is_planned_as_a_position(tmp_path):
    binding = bind(*loaded(tmp_path, [TO_POSITIONS], [DY_AS_DELTA]))
    assert binding.absolute == {'dx', 'dy', 'turn'}
    assert [d.kind for d in binding.planned.dimensions] == [
        Kind.GRIPPER, Kind.POSITION, Kind.POSITION, Kind.POSITION, Kind.POSITION]
    assert Anchoring(binding.spec, binding.absolute).state_names == ('x', 'y', 'yaw')
    assert binding.notes == ('turn: Euler angles are added to the measured ones one by one',)


def test_relative_is_planned_as_a_position_without_being_named_absolute(tmp_path):
    binding = bind(*loaded(tmp_path, policy=[('shoulder, unit: rad, kind: position',
                                              'shoulder, unit: rad, kind: relative')]))
    assert binding.absolute == frozenset()
    assert binding.spec.dimensions[4].kind is Kind.RELATIVE
    assert binding.planned.dimensions[4].kind is Kind.POSITION
    assert binding.activation_tolerance[4] == 0.1


def test_velocity_interface_takes_velocities_of_joints(tmp_path):
    binding = bind(*loaded(
        tmp_path, [('[shoulder]}', '[shoulder], interface: velocity}')],
        [('shoulder, unit: rad, kind: position', 'shoulder, unit: rad/s, kind: velocity')]))
    assert binding.planned.dimensions[4].kind is Kind.VELOCITY


def test_dimension_may_go_to_two_sinks(tmp_path):
    sinks = ('sinks:\n', 'sinks:\n  - {type: joint_state, topic: shown, dimensions: [shoulder]}\n')
    _, robot = loaded(tmp_path, [sinks])
    assert [s.topic for s in robot.sinks if 'shoulder' in s.dimensions] == ['shown', 'arm/commands']
    bind(*loaded(tmp_path, [sinks]))


def test_gripper_without_a_map_gets_the_plain_one(tmp_path):
    binding = bind(*loaded(tmp_path, [(', gripper: {scale: 2.0}', '')]))
    assert binding.grippers == {0: GripperMap()}


def test_velocity_dimension_needs_no_measured_state_but_its_position_limits_are_noted(tmp_path):
    binding = bind(*loaded(tmp_path, [('unit: m, state: y', 'unit: m')]))
    assert binding.notes[-1] == ('dy: its position limits have no effect, since no measured state '
                                 'is named for it')


@dataclass(frozen=True)
class Contract:
    """What an engine's contract offers to a binding, without a file."""

    family: str
    horizon: int
    period_ns: int
    cameras: dict[str, ImageSize]
    state_names: tuple[str, ...]
    action: ActionSpec


def contract_of(profile: PolicyProfile) -> Contract:
    return Contract(profile.family, profile.horizon, profile.period_ns, dict(profile.cameras),
                    profile.state_names, profile.action)


def test_contract_binds_like_its_profile(tmp_path):
    profile, robot = loaded(tmp_path)
    assert bind(contract_of(profile), robot).planned == bind(profile, robot).planned


def test_contract_is_named_by_its_family(tmp_path):
    profile, robot = loaded(tmp_path)
    contract = contract_of(profile)
    assert refusal(replace(contract, horizon=0), robot) == (
        'policy scripted: horizon: 0: at least 1 step')
    assert refusal(replace(contract, cameras={}), robot) == (
        'policy scripted: cameras: {}: at least one camera; observations bear its stamp')
    assert refusal(replace(contract, period_ns=10_000_000), robot) == (
        'policy scripted: period: 0.01: at least the control period of robot arm, which is 0.02 s '
        '(rate 50 Hz)')


# --- shipped profiles -------------------------------------------------------------------------


@pytest.fixture(params=[('knn_bridge', 'widowx_bridge'), ('scripted_bridge', 'widowx_bridge'),
                        ('scripted_so101', 'so101')])
def shipped(request) -> tuple[Binding, RobotProfile]:
    policy, robot = request.param
    return bind(load_policy(policy), load_robot(robot)), load_robot(robot)


def test_every_shipped_policy_binds_to_its_robot_and_can_be_limited(shipped):
    binding, robot = shipped
    limiter = Limiter(binding.planned, binding.limits, robot.control_period_ns / NS_PER_S)
    rest = limiter.at_rest(np.zeros(binding.planned.size))
    motion, _ = limiter.step(rest, np.full(binding.planned.size, 0.01))
    assert np.isfinite(motion.velocity).all()


def test_widowx_plans_deltas_and_so101_plans_positions():
    bridge = bind(load_policy('knn_bridge'), load_robot('widowx_bridge'))
    assert bridge.absolute == frozenset()
    assert [d.kind for d in bridge.planned.dimensions] == [Kind.DELTA] * 6 + [Kind.GRIPPER]
    so101 = bind(load_policy('scripted_so101'), load_robot('so101'))
    assert [d.kind for d in so101.planned.dimensions] == [Kind.POSITION] * 5 + [Kind.GRIPPER]
    np.testing.assert_array_equal(so101.activation_tolerance[:5], 0.1)


def test_so101_gripper_runs_over_the_range_of_its_joint():
    gripper = bind(load_policy('scripted_so101'), load_robot('so101')).grippers[5]
    assert gripper.mapped(0.0) == pytest.approx(-0.174533)
    assert gripper.mapped(1.0) == pytest.approx(1.74533)


# --- any mixture of kinds ---------------------------------------------------------------------


TAKEN = {Interface.VELOCITY: {Kind.VELOCITY, Kind.DELTA},
         Interface.POSITION: {Kind.POSITION, Kind.RELATIVE, Kind.DELTA}}


@settings(max_examples=150, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.tuples(*[st.sampled_from([k for k in Kind if k is not Kind.GRIPPER])] * 3),
       interfaces=st.tuples(*[st.sampled_from(Interface)] * 3))
def test_binds_exactly_when_each_sink_takes_the_kind_and_deltas_become_what_it_takes(
        tmp_path, kinds, interfaces):
    policy, robot = loaded(tmp_path)
    names = ('dx', 'dy', 'shoulder')
    dimensions = tuple(
        Dimension(name, robot.dimensions[name].unit + ('/s' if kind is Kind.VELOCITY else ''),
                  kind, Group.JOINTS) for name, kind in zip(names, kinds, strict=True))
    policy = replace(policy, action=ActionSpec(dimensions))
    robot = replace(robot, dimensions={name: robot.dimensions[name] for name in names},
                    sinks=tuple(SinkProfile(SinkType.FLOAT64_MULTI_ARRAY, name, (name,), interface)
                                for name, interface in zip(names, interfaces, strict=True)))
    fits = [kind in TAKEN[interface] for kind, interface in zip(kinds, interfaces, strict=True)]
    if not all(fits):
        assert refusal(policy, robot).startswith(
            f'{robot.file}: sinks[{fits.index(False)}].dimensions: ')
        return
    for dimension, interface in zip(bind(policy, robot).planned.dimensions, interfaces,
                                    strict=True):
        assert (dimension.kind is Kind.POSITION) == (interface is Interface.POSITION)
