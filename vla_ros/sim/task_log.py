"""What is being asked for and whether it is done: sentences and snapshots in, events out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.judge import Judge
from vla_ros.sim.tasks import Task, parse
from vla_ros.sim.world import Snapshot

RESET, STARTED, CHANGED, SUCCESS = 'reset', 'started', 'changed', 'success'
UNKNOWN, IMPOSSIBLE, ENDED = 'unknown', 'impossible', 'ended'


@dataclass(frozen=True)
class TaskEvent:
    """Something that happened to the task at hand, `time_s` after the reset.

    `event`: reset (to `seed`), started, changed (before the task was done), success (`took_s` after
    the sentence), ended (by an empty sentence), unknown (a sentence that means no task here),
    impossible (a task with something that is not on the table).
    """

    event: str
    time_s: float
    sentence: str = ''
    task: Task | None = None
    took_s: float | None = None
    seed: int | None = None

    def json(self) -> str:
        """One line of JSON, without what does not belong to the event."""
        values: dict[str, Any] = {'event': self.event, 'time': round(self.time_s, 3)}
        if self.seed is not None:
            values['seed'] = self.seed
        if self.sentence:
            values['sentence'] = self.sentence
        if self.task is not None:
            values |= {'kind': self.task.kind.value, 'colour': self.task.colour,
                       'thing': self.task.thing}
            values |= {'side': self.task.side.value} if self.task.side is not None else {}
            values |= {'bowl': self.task.bowl} if self.task.bowl else {}
        if self.took_s is not None:
            values['took'] = round(self.took_s, 3)
        return json.dumps(values)


class TaskLog:
    """Follows the task that the last sentence asks for."""

    def __init__(self) -> None:
        self._sentence = ''
        self._task: Task | None = None
        self._judge: Judge | None = None
        self._since_ns = 0

    @property
    def success(self) -> bool:
        """Whether the task of the last sentence is done."""
        return self._judge is not None and self._judge.success

    def reset(self, now: Snapshot, seed: int) -> list[TaskEvent]:
        """The scene is new; the last sentence, if there is one, is a task anew."""
        sentence, self._sentence, self._judge = self._sentence, '', None
        return [TaskEvent(RESET, _seconds(now.time_ns), seed=seed), *self.tell(sentence, now)]

    def tell(self, sentence: str, now: Snapshot) -> list[TaskEvent]:
        """A sentence came; the same one again means nothing."""
        sentence = sentence.strip()
        if sentence == self._sentence:
            return []
        going_on = self._judge is not None and not self._judge.success
        self._sentence, self._judge, self._task = sentence, None, parse(sentence)
        self._since_ns = now.time_ns
        if self._task is None:
            if sentence:
                return [self._event(UNKNOWN, now)]
            return [self._event(ENDED, now)] if going_on else []
        judge = Judge(self._task, now)
        if not judge.possible:
            return [self._event(IMPOSSIBLE, now)]
        self._judge = judge
        return [self._event(CHANGED if going_on else STARTED, now)]

    def update(self, now: Snapshot) -> list[TaskEvent]:
        """Look again; tells of a success once."""
        if self._judge is None or self._judge.success or not self._judge.update(now):
            return []
        return [self._event(SUCCESS, now, _seconds(now.time_ns - self._since_ns))]

    def _event(self, event: str, now: Snapshot, took_s: float | None = None) -> TaskEvent:
        return TaskEvent(event, _seconds(now.time_ns), self._sentence, self._task, took_s)


def _seconds(time_ns: int) -> float:
    return time_ns / NS_PER_S
