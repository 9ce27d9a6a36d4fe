"""sim_robot: the simulated arm and its table, as a robot under ros2_control would appear.

One thread does everything, so that physics, images and commands never meet halfway: it serves
callbacks until the next measurement is due, lets physics go on until now, and publishes.
"""

from __future__ import annotations

import sys
import time
from array import array
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rclpy.executors import Executor
from rclpy.qos import QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger

from vla_ros.core.counting import Counts
from vla_ros.core.diagnostic_values import latency_values
from vla_ros.core.latency import LatencyAccount
from vla_ros.core.types import NS_PER_S, ImageSize
from vla_ros.ros.diagnostics import OK, WARN, Diagnostics
from vla_ros.ros.image_publishing import ImageWriter
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.messages import to_time
from vla_ros.ros.pacing import Pacer, other_threads, own_thread, raise_image_priority
from vla_ros.ros.parameters import REAL_TIME_IMAGES, Parameter, ParameterTable
from vla_ros.ros.qos import COMMAND, IMAGE, RELIABLE, subscribe_to_any, subscription_events
from vla_ros.sim.arm import STATE_NAMES
from vla_ros.sim.controllers import SIZES, Controllers
from vla_ros.sim.task_log import TaskEvent, TaskLog
from vla_ros.sim.trial import TRIALS, make_trial
from vla_ros.sim.world import World

PARAMETERS = ParameterTable([
    AUTOSTART,
    REAL_TIME_IMAGES,
    Parameter('trial', 'bowl', 'kind of task that the scene is laid out for; counts at the start '
              'and at each sim_robot/reset', choices=TRIALS),
    Parameter('seed', 0, 'of the scene; counts at the start and at each sim_robot/reset', low=0),
    Parameter('width', 128, 'of the images base and wrist', unit='px', low=16, high=1280),
    Parameter('height', 128, 'of the images base and wrist', unit='px', low=16, high=960),
    Parameter('view_width', 480, 'of the image for people', unit='px', low=16, high=1280),
    Parameter('view_height', 360, 'of the image for people', unit='px', low=16, high=960),
    Parameter('clock', False, 'publish /clock, for nodes with use_sim_time'),
    Parameter('speed', 1.0, 'simulated seconds in a second; other than 1 only with clock', low=0.05,
              high=20.0),
])
STATE_NS = NS_PER_S // 100       # between two measurements
FRAME_NS = NS_PER_S // 10        # between two images of a camera
MOST_PERIODS = 10                # that are caught up with; beyond, simulated time falls behind
LATE_SHARE = 0.5                 # of the measurements of a while; beyond, it is told
WHILE_NS = 5 * NS_PER_S
CAMERAS, VIEW = ('wrist', 'base'), 'view'  # base last: its image completes an observation


