"""The whole runtime in one process, by discrete events: no clock, no thread, the same core objects.

The same events give the same commands, bit for bit. Events are ordered by time, topic and
sequence; an inference takes the time that `delay` says, however long it really took.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from vla_ros.core.control_config import Tick
from vla_ros.core.control_loop import ControlLoop
from vla_ros.core.executor_state import Request
from vla_ros.core.inference_loop import InferenceLoop, Timing, result_of
from vla_ros.core.types import (
    NS_PER_S,
    Frame,
    InferenceStatus,
    Observation,
    Plan,
    Result,
    StateSample,
)

STATUS_NS = NS_PER_S // 10


@dataclass(frozen=True)
class Instruction:
    """A sentence arrives."""

    text: str


@dataclass(frozen=True)
class EStop:
    """The e-stop topic speaks."""

    pressed: bool


@dataclass(frozen=True)
class Enable:
    """The service action_publisher/enable is called."""

    on: bool = True


@dataclass(frozen=True)
class Reset:
    """The service action_publisher/reset is called."""


@dataclass(frozen=True)
class ClockJump:
    """ROS time jumps; stamps made from now on jump along, as they do on one host."""

    by_ns: int


@dataclass(frozen=True)
class InferenceGone:
    """The inference process dies."""


@dataclass(frozen=True)
class OtherPublisher:
    """Somebody else is found to publish on a command topic; `cause` says who, in one line."""

    cause: str


Payload = (Frame | StateSample | Instruction | EStop | Enable | Reset | ClockJump | InferenceGone
           | OtherPublisher)


@dataclass(frozen=True)
class Event:
    """Something that arrives at `time_ns`. A frame's or sample's receive time is filled in."""

    time_ns: int
    topic: str
    payload: Payload


@dataclass(frozen=True)
class Output:
    """Something that the runtime gives out. `time_ns` counts as events do, without clock jumps."""

    time_ns: int
    payload: Tick | Plan | InferenceStatus


class Runtime:
    """Wires an inference loop and a control loop; `run` once, or `begin` once and go on from there.

    `begin`, `advance` and `deliver` are for who makes events out of what is given out: a robot that
    moves by the commands. What they yield must be taken to its end before the next call.

    `infer` is the engine: an observation in, a `Result` out, or an exception. `delay` is asked
    before it, and gives the nanoseconds that the inference takes; None where it never ends, and
    then `infer` is not called. `forget` is called before both for the first inference of an epoch.
    `answers` keeps what the services said, in order.
    """

    def __init__(self, inference: InferenceLoop, control: ControlLoop,
                 infer: Callable[[Observation], Result],
                 delay: Callable[[Request], int | None],
                 forget: Callable[[], None] = lambda: None) -> None:
        self._inference = inference
        self._control = control
        self._infer = infer
        self._delay = delay
        self._forget = forget
        self._offset_ns = 0       # of ROS time, after clock jumps
        self._time_ns = 0
        self._alive = True
        self._due: list[tuple[int, str, int, Callable[[], None]]] = []
        self._sequence = 0
        self._outputs: list[Output] = []
        self.answers: list[str] = []

    def run(self, events: Iterable[Event], start_ns: int, end_ns: int) -> Iterator[Output]:
        """Everything that happens from `start_ns` to before `end_ns`, in order of time.

        `events` must come in order of time; equal times are ordered by topic, then as they come.
        """
        self.begin(start_ns)
        for event in _ordered(events):
            if event.time_ns >= end_ns:
                break
            yield from self.deliver(event)
        yield from self.advance(end_ns)

    def begin(self, start_ns: int) -> None:
        """Let control periods and statuses come from this time on."""
        period_ns = self._control.config.period_ns
        # Ticks lie at multiples of the control period, as they do in simulated time.
        self._at(-(-start_ns // period_ns) * period_ns, 'tick', self._tick)
        self._at(start_ns, 'inference_status', self._status)

    def advance(self, until_ns: int) -> Iterator[Output]:
        """Everything that is due before this time."""
        yield from self._until(until_ns, '')

    def deliver(self, event: Event) -> Iterator[Output]:
        """Everything that is due before this event, at its time under an earlier topic, and by it.

        Raises ValueError where the event lies before what has been done already.
        """
        if event.time_ns < self._time_ns:
            raise _out_of_order(event, self._time_ns)
        yield from self._until(event.time_ns, event.topic)
        self._time_ns = event.time_ns
        self._deliver(event.payload)
        yield from self._flush()

    # --- the queue -----------------------------------------------------------------------------

    def _at(self, time_ns: int, topic: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (time_ns, topic, self._sequence, action))

    def _until(self, time_ns: int, topic: str) -> Iterator[Output]:
        """Do all that is due before this time, and at this time under an earlier topic."""
        while self._due and self._due[0][:2] < (time_ns, topic):
            self._time_ns, _, _, action = heapq.heappop(self._due)
            action()
            yield from self._flush()

    def _flush(self) -> Iterator[Output]:
        outputs, self._outputs = self._outputs, []
        yield from outputs

    def _give(self, payload: Tick | Plan | InferenceStatus) -> None:
        self._outputs.append(Output(self._time_ns, payload))

    @property
    def time_ns(self) -> int:
        """The time of events, which clock jumps do not move."""
        return self._time_ns

    @property
    def now_ns(self) -> int:
        """ROS time, which clock jumps move."""
        return self._time_ns + self._offset_ns

    # --- what happens --------------------------------------------------------------------------

    def _deliver(self, payload: Payload) -> None:
        inference, control, now_ns = self._inference, self._control, self.now_ns
        if isinstance(payload, Frame | StateSample):
            payload = replace(payload, received_ns=now_ns,
                              stamp_ns=payload.stamp_ns + self._offset_ns)
        if isinstance(payload, StateSample):
            control.on_state(payload)
        elif isinstance(payload, EStop):
            control.on_estop(payload.pressed, now_ns)
        elif isinstance(payload, Enable):
            if payload.on:
                self.answers.append(control.enable(now_ns))
            else:
                control.disable()
        elif isinstance(payload, Reset):
            self.answers.append(control.reset(now_ns))
        elif isinstance(payload, ClockJump):
            self._offset_ns += payload.by_ns
        elif isinstance(payload, InferenceGone):
            self._alive = False
        elif isinstance(payload, OtherPublisher):
            control.fault(payload.cause)
        if not self._alive:
            return
        if isinstance(payload, StateSample):
            inference.on_state(payload)
        elif isinstance(payload, Frame):
            inference.on_frame(payload, now_ns)
            self._start()
        elif isinstance(payload, Instruction):
            inference.on_instruction(payload.text, now_ns)
            self._start()
            self._report()

    def _tick(self) -> None:
        period_ns = self._control.config.period_ns
        tick = self._control.tick(self.now_ns, period_ns)
        self._give(tick)
        if tick.reset_stamp_ns is not None and self._alive:
            self._inference.on_reset(tick.reset_stamp_ns)
            self._report()
        self._at(self._time_ns + period_ns, 'tick', self._tick)

    def _status(self) -> None:
        if self._alive:
            self._start()
            self._report()
            self._at(self._time_ns + STATUS_NS, 'inference_status', self._status)

    def _report(self) -> None:
        status = self._inference.status(self.now_ns)
        self._give(status)
        self._control.on_status(status)

    def _start(self) -> None:
        """Start an inference if it is time for one; its result is known now and arrives later."""
        request = self._inference.poll(self.now_ns)
        if request is None:
            return
        if request.reset:
            self._forget()
        delay_ns = self._delay(request)
        if delay_ns is None:
            return
        try:
            result, cause = result_of(self._infer(request.observation)), ''
        except Exception as error:  # an engine may raise anything
            result, cause = None, ' '.join(f'{type(error).__name__}: {error}'.split())
        ended = (lambda: self._failed(request, cause)) if cause else (
            lambda: self._inferred(request, result))
        self._at(self._time_ns + delay_ns, 'action_chunk', ended)

    def _failed(self, request: Request, cause: str) -> None:
        if self._alive:
            self._inference.on_failure(request, cause)
            self._report()

    def _inferred(self, request: Request, result: Result) -> None:
        if not self._alive:
            return
        now_ns = self.now_ns
        timing = Timing(request.started_ns, now_ns)
        plan = self._inference.on_result(request, result, timing, now_ns)
        if plan is not None:
            self._give(plan)
            self._control.on_plan(plan, now_ns)
        elif self._inference.executor.failure:
            self._report()
        self._start()


def _ordered(events: Iterable[Event]) -> Iterator[Event]:
    """Events with equal times in order of topic. Raises ValueError where time goes back."""
    group: list[Event] = []
    for event in events:
        if group and event.time_ns < group[0].time_ns:
            raise _out_of_order(event, group[0].time_ns)
        if group and event.time_ns > group[0].time_ns:
            yield from sorted(group, key=lambda e: e.topic)
            group = []
        group.append(event)
    yield from sorted(group, key=lambda e: e.topic)


def _out_of_order(event: Event, before_ns: int) -> ValueError:
    return ValueError(f'{event.topic}: event at {event.time_ns} ns after one at {before_ns} ns; '
                      'events must come in order of time')
