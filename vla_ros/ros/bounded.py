"""Subscriptions that look at the size of a message before they take the time to read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from vla_ros.ros.qos import subscription_events


def subscribe_bounded(node: Node, message: type, topic: str, qos: QoSProfile, most_bytes: int,
                      callback: Callable[[Any], None],
                      too_large: Callable[[str], None]) -> Subscription:
    """Subscribe, but hand a message of more than `most_bytes` to nobody.

    `too_large` gets one line instead. Reading a message of a megabyte takes the thread for a tenth
    of a second.
    """
    def heard(data: bytes) -> None:
        if len(data) > most_bytes:
            too_large(f'{topic}: a message of {len(data)} bytes; at most {most_bytes} are read')
        else:
            callback(deserialize_message(data, message))
    return node.create_subscription(message, topic, heard, qos, raw=True,
                                    event_callbacks=subscription_events(node, topic))
