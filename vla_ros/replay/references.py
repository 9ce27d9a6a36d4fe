"""How far a policy is from the recorded actions, beside two answers that need no policy."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass

import numpy as np

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.types import Floats
from vla_ros.replay.bag_events import RecordedAction

PER_STEP = (Kind.DELTA, Kind.VELOCITY, Kind.RELATIVE)


@dataclass(frozen=True)
class ActionError:
    """Mean absolute errors over steps that could be compared, by dimension, in the spec's units.

    `policy`: the chunks; `first_step`: their first steps only; `hold`: no change, or the value
    that was recorded last before the observation; `mean`: the mean of all recorded actions.
    `compared`: steps; `missing`: dimensions that are not recorded.
    """

    compared: int
    policy: dict[str, float]
    first_step: dict[str, float]
    hold: dict[str, float]
    mean: dict[str, float]
    missing: tuple[str, ...] = ()


class References:
    """Collects recorded actions and chunks, and compares step i with the action recorded then.

    A recorded action is taken to be what the policy should answer: same dimensions, same units,
    valid for one policy period from its stamp.
    """

    def __init__(self, spec: ActionSpec, period_ns: int) -> None:
        self._spec, self._period_ns = spec, period_ns
        self._still = np.array([d.kind in PER_STEP for d in spec.dimensions])
        self.stamps: list[int] = []
        self.rows: list[Floats] = []
        self._columns: dict[tuple[str, ...], list[int]] = {}
        self._chunks: deque[tuple[int, Floats]] = deque()
        size = len(spec.names)
        self._sums = {name: np.zeros(size) for name in ('policy', 'first_step', 'hold')}
        self._used: list[int] = []  # how often each recorded action was compared with
        self._compared = self._firsts = 0

    def on_action(self, action: RecordedAction) -> None:
        """Take a recorded action; stamps must rise, others are left out."""
        if self.stamps and action.stamp_ns <= self.stamps[-1]:
            return
        columns = self._columns.get(action.names)
        if columns is None:
            columns = [action.names.index(n) if n in action.names else -1
                       for n in self._spec.names]
            self._columns[action.names] = columns
        row = np.append(action.values, np.nan)[columns]
        self.stamps.append(action.stamp_ns)
        self.rows.append(row)
        self._used.append(0)
        self._compare(action.stamp_ns)

    def on_chunk(self, stamp_ns: int, actions: Floats) -> None:
        """Take the answer [H, A] about the observation of this stamp."""
        self._chunks.append((stamp_ns, actions))

    def error(self) -> ActionError | None:
        """What it came to; None where nothing could be compared."""
        self._compare(1 << 62)
        if not self._compared:
            return None
        names = self._spec.names
        rows, used = np.array(self.rows), np.array(self._used)
        known = np.isfinite(rows).all(axis=0)
        spread = used @ np.abs(rows - rows.mean(axis=0))

        def by_name(sums: Floats, count: int) -> dict[str, float]:
            return {n: float(s / count) for n, s, k in zip(names, sums, known, strict=True) if k}

        return ActionError(
            self._compared, by_name(self._sums['policy'], self._compared),
            by_name(self._sums['first_step'], max(1, self._firsts)),
            by_name(self._sums['hold'], self._compared), by_name(spread, self._compared),
            tuple(n for n, k in zip(names, known, strict=True) if not k))

    def _compare(self, until_ns: int) -> None:
        """Compare the chunks all of whose steps lie before this time."""
        while self._chunks and self._chunks[0][0] + (
                len(self._chunks[0][1]) * self._period_ns) <= until_ns:
            stamp_ns, actions = self._chunks.popleft()
            self._compare_one(stamp_ns, actions)

    def _compare_one(self, stamp_ns: int, actions: Floats) -> None:
        slack_ns = self._period_ns // 2
        before = bisect_right(self.stamps, stamp_ns - slack_ns) - 1
        last = self.rows[before] if before >= 0 else None
        for i, action in enumerate(actions):
            time_ns = stamp_ns + i * self._period_ns
            at = bisect_left(self.stamps, time_ns - slack_ns)
            if at == len(self.stamps) or self.stamps[at] >= time_ns + slack_ns:
                continue
            wanted = self.rows[at]
            held = np.where(self._still, 0.0, wanted if last is None else last)
            self._used[at] += 1
            self._sums['policy'] += np.abs(action - wanted)
            self._sums['hold'] += np.abs(held - wanted)
            self._compared += 1
            if i == 0:
                self._sums['first_step'] += np.abs(action - wanted)
                self._firsts += 1
