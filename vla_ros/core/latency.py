"""Latency windows: the last durations of each stage, and their percentiles."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vla_ros.core.types import NS_PER_S


@dataclass(frozen=True)
class LatencySummary:
    """Percentiles of a window, in seconds; nan where it is empty."""

    count: int
    p50: float
    p95: float
    p99: float
    max: float


class LatencyWindow:
    """The last `size` durations, in nanoseconds."""

    def __init__(self, size: int = 1000) -> None:
        self._durations: deque[int] = deque(maxlen=size)
        self.total = 0

    def add(self, duration_ns: int) -> None:
        self._durations.append(duration_ns)
        self.total += 1

    def __len__(self) -> int:
        return len(self._durations)

    def percentile_ns(self, percent: float) -> float:
        """A percentile in nanoseconds; nan where the window is empty.

        One of the durations, the lower where it lies between two: so one outlier among few does
        not move the 95th.
        """
        if not self._durations:
            return float('nan')
        return float(sorted(self._durations)[int(percent / 100.0 * (len(self._durations) - 1))])

    def summary(self) -> LatencySummary:
        if not self._durations:
            return LatencySummary(0, *[float('nan')] * 4)
        values = np.fromiter(self._durations, dtype=np.float64) / NS_PER_S
        p50, p95, p99 = (float(v) for v in np.percentile(values, [50, 95, 99]))
        return LatencySummary(len(values), p50, p95, p99, float(values.max()))


class LatencyAccount:
    """One window per named stage."""

    def __init__(self, stages: tuple[str, ...], size: int = 1000) -> None:
        self.stages: Mapping[str, LatencyWindow] = {name: LatencyWindow(size) for name in stages}

    def add(self, **durations_ns: int) -> None:
        """Add durations by stage. Raises KeyError on a stage that is not in the account."""
        for name, duration_ns in durations_ns.items():
            self.stages[name].add(duration_ns)

    def summaries(self) -> dict[str, LatencySummary]:
        return {name: window.summary() for name, window in self.stages.items()}
