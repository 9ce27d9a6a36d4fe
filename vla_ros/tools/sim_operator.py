"""The operator of the simulated robot: lays out scenes, speaks, enables, hears what comes of it.

Every wait spins the node and has a limit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rcl_interfaces.msg import Parameter, ParameterType, ParameterValue
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import QoSProfile, QoSReliabilityPolicy
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.profiles.robot import RobotProfile
from vla_ros.ros.messages import plan_from_message
from vla_ros.ros.qos import LATCHED
from vla_ros.sim.controllers import ARM_TOPIC
from vla_ros.sim.trial_record import TrialRecord

HEARD = QoSProfile(depth=100, reliability=QoSReliabilityPolicy.RELIABLE)
ANSWER_S = 10.0
# Longer than a control period by half: a command between has been lost.
GAP_PERIODS = 1.5


class SimOperator:
    """Operates the graph of a simulated robot. Not thread-safe.

    `check` is called while waiting and may raise. `record`, where there is one, gets plans and
    commands.
    """

    def __init__(self, robot: RobotProfile, spec: ActionSpec, period_ns: int,
                 check: Callable[[], None]) -> None:
        self._spec, self._policy_period_ns, self._check = spec, period_ns, check
        self._control_period_ns = robot.control_period_ns
        self._node = node = Node('eval')
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._clients: dict[str, Any] = {}
        self._arm = spec.indices(next(
            sink.dimensions for sink in robot.sinks if sink.topic == ARM_TOPIC))
        self._said = ''
        self._commanded_ns = 0       # monotonic
        self.statuses: dict[str, DiagnosticStatus] = {}
        self.events: list[Mapping[str, Any]] = []
        self.record: TrialRecord | None = None
        self.inferences_s: list[float] = []
        self._sentences = node.create_publisher(String, 'instruction', LATCHED)
        for kind, topic, callback in (
                (DiagnosticArray, '/diagnostics', self._on_diagnostics),
                (DiagnosticStatus, 'latency', self._on_stages),
                (JointTrajectory, 'action_chunk', self._on_plan),
                (Float64MultiArray, ARM_TOPIC, self._on_command),
                (String, 'task_event', self._on_event)):
            node.create_subscription(kind, topic, callback, HEARD)

    def close(self) -> None:
        """Take the node away."""
        self._executor.shutdown(timeout_sec=1.0)
        self._node.destroy_node()

    # --- acts ----------------------------------------------------------------------------------

    def say(self, sentence: str) -> None:
        """Give an instruction."""
        self._said = sentence
        self._sentences.publish(String(data=sentence))

    def rest(self, silence_s: float) -> None:
        """Bring the robot to rest, and wait until nothing has been commanded for so long."""
        self.say('')
        self._call(SetBool, 'action_publisher/enable', SetBool.Request(data=False))
        self.until(lambda: time.monotonic_ns() - self._commanded_ns > silence_s * NS_PER_S,
                   'the robot is at rest')

    def lay_out(self, trial: str, seed: int) -> None:
        """A new scene."""
        parameters = [
            Parameter(name='trial', value=ParameterValue(
                type=ParameterType.PARAMETER_STRING, string_value=trial)),
            Parameter(name='seed', value=ParameterValue(
                type=ParameterType.PARAMETER_INTEGER, integer_value=seed))]
        answer = self._call(SetParameters, 'sim_robot/set_parameters',
                            SetParameters.Request(parameters=parameters))
        for result in answer.results:
            if not result.successful:
                raise ValueError(f'sim_robot: {result.reason}')
        self._call(Trigger, 'sim_robot/reset', Trigger.Request())
        self._call(Trigger, 'action_publisher/reset', Trigger.Request())
        self.events.clear()

    def enable(self) -> str:
        """Ask to be let drive; returns why not, or ''."""
        answer = self._call(SetBool, 'action_publisher/enable', SetBool.Request(data=True))
        return '' if answer.success else str(answer.message)

    def done(self) -> bool:
        """Whether the simulator says that the task of the last sentence is done."""
        return any(event['event'] == 'success' and event.get('sentence') == self._said
                   for event in self.events)

    # --- waiting -------------------------------------------------------------------------------

    def spin(self, seconds: float) -> None:
        """Let callbacks run for at most so long, or until one has."""
        self._executor.spin_once(timeout_sec=max(0.0, seconds))
        self._check()

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = ANSWER_S) -> None:
        """Raises ValueError with one line where the condition does not come true in time."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                told = '; '.join(f'{name.rsplit("/", 1)[-1]}: {status.message}'
                                 for name, status in self.statuses.items())
                raise ValueError(f'eval: {what}: not within {limit_s:g} s; {told or "no node"}')
            self.spin(0.05)

    def ready(self, names: Sequence[str], limit_s: float) -> None:
        """Wait until these nodes report on /diagnostics, and hear sentences."""
        self.until(lambda: {name.rsplit('/', 1)[-1] for name in self.statuses} >= set(names),
                   f'{", ".join(names)} are up', limit_s)

    def _call(self, kind: Any, name: str, request: Any) -> Any:
        if name not in self._clients:
            self._clients[name] = self._node.create_client(kind, name)
        client = self._clients[name]
        self.until(client.service_is_ready, f'service {name}')
        future = client.call_async(request)
        self.until(future.done, f'answer of {name}')
        return future.result()

    # --- what is heard -------------------------------------------------------------------------

    def _on_plan(self, message: JointTrajectory) -> None:
        if self.record is not None:
            self.record.on_plan(
                plan_from_message(message, self._spec.names, self._policy_period_ns),
                int(self._node.get_clock().now().nanoseconds))

    def _on_command(self, message: Float64MultiArray) -> None:
        now_ns = time.monotonic_ns()
        gap_ns, self._commanded_ns = now_ns - self._commanded_ns, now_ns
        if self.record is None:
            return
        if gap_ns > GAP_PERIODS * self._control_period_ns:
            self.record.on_command(None)
        values: Floats = np.zeros(self._spec.size)
        values[self._arm] = message.data
        self.record.on_command(values)

    def _on_stages(self, message: DiagnosticStatus) -> None:
        times = {pair.key: int(pair.value) for pair in message.values}
        if self.record is not None and {'called', 'inferred'} <= times.keys():
            self.inferences_s.append((times['inferred'] - times['called']) / NS_PER_S)

    def _on_event(self, message: String) -> None:
        self.events.append(json.loads(message.data))

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            self.statuses[status.name] = status
