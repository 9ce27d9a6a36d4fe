"""Plays a recording over ROS topics: the recorded bytes at their recorded pace, with `/clock`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any

from builtin_interfaces.msg import Time
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from std_srvs.srv import SetBool

from vla_ros.core.types import NS_PER_S
from vla_ros.ros.playback import (
    PlayOptions,
    RecordedTopic,
    Recording,
    Timeline,
    TypicalGap,
    shift_stamp,
)

# Names that mean the same in every namespace.
_GLOBAL = ('/clock', '/diagnostics', '/parameter_events', '/rosout', '/tf', '/tf_static')
_DEPTH = 10
_NAP_S = 0.02  # how long a pause or a stop may go unnoticed


class BagPlayer(Node):
    """Publishes a recording. `play` runs in one thread while another spins the node.

    Recorded names are taken as relative to the node's namespace, but for the global ones of ROS.
    `~/pause` (SetBool) holds the messages and `/clock`. Raises ValueError where nothing can be
    played.
    """

    def __init__(self, bag: Recording, options: PlayOptions) -> None:
        super().__init__('bag_player')
        self.published = 0
        self._bag = bag
        self._options = options
        # Plain flags: a signal handler must not wait for a lock.
        self._stopped = False
        self._paused = False
        self._start_ns = bag.start_ns + round(options.start_offset_s * NS_PER_S)
        if self._start_ns > bag.end_ns:
            raise ValueError(f'play: start offset: {options.start_offset_s} s; {bag.path} is '
                             f'{(bag.end_ns - bag.start_ns) / NS_PER_S:.3f} s long')
        self._outputs: dict[str, Publisher[Any]] = {}
        self._topics = dict(self._open_outputs())
        if not self._topics:
            raise ValueError(f'play: {bag.path}: nothing that can be played in '
                             f'{", ".join(options.topics or bag.topics)}')
        self._clock_ns = 0
        self._clock_step_ns = 0
        if options.clock_hz:
            self._clock_output = self.create_publisher(Clock, '/clock', QoSProfile(depth=1))
            # At least clock_hz ticks in a second, of the wall and of the recording alike.
            self._clock_step_ns = round(NS_PER_S / options.clock_hz * min(options.rate, 1.0))
        self._pause = self.create_service(SetBool, '~/pause', self._on_pause)

    def stop(self) -> None:
        """Make `play` return soon; may be called from any thread and from a signal handler."""
        self._stopped = True

    def play(self) -> None:
        """Publish until the end, or in a loop until `stop`. Raises ValueError on a broken bag."""
        self._wait_for_subscribers()
        self._sleep_until(time.monotonic_ns() + round(self._options.delay_s * NS_PER_S))
        self._timeline = Timeline(self._start_ns, time.monotonic_ns(), self._options.rate)
        passed_ns = 0
        while not self._stopped:
            passed_ns += self._play_once(passed_ns)
            if not self._options.loop:
                break
        if not self._stopped:
            self._flush()

    def _play_once(self, passed_ns: int) -> int:
        """One pass, begun at the played time `passed_ns`; the length of a pass with its gap."""
        gap = TypicalGap(self._topics.values())
        # Measured once a pass: from one message to the next the wall clock must not move.
        wall_ns = time.time_ns() - time.monotonic_ns()
        last_ns = -1
        from_ns = self._start_ns if self._options.start_offset_s else None
        for message in self._bag.raw(list(self._topics), from_ns):
            last_ns = message.time_ns
            played_ns = last_ns + passed_ns
            if not self._wait_until(played_ns):
                return 0
            shift_ns = passed_ns
            if self._options.moves_stamps:
                shift_ns = self._timeline.due_ns(played_ns) + wall_ns - last_ns
            data = message.data
            if shift_ns and self._topics[message.topic].header:
                data = shift_stamp(data, shift_ns)
            self._outputs[message.topic].publish(data)
            self.published += 1
            gap.add(message.topic, last_ns)
        if last_ns < 0:
            raise ValueError(f'play: {self._bag.path}: no messages on {", ".join(self._topics)} '
                             f'after the start offset of {self._options.start_offset_s} s')
        return last_ns - self._start_ns + gap.ns()

    def _wait_until(self, played_ns: int) -> bool:
        """Publish `/clock` up to and with this time; False where `stop` came before it."""
        while not self._stopped:
            now_ns = self._timeline.played_ns(time.monotonic_ns())
            if self._paused:
                held_ns = min(now_ns, played_ns)
                while self._paused and not self._stopped:
                    time.sleep(_NAP_S)
                self._timeline.resume(held_ns, time.monotonic_ns())
                continue
            target_ns = played_ns
            if self._clock_step_ns:
                # Missed ticks are left out, never bunched.
                tick = max(self._clock_ns, now_ns) // self._clock_step_ns + 1
                target_ns = min(tick * self._clock_step_ns, played_ns)
            if not self._sleep_until(self._timeline.due_ns(target_ns)):
                continue
            if self._clock_step_ns and target_ns > self._clock_ns:
                self._clock_ns = target_ns
                seconds, nanoseconds = divmod(target_ns, NS_PER_S)
                self._clock_output.publish(Clock(clock=Time(sec=seconds, nanosec=nanoseconds)))
            if target_ns == played_ns:
                return True
        return False

    def _sleep_until(self, monotonic_ns: int) -> bool:
        """False where a pause or a stop came first."""
        while not self._stopped and not self._paused:
            left_ns = monotonic_ns - time.monotonic_ns()
            if left_ns <= 0:
                return True
            time.sleep(min(left_ns / NS_PER_S, _NAP_S))
        return False

    def _open_outputs(self) -> Iterator[tuple[str, RecordedTopic]]:
        """Make a publisher for every topic that can be played; name the others and why."""
        names = self._options.topics or self._bag.topics
        for topic in (self._bag.require(name) if self._options.topics else self._bag.topics[name]
                      for name in names):
            if topic.name == '/clock' and (self._options.clock_hz or self._options.moves_stamps):
                self.get_logger().warning(
                    'the recorded /clock is left out: it would contradict the stamps')
                continue
            name = topic.name if topic.name in _GLOBAL else topic.name.lstrip('/')
            try:
                kind = message_type(topic.type)
                self._outputs[topic.name] = self.create_publisher(kind, name, _qos(topic))
            except Exception as error:
                self.get_logger().warning(
                    f'topic {topic.name} is left out: its type {topic.type} cannot be used here '
                    f'({error}); install its message package')
                continue
            yield topic.name, topic

    def _wait_for_subscribers(self) -> None:
        """Wait until every topic has one, or no more come, or the limit is reached."""
        began_ns = changed_ns = time.monotonic_ns()
        limit_ns = began_ns + round(self._options.wait_s * NS_PER_S)
        matched: list[str] = []
        while not self._stopped and time.monotonic_ns() < limit_ns:
            now = [name for name, out in self._outputs.items() if out.get_subscription_count()]
            if now != matched:
                matched, changed_ns = now, time.monotonic_ns()
            settled = matched and time.monotonic_ns() - changed_ns >= NS_PER_S
            if settled or len(matched) == len(self._outputs):
                return
            time.sleep(_NAP_S)
        if self._options.wait_s and not self._stopped:
            lonely = ', '.join(name for name in self._outputs if name not in matched)
            self.get_logger().warning(
                f'no subscriber within {self._options.wait_s} s on {lonely}; playing all the same')

    def _flush(self) -> None:
        """Give reliable subscribers the time to take the last messages."""
        for output in self._outputs.values():
            output.wait_for_all_acked(Duration(seconds=1))

    def _on_pause(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        self._paused = request.data
        response.success = True
        response.message = 'paused' if request.data else 'playing'
        return response


def message_type(name: str) -> Any:
    """The Python class of a type such as `std_msgs/msg/String`. Raises ImportError."""
    package, folder, kind = name.split('/')
    try:
        return getattr(importlib.import_module(f'{package}.{folder}'), kind)
    except AttributeError:
        raise ImportError(f'{package} has no {kind}') from None


def _qos(topic: RecordedTopic) -> QoSProfile:
    """Reliable, so that every subscriber matches; sentences are kept for late ones."""
    if topic.transient_local or topic.type == 'std_msgs/msg/String' or topic.name == '/tf_static':
        return QoSProfile(depth=100 if topic.name == '/tf_static' else 1,
                          reliability=ReliabilityPolicy.RELIABLE,
                          durability=DurabilityPolicy.TRANSIENT_LOCAL)
    return QoSProfile(depth=_DEPTH, reliability=ReliabilityPolicy.RELIABLE,
                      durability=DurabilityPolicy.VOLATILE)
