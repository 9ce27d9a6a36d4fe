"""The benchmark's own ROS node: hears serialized messages, waits, and minds the processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile
from rclpy.signals import SignalHandlerOptions

from vla_ros.core.types import NS_PER_S

SPIN_S = 0.1
START_S = 40.0  # what nodes may take to start on a machine that is busy otherwise


class Listener:
    """A context manager around one node. `check` is called often and raises if a process died."""

    def __init__(self, namespace: str, environment: Mapping[str, str],
                 check: Callable[[], None]) -> None:
        os.environ.update(environment)  # the middleware of this process reads it, too
        self._check = check
        rclpy.init(args=['--ros-args', '-r', f'__ns:={namespace}'],
                   signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node('bench')
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(timeout_sec=0.0)
        self.node.destroy_node()
        rclpy.try_shutdown()

    def hear(self, message: type, topic: str, callback: Callable[[bytes], Any],
             qos: QoSProfile | int = 10) -> None:
        """Call `callback` with the serialized messages of a topic."""
        self.node.create_subscription(message, topic, callback, qos, raw=True)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Serve callbacks until `condition`. Raises ValueError with one line after `START_S`."""
        deadline = time.monotonic() + START_S
        while not condition():
            if time.monotonic() > deadline:
                raise ValueError(f'{what}: nothing within {START_S:g} s')
            self._turn(SPIN_S)

    def listen_until(self, end_ns: int, every_s: float = 1.0,
                     chore: Callable[[], Any] | None = None) -> None:
        """Serve callbacks until the monotonic clock says `end_ns`; `chore` is done in between."""
        next_chore = time.monotonic() + every_s
        while (left_ns := end_ns - time.monotonic_ns()) > 0:
            self._turn(min(SPIN_S, left_ns / NS_PER_S))
            if chore is not None and time.monotonic() >= next_chore:
                next_chore += every_s
                chore()

    def _turn(self, seconds: float) -> None:
        self._executor.spin_once(timeout_sec=seconds)
        self._check()
