"""What sim_robot says of tasks: from hand-made states, without a simulator."""

from __future__ import annotations

import json

import numpy as np

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.task_log import TaskLog
from vla_ros.sim.world import Snapshot

RED = np.array([0.25, 0.10, 0.018])


def state(time_s: float, tool: tuple[float, float, float] = (0.2, 0.0, 0.2)) -> Snapshot:
    """A red block and a blue bowl."""
    return Snapshot(round(time_s * NS_PER_S), np.array(tool), 0.02, {'red': RED},
                    {'blue': np.array([0.3, -0.1, 0.0])}, None)


def over_red(time_s: float) -> Snapshot:
    return state(time_s, (0.25, 0.10, 0.09))


def names(events: list) -> list[str]:
    return [event.event for event in events]


def test_task_is_started_and_done_once() -> None:
    log = TaskLog()
    assert names(log.reset(state(0.0), 7)) == ['reset']
    assert names(log.tell('reach the red block', state(0.1))) == ['started']
    found = [event for i in range(20) for event in log.update(over_red(0.2 + 0.1 * i))]
    assert names(found) == ['success']
    assert log.success
    assert 0.5 <= found[0].took_s <= 0.8


def test_same_sentence_again_means_nothing() -> None:
    log = TaskLog()
    log.tell('reach the red block', state(0.0))
    assert log.tell(' reach the red block ', state(1.0)) == []


def test_sentence_before_the_task_is_done_changes_it() -> None:
    log = TaskLog()
    log.tell('reach the red block', state(0.0))
    assert names(log.tell('pick up the red block', state(1.0))) == ['changed']
    assert not log.update(over_red(3.0))


def test_sentence_after_a_success_starts_another_task() -> None:
    log = TaskLog()
    log.tell('reach the red block', state(0.0))
    log.update(over_red(1.0))
    assert log.update(over_red(2.0))
    assert names(log.tell('pick up the red block', state(3.0))) == ['started']
    assert not log.success


def test_sentence_that_is_no_task_is_named_and_ends_the_old_one() -> None:
    log = TaskLog()
    log.tell('reach the red block', state(0.0))
    (event,) = log.tell('sing', state(1.0))
    assert (event.event, event.sentence, event.task) == ('unknown', 'sing', None)
    assert log.update(over_red(9.0)) == []


def test_task_with_what_is_not_there_is_impossible() -> None:
    log = TaskLog()
    assert names(log.tell('pick up the green block', state(0.0))) == ['impossible']
    assert names(log.tell('put the red block in the red bowl', state(0.0))) == ['impossible']
    assert not log.success


def test_empty_sentence_ends_a_task_that_is_not_done() -> None:
    log = TaskLog()
    assert log.tell('', state(0.0)) == []
    log.tell('reach the red block', state(0.0))
    assert names(log.tell('', state(1.0))) == ['ended']


def test_reset_begins_the_task_of_the_last_sentence_anew() -> None:
    log = TaskLog()
    log.tell('reach the red block', state(0.0))
    log.update(over_red(1.0))
    log.update(over_red(2.0))
    assert names(log.reset(state(0.0), 3)) == ['reset', 'started']
    assert not log.success


def test_events_are_one_line_of_json_without_what_they_lack() -> None:
    log = TaskLog()
    (reset,) = log.reset(state(0.0), 3)
    assert json.loads(reset.json()) == {'event': 'reset', 'time': 0.0, 'seed': 3}
    (started,) = log.tell('put the red block in the blue bowl', state(1.5))
    assert json.loads(started.json()) == {
        'event': 'started', 'time': 1.5, 'sentence': 'put the red block in the blue bowl',
        'kind': 'bowl', 'colour': 'red', 'thing': 'block', 'bowl': 'blue'}
    assert '\n' not in started.json()
