"""What benchmarks say of times: percentiles, period errors, missed ticks, targets, the machine."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Times = NDArray[np.int64]
PERCENTILES = {'p50': 50.0, 'p99': 99.0, 'p999': 99.9, 'max': 100.0}
NS_PER_MS = 1e6
STEAL = 8  # its place in the first line of /proc/stat


@dataclass(frozen=True)
class Target:
    """A figure beside its limit; `limit` inclusive, nan values miss.

    `least`: the limit is what the figure must reach, not what it may be at most.
    """

    name: str
    value: float
    limit: float
    unit: str = ''
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value >= self.limit if self.least else self.value <= self.limit

    def as_json(self) -> dict[str, Any]:
        """The target and whether it is met."""
        return {'name': self.name, 'value': self.value, 'limit': self.limit, 'unit': self.unit,
                'least': self.least, 'met': self.met}


def spread(values: ArrayLike, percentiles: Mapping[str, float] = PERCENTILES) -> dict[str, float]:
    """p50, p99, p999 and max (or other percentiles) of any values; nan where there are none."""
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        return dict.fromkeys(percentiles, math.nan)
    return {name: round(float(np.percentile(array, percent)), 4)
            for name, percent in percentiles.items()}


def period_errors_ms(times_ns: Times, period_ns: int) -> NDArray[np.float64]:
    """|period - period_ns| of successive ticks, in milliseconds."""
    return np.abs(np.diff(times_ns) - period_ns) / NS_PER_MS


def missed(times_ns: Times, period_ns: int) -> int:
    """Ticks that a grid of `period_ns` has between the first and the last time, but that are not.

    A tick that comes late and is followed by one in time is not missed.
    """
    if len(times_ns) < 2:
        return 0
    due = round(int(times_ns[-1] - times_ns[0]) / period_ns)
    return max(0, due - (len(times_ns) - 1))


def loop_figures(times_ns: Times, period_ns: int) -> dict[str, Any]:
    """Ticks, missed ticks and period errors of a loop."""
    return {'ticks': len(times_ns), 'missed': missed(times_ns, period_ns),
            'period_error_ms': spread(period_errors_ms(times_ns, period_ns))}


def within(times_ns: Times, begin_ns: int, end_ns: int, what: str) -> Times:
    """The times in [begin, end). Raises ValueError with one line where `what` left none."""
    inside = times_ns[(times_ns >= begin_ns) & (times_ns < end_ns)]
    if len(inside) < 2:
        raise ValueError(f'{what}: {len(inside)} ticks in {(end_ns - begin_ns) / 1e9:.1f} s; at '
                         'least 2 are needed: measure longer (--seconds)')
    return inside


def plain(value: Any) -> Any:
    """The same with null for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def machine() -> dict[str, Any]:
    """Where the figures were taken."""
    return {'cores': len(os.sched_getaffinity(0)), 'cpu': _cpu_model(),
            'kernel': platform.release(), 'python': platform.python_version(),
            'ros_distro': os.environ.get('ROS_DISTRO', '')}


def stolen_s() -> float:
    """Seconds that the hypervisor has taken from this machine since it started, all cores."""
    try:
        words = Path('/proc/stat').read_text().split('\n', 1)[0].split()
    except OSError:
        return 0.0
    return int(words[STEAL]) / os.sysconf('SC_CLK_TCK')


def _cpu_model() -> str:
    try:
        lines = Path('/proc/cpuinfo').read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(':')[2].strip() for line in lines if line.startswith('model name')]
    return names[0] if names else platform.machine()
