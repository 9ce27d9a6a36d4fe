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
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from vla_ros.core.control_loop import State
from vla_ros.core.latency import LatencyAccount
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.binding import bind
from vla_ros.profiles.loops import control_loop
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.command_watch import other_publishers
from vla_ros.ros.diagnostics import ERROR, OK, WARN, Diagnostics, latency_values
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.messages import (
    plan_from_message,
    state_from_message,
    status_from_message,
    to_time,
)
from vla_ros.ros.pacing import Pacer, calm_memory, raise_priority
from vla_ros.ros.parameters import Parameter, ParameterTable
from vla_ros.ros.qos import (
    LATCHED,
    PLAN,
    STATE,
    STATUS,
    VOLATILE,
    subscribe_twice,
    subscription_events,
)
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
])
SETTLE_S = 0.5    # discovery of publishers that are already there
REST_WAIT_S = 1.5  # the longest that ending waits for rest
LEVELS = {State.FAULT: ERROR, State.HOLDING: WARN, State.STOPPING: WARN, State.STOPPED: WARN}


class ActionPublisher(LifecycleNode):
    """Wiring of the control loop; see `core.control_loop` for what it does."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('action_publisher', debug)
        self._pacer: Pacer | None = None
        self._sinks: list[Sink] = []
        self._handles: list[tuple[Any, Any]] = []

    # --- hooks of the lifecycle ----------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self._settings = parameters
        robot = self._robot = load_robot(parameters['robot'])
        policy = load_policy(parameters['policy'])
        binding = bind(policy, robot)
        for note in binding.notes:
            self.get_logger().info(note)
        self._names, self._policy_period_ns = binding.planned.names, policy.period_ns
        self._period_ns = robot.control_period_ns
        self._loop = control_loop(robot, policy, binding, parameters['shadow'],
                                  parameters['enable_on_start'])
        self._latency = LatencyAccount(('plan_age', 'tick_wait', 'first_command'))
        self._plan_received_ns = self._chores_ns = 0
        self._sinks = make_sinks(self, robot, binding.planned, parameters['shadow'])
        self._diagnostics = Diagnostics(self, robot.name)
        self._connect()

    def activate(self) -> None:
        if not self._settings['shadow']:
            self._wait_for_lease()
        if self._settings['real_time']:
            notice = raise_priority()
            if notice:
                self.get_logger().warning(notice)
        calm_memory()
        self._sim_tick: int | None = None
        self._pacer = Pacer(self._period_ns)

    def deactivate(self) -> None:
        """Come to rest; spins nothing, so that no callback can start motion again."""
        self._loop.disable('deactivated')
        pacer, self._pacer = Pacer(self._period_ns), None
        deadline = time.monotonic() + REST_WAIT_S
        while time.monotonic() < deadline:
            self._tick(self._now_ns(), pacer.wait(time.sleep))
            if self._loop.silent:
                return
        if not self._loop.at_rest:
            self.get_logger().error(f'not at rest after {REST_WAIT_S} s: stop_deceleration in the '
                                    'robot profile is too low for its velocities')

    def clean_up(self) -> None:
        for sink in self._sinks:
            sink.close(self)
        self._sinks = []
        for destroy, handle in self._handles:
            destroy(handle)
        self._handles = []

    def make_executor(self) -> Executor:
        """The one with the least jitter that this distribution has."""
        try:
            from rclpy.experimental import EventsExecutor
        except ImportError:  # Humble
            return super().make_executor()
        return EventsExecutor()

    def spin_once(self, executor: Executor) -> None:
        if self._pacer is None or self._sim_time:
            super().spin_once(executor)
            return
        elapsed_ns = self._pacer.wait(lambda seconds: executor.spin_once(timeout_sec=seconds))
        if self._pacer is not None and not self.interrupted:
            self._tick(self._now_ns(), elapsed_ns)

    # --- wiring --------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._reset_publisher = self.create_publisher(Time, 'reset_stamp', LATCHED)
        self._handles.append((self.destroy_publisher, self._reset_publisher))
        self._stages = stage_publisher(self, self._settings)
        subscriptions = [
            self._subscribed(JointTrajectory, 'action_chunk', self._on_plan, PLAN),
            self._subscribed(JointState, 'joint_states', self._on_state, STATE),
            self._subscribed(DiagnosticStatus, 'inference_status', self._on_status, STATUS),
            *subscribe_twice(self, Bool, 'estop', self._on_estop)]
        self._sim_time = bool(self.get_parameter('use_sim_time').value)
        if self._sim_time:
            subscriptions.append(self._subscribed(Clock, '/clock', self._on_clock, VOLATILE))
        self._handles += [(self.destroy_subscription, one) for one in subscriptions]
        services = [self.create_service(SetBool, 'action_publisher/enable', self._on_enable),
                    self.create_service(Trigger, 'action_publisher/reset', self._on_reset)]
        self._handles += [(self.destroy_service, one) for one in services]

    def _subscribed(self, message: type, topic: str, callback: Any, qos: QoSProfile) -> Any:
        return self.create_subscription(message, topic, callback, qos,
                                        event_callbacks=subscription_events(self, topic))

    def _now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def _on_plan(self, message: JointTrajectory) -> None:
        now_ns = self._now_ns()
        try:
            plan = plan_from_message(message, self._names, self._policy_period_ns)
        except ValueError as error:
            self.get_logger().error(self._loop.fault(str(error)))
            return
        dropped = self._loop.on_plan(plan, now_ns)
        if dropped:
            self.get_logger().warning(f'plan dropped: {dropped}', throttle_duration_sec=1.0)
            return
        self._plan_received_ns = now_ns
        self._latency.add(plan_age=now_ns - plan.stamp_ns)

    def _on_state(self, message: JointState) -> None:
        self._loop.on_state(state_from_message(message, self._now_ns()))

    def _on_status(self, message: DiagnosticStatus) -> None:
        try:
            self._loop.on_status(status_from_message(message))
        except ValueError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=1.0)

    def _on_estop(self, message: Bool) -> None:
        self._loop.on_estop(message.data, self._now_ns())

    def _on_clock(self, message: Clock) -> None:
        """Tick at the newest multiple of the period that simulated time has crossed."""
        if self._pacer is None:
            return
        tick = (message.clock.sec * NS_PER_S + message.clock.nanosec) // self._period_ns
        before = self._sim_tick if self._sim_tick is not None else tick - 1
        if tick == before:
            return
        self._sim_tick = tick
        # The time that really passed is not known here: a jump is what the steps cannot explain.
        explained = (tick - before) * self._period_ns
        usual = 0 < explained <= NS_PER_S // 10
        self._tick(tick * self._period_ns, explained if usual else self._period_ns)

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if not request.data:
            self._loop.disable()
            response.success, response.message = True, 'coming to rest'
            return response
        refusal = self._exclusive() if self._pacer is not None else 'the node is not active'
        response.message = refusal or self._loop.enable(self._now_ns())
        response.success = not response.message
        return response

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.message = self._loop.reset(self._now_ns())
        response.success = not response.message
        return response

    # --- the tick ------------------------------------------------------------------------------

    def _tick(self, now_ns: int, elapsed_ns: int) -> None:
        result = self._loop.tick(now_ns, elapsed_ns)
        if result.command is not None:
            for sink in self._sinks:
                sink.send(result.command)
        if result.reset_stamp_ns is not None:
            self._reset_publisher.publish(to_time(result.reset_stamp_ns))
        if result.first_of_plan is not None:
            self._account(result.first_of_plan.stamp_ns, now_ns)
        level, message = LEVELS.get(result.state, OK), result.state.value
        if result.cause:
            message += f': {result.cause}'
        if self._diagnostics.due(level, result.state.value, now_ns):
            self._chores()
            self._diagnostics.publish(level, message, self._values(), now_ns)

    def _account(self, stamp_ns: int, now_ns: int) -> None:
        received_ns = self._plan_received_ns
        self._latency.add(tick_wait=now_ns - received_ns, first_command=now_ns - stamp_ns)
        if self._stages is not None:
            self._stages.publish(stamp_ns, plan_received=received_ns, command=now_ns)

    def _chores(self) -> None:
        """What need not be done every tick: who else commands, is there an e-stop."""
        self._loop.estop_present = self.count_publishers('estop') > 0
        if self._pacer is None or self._settings['shadow']:
            return
        refusal = self._exclusive()
        if refusal:
            self._loop.fault(refusal)

    def _exclusive(self) -> str:
        """Who else publishes on a command topic, as a refusal; '' where nobody does or may."""
        others = other_publishers(self, [sink.topic for sink in self._sinks])
        if not others:
            return ''
        line = f'second command publisher: {others[0]}; stop it or remap one of the two'
        if self._robot.exclusive_command == 'warn':
            self.get_logger().warning(line, throttle_duration_sec=10.0)
            return ''
        return line

    def _wait_for_lease(self) -> None:
        """Let an old instance's endpoints expire. Raises ValueError where somebody stays."""
        begin = time.monotonic()
        told = False
        while not self.interrupted:
            refusal, waited = self._exclusive(), time.monotonic() - begin
            if not refusal and waited >= SETTLE_S:
                return
            if refusal and waited >= self._settings['lease_wait']:
                raise ValueError(f'{refusal} (waited {waited:.0f} s)')
            if refusal and not told:
                self.get_logger().warning(f'{refusal}; waiting for it to leave')
                told = True
            time.sleep(0.05)

    def _values(self) -> dict[str, object]:
        loop, pacer = self._loop, self._pacer
        values: dict[str, object] = {
            'state': loop.state.value, 'cause': loop.cause,
            'ticks': pacer.ticks if pacer else 0, 'missed ticks': pacer.missed if pacer else 0,
            **{f'hold: {cause}': count for cause, count in loop.holds.items()},
            **{reason: count for reason, count in loop.counts.items()}}
        for limit, counts in loop.clips.items():
            values |= {f'clips {limit} {name}': int(count)
                       for name, count in zip(self._names, counts) if count}  # noqa: B905
        return values | latency_values(self._latency.summaries())


def main() -> None:
    """Entry point of the executable."""
    os.environ.setdefault('OPENBLAS_NUM_THREADS', '1')
    sys.exit(run(lambda debug: ActionPublisher(debug)))


if __name__ == '__main__':
    main()
