"""What the arm can be told to do, in several wordings, and what a sentence means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import product

from vla_ros.sim.scene import COLOURS


class Kind(str, Enum):
    """The kinds of task."""

    REACH = 'reach'
    PUSH = 'push'
    PICK = 'pick'
    BOWL = 'bowl'


class Side(str, Enum):
    """A direction as the robot sees it: left is +y of base_link."""

    LEFT = 'left'
    RIGHT = 'right'

    @property
    def sign(self) -> float:
        """Of the way along y."""
        return 1.0 if self is Side.LEFT else -1.0


@dataclass(frozen=True)
class Task:
    """One thing to do. `thing`: block or bowl, `side` only of push, `bowl` only of bowl."""

    kind: Kind
    colour: str
    thing: str = 'block'
    side: Side | None = None
    bowl: str = ''

    def __str__(self) -> str:
        return wordings(self)[0]


_REACH = ('reach the {colour} {thing}', 'go to the {colour} {thing}',
          'move to the {colour} {thing}', 'touch the {colour} {thing}',
          'hover over the {colour} {thing}')
_PUSH = ('push the {colour} block {side}', 'push the {colour} block to the {side}',
         'slide the {colour} block to the {side}', 'move the {colour} block {side}',
         'shove the {colour} cube {side}')
_PICK = ('pick up the {colour} block', 'lift the {colour} block', 'grab the {colour} block',
         'take the {colour} cube', 'pick the {colour} cube up')
_BOWL = ('put the {colour} block in the {bowl} bowl',
         'place the {colour} block in the {bowl} bowl',
         'put the {colour} cube into the {bowl} bowl',
         'drop the {colour} block into the {bowl} bowl',
         'move the {colour} block into the {bowl} bowl')
_WORDINGS = {Kind.REACH: _REACH, Kind.PUSH: _PUSH, Kind.PICK: _PICK, Kind.BOWL: _BOWL}


def wordings(task: Task) -> tuple[str, ...]:
    """The sentences that ask for a task, the plainest first."""
    return tuple(wording.format(colour=task.colour, thing=task.thing, bowl=task.bowl,
                                side=task.side.value if task.side else '')
                 for wording in _WORDINGS[task.kind])


def all_tasks() -> Iterator[Task]:
    """Every task there is."""
    for colour, thing in product(COLOURS, ('block', 'bowl')):
        yield Task(Kind.REACH, colour, thing)
    for colour, side in product(COLOURS, Side):
        yield Task(Kind.PUSH, colour, side=side)
    for colour in COLOURS:
        yield Task(Kind.PICK, colour)
    for colour, bowl in product(COLOURS, COLOURS):
        yield Task(Kind.BOWL, colour, bowl=bowl)


def parse(sentence: str) -> Task | None:
    """The task that a sentence asks for, or None. Case and punctuation do not matter."""
    return _MEANINGS.get(_plain(sentence))


def _plain(sentence: str) -> str:
    return ' '.join(re.findall(r'\w+', sentence.casefold()))


_MEANINGS = {_plain(text): task for task in all_tasks() for text in wordings(task)}

# Every word of every sentence, in order: what a policy that learns these tasks can read.
VOCABULARY = tuple(sorted({word for text in _MEANINGS for word in text.split()}))
