"""The figures of a run, from its trace: what gates look at and the report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.control_config import State
from vla_ros.core.types import NS_PER_S
from vla_ros.core.watchdog import Layer
from vla_ros.replay.trace import FaultSeen, Span, Trace

PERCENTILES = {'p50': 50.0, 'p95': 95.0, 'p99': 99.0, 'p999': 99.9}
ACTIVE, HOLDING = State.ACTIVE.value, State.HOLDING.value
REACTION_S = 3.0  # behind the end of a fault, until which a reaction is taken to be its own
Floats = NDArray[np.floating[Any]]


def figures(trace: Trace) -> dict[str, Any]:
    """All figures, nested; times in s, latencies in ms, motion in units of the dimensions.

    None stands where nothing could be measured.
    """
    seconds = Counter[str]()
    for span in trace.spans:
        seconds[span.state] += span.end_ns - span.begin_ns
    sent = np.isfinite(trace.commands).any(axis=1) if trace.commands.size else np.empty(0, bool)
    active = seconds[ACTIVE] / NS_PER_S
    first_active = next((s.begin_ns for s in trace.spans if s.state == ACTIVE), None)
    starved = sum(s.end_ns - s.begin_ns for s in trace.spans if s.state == HOLDING) / NS_PER_S
    return {
        'length_s': round(trace.length_ns / NS_PER_S, 6),
        'seconds': {state.value: round(seconds[state.value] / NS_PER_S, 6) for state in State},
        'active_share': round(active / max(1e-9, trace.length_ns / NS_PER_S), 6),
        'first_active_s': None if first_active is None else first_active / NS_PER_S,
        'frames': {name: len(stamps) for name, stamps in trace.frames.items()},
        'inferences': len(trace.inferences),
        'inferences_failed': int(trace.inferences[:, 2].sum()),
        'plans': len(trace.plans), 'commands': int(sent.sum()), 'ticks': len(trace.ticks),
        'starved_s': round(starved, 6),
        'holds': {'total': sum(trace.holds.values()), 'by_cause': dict(sorted(
            trace.holds.items()))},
        'faults': sum(1 for s in trace.spans if s.state == State.FAULT.value),
        'deadline_misses': _deadline_misses(trace),
        'latency_ms': _latencies(trace), 'seam': _seams(trace), 'peaks': _peaks(trace),
        'clips': {'total': sum(trace.clips.values()), 'by_limit': dict(sorted(
            trace.clips.items()))},
        'drops': {'total': sum(n for reason, n in trace.counts.items() if 'dropped' in reason),
                  'by_reason': dict(sorted(trace.counts.items()))},
        'action_error': _error(trace),
        'transitions': [{'at_s': s.begin_ns / NS_PER_S, 'state': s.state, 'cause': s.cause}
                        for s in trace.spans],
        'injected': [reaction(trace, fault) for fault in trace.faults]}


def reaction(trace: Trace, fault: FaultSeen) -> dict[str, Any]:
    """What the watchdog did about a fault, after how long, and when driving went on."""
    before = _span_at(trace.spans, fault.begin_ns - 1)
    until_ns = fault.end_ns + round(REACTION_S * NS_PER_S)
    found = next((s for s in trace.spans if fault.begin_ns <= s.begin_ns < until_ns
                  and s.state != ACTIVE), None)
    if found is not None and found.begin_ns > fault.end_ns and before is None:
        found = None
    back = None if found is None else next(
        (s for s in trace.spans if s.begin_ns > found.begin_ns and s.state == ACTIVE), None)
    return {
        'fault': fault.fault, 'kind': fault.kind, 'expects': fault.expects,
        'at_s': fault.begin_ns / NS_PER_S, 'until_s': fault.end_ns / NS_PER_S,
        'before': before.state if before is not None else 'not running yet',
        'reaction': None if found is None else found.state,
        'cause': None if found is None else found.cause,
        'after_s': None if found is None else (found.begin_ns - fault.begin_ns) / NS_PER_S,
        'active_again_s': None if back is None else (back.begin_ns - fault.end_ns) / NS_PER_S,
        'counted': dict(sorted(fault.counted.items()))}


def flat(values: Mapping[str, Any], above: str = '') -> dict[str, Any]:
    """Nested figures by dotted name; lists are left out."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f'{above}.{key}' if above else key
        if isinstance(value, Mapping):
            found |= flat(value, name)
        elif not isinstance(value, list | tuple):
            found[name] = value
    return found


def spread(values: Floats, digits: int = 4) -> dict[str, Any]:
    """Percentiles and maximum; None where there are no values."""
    names = (*PERCENTILES, 'max')
    if not len(values):
        return {'count': 0, **dict.fromkeys(names)}
    found = [*np.percentile(values, list(PERCENTILES.values())), values.max()]
    return {'count': len(values)} | {
        name: round(float(v), digits) for name, v in zip(names, found, strict=True)}


def stage_times_ms(trace: Trace) -> dict[str, Floats]:
    """Milliseconds of each plan in each stage, and from capture to first command, by name."""
    stamp, received, started, arrived, _, _, command = trace.plans.T
    played = command > 0
    ms = 1e6
    return {'receive': (received - stamp) / ms, 'queue': (started - received) / ms,
            'infer': (arrived - started) / ms, 'tick_wait': (command - arrived)[played] / ms,
            'first_command': (command - stamp)[played] / ms}


def _latencies(trace: Trace) -> dict[str, Any]:
    return {stage: spread(values) for stage, values in stage_times_ms(trace).items()}


def _deadline_misses(trace: Trace) -> int:
    limit = trace.about['watchdog_ns'].get(Layer.INFERENCE_DEADLINE.value)
    if limit is None or not len(trace.plans):
        return 0
    return int((trace.plans[:, 3] - trace.plans[:, 0] > limit).sum())


def _seams(trace: Trace) -> dict[str, Any]:
    found = {}
    for i, name in enumerate(trace.names):
        column = trace.seams[:, i] if len(trace.seams) else np.empty(0)
        found[name] = spread(column[np.isfinite(column)], 6)
    return found


def _peaks(trace: Trace) -> dict[str, Any]:
    """Largest velocity, acceleration and jerk commanded, per dimension but the gripper's."""
    period_s = trace.about['control_period_ns'] / NS_PER_S
    velocities = trace.velocities.astype(np.float64)
    found: dict[str, Any] = {}
    for i, dimension in enumerate(trace.about['dimensions']):
        if dimension['kind'] == 'gripper':
            continue
        rates, column = {}, velocities[:, i] if len(velocities) else np.empty(0)
        for name in ('velocity', 'acceleration', 'jerk'):
            known = np.abs(column[np.isfinite(column)])
            rates[name] = round(float(known.max()), 6) if len(known) else None
            column = np.diff(column) / period_s
        found[dimension['name']] = rates
    return found


def _error(trace: Trace) -> dict[str, Any] | None:
    error = trace.error
    if error is None:
        return None

    def against(other: Mapping[str, float]) -> float | None:
        shares = [error.policy[n] / v for n, v in other.items() if v > 0]
        return round(float(np.mean(shares)), 4) if shares else None

    def rounded(values: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f'{value:.6g}') for name, value in values.items()}

    return {'compared': error.compared, 'policy': rounded(error.policy),
            'first_step': rounded(error.first_step), 'hold': rounded(error.hold),
            'mean': rounded(error.mean), 'missing': list(error.missing),
            'of_hold': against(error.hold), 'of_mean': against(error.mean)}


def _span_at(spans: tuple[Span, ...], time_ns: int) -> Span | None:
    return next((s for s in spans if s.begin_ns <= time_ns < s.end_ns), None)
