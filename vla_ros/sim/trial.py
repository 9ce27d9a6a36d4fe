"""One trial: a scene, what is said and when, and how long it may take. Drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_ros.sim.scene import Scene, make_scene
from vla_ros.sim.tasks import Kind, Side, Task, wordings

TRIALS = ('reach', 'push', 'pick', 'bowl', 'change')
LIMIT_S = {'reach': 8.0, 'push': 12.0, 'pick': 10.0, 'bowl': 14.0, 'change': 16.0}
# Trials from here on are for evaluation; training stays below.
HELD_OUT = 1_000_000
PUSH_FROM, PUSH_TO = 0.12, 0.23  # |y| in m: where a pushed block starts at most, where it ends
PUSH_CLEAR = 0.055               # m beside its way


@dataclass(frozen=True)
class Said:
    """A sentence, when it is said (s after the start) and what it means."""

    time_s: float
    task: Task
    sentence: str


@dataclass(frozen=True)
class Trial:
    """`said` in order of time; the last one counts. `limit_s` from the start on."""

    name: str
    seed: int
    scene: Scene
    said: tuple[Said, ...]
    limit_s: float


def make_trial(name: str, seed: int) -> Trial:
    """The trial of a kind with a seed. Raises ValueError with one line."""
    if name not in TRIALS:
        raise ValueError(f'task: {name!r}: allowed are {", ".join(TRIALS)}')
    rng = np.random.default_rng([TRIALS.index(name), seed])
    while True:
        scene = make_scene(rng)
        if name != 'change':
            first = draw_task(rng, scene, Kind(name))
            if first is None:
                continue
            return Trial(name, seed, scene, (_said(rng, 0.0, first),), LIMIT_S[name])
        kinds = list(Kind)
        first = draw_task(rng, scene, kinds[rng.integers(len(kinds))])
        second = draw_task(rng, scene, (Kind.REACH, Kind.PICK)[rng.integers(2)])
        if first is None or second is None or second.colour == first.colour:
            continue
        later = float(rng.uniform(1.5, 4.0))
        return Trial(name, seed, scene, (_said(rng, 0.0, first), _said(rng, later, second)),
                     LIMIT_S[name])


def draw_task(rng: np.random.Generator, scene: Scene, kind: Kind) -> Task | None:
    """A task of a kind that this scene allows, or None."""
    if kind is Kind.REACH and rng.integers(2):
        return Task(kind, scene.bowls[rng.integers(len(scene.bowls))].colour, 'bowl')
    block = scene.blocks[rng.integers(len(scene.blocks))]
    if kind is Kind.BOWL:
        return Task(kind, block.colour, bowl=scene.bowls[rng.integers(len(scene.bowls))].colour)
    if kind is not Kind.PUSH:
        return Task(kind, block.colour)
    sides = [side for side in Side if _pushable(scene, block.colour, side)]
    return Task(kind, block.colour, side=sides[rng.integers(len(sides))]) if sides else None


def _pushable(scene: Scene, colour: str, side: Side) -> bool:
    """Whether the way of the block to that side, and the place behind it, are free."""
    block = next(b for b in scene.blocks if b.colour == colour)
    start = block.y * side.sign
    if start > PUSH_FROM:
        return False
    others = [(b.x, b.y, PUSH_CLEAR) for b in scene.blocks if b is not block]
    others += [(b.x, b.y, PUSH_CLEAR + 0.035) for b in scene.bowls]
    return not any(abs(x - block.x) < clear and start - 0.09 < y * side.sign < PUSH_TO + clear
                   for x, y, clear in others)


def _said(rng: np.random.Generator, time_s: float, task: Task) -> Said:
    texts = wordings(task)
    return Said(time_s, task, texts[rng.integers(len(texts))])
