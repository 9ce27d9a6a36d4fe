"""What the demo says, and on which table: sentences in order, and scenes that allow them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from vla_ros.sim.scene import COLOURS, Scene
from vla_ros.sim.tasks import Kind, Side, Task, parse, wordings
from vla_ros.sim.trial import HELD_OUT, LIMIT_S, draw_task, make_trial

TRIAL = 'bowl'       # any block and any bowl: its scenes are the most general ones
SCENES = 400         # that are looked through
PER_SEED = 1_000     # scenes from one seed of the demo to the next
SEEDS = 10_000
CHANGED = 4          # the sentence of the sequence on which the mind is changed
CHANGE_S = 2.0       # after which that happens
UNJUDGED_S = 10.0    # for a sentence of which nobody knows when it is done
DRAWS = 60           # of pushes: enough to see all that a scene has room for
BLOCK, BOWL = ('block', 'blocks', 'cube', 'cubes'), ('bowl', 'bowls')


@dataclass(frozen=True)
class Cue:
    """A sentence of the demo.

    `task`: what it means, None where nobody can judge it. `limit_s`: the longest time for it;
    `cut`: the next sentence comes then, whatever has been done. `scene`: seed of the table;
    `fresh`: it is laid out anew before the sentence.
    """

    sentence: str
    task: Task | None
    limit_s: float
    scene: int
    fresh: bool = False
    cut: bool = False


@dataclass(frozen=True)
class Script:
    """The cues in order, and what a person should know of them, a line each."""

    cues: tuple[Cue, ...]
    notes: tuple[str, ...] = ()


def shown_script(seed: int) -> Script:
    """The sequence of the demo: every kind of task, and a change of mind, on one table.

    Raises ValueError with one line on a seed that is none.
    """
    rng = np.random.default_rng(_checked(seed))
    found = next(((number, tasks) for number, scene in _scenes(seed)
                  if (tasks := _sequence(rng, scene))), None)
    if found is None:
        raise ValueError(f'demo: seed: {seed}: no table for the sequence; take another seed')
    number, tasks = found
    cues = [_cue(_worded(rng, task), number) for task in tasks]
    cues[CHANGED] = replace(cues[CHANGED], limit_s=CHANGE_S, cut=True)
    return Script(tuple(cues))


def _sequence(rng: np.random.Generator, scene: Scene) -> tuple[Task, ...]:
    """The tasks of the demo, empty where the scene does not allow them."""
    left = [task for task in _pushes(scene) if task.side is Side.LEFT]
    if not left:
        return ()
    pushed = left[rng.integers(len(left))]
    others = [block for block in scene.blocks if block.colour != pushed.colour]
    put, last = (others[i] for i in rng.permutation(2))
    # The arm is on its way to `last` when it must turn round: the farther bowl shows that best.
    near, far = sorted(scene.bowls, key=lambda bowl: np.hypot(bowl.x - last.x, bowl.y - last.y))
    if near.colour == put.colour or far.colour == last.colour:
        return ()  # what is in a bowl should be seen
    return (
        Task(Kind.REACH, near.colour, 'bowl'), pushed, Task(Kind.PICK, put.colour),
        Task(Kind.BOWL, put.colour, bowl=near.colour), Task(Kind.PICK, last.colour),
        Task(Kind.REACH, far.colour, 'bowl'), Task(Kind.BOWL, last.colour, bowl=far.colour))


def own_script(sentences: Sequence[str], seed: int) -> Script:
    """Somebody's own sentences, on tables that have what they name.

    The table stays for as long as it has; one that asks for the same again gets it anew. Raises
    ValueError with one line on an empty sentence and on a seed that is none.
    """
    texts = [' '.join(sentence.split()) for sentence in sentences]
    for text in texts:
        if not text.isprintable():
            raise ValueError(f'demo: instruction: {text!r}: has characters that cannot be shown')
    if not texts or not all(texts):
        raise ValueError('demo: instruction: empty: write a sentence, such as "pick up the red '
                         'block"')
    scenes = list(_scenes(_checked(seed)))
    cues: list[Cue] = []
    notes: list[str] = []
    number, left = scenes[0][0], 0  # `left`: sentences that the table at hand still has all for
    for i, text in enumerate(texts):
        if not left:
            number, left = _longest(scenes, texts[i:], number)
            if not left:
                notes.append(f'"{text}": no table has all that it names')
        cue = _cue(text, number)
        again = any(_same(cue, other) for other in cues if other.scene == number)
        cues.append(replace(cue, fresh=bool(cues) and (again or number != cues[-1].scene)))
        left = max(0, left - 1)
    return Script(tuple(cues), tuple(notes))


def _checked(seed: int) -> int:
    if not 0 <= seed < SEEDS:
        raise ValueError(f'demo: seed: {seed}; allowed is 0 to {SEEDS - 1}')
    return seed


def _scenes(seed: int) -> Iterator[tuple[int, Scene]]:
    """Scenes that no training has seen, with their seeds."""
    first = HELD_OUT + seed * PER_SEED
    for number in range(first, first + SCENES):
        yield number, make_trial(TRIAL, number).scene


def _cue(text: str, scene: int) -> Cue:
    task = parse(text)
    return Cue(text, task, UNJUDGED_S if task is None else LIMIT_S[task.kind.value], scene)


def _same(cue: Cue, other: Cue) -> bool:
    return cue.sentence == other.sentence or (cue.task is not None and cue.task == other.task)


def _worded(rng: np.random.Generator, task: Task) -> str:
    texts = wordings(task)
    return texts[rng.integers(len(texts))]


def _longest(scenes: Sequence[tuple[int, Scene]], texts: Sequence[str],
             number: int) -> tuple[int, int]:
    """The first scene that allows the most sentences from the first on, and how many.

    `number` and 0 where none allows the first one.
    """
    most = 0
    for candidate, scene in scenes:
        count = next((i for i, text in enumerate(texts) if not _allows(scene, text)), len(texts))
        if count > most:
            number, most = candidate, count
        if most == len(texts):
            break
    return number, most


def _allows(scene: Scene, text: str) -> bool:
    """Whether the table has what a sentence names, and room for a push."""
    blocks = {block.colour for block in scene.blocks}
    bowls = {bowl.colour for bowl in scene.bowls}
    task = parse(text)
    if task is None:
        return all(colour in {'block': blocks, 'bowl': bowls}.get(thing, blocks | bowls)
                   for colour, thing in _named(text))
    if task.kind is Kind.PUSH:
        return task in _pushes(scene)
    return (task.colour in (bowls if task.thing == 'bowl' else blocks)
            and (not task.bowl or task.bowl in bowls))


def _named(text: str) -> Iterator[tuple[str, str]]:
    """Colours in a sentence, each with block, bowl or '' after it."""
    words = re.findall(r'\w+', text.casefold())
    for word, after in zip(words, chain(words[1:], [''])):  # noqa: B905 (3.10)
        if word in COLOURS:
            yield word, 'block' if after in BLOCK else 'bowl' if after in BOWL else ''


def _pushes(scene: Scene) -> list[Task]:
    """The pushes that a scene has room for."""
    rng = np.random.default_rng(0)
    drawn = (draw_task(rng, scene, Kind.PUSH) for _ in range(DRAWS))
    return list(dict.fromkeys(task for task in drawn if task is not None))
