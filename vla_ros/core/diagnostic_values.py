"""What goes into `/diagnostics`, as plain keys and values: the same live and in replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

from vla_ros.core.control_config import State
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.inference_loop import InferenceLoop
from vla_ros.core.latency import LatencySummary
from vla_ros.core.types import NS_PER_S, InferenceStatus

Level = TypeVar('Level')

# As in diagnostic_msgs/DiagnosticStatus.
OK, WARN, ERROR = 0, 1, 2
LEVELS = {State.FAULT: ERROR, State.HOLDING: WARN, State.STOPPING: WARN, State.STOPPED: WARN}


class OncePerSecond(Generic[Level]):
    """Says when to report: when a second has passed, and at once when something changed.

    `changed`: whether the last report that was due was so because of a change.
    """

    def __init__(self) -> None:
        self._last: tuple[Level, str] | None = None
        self._last_ns = 0
        self.changed = False

    def due(self, level: Level, state: str, now_ns: int) -> bool:
        """Whether to report now."""
        waited_ns = now_ns - self._last_ns
        if (level, state) == self._last and 0 <= waited_ns < NS_PER_S:
            return False
        self.changed = (level, state) != self._last
        self._last, self._last_ns = (level, state), now_ns
        return True


def latency_values(summaries: Mapping[str, LatencySummary]) -> dict[str, str]:
    """Percentiles of each stage in milliseconds, as key and value."""
    return {f'latency {stage} [ms]': f'p50 {s.p50 * 1e3:.2f}, p95 {s.p95 * 1e3:.2f}, '
                                     f'p99 {s.p99 * 1e3:.2f}, max {s.max * 1e3:.2f}'
            for stage, s in summaries.items() if s.count}


def control_values(loop: ControlLoop) -> dict[str, object]:
    """What the control loop did so far: holds by cause, drops by reason, clips by dimension."""
    values: dict[str, object] = {'state': loop.state.value, 'cause': loop.cause}
    values |= {f'hold: {cause}': count for cause, count in loop.holds.items()}
    values |= loop.counts
    for limit, counts in loop.clips.items():
        values |= {f'clips {limit} {name}': int(count)
                   for name, count in zip(loop.config.spec.names, counts) if count}  # noqa: B905
    return values


def inference_values(loop: InferenceLoop, names: tuple[str, ...]) -> dict[str, object]:
    """What the inference loop did so far: drops by reason, seams, latencies by stage."""
    counts = loop.counts + loop.executor.counts + loop.assembler.counts
    values: dict[str, object] = {
        'instruction': loop.assembler.instruction, 'rate': loop.rate, **counts}
    if loop.seam is not None:
        values |= {f'seam {name}': f'offered {offered:.4g}, left {left:.4g}'
                   for name, offered, left in zip(  # noqa: B905 (3.10)
                       names, loop.seam.offered, loop.seam.left)}
    return values | latency_values(loop.latency.summaries())


def inference_level(status: InferenceStatus) -> int:
    """How grave a status of inference is."""
    return ERROR if status.reaction == 'fault' else WARN if status.cause else OK


def control_line(state: State, cause: str) -> str:
    """State and cause in one line."""
    return f'{state.value}: {cause}' if cause else state.value


def value_text(value: object) -> str:
    """A value as people read it."""
    return f'{value:.4g}' if isinstance(value, float) else str(value)
