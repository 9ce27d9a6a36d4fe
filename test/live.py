"""Real nodes in processes of their own, watched and fed from a node of the test.

Nothing here sleeps for a fixed time: every wait is for a condition and has a limit.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import rclpy
import yaml
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import TwistStamped
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_ros.bringup.graph import Process
from vla_ros.bringup.up import command
from vla_ros.core.types import NS_PER_S, Plan
from vla_ros.profiles.locate import config_folder
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.messages import plan_to_message, to_ns, to_time
from vla_ros.ros.qos import IMAGE, LATCHED, PLAN
from vla_ros.ros.transport import transport_additions

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 30.0  # far beyond what anything takes: a loaded machine is no failure
TWIST, GRIPPER = 'servo_node/delta_twist_cmds', 'gripper_controller/commands'
WIDOWX_DIMENSIONS = ('dx', 'dy', 'dz', 'droll', 'dpitch', 'dyaw', 'gripper')
WIDOWX_STATE = {'x': 0.28, 'y': 0.0, 'z': 0.15, 'roll': 0.0, 'pitch': 0.0, 'yaw': 0.0,
                'gripper': 1.0}
SPEED = 0.06  # m/s, of the motions that tests command

Wanted = TypeVar('Wanted')

os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
# As a camera driver should: with the defaults, images stop for good once a reader was killed.
os.environ.update(transport_additions(os.environ))


class Running:
    """One process and what it wrote."""

    def __init__(self, line: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self._told_to_end = False
        self._file = log.open('wb')
        self.process = subprocess.Popen(list(line), env=dict(environment), cwd=ROOT,
                                        stdin=subprocess.DEVNULL, stdout=self._file,
                                        stderr=self._file, start_new_session=True)

    @property
    def output(self) -> str:
        return self._log.read_text(errors='replace')

    @property
    def died(self) -> bool:
        """Whether it ended without having been told to."""
        return not self._told_to_end and self.process.poll() is not None

    def signal(self, number: int) -> None:
        self._told_to_end = True
        self.process.send_signal(number)

    def interrupt_group(self) -> None:
        """As Ctrl-C in a terminal does: it and its children."""
        self._told_to_end = True
        os.killpg(self.process.pid, signal.SIGINT)

    def may_end(self) -> Running:
        """Its end is what the test is about."""
        self._told_to_end = True
        return self

    def wait(self, timeout_s: float = LIMIT_S) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
            try:
                self.wait(10.0)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._file.close()


class Graph:
    """A namespace of its own with the nodes that a test starts in it, and the test's own node.

    `node`: publishes and subscribes for the test; it is spun by `until` and by nothing else.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.namespace = f'test_{uuid.uuid4().hex[:8]}'
        domain = random.randint(1, 100)
        self.environment = os.environ | {
            'ROS_DOMAIN_ID': str(domain), 'ROS_LOG_DIR': str(folder / 'log'),
            'PYTHONPATH': os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])}
        self.processes: list[Running] = []
        self._context = Context()
        rclpy.init(context=self._context, domain_id=domain)
        self.node = Node('probe', namespace=self.namespace, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.node)
        self._clients: dict[str, Any] = {}
        self.reports: dict[str, list[DiagnosticStatus]] = {}
        self.node.create_subscription(DiagnosticArray, '/diagnostics', self._on_report, 100)
        self.reset_stamps = self.heard(Time, 'reset_stamp', LATCHED)

    # --- processes -----------------------------------------------------------------------------

    def start(self, executable: str, parameters: Mapping[str, Any] | None = None,
              remaps: Sequence[str] = (), words: Sequence[str] = (),
              name: str = '') -> Running:
        """Start a node in the namespace of the graph; /clock is one of its own, too."""
        name = name or executable
        values = {'real_time': False, 'lease_wait': 0.2} if executable == 'action_publisher' else {}
        file = self._folder / f'{name}_{len(self.processes)}.yaml'
        file.write_text(yaml.safe_dump(
            {'/**': {'ros__parameters': {**values, **(parameters or {})}}}))
        line = command(Process(executable, name, self.namespace, {}, arguments=tuple(words)), file,
                       [f'/clock:=/{self.namespace}/clock', *remaps])
        return self.run(line)

    def run(self, line: Sequence[str]) -> Running:
        """Start any process in the environment of the graph."""
        log = self._folder / f'process_{len(self.processes)}.log'
        self.processes.append(Running(line, self.environment, log))
        return self.processes[-1]

    def close(self) -> None:
        for process in self.processes:
            if process.process.poll() is None:
                process.signal(signal.SIGINT)
        for process in self.processes:
            process.end()
        self._executor.shutdown(timeout_sec=1.0)
        self.node.destroy_node()
        rclpy.shutdown(context=self._context)

    # --- waiting and hearing -------------------------------------------------------------------

    def until(self, condition: Callable[[], Wanted], what: str, limit_s: float = LIMIT_S) -> Wanted:
        """Spin until the condition is truthy; returns its value. AssertionError after the limit."""
        deadline = time.monotonic() + limit_s
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > deadline or any(p.died for p in self.processes):
                told = '\n'.join(process.output[-3000:] for process in self.processes)
                last = {name: reports[-1].message for name, reports in self.reports.items()}
                raise AssertionError(f'{what}: not within {limit_s} s, or a process died; {last}\n'
                                     f'{told}')
            self._executor.spin_once(timeout_sec=0.02)

    def heard(self, kind: type, topic: str, qos: QoSProfile | int = 1000) -> list[Any]:
        """The messages on a topic from now on, in a list that grows."""
        messages: list[Any] = []
        self.node.create_subscription(kind, topic, messages.append, qos)
        return messages

    def matched(self, publisher: Any, count: int = 1) -> None:
        """Wait until somebody listens."""
        self.until(lambda: publisher.get_subscription_count() >= count,
                   f'subscribers of {publisher.topic_name}')

    def line(self, process: Running, text: str) -> str:
        """Wait for a line of output with this text, and return it."""
        return self.until(
            lambda: next((line for line in process.output.splitlines() if text in line), ''),
            f'output {text!r}')

    def every(self, seconds: float, act: Callable[[], object]) -> Any:
        """Do something again and again while the graph is spun; returns the timer."""
        return self.node.create_timer(seconds, act)

    def now_ns(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    # --- diagnostics ---------------------------------------------------------------------------

    def message(self, name: str) -> str:
        """What a node said last on /diagnostics."""
        reports = self.reports.get(name)
        return reports[-1].message if reports else ''

    def values(self, name: str) -> dict[str, str]:
        reports = self.reports.get(name)
        return {pair.key: pair.value for pair in reports[-1].values} if reports else {}

    def says(self, text: str, name: str = 'action_publisher', limit_s: float = LIMIT_S) -> str:
        """Wait until a node's present message on /diagnostics has this text; returns it."""
        self.until(lambda: text in self.message(name), f'{name} says {text!r}', limit_s)
        return self.message(name)

    def more_reports(self, count: int = 2, name: str = 'action_publisher') -> None:
        """Wait for further reports: there is one a second, and one with every new state."""
        have = len(self.reports.get(name, ()))
        self.until(lambda: len(self.reports.get(name, ())) >= have + count, f'reports of {name}')

    def silent(self, commands: Sized) -> None:
        """Wait until no command comes from one report of action_publisher to the next."""
        def quiet() -> bool:
            have = len(commands)
            self.more_reports(1)
            return len(commands) == have
        self.until(quiet, 'silence')

    def _on_report(self, message: DiagnosticArray) -> None:
        prefix = f'/{self.namespace}/'
        for status in message.status:
            if status.name.startswith(prefix):
                self.reports.setdefault(status.name[len(prefix):], []).append(status)

    # --- services ------------------------------------------------------------------------------

    def call(self, kind: Any, name: str, request: Any) -> Any:
        """The response of a service, once it is there."""
        if name not in self._clients:
            self._clients[name] = self.node.create_client(kind, name)
        client = self._clients[name]
        self.until(client.service_is_ready, f'service {name}')
        future = client.call_async(request)
        self.until(future.done, f'answer of {name}')
        return future.result()

    def ask_enable(self, enable: bool = True) -> Any:
        return self.call(SetBool, 'action_publisher/enable', SetBool.Request(data=enable))

    def enable(self) -> None:
        """Enable as soon as the node allows it."""
        self.until(lambda: self.ask_enable().success, 'enabling')

    def reset(self) -> Any:
        return self.call(Trigger, 'action_publisher/reset', Trigger.Request())

    def transition(self, node: str, name: str) -> bool:
        number = getattr(Transition, f'TRANSITION_{name.upper()}')
        return bool(self.call(ChangeState, f'{node}/change_state',
                              ChangeState.Request(transition=Transition(id=number))).success)

    def state(self, node: str) -> str:
        return str(self.call(GetState, f'{node}/get_state', GetState.Request()).current_state.label)

    def active(self, *nodes: str) -> None:
        """Wait until nodes are active."""
        for node in nodes:
            self.until(lambda node=node: self.state(node) == 'active', f'{node} is active')


@contextmanager
def graph(folder: Path) -> Iterator[Graph]:
    """A graph whose processes are gone at the end."""
    made = Graph(folder)
    try:
        yield made
    finally:
        made.close()


class Twists:
    """The twist commands of widowx_bridge, and what may be expected of them."""

    def __init__(self, graph: Graph, robot: str = 'widowx_bridge', topic: str = TWIST) -> None:
        self._dimensions = load_robot(robot).dimensions
        self._messages = graph.heard(TwistStamped, topic)

    def __len__(self) -> int:
        return len(self._messages)

    def moving(self, speed: float = 0.8 * SPEED) -> bool:
        """Whether the newest command moves at least so fast along x."""
        return bool(self._messages) and abs(self._messages[-1].twist.linear.x) >= speed

    def still(self) -> bool:
        return bool(self._messages) and not self.rows()[-1].any()

    def stamps_ns(self) -> Any:
        return np.array([to_ns(message.header.stamp) for message in self._messages])

    def rows(self, begin: int = 0) -> Any:
        """Commands [n, 6] from the `begin`th on."""
        twists = [message.twist for message in self._messages[begin:]]
        return np.array([[t.linear.x, t.linear.y, t.linear.z, t.angular.x, t.angular.y, t.angular.z]
                         for t in twists]).reshape(-1, 6)

    def assert_within_limits(self) -> None:
        """Velocity limits, and between two commands no more than the limits' acceleration."""
        rows, limits = self.rows(), [self._dimensions[name] for name in WIDOWX_DIMENSIONS[:6]]
        assert np.isfinite(rows).all()
        assert (np.abs(rows) <= [d.velocity + 1e-9 for d in limits]).all()
        # A command that got lost on the way to the test is a longer step.
        steps = np.maximum(1, np.round(np.diff(self.stamps_ns()) / 20e6))[:, None]
        before, after = rows[:-1], rows[1:]
        braking = np.abs(after) < np.abs(before)
        allowed = np.where(braking, [d.stop_deceleration for d in limits],
                           [d.acceleration for d in limits])
        assert (np.abs(after - before) <= allowed * 0.02 * steps + 1e-9).all()

    def assert_came_to_rest(self, begin: int) -> None:
        """From the `begin`th on: motion that only slows down, in several steps, and stays ended."""
        speeds = np.abs(self.rows(max(0, begin - 1)))
        slower = np.flatnonzero((np.diff(speeds, axis=0) < -1e-12).any(axis=1))
        assert len(slower) > 2, f'no braking in {speeds[:, 0]}'
        after = speeds[slower[0]:]
        assert (np.diff(after, axis=0) <= 1e-12).all(), f'moves again in {after[:, 0]}'
        assert not after[-1].any()


class Numbers:
    """The commands of a Float64MultiArray topic."""

    def __init__(self, graph: Graph, topic: str) -> None:
        self._messages = graph.heard(Float64MultiArray, topic)

    def __len__(self) -> int:
        return len(self._messages)

    def rows(self) -> Any:
        return np.array([message.data for message in self._messages])


class Feed:
    """What surrounds action_publisher: the robot's state, and plans in place of inference_node.

    `dimensions` and `state` in names; `row` is what each step of the plan says.
    """

    def __init__(self, graph: Graph, dimensions: Sequence[str] = WIDOWX_DIMENSIONS,
                 state: Mapping[str, float] = WIDOWX_STATE, period_s: float = 0.2) -> None:
        self._graph = graph
        self.dimensions, self.state = tuple(dimensions), dict(state)
        self.period_ns = round(period_s * NS_PER_S)
        self.row: dict[str, float] = {'dx': SPEED * period_s}
        self.states = graph.node.create_publisher(JointState, 'joint_states', 10)
        self.chunks = graph.node.create_publisher(JointTrajectory, 'action_chunk', PLAN)
        self._timers: list[Any] = []

    def begin(self, plans: bool = True) -> Feed:
        """Publish the state at 50 Hz and a plan at 5 Hz while the graph is spun."""
        self._timers = [self._graph.every(0.02, self.send_state)]
        if plans:
            self._timers.append(self._graph.every(0.2, self.send_plan))
        return self

    def end(self) -> None:
        for timer in self._timers:
            self._graph.node.destroy_timer(timer)
        self._timers = []

    def send_state(self) -> None:
        message = JointState(name=list(self.state), position=list(self.state.values()))
        message.header.stamp = to_time(self._graph.now_ns())
        self.states.publish(message)

    def plan(self, stamp_ns: int | None = None, steps: int = 4) -> JointTrajectory:
        """A plan that does `row` in every step."""
        now_ns = self._graph.now_ns() if stamp_ns is None else stamp_ns
        row = [self.row.get(name, self.state.get(name, 0.0)) for name in self.dimensions]
        return plan_to_message(Plan(now_ns, now_ns, self.period_ns, np.array([row] * steps)),
                               self.dimensions, 'base_link')

    def send_plan(self) -> None:
        self.chunks.publish(self.plan())


class Camera:
    """A camera driver: grey images of the size that the policy takes, at 5 Hz."""

    def __init__(self, graph: Graph, topic: str, width: int = 224, height: int = 224,
                 rate: float = 5.0) -> None:
        self._graph, self.topic = graph, topic
        self._image = Image(width=width, height=height, step=3 * width, encoding='rgb8')
        self._image.data.frombytes(bytes([128]) * (3 * width * height))
        self.plug_in(rate)

    def plug_in(self, rate: float = 5.0) -> None:
        self.publisher = self._graph.node.create_publisher(Image, self.topic, IMAGE)
        self._timer = self._graph.every(1.0 / rate, self.send)

    def unplug(self) -> None:
        self._graph.node.destroy_timer(self._timer)
        self._graph.node.destroy_publisher(self.publisher)

    def send(self) -> None:
        self._image.header.stamp = to_time(self._graph.now_ns())
        self.publisher.publish(self._image)


def changed_profile(folder: Path, kind: str, name: str,
                    change: Callable[[dict[str, Any]], object]) -> str:
    """A copy of a shipped profile with a change; returns its path."""
    profile = yaml.safe_load((config_folder() / kind / f'{name}.yaml').read_text())
    change(profile)
    file = folder / f'{name}_{len(list(folder.iterdir()))}.yaml'
    file.write_text(yaml.safe_dump(profile, sort_keys=False))
    return str(file)


def gentle(folder: Path) -> str:
    """widowx_bridge that brakes over several periods, so that braking can be seen."""
    def change(profile: dict[str, Any]) -> None:
        profile['dimensions']['dx'] |= {'acceleration': 0.4, 'stop_deceleration': 0.4}
        # A machine so busy that the loop itself comes late is not what these tests are about.
        profile['watchdog']['output_age']['limit'] = 5.0
    return changed_profile(folder, 'robots', 'widowx_bridge', change)


def scripted(folder: Path, *faults: Mapping[str, Any], horizon: int = 4) -> str:
    """scripted_bridge that moves along x at SPEED, with faults."""
    def change(profile: dict[str, Any]) -> None:
        profile['horizon'] = horizon
        profile['options'] = {'motion': 'constant', 'amplitude': {'dx': SPEED},
                              'faults': [dict(fault) for fault in faults]}
        if not faults:
            del profile['options']['faults']
    return changed_profile(folder, 'policies', 'scripted_bridge', change)
