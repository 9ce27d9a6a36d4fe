"""The processes of a benchmark beside the nodes: started, watched and ended by their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

EXIT_S = 5.0
# Pure computing, that does not outlive a parent which was killed.
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1_000_000):
        pass
"""


class Children:
    """A context manager that ends all its processes, the last one first.

    Their output goes to `<name>.log` in `folder`.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, name: str, *words: str) -> int:
        """Start this Python with `words`; returns the process id."""
        with _held_back(), (self._folder / f'{name}.log').open('wb') as log:
            # A session of its own: Ctrl-C reaches it through us, in order.
            process = subprocess.Popen([sys.executable, *words], env=self._environment,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       start_new_session=True)
            self._running[name] = process
        return process.pid

    def load(self, cores: int) -> None:
        """Start one busy process per core."""
        for core in range(cores):
            self.start(f'load_{core}', '-I', '-S', '-c', SPIN)

    def check(self) -> None:
        """Raises ValueError with the last line of whoever has ended."""
        for name, process in self._running.items():
            status = process.poll()
            if status is not None:
                raise ValueError(f'{name}: ended with status {status}: '
                                 f'{last_line(self._folder / f"{name}.log")}')

    def stop(self) -> None:
        """SIGINT to all, and SIGKILL to who does not listen."""
        with _held_back():
            children, self._running = list(reversed(self._running.values())), {}
            for process in children:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + EXIT_S
            for process in children:
                try:
                    process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@contextmanager
def _held_back() -> Iterator[None]:
    """Take SIGINT and SIGTERM only afterwards; only the main thread may call.

    Between a start and its note, or in the middle of ending, they would leave a process behind.
    """
    came: list[int] = []
    kept = {number: signal.signal(number, lambda number, frame: came.append(number))
            for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


class Stop:
    """Whether this process was told to end. Only the main thread may make one."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.came = True


def bench_environment() -> dict[str, str]:
    """The environment of a benchmark's processes: nothing leaves this machine."""
    environment = dict(os.environ)
    environment.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    environment.setdefault('ROS_LOCALHOST_ONLY', '1')  # Humble
    return environment


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    lines = [line.strip() for line in log.read_text(errors='replace').splitlines() if line.strip()]
    return lines[-1] if lines else 'it said nothing'
