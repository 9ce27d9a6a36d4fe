"""Notices frames that a camera or the transport lost, from nothing but their stamps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from vla_ros.core.types import NS_PER_S

JUMP_NS = 60 * NS_PER_S  # a longer gap says more of the clock than of frames


class FrameEvent(str, Enum):
    """What a stamp says about the frame before it."""

    LOST = 'lost'
    DUPLICATED = 'duplicated'
    BACK_DATED = 'back-dated'
    JUMPED = 'jumped ahead'


@dataclass(frozen=True)
class FrameNotice:
    """One event: how many frames it concerns and one line for people."""

    event: FrameEvent
    frames: int
    text: str


class FrameGapDetector:
    """Counts lost, duplicated and back-dated frames of one camera.

    `period_ns` is the expected time between two frames; more than 1.75 of it between two stamps
    means frames were lost: a camera that jitters stays below. A single back-dated stamp does not
    move the reference; a second one that goes on from it (a clock that was set back, a clip that
    starts again) does.
    """

    def __init__(self, camera: str, period_ns: int) -> None:
        if period_ns <= 0:
            raise ValueError(f'camera {camera}: period is {period_ns} ns, allowed is more than 0')
        self._camera = camera
        self._period_ns = period_ns
        self._newest_ns: int | None = None
        self._back_dated_ns: int | None = None
        self.received = 0
        self.lost = 0
        self.duplicated = 0
        self.back_dated = 0

    def observe(self, stamp_ns: int) -> FrameNotice | None:
        """Take the stamp of the next received frame; a notice if something is wrong with it."""
        self.received += 1
        newest_ns, self._newest_ns = self._newest_ns, stamp_ns
        earlier_ns, self._back_dated_ns = self._back_dated_ns, None
        if newest_ns is None:
            return None
        if stamp_ns == newest_ns or stamp_ns == earlier_ns:
            self._newest_ns, self._back_dated_ns = newest_ns, earlier_ns
            self.duplicated += 1
            return self._notice(FrameEvent.DUPLICATED, 1, f'stamp {_seconds(stamp_ns)} came twice')
        if stamp_ns < newest_ns:
            if earlier_ns is not None and stamp_ns > earlier_ns:
                return self._gap(earlier_ns, stamp_ns)
            self._newest_ns, self._back_dated_ns = newest_ns, stamp_ns
            self.back_dated += 1
            return self._notice(
                FrameEvent.BACK_DATED, 1, f'stamp {_seconds(stamp_ns)} is '
                f'{_milliseconds(newest_ns - stamp_ns)} before {_seconds(newest_ns)}')
        return self._gap(newest_ns, stamp_ns)

    def reset(self) -> None:
        """Forget the last stamp (the camera was reopened); the counts stay."""
        self._newest_ns = None
        self._back_dated_ns = None

    def _gap(self, before_ns: int, stamp_ns: int) -> FrameNotice | None:
        gap_ns = stamp_ns - before_ns
        if 4 * gap_ns <= 7 * self._period_ns:
            return None
        if gap_ns > JUMP_NS:
            return self._notice(FrameEvent.JUMPED, 1, f'stamp {_seconds(stamp_ns)} is '
                                f'{gap_ns / NS_PER_S:.0f} s after {_seconds(before_ns)}')
        lost = (2 * gap_ns + self._period_ns) // (2 * self._period_ns) - 1
        self.lost += lost
        return self._notice(
            FrameEvent.LOST, lost, f'{_milliseconds(gap_ns)} between {_seconds(before_ns)} and '
            f'{_seconds(stamp_ns)}, expected {_milliseconds(self._period_ns)}')

    def _notice(self, event: FrameEvent, frames: int, detail: str) -> FrameNotice:
        plural = 'frame' if frames == 1 else 'frames'
        return FrameNotice(event, frames,
                           f'camera {self._camera}: {frames} {event.value} {plural}: {detail}')


def _seconds(stamp_ns: int) -> str:
    return f'{stamp_ns // NS_PER_S}.{stamp_ns % NS_PER_S:09d}'


def _milliseconds(duration_ns: int) -> str:
    return f'{duration_ns / 1e6:.1f} ms'
