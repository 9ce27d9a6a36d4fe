"""Profiles: the shipped ones load, and every mistake gives one line that names it and the fix."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vla_ros.core.action_spec import Kind, Rotation
from vla_ros.core.gripper import GripperMap
from vla_ros.core.merging import Merge
from vla_ros.core.watchdog import Layer, LayerLimit, Reaction
from vla_ros.profiles import locate as locate_module
from vla_ros.profiles.camera import Resize, Source, Transport
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.joint_limits import read_joint_limits
from vla_ros.profiles.locate import config_folder, locate, resolve, shipped
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.profiles.sink import AXES, Interface, SinkType

LOADERS: dict[str, Callable[[Path], Any]] = {
    'robot': load_robot, 'policy': load_policy, 'engine': load_engine,
    'joint_limits': read_joint_limits}

ROBOT = """\
robot: arm
state: {names: [shoulder, elbow]}
cameras:
  front: {source: topic, topic: camera/image_raw, rate: 30}
dimensions:
  shoulder: {unit: rad, position: [-1, 1], velocity: 1.0, acceleration: 2.0}
  elbow: {unit: rad, position: [-2, 2], velocity: 1.0, acceleration: 2.0}
  hand: {unit: '1', gripper: {scale: 2.0}}
sinks:
  - {type: joint_trajectory, topic: arm/joint_trajectory, dimensions: [shoulder, elbow]}
  - {type: float64_multi_array, topic: hand/commands, dimensions: [hand]}
"""

POLICY = """\
policy: reach
family: scripted
horizon: 8
period: 0.1
cameras:
  front: {width: 224, height: 160}
action:
  - {name: shoulder, unit: rad, kind: position, group: joints}
  - {name: elbow, unit: rad, kind: position, group: joints}
  - {name: hand, unit: '1', kind: gripper, group: gripper}
"""

ENGINE = """\
engine: bench
backend: numpy
"""

JOINT_LIMITS = """\
joint_limits:
  shoulder:
    has_position_limits: true
    min_position: -1.5
    max_position: 1.5
    has_velocity_limits: true
    max_velocity: 3.0
    has_acceleration_limits: true
    max_acceleration: 4.0
    has_deceleration_limits: true
    max_deceleration: 9.0
    has_jerk_limits: false
    max_jerk: 1.0
