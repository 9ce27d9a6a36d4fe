"""The two loops that `bench control` compares with, each a process of its own.

`rclpy_timer`: the node that a user would write first. `floor`: the pacing of action_publisher with
nothing in it, which is what this machine gives.
"""

from __future__ import annotations

import sys
import time

from vla_ros.core.types import NS_PER_S
from vla_ros.ros.pacing import Pacer, TickRecorder, calm_memory, raise_priority
from vla_ros.tools.children import Stop

SIZE = 6  # values of a command


def rclpy_timer(path: str, period_ns: int) -> None:
    """Publish at a fixed rate from a timer of the ordinary executor."""
    import rclpy
    from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
    from std_msgs.msg import Float64MultiArray

    rclpy.init()
    recorder = TickRecorder(path)
    node = rclpy.create_node('rclpy_timer')
    publisher = node.create_publisher(Float64MultiArray, 'rclpy_timer/commands', 1)

    def tick() -> None:
        publisher.publish(Float64MultiArray(data=[0.0] * SIZE))
        recorder.add()

    node.create_timer(period_ns / NS_PER_S, tick)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        executor.spin()
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        recorder.write()


def floor(path: str, period_ns: int) -> None:
    """Tick at a fixed rate and do nothing."""
    stop = Stop()
    recorder = TickRecorder(path)
    raise_priority()
    calm_memory()
    pacer = Pacer(period_ns)
    while not stop.came:
        pacer.wait(time.sleep)
        recorder.add()
    recorder.write()


LOOPS = {'rclpy_timer': rclpy_timer, 'floor': floor}


if __name__ == '__main__':
    LOOPS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
