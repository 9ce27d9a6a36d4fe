"""How the demo goes: what has been said, when, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from vla_ros.core.types import NS_PER_S
from vla_ros.tools.demo_script import Cue, Script


class End(str, Enum):
    """What came of a sentence."""

    DONE = 'done'
    FAILED = 'not done'
    CHANGED = 'changed'               # another one replaced it, as planned
    UNJUDGED = 'not judged'           # nobody knows when it is done
    IMPOSSIBLE = 'not on the table'
    CUT = 'cut short'                 # the demo was over


JUDGED = (End.DONE, End.FAILED)


@dataclass(frozen=True)
class Turn:
    """A sentence that has been said; times are ROS time.

    `shown_ns`: from when on the table is the one of this sentence. `took_s`: from the sentence to
    the success, as the simulator says. `end` is None while it goes on.
    """

    cue: Cue
    shown_ns: int
    said_ns: int
    ended_ns: int | None = None
    done_ns: int | None = None
    took_s: float | None = None
    end: End | None = None

    def seconds(self, now_ns: int) -> float:
        """Since the sentence, until its end."""
        return ((self.ended_ns or now_ns) - self.said_ns) / NS_PER_S

    @property
    def fresh(self) -> bool:
        """Whether the table was laid out anew for it."""
        return self.shown_ns < self.said_ns

    @property
    def news(self) -> str:
        """What came of it, and after how long."""
        if self.end is End.DONE:
            return f'{self.took_s:.1f} s'
        return '' if self.end is None else self.end.value

    def json(self) -> dict[str, Any]:
        """For `summary.json`."""
        task = self.cue.task
        values: dict[str, Any] = {
            'sentence': self.cue.sentence, 'kind': None if task is None else task.kind.value,
            'result': None if self.end is None else self.end.value,
            'seconds': round(self.seconds(self.said_ns), 3), 'limit': self.cue.limit_s,
            'scene': self.cue.scene, 'laid_out_anew': self.fresh}
        return values | ({} if self.took_s is None else {'success_after': self.took_s})


class Course:
    """The turns so far, in order. Written by one thread."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.turns: list[Turn] = []
        self.laying_out = False  # the table, for the next turn

    # --- what comes in -------------------------------------------------------------------------

    def say(self, cue: Cue, now_ns: int, shown_ns: int | None = None) -> None:
        """A sentence is being said."""
        self.turns.append(Turn(cue, now_ns if shown_ns is None else shown_ns, now_ns))

    def succeed(self, took_s: float, now_ns: int) -> None:
        """The simulator says that the task is done."""
        self.turns[-1] = replace(self.turns[-1], done_ns=now_ns, took_s=took_s)

    def conclude(self, end: End, now_ns: int) -> None:
        """The turn is over; one that is done stays so, whatever `end` says."""
        turn = self.turns[-1]
        self.turns[-1] = replace(turn, ended_ns=now_ns,
                                 end=End.DONE if turn.done_ns is not None else end)

    # --- what can be read ----------------------------------------------------------------------

    @property
    def done(self) -> int:
        """How many tasks have been done."""
        return sum(turn.end is End.DONE for turn in self.turns)

    @property
    def judged(self) -> int:
        """How many tasks have been done or not."""
        return sum(turn.end in JUDGED for turn in self.turns)

    @property
    def score(self) -> str:
        """The count for people."""
        return f'{self.done} of {self.judged} done' if self.judged else 'nothing to be judged'

    def number(self, index: int) -> str:
        """Which of how many tasks a turn belongs to; a change of mind is one task."""
        cues = self.script.cues
        before = sum(not cue.cut for cue in cues[:index])
        return f'{before + 1} of {sum(not cue.cut for cue in cues)}'
