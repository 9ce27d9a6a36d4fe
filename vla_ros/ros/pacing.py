"""The fixed rate: absolute deadlines on the monotonic clock, and the priority to meet them."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

FIFO_PRIORITY = 50
# Callbacks are served until this long before a deadline; the rest is slept in one piece.
QUIET_NS = 400_000


def raise_priority() -> str:
    """Ask for SCHED_FIFO for the calling thread; returns why it is not to be had, or ''."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(FIFO_PRIORITY))
    except (PermissionError, OSError, AttributeError) as error:
        return (f'no real-time priority ({error}): commands may jitter under load; allow it with '
                'ulimit -r 50, or LimitRTPRIO=50 in the service file')
    return ''


def calm_memory() -> None:
    """Keep the garbage collector from walking what was made at start-up."""
    gc.collect()
    gc.freeze()


class Pacer:
    """Ticks at multiples of `period_ns`. A missed deadline is counted and skipped, never bunched."""

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
