"""`vla-ros bench pipeline`: the way from a camera's stamp to the first command, by stages."""

from __future__ import annotations

import argparse
import os
import re
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.serialization import deserialize_message
from rich.console import Console

from vla_ros.bringup.graph import describe
from vla_ros.bringup.up import GraphProcesses
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.locate import locate
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.transport import transport_additions
from vla_ros.tools.bench_listener import Listener
from vla_ros.tools.bench_tables import print_machine, print_spreads, print_targets
from vla_ros.tools.children import Children, bench_environment, last_line
from vla_ros.tools.latency_join import NOT_OVERHEAD, STAGES, LatencyJoin, overhead_ms, stage_ms
from vla_ros.tools.measure import Target, machine, spread

ROBOT, POLICY = 'so101', 'scripted_so101'
CAMERA = 'base'
CAMERA_HZ = 30.0
ENGINES_MS = (0, 80)
WARM_UP_S = 2.0
DRAIN_S = 1.0  # for the last frames to arrive
LIMIT_MS = 8.0
SIZE = re.compile(r'([1-9]\d{0,3})x([1-9]\d{0,3})')


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run the graph once per engine and return the figures. Raises ValueError with one line."""
    match = SIZE.fullmatch(args.size)
    if match is None:
        raise ValueError(f'--size: {args.size!r}: width and height in pixels, such as 640x480')
    width, height = map(int, match.groups())
    runs = {}
    for engine_ms in ENGINES_MS:
        with tempfile.TemporaryDirectory(prefix='vla_ros_bench_') as folder:
            run = _Run(Path(folder), engine_ms, (width, height))
            runs[str(engine_ms)] = run.figures(args.seconds)
    first = runs[str(ENGINES_MS[0])]
    figures = {
        'overhead_ms': first['overhead_ms'], 'stages_ms': first['stages_ms'],
        'lost_frames': sum(run['lost_frames'] for run in runs.values()),
        'engines_ms': runs, 'not_overhead': list(NOT_OVERHEAD),
        'size': [width, height], 'rate': CAMERA_HZ, 'seconds': args.seconds,
        'warm_up_s': WARM_UP_S, 'machine': machine()}
    return figures | {'targets': [target.as_json() for target in targets(figures)]}


def targets(figures: dict[str, Any]) -> list[Target]:
    """What the figures are held against."""
    found = [Target(f'overhead p99, engine of {name} ms', run['overhead_ms']['p99'], LIMIT_MS, 'ms')
             for name, run in figures['engines_ms'].items()]
    return [*found, Target('lost frames', figures['lost_frames'], 0)]


class _Run:
    """One measurement with an engine that takes `engine_ms`."""

    def __init__(self, folder: Path, engine_ms: int, size: tuple[int, int]) -> None:
        self._folder, self._engine_ms, self._size = folder, engine_ms, size
        self._namespace = f'/bench_{os.getpid()}_{engine_ms}'
        environment = bench_environment()
        self._environment = environment | transport_additions(environment)
        self._heard: list[bytes] = []

    def figures(self, seconds: float) -> dict[str, Any]:
        """Start everything, listen, end everything, join."""
        log = self._folder / 'nodes.log'
        with ExitStack() as stack:
            children = stack.enter_context(Children(self._folder, self._environment))
            output = stack.enter_context(log.open('wb'))
            nodes = stack.enter_context(
                GraphProcesses(self._graph(), environment=self._environment, output=output))

            def check() -> None:
                children.check()
                ended = nodes.ended()
                if ended is not None:
                    raise ValueError(f'{ended[0]}: ended with status {ended[1]}: {last_line(log)}')

            listener = stack.enter_context(Listener(self._namespace, self._environment, check))
            # Deep, and read later: nothing that is counted may be lost on its way to here.
            listener.hear(DiagnosticStatus, 'latency', self._heard.append, 1000)
            self._start_feeds(children)
            listener.wait_for(lambda: 'command' in _values(self._heard[-1:]), 'first command')
            listener.listen_until(time.monotonic_ns() + round(WARM_UP_S * NS_PER_S))
            begin_ns = time.time_ns()
            listener.listen_until(time.monotonic_ns() + round(seconds * NS_PER_S))
            end_ns = time.time_ns()
            listener.listen_until(time.monotonic_ns() + round(DRAIN_S * NS_PER_S))
        return self._joined(begin_ns, end_ns)

    def _joined(self, begin_ns: int, end_ns: int) -> dict[str, Any]:
        join = LatencyJoin()
        for message in self._heard:
            join.add(_values([message]))
        stamps = np.load(self._folder / 'camera.npy')
        sent = set(stamps[(stamps >= begin_ns) & (stamps < end_ns)].tolist())
        if not sent:
            raise ValueError('the camera published no frame: measure longer (--seconds)')
        records = join.complete(begin_ns, end_ns)
        if not records:
            raise ValueError(f'of {len(sent)} frames none led to a command: measure longer '
                             '(--seconds)')
        at_camera, at_inference = join.seen('received'), join.seen('image_received')
        return {
            'overhead_ms': spread(overhead_ms(records)),
            'stages_ms': {stage: spread(stage_ms(records, stage)) for stage in STAGES},
            'total_ms': spread([(r['command'] - r['stamp']) / 1e6 for r in records]),
            'lost_frames': len(sent - at_inference),
            'lost_before_camera_node': len(sent - at_camera),
            'frames': len(sent), 'commanded': len(records)}

    def _graph(self) -> Any:
        policy = yaml.safe_load(locate('policy', POLICY).read_text())
        policy['options']['latency'] = self._engine_ms / 1e3
        file = self._folder / f'{POLICY}.yaml'
        file.write_text(yaml.safe_dump(policy))
        self._policy = str(file)
        return describe({
            'robot': ROBOT, 'policy': self._policy, 'namespace': self._namespace,
            'instruction': 'bench', 'enable_on_start': 'true', 'publish_latency': 'true'})

    def _start_feeds(self, children: Children) -> None:
        width, height = self._size
        children.start('state', '-m', 'vla_ros.tools.bench_feed', 'state',
                       '--namespace', self._namespace, '--robot', ROBOT, '--policy', POLICY)
        children.start('camera', '-m', 'vla_ros.tools.bench_feed', 'camera',
                       '--namespace', self._namespace,
                       '--topic', load_robot(ROBOT).cameras[CAMERA].topic,
                       '--width', str(width), '--height', str(height), '--rate', str(CAMERA_HZ),
                       '--stamps', str(self._folder / 'camera.npy'))


def _values(messages: list[bytes]) -> dict[str, str]:
    """The values of serialized messages of the topic `latency`."""
    return {pair.key: pair.value for message in messages
            for pair in deserialize_message(message, DiagnosticStatus).values}


def show(figures: dict[str, Any], console: Console) -> None:
    """Print the figures as tables."""
    width, height = figures['size']
    for name, run in figures['engines_ms'].items():
        rows = {stage: {'spread': spread} for stage, spread in run['stages_ms'].items()}
        rows['total'] = {'spread': run['total_ms']}
        rows['overhead'] = {'spread': run['overhead_ms']}
        print_spreads(
            console, f'{width}x{height} at {figures["rate"]:g} Hz, {figures["seconds"]:g} s, '
            f'engine of {name} ms, without the first {figures["warm_up_s"]:g} s', 'stage', rows)
        console.print(f'{run["frames"]} frames, {run["lost_frames"]} lost; {run["commanded"]} led '
                      'to a command of their own', highlight=False)
    console.print(f'Overhead is all but: {", ".join(figures["not_overhead"])}.', highlight=False)
    print_targets(console, figures['targets'])
    print_machine(console, figures['machine'])
