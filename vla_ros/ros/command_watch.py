"""Who else publishes on the command topics."""

from __future__ import annotations

from collections.abc import Sequence

from rclpy.node import Node


def other_publishers(node: Node, topics: Sequence[str]) -> list[str]:
    """`node on topic` for every publisher on `topics` beyond this node's own one each."""
    found = []
    own = (node.get_name(), node.get_namespace())
    for topic in topics:
        names = [(info.node_name, info.node_namespace)
                 for info in node.get_publishers_info_by_topic(topic)]
        if own in names:
            names.remove(own)  # once: a second one of this name is another process
        found += [f'{namespace.rstrip("/")}/{name} on {topic}' for name, namespace in names]
    return found
