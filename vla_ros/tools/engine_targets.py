"""The figures of OpenVLA-7B on a GPU, each beside what it is meant to be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vla_ros.tools.measure import Target

GRAPH_MS, DECODE_MS, PREFILL_MS, VISION_MS, QUANTIZED_MS = 32.0, 3.7, 7.5, 3.0, 20.0
PIPELINED_PER_S = 90.0
TAIL = 1.15              # p99.9 over p50
SINGLE, PIPELINED = 5.0, 15.0  # times faster than transformers
GRAPHS = ('graph', 'actionflow')  # answer in the same time whatever they see
QUANTIZED = ('fp8', 'int8-weight', 'int4-weight')


def targets(baseline: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]]) -> list[Target]:
    """Targets of the rows that were measured; of a quantized precision, the fastest counts."""
    rows = {name: row for name, row in rows.items() if 'error' not in row}
    found: list[Target] = []
    transformers_ms = _number(baseline.get('action_ms', {}).get('p50'))
    graph, flow = rows.get('graph_bf16'), rows.get('actionflow_bf16')
    if graph is not None:
        p50 = graph['action_ms']['p50']
        found += [Target('graph bf16, action p50', p50, GRAPH_MS, 'ms'),
                  Target('graph bf16, decode', _number(graph['decode_ms_per_token']), DECODE_MS,
                         'ms/token'),
                  Target('graph bf16, prefill', _number(graph['prefill_ms']), PREFILL_MS, 'ms'),
                  Target('graph bf16, vision', _number(graph['vision_ms']), VISION_MS, 'ms'),
                  Target('graph bf16, times faster than transformers', transformers_ms / p50,
                         SINGLE, 'x', least=True)]
    if flow is not None:
        found += [Target('actionflow bf16, actions', flow['actions_per_s'], PIPELINED_PER_S, '/s',
                         least=True),
                  Target('actionflow bf16, times faster than transformers',
                         transformers_ms * flow['actions_per_s'] / 1e3, PIPELINED, 'x',
                         least=True)]
    quantized = [row for row in rows.values() if row['backend'] == 'graph'
                 and row['precision'].partition('/')[0] in QUANTIZED]
    if quantized:
        best = min(quantized, key=lambda row: float(row['action_ms']['p50']))
        found.append(Target(f'graph {best["precision"]}, action p50', best['action_ms']['p50'],
                            QUANTIZED_MS, 'ms'))
    for row in rows.values():
        if row['backend'].partition('+')[0] in GRAPHS:
            name = f'{row["backend"]} {row["precision"]}'
            found += [Target(f'{name}, p99.9 over p50',
                             row['action_ms']['p999'] / row['action_ms']['p50'], TAIL),
                      Target(f'{name}, allocations after warm-up',
                             _number(row['allocations_after_warm_up']), 0)]
    return found


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
