"""`vla-ros play`: plays a recording over ROS topics, as `ros2 bag play` does."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

from vla_ros.replay.bags import Bag
from vla_ros.ros.playback import PlayOptions
from vla_ros.ros.transport import transport_additions

_CLOCK_HZ = 200.0


def add_parser(subparsers: Any) -> None:
    """Add `play` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'play', help='play a bag (MCAP or SQLite) over ROS topics',
        description='Plays a rosbag2 recording at its recorded pace. Without --clock the header '
        'stamps are moved to the present; with it nodes need use_sim_time.')
    add_arguments(parser)
    parser.set_defaults(run=run)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `play`."""
    parser.add_argument('bag', help='rosbag2 folder, .mcap file or .db3 file')
    parser.add_argument('--rate', type=float, default=1.0, help='speed (default 1.0)')
    parser.add_argument('--loop', action='store_true',
                        help='start again at the end; stamps go on without a jump')
    parser.add_argument('--clock', type=float, nargs='?', const=_CLOCK_HZ, default=0.0,
                        metavar='HZ', help=f'publish /clock, at least 100 Hz (default {_CLOCK_HZ})')
    stamps = parser.add_mutually_exclusive_group()
    stamps.add_argument('--restamp', dest='restamp', action='store_true', default=None,
                        help='move header stamps to the present (default without --clock)')
    stamps.add_argument('--no-restamp', dest='restamp', action='store_false',
                        help='keep the recorded header stamps')
    parser.add_argument('--topics', nargs='+', default=[], metavar='TOPIC',
                        help='play only these')
    parser.add_argument('--remap', nargs='+', default=[], metavar='FROM:=TO',
                        help='publish under another name, such as /ee_state:=joint_states')
    parser.add_argument('--start-offset', type=float, default=0.0, metavar='S',
                        help='begin this many seconds into the bag')
    parser.add_argument('--delay', type=float, default=0.0, metavar='S',
                        help='wait this long before playing')
    parser.add_argument('--wait-for-subscribers', type=float, nargs='?', const=5.0, default=0.0,
                        metavar='S', help='wait for subscribers, at most this long (default 5)')
    parser.add_argument('--ros-args', nargs=argparse.REMAINDER, default=[],
                        help='everything behind it goes to ROS: -r, -p, --params-file')


def run(args: argparse.Namespace) -> int:
    """Play until the end, SIGINT or SIGTERM. Returns 0; raises ValueError with one line."""
    for rule in args.remap:
        if rule.count(':=') != 1 or rule.startswith(':=') or rule.endswith(':='):
            raise ValueError(f'play: remap: {rule!r}; write it as FROM:=TO')
    with Bag(args.bag) as bag:
        for rule in args.remap:
            bag.require('/' + rule.partition(':=')[0].lstrip('/'))
        # The middleware reads its profile once, when rclpy starts it.
        os.environ.update(transport_additions(os.environ))
        return _play(bag, _options(args), _ros_arguments(args))


def main() -> int:
    """The executable `bag_player`: `vla-ros play` by itself, for launch files."""
    parser = argparse.ArgumentParser(prog='bag_player')
    add_arguments(parser)
    try:
        return run(parser.parse_args())
    except ValueError as error:
        print(f'bag_player: {error}', file=sys.stderr)
        return 1


def _options(args: argparse.Namespace) -> PlayOptions:
    return PlayOptions(
        rate=args.rate, loop=args.loop, clock_hz=args.clock, restamp=args.restamp,
        topics=tuple(args.topics), start_offset_s=args.start_offset, delay_s=args.delay,
        wait_s=args.wait_for_subscribers)


def _ros_arguments(args: argparse.Namespace) -> list[str]:
    rules = [part for rule in args.remap for part in ('-r', rule)]
    return ['--ros-args', *rules, *args.ros_args]


def _play(bag: Bag, options: PlayOptions, ros_arguments: list[str]) -> int:
    stop = _StopSignals()
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions

    from vla_ros.nodes.bag_player import BagPlayer
    from vla_ros.ros.lifecycle import deafen

    try:
        rclpy.init(args=ros_arguments, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:
        raise ValueError(f'play: ROS arguments {" ".join(ros_arguments[1:])!r}: '
                         f'{" ".join(str(error).split())}') from error
    executor = SingleThreadedExecutor()
    node = spinner = None
    try:
        node = BagPlayer(bag, options)
        executor.add_node(node)
        spinner = threading.Thread(target=executor.spin, daemon=True)
        spinner.start()
        stop.then(node.stop)
        node.play()
        node.get_logger().info(f'played {node.published} messages of {bag.path}')
    finally:
        executor.shutdown()
        if spinner is not None:
            spinner.join(1.0)
        if node is not None:
            node.destroy_node()
        rclpy.try_shutdown()
        deafen()
    return 0


class _StopSignals:
    """SIGINT and SIGTERM end the playing, also those that come before it has begun."""

    def __init__(self) -> None:
        self._caught = False
        self._action: Callable[[], None] | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def then(self, action: Callable[[], None]) -> None:
        self._action = action
        if self._caught:
            action()

    def _on_signal(self, number: int, frame: object) -> None:
        self._caught = True
        if self._action is not None:
            self._action()


if __name__ == '__main__':
    sys.exit(main())