class SimRobot(LifecycleNode):
    """Wiring of the simulated world; see `vla_ros.sim` for what it does."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('sim_robot', debug)
        self._pacer: Pacer | None = None

    # --- hooks of the lifecycle ----------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        self._makes_clock, self._speed = parameters['clock'], parameters['speed']
        if self._speed != 1.0 and not self._makes_clock:
            raise ValueError(f'parameter speed: {self._speed:g}: other than 1 only with '
                             'clock:=true')
        size = ImageSize(parameters['width'], parameters['height'])
        view = ImageSize(parameters['view_width'], parameters['view_height'])
        self._world = self.keep(World({'base': size, 'wrist': size, VIEW: view}), World.close)
        self._controllers = Controllers(self._world)
        self._tasks = TaskLog()
        self._counts = Counts()
        self._took = LatencyAccount(('physics', 'images', 'view'))
        self._clock_ns = NS_PER_S  # simulated time at the last reset; a time of 0 means none
        self._diagnostics = self.keep(Diagnostics(self, 'sim_arm'), Diagnostics.close)
        self._connect()
        self.get_logger().info(self._reset())

    def activate(self) -> None:
        if self.get_parameter(REAL_TIME_IMAGES.name).value:  # a robot does not wait for a busy core
            raise_image_priority([own_thread(), *other_threads()])
        self._missed, self._late, self._before = 0, False, (0, 0)
        self._window_ns = time.monotonic_ns()
        self._stepped_ns = time.monotonic_ns()
        self._pacer = Pacer(round(STATE_NS / self._speed))

    def deactivate(self) -> None:
        self._pacer = None

    def spin_once(self, executor: Executor) -> None:
        if self._pacer is None:
            super().spin_once(executor)
            return
        pacer = self._pacer
        pacer.wait(lambda seconds: executor.spin_once(timeout_sec=seconds))
        if self._pacer is not None and not self.interrupted:
            passed, self._missed = 1 + pacer.missed - self._missed, pacer.missed
            self._step(passed)

    # --- wiring --------------------------------------------------------------------------------

    def _connect(self) -> None:
        self._states = self.create_publisher(JointState, 'joint_states', RELIABLE)
        self._events = self.create_publisher(String, 'task_event', RELIABLE)
        self._images = {camera: self.create_publisher(Image, f'{camera}/image_raw', IMAGE)
                        for camera in (*CAMERAS, VIEW)}
        self._writers = {camera: ImageWriter(f'{camera}_camera') for camera in self._images}
        publishers = [self._states, self._events, *self._images.values()]
        if self._makes_clock:
            self._clocks = self.create_publisher(Clock, '/clock', QoSProfile(depth=1))
            publishers.append(self._clocks)
        for publisher in publishers:
            self.keep(publisher, self.destroy_publisher)
        subscriptions = subscribe_to_any(self, String, 'instruction', self._on_instruction)
        subscriptions += [
            self.create_subscription(
                Float64MultiArray, topic, partial(self._on_command, topic), COMMAND,
                event_callbacks=subscription_events(self, topic)) for topic in SIZES]
        for subscription in subscriptions:
            self.keep(subscription, self.destroy_subscription)
        self.keep(self.create_service(Trigger, '~/reset', self._on_reset), self.destroy_service)

    def _now_ns(self) -> int:
        """ROS time as others see it: simulated where this node makes the clock."""
        if self._makes_clock:
            return self._clock_ns + self._world.time_ns
        return int(self.get_clock().now().nanoseconds)

    def _on_command(self, topic: str, message: Float64MultiArray) -> None:
        if self._pacer is not None and not self._makes_clock:
            # It acts from now on, and not from the last measurement on.
            since_ns = time.monotonic_ns() - self._stepped_ns
            self._world.step_to(self._measured_ns + min(since_ns, STATE_NS))
        problem = self._controllers.take(topic, message.data)
        self._counts[f'dropped: {topic}' if problem else f'commands: {topic}'] += 1
        if problem:
            self.get_logger().warning(f'command ignored: {problem}', throttle_duration_sec=1.0)

    def _on_instruction(self, message: String) -> None:
        self._tell(self._tasks.tell(message.data, self._world.snapshot()))

    def _on_reset(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        response.success, response.message = True, self._reset()
        return response

    def _reset(self) -> str:
        """Lay out the scene of the parameters; returns what it is."""
        name, seed = (self.get_parameter(key).value for key in ('trial', 'seed'))
        trial = make_trial(name, seed)
        self._clock_ns += self._world.time_ns  # it must not go back
        self._world.reset(trial.scene)
        self._measured_ns = 0
        self._stepped_ns = time.monotonic_ns()
        self._tell(self._tasks.reset(self._world.snapshot(), seed))
        said = ', then '.join(said.sentence for said in trial.said)
        return f'scene of {name} {seed}, made for: {said}'

    def _tell(self, events: Iterable[TaskEvent]) -> None:
        for event in events:
            self._counts[f'task: {event.event}'] += 1
            line = event.json()
            self._events.publish(String(data=line))
            self.get_logger().info(line)

    # --- one measurement -----------------------------------------------------------------------

    def _step(self, passed: int) -> None:
        """Let physics go on by the periods that passed, measure and publish."""
        if self._makes_clock:
            passed = 1  # others wait for this clock: it is late rather than leaves something out
        begin_ns = self._stepped_ns = time.monotonic_ns()
        before_ns = self._measured_ns
        self._measured_ns += min(passed, MOST_PERIODS) * STATE_NS
        self._counts['periods fallen behind'] += max(0, passed - MOST_PERIODS)
        self._world.step_to(self._measured_ns)
        now_ns = self._now_ns()
        if self._makes_clock:
            self._clocks.publish(Clock(clock=to_time(now_ns)))
        state = JointState(name=list(STATE_NAMES), position=array('d', self._world.positions()))
        state.header.stamp = to_time(now_ns)
        self._states.publish(state)
        self._tell(self._tasks.update(self._world.snapshot()))
        self._took.add(physics=time.monotonic_ns() - begin_ns)
        if _crossed(before_ns, self._measured_ns, 0):
            self._look(CAMERAS, now_ns, 'images')
        # Half a frame later: two long gaps in a row would delay measurements.
        if _crossed(before_ns, self._measured_ns, FRAME_NS // 2) and (
                self._images[VIEW].get_subscription_count()):
            self._look((VIEW,), now_ns, 'view')
        self._report(now_ns)

    def _look(self, cameras: Iterable[str], stamp_ns: int, what: str) -> None:
        begin_ns = time.monotonic_ns()
        for camera in cameras:
            pixels = self._world.render(camera)
            self._images[camera].publish(self._writers[camera].message(pixels, stamp_ns))
            self._counts[f'images: {camera}'] += 1
        self._took.add(**{what: time.monotonic_ns() - begin_ns})

    def _report(self, now_ns: int) -> None:
        assert self._pacer is not None
        pacer = self._pacer
        if time.monotonic_ns() - self._window_ns > WHILE_NS:
            made, missed = pacer.ticks - self._before[0], pacer.missed - self._before[1]
            self._late = missed > LATE_SHARE * (made + missed)
            self._before, self._window_ns = (pacer.ticks, pacer.missed), time.monotonic_ns()
        level, state = (WARN, 'late') if self._late else (OK, 'in time')
        if not self._diagnostics.due(level, state, now_ns):
            return
        message = 'simulating'
        if self._late:
            message = (f'cannot keep up: more than {LATE_SHARE:.0%} of the measurements are late; '
                       'the machine is busy or has no GPU: see the values')
        values = {'measurements': pacer.ticks, 'measurements left out': pacer.missed,
                  'task done': self._tasks.success, **self._counts,
                  **latency_values(self._took.summaries())}
        self._diagnostics.publish(level, message, values, now_ns)


def _crossed(before_ns: int, now_ns: int, phase_ns: int) -> bool:
    """Whether a time at which an image is due lies in (before, now]."""
    return (now_ns - phase_ns) // FRAME_NS > (before_ns - phase_ns) // FRAME_NS


def main() -> None:
    """Entry point of the executable."""
    sys.exit(run(lambda debug: SimRobot(debug)))


if __name__ == '__main__':
    main()
