"""Runs graphs whose processes each write to a log file of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from vla_ros.bringup.graph import Graph
from vla_ros.bringup.up import GraphProcesses

TAIL = 12  # lines of a log that are shown


class ProcessEnded(Exception):
    """A process ended by itself; `tail` holds the last lines of its log."""

    def __init__(self, name: str, status: int, log: Path) -> None:
        super().__init__(f'{name} ended with status {status}; the end of {log}:')
        self.tail = log.read_text(errors='replace').splitlines()[-TAIL:]


class LoggedProcesses:
    """The running processes; a context manager that ends them all. Logs are `<name>.log`."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._each: dict[str, GraphProcesses] = {}

    def __enter__(self) -> LoggedProcesses:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    @property
    def names(self) -> frozenset[str]:
        """What has been started."""
        return frozenset(self._each)

    def start(self, graph: Graph) -> None:
        """Start the processes of a graph."""
        for process in graph.processes:
            with (self._logs / f'{process.name}.log').open('wb') as log:
                self._each[process.name] = GraphProcesses(Graph((process,)), output=log)

    def check(self) -> None:
        """Raises ProcessEnded for the first one that has ended."""
        for name, processes in self._each.items():
            ended = processes.ended()
            if ended is not None:
                raise ProcessEnded(name, ended[1], self._logs / f'{name}.log')

    def stop(self) -> None:
        """End all at the same time: one after the other would take too long."""
        if self._each:
            with ThreadPoolExecutor(len(self._each)) as pool:
                list(pool.map(GraphProcesses.stop, self._each.values()))
        self._each = {}
