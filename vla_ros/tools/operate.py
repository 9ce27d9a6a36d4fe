"""`vla-ros enable`, `disable`, `reset`, `estop`, `instruct`: operating without ros2cli."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

FOUND_S = 5.0   # how long to look for the node
HEARD_S = 0.5   # how long a message is left with the middleware before leaving
ANSWER_S = 5.0


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
    publisher = node.create_publisher(type(message), topic, 1)
    deadline = time.monotonic() + FOUND_S
    while not publisher.get_subscription_count():
        if time.monotonic() > deadline:
            raise ValueError(f'{publisher.topic_name}: nobody listens within {FOUND_S:g} s; is '
                             f'{hearer} running, on this ROS_DOMAIN_ID and --namespace?')
        time.sleep(0.05)
    time.sleep(HEARD_S)  # the node hears through several subscriptions: let all of them match
    publisher.publish(message)
    time.sleep(HEARD_S)
    return 0
