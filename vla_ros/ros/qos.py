"""Quality of service by role (REP-2003), and the event that says when two sides do not match."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSDurabilityPolicy as Durability
from rclpy.qos import QoSProfile
from rclpy.qos import QoSReliabilityPolicy as Reliability
from rclpy.subscription import Subscription

try:
    from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
except ImportError:  # Humble
    from rclpy.qos_event import PublisherEventCallbacks, SubscriptionEventCallbacks

IMAGE = QoSProfile(depth=1, reliability=Reliability.BEST_EFFORT)
STATE = QoSProfile(depth=10, reliability=Reliability.BEST_EFFORT)
PLAN = QoSProfile(depth=10, reliability=Reliability.RELIABLE)
COMMAND = QoSProfile(depth=1, reliability=Reliability.RELIABLE)
STATUS = QoSProfile(depth=10, reliability=Reliability.RELIABLE)
LATCHED = QoSProfile(depth=1, reliability=Reliability.RELIABLE,
                     durability=Durability.TRANSIENT_LOCAL)
RELIABLE = QoSProfile(depth=10, reliability=Reliability.RELIABLE)
VOLATILE = QoSProfile(depth=10, reliability=Reliability.BEST_EFFORT)


def subscription_events(node: Node, topic: str) -> SubscriptionEventCallbacks:
    """Callbacks that log an incompatible publisher with the topic and the fix."""
    def incompatible(event: Any) -> None:
        node.get_logger().warning(
            f'{topic}: a publisher offers a QoS that does not match (policy '
            f'{event.last_policy_kind.name}): nothing will be received from it; set it to at '
            'least best effort and volatile')
    return SubscriptionEventCallbacks(incompatible_qos=incompatible)


def publisher_events(node: Node, topic: str) -> PublisherEventCallbacks:
    """Callbacks that log an incompatible subscription with the topic and the fix."""
    def incompatible(event: Any) -> None:
        node.get_logger().warning(
            f'{topic}: a subscription asks for a QoS that is not offered (policy '
            f'{event.last_policy_kind.name}): it will receive nothing; relax it to volatile or '
            'best effort')
    return PublisherEventCallbacks(incompatible_qos=incompatible)


def subscribe_to_any(node: Node, message: type, topic: str,
                     callback: Callable[[Any], None]) -> list[Subscription]:
    """Hear every publisher of a topic, as well as it can be heard; `callback` must be idempotent.

    A transient-local reader never hears a volatile writer, a volatile one misses what was said
    before it came, a reliable one never hears a best-effort writer, and a best-effort one may lose
    what a reliable writer sends.
    """
    # One of them always matches: that another does not is nothing to warn of.
    silent = SubscriptionEventCallbacks(use_default_callbacks=False)
    return [node.create_subscription(message, topic, callback, qos, event_callbacks=silent)
            for qos in (LATCHED, RELIABLE, VOLATILE)]
