"""The fixed rate: absolute deadlines on the monotonic clock, and the priority to meet them."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

FIFO_PRIORITY = 50
IMAGE_PRIORITY = 5  # of what carries images: above ordinary work, below control
# Callbacks are served until this long before a deadline; the rest is slept in one piece.
QUIET_NS = 1_000_000


def raise_priority(priority: int = FIFO_PRIORITY) -> str:
    """Ask for SCHED_FIFO for this process; returns why it is not to be had, or ''.

    The calling thread gets `priority`, all others one less. They are the middleware's, and hold
    locks that publishing needs: one that waited for a busy core would keep the caller waiting.
    A process that was started with a real-time priority keeps it.
    """
    own = threading.get_native_id()
    try:
        if os.sched_getscheduler(own) in (os.SCHED_FIFO, os.SCHED_RR):
            return ''
        os.sched_setscheduler(own, os.SCHED_FIFO, os.sched_param(priority))
        for thread in other_threads():
            with suppress(ProcessLookupError):  # it has just ended
                os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(priority - 1))
    except (OSError, AttributeError) as error:
        return (f'no real-time priority ({error}): commands may jitter under load; allow it with '
                'ulimit -r 50, or LimitRTPRIO=50 in the service file')
    return ''


def raise_image_priority(threads: Iterable[int], priority: int = IMAGE_PRIORITY) -> None:
    """Ask for SCHED_FIFO for these threads of this process, where that is permitted.

    Threads that they start later, such as an engine's, do not inherit it. One that has a real-time
    priority keeps it.
    """
    with suppress(OSError, AttributeError):
        for thread in threads:
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(
                    thread, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))


def own_thread() -> int:
    """The calling thread, as the system numbers it."""
    return threading.get_native_id()


def other_threads() -> list[int]:
    """All threads of this process but the calling one: before anything else, the middleware's."""
    return [thread for thread in map(int, os.listdir('/proc/self/task'))
            if thread != threading.get_native_id()]


def calm_memory() -> None:
    """Keep the garbage collector from walking what was made at start-up."""
    gc.collect()
    gc.freeze()


class Pacer:
    """Ticks at multiples of `period_ns`. A missed deadline is counted and skipped, not bunched."""

    def __init__(self, period_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._period_ns = period_ns
        self._clock = clock
        self._next_ns = clock() + period_ns
        self._last_ns = clock()
        self.ticks = 0
        self.missed = 0

    def wait(self, serve: Callable[[float], None]) -> int:
        """Sleep until the next deadline, calling `serve(seconds)` while there is time.

        Returns the nanoseconds that passed since the last return.
        """
        while True:
            left_ns = self._next_ns - self._clock()
            if left_ns <= QUIET_NS:
                break
            serve((left_ns - QUIET_NS) / 1e9)
        if left_ns > 0:
            time.sleep(left_ns / 1e9)
        now_ns = self._clock()
        late = max(0, (now_ns - self._next_ns) // self._period_ns)
        self.missed += late
        self.ticks += 1
        self._next_ns += (late + 1) * self._period_ns
        elapsed_ns, self._last_ns = now_ns - self._last_ns, now_ns
        return elapsed_ns


class TickRecorder:
    """Times of ticks on the monotonic clock, kept in memory made beforehand, for benchmarks.

    `path`: the .npy file that `write` makes, int64 [n] in nanoseconds. What comes after `capacity`
    ticks is not kept. Raises OSError where the file cannot be written.
    """

    def __init__(self, path: str | Path, capacity: int = 1 << 18) -> None:
        self._path = Path(path)
        self._path.touch()
        self._times = np.full(capacity, -1, dtype=np.int64)  # touched: no page is fetched in a tick
        self._count = 0

    def add(self) -> None:
        """Record that a tick is done."""
        if self._count < len(self._times):
            self._times[self._count] = time.monotonic_ns()
            self._count += 1

    def write(self) -> None:
        """Write what was recorded."""
        with self._path.open('wb') as file:
            np.save(file, self._times[:self._count])
