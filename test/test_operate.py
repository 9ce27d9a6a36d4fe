"""`vla-ros instruct` and `estop`: what is said is heard by all, or it is told who does not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

import rclpy  # noqa: E402
from live import Graph, graph  # noqa: E402
from std_msgs.msg import Bool, String  # noqa: E402

from vla_ros.ros.qos import LATCHED, VOLATILE  # noqa: E402
from vla_ros.tools.operate import UNNAMED, _listeners  # noqa: E402


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Graph]:
    with graph(tmp_path) as made:
        yield made


def listener(live: Graph, name: str, kind: type, topic: str, qos: object) -> list:
    node = rclpy.create_node(name, namespace=live.namespace, context=live._context)
    heard: list = []
    node.create_subscription(kind, topic, heard.append, qos)
    live._executor.add_node(node)
    return heard


@pytest.mark.parametrize(('words', 'kind', 'topic', 'hearer', 'value'), [
    (['instruct', 'pick up the red block'], String, 'instruction', 'inference_node',
     'pick up the red block'),
    (['estop'], Bool, 'estop', 'action_publisher', True),
])
def test_late_listeners_hear_it_too(live: Graph, words: list[str], kind: type, topic: str,
                                    hearer: str, value: object) -> None:
    first = listener(live, hearer, kind, topic, VOLATILE)
    operator = live.run([sys.executable, '-m', 'vla_ros.tools.cli', *words, '--namespace',
                         live.namespace])
    live.until(lambda: first, 'the first listener')
    # Found after the message has gone: once one that keeps to the past, once one that does not.
    late = [listener(live, f'late_{i}', kind, topic, qos) for i, qos in enumerate(
        (LATCHED, VOLATILE))]
    live.until(lambda: all(late), 'the late listeners')
    live.until(lambda: operator.process.poll() is not None, 'the end')
    assert operator.process.returncode == 0
    assert {message.data for heard in (first, *late) for message in heard} == {value}
    assert f'said on /{live.namespace}/{topic} to' in operator.output
    assert f'/{live.namespace}/{hearer}' in operator.output


def test_who_does_not_listen_is_named(live: Graph) -> None:
    others = listener(live, 'somebody', String, 'instruction', VOLATILE)
    operator = live.run([sys.executable, '-m', 'vla_ros.tools.cli', 'instruct', 'go',
                         '--namespace', live.namespace])
    while operator.process.poll() is None:
        live._executor.spin_once(timeout_sec=0.05)
    assert operator.process.returncode == 1
    assert others
    assert 'inference_node does not listen' in operator.output


def test_a_listener_is_named_when_dds_has_heard_of_its_node() -> None:
    class Node:
        """Graph that knows an endpoint before the node that it belongs to."""

        asked = 0

        def get_subscriptions_info_by_topic(self, topic: str) -> list[SimpleNamespace]:
            self.asked += 1
            names = [('/left', 'inference_node')] if self.asked > 1 else [
                ('_NODE_NAMESPACE_UNKNOWN_', UNNAMED)]
            return [SimpleNamespace(node_namespace=space, node_name=name)
                    for space, name in names]

    assert _listeners(Node(), 'instruction') == ['/left/inference_node']
