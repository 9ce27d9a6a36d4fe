"""`vla-ros up`: the graph as plain processes, where launch_ros is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from vla_ros.bringup.graph import Graph, Process
from vla_ros.ros.transport import transport_additions

MODULES = {
    'camera_node': 'vla_ros.nodes.camera_node', 'inference_node': 'vla_ros.nodes.inference_node',
    'action_publisher': 'vla_ros.nodes.action_publisher', 'sim_robot': 'vla_ros.nodes.sim_robot',
    'bag_player': 'vla_ros.tools.play',
}
POLL_S = 0.1
EXIT_S = 4.0  # what a process gets after SIGINT before it is killed


def command(process: Process, parameters_file: Path | None,
            remaps: Sequence[str] = ()) -> list[str]:
    """The command line of a process; `remaps` are further `from:=to` rules for all of them."""
    line = [sys.executable, '-m', MODULES[process.executable], *process.arguments, '--ros-args',
            '-r', f'__node:={process.name}']
    if process.namespace:
        line += ['-r', f'__ns:=/{process.namespace.strip("/")}']
    for rule in (*(f'{a}:={b}' for a, b in process.remappings), *remaps):
        line += ['-r', rule]
    if parameters_file is not None:
        line += ['--params-file', str(parameters_file)]
    return line


class GraphProcesses:
    """The running processes of a graph; a context manager that ends them all, in order.

    `lines`: their command lines. `output`: where their output goes, as for subprocess.Popen.
    `start`: false only prepares them.
    """

    def __init__(self, graph: Graph, remaps: Sequence[str] = (),
                 environment: Mapping[str, str] | None = None, output: Any = None,
                 start: bool = True) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix='vla_ros_')
        environment = dict(os.environ if environment is None else environment)
        environment |= transport_additions(environment)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.lines = {process.name: command(process, self._parameters(process), remaps)
                      for process in graph.processes}
        for name, line in self.lines.items() if start else ():
            self.running[name] = subprocess.Popen(
                line, env=environment, stdout=output, stderr=output,
                start_new_session=True)  # Ctrl-C reaches them through us, in order

    def __enter__(self) -> GraphProcesses:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def ended(self) -> tuple[str, int] | None:
        """The first process that ended, and its exit status."""
        for name, process in self.running.items():
            status = process.poll()
            if status is not None:
                return name, status
        return None

    def stop(self) -> None:
        """SIGTERM to all, the publisher included: it brings motion to rest by itself.

        Not SIGINT, at which a process that is still importing prints where it was.
        """
        for process in self.running.values():
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + EXIT_S
        for name, process in self.running.items():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                print(f'vla-ros: {name} did not end within {EXIT_S} s; killed', file=sys.stderr)
                process.kill()
                process.wait()
        self._folder.cleanup()

    def _parameters(self, process: Process) -> Path | None:
        """A parameters file: unlike `-p`, it leaves no string to be read as another type."""
        if not process.parameters:
            return None
        file = Path(self._folder.name) / f'{process.name}.yaml'
        file.write_text(yaml.safe_dump({'/**': {'ros__parameters': dict(process.parameters)}}),
                        encoding='utf-8')
        return file


def up(graph: Graph, remaps: Sequence[str] = ()) -> int:
    """Run a graph until SIGINT, SIGTERM or the end of a process; returns the exit status."""
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    for note in graph.notes:
        print(f'vla-ros: {note}', file=sys.stderr)
    with GraphProcesses(graph, remaps) as processes:
        while not stopped:
            ended = processes.ended()
            if ended is not None:
                name, status = ended
                done = status == 0 and name == 'bag_player'
                print(f'vla-ros: {name} ended with status {status}; stopping the others',
                      file=sys.stderr)
                return 0 if done else 1
            time.sleep(POLL_S)
    return 0
