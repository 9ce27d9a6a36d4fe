"""The measured state of the last seconds, per entry, from any number of publishers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vla_ros.core.types import NS_PER_S, Floats, StateSample

# Transport takes less than this; a larger offset between stamp and receipt is a clock's.
CLOCK_MISMATCH_NS = 5 * NS_PER_S
FUTURE_NS = NS_PER_S // 10


def clock_mismatch(stamp_ns: int, received_ns: int) -> str:
    """What is wrong between the clock of a stamp and that of its receipt, or ''."""
    offset_ns = received_ns - stamp_ns
    if -FUTURE_NS <= offset_ns <= CLOCK_MISMATCH_NS:
        return ''
    side = 'behind' if offset_ns > 0 else 'ahead of'
    return (f'clock mismatch: stamps are {abs(offset_ns) / NS_PER_S:.1f} s {side} receipt; '
            'replay with use_sim_time, or re-stamp')


def dropped_as(reason: str) -> str:
    """The name under which a reason is counted: without numbers that are new every time."""
    if ' names but ' in reason:
        return 'joint state: names and positions differ in number'
    return 'joint state: clock mismatch' if 'clock mismatch' in reason else reason.split('; ')[0]


@dataclass(frozen=True)
class StateAt:
    """The state at a time: `values` float64 [S], nan where unknown; `oldest_ns` of what was used.

    `problem` names the first entry that is missing or too old; empty where all is well.
    """

    values: Floats
    oldest_ns: int
    received_ns: int
    problem: str = ''

    @property
    def complete(self) -> bool:
        """Whether every entry has a value."""
        return bool(np.isfinite(self.values).all())


class StateHistory:
    """Keeps `keep_ns` of state. Entries are matched by name; unknown names are ignored.

    An entry is never extrapolated: after its newest sample it holds for `age_limit_ns`.
    """

    def __init__(self, names: Iterable[str], age_limit_ns: int,
                 keep_ns: int = 2 * NS_PER_S) -> None:
        self.names = tuple(names)
        self._age_limit_ns = age_limit_ns
        self._keep_ns = keep_ns
        self._samples: dict[str, deque[tuple[int, float, int]]] = {n: deque() for n in self.names}
        self.dropped: dict[str, int] = {}

    def add(self, sample: StateSample) -> str:
        """Take what the sample has of the entries; returns why something was dropped, or ''."""
        if len(sample.names) != len(sample.positions):
            return self._drop(f'joint state: {len(sample.names)} names but '
                              f'{len(sample.positions)} positions')
        if not sample.names:
            return self._drop('joint state: empty')
        mismatch = clock_mismatch(sample.stamp_ns, sample.received_ns)
        if mismatch:  # a stamp far ahead would shut out all that follow
            return self._drop(f'joint state: {mismatch}')
        reason = ''
        for name, value in zip(sample.names, sample.positions, strict=True):
            samples = self._samples.get(name)
            if samples is None:
                continue
            if not np.isfinite(value):
                dropped = self._drop(f'joint state: {name} is not finite')
                reason = reason or dropped
            elif samples and sample.stamp_ns <= samples[-1][0]:
                dropped = self._drop(f'joint state: stamp of {name} does not advance')
                reason = reason or dropped
            else:
                samples.append((sample.stamp_ns, float(value), sample.received_ns))
                while samples[0][0] < sample.stamp_ns - self._keep_ns:
                    samples.popleft()
        return reason

    def clear(self) -> None:
        """Forget everything, for example after the clock jumped."""
        for samples in self._samples.values():
            samples.clear()

    def at(self, stamp_ns: int, names: Iterable[str] | None = None,
           anyway: bool = False) -> StateAt:
        """The entries (all, or these) interpolated at a time; `anyway`: also the too old ones."""
        names = self.names if names is None else tuple(names)
        values = np.full(len(names), np.nan)
        oldest_ns, received_ns, problem = stamp_ns, 0, ''
        for i, name in enumerate(names):
            samples = self._samples.get(name)
            if not samples:
                problem = problem or f'{name} has not been received'
                continue
            used_ns, value, got_ns = _interpolated(samples, stamp_ns)
            apart_ns = abs(stamp_ns - used_ns)
            if apart_ns > self._age_limit_ns:
                problem = problem or (
                    f'the last state of {name} is {apart_ns / NS_PER_S:.2f} s old '
                    f'(limit {self._age_limit_ns / NS_PER_S:g} s)')
                if not anyway:
                    continue
            values[i] = value
            oldest_ns = min(oldest_ns, used_ns)
            received_ns = max(received_ns, got_ns)
        return StateAt(values, oldest_ns, received_ns, problem)

    def _drop(self, reason: str) -> str:
        kind = dropped_as(reason)
        self.dropped[kind] = self.dropped.get(kind, 0) + 1
        return reason


def _interpolated(samples: deque[tuple[int, float, int]], stamp_ns: int) -> tuple[int, float, int]:
    """Time it speaks of, value, and receive time of the newest sample it rests on."""
    after: tuple[int, float, int] | None = None
    for stamp, value, received in reversed(samples):
        if stamp <= stamp_ns:
            if after is None or stamp == stamp_ns:
                return stamp, value, received
            share = (stamp_ns - stamp) / (after[0] - stamp)
            return stamp_ns, value + share * (after[1] - value), after[2]
        after = (stamp, value, received)
    # All samples are newer: the first one is the nearest.
    assert after is not None
    return after
