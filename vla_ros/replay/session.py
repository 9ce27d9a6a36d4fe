"""One run of the whole runtime over a recording, in discrete events, with faults in it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vla_ros.core.executor_state import Request
from vla_ros.core.runtime import Event, Instruction, Runtime
from vla_ros.core.types import NS_PER_S, Answer, Observation, Result
from vla_ros.engines.contract import Engine
from vla_ros.profiles.binding import bind
from vla_ros.profiles.loops import control_loop, inference_loop
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.replay.bag_events import BagEvents, BagTopics, RecordedAction
from vla_ros.replay.bags import Bag, RawMessage
from vla_ros.replay.delays import Delays
from vla_ros.replay.fault_injection import FaultInjection
from vla_ros.replay.faults import Fault
from vla_ros.replay.hearer import Hearer

AFTER_NS = 2 * NS_PER_S  # that a run goes on behind the last message


@dataclass(frozen=True)
class Setup:
    """Who drives what. `engine` has been loaded."""

    robot: RobotProfile
    policy: PolicyProfile
    engine: Engine


@dataclass(frozen=True)
class Settings:
    """How a recording is replayed.

    `instruction`: the sentence where the recording has none; `start_s` and `seconds`: the part of
    it that is replayed, None to its end; `enable`: enable as soon as that is allowed.
    """

    delays: Delays
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    instruction: str = ''
    start_s: float = 0.0
    seconds: float | None = None
    enable: bool = True


class Session:
    """One run, once. `took_s`: how long each inference really took on this machine."""

    def __init__(self, bag: Bag, topics: BagTopics, setup: Setup, settings: Settings,
                 hearers: Sequence[Hearer]) -> None:
        self.setup, self.settings, self.topics, self.bag = setup, settings, topics, bag
        self.binding = bind(setup.engine.contract, setup.robot)
        self.inference = inference_loop(setup.robot, setup.policy, self.binding)
        self.inference.lag = setup.engine.lag
        self.control = control_loop(setup.robot, setup.policy, self.binding,
                                    enable_on_start=settings.enable)
        self.control.estop_present = bool(topics.estop)
        self.runtime = Runtime(self.inference, self.control, self._infer, self._delay,
                               setup.engine.reset)
        self.start_ns = bag.start_ns + round(settings.start_s * NS_PER_S)
        self.end_ns = bag.end_ns + AFTER_NS
        if settings.seconds is not None:
            self.end_ns = min(self.end_ns, self.start_ns + round(settings.seconds * NS_PER_S))
        self.faults = FaultInjection(settings.faults, self.start_ns, setup.robot.sinks[0].topic,
                                     settings.seed)
        self.took_s: list[float] = []
        self._hearers = hearers
        self._draw = settings.delays.source()
        self._result: Result | Exception = None
        self._check()
        self.events = BagEvents(
            bag, setup.robot, setup.policy, topics.state, topics.instruction, topics.images,
            topics.action, topics.estop, self._on_action, self._on_raw)

    @property
    def offset_ns(self) -> int:
        """How far clock jumps have moved ROS time against that of events."""
        return self.runtime.now_ns - self.runtime.time_ns

    def run(self) -> None:
        """Run from the beginning to the end. Raises ValueError where the bag cannot be read."""
        for hearer in self._hearers:
            hearer.on_begin(self)
        outputs = self.runtime.run(self._heard(self.faults.befallen(self._recorded())),
                                   self.start_ns, self.end_ns)
        for output in outputs:
            for hearer in self._hearers:
                hearer.on_output(output)
        for hearer in self._hearers:
            hearer.on_end(self.end_ns)

    # --- what comes in -------------------------------------------------------------------------

    def _check(self) -> None:
        bag, settings = self.bag, self.settings
        length_s = (bag.end_ns - bag.start_ns) / NS_PER_S
        if not 0.0 <= settings.start_s <= length_s:
            raise ValueError(f'replay: start {settings.start_s:g} s: bag {bag.path} has '
                             f'{length_s:.1f} s; choose an earlier start')
        if not self.topics.instruction and not settings.instruction:
            raise ValueError(f"bag {bag.path}: no topic 'instruction'; it has "
                             f'{", ".join(bag.topics)}; give the sentence with --instruction, or '
                             'the topic with --remap')
        if settings.delays.measured:
            return
        refusal = self.inference.on_warm_up([settings.delays.source().next_ns()])
        if refusal:
            raise ValueError(f'replay: {refusal}; give a shorter --delay or a policy with a longer '
                             'horizon')

    def _recorded(self) -> Iterator[Event]:
        if self.settings.instruction and not self.topics.instruction:
            yield Event(self.start_ns, 'instruction', Instruction(self.settings.instruction))
        said = None
        for event in self.events:
            if event.time_ns >= self.start_ns:
                if said is not None:
                    yield Event(self.start_ns, 'instruction', said)
                    said = None
                yield event
            elif isinstance(event.payload, Instruction):
                said = event.payload  # before the part that is replayed, and still in force

    def _heard(self, events: Iterator[Event]) -> Iterator[Event]:
        for event in events:
            for hearer in self._hearers:
                hearer.on_event(event)
            yield event

    def _on_action(self, action: RecordedAction) -> None:
        for hearer in self._hearers:
            hearer.on_action(action)

    def _on_raw(self, raw: RawMessage) -> None:
        if self.start_ns <= raw.time_ns < self.end_ns:
            for hearer in self._hearers:
                hearer.on_raw(raw)

    # --- the engine ----------------------------------------------------------------------------

    def _delay(self, request: Request) -> int | None:
        """The inference is run here, so that its time is known where that is what counts."""
        now_ns = self.runtime.time_ns
        begin = time.perf_counter()
        try:
            result = self._answer(request.observation, now_ns)
        except Exception as error:  # an engine may raise anything
            result = error
        took = time.perf_counter() - begin
        self._result = result
        self.took_s.append(took)
        delay_ns = round(took * NS_PER_S) if self.settings.delays.measured else (
            self._draw.next_ns())
        ends_ns = self.faults.delay_ns(delay_ns, now_ns)
        for hearer in self._hearers:
            hearer.on_inference(now_ns, None if ends_ns is None else now_ns + ends_ns,
                                isinstance(result, Exception))
        return ends_ns

    def _infer(self, observation: Observation) -> Result:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def _answer(self, observation: Observation, now_ns: int) -> Result:
        engine = self.setup.engine
        result = engine.infer(engine.preprocess(observation))
        if isinstance(result, Answer):
            result = Answer(result.observation, self.faults.answered(result.actions, now_ns))
            stamp_ns, actions = result.observation.stamp_ns, result.actions
        elif result is not None:
            result = self.faults.answered(result, now_ns)
            stamp_ns, actions = observation.stamp_ns, result
        else:
            return None
        if not self.inference.malformed(np.asarray(actions)):
            for hearer in self._hearers:
                hearer.on_chunk(stamp_ns - self.offset_ns, np.asarray(actions, np.float64))
        return result
