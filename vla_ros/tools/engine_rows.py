"""One row of `vla-ros bench engine`: a backend in a precision, built, warmed up and timed."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.tools.measure import spread

if TYPE_CHECKING:
    from vla_ros.policies.openvla.backend import Backend, Frame

Tell = Callable[[str], None]
PERCENTILES = {'p50': 50.0, 'p95': 95.0, 'p99': 99.0, 'p999': 99.9, 'max': 100.0}
STAGES = ('vision_ms', 'prefill_ms', 'decode_ms_per_token')
LEAD_IN = 3  # steps that are not counted, or as many as fill a pipeline
NS_PER_MS = 1e6
GB = 1e9


@dataclass(frozen=True)
class Row:
    """What to measure, and with how many actions."""

    backend: str
    precision: str
    actions: int

    @property
    def name(self) -> str:
        """Its key in the JSON."""
        return f'{self.backend}_{self.precision}'


@dataclass(frozen=True)
class Steps:
    """Successive steps: when each began and ended, int64 ns; passes of each, 0 where not told."""

    begin_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    passes: NDArray[np.float64]


class StageClock:
    """Seconds of each stage of a warm-up. Called with what begins now; `stop` ends the last."""

    def __init__(self, tell: Tell, clock: Callable[[], float] = time.perf_counter) -> None:
        self._tell, self._clock = tell, clock
        self._stage, self._since = '', 0.0
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str) -> None:
        self.stop()
        self._stage, self._since = stage, self._clock()

    def stop(self) -> None:
        """End the stage that runs, and tell how long it took."""
        if self._stage:
            taken = self._clock() - self._since
            self.seconds[self._stage] = round(self.seconds.get(self._stage, 0.0) + taken, 3)
            self._tell(f'  {self._stage}: {taken:.2f} s')
        self._stage = ''


def measure_row(row: Row, make: Callable[[], Backend], frames: Sequence[Frame], device: str,
                tell: Tell) -> dict[str, Any]:
    """Build, warm up, run `row.actions` actions. Whatever goes wrong is raised."""
    memory = Memory(device)
    stages = StageClock(tell)
    stages('build')
    backend = make()
    backend.warm_up(stages)
    stages.stop()
    lead = max(LEAD_IN, backend.lag)
    backend.reset()
    first = run_steps(backend, frames, lead)
    tell(f'  {lead} actions that are not counted, the first in '
         f'{(first.end_ns[0] - first.begin_ns[0]) / NS_PER_MS:.1f} ms')
    gc.collect()
    gc.freeze()  # what is there now stays, and need not be looked through again and again
    try:
        before = memory.counts()
        timed = run_steps(backend, frames, row.actions, len(first.begin_ns))
        after = memory.counts()
    finally:
        gc.unfreeze()
    held = backend.memory_bytes()
    peaks = memory.peaks()
    figures: dict[str, Any] = {
        'backend': row.backend, 'precision': row.precision, 'actions': row.actions,
        'warm_up_s': stages.seconds, 'lag': backend.lag, **figures_of(first, timed, backend.lag),
        **dict.fromkeys(STAGES), **backend.stages()}
    figures['allocations_after_warm_up'] = None if before is None else after[0] - before[0]
    figures['device_mallocs_after_warm_up'] = None if before is None else after[1] - before[1]
    figures['memory_gb'] = round(held / GB, 3) or None
    return figures | peaks


def run_steps(backend: Backend, frames: Sequence[Frame], count: int, number: int = 0) -> Steps:
    """Steps one right after the other, `frames` in turn, from frame `number` of them on.

    A step is timed whole: upload of the images, everything on the device, download of the tokens.
    Raises ValueError where a step past the lag gives no action.
    """
    begin, end = np.zeros(count, np.int64), np.zeros(count, np.int64)
    passes = np.zeros(count)
    clock = time.perf_counter_ns
    for i in range(count):
        frame = frames[(number + i) % len(frames)]
        begin[i] = clock()
        ids = backend.step(frame)
        end[i] = clock()
        passes[i] = backend.passes
        if ids is None and number + i >= backend.lag:
            raise ValueError(f'step {number + i}: no action; the pipeline is full after '
                             f'{backend.lag} steps')
    return Steps(begin, end, passes)


def figures_of(first: Steps, timed: Steps, lag: int) -> dict[str, Any]:
    """What the times say. `first`: the steps right before, at least `lag` of them.

    The age of an action is the time from when its own frame was given to when it came out; of
    frames given before the pause that lies between the two, only where there are no others.
    """
    captured = np.concatenate([first.begin_ns, timed.begin_ns])
    captured = captured[len(first.begin_ns) - lag:][:len(timed.end_ns)]
    skip = lag if lag < len(timed.end_ns) else 0
    seconds = float(timed.end_ns[-1] - timed.begin_ns[0]) / 1e9
    passes = float(timed.passes.mean())
    return {'action_ms': spread((timed.end_ns - timed.begin_ns) / NS_PER_MS, PERCENTILES),
            'actions_per_s': round(len(timed.end_ns) / seconds, 3),
            'action_age_ms': spread((timed.end_ns - captured)[skip:] / NS_PER_MS, PERCENTILES),
            'passes': round(passes, 3) if passes else None}


def floor_figures(figures: Mapping[str, Any], floor_ms: float) -> dict[str, float]:
    """The floor of a row and how far above it the median is."""
    return {'floor_ms': round(floor_ms, 3),
            'times_floor': round(figures['action_ms']['p50'] / floor_ms, 3)
            if floor_ms else math.nan}


def one_line(error: BaseException) -> str:
    """What went wrong, cut to a line that can be read."""
    text = ' '.join(str(error).split())
    named = type(error).__name__
    return (text if isinstance(error, ValueError) and text else f'{named}: {text}')[:300]


class Memory:
    """What torch's allocator says of a GPU; nothing of a CPU."""

    def __init__(self, device: str) -> None:
        self._device = device if device.startswith('cuda') else ''
        if self._device:
            import torch
            torch.cuda.reset_peak_memory_stats(self._device)

    def counts(self) -> Any:
        """Allocations so far, and how many of them went to the driver; None on a CPU."""
        if not self._device:
            return None
        import torch
        stats = torch.cuda.memory_stats(self._device)
        return stats['allocation.all.allocated'], stats.get('num_device_alloc', 0)

    def peaks(self) -> dict[str, float | None]:
        """The most that was in use while building and running, and what is reserved now."""
        if not self._device:
            return {'peak_memory_gb': None, 'reserved_memory_gb': None}
        import torch
        peak = torch.cuda.max_memory_allocated(self._device)
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved(self._device)
        return {'peak_memory_gb': round(peak / GB, 3),
                'reserved_memory_gb': round(reserved / GB, 3)}

    def free(self) -> None:
        """Give back what nobody holds any more."""
        gc.collect()
        if self._device:
            import torch
            torch.cuda.empty_cache()
