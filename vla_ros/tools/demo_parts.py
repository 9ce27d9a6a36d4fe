"""What both demos need: signals that end them in order, and a place for stderr."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vla_ros.tools.record import Record

START_S = 40.0     # the longest that the first command may take
DRAW_S = 0.25
CHECK_S = 0.1
INTERRUPTED = 130


class StopSignals:
    """Whether SIGINT, SIGTERM or SIGHUP came; from now on they interrupt nothing."""

    def __init__(self) -> None:
        self.came = False
        self._before = {number: signal.signal(number, self._on_signal)
                        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def release(self) -> None:
        """From now on they do what they did before: there is nothing left to end in order."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        self.came = True


@contextmanager
def own_stderr(file: Path) -> Iterator[None]:
    """Send what this process and its middleware say on stderr to a file, not into the view."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open('wb') as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def no_command(record: Record, waited_s: float) -> str:
    """That nothing has been commanded, and what the publisher says of it."""
    spans = record.spans(time.time_ns())
    state = f'{spans[-1].state}: {spans[-1].cause}' if spans else 'silent'
    return f'no command within {waited_s:.0f} s; action_publisher is {state}'
