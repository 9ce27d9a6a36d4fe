"""What the demo says: the sequence and its table, own sentences and theirs."""

from __future__ import annotations

import pytest

from vla_ros.sim.scene import Scene
from vla_ros.sim.tasks import Kind, Side, Task, parse
from vla_ros.sim.trial import HELD_OUT, make_trial
from vla_ros.tools.demo_script import TRIAL, UNJUDGED_S, Cue, own_script, shown_script


def table(cue: Cue) -> Scene:
    return make_trial(TRIAL, cue.scene).scene


def blocks(cue: Cue) -> set[str]:
    return {block.colour for block in table(cue).blocks}


def bowls(cue: Cue) -> set[str]:
    return {bowl.colour for bowl in table(cue).bowls}


def on_the_table(cue: Cue) -> bool:
    task = cue.task
    assert task is not None
    return task.colour in (bowls(cue) if task.thing == 'bowl' else blocks(cue)) and (
        not task.bowl or task.bowl in bowls(cue))


@pytest.mark.parametrize('seed', [0, 1, 2, 77, 9999])
def test_the_sequence_has_every_task_and_a_change_of_mind_on_one_table(seed: int) -> None:
    cues = shown_script(seed).cues
    assert [cue.task.kind for cue in cues if cue.task] == [
        Kind.REACH, Kind.PUSH, Kind.PICK, Kind.BOWL, Kind.PICK, Kind.REACH, Kind.BOWL]
    assert len({cue.scene for cue in cues}) == 1
    assert not any(cue.fresh for cue in cues)
    assert all(map(on_the_table, cues))
    assert cues[1].task is not None
    assert cues[1].task.side is Side.LEFT
    assert [cue.cut for cue in cues] == [False] * 4 + [True] + [False] * 2
    assert cues[4].limit_s == 2.0
    assert all(cue.task == parse(cue.sentence) for cue in cues)
    # Three blocks: one is pushed, one is put away, the last one is the subject of the rest.
    assert {cues[i].task.colour for i in (1, 2, 4) if cues[i].task} == blocks(cues[0])


def test_a_seed_always_gives_the_same_sequence_and_no_training_table() -> None:
    assert shown_script(3) == shown_script(3)
    assert shown_script(3) != shown_script(4)
    assert all(cue.scene >= HELD_OUT for cue in shown_script(3).cues)


def test_own_sentences_get_a_table_that_has_what_they_name() -> None:
    texts = ['Push the red block  to the right!', 'put the red block in the blue bowl',
             'hand me the yellow cube from the green bowl']
    script = own_script(texts, 0)
    assert script.notes == ()
    assert len({cue.scene for cue in script.cues}) == 1
    first, second, third = script.cues
    assert first.sentence == 'Push the red block to the right!'
    assert first.task == Task(Kind.PUSH, 'red', side=Side.RIGHT)
    assert on_the_table(first)
    assert on_the_table(second)
    assert (third.task, third.limit_s) == (None, UNJUDGED_S)
    assert 'yellow' in blocks(third)
    assert 'green' in bowls(third)


def test_what_no_one_table_has_gets_a_table_of_its_own() -> None:
    cues = own_script([f'reach the {colour} block' for colour in
                       ('red', 'green', 'blue', 'yellow', 'red')], 0).cues
    assert all(map(on_the_table, cues))
    assert [cue.scene == cues[0].scene for cue in cues[:4]] == [True, True, True, False]
    assert [cue.fresh for cue in cues[:4]] == [False, False, False, True]


def test_the_same_again_gets_the_table_anew() -> None:
    cues = own_script(['push the red block left', 'reach the red block', 'lift it', 'lift it',
                       'shove the red cube left'], 0).cues
    assert len({cue.scene for cue in cues}) == 1
    assert [cue.fresh for cue in cues] == [False, False, False, True, True]


def test_what_no_table_has_is_said_in_a_line() -> None:
    script = own_script(['reach the red block', 'stack red block green block blue block yellow '
                         'block', 'reach the blue block'], 0)
    assert script.notes == ('"stack red block green block blue block yellow block": no table has '
                            'all that it names',)
    assert on_the_table(script.cues[0])
    assert on_the_table(script.cues[2])


@pytest.mark.parametrize(('texts', 'seed', 'message'), [
    (['  '], 0, 'demo: instruction: empty'), (['a', ''], 0, 'demo: instruction: empty'),
    (['a\x1b[2Jb'], 0, 'demo: instruction: .*cannot be shown'),
    (['reach the red block'], -1, 'demo: seed: -1; allowed is 0 to 9999')])
def test_bad_sentences_and_seeds_are_refused(texts: list[str], seed: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        own_script(texts, seed)


def test_a_bad_seed_of_the_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match='demo: seed: 10000; allowed is 0 to 9999'):
        shown_script(10_000)
