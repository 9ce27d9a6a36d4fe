"""Writes a run as the recording that a live graph would have left: same topics, same types."""

from __future__ import annotations

from vla_ros.core.control_config import Tick
from vla_ros.core.diagnostic_values import (
    LEVELS,
    OK,
    OncePerSecond,
    control_line,
    control_values,
    inference_level,
    inference_values,
    latency_values,
)
from vla_ros.core.latency import LatencyAccount
from vla_ros.core.runtime import Event, Instruction, Output
from vla_ros.core.types import Frame, InferenceStatus, Plan
from vla_ros.profiles.sink import SinkNumbers
from vla_ros.replay.bags import RawMessage
from vla_ros.replay.hearer import Hearer
from vla_ros.replay.messages import SINK_TYPES, Messages
from vla_ros.replay.out_bag import OutBag
from vla_ros.replay.session import Session

LATCHED = ('/reset_stamp', '/instruction')
CONTROL, INFERENCE = '/action_publisher', '/inference_node'


class LiveTopics(Hearer):
    """Writes to `bag`: the inputs as they were recorded, under the graph's names, and all outputs.

    `observations`: the images at the policy's size, too, which are large. Inputs are those of the
    recording, without the faults; the instruction is the one that arrived.
    """

    def __init__(self, bag: OutBag, messages: Messages, observations: bool = False) -> None:
        self._bag, self._messages, self._observations = bag, messages, observations
        self._control: OncePerSecond[int] = OncePerSecond()
        self._inference: OncePerSecond[int] = OncePerSecond()
        self._latency = LatencyAccount(('plan_age', 'tick_wait', 'first_command'))
        self._received_ns = 0
        self._ticks = 0

    def on_begin(self, session: Session) -> None:
        self._session = session
        robot, topics = session.setup.robot, session.topics
        self._sinks = [(sink, SinkNumbers(sink, session.binding.planned)) for sink in robot.sinks
                       if sink.type in SINK_TYPES]
        self._names = session.binding.planned.names
        self._inputs = {topics.state: 'joint_states', topics.action: 'recorded_action',
                        topics.estop: 'estop'}
        for name, topic in topics.images.items():
            self._inputs[topic] = robot.cameras[name].topic or f'observation/{name}/image'
        for sink, _ in self._sinks:
            self._bag.declare(sink.topic, SINK_TYPES[sink.type])

    def on_raw(self, raw: RawMessage) -> None:
        topic = self._inputs.get(raw.topic)
        if topic:
            kind = self._session.bag.topics[raw.topic].type
            self._bag.write_raw(topic, raw.time_ns, kind, raw.data)

    def on_event(self, event: Event) -> None:
        payload = event.payload
        if isinstance(payload, Instruction):
            self._bag.write('instruction', event.time_ns, self._messages.string(payload.text))
        elif self._observations and isinstance(payload, Frame):
            self._bag.write(event.topic, event.time_ns, self._messages.image(
                payload.stamp_ns, payload.pixels))

    def on_output(self, output: Output) -> None:
        time_ns, payload = output.time_ns, output.payload
        if isinstance(payload, Tick):
            self._tick(time_ns, payload)
        elif isinstance(payload, Plan):
            self._received_ns = time_ns + self._session.offset_ns
            self._latency.add(plan_age=self._received_ns - payload.stamp_ns)
            self._bag.write('action_chunk', time_ns, self._messages.plan(
                payload, self._names, self._session.setup.robot.frame_id))
        else:
            self._status(time_ns, payload)

    def _tick(self, time_ns: int, tick: Tick) -> None:
        messages, session = self._messages, self._session
        now_ns = time_ns + session.offset_ns
        self._ticks += 1
        if tick.command is not None:
            for sink, numbers in self._sinks:
                self._bag.write(sink.topic, time_ns, messages.command(
                    sink, numbers, tick.command, session.setup.robot.control_period_ns))
        if tick.reset_stamp_ns is not None:
            self._bag.write('reset_stamp', time_ns, messages.time(tick.reset_stamp_ns))
        if tick.first_of_plan is not None:
            self._latency.add(tick_wait=now_ns - self._received_ns,
                              first_command=now_ns - tick.first_of_plan.stamp_ns)
        level = LEVELS.get(tick.state, OK)
        if self._control.due(level, tick.state.value, now_ns):
            values = control_values(session.control) | {
                'ticks': self._ticks, 'missed ticks': 0}
            self._diagnostics(time_ns, level, CONTROL, control_line(tick.state, tick.cause),
                              values | latency_values(self._latency.summaries()))

    def _status(self, time_ns: int, status: InferenceStatus) -> None:
        self._bag.write('inference_status', time_ns,
                        self._messages.inference_status(status, INFERENCE))
        level = inference_level(status)
        if self._inference.due(level, status.reaction, time_ns + self._session.offset_ns):
            self._diagnostics(time_ns, level, INFERENCE, status.cause or 'inferring',
                              inference_values(self._session.inference, self._names))

    def _diagnostics(self, time_ns: int, level: int, name: str, line: str,
                     values: dict[str, object]) -> None:
        status = self._messages.status(level, name, line, values, self._session.setup.robot.name)
        self._bag.write('/diagnostics', time_ns, self._messages.diagnostics(
            time_ns + self._session.offset_ns, status))
