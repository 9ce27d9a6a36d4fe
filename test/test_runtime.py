"""The discrete-event runtime itself: order, time, and a recording as its events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scenarios import ORIGIN_NS, Scenario

from vla_ros.core.control_config import State, Tick
from vla_ros.core.runtime import Event, Instruction, Output, Reset, Runtime
from vla_ros.core.types import NS_PER_S, Frame, InferenceStatus, Plan, StateSample
from vla_ros.profiles.binding import bind
from vla_ros.profiles.loops import control_loop, inference_loop
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.replay.bag_events import BagEvents
from vla_ros.replay.bags import Bag, RawMessage
from vla_ros.ros.image_codec import decode_compressed, resize

BAG = Path(__file__).parents[1] / 'data' / 'bridge_v2' / 'bridge_3'
ROBOT, POLICY = load_robot('widowx_bridge'), load_policy('scripted_bridge')


def runtime(**changes: Any) -> Runtime:
    binding = bind(POLICY, ROBOT)
    given: dict[str, Any] = {
        'inference': inference_loop(ROBOT, POLICY, binding),
        'control': control_loop(ROBOT, POLICY, binding),
        'infer': lambda observation: np.zeros((POLICY.horizon, POLICY.action.size)),
        'delay': lambda request: 20_000_000, **changes}
    return Runtime(**given)


def frame(stamp_ns: int) -> Frame:
    return Frame('primary', stamp_ns, stamp_ns, np.zeros((224, 224, 3), np.uint8))


def state(stamp_ns: int) -> StateSample:
    return StateSample(stamp_ns, stamp_ns, ROBOT.state_names, np.zeros(len(ROBOT.state_names)))


def seen(time_ns: int) -> list[Event]:
    """An instruction, a state and a frame at one time."""
    return [Event(time_ns, 'instruction', Instruction('go')),
            Event(time_ns, 'joint_states', state(time_ns)),
            Event(time_ns, 'observation/primary/image', frame(time_ns))]


def of_kind(outputs: list[Output], kind: type) -> list[Output]:
    return [output for output in outputs if isinstance(output.payload, kind)]


def test_ticks_lie_at_multiples_of_the_control_period() -> None:
    outputs = list(runtime().run([], ORIGIN_NS + 7_000_000, ORIGIN_NS + NS_PER_S))
    ticks = of_kind(outputs, Tick)
    assert [o.time_ns for o in ticks] == [ORIGIN_NS + 20_000_000 * i for i in range(1, 50)]


def test_outputs_come_in_order_of_time_and_end_before_the_end() -> None:
    outputs = list(runtime().run(seen(ORIGIN_NS + 1), ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    times = [o.time_ns for o in outputs]
    assert times == sorted(times)
    assert times[-1] < ORIGIN_NS + NS_PER_S


def test_status_comes_ten_times_a_second() -> None:
    outputs = list(runtime().run([], ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    # and once more where the control loop begins its epoch
    assert len(of_kind(outputs, InferenceStatus)) == 11


def test_plan_arrives_after_the_delay_of_its_inference() -> None:
    outputs = list(runtime(delay=lambda request: 123_456_789).run(
        seen(ORIGIN_NS + 1), ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    (plan,) = of_kind(outputs, Plan)
    assert plan.time_ns == ORIGIN_NS + 1 + 123_456_789


def test_plan_that_arrives_at_a_tick_is_played_in_it() -> None:
    at_ns = ORIGIN_NS + 40_000_000
    binding = bind(POLICY, ROBOT)
    control = control_loop(ROBOT, POLICY, binding, enable_on_start=True)
    outputs = list(runtime(control=control, delay=lambda r: at_ns - ORIGIN_NS - 1).run(
        seen(ORIGIN_NS + 1), ORIGIN_NS, ORIGIN_NS + NS_PER_S // 10))
    active = [o for o in of_kind(outputs, Tick) if o.payload.state is State.ACTIVE]
    assert active[0].time_ns == at_ns


def test_delay_of_none_never_ends_and_is_never_inferred() -> None:
    calls: list[Any] = []
    outputs = list(runtime(delay=lambda request: None, infer=calls.append).run(
        seen(ORIGIN_NS + 1), ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    assert not calls
    assert not of_kind(outputs, Plan)


def test_engine_forgets_before_the_first_inference_of_an_epoch() -> None:
    calls: list[str] = []
    binding = bind(POLICY, ROBOT)

    def infer(observation: Any) -> Any:
        calls.append('infer')
        return np.zeros((POLICY.horizon, binding.spec.size))

    events = [e for i in range(1, 5) for e in seen(ORIGIN_NS + i * 200_000_000)]
    events.append(Event(ORIGIN_NS + 850_000_000, 'service', Reset()))
    events += [e for i in range(5, 8) for e in seen(ORIGIN_NS + i * 200_000_000)]
    list(runtime(infer=infer, forget=lambda: calls.append('forget')).run(
        events, ORIGIN_NS, ORIGIN_NS + 2 * NS_PER_S))
    assert calls == ['forget', *['infer'] * 4, 'forget', *['infer'] * 3]


def test_receive_time_is_the_time_of_the_event() -> None:
    events = seen(ORIGIN_NS + 5)
    events[2] = replace(events[2], payload=replace(frame(ORIGIN_NS + 1), received_ns=17))
    observed: list[Any] = []

    def infer(observation: Any) -> Any:
        observed.append(observation)
        return np.zeros((POLICY.horizon, POLICY.action.size))

    list(runtime(infer=infer).run(events, ORIGIN_NS, ORIGIN_NS + NS_PER_S // 10))
    assert observed[0].received_ns == ORIGIN_NS + 5
    assert observed[0].stamp_ns == ORIGIN_NS + 1


def test_events_out_of_order_are_refused_in_one_line() -> None:
    events = [*seen(ORIGIN_NS + 10), *seen(ORIGIN_NS + 5)]
    with pytest.raises(ValueError, match='events must come in order of time') as caught:
        list(runtime().run(events, ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    assert '\n' not in str(caught.value)
    assert str(ORIGIN_NS + 5) in str(caught.value)


def test_events_are_read_as_they_are_needed() -> None:
    taken: list[int] = []

    def endless() -> Iterator[Event]:
        time_ns = ORIGIN_NS
        while True:
            time_ns += 100_000_000
            taken.append(time_ns)
            yield Event(time_ns, 'joint_states', state(time_ns))

    outputs = runtime().run(endless(), ORIGIN_NS, ORIGIN_NS + 10 * NS_PER_S)
    next(o for o in outputs if o.time_ns >= ORIGIN_NS + NS_PER_S)
    assert len(taken) <= 12
    assert len(list(outputs)) > 400
    assert len(taken) <= 102


# --- by hand, as who closes a loop does it ------------------------------------------------------

def test_by_hand_is_the_same_as_run() -> None:
    events = [e for i in range(1, 8) for e in seen(ORIGIN_NS + i * 130_000_001)]
    whole = list(runtime().run(events, ORIGIN_NS, ORIGIN_NS + NS_PER_S))
    by_hand, steps = runtime(), []
    by_hand.begin(ORIGIN_NS)
    for event in events:
        steps += by_hand.advance(event.time_ns)
        steps += by_hand.deliver(event)
    steps += by_hand.advance(ORIGIN_NS + NS_PER_S)
    assert [(o.time_ns, type(o.payload)) for o in steps] == [
        (o.time_ns, type(o.payload)) for o in whole]
    for one, other in zip(of_kind(steps, Plan), of_kind(whole, Plan), strict=True):
        np.testing.assert_array_equal(one.payload.values, other.payload.values)


def test_advance_leaves_what_is_due_at_its_end() -> None:
    made = runtime()
    made.begin(ORIGIN_NS)
    early = of_kind(list(made.advance(ORIGIN_NS + 20_000_000)), Tick)
    assert [tick.time_ns for tick in early] == [ORIGIN_NS]
    (due,) = of_kind(list(made.advance(ORIGIN_NS + 20_000_001)), Tick)
    assert due.time_ns == ORIGIN_NS + 20_000_000


def test_delivered_state_counts_in_the_period_at_its_time() -> None:
    binding = bind(POLICY, ROBOT)
    control = control_loop(ROBOT, POLICY, binding)
    received: list[int] = []
    made = runtime(control=control)
    take, tick = control.on_state, control.tick
    control.on_state = lambda sample: received.append(0) or take(sample)  # type: ignore[method-assign]
    control.tick = lambda *a: received.append(1) or tick(*a)  # type: ignore[method-assign]
    made.begin(ORIGIN_NS)
    list(made.deliver(Event(ORIGIN_NS + 20_000_000, 'joint_states', state(ORIGIN_NS))))
    list(made.advance(ORIGIN_NS + 20_000_001))
    assert received == [1, 0, 1]


def test_event_from_before_what_has_been_done_is_refused() -> None:
    made = runtime()
    made.begin(ORIGIN_NS)
    list(made.advance(ORIGIN_NS + NS_PER_S))
    with pytest.raises(ValueError, match='events must come in order of time'):
        list(made.deliver(seen(ORIGIN_NS + NS_PER_S // 2)[0]))


def test_same_scenario_played_twice_is_the_same() -> None:
    first, second = (Scenario('so101').told('swing').enabled().play(4.0) for _ in range(2))
    np.testing.assert_array_equal(first.values(0.0, 4.0), second.values(0.0, 4.0))


# --- a recording as events ----------------------------------------------------------------------

def test_bag_events_are_what_the_nodes_would_have_received() -> None:
    with Bag(BAG) as bag:
        events = list(BagEvents(bag, ROBOT, POLICY))
        raw = list(bag.messages(['/camera/image_raw/compressed']))
    topics = [event.topic for event in events]
    assert {t: topics.count(t) for t in set(topics)} == {
        'observation/primary/image': 50, 'joint_states': 50, 'instruction': 5}
    times = [event.time_ns for event in events]
    assert times == sorted(times)
    frames = [event for event in events if isinstance(event.payload, Frame)]
    for event, (time_ns, _, message) in zip(frames, raw, strict=True):
        assert event.time_ns == event.payload.received_ns == time_ns
        assert event.time_ns - event.payload.stamp_ns == 12_000_000
        expected = resize(decode_compressed(message.data, message.format), 224, 224, 'squash')
        np.testing.assert_array_equal(event.payload.pixels, expected)
    sample = next(event.payload for event in events if isinstance(event.payload, StateSample))
    assert sample.names == ('x', 'y', 'z', 'roll', 'pitch', 'yaw', 'gripper')
    assert isinstance(events[0].payload, Instruction)


def test_unreadable_frame_of_a_bag_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bag(BAG) as bag:
        read = bag.raw

        def spoiling(topics: Any) -> Iterator[RawMessage]:
            images = 0
            for message in read(topics):
                images += message.topic.endswith('compressed')
                if images == 3 and message.topic.endswith('compressed'):
                    kept = message.data[:200]
                    message = message._replace(data=kept + bytes(len(message.data) - len(kept)))
                yield message

        monkeypatch.setattr(bag, 'raw', spoiling)
        events = BagEvents(bag, ROBOT, POLICY)
        frames = [event for event in events if isinstance(event.payload, Frame)]
    assert len(frames) == 49
    ((reason, count),) = events.counts.items()
    assert reason.startswith('/camera/image_raw/compressed: CompressedImage')
    assert count == 1


@pytest.mark.parametrize(('arguments', 'message'), [
    ({'state_topic': '/ee_stat'}, "no topic '/ee_stat'"),
    ({'state_topic': '/vla/instruction'}, 'allowed for state are sensor_msgs/msg/JointState'),
    ({'instruction_topic': '/ee_state'}, 'allowed for instruction are std_msgs/msg/String'),
    ({'image_topics': {'primary': '/ee_state'}},
     'allowed for image are sensor_msgs/msg/CompressedImage, sensor_msgs/msg/Image'),
])
def test_wrong_topic_of_a_bag_is_one_line(arguments: dict[str, Any], message: str) -> None:
    with Bag(BAG) as bag, pytest.raises(ValueError) as caught:
        BagEvents(bag, ROBOT, POLICY, **arguments)
    assert message in str(caught.value)
    assert '\n' not in str(caught.value)
