"""What a run of the graph looked like from outside: what was heard on its topics, and when."""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.types import NS_PER_S, Floats, Plan

RATE_WINDOW_NS = 2 * NS_PER_S
PUBLISHER = 'action_publisher'
ACTIVE, WAITING, FAULT = 'active', 'waiting', 'fault'
_LATENCY = re.compile(r'latency (\w+) \[ms\]$')
_PERCENTILE = re.compile(r'(\w+) ([\d.]+)')


@dataclass(frozen=True)
class Span:
    """A stretch of time in which the control loop was in one state, for one cause."""

    begin_ns: int
    end_ns: int
    state: str
    cause: str

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / NS_PER_S


class Series:
    """Times in nanoseconds and one value for each."""

    def __init__(self) -> None:
        self._times = array('q')
        self._values = array('d')

    def add(self, time_ns: int, value: float) -> None:
        self._times.append(time_ns)
        self._values.append(value)

    def arrays(self) -> tuple[NDArray[np.int64], Floats]:
        """Times int64 [n] and values float64 [n], copied."""
        return np.array(self._times, dtype=np.int64), np.array(self._values, dtype=np.float64)

    def newest(self, count: int) -> Sequence[float]:
        """At most the last `count` values."""
        return self._values[-count:]


class Record:
    """Filled by one thread. All times are ROS time in nanoseconds.

    `commands`: by dimension, as the robot gets them: velocities per second, positions, a gripper's
    value. `actions`: recorded actions in the order of the planned `spec`. `seam_max` float64 [A]:
    the largest step from one plan to the next at the moment of its arrival, in spec units.
    """

    def __init__(self, spec: ActionSpec) -> None:
        self.spec = spec
        self.counts: Counter[str] = Counter()
        self.commands: dict[str, Series] = {name: Series() for name in spec.names}
        self.actions: list[tuple[int, Floats]] = []
        self.sentences: list[tuple[int, str]] = []
        self.statuses: dict[str, Mapping[str, str]] = {}
        self.troubles: dict[str, str] = {}  # by node, what is wrong now
        self.plan: Plan | None = None
        self.seam: Floats | None = None
        self.seam_max: Floats = np.zeros(spec.size)
        self.began_ns: int | None = None  # the first command
        self._changes: list[tuple[int, str, str]] = []
        self._arrivals: defaultdict[str, deque[int]] = defaultdict(deque)
        self._interpolator = Interpolator(spec)

    # --- what comes in -------------------------------------------------------------------------

    def heard(self, stream: str, now_ns: int) -> None:
        """A message of a stream has come."""
        self.counts[stream] += 1
        arrivals = self._arrivals[stream]
        arrivals.append(now_ns)
        while arrivals[0] <= now_ns - RATE_WINDOW_NS:
            arrivals.popleft()

    def on_command(self, names: Sequence[str], values: Sequence[float], stamp_ns: int) -> None:
        """A command for some of the dimensions."""
        if self.began_ns is None:
            self.began_ns = stamp_ns
        for name, value in zip(names, values):  # noqa: B905 (3.10)
            self.commands[name].add(stamp_ns, value)

    def on_action(self, stamp_ns: int, action: Floats) -> None:
        """A recorded action [A]."""
        self.actions.append((stamp_ns, action))

    def on_sentence(self, text: str, now_ns: int) -> None:
        """An instruction."""
        self.sentences.append((now_ns, text))

    def on_plan(self, plan: Plan, now_ns: int) -> None:
        """A plan that replaces the one in hand."""
        before = self._interpolator.at(self.plan, now_ns) if self.plan is not None else None
        after = self._interpolator.at(plan, now_ns)
        if before is not None and after is not None:
            self.seam = np.abs(after - before)
            self.seam_max = np.maximum(self.seam_max, self.seam)
        self.plan = plan

    def forget_plan(self) -> None:
        """The robot has been put elsewhere: the next plan goes on from no other."""
        self.plan = self.seam = None

    def on_status(self, name: str, values: Mapping[str, str], stamp_ns: int,
                  trouble: str = '') -> None:
        """What a node says of itself."""
        node = name.rsplit('/', 1)[-1]
        self.statuses[node], self.troubles[node] = values, trouble
        if node == PUBLISHER:
            state, cause = values.get('state', ''), values.get('cause', '')
            if not self._changes or self._changes[-1][1:] != (state, cause):
                self._changes.append((stamp_ns, state, cause))

    # --- what can be read ----------------------------------------------------------------------

    @property
    def sentence(self) -> str:
        return self.sentences[-1][1] if self.sentences else ''

    def rate(self, stream: str, now_ns: int) -> float:
        """Messages per second over the last two seconds."""
        recent = sum(1 for time_ns in self._arrivals[stream] if time_ns > now_ns - RATE_WINDOW_NS)
        return recent * NS_PER_S / RATE_WINDOW_NS

    def spans(self, until_ns: int) -> list[Span]:
        """The states of the control loop one after the other, the last one up to `until_ns`."""
        ends = [begin for begin, _, _ in self._changes[1:]] + [until_ns]
        return [Span(begin, end, state, cause)
                for (begin, state, cause), end in zip(self._changes, ends)]  # noqa: B905 (3.10)

    def latencies(self) -> dict[str, dict[str, float]]:
        """Percentiles in milliseconds by stage, of all nodes: p50, p95, p99, max."""
        found = {}
        for values in self.statuses.values():
            for key, text in values.items():
                stage = _LATENCY.search(key)
                if stage:
                    found[stage[1]] = {name: float(number)
                                       for name, number in _PERCENTILE.findall(text)}
        return found

    def clips(self) -> Counter[str]:
        """Clipped commands by dimension."""
        return Counter({name: sum(int(value) for key, value in self._of_publisher()
                                  if key.startswith('clips ') and key.endswith(f' {name}'))
                        for name in self.spec.names})

    def number(self, node: str, key: str) -> int:
        """A counter that a node reports; 0 where it has not."""
        return int(self.statuses.get(node, {}).get(key, 0))

    def _of_publisher(self) -> list[tuple[str, str]]:
        return list(self.statuses.get(PUBLISHER, {}).items())


def cause_name(cause: str, spec: ActionSpec) -> str:
    """A cause without what differs each time: measured numbers and the dimension they are of."""
    parts = cause.split(': ')
    if len(parts) > 1 and parts[0] in spec.names:
        parts = parts[1:]
    return parts[0].split(' (')[0]


def stops(spans: Sequence[Span], spec: ActionSpec) -> dict[str, tuple[int, float]]:
    """How often and for how many seconds the robot was kept still, by named cause."""
    found: dict[str, tuple[int, float]] = {}
    for span in spans:
        if span.state in (ACTIVE, WAITING):
            continue
        name = cause_name(span.cause, spec)
        count, seconds = found.get(name, (0, 0.0))
        found[name] = count + 1, seconds + span.seconds
    return found