"""

TEXTS = {'robot': ROBOT, 'policy': POLICY, 'engine': ENGINE, 'joint_limits': JOINT_LIMITS}

# profile, text replaced, its replacement, the message after the file
REFUSED = [
    # the file as a whole
    ('robot', ROBOT, '', 'empty: a profile needs keys and values'),
    ('robot', ROBOT, '# nothing but a comment\n', 'empty: a profile needs keys and values'),
    ('robot', ROBOT, '- robot: arm\n', "[{'robot': 'arm'}]: a profile is a mapping of keys to "
                                       "values"),
    ('robot', 'rate: 30}', 'rate: 30', "line 5: not YAML: expected ',' or '}', but got ':'"),
    ('robot', 'state:', '\tstate:', "line 2: not YAML: found character '\\t' that cannot start any "
                                    "token"),
    ('robot', 'robot: arm', 'robot: arm\nrobot: leg', "line 2: not YAML: key 'robot' is written "
                                                      "twice"),
    ('robot', '  elbow: {', '  shoulder: {', "line 7: not YAML: key 'shoulder' is written twice"),
    ('robot', 'robot: arm', 'robot: arm\n---\na: b',
     'line 2: not YAML: but found another document'),
    ('robot', 'arm\n', 'arm\nnote: !!python/name:os.system\n',
     "line 2: not YAML: could not determine a constructor for the tag "
     "'tag:yaml.org,2002:python/name:os.system'"),
    ('robot', 'arm\n', 'arm\nnote: 2020-99-99\n', 'not YAML: month must be in 1..12'),
    ('robot', 'arm\n', 'arm\nnote: \x07\n',
     'not YAML: unacceptable character #x0007: special characters are not allowed in '
     '"<unicode string>", position 17'),
    ('robot', ROBOT, POLICY, 'robot: missing: this is a profile of kind policy; give one of '
                             'kind robot'),
    ('engine', ENGINE, ROBOT, 'engine: missing: this is a profile of kind robot; give one of '
                              'kind engine'),
    # keys
    ('robot', 'state:', 'sate:', "sate: unknown key: allowed are activation_tolerance, cameras, "
     "command_latency, description, dimensions, estop_required, exclusive_command, frame_id, "
     "instruction_grace, joint_limits, on_violation, rate, robot, sinks, skew, state, state_age, "
     "watchdog; did you mean 'state'?"),
    ('robot', 'velocity: 1.0, acceleration: 2.0}\n  elbow',
     'velocty: 1.0, acceleration: 2.0}\n  elbow',
     "dimensions.shoulder.velocty: unknown key: allowed are acceleration, gripper, jerk, "
     "position, state, stop_deceleration, unit, velocity; did you mean 'velocity'?"),
    ('robot', 'robot: arm', 'robot: arm\non: 3', 'true: a key must be text; write it in quotes'),
    ('robot', '{source: topic,', '{3: x,', 'cameras.front.3: a key must be text; write it in '
                                           'quotes'),
    ('robot', 'robot: arm\n', '', 'robot: missing: lower-case letters, digits and _, a letter '
                                  'first'),
    ('policy', 'horizon', 'horzion', "horizon: missing: a whole number from 1 to 1000; is "
                                     "'horzion' meant to be 'horizon'?"),
    ('robot', ', rate: 30', '', 'cameras.front.rate: missing: a number at least 0.1 and at most '
                                '1000 Hz'),
    # types
    ('robot', 'velocity: 1.0', 'velocity: true', 'dimensions.shoulder.velocity: true: a number '
                                                 'above 0'),
    ('robot', 'velocity: 1.0', "velocity: 'fast'", "dimensions.shoulder.velocity: 'fast': a number "
                                                   "above 0"),
    ('robot', 'velocity: 1.0', 'velocity: 1e-3',
     "dimensions.shoulder.velocity: '1e-3': a number above 0; YAML reads this as text: write it "
     "without quotes and with a point, as in 1.0e-3"),
    ('robot', 'velocity: 1.0', "velocity: '1.0'",
     "dimensions.shoulder.velocity: '1.0': a number above 0; YAML reads this as text: write it "
     "without quotes and with a point, as in 1.0e-3"),
    ('robot', 'velocity: 1.0', 'velocity: .nan', 'dimensions.shoulder.velocity: nan: a number '
                                                 'above 0; it must be finite'),
    ('robot', 'velocity: 1.0', 'velocity: .inf', 'dimensions.shoulder.velocity: inf: a number '
                                                 'above 0; it must be finite'),
    ('robot', 'velocity: 1.0', 'velocity: 1' + '0' * 400,
     'dimensions.shoulder.velocity: 1' + '0' * 58 + '…: a number above 0; it must be finite'),
    ('robot', 'velocity: 1.0', 'velocity:', 'dimensions.shoulder.velocity: nothing: a number above '
                                            '0'),
    ('robot', 'velocity: 1.0', 'velocity: [1.0]', 'dimensions.shoulder.velocity: [1.0]: a number '
                                                  'above 0'),
    ('robot', "unit: '1'", 'unit: 1', 'dimensions.hand.unit: 1: one of m, rad, 1; write it in '
                                      'quotes'),
    ('robot', 'robot: arm', 'robot: no', 'robot: false: lower-case letters, digits and _, a letter '
                                         'first; write it in quotes'),
    ('robot', 'robot: arm', "robot: ''", "robot: '': lower-case letters, digits and _, a letter "
                                         "first"),
    ('policy', 'horizon: 8', 'horizon: 8.0', 'horizon: 8.0: a whole number from 1 to 1000'),
    ('policy', 'horizon: 8', 'horizon: true', 'horizon: true: a whole number from 1 to 1000'),
    ('policy', 'period', "pad_short_chunks: 'true'\nperiod",
     "pad_short_chunks: 'true': true or false, without quotes"),
    ('robot', '[shoulder, elbow]}\ncameras', 'shoulder}\ncameras',
     "state.names: 'shoulder': a list of the names in joint_states; write it as [a, b]"),
    ('robot', '{names: [shoulder, elbow]}', '[shoulder, elbow]',
     "state: ['shoulder', 'elbow']: a mapping of keys to values"),
    ('robot', '[shoulder, elbow]}\ncameras', '[shoulder, 3]}\ncameras',
     'state.names[1]: 3: a name without spaces; write it in quotes'),
    ('robot', '[shoulder, elbow]}\ncameras', '[shoulder, the elbow]}\ncameras',
     "state.names[1]: 'the elbow': a name without spaces"),
    ('robot', '[shoulder, elbow]}\ncameras', '[shoulder, elbow, elbow]}\ncameras',
     "state.names[2]: 'elbow': named twice; the entries must differ"),
    # ranges
    ('robot', 'robot: arm', 'robot: arm\nrate: 5', 'rate: 5: a number at least 10 and at most 200 '
                                                   'Hz'),
    ('robot', 'robot: arm', 'robot: arm\nrate: 201', 'rate: 201: a number at least 10 and at most '
                                                     '200 Hz'),
    ('robot', 'velocity: 1.0', 'velocity: 0', 'dimensions.shoulder.velocity: 0: a number above 0'),
    ('robot', 'position: [-1, 1]', 'position: [1, -1]', 'dimensions.shoulder.position: [1, -1]: '
     'two numbers [low, high] with low below high'),
    ('robot', 'position: [-1, 1]', 'position: [1]', 'dimensions.shoulder.position: [1]: two '
     'numbers [low, high] with low below high; at least 2'),
    ('robot', 'position: [-1, 1]', 'position: [-1, .inf]', 'dimensions.shoulder.position[1]: inf: '
     'a number; it must be finite'),
    ('robot', 'acceleration: 2.0}\n  elbow', 'acceleration: 2.0, stop_deceleration: 1.5}\n  elbow',
     'dimensions.shoulder.stop_deceleration: 1.5: at least the acceleration, which is 2'),
    ('policy', 'horizon: 8', 'horizon: 0', 'horizon: 0: a whole number from 1 to 1000'),
    ('policy', 'period: 0.1', 'period: 0', 'period: 0: a number at least 0.005 and at most 10 s'),
    ('policy', 'period: 0.1', 'period: -0.2', 'period: -0.2: a number at least 0.005 and at most '
                                              '10 s'),
    ('policy', 'width: 224', 'width: 0', 'cameras.front.width: 0: a whole number from 1 to 8192'),
    ('engine', 'numpy', 'numpy\nthreads: 0', 'threads: 0: a whole number from 1 to 1024'),
    ('engine', 'numpy', 'numpy\nwarm_up: 0', 'warm_up: 0: a whole number from 1 to 1000'),
    # robot: state, cameras
    ('robot', 'elbow: {unit: rad,', 'elbow: {unit: rad, state: elbwo,',
     "dimensions.elbow.state: 'elbwo': one of shoulder, elbow; did you mean 'elbow'?"),
    ('robot', 'elbow: {unit: rad,', 'elbow: {unit: rad, state: shoulder,',
     "dimensions.elbow.state: 'shoulder': moved by dimension shoulder already"),
    ('robot', '  elbow:', '  the elbow:', "dimensions.the elbow: 'the elbow': a name without "
                                           "spaces"),
    ('robot', '  elbow:', '  "el\\nbow":',
     r"dimensions.'el\nbow': 'el\nbow': a name without spaces"),
    ('robot', 'robot: arm', 'robot: arm\n"a\\nb": 1', r"'a\nb': unknown key: allowed are "
     "activation_tolerance, cameras, command_latency, description, dimensions, estop_required, "
     "exclusive_command, frame_id, instruction_grace, joint_limits, on_violation, rate, robot, "
     "sinks, skew, state, state_age, watchdog"),
    ('robot', '  front: {source: topic, topic: camera/image_raw, rate: 30}\n', '  {}\n',
     'cameras: {}: a mapping of camera names to their source'),
    ('robot', '  front:', '  Front-1:', "cameras.Front-1: 'Front-1': lower-case letters, digits "
                                        "and _, a letter first, since topics carry the name"),
    ('robot', 'source: topic', 'source: v4l', "cameras.front.source: 'v4l': one of topic, v4l2, "
                                              "gstreamer, file; did you mean 'v4l2'?"),
    ('robot', 'source: topic', 'source: v4l2', "cameras.front.topic: 'camera/image_raw': only with "
                                               "source: topic; source is v4l2"),
    ('robot', 'rate: 30', 'rate: 30, device: /dev/video0', "cameras.front.device: '/dev/video0': "
                                                           "only with source: v4l2; source is "
                                                           "topic"),
    ('robot', 'source: topic, topic: camera/image_raw', 'source: v4l2',
     'cameras.front.device: missing: a device such as /dev/video0'),
    ('robot', 'source: topic, topic: camera/image_raw', 'source: gstreamer',
     'cameras.front.pipeline: missing: a GStreamer pipeline that ends in appsink'),
    ('robot', 'source: topic, topic: camera/image_raw', 'source: file',
     'cameras.front.path: missing: a video file or image folder'),
    ('robot', 'topic: camera/image_raw', 'topic: camera/image_raw/compressed',
     "cameras.front.topic: 'camera/image_raw/compressed': ends in /compressed, so transport must "
     "be compressed"),
    ('robot', 'topic: camera/image_raw', 'topic: 3d/image raw',
     "cameras.front.topic: '3d/image raw': a ROS topic name: letters, digits, _ and / between "
     "words, no digit first"),
    ('robot', 'rate: 30', 'rate: 30, resize: stretch',
     "cameras.front.resize: 'stretch': one of squash, crop, pad"),
    ('robot', 'rate: 30', 'rate: 30, transport: h264',
     "cameras.front.transport: 'h264': one of raw, compressed"),
    # robot: gripper, sinks
    ('robot', 'scale: 2.0', 'scale: 0', 'dimensions.hand.gripper.scale: 0: any number but 0'),
    ('robot', 'scale: 2.0', 'hysteresis: -1', 'dimensions.hand.gripper.hysteresis: -1: a number at '
                                              'least 0'),
    ('robot', 'scale: 2.0', 'invert: 1', 'dimensions.hand.gripper.invert: 1: true or false, '
                                         'without quotes'),
    ('robot', "unit: '1',", "unit: '1', velocity: 2.0,", 'dimensions.hand.velocity: 2.0: not with '
     'gripper: a gripper takes its newest value at once'),
    ('robot', '  - {type: float64_multi_array, topic: hand/commands, dimensions: [hand]}\n', '',
     "dimensions.hand: 'hand': goes to no sink; name it in the dimensions of one"),
    ('robot', 'topic: hand/commands', 'topic: /arm/joint_trajectory',
     "sinks[1].topic: '/arm/joint_trajectory': taken by another sink; every sink needs its own "
     "topic"),
    ('robot', 'type: float64_multi_array', 'type: float64_array',
     "sinks[1].type: 'float64_array': one of float64_multi_array, joint_trajectory, "
     "twist_stamped, twist, joint_state, joint_jog, gripper_command; did you mean "
     "'float64_multi_array'?"),
    ('robot', 'dimensions: [hand]', 'dimensions: [hnad]', "sinks[1].dimensions[0]: 'hnad': one of "
     "shoulder, elbow, hand; did you mean 'hand'?"),
    ('robot', 'dimensions: [hand]', 'dimensions: [hand, hand]', "sinks[1].dimensions[1]: 'hand': "
     "named twice; the entries must differ"),
    ('robot', 'dimensions: [hand]', 'dimensions: []', 'sinks[1].dimensions: []: a list of names; '
                                                      'at least 1'),
    ('robot', 'dimensions: [hand]', 'dimensions: [hand], lookahead: 0.1',
     'sinks[1].lookahead: 0.1: only with type: joint_trajectory'),
    ('robot', 'dimensions: [hand]', 'dimensions: [hand], joints: [grip]',
     "sinks[1].joints: ['grip']: not with type: float64_multi_array, its message carries no names"),
    ('robot', 'dimensions: [hand]', 'dimensions: [hand], frame_id: base',
     "sinks[1].frame_id: 'base': not with type: float64_multi_array, its message carries no frame"),
    ('robot', 'dimensions: [hand]', 'dimensions: [hand], interface: effort',
     "sinks[1].interface: 'effort': one of position, velocity"),
    ('robot', 'dimensions: [shoulder, elbow]', 'dimensions: [shoulder, elbow], joints: [j1]',
     "sinks[0].joints: ['j1']: one name for each of the 2 dimensions"),
    ('robot', 'dimensions: [shoulder, elbow]', 'dimensions: [shoulder, elbow], axes: [linear.x]',
     "sinks[0].axes: ['linear.x']: only with type: twist or twist_stamped"),
    ('robot', 'dimensions: [shoulder, elbow]', 'dimensions: [shoulder, elbow], interface: velocity',
     "sinks[0].interface: 'velocity': only with type: float64_multi_array; joint_trajectory takes "
     "position"),
    ('robot', 'type: joint_trajectory', 'type: twist',
     'sinks[0].axes: missing: a list that names the axis of each dimension: linear.x, linear.y, '
     'linear.z, angular.x, angular.y, angular.z'),
    ('robot', 'type: joint_trajectory,', 'type: twist, axes: [linear.x, angular.z],',
     "sinks[0].dimensions[0]: 'shoulder': axis linear.x takes a dimension in m; this one is in "
     "rad"),
    ('robot', 'type: joint_trajectory,', 'type: twist, axes: [angular.x],',
     "sinks[0].axes: ['angular.x']: one axis for each of the 2 dimensions"),
    ('robot', 'type: joint_trajectory', 'type: gripper_command',
     "sinks[0].dimensions: ['shoulder', 'elbow']: exactly one dimension for type gripper_command"),
    ('robot', 'sinks:\n', 'sinks: []\nother:\n', 'sinks: []: a list of mappings, each with a type; '
                                                 'at least 1'),
    # robot: the rest
    ('robot', 'robot: arm', 'robot: arm\nwatchdog: {observation_age: {reaction: panic}}',
     "watchdog.observation_age.reaction: 'panic': one of hold, decelerate, stop_publishing"),
    ('robot', 'robot: arm', 'robot: arm\nwatchdog: {observaton_age: {limit: 1}}',
     "watchdog.observaton_age: unknown key: allowed are inference_deadline, inference_silence, "
     "observation_age, output_age, plan_exhausted; did you mean 'observation_age'?"),
    ('robot', 'robot: arm', 'robot: arm\nwatchdog: {inference_silence: {limit: 0.1}}',
     'watchdog.inference_silence.limit: 0.1: a number at least 0.2 and at most 600 s'),
    ('robot', 'robot: arm', 'robot: arm\nactivation_tolerance: 0',
     'activation_tolerance: 0: a number above 0'),
    ('robot', 'robot: arm', 'robot: arm\nactivation_tolerance: {elbwo: 0.2}',
     "activation_tolerance.elbwo: unknown key: allowed are elbow, hand, shoulder; did you mean "
     "'elbow'?"),
    ('robot', 'robot: arm', 'robot: arm\nexclusive_command: ignore',
     "exclusive_command: 'ignore': one of refuse, warn"),
    ('robot', 'robot: arm', 'robot: arm\non_violation: drop',
     "on_violation: 'drop': one of reject, degrade"),
    # policy
    ('policy', 'policy: reach', 'policy: Reach 1', "policy: 'Reach 1': lower-case letters, digits "
                                                   "and _, a letter first"),
    ('policy', 'kind: gripper', 'kind: griper', "action[2].kind: 'griper': one of position, "
     "velocity, delta, relative, gripper; did you mean 'gripper'?"),
    ('policy', 'name: elbow', 'name: shoulder', "action: dimension 'shoulder' is named twice; "
                                                "names must differ"),
    ('policy', 'kind: gripper, group: gripper', 'kind: gripper, group: joints',
     "action: dimension 'hand' has kind 'gripper' and group 'joints'; gripper goes with gripper "
     "only"),
    ('policy', 'unit: rad, kind: position, group: joints}\n  - {name: elbow',
     'unit: deg, kind: position, group: joints}\n  - {name: elbow',
     "action[0].unit: 'deg': one of rad, m, 1"),
    ('policy', 'unit: rad, kind: position, group: joints}\n  - {name: elbow',
     'unit: rad, kind: velocity, group: joints}\n  - {name: elbow',
     "action[0].unit: 'rad': one of rad/s, m/s, 1/s; did you mean 'rad/s'?"),
    ('policy', 'kind: position, group: joints}\n  - {name: elbow',
     'kind: position, group: rotation}\n  - {name: elbow',
     'action[0].rotation: missing: one of vector, euler, quaternion'),
    ('policy', 'kind: position, group: joints}\n  - {name: elbow',
     'kind: position, group: joints, rotation: euler}\n  - {name: elbow',
     "action[0].rotation: 'euler': only with group: rotation; group is joints"),
    ('policy', 'horizon: 8', 'horizon: 8\nmerge: blend',
     "merge: 'blend': one of latest_only, crossfade, weighted_average, average, conservative, "
     "temporal_ensemble"),
    ('policy', 'horizon: 8', 'horizon: 8\nfade_steps: 9', 'fade_steps: 9: a whole number from 1 to '
                                                          '8'),
    ('policy', 'horizon: 8', 'horizon: 8\nmerge: average\nfade_steps: 2',
     'fade_steps: 2: only with merge: crossfade'),
    ('policy', 'horizon: 8', 'horizon: 8\nstart: now', "start: 'now': one of stamp, arrival"),
    ('policy', 'horizon: 8', 'horizon: 8\ntrigger: often',
     "trigger: 'often': one of continuous, threshold, rate"),
    ('policy', 'horizon: 8', 'horizon: 8\ntrigger: rate', 'trigger_rate: missing: a number above 0 '
                                                          'and at most 1000 Hz'),
    ('policy', 'horizon: 8', 'horizon: 8\nthreshold: 0.5',
     'threshold: 0.5: only with trigger: threshold; trigger is continuous'),
    ('policy', 'horizon: 8', 'horizon: 8\ntrigger: threshold\nthreshold: 1.5',
     'threshold: 1.5: a number above 0 and at most 1'),
    ('policy', 'family: scripted', 'family: scripted\noptions: [a]',
     "options: ['a']: a mapping of keys to values"),
    # engine
    ('engine', 'numpy', 'numpy\ndevice: gpu', "device: 'gpu': cpu, cuda or cuda:<number>"),
    ('engine', 'numpy', 'numpy\nprecision: fp64', "precision: 'fp64': one of fp32, fp16, bf16, "
                                                  "fp8, int8-weight, int4-weight; did you mean "
                                                  "'fp16'?"),
    ('engine', 'numpy', 'numpy\naffinity: [0, 0]', 'affinity[1]: 0: named twice; the entries must '
                                                   'differ'),
    ('engine', 'numpy', 'numpy\naffinity: [-1]', 'affinity[0]: -1: a whole number from 0 to 4095'),
    ('engine', 'numpy', '[]', 'backend: []: name of a backend or a list of names, the preferred '
                              'one first; at least 1'),
    # joint_limits.yaml
    ('joint_limits', 'joint_limits', 'limits', 'joint_limits: missing: a mapping of joint names to '
     'has_position_limits, min_position, …'),
    ('joint_limits', '    max_velocity: 3.0\n', '', 'joint_limits.shoulder.max_velocity: missing: '
                                                    'a number above 0'),
    ('joint_limits', '    has_velocity_limits: true\n', '',
     'joint_limits.shoulder.max_velocity: 3.0: counts only with has_velocity_limits: true; write '
     'has_velocity_limits: true or false'),
    ('joint_limits', 'has_velocity_limits: true', 'has_velocity_limits: 1',
     'joint_limits.shoulder.has_velocity_limits: 1: true or false, without quotes'),
    ('joint_limits', 'min_position: -1.5', 'min_position: 1.5',
     'joint_limits.shoulder.min_position: 1.5: below max_position, which is 1.5'),
    ('joint_limits', 'max_velocity: 3.0', 'max_velocity: .inf',
     'joint_limits.shoulder.max_velocity: inf: a number above 0; it must be finite'),
]


def written(folder: Path, kind: str, *edits: tuple[str, str]) -> Path:
    """A profile file made from the text of its kind with each (old, new) replaced once."""
    text = TEXTS[kind]
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    file = folder / f'{kind}.yaml'
    file.write_text(text, encoding='utf-8')
    return file


def refusal(loader: Callable[[Any], Any], argument: Any) -> str:
    with pytest.raises(ValueError) as caught:
        loader(argument)
    assert type(caught.value) is ValueError
    assert '\n' not in str(caught.value)
    return str(caught.value)


def outcome(loader: Callable[[Any], Any], argument: Any) -> str:
    """The message with which the argument is refused, or '' where it loads."""
    try:
        loader(argument)
    except ValueError as error:
        return str(error)
    return ''


# --- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(('kind', 'old', 'new', 'message'), REFUSED,
                         ids=[f'{row[0]}-{i}' for i, row in enumerate(REFUSED)])
def test_mistake_gives_one_line_with_file_key_value_and_what_is_allowed(
        tmp_path, kind, old, new, message):
    file = written(tmp_path, kind, (old, new))
    assert refusal(LOADERS[kind], file) == f'{file}: {message}'


@pytest.mark.parametrize('kind', TEXTS)
def test_texts_that_the_mistakes_are_made_in_load(tmp_path, kind):
    LOADERS[kind](written(tmp_path, kind))


def test_missing_file_names_the_file_and_the_shipped_profiles(tmp_path):
    file = tmp_path / 'gone.yaml'
    assert refusal(load_robot, file) == (
        f'{file}: no such file: a robot profile is a .yaml file, or one of the shipped names '
        f'sim_arm, so101, widowx_bridge')


def test_folder_in_place_of_a_file_is_named(tmp_path):
    assert refusal(load_robot, tmp_path).startswith(f'{tmp_path}: is a folder: a robot profile')


def test_unknown_name_lists_the_shipped_ones_and_the_nearest():
    assert refusal(load_engine, 'jetsn') == (
        "engine profile 'jetsn': not found: shipped are cpu, desktop, jetson; did you mean "
        "'jetson'?; a path must end in .yaml")


def test_empty_name_lists_the_shipped_ones():
    assert refusal(load_robot, '') == ("robot profile '': not found: shipped are "
                                       "sim_arm, so101, widowx_bridge; a path must end in .yaml")


def test_file_in_another_encoding_is_named(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_bytes(b'robot: \xff\xfe')
    assert refusal(load_robot, file) == f'{file}: not text in UTF-8; save it as UTF-8'


def test_deeply_nested_file_gives_one_line(tmp_path):
    file = tmp_path / 'robot.yaml'
    file.write_text('robot: ' + '[' * 100_000)
    assert refusal(load_robot, file).startswith(f'{file}: not YAML: ')


# --- where profiles lie -----------------------------------------------------------------------


@pytest.mark.parametrize(('kind', 'name'), [(kind, name) for kind in ('robot', 'policy', 'engine')
                                            for name in shipped(kind)])
def test_every_shipped_profile_loads_and_bears_the_name_of_its_file(kind, name):
    assert LOADERS[kind](name).name == name


def test_shipped_profiles_are_those_that_the_documentation_names():
    assert shipped('robot') == ('sim_arm', 'so101', 'widowx_bridge')
    assert shipped('policy') == (
        'edgevla_sim', 'knn_bridge', 'openvla_small', 'scripted_bridge', 'scripted_so101')
    assert shipped('engine') == ('cpu', 'desktop', 'jetson')


def test_path_wins_over_the_shipped_name(tmp_path):
    file = written(tmp_path, 'engine').rename(tmp_path / 'cpu.yaml')
    assert load_engine(file).name == 'bench'
    assert load_engine(str(file)).name == 'bench'


def installed(prefix: Path) -> Path:
    """A config folder as colcon and pip install it below a prefix."""
    folder = prefix / 'share' / 'vla_ros' / 'config'
    for name in ('robots', 'policies', 'engines'):
        (folder / name).mkdir(parents=True)
    (folder / 'engines' / 'cpu.yaml').write_text(ENGINE)
    return folder


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """The package as if it were imported from a place without a config folder."""
    package = tmp_path / 'lib' / 'python3' / 'site-packages' / 'vla_ros'
    monkeypatch.setattr(locate_module, '__file__', str(package / 'profiles' / 'locate.py'))
    monkeypatch.setattr(locate_module.sys, 'prefix', str(tmp_path / 'elsewhere'))
    monkeypatch.delenv('AMENT_PREFIX_PATH', raising=False)
    return tmp_path


def test_names_resolve_in_an_installation_of_pip_or_colcon(nowhere):
    folder = installed(nowhere)
    assert config_folder() == folder
    assert locate('engine', 'cpu') == folder / 'engines' / 'cpu.yaml'


def test_names_resolve_below_sys_prefix(nowhere):
    folder = installed(nowhere / 'elsewhere')
    assert config_folder() == folder


def test_names_resolve_through_ament_prefix_path(nowhere, monkeypatch):
    folder = installed(nowhere / 'overlay')
    monkeypatch.setenv('AMENT_PREFIX_PATH', f'{nowhere / "empty"}:{nowhere / "overlay"}')
    assert config_folder() == folder


def test_missing_config_folder_says_how_to_install(nowhere):
    assert refusal(load_robot, 'so101') == (
        'config folder of vla_ros: not found: install the package with colcon or pip, or give '
        'profiles as paths that end in .yaml')


def test_a_path_needs_no_config_folder(nowhere):
    assert load_engine(written(nowhere, 'engine')).name == 'bench'


def test_paths_in_a_profile_are_relative_to_it_or_to_a_package(tmp_path, monkeypatch):
    file = tmp_path / 'robots' / 'arm.yaml'
    (tmp_path / 'share' / 'arm_description').mkdir(parents=True)
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    assert resolve(file, 'limits.yaml') == tmp_path / 'robots' / 'limits.yaml'
    assert resolve(file, '/etc/limits.yaml') == Path('/etc/limits.yaml')
    assert resolve(file, '~/limits.yaml') == Path.home() / 'limits.yaml'
    assert resolve(file, 'package://arm_description/config/limits.yaml') == (
        tmp_path / 'share' / 'arm_description' / 'config' / 'limits.yaml')
    with pytest.raises(ValueError, match=r"package 'leg' is in no folder of AMENT_PREFIX_PATH"):
        resolve(file, 'package://leg/limits.yaml')


# --- what is read -----------------------------------------------------------------------------


def test_robot_has_what_its_file_says(tmp_path):
    robot = load_robot(written(
        tmp_path, 'robot',
        ('robot: arm', 'robot: arm\nrate: 100\nskew: 0.2\nstate_age: 0.25\ncommand_latency: 0.04\n'
                       'instruction_grace: 2\nframe_id: world\n'
                       'activation_tolerance: {elbow: 0.3}\n'
                       'watchdog: {output_age: {limit: 0.05, reaction: stop_publishing}}'),
        ('scale: 2.0', 'scale: 2.0, offset: -1, invert: true, hysteresis: 0.1, '
                       'minimum_dwell: 0.2'),
        ('acceleration: 2.0}', 'acceleration: 2.0, stop_deceleration: 5, jerk: 40}')))
    assert (robot.name, robot.rate, robot.control_period_ns) == ('arm', 100.0, 10_000_000)
    assert robot.state_names == ('shoulder', 'elbow')
    assert robot.skew_limit_ns('front') == 200_000_000
    assert robot.state_age_ns == 250_000_000
    assert robot.command_latency_ns == 40_000_000
    assert robot.instruction_grace_ns == 2_000_000_000
    shoulder, elbow, hand = robot.dimensions.values()
    assert (shoulder.state, shoulder.position) == ('shoulder', (-1.0, 1.0))
    assert (shoulder.velocity, shoulder.acceleration) == (1.0, 2.0)
    assert (shoulder.stop_deceleration, shoulder.jerk) == (5.0, 40.0)
    assert (elbow.stop_deceleration, elbow.jerk) == (2.0, math.inf)
    assert (shoulder.activation_tolerance, elbow.activation_tolerance) == (0.1, 0.3)
    assert hand.state == ''
    assert hand.gripper == GripperMap(2.0, -1.0, True, 0.1, 200_000_000)
    assert robot.watchdog[Layer.OUTPUT_AGE] == LayerLimit(50_000_000, Reaction.STOP_PUBLISHING)
    assert robot.watchdog[Layer.OBSERVATION_AGE] == LayerLimit(1_000_000_000, Reaction.HOLD)
    assert list(robot.watchdog) == list(Layer)
    trajectory, hand_sink = robot.sinks
    assert (trajectory.type, trajectory.frame_id) == (SinkType.JOINT_TRAJECTORY, 'world')
    assert (trajectory.joints, trajectory.lookahead_ns) == (('shoulder', 'elbow'), 100_000_000)
    assert robot.rollout_steps == 10
    assert (hand_sink.interface, hand_sink.lookahead_ns) == (Interface.POSITION, 0)


def test_skew_limit_defaults_to_one_and_a_half_camera_periods(tmp_path):
    robot = load_robot(written(tmp_path, 'robot'))
    assert robot.skew_limit_ns('front') == 50_000_000


@pytest.mark.parametrize('topic', ['camera/image_raw', 'camera/image_raw/compressed'])
def test_compressed_camera_listens_to_the_compressed_topic(tmp_path, topic):
    robot = load_robot(written(tmp_path, 'robot', ('topic: camera/image_raw',
                                                   f'topic: {topic}, transport: compressed')))
    camera = robot.cameras['front']
    assert (camera.source, camera.transport) == (Source.TOPIC, Transport.COMPRESSED)
    assert camera.topic == 'camera/image_raw/compressed'
    assert camera.resize is Resize.SQUASH


def test_file_camera_path_is_relative_to_the_profile(tmp_path):
    robot = load_robot(written(
        tmp_path, 'robot', ('source: topic, topic: camera/image_raw',
                            'source: file, path: clip.mp4, loop: true, capture_latency: 0.03')))
    camera = robot.cameras['front']
    assert (camera.path, camera.loop) == (tmp_path / 'clip.mp4', True)
    assert camera.capture_latency_ns == 30_000_000
    assert camera.period_ns == 33_333_333


def test_twist_of_six_dimensions_takes_the_axes_in_order():
    twist = load_robot('widowx_bridge').sinks[0]
    assert twist.axes == AXES
    assert twist.interface is Interface.VELOCITY
    assert twist.frame_id == 'base_link'


def test_policy_has_what_its_file_says(tmp_path):
    policy = load_policy(written(
        tmp_path, 'policy',
        ('horizon: 8', 'horizon: 8\ncheckpoint: model.npz\nstate: [shoulder]\n'
                       'trigger: rate\ntrigger_rate: 4\nstart: arrival\npad_short_chunks: true'),
        ('family: scripted', 'family: scripted\noptions: {latency: 0.08}')))
    assert (policy.name, policy.family, policy.horizon) == ('reach', 'scripted', 8)
    assert policy.checkpoint == tmp_path / 'model.npz'
    assert (policy.period_ns, policy.start) == (100_000_000, 'arrival')
    size = policy.cameras['front']
    assert (size.width, size.height) == (224, 160)
    assert policy.state_names == ('shoulder',)
    assert policy.action.names == ('shoulder', 'elbow', 'hand')
    assert [d.kind for d in policy.action.dimensions] == [Kind.POSITION] * 2 + [Kind.GRIPPER]
    assert (policy.merge, policy.fade_steps) == (Merge.CROSSFADE, 2)
    assert (policy.trigger, policy.trigger_rate) == ('rate', 4.0)
    assert policy.pad_short_chunks
    assert policy.options == {'latency': 0.08}


def test_policy_of_one_step_starts_at_arrival(tmp_path):
    policy = load_policy(written(tmp_path, 'policy', ('horizon: 8', 'horizon: 1')))
    assert (policy.start, policy.fade_steps) == ('arrival', 1)
    assert load_policy(written(tmp_path, 'policy')).start == 'stamp'


def test_model_argument_replaces_the_checkpoint():
    assert load_policy('knn_bridge', model='/models/other.npz').checkpoint == Path(
        '/models/other.npz')
    assert load_policy('knn_bridge').checkpoint == config_folder() / 'policies' / 'knn_bridge.npz'
    assert load_policy('scripted_bridge').checkpoint is None


def test_options_are_validated_by_their_owner_with_the_same_one_line_errors(tmp_path):
    file = written(tmp_path, 'policy', ('family: scripted',
                                        'family: scripted\noptions: {latncy: 0.1}'))
    options = load_policy(file).read_options()
    options.seconds('latency', 0.0)
    with pytest.raises(ValueError) as caught:
        options.done()
    assert str(caught.value) == (f"{file}: options.latncy: unknown key: allowed are latency; did "
                                 f"you mean 'latency'?")


def test_rotation_of_the_bridge_policies_is_small_euler_angles():
    for name in ('knn_bridge', 'scripted_bridge'):
        action = load_policy(name).action
        assert {d.rotation for d in action.dimensions[3:6]} == {Rotation.EULER}
        assert {d.kind for d in action.dimensions[:6]} == {Kind.DELTA}


def test_engine_chooses_the_first_backend_that_the_policy_has(tmp_path):
    engine = load_engine(written(tmp_path, 'engine', ('numpy', '[tensorrt, torch, numpy]')))
    assert engine.backend == 'tensorrt'
    assert engine.backend_for(('numpy', 'torch')) == 'torch'
    message = refusal(engine.backend_for, ('onnxruntime',))
    assert message == (f'{engine.file}: backend: tensorrt, torch, numpy: the policy runs on '
                       f'onnxruntime; choose another engine profile or add one of these')


def test_every_shipped_engine_can_run_a_numpy_policy():
    assert {load_engine(name).backend_for(('numpy',)) for name in shipped('engine')} == {'numpy'}


# --- joint_limits.yaml ------------------------------------------------------------------------


NESTED = 'controller_manager:\n  ros__parameters:\n' + ''.join(
    f'    {line}\n' for line in JOINT_LIMITS.splitlines())


@pytest.mark.parametrize('text', [JOINT_LIMITS, NESTED,
                                  'default_velocity_scaling_factor: 0.1\n' + JOINT_LIMITS])
def test_standard_joint_limits_are_read_in_either_layout(tmp_path, text):
    file = tmp_path / 'joint_limits.yaml'
    file.write_text(text)
    limits = read_joint_limits(file)['shoulder']
    assert limits.position == (-1.5, 1.5)
    assert (limits.velocity, limits.acceleration) == (3.0, 4.0)
    assert (limits.stop_deceleration, limits.jerk) == (9.0, math.inf)


def test_joint_that_wraps_around_has_no_position_limits(tmp_path):
    file = written(tmp_path, 'joint_limits', ('    min_', '    angle_wraparound: true\n    min_'))
    assert read_joint_limits(file)['shoulder'].position is None


def test_joint_limits_fill_what_the_profile_leaves_out(tmp_path):
    written(tmp_path, 'joint_limits')
    robot = load_robot(written(tmp_path, 'robot', (
        'robot: arm', 'robot: arm\njoint_limits: joint_limits.yaml'), (
        'shoulder: {unit: rad, position: [-1, 1], velocity: 1.0, acceleration: 2.0}',
        'shoulder: {unit: rad, velocity: 0.5}')))
    shoulder = robot.dimensions['shoulder']
    assert shoulder.position == (-1.5, 1.5)
    assert (shoulder.velocity, shoulder.acceleration) == (0.5, 4.0)
    assert shoulder.stop_deceleration == 9.0


def test_joint_limits_of_a_gripper_are_left_alone_since_they_are_in_the_unit_of_the_joint(tmp_path):
    written(tmp_path, 'joint_limits', ('  shoulder:', '  hand:'))
    robot = load_robot(written(tmp_path, 'robot', (
        'robot: arm', 'robot: arm\njoint_limits: joint_limits.yaml')))
    assert robot.dimensions['hand'].position is None
    assert robot.dimensions['hand'].velocity == math.inf


def test_joint_limits_of_another_robot_are_refused(tmp_path):
    written(tmp_path, 'joint_limits', ('  shoulder:', '  hip:'))
    file = written(tmp_path, 'robot', ('robot: arm', 'robot: arm\njoint_limits: joint_limits.yaml'))
    assert refusal(load_robot, file) == (
        f"{file}: joint_limits: 'joint_limits.yaml': a file with limits of shoulder, elbow, hand; "
        f"it has those of hip")


def test_missing_joint_limits_file_is_named(tmp_path):
    file = written(tmp_path, 'robot', ('robot: arm', 'robot: arm\njoint_limits: gone.yaml'))
    assert refusal(load_robot, file) == (
        f'{tmp_path / "gone.yaml"}: cannot be read: No such file or directory')


# --- whatever stands in the file --------------------------------------------------------------


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a value could be replaced: every key and every entry of a list, at any depth."""
    items = (value.items() if isinstance(value, dict)
             else enumerate(value) if isinstance(value, list) else ())
    return [inner for key, child in items for inner in [(*path, key), *paths(child, (*path, key))]]


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
                    st.dates(), st.binary(max_size=4))
anything = st.recursive(scalars, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.text(max_size=4), st.integers()),
                                                 inner, max_size=3)), max_leaves=6)


@pytest.mark.parametrize(('kind', 'name'), [('robot', 'widowx_bridge'), ('policy', 'knn_bridge'),
                                            ('engine', 'jetson')])
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture],
          deadline=None)
@given(data=st.data())
def test_any_value_at_any_key_loads_or_is_refused_in_one_line(tmp_path, kind, name, data):
    values = copy.deepcopy(yaml.safe_load(locate(kind, name).read_text()))
    *outer, key = data.draw(st.sampled_from(paths(values)))
    place = values
    for step in outer:
        place = place[step]
    if isinstance(place, dict) and data.draw(st.booleans()):
        place[data.draw(st.text(max_size=8))] = place.pop(key)
    else:
        place[key] = data.draw(anything)
    file = tmp_path / 'profile.yaml'
    file.write_text(yaml.safe_dump(values))
    message = outcome(LOADERS[kind], file)
    assert '\n' not in message
    assert not message or message.startswith(f'{file}: ')
