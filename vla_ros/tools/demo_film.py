"""The film of the demo: what a person would have seen, with the sentences and their ticks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vla_ros.tools.demo_course import Course, End
from vla_ros.tools.film import LAST_MS, FilmFrame, write_film
from vla_ros.tools.reel import Pixels, Reel

LIMIT_BYTES = 8_000_000
MOST_FRAMES, MOST_STEP = 800, 5
SHORTEST_MS, LONGEST_MS, STEP_MS = 20, 500, 10  # a GIF counts in hundredths of a second
NS_PER_MS = 1_000_000
GIVEN_UP = (End.FAILED, End.IMPOSSIBLE)


class DemoFilm:
    """The frames from the first sentence on, each shown for as long as it lasted.

    Every `step`-th is shown. Can be gone through any number of times; no two are held at once.
    """

    def __init__(self, reel: Reel, course: Course, step: int = 1) -> None:
        self._reel, self._course, self._step = reel, course, step

    def __iter__(self) -> Iterator[FilmFrame]:
        turns = self._course.turns
        seen = ((stamp_ns, pixels) for index, (stamp_ns, pixels) in enumerate(self._reel)
                if index % self._step == 0 and turns and stamp_ns >= turns[0].shown_ns)
        this = next(seen, None)
        while this is not None:
            after = next(seen, None)
            yield self._frame(*this, None if after is None else after[0])
            this = after

    def _frame(self, stamp_ns: int, pixels: Pixels, after_ns: int | None) -> FilmFrame:
        course = self._course
        index = max(i for i, turn in enumerate(course.turns) if turn.shown_ns <= stamp_ns)
        turn = course.turns[index]
        ended = turn.ended_ns is not None and stamp_ns >= turn.ended_ns
        return FilmFrame(
            pixels, turn.cue.sentence, done=turn.done_ns is not None and stamp_ns >= turn.done_ns,
            failed=ended and turn.end in GIVEN_UP, note=course.number(index),
            last=after_ns is None or self._other_table(index, after_ns),
            ms=LAST_MS if after_ns is None else _milliseconds(after_ns - stamp_ns))

    def _other_table(self, index: int, after_ns: int) -> bool:
        """Whether the next frame shows a table that was laid out anew."""
        turns = self._course.turns
        return index + 1 < len(turns) and turns[index + 1].fresh and (
            after_ns >= turns[index + 1].shown_ns)


def write_demo_film(reel: Reel, course: Course, file: Path) -> bool:
    """Write the GIF, with fewer frames where it would be too large; whether there were any."""
    step = 1 + len(reel) // MOST_FRAMES
    while next(iter(DemoFilm(reel, course, step)), None) is not None:
        write_film(DemoFilm(reel, course, step), file)
        if file.stat().st_size <= LIMIT_BYTES or step >= MOST_STEP:
            return True
        step += 1
    return False


def _milliseconds(passed_ns: int) -> int:
    rounded = round(passed_ns / NS_PER_MS / STEP_MS) * STEP_MS
    return min(max(rounded, SHORTEST_MS), LONGEST_MS)
