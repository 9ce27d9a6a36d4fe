"""`vla-ros bench control`: how steady the commands of the real action_publisher process are."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from array import array
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from vla_ros.bringup.graph import Graph, describe
from vla_ros.bringup.up import GraphProcesses
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.ros.pacing import raise_priority
from vla_ros.ros.sinks import PLAIN
from vla_ros.ros.transport import transport_additions
from vla_ros.tools.bench_listener import Listener
from vla_ros.tools.bench_tables import print_machine, print_spreads, print_targets
from vla_ros.tools.children import Children, bench_environment, last_line
from vla_ros.tools.measure import (
    Target,
    Times,
    loop_figures,
    machine,
    period_errors_ms,
    spread,
    stolen_s,
    within,
)

WARM_UP_S = 2.0
POLICIES = {'so101': 'scripted_so101', 'widowx_bridge': 'scripted_bridge'}
HEAVY = ('torch', 'cv2')
IMAGES = ('sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage')
LISTENER_PRIORITY = 40  # below the publisher: the command comes first
MB = 1e6


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run everything and return the figures. Raises ValueError with one line."""
    with tempfile.TemporaryDirectory(prefix='vla_ros_bench_') as folder:
        return _Run(args, Path(folder)).figures()


class _Run:
    """One measurement. All processes run at the same time."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self._args, self._folder = args, folder
        self._robot: RobotProfile = load_robot(args.robot)
        self._period_ns = self._robot.control_period_ns
        self._namespace = f'/bench_{os.getpid()}'
        environment = bench_environment()
        self._environment = environment | transport_additions(environment)
        self._heard = array('q')
        self._rss: list[float] = []

    def figures(self) -> dict[str, Any]:
        seconds = self._args.seconds
        with ExitStack() as stack:
            children = stack.enter_context(Children(self._folder, self._environment))
            if self._args.load == 'cpu':
                children.load(len(os.sched_getaffinity(0)))
            publisher = self._start_publisher(stack)
            self._start_others(children)
            pid = publisher.running['action_publisher'].pid

            def check() -> None:
                children.check()
                if publisher.ended() is not None:
                    raise ValueError(f'action_publisher: {last_line(self._log)}')

            listener = stack.enter_context(
                Listener(self._namespace, self._environment, check))
            sink = self._robot.sinks[0]
            listener.hear(PLAIN[sink.type].message, sink.topic, self._on_command)
            raise_priority(LISTENER_PRIORITY)
            listener.wait_for(lambda: len(self._heard) > 0, f'commands on {sink.topic}')
            listener.listen_until(time.monotonic_ns() + round(WARM_UP_S * NS_PER_S))

            process = psutil.Process(pid)
            stolen = stolen_s()
            busy, begin_ns = sum(process.cpu_times()[:2]), time.monotonic_ns()
            end_ns = begin_ns + round(seconds * NS_PER_S)
            sample = lambda: self._rss.append(process.memory_info().rss / MB)  # noqa: E731
            sample()
            listener.listen_until(end_ns, chore=sample)
            sample()
            cpu = sum(process.cpu_times()[:2]) - busy
            stolen = stolen_s() - stolen
            facts = _facts(pid, listener)
        inside = self._recorded('action_publisher', begin_ns, end_ns)
        timer = self._recorded('rclpy_timer', begin_ns, end_ns)
        floor = self._recorded('floor', begin_ns, end_ns)
        heard = within(np.array(self._heard, dtype=np.int64), begin_ns, end_ns, 'subscriber')
        figures = {
            **loop_figures(inside, self._period_ns), **facts,
            'cpu_percent': round(100.0 * cpu / seconds, 2),
            'rss_mb': {'start': round(self._rss[0], 2), 'end': round(self._rss[-1], 2),
                       'max': round(max(self._rss), 2)},
            'subscriber': {'ticks': len(heard),
                           'period_error_ms': spread(period_errors_ms(heard, self._period_ns))},
            'rclpy_timer': loop_figures(timer, self._period_ns),
            'floor': loop_figures(floor, self._period_ns),
            'robot': self._args.robot, 'seconds': seconds, 'warm_up_s': WARM_UP_S,
            'load': self._args.load, 'stolen_ms': round(1e3 * stolen), 'machine': machine()}
        return figures | {'targets': [target.as_json() for target in targets(figures)]}

    @property
    def _log(self) -> Path:
        return self._folder / 'action_publisher.log'

    def _start_publisher(self, stack: ExitStack) -> GraphProcesses:
        graph = describe({
            'robot': self._args.robot, 'policy': POLICIES[self._args.robot],
            'namespace': self._namespace, 'enable_on_start': 'true'})
        process = next(p for p in graph.processes if p.name == 'action_publisher')
        recording = {'record_ticks': str(self._folder / 'action_publisher.npy')}
        process = replace(process, parameters={**process.parameters, **recording})
        log = stack.enter_context(self._log.open('wb'))
        return stack.enter_context(
            GraphProcesses(Graph((process,)), environment=self._environment, output=log))

    def _start_others(self, children: Children) -> None:
        children.start('feed', '-m', 'vla_ros.tools.bench_feed', 'plans',
                       '--namespace', self._namespace, '--robot', self._args.robot,
                       '--policy', POLICIES[self._args.robot])
        for loop in ('rclpy_timer', 'floor'):
            children.start(loop, '-m', 'vla_ros.tools.bench_loops', loop,
                           str(self._folder / f'{loop}.npy'), str(self._period_ns))

    def _on_command(self, message: bytes) -> None:
        self._heard.append(time.monotonic_ns())

    def _recorded(self, name: str, begin_ns: int, end_ns: int) -> Times:
        return within(np.load(self._folder / f'{name}.npy'), begin_ns, end_ns, name)


def _facts(pid: int, listener: Listener) -> dict[str, Any]:
    """What can be seen of the process from outside."""
    maps = Path(f'/proc/{pid}/maps').read_text()
    namespace = listener.node.get_namespace()
    topics = listener.node.get_subscriber_names_and_types_by_node('action_publisher', namespace)
    return {
        'fifo': os.sched_getscheduler(pid) == os.SCHED_FIFO,
        'libraries': {name: f'/{name}/' in maps for name in HEAVY},
        'image_topics': [topic for topic, types in topics if set(types) & set(IMAGES)]}


def targets(figures: dict[str, Any]) -> list[Target]:
    """What the figures are held against."""
    errors, floor = figures['period_error_ms'], figures['floor']['period_error_ms']
    timer = figures['rclpy_timer']['period_error_ms']
    found = [Target('missed ticks', figures['missed'], 0)]
    if figures['fifo']:
        found += [Target('period error p99', errors['p99'], 0.5, 'ms'),
                  Target('period error p99.9, floor + 1 ms', errors['p999'],
                         floor['p999'] + 1.0, 'ms')]
    found += [Target(f'period error {name}, rclpy timer', errors[name], timer[name], 'ms')
              for name in ('p99', 'p999', 'max')]
    heavy = sum(figures['libraries'].values()) + len(figures['image_topics'])
    growth = figures['rss_mb']['end'] - figures['rss_mb']['start']
    return [*found, Target('cpu', figures['cpu_percent'], 15.0, '% of one core'),
            Target('torch, cv2 and image topics in the process', heavy, 0),
            Target('memory growth', growth, 1.0, 'MB')]


def show(figures: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    rows = {'action_publisher': figures, 'at a subscriber': figures['subscriber'],
            'rclpy timer': figures['rclpy_timer'], 'floor': figures['floor']}
    fifo = 'SCHED_FIFO' if figures['fifo'] else 'no real-time priority'
    print_spreads(
        console, f'|period - 20 ms|, {figures["seconds"]:g} s, load {figures["load"]}, {fifo}, '
        f'without the first {figures["warm_up_s"]:g} s', 'loop',
        {name: {**row, 'spread': row['period_error_ms']} for name, row in rows.items()},
        ('ticks', 'missed'))
    memory = figures['rss_mb']
    console.print(f'action_publisher: {figures["cpu_percent"]:.1f} % of one core, memory '
                  f'{memory["start"]:.1f} MB at the start, {memory["end"]:.1f} MB at the end',
                  highlight=False)
    if figures['stolen_ms']:
        console.print(f'the hypervisor took {figures["stolen_ms"]} ms from this machine meanwhile',
                      highlight=False)
    print_targets(console, figures['targets'])
    print_machine(console, figures['machine'])
