"""`vla-ros enable`, `disable`, `reset`, `estop`, `instruct`: operating without ros2cli."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

FOUND_S = 5.0   # how long to look for the node
SETTLED_S = 2.0  # no further listener for this long: all have been found
MOST_S = 10.0    # for finding them, where they come and go
ACKNOWLEDGED_S = 5.0
LEAVE_S = 0.2    # for those who acknowledge nothing
ANSWER_S = 5.0
UNNAMED = '_NODE_NAME_UNKNOWN_'  # what rmw says of an endpoint whose node it has not heard of yet


def add_parser(subparsers: Any) -> None:
    """Add the operator's subcommands to `vla-ros`."""
    for name, about, action in (
            ('enable', 'let the robot drive, or say why not', partial(_enable, on=True)),
            ('disable', 'bring the robot to rest and wait', partial(_enable, on=False)),
            ('reset', 'clear faults and a released e-stop, then wait', _reset),
            ('estop', 'press the e-stop topic (no safety function)', _estop),
            ('instruct', 'say what to do', _instruct)):
        parser = subparsers.add_parser(name, help=about, description=about)
        parser.add_argument('--namespace', default='', help='namespace of the nodes')
        if name == 'instruct':
            parser.add_argument('text', help='the sentence; an empty one brings the robot to rest')
        if name == 'estop':
            parser.add_argument('--release', action='store_true', help='release it; then reset')
        parser.set_defaults(run=partial(_run, action))


def _run(action: Callable[[Any, argparse.Namespace], int], args: argparse.Namespace) -> int:
    import rclpy
    rclpy.init(args=[])
    node = rclpy.create_node('operator', namespace=args.namespace or None)
    try:
        return action(node, args)
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


def _enable(node: Any, args: argparse.Namespace, on: bool) -> int:
    from std_srvs.srv import SetBool
    return _called(node, SetBool, 'action_publisher/enable', SetBool.Request(data=on))


def _reset(node: Any, args: argparse.Namespace) -> int:
    from std_srvs.srv import Trigger
    return _called(node, Trigger, 'action_publisher/reset', Trigger.Request())


def _estop(node: Any, args: argparse.Namespace) -> int:
    from std_msgs.msg import Bool
    return _said(node, 'estop', Bool(data=not args.release), 'action_publisher')


def _instruct(node: Any, args: argparse.Namespace) -> int:
    from std_msgs.msg import String
    return _said(node, 'instruction', String(data=args.text), 'inference_node')


def _called(node: Any, kind: Any, name: str, request: Any) -> int:
    import rclpy
    client = node.create_client(kind, name)
    if not client.wait_for_service(timeout_sec=FOUND_S):
        raise ValueError(f'{client.srv_name}: no such service within {FOUND_S:g} s; is '
                         'action_publisher running, on this ROS_DOMAIN_ID and --namespace?')
    answer = client.call_async(request)
    rclpy.spin_until_future_complete(node, answer, timeout_sec=ANSWER_S)
    if not answer.done():
        raise ValueError(f'{client.srv_name}: no answer within {ANSWER_S:g} s')
    print(answer.result().message)
    return 0 if answer.result().success else 1


def _said(node: Any, topic: str, message: Any, hearer: str) -> int:
    """Say it to all who listen; listeners are found one after the other, some of them late."""
    from rclpy.duration import Duration

    from vla_ros.ros.qos import LATCHED
    publisher = node.create_publisher(type(message), topic, LATCHED)
    begin, heard, changed = time.monotonic(), 0, time.monotonic()
    while (now := time.monotonic()) - changed < SETTLED_S or not heard:
        count = publisher.get_subscription_count()
        if count != heard:
            heard, changed = count, now
            # Again for each new one: those that keep nothing would not hear what was said before.
            publisher.publish(message)
        if not heard and now - begin > FOUND_S:
            raise ValueError(f'{publisher.topic_name}: nobody listens within {FOUND_S:g} s; is '
                             f'{hearer} running, on this ROS_DOMAIN_ID and --namespace?')
        if now - begin > MOST_S:
            break
        time.sleep(0.05)
    publisher.publish(message)
    if not publisher.wait_for_all_acked(Duration(seconds=ACKNOWLEDGED_S)):
        raise ValueError(f'{publisher.topic_name}: not all who listen have acknowledged it within '
                         f'{ACKNOWLEDGED_S:g} s; say it again')
    time.sleep(LEAVE_S)
    listeners = _listeners(node, publisher.topic_name)
    print(f'said on {publisher.topic_name} to {", ".join(listeners)}')
    if not any(name.endswith(f'/{hearer}') for name in listeners):
        raise ValueError(f'{publisher.topic_name}: {hearer} does not listen; is it running, on '
                         'this ROS_DOMAIN_ID and --namespace?')
    return 0


def _listeners(node: Any, topic: str) -> list[str]:
    """Names of those who listen; DDS finds out what an endpoint is called after it has found it."""
    begin = time.monotonic()
    while True:
        found = node.get_subscriptions_info_by_topic(topic)
        known = sorted({f'{info.node_namespace.rstrip("/")}/{info.node_name}' for info in found
                        if info.node_name != UNNAMED})
        unnamed = sum(info.node_name == UNNAMED for info in found)
        if not unnamed or time.monotonic() - begin > FOUND_S:
            return known + [f'{unnamed} without a name'] * bool(unnamed)
        time.sleep(0.05)
