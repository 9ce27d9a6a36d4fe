"""action_publisher: plays the plan at a fixed rate, limited and watched, on the robot's topics.

One thread does everything, so nothing in this process can take the interpreter from a tick: it
serves callbacks until shortly before each deadline, sleeps the rest, and ticks.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.executors import Executor
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.control_config import State
from vla_ros.core.diagnostic_values import LEVELS, OK, control_line, control_values, latency_values
from vla_ros.core.latency import LatencyAccount
from vla_ros.core.types import Command
from vla_ros.profiles.binding import bind
from vla_ros.profiles.loops import control_loop
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.bounded import subscribe_bounded
from vla_ros.ros.command_watch import CommandWatch
from vla_ros.ros.diagnostics import Diagnostics
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.messages import (
    most_plan_bytes,
    plan_from_message,
    state_from_message,
    status_from_message,
    to_ns,
    to_time,
)
from vla_ros.ros.pacing import Pacer, TickRecorder, raise_priority
from vla_ros.ros.parameters import Parameter, ParameterTable
from vla_ros.ros.qos import LATCHED, PLAN, STATE, STATUS, VOLATILE, subscribe_to_any
from vla_ros.ros.sim_ticks import SimTicks
from vla_ros.ros.sinks import Sink, make_sinks
from vla_ros.ros.stages import PUBLISH_LATENCY, stage_publisher

PARAMETERS = ParameterTable([
    Parameter('robot', 'widowx_bridge', 'robot profile: a shipped name or a path'),
    Parameter('policy', 'knn_bridge', 'policy profile: a shipped name or a path'),
    AUTOSTART,
    Parameter('enable_on_start', False, 'enable by itself as soon as that is allowed; for '
              'simulation and demo'),
    Parameter('shadow', False, 'compute everything, publish only under action_publisher/shadow/'),
    Parameter('real_time', True, 'ask for SCHED_FIFO; falls back with a notice'),
    Parameter('lease_wait', 25.0, 'time that an old instance on a command topic gets to leave '
              'before activation is refused', unit='s', low=0.0, high=60.0),
    PUBLISH_LATENCY,
    Parameter('record_ticks', '', 'file (.npy) that gets the times of all ticks at the end; for '
              'benchmarks'),
])
REST_WAIT_S = 1.5  # the longest that ending waits for rest
ZEROS_S = 0.6      # and for the last commands at rest
MOST_BYTES = 1 << 16  # of a state or status; reading more takes longer than a tick may wait


class ActionPublisher(LifecycleNode):
    """Wiring of the control loop; see `core.control_loop` for what it does."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('action_publisher', debug)
        self._pacer: Pacer | None = None
        self._sinks: list[Sink] = []
        self._recorder: TickRecorder | None = None
        self._left_ns = 0  # monotonic time at which the node ceased to be active
        self._idle_ns = 0

    # --- hooks of the lifecycle ----------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self._settings = parameters
        robot = load_robot(parameters['robot'])
        policy = load_policy(parameters['policy'])
        binding = bind(policy, robot)
        for note in binding.notes:
            self.get_logger().info(note)
        self._names, self._policy_period_ns = binding.planned.names, policy.period_ns
        self._period_ns, self._frame_id = robot.control_period_ns, robot.frame_id
        self._most_bytes = most_plan_bytes(policy.horizon, binding.planned.names)
        self._loop = control_loop(robot, policy, binding, parameters['shadow'],
                                  parameters['enable_on_start'])
        self._latency = LatencyAccount(('plan_age', 'tick_wait', 'first_command'))
        self._plan_received_ns = 0
        for sink in make_sinks(self, robot, binding.planned, parameters['shadow']):
            self._sinks.append(self.keep(sink, lambda sink: sink.close(self)))
        topics = () if parameters['shadow'] else tuple(sink.topic for sink in self._sinks)
        self._watch = CommandWatch(self, topics, robot.exclusive_command == 'warn')
        self._diagnostics = self.keep(Diagnostics(self, robot.name), Diagnostics.close)
        path = parameters['record_ticks']
        self._recorder = TickRecorder(path) if path else None
        self._connect()

    def activate(self) -> None:
        self._watch.wait(self._settings['lease_wait'], lambda: self.interrupted)
        if self._settings['real_time']:
            notice = raise_priority()
            if notice:
                self.get_logger().warning(notice)
        if not self._settings['enable_on_start']:
            self.get_logger().info('waiting to be enabled: vla-ros enable, or the service '
                                   'action_publisher/enable')
        self._pacer = Pacer(self._period_ns)
        self._idle_ns = time.monotonic_ns() - self._left_ns if self._left_ns else 0

    def deactivate(self) -> None:
        """Come to rest; spins nothing, so that no callback can start motion again."""
        self._loop.disable('deactivated')
        pacer, self._pacer = Pacer(self._period_ns), None
        deadline = time.monotonic() + (ZEROS_S if self._loop.at_rest else REST_WAIT_S)
        while not self._loop.silent and time.monotonic() < deadline:
            self._tick(self._now_ns(), pacer.wait(time.sleep))
        self._left_ns = time.monotonic_ns()
        self._sim_ticks.rest()
        if not self._loop.at_rest:
            self.get_logger().error(f'not at rest after {REST_WAIT_S} s: stop_deceleration in the '
                                    'robot profile is too low for its velocities')

    def clean_up(self) -> None:
        self._sinks = []
        self._left_ns = 0
        if self._recorder is not None:
            self._recorder.write()

    def spin_once(self, executor: Executor) -> None:
        if self._pacer is None or self._sim_time:
            super().spin_once(executor)
            return
        elapsed_ns = self._pacer.wait(lambda seconds: executor.spin_once(timeout_sec=seconds))
        if self._pacer is not None and not self.interrupted:
            idle_ns, self._idle_ns = self._idle_ns, 0
            self._tick(self._now_ns(), elapsed_ns + idle_ns)

    # --- wiring --------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._reset_publisher = self.keep(
            self.create_publisher(Time, 'reset_stamp', LATCHED), self.destroy_publisher)
        self._stages = stage_publisher(self, self._settings)
        estop = subscribe_to_any(self, Bool, 'estop', self._on_estop)
        self._estop_topic = estop[0].topic_name
        subscriptions = [
            subscribe_bounded(self, JointTrajectory, 'action_chunk', PLAN, self._most_bytes,
                              self._on_plan, self._on_bad_plan),
            subscribe_bounded(self, JointState, 'joint_states', STATE, MOST_BYTES,
                              self._on_state, self._on_large),
            subscribe_bounded(self, DiagnosticStatus, 'inference_status', STATUS, MOST_BYTES,
                              self._on_status, self._on_large),
            *estop]
        self._sim_time = bool(self.get_parameter('use_sim_time').value)
        self._sim_ticks = SimTicks(self._period_ns)
        if self._sim_time:
            subscriptions.append(self.create_subscription(
                Clock, '/clock', self._on_clock, VOLATILE))
        for subscription in subscriptions:
            self.keep(subscription, self.destroy_subscription)
        for kind, name, callback in (
                (SetBool, 'action_publisher/enable', self._on_enable),
                (Trigger, 'action_publisher/reset', self._on_reset)):
            self.keep(self.create_service(kind, name, callback), self.destroy_service)

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _on_plan(self, message: JointTrajectory) -> None:
        now_ns = self._now_ns()
        try:
            plan = plan_from_message(message, self._names, self._policy_period_ns, self._frame_id)
        except ValueError as error:
            self._on_bad_plan(str(error))
            return
        dropped = self._loop.on_plan(plan, now_ns)
        if dropped:
            self.get_logger().warning(f'plan dropped: {dropped}', throttle_duration_sec=1.0)
            return
        self._plan_received_ns = now_ns
        self._latency.add(plan_age=now_ns - plan.stamp_ns)

    def _on_bad_plan(self, cause: str) -> None:
        self.get_logger().error(self._loop.on_malformed_plan(cause), throttle_duration_sec=1.0)

    def _on_large(self, line: str) -> None:
        self._loop.counts['dropped: message that is too large'] += 1
        self.get_logger().warning(line, throttle_duration_sec=1.0)

    def _on_state(self, message: JointState) -> None:
        dropped = self._loop.on_state(state_from_message(message, self._now_ns()))
        if dropped:
            self.get_logger().warning(dropped, throttle_duration_sec=1.0)

    def _on_status(self, message: DiagnosticStatus) -> None:
        try:
            self._loop.on_status(status_from_message(message))
        except ValueError as error:
            self._loop.on_malformed_status()
            self.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _on_estop(self, message: Bool) -> None:
        self._loop.on_estop(message.data, self._now_ns())

    def _on_clock(self, message: Clock) -> None:
        if self._pacer is None:
            return
        tick = self._sim_ticks.crossed(to_ns(message.clock))
        if tick is not None:
            self._tick(*tick)

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if not request.data:
            self._loop.disable()
            response.success, response.message = True, 'coming to rest'
            return response
        refusal = self._watch.refusal() if self._pacer is not None else 'the node is not active'
        refusal = refusal or self._loop.enable(self._now_ns())
        response.success, response.message = not refusal, refusal or 'enabled'
        return response

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        refusal = self._loop.reset(self._now_ns())
        response.success, response.message = not refusal, refusal or 'waiting to be enabled'
        return response

    # --- the tick ------------------------------------------------------------------------------

    def _tick(self, now_ns: int, elapsed_ns: int) -> None:
        result = self._loop.tick(now_ns, elapsed_ns)
        if result.command is not None:
            self._send(result.command)
        if self._recorder is not None:
            self._recorder.add()
        if result.reset_stamp_ns is not None:
            self._reset_publisher.publish(to_time(result.reset_stamp_ns))
        if result.first_of_plan is not None:
            self._account(result.first_of_plan.stamp_ns, now_ns)
        level = bytes([LEVELS.get(result.state, OK)])
        message = control_line(result.state, result.cause)
        if self._diagnostics.due(level, result.state.value, now_ns):
            self._chores()
            self._diagnostics.publish(level, message, self._values(), now_ns)

    def _send(self, command: Command) -> None:
        """One sink that fails must not keep the others from braking."""
        for sink in self._sinks:
            try:
                sink.send(command)
            except Exception as error:
                line = ' '.join(f'sink {sink.topic}: {type(error).__name__}: {error}'.split())
                self.get_logger().error(self._loop.fault(line), throttle_duration_sec=1.0)

    def _account(self, stamp_ns: int, now_ns: int) -> None:
        received_ns = self._plan_received_ns
        self._latency.add(tick_wait=now_ns - received_ns, first_command=now_ns - stamp_ns)
        if self._stages is not None:
            self._stages.publish(stamp_ns, plan_received=received_ns, command=now_ns)

    def _chores(self) -> None:
        """What need not be done every tick: who else commands, is there an e-stop."""
        self._loop.estop_present = self.count_publishers(self._estop_topic) > 0
        if self._pacer is None:
            return
        # Nothing is sent while waiting, and enabling asks again; but not enabling by itself.
        harmless = self._loop.state is State.WAITING and not self._settings['enable_on_start']
        refusal = self._watch.refusal()
        if refusal and not harmless:
            self._loop.fault(refusal)

    def _values(self) -> dict[str, object]:
        pace = self._sim_ticks if self._sim_time else self._pacer
        ticks = {'ticks': pace.ticks, 'missed ticks': pace.missed} if pace is not None else {}
        return control_values(self._loop) | ticks | latency_values(self._latency.summaries())


def main() -> None:
    """Entry point of the executable."""
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
    sys.exit(run(lambda debug: ActionPublisher(debug)))


if __name__ == '__main__':
    main()
