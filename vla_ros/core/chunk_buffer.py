"""The action-chunk buffer: splices each new chunk into the plan by time, and measures the seam."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.interpolation import Interpolator
from vla_ros.core.merging import FIXED_SHARE, Merge, Mixer
from vla_ros.core.types import ActionChunk, Floats, Plan

# Chunks that a temporal ensemble remembers; a bound, so that memory stays flat.
ENSEMBLE_CHUNKS = 64
# With less than the rest of a step left, the line to a knot that is far away is too steep to take.
STEEP = 0.95


@dataclass(frozen=True)
class Seam:
    """How far new and old are apart at the moment of the merge, float64 [A] each.

    `offered`: the new chunk against the old plan; `left`: the merged plan against the old one.
    Positions in spec units, deltas as they are per step.
    """

    offered: Floats
    left: Floats


@dataclass(frozen=True)
class Merged:
    """Outcome of `ChunkBuffer.merge`: the new plan, or the reason why the chunk was dropped."""

    plan: Plan | None
    dropped: str = ''
    seam: Seam | None = None


class ChunkBuffer:
    """Holds the plan of the planned `spec`. Not thread-safe.

    `fade_steps`: policy steps over which `Merge.CROSSFADE` goes from the old plan to the new.
    """

    def __init__(self, spec: ActionSpec, merge: Merge = Merge.CROSSFADE,
                 fade_steps: int = 2) -> None:
        if fade_steps < 1:
            raise ValueError(f'fade_steps: {fade_steps}: at least 1 step is needed')
        self.spec = spec
        self._merge = merge
        self._fade_steps = fade_steps
        self._interpolator = Interpolator(spec)
        self._mixer = Mixer(spec)
        self._line = np.setdiff1d(spec.of_kind(Kind.POSITION), spec.quaternion())
        self._flow = spec.of_kind(Kind.VELOCITY, Kind.DELTA)
        self._chunks: deque[Plan] = deque(maxlen=ENSEMBLE_CHUNKS)
        self._fading_until_ns = 0
        self.plan: Plan | None = None

    def clear(self) -> None:
        """Forget the plan; the next chunk starts fresh."""
        self.plan = None
        self._fading_until_ns = 0
        self._chunks.clear()

    def remaining_ns(self, now_ns: int) -> int:
        """How long the plan in hand will last, in nanoseconds."""
        return max(0, self.plan.end_ns - now_ns) if self.plan is not None else 0

    def merge(self, chunk: ActionChunk, now_ns: int, fade: bool = False) -> Merged:
        """Splice a chunk of the planned spec into the plan at `now_ns`.

        `fade`: this chunk, and those that come while it fades in, crossfade whatever the merge
        policy is; nothing older is mixed into later ones.

        The plan begins with the step that is valid now: older steps are left out. The chunk is
        dropped where its observation is older than the plan's or all of its steps are past.
        """
        fresh = Plan(chunk.stamp_ns, chunk.start_ns, chunk.period_ns, chunk.actions)
        if self.plan is not None and chunk.stamp_ns < self.plan.stamp_ns:
            return Merged(None, 'older than the plan in hand')
        first = max(0, (now_ns - fresh.start_ns) // fresh.period_ns)
        if first >= len(fresh.values):
            return Merged(None, 'all steps are past')
        old_now = self._interpolator.at(self.plan, now_ns) if self.plan is not None else None
        steps = np.arange(first, len(fresh.values), dtype=np.int64)
        times = fresh.start_ns + fresh.period_ns * steps
        if fade:
            self._fading_until_ns = now_ns + self._fade_steps * chunk.period_ns
        fading = now_ns < self._fading_until_ns
        merge = Merge.CROSSFADE if fading else self._merge
        if merge is Merge.TEMPORAL_ENSEMBLE:
            values = self._ensemble(fresh, times)
        else:
            values = self._spliced(merge, fresh, first, times, old_now, now_ns)
        self.plan = Plan(chunk.stamp_ns, int(times[0]), chunk.period_ns, values)
        if fading and self._merge is Merge.TEMPORAL_ENSEMBLE:
            self._chunks.clear()
            self._chunks.append(self.plan)
        return Merged(self.plan, seam=self._seam(fresh, old_now, now_ns))

    def _spliced(self, merge: Merge, fresh: Plan, first: int, times: NDArray[np.int64],
                 old_now: Floats | None, now_ns: int) -> Floats:
        new = fresh.values[first:]
        if self.plan is None or old_now is None:
            return new.copy()
        old, covered = self._interpolator.resample(self.plan, times)
        # The step in progress began in the past, perhaps before the old plan did: there the old
        # plan's value of now stands for it.
        in_progress = times[0] <= now_ns
        if in_progress:
            old[0], covered[0] = old_now, True
        if merge is not Merge.CROSSFADE:
            share = np.full(len(new), FIXED_SHARE[merge])
            return self._mixer.mix(old, new, np.where(covered, share, 1.0))
        if len(new) == 1:
            # No later step could ever bring in what is new: a fade would keep it out for good.
            return new.copy()
        span = self._fade_steps * fresh.period_ns
        knots = np.clip((times - now_ns) / span, 0.0, 1.0)
        ends = np.clip((times + fresh.period_ns - now_ns) / span, 0.0, 1.0)
        if len(new) == 2:
            # The last step is held for its period and may begin very soon: as with a single one.
            knots[1] = ends[1]
        mixed = self._mixer.mix(old, new, np.where(covered, knots, 1.0))
        # What flows stays constant over a step and counts by the end of it: by its beginning, the
        # step in progress would stay old for ever where plans are replaced faster than steps end.
        flowing = self._mixer.mix(old, new, np.where(covered, ends, 1.0))
        mixed[:, self._flow] = flowing[:, self._flow]
        if in_progress:
            fraction = (now_ns - int(times[0])) / fresh.period_ns
            steep = len(new) == 2 or not covered[1]
            self._pass_through(mixed, old_now, fraction, steep)
        return mixed

    def _pass_through(self, mixed: Floats, old_now: Floats, fraction: float,
                      steep: bool) -> None:
        """Move the first knot, which is past, so that the line to the second meets `old_now`.

        `steep`: the second knot may be far from `old_now` however soon it comes.
        """
        if steep and fraction > STEEP:
            mixed[0, self._line] = old_now[self._line]
            return
        away = (old_now[self._line] - mixed[1, self._line]) / (1.0 - fraction)
        mixed[0, self._line] = mixed[1, self._line] + away

    def _ensemble(self, fresh: Plan, times: NDArray[np.int64]) -> Floats:
        while self._chunks and self._chunks[0].end_ns <= times[0]:
            self._chunks.popleft()
        self._chunks.append(fresh)
        samples = [self._interpolator.resample(chunk, times) for chunk in self._chunks]
        return self._mixer.ensemble([v for v, _ in samples], [valid for _, valid in samples])

    def _seam(self, fresh: Plan, old_now: Floats | None, now_ns: int) -> Seam | None:
        assert self.plan is not None
        new_now = self._interpolator.at(fresh, now_ns)
        merged_now = self._interpolator.at(self.plan, now_ns)
        if old_now is None or new_now is None or merged_now is None:
            return None
        return Seam(np.abs(new_now - old_now), np.abs(merged_now - old_now))


def stretch(chunk: ActionChunk, rate: float, spec: ActionSpec) -> ActionChunk:
    """Play a chunk slower: chunk-local time runs at `rate` in [0.5, 1], on the same period.

    Velocities and deltas scale by `rate`, so that the way stays the same. A last piece shorter
    than a period is left out: nothing is extrapolated.
    """
    if not 0.5 <= rate <= 1.0:
        raise ValueError(f'rate: {rate}: from 0.5 to 1.0 is allowed')
    if rate == 1.0:
        return chunk
    steps = len(chunk.actions)
    count = int(np.floor(steps / rate + 1e-9))
    local = np.arange(count) * (rate * chunk.period_ns)
    plan = Plan(chunk.stamp_ns, 0, chunk.period_ns, chunk.actions)
    values, _ = Interpolator(spec).resample(plan, np.round(local).astype(np.int64))
    flow = spec.of_kind(Kind.VELOCITY, Kind.DELTA)
    # What flows over a stretched step is the integral over the piece of the chunk it covers.
    way = np.vstack([np.zeros(len(flow)), np.cumsum(chunk.actions[:, flow], axis=0)])
    knots = np.arange(count + 1) * rate
    for column, index in enumerate(flow):
        values[:, index] = np.diff(np.interp(knots, np.arange(steps + 1), way[:, column]))
    return ActionChunk(chunk.stamp_ns, chunk.start_ns, chunk.period_ns, values)
