"""What a node tells `/diagnostics`: once a second, and at once when its level changes."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from vla_ros.core.diagnostic_values import OncePerSecond, value_text
from vla_ros.ros.messages import to_time

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class Diagnostics:
    """Publishes one status of a node; `hardware_id` is the robot's name."""

    def __init__(self, node: Node, hardware_id: str) -> None:
        self._node = node
        self._hardware_id = hardware_id
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._once: OncePerSecond[bytes] = OncePerSecond()

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)

    def due(self, level: bytes, state: str, now_ns: int) -> bool:
        """Whether to publish now: a second has passed since that was so, or something changed."""
        return self._once.due(level, state, now_ns)

    def publish(self, level: bytes, message: str, values: Mapping[str, object],
                now_ns: int) -> None:
        """Publish level, message and values; a change goes to the log as well."""
        if self._once.changed:
            self._tell(level, message)
        status = DiagnosticStatus(
            level=level, name=self._node.get_fully_qualified_name(), message=message,
            hardware_id=self._hardware_id,
            values=[KeyValue(key=key, value=value_text(value)) for key, value in values.items()])
        array = DiagnosticArray(status=[status])
        array.header.stamp = to_time(now_ns)
        self._publisher.publish(array)

    def _tell(self, level: bytes, message: str) -> None:
        """A line of code each: rclpy raises where the severity of one line changes."""
        logger = self._node.get_logger()
        if level == OK:
            logger.info(message)
        elif level == WARN:
            logger.warning(message)
        else:
            logger.error(message)
