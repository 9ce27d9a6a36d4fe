"""Lets scheduled faults befall a run: its events on their way in, its engine as it answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from typing import Any

import numpy as np

from vla_ros.core.runtime import (
    ClockJump,
    Enable,
    EStop,
    Event,
    InferenceGone,
    Instruction,
    OtherPublisher,
    Payload,
    Reset,
)
from vla_ros.core.types import NS_PER_S, Frame, StateSample
from vla_ros.replay.faults import Fault, Where
from vla_ros.ros.image_codec import resize

OTHER = 'another publisher commands {topic}: /other_node; stop one of the two'


class FaultInjection:
    """The faults of one run. `start_ns`: time of second 0; `topic`: a command topic by name.

    Times are those of events, which clock jumps do not move. The same seed loses the same frames.
    """

    def __init__(self, faults: Sequence[Fault], start_ns: int, topic: str, seed: int = 0) -> None:
        self._start_ns = start_ns
        self._topic = topic
        self._engine = [f for f in faults if f.kind.where is Where.ENGINE
                        and f.kind.name != 'inference_gone']
        self._frames = [(f, np.random.default_rng([seed, i])) for i, f in enumerate(faults)
                        if f.kind.where is Where.CAMERA]
        self._states = [f for f in faults if f.kind.where is Where.STATE]
        self._scheduled = sorted(
            (event for f in faults for event in self._moments(f)), key=lambda e: e.time_ns)
        self._last: dict[str, Frame] = {}

    # --- what comes in -------------------------------------------------------------------------

    def befallen(self, events: Iterable[Event]) -> Iterator[Event]:
        """The events with the faults in them, in order of time."""
        yield from merge(self._changed(events), self._scheduled, key=lambda event: event.time_ns)

    def _changed(self, events: Iterable[Event]) -> Iterator[Event]:
        for event in events:
            payload: Payload | None = event.payload
            if isinstance(payload, Frame):
                payload = self._seen(payload, self._second(event.time_ns))
            elif isinstance(payload, StateSample):
                payload = self._measured(payload, self._second(event.time_ns))
            if payload is event.payload:
                yield event
            elif payload is not None:
                yield replace(event, payload=payload)

    def _seen(self, frame: Frame, second: float) -> Frame | None:
        for fault, random in self._frames:
            if not fault.active(second) or fault.text('camera') not in ('*', frame.camera):
                continue
            name = fault.kind.name
            if name == 'camera_stop' or (
                    name == 'camera_drop' and random.random() < fault.number('rate')):
                return None
            if name == 'camera_freeze':
                frame = replace(frame, pixels=self._last.get(frame.camera, frame).pixels)
            elif name in ('camera_back_dated', 'camera_future'):
                by_ns = round(fault.number('by') * NS_PER_S)
                back = name == 'camera_back_dated'
                frame = replace(frame, stamp_ns=frame.stamp_ns + (-by_ns if back else by_ns))
            elif name == 'camera_resolution':
                width, height = int(fault.number('width')), int(fault.number('height'))
                frame = replace(frame, pixels=resize(frame.pixels, width, height, 'squash'))
        self._last[frame.camera] = frame
        return frame

    def _measured(self, sample: StateSample, second: float) -> StateSample | None:
        for fault in self._states:
            if not fault.active(second):
                continue
            name = fault.kind.name
            if name == 'state_stop':
                return None
            if name == 'state_missing':
                kept = [i for i, n in enumerate(sample.names) if n != fault.text('joint')]
                sample = replace(sample, names=tuple(sample.names[i] for i in kept),
                                 positions=sample.positions[kept])
            elif name == 'state_reordered':
                sample = replace(sample, names=sample.names[::-1],
                                 positions=sample.positions[::-1].copy())
            elif name == 'state_nan':
                sample = replace(sample, positions=np.full_like(sample.positions, np.nan))
        return sample

    def _moments(self, fault: Fault) -> Iterator[Event]:
        at_ns = self._time_ns(fault.at_s)
        if fault.kind.name == 'estop':
            yield Event(at_ns, 'estop', EStop(True))
            if fault.for_s is not None:
                yield Event(self._time_ns(fault.at_s + fault.for_s), 'estop', EStop(False))
            return
        moment = {
            'clock_jump': lambda: ClockJump(round(fault.number('by') * NS_PER_S)),
            'instruction': lambda: Instruction(fault.text('text')),
            'second_publisher': lambda: OtherPublisher(OTHER.format(topic=self._topic)),
            'inference_gone': InferenceGone, 'reset': Reset, 'enable': Enable,
            'disable': lambda: Enable(False)}.get(fault.kind.name)
        if moment is not None:
            # Behind what comes at the same time, as in `Runtime`: topics are in order of name.
            yield Event(at_ns, 'service', moment())

    # --- the engine ----------------------------------------------------------------------------

    def delay_ns(self, delay_ns: int | None, time_ns: int) -> int | None:
        """What an inference that starts now takes, given what it would take."""
        second = self._second(time_ns)
        for fault in self._engine:
            if delay_ns is None or not fault.active(second):
                continue
            if fault.kind.name == 'engine_stall':
                delay_ns = None if fault.for_s is None else max(
                    delay_ns, self._time_ns(fault.at_s + fault.for_s) - time_ns)
            elif fault.kind.name == 'engine_slow':
                delay_ns += round(fault.number('by') * NS_PER_S)
        return delay_ns

    def answered(self, actions: Any, time_ns: int) -> Any:
        """What the engine gives instead of these actions; raises where it crashes."""
        second = self._second(time_ns)
        for fault in self._engine:
            if not fault.active(second):
                continue
            if fault.kind.name == 'engine_crash':
                raise RuntimeError('injected by the fault engine_crash')
            if fault.kind.name == 'engine_nan':
                actions = np.array(actions, dtype=np.float64)
                actions.flat[0] = np.nan
            elif fault.kind.name == 'engine_shape':
                actions = np.asarray(actions)[:, :-1]
        return actions

    def _second(self, time_ns: int) -> float:
        return (time_ns - self._start_ns) / NS_PER_S

    def _time_ns(self, second: float) -> int:
        return self._start_ns + round(second * NS_PER_S)
