"""Joins what the nodes say on the topic `latency` into one record per observation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from vla_ros.tools.measure import NS_PER_MS

# One stage ends where the next one begins; 'stamp' is the capture.
MOMENTS = ('stamp', 'received', 'image_published', 'image_received', 'free', 'started',
           'preprocessed', 'inferred', 'taken', 'merged', 'plan_published', 'plan_received',
           'command')
STAGES = {
    'camera to camera_node': ('stamp', 'received'),
    'decode, resize, publish': ('received', 'image_published'),
    'camera_node to inference_node': ('image_published', 'image_received'),
    'engine busy with an earlier one': ('image_received', 'free'),
    'queue': ('free', 'started'),
    'preprocess': ('started', 'preprocessed'),
    'engine': ('preprocessed', 'inferred'),
    'hand-over': ('inferred', 'taken'),
    'merge': ('taken', 'merged'),
    'publish plan': ('merged', 'plan_published'),
    'inference_node to action_publisher': ('plan_published', 'plan_received'),
    'tick_wait': ('plan_received', 'command'),
}
NOT_OVERHEAD = ('engine busy with an earlier one', 'engine', 'tick_wait')
Record = dict[str, int]


class LatencyJoin:
    """Collects the moments of observations by their stamp, in nanoseconds of ROS time."""

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}

    def add(self, values: Mapping[str, str]) -> None:
        """Take the values of one message."""
        moments = {name: int(text) for name, text in values.items()}
        self._records.setdefault(moments['stamp'], {}).update(moments)

    def seen(self, moment: str) -> set[int]:
        """Stamps of the observations that came this far."""
        return {stamp for stamp, record in self._records.items() if moment in record}

    def complete(self, begin_ns: int, end_ns: int) -> list[Record]:
        """Records with every moment, captured in [begin, end), in the order of capture."""
        free_ns = 0
        found = []
        for stamp in sorted(self._records):
            record = self._records[stamp]
            if 'started' not in record:
                continue
            record['free'] = min(max(free_ns, record['image_received']), record['started'])
            free_ns = record['inferred']
            if begin_ns <= stamp < end_ns and all(moment in record for moment in MOMENTS):
                found.append(record)
        return found


def stage_ms(records: Iterable[Record], stage: str) -> NDArray[np.float64]:
    """What a stage took in each record, in milliseconds."""
    begin, end = STAGES[stage]
    return np.array([record[end] - record[begin] for record in records]) / NS_PER_MS


def overhead_ms(records: Iterable[Record]) -> NDArray[np.float64]:
    """All but the engine, the wait for it while it is busy, and the wait for the next tick."""
    records = list(records)
    stages = [stage_ms(records, stage) for stage in STAGES if stage not in NOT_OVERHEAD]
    return np.sum(stages, axis=0)
