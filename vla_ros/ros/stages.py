"""The stages of single frames and chunks on the topic `latency`, for benchmarks and debugging.

Each node says when it did what for an observation; who listens joins them by its stamp. Off by
default: the percentiles in `/diagnostics` are there without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnostic_msgs.msg import DiagnosticStatus, KeyValue
from rclpy.node import Node

from vla_ros.ros.lifecycle import LifecycleNode
from vla_ros.ros.parameters import Parameter
from vla_ros.ros.qos import STATUS

PUBLISH_LATENCY = Parameter(
    'publish_latency', False, 'publish the stages of every frame and chunk on the topic latency')


class StagePublisher:
    """Publishes times by stage, all in nanoseconds of ROS time."""

    def __init__(self, node: Node) -> None:
        self._node, self._name = node, node.get_name()
        self._publisher = node.create_publisher(DiagnosticStatus, 'latency', STATUS)

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)

    def publish(self, stamp_ns: int, **times_ns: int) -> None:
        """Say when which stage of the observation of `stamp_ns` ended."""
        values = [KeyValue(key='stamp', value=str(stamp_ns))]
        values += [KeyValue(key=stage, value=str(time)) for stage, time in times_ns.items()]
        self._publisher.publish(DiagnosticStatus(name=self._name, values=values))


def stage_publisher(node: LifecycleNode, parameters: Mapping[str, Any]) -> StagePublisher | None:
    """A stage publisher where the parameter asks for one; the node keeps it until clean-up."""
    if not parameters[PUBLISH_LATENCY.name]:
        return None
    return node.keep(StagePublisher(node), StagePublisher.close)
