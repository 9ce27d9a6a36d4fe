"""Who else publishes on the command topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rclpy.node import Node

SETTLE_S = 1.0  # discovery of publishers that are already there
POLL_S = 0.05


class CommandWatch:
    """Sees to it that one node alone commands. `tolerant`: another one is only warned about."""

    def __init__(self, node: Node, topics: Sequence[str], tolerant: bool) -> None:
        self._node = node
        self._topics = topics
        self._tolerant = tolerant

    def refusal(self) -> str:
        """Who else publishes on a command topic, as a refusal; '' where nobody does or may."""
        others = other_publishers(self._node, self._topics)
        if not others:
            return ''
        line = f'second command publisher: {others[0]}; stop it or remap one of the two'
        if self._tolerant:
            self._node.get_logger().warning(line, throttle_duration_sec=10.0)
            return ''
        return line

    def wait(self, limit_s: float, interrupted: Callable[[], bool]) -> None:
        """Let an old instance's endpoints expire. Raises ValueError where somebody stays.

        Returns at once when `interrupted` says so.

        Two that start at once wait for each other: when one gives up, the other is alone.
        """
        begin = time.monotonic()
        told = False
        while not interrupted():
            refusal, waited = self.refusal(), time.monotonic() - begin
            if not refusal and waited >= min(limit_s, SETTLE_S):
                return
            if refusal and waited >= limit_s:
                raise ValueError(f'{refusal} (waited {waited:.0f} s)')
            if refusal and not told:
                self._node.get_logger().warning(f'{refusal}; waiting for it to leave')
                told = True
            time.sleep(POLL_S)


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
