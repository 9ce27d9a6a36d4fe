"""The judge, on states made by hand; and what sentences mean."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.judge import HOLD_NS, Judge
from vla_ros.sim.tasks import VOCABULARY, Kind, Side, Task, all_tasks, parse, wordings
from vla_ros.sim.trial import TRIALS, make_trial
from vla_ros.sim.world import Snapshot

START = Snapshot(
    time_ns=0, tool=np.array([0.2, 0.0, 0.18]), opening=0.037,
    blocks={'red': np.array([0.25, 0.0, 0.018]), 'blue': np.array([0.3, 0.1, 0.018])},
    bowls={'green': np.array([0.3, -0.1, 0.0])}, held=None)


def at(seconds: float, tool: tuple[float, float, float] | None = None, held: str | None = None,
       **blocks: tuple[float, float, float]) -> Snapshot:
    moved = {**START.blocks, **{name: np.array(point) for name, point in blocks.items()}}
    return replace(START, time_ns=round(seconds * NS_PER_S), blocks=moved, held=held,
                   tool=START.tool if tool is None else np.array(tool))


def judged(task: Task, *states: Snapshot) -> bool:
    judge = Judge(task, START)
    return [judge.update(state) for state in states][-1]


REACH = Task(Kind.REACH, 'red')
PUSH = Task(Kind.PUSH, 'red', side=Side.LEFT)
PICK = Task(Kind.PICK, 'red')
BOWL = Task(Kind.BOWL, 'red', bowl='green')
DONE = {
    REACH: {'tool': (0.25, 0.01, 0.08)},
    Task(Kind.REACH, 'green', 'bowl'): {'tool': (0.3, -0.1, 0.1)},
    PUSH: {'red': (0.26, 0.06, 0.018)},
    Task(Kind.PUSH, 'red', side=Side.RIGHT): {'red': (0.24, -0.06, 0.018)},
    PICK: {'held': 'red', 'red': (0.25, 0.0, 0.1)},
    BOWL: {'red': (0.31, -0.09, 0.024)},
}
NOT_DONE = [
    (REACH, {'tool': (0.25, 0.03, 0.08)}),                            # beside it
    (REACH, {'tool': (0.25, 0.0, 0.14)}),                             # too high
    (REACH, {'tool': (0.3, 0.1, 0.08)}),                              # over another block
    (REACH, {'tool': (0.25, 0.05, 0.05), 'red': (0.25, 0.05, 0.018)}),  # it was shoved away
    (PUSH, {'red': (0.25, 0.04, 0.018)}),                             # not far enough
    (PUSH, {'red': (0.25, -0.06, 0.018)}),                            # the other way
    (PUSH, {'red': (0.29, 0.06, 0.018)}),                             # astray
    (PUSH, {'red': (0.25, 0.06, 0.1), 'held': 'red'}),                # carried
    (PUSH, {'blue': (0.3, 0.2, 0.018)}),                              # another block
    (PICK, {'held': 'red', 'red': (0.25, 0.0, 0.05)}),                # hardly lifted
    (PICK, {'red': (0.25, 0.0, 0.1)}),                                # in the air but not held
    (PICK, {'held': 'blue', 'blue': (0.3, 0.1, 0.12)}),               # another block
    (BOWL, {'red': (0.31, -0.09, 0.1), 'held': 'red'}),               # still held over it
    (BOWL, {'red': (0.35, -0.1, 0.018)}),                             # beside it
    (BOWL, {'blue': (0.3, -0.1, 0.024)}),                             # another block
]


@pytest.mark.parametrize('task', DONE, ids=str)
def test_what_is_done_and_stays_done_is_a_success(task: Task) -> None:
    hold = HOLD_NS / NS_PER_S
    assert not judged(task, at(1.0, **DONE[task]), at(1.0 + hold - 0.01, **DONE[task]))
    assert judged(task, at(1.0, **DONE[task]), at(1.0 + hold, **DONE[task]))


@pytest.mark.parametrize('task', DONE, ids=str)
def test_what_is_done_only_for_a_moment_is_none(task: Task) -> None:
    assert not judged(task, at(1.0, **DONE[task]), at(1.3), at(1.6, **DONE[task]))


@pytest.mark.parametrize(('task', 'state'), NOT_DONE, ids=lambda value: str(value)[:60])
def test_what_is_not_what_was_asked_is_none(task: Task, state: dict) -> None:
    assert not judged(task, at(1.0, **state), at(3.0, **state))


def test_success_stays() -> None:
    assert judged(PICK, at(1, **DONE[PICK]), at(2, **DONE[PICK]), at(3))


@pytest.mark.parametrize('task', [Task(Kind.PICK, 'yellow'), Task(Kind.BOWL, 'red', bowl='blue'),
                                  Task(Kind.REACH, 'red', 'bowl')], ids=str)
def test_a_task_with_what_is_not_there_is_impossible_and_never_done(task: Task) -> None:
    judge = Judge(task, START)
    assert not judge.possible
    assert not judge.update(at(5.0))


def test_every_wording_means_its_task_and_no_other() -> None:
    meant = {}
    for task in all_tasks():
        for text in wordings(task):
            assert meant.setdefault(text, task) == task
            assert parse(f'  {text.upper()}! ') == task
            assert set(text.split()) <= set(VOCABULARY)


@pytest.mark.parametrize('text', ['', 'sing', 'pick up the purple block', 'pick up the red'])
def test_other_sentences_mean_nothing(text: str) -> None:
    assert parse(text) is None


@pytest.mark.parametrize('name', TRIALS)
def test_trials_are_drawn_from_their_seed_and_can_be_done(name: str) -> None:
    trials = [make_trial(name, seed) for seed in range(30)]
    assert trials[3] == make_trial(name, 3)
    assert len({trial.said[-1].sentence for trial in trials}) > 5
    for trial in trials:
        blocks = {block.colour for block in trial.scene.blocks}
        bowls = {bowl.colour for bowl in trial.scene.bowls}
        for said in trial.said:
            assert parse(said.sentence) == said.task
            assert said.task.colour in (bowls if said.task.thing == 'bowl' else blocks)
            assert not said.task.bowl or said.task.bowl in bowls


def test_a_change_of_mind_names_another_colour() -> None:
    for seed in range(30):
        first, second = make_trial('change', seed).said
        assert first.task.colour != second.task.colour
        assert second.time_s > first.time_s


def test_an_unknown_kind_of_trial_is_one_line() -> None:
    with pytest.raises(ValueError, match="task: 'juggle': allowed are reach, push"):
        make_trial('juggle', 0)
