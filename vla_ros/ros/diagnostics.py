"""What a node tells `/diagnostics`: once a second, and at once when its level changes."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.latency import LatencySummary
from vla_ros.core.types import NS_PER_S
from vla_ros.ros.messages import to_time

OK, WARN, ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class Diagnostics:
    """Publishes one status of a node; `hardware_id` is the robot's name."""

    def __init__(self, node: Node, hardware_id: str) -> None:
        self._node = node
        self._hardware_id = hardware_id
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._last: tuple[bytes, str] | None = None
        self._due_ns = 0
        self._changed = False

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)

    def due(self, level: bytes, state: str, now_ns: int) -> bool:
        """Whether to publish now: a second has passed since that was so, or something changed."""
        waited_ns = now_ns - self._due_ns
        if (level, state) == self._last and 0 <= waited_ns < NS_PER_S:
            return False
        self._changed = (level, state) != self._last
        self._last, self._due_ns = (level, state), now_ns
        return True

    def publish(self, level: bytes, message: str, values: Mapping[str, object],
                now_ns: int) -> None:
        """Publish level, message and values; a change goes to the log as well."""
        if self._changed:
            self._tell(level, message)
        status = DiagnosticStatus(
            level=level, name=self._node.get_fully_qualified_name(), message=message,
            hardware_id=self._hardware_id,
            values=[KeyValue(key=key, value=_text(value)) for key, value in values.items()])
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


def latency_values(summaries: Mapping[str, LatencySummary]) -> dict[str, str]:
    """Percentiles of each stage in milliseconds, as key and value."""
    return {f'latency {stage} [ms]': f'p50 {s.p50 * 1e3:.2f}, p95 {s.p95 * 1e3:.2f}, '
                                     f'p99 {s.p99 * 1e3:.2f}, max {s.max * 1e3:.2f}'
            for stage, s in summaries.items() if s.count}


def control_values(loop: ControlLoop) -> dict[str, object]:
    """What the control loop did so far: holds by cause, drops by reason, clips by dimension."""
    values: dict[str, object] = {'state': loop.state.value, 'cause': loop.cause}
    values |= {f'hold: {cause}': count for cause, count in loop.holds.items()}
    values |= loop.counts
    for limit, counts in loop.clips.items():
        values |= {f'clips {limit} {name}': int(count)
                   for name, count in zip(loop.config.spec.names, counts) if count}  # noqa: B905
    return values


def _text(value: object) -> str:
    return f'{value:.4g}' if isinstance(value, float) else str(value)
