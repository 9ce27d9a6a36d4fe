"""sim_robot over DDS: it moves as commanded, sees, resets by seed, tells of its task."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip('rclpy', reason='no ROS on this machine')

from live import Graph, graph  # noqa: E402
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue  # noqa: E402
from rcl_interfaces.srv import SetParameters  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import Image, JointState  # noqa: E402
from std_msgs.msg import Float64MultiArray, String  # noqa: E402
from std_srvs.srv import Trigger  # noqa: E402

from vla_ros.core.types import NS_PER_S  # noqa: E402
from vla_ros.profiles.locate import config_folder  # noqa: E402
from vla_ros.profiles.robot import load_robot  # noqa: E402
from vla_ros.ros.messages import to_ns  # noqa: E402
from vla_ros.ros.qos import IMAGE, LATCHED  # noqa: E402
from vla_ros.sim.arm import STATE_NAMES  # noqa: E402
from vla_ros.sim.controllers import ARM_TOPIC, GRIPPER_TOPIC, SIZES  # noqa: E402
from vla_ros.sim.kinematics import reach_down  # noqa: E402
from vla_ros.sim.trial import make_trial  # noqa: E402

pytestmark = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')


class Arm:
    """The simulated arm, and what it says."""

    def __init__(self, graph: Graph, **parameters: Any) -> None:
        self.graph = graph
        self.states = graph.heard(JointState, 'joint_states')
        self.events = graph.heard(String, 'task_event')
        self.publishers = {topic: graph.node.create_publisher(Float64MultiArray, topic, 1)
                           for topic in SIZES}
        self.process = graph.start('sim_robot', parameters)
        graph.active('sim_robot')
        for publisher in self.publishers.values():
            graph.matched(publisher)
        graph.until(lambda: self.states, 'a measurement')

    @property
    def positions(self) -> Any:
        """The newest measurement [7]."""
        return np.array(self.states[-1].position)

    def command(self, topic: str, numbers: Sequence[float]) -> None:
        self.publishers[topic].publish(Float64MultiArray(data=list(numbers)))

    def reaches(self, positions: Any, what: str) -> None:
        self.graph.until(lambda: np.allclose(self.positions, positions, atol=0.01), what)

    def reset(self, **parameters: Any) -> str:
        request = SetParameters.Request(parameters=[
            Parameter(name=name, value=_value(value)) for name, value in parameters.items()])
        for result in self.graph.call(SetParameters, 'sim_robot/set_parameters', request).results:
            assert result.successful, result.reason
        answer = self.graph.call(Trigger, 'sim_robot/reset', Trigger.Request())
        assert answer.success
        self.states.clear()
        self.graph.until(lambda: len(self.states) > 2, 'measurements after the reset')
        return str(answer.message)

    def told(self, event: str) -> dict[str, Any]:
        """Wait for an event and return the newest of them."""
        def newest() -> dict[str, Any]:
            found = [json.loads(e.data) for e in self.events]
            return next((e for e in reversed(found) if e['event'] == event), {})
        return self.graph.until(newest, f'event {event}')


def _value(value: Any) -> ParameterValue:
    if isinstance(value, str):
        return ParameterValue(type=ParameterType.PARAMETER_STRING, string_value=value)
    return ParameterValue(type=ParameterType.PARAMETER_INTEGER, integer_value=value)


@pytest.fixture(scope='module')
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arm]:
    with graph(tmp_path_factory.mktemp('sim_robot')) as made:
        yield Arm(made)


def test_topics_are_those_of_the_robot_profile() -> None:
    robot = load_robot('sim_arm')
    assert {sink.topic: len(sink.dimensions) for sink in robot.sinks} == SIZES
    assert robot.state_names == STATE_NAMES
    assert {camera.topic for camera in robot.cameras.values()} == {
        'base/image_raw', 'wrist/image_raw'}


def test_moves_to_what_is_commanded_and_holds_it(arm: Arm) -> None:
    scene = make_trial('bowl', 5).scene
    arm.reset(seed=5, trial='bowl')
    before = arm.positions
    np.testing.assert_allclose(before[:6], reach_down(scene.tool), atol=0.01)
    target = before[:6] + [0.3, 0.1, -0.1, 0.2, 0.1, -0.2]
    arm.command(ARM_TOPIC, target)
    arm.command(GRIPPER_TOPIC, [0.02])
    arm.reaches([*target, 0.02], 'the commanded pose')
    count = len(arm.states)
    arm.graph.until(lambda: len(arm.states) > count + 30, 'more measurements')
    np.testing.assert_allclose(arm.positions, [*target, 0.02], atol=0.01)


def test_bad_commands_are_ignored_and_counted(arm: Arm) -> None:
    arm.reset(seed=6, trial='bowl')
    before = arm.positions
    bad = [(ARM_TOPIC, [0.0] * 5), (ARM_TOPIC, [0.0, 0.0, float('nan'), 0.0, 0.0, 0.0]),
           (GRIPPER_TOPIC, []), (GRIPPER_TOPIC, [float('inf')])]
    counts = dict.fromkeys(SIZES, 0)
    for topic, numbers in bad:
        counts[topic] += 1
        arm.command(topic, numbers)
        arm.graph.until(lambda topic=topic: arm.graph.values('sim_robot').get(
            f'dropped: {topic}') == str(counts[topic]), f'{numbers} is counted')
    assert 'numbers; 6 are needed' in arm.graph.line(arm.process, 'command ignored')
    np.testing.assert_allclose(arm.positions, before, atol=2e-3)
    assert len([line for line in arm.process.output.splitlines() if 'Traceback' in line]) == 0


def test_measurements_and_images_bear_the_time_of_their_capture(arm: Arm) -> None:
    images = {camera: arm.graph.heard(Image, f'{camera}/image_raw', IMAGE)
              for camera in ('base', 'wrist')}
    count = len(arm.states)
    before_ns = arm.graph.now_ns()
    arm.graph.until(lambda: all(len(found) >= 5 for found in images.values()), 'images')
    stamps = np.array([to_ns(s.header.stamp) for s in arm.states[count:]])
    assert (np.diff(stamps) > 0).all()
    assert stamps[0] > before_ns - NS_PER_S
    assert stamps[-1] <= arm.graph.now_ns()
    taken = {camera: [to_ns(i.header.stamp) for i in found] for camera, found in images.items()}
    both = set(taken['base']) & set(taken['wrist'])
    assert len(both) >= 3, 'both cameras see the same moment'
    assert both <= {*stamps.tolist(), *[to_ns(s.header.stamp) for s in arm.states]}
    for found in images.values():
        image = found[-1]
        assert (image.width, image.height, image.encoding) == (128, 128, 'rgb8')
        assert np.ptp(np.frombuffer(bytes(image.data), np.uint8)) > 100, 'something to be seen'


def test_view_is_published_to_those_who_look(arm: Arm) -> None:
    view = arm.graph.heard(Image, 'view/image_raw', IMAGE)
    arm.graph.until(lambda: len(view) >= 2, 'the view')
    assert (view[-1].width, view[-1].height) == (480, 360)


def test_reset_with_the_same_seed_is_the_same_start(arm: Arm) -> None:
    images = arm.graph.heard(Image, 'base/image_raw', IMAGE)
    starts, answers, scenes = [], [], []
    for seed in (11, 12, 11):
        arm.command(ARM_TOPIC, reach_down([0.3, 0.1, 0.2]))
        answers.append(arm.reset(seed=seed, trial='push'))
        starts.append(arm.positions)
        images.clear()
        arm.graph.until(lambda: len(images) >= 2, 'images of the new scene')
        scenes.append(np.frombuffer(bytes(images[-1].data), np.uint8).astype(int))
    np.testing.assert_allclose(starts[0], starts[2], atol=1e-4)
    assert not np.allclose(starts[0], starts[1], atol=1e-2)
    assert np.mean(np.abs(scenes[0] - scenes[2]) > 8) < 1e-3
    assert np.mean(np.abs(scenes[0] - scenes[1]) > 8) > 1e-2
    assert answers[0] == answers[2] != answers[1]
    assert make_trial('push', 11).said[0].sentence in answers[0]


def test_tells_of_tasks_from_sentence_to_success(arm: Arm) -> None:
    trial = make_trial('reach', 1)
    arm.reset(seed=1, trial='reach')
    assert arm.told('reset')['seed'] == 1
    said = trial.said[0]
    sentences = arm.graph.node.create_publisher(String, 'instruction', LATCHED)
    arm.graph.matched(sentences)
    for text, event in (('make me a coffee', 'unknown'), (said.sentence, 'started')):
        sentences.publish(String(data=text))
        assert arm.told(event)['sentence'] == text
    assert arm.told('started')['colour'] == said.task.colour
    things = trial.scene.blocks if said.task.thing == 'block' else trial.scene.bowls
    thing = next(thing for thing in things if thing.colour == said.task.colour)
    arm.command(ARM_TOPIC, reach_down([thing.x, thing.y, 0.10]))
    event = arm.told('success')
    assert event['sentence'] == said.sentence
    assert event['took'] >= 0.5
    sentences.publish(String(data=''))
    arm.graph.node.destroy_publisher(sentences)


def test_clock_runs_at_the_chosen_speed_and_never_goes_back(tmp_path: Path) -> None:
    with graph(tmp_path) as made:
        clock = made.heard(Clock, f'/{made.namespace}/clock')
        arm = Arm(made, clock=True, speed=4.0)
        arm.reset(seed=3)
        count = len(clock)
        made.until(lambda: len(clock) > count + 50, 'the clock')
        times = np.array([to_ns(message.clock) for message in clock])
        assert (np.diff(times) > 0).all()
        assert set(np.diff(times)[10:].tolist()) <= {10_000_000, 20_000_000, 30_000_000}
        stamps = {to_ns(state.header.stamp) for state in arm.states}
        assert len(stamps & set(times.tolist())) > 10, 'measurements bear times of the clock'


def test_speed_without_clock_is_refused_in_one_line(tmp_path: Path) -> None:
    with graph(tmp_path) as made:
        process = made.start('sim_robot', {'speed': 2.0}).may_end()
        line = made.line(process, 'speed: 2')
        assert 'only with clock:=true' in line
        assert process.wait() == 1


def test_the_nodes_drive_it_in_its_own_time(tmp_path: Path) -> None:
    policy = yaml.safe_load((config_folder() / 'policies' / 'edgevla_sim.yaml').read_text())
    del policy['checkpoint']
    policy |= {'family': 'scripted', 'options': {
        'motion': 'sine', 'amplitude': {'waist': 0.3}, 'frequency': 0.5}}
    file = tmp_path / 'swing.yaml'
    file.write_text(yaml.safe_dump(policy))
    with graph(tmp_path) as made:
        arm = Arm(made, clock=True, speed=2.0)
        for publisher in arm.publishers.values():  # who drives wants to be alone
            made.node.destroy_publisher(publisher)
        common = {'robot': 'sim_arm', 'policy': str(file), 'use_sim_time': True}
        commands = made.heard(Float64MultiArray, ARM_TOPIC)
        clock = made.heard(Clock, f'/{made.namespace}/clock')
        for name in ('action_publisher', 'inference_node', 'camera_node'):
            made.start(name, common)
        made.active('action_publisher', 'inference_node', 'camera_node')
        sentences = made.node.create_publisher(String, 'instruction', LATCHED)
        made.matched(sentences)
        sentences.publish(String(data='swing'))
        made.enable()
        arm.states.clear()
        commands.clear()
        clock.clear()
        made.until(lambda: len(arm.states) > 300, 'three simulated seconds')
        waist = np.array([state.position[0] for state in arm.states])
        assert np.ptp(waist) > 0.1, 'it swings'
        seconds = (to_ns(clock[-1].clock) - to_ns(clock[0].clock)) / NS_PER_S
        assert 0.3 * 50 * seconds < len(commands) < 1.05 * 50 * seconds + 5
