"""What playing a recording needs of time and of bytes; no ROS in here."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

from vla_ros.core.types import NS_PER_S

_STAMP_OFFSET = 4  # behind the CDR header
# By the CDR header: big or little endian, plain CDR of either version.
_STAMPS = {b'\x00\x00': struct.Struct('>iI'), b'\x00\x01': struct.Struct('<iI'),
           b'\x00\x06': struct.Struct('>iI'), b'\x00\x07': struct.Struct('<iI')}
_GAPS_KEPT = 1000


class RecordedTopic(Protocol):
    """What the player asks of a topic; `header`: its messages begin with a std_msgs/Header."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def header(self) -> bool: ...
    @property
    def transient_local(self) -> bool: ...


class RecordedMessage(Protocol):
    """One message: receive time in nanoseconds, topic name, CDR bytes."""

    @property
    def time_ns(self) -> int: ...
    @property
    def topic(self) -> str: ...
    @property
    def data(self) -> bytes: ...


class Recording(Protocol):
    """What the player asks of a bag; messages come in the order of their receive times."""

    @property
    def path(self) -> Path: ...
    @property
    def start_ns(self) -> int: ...
    @property
    def end_ns(self) -> int: ...
    @property
    def topics(self) -> Mapping[str, RecordedTopic]: ...

    def require(self, topic: str) -> RecordedTopic: ...

    def raw(self, topics: Iterable[str] | None = None,
            start_ns: int | None = None) -> Iterator[RecordedMessage]: ...


@dataclass(frozen=True)
class PlayOptions:
    """How to play. Raises ValueError with one line on values that make no sense.

    `clock_hz`: 0 plays without `/clock`. `restamp`: header stamps move to the present; None means
    yes unless there is a `/clock`. `topics`: empty plays all. `wait_s`: limit of the wait for
    subscribers, 0 does not wait. Times in seconds.
    """

    rate: float = 1.0
    loop: bool = False
    clock_hz: float = 0.0
    restamp: bool | None = None
    topics: tuple[str, ...] = ()
    start_offset_s: float = 0.0
    delay_s: float = 0.0
    wait_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.001 <= self.rate <= 1000.0:
            raise ValueError(f'play: rate: {self.rate}; allowed is 0.001 to 1000')
        if self.clock_hz and not 100.0 <= self.clock_hz <= 1000.0:
            raise ValueError(f'play: clock: {self.clock_hz} Hz; allowed is 100 to 1000, or none')
        for name in ('start_offset_s', 'delay_s', 'wait_s'):
            if not 0.0 <= getattr(self, name) < 1e6:
                raise ValueError(f'play: {name[:-2].replace("_", " ")}: {getattr(self, name)} s; '
                                 f'allowed is 0 or more')
        if self.clock_hz and self.restamp:
            raise ValueError('play: restamp and clock: stamps would be of today and /clock of the '
                             'recording; leave one of them out')

    @property
    def moves_stamps(self) -> bool:
        return not self.clock_hz if self.restamp is None else self.restamp


class Timeline:
    """Maps played time to the monotonic clock and back, at a rate; all in nanoseconds.

    Played time is the recorded receive time, plus the length of the passes played before.
    """

    def __init__(self, played_ns: int, monotonic_ns: int, rate: float) -> None:
        self._played_ns = played_ns
        self._monotonic_ns = monotonic_ns
        self._rate = rate

    def due_ns(self, played_ns: int) -> int:
        """When this played time is reached."""
        return self._monotonic_ns + round((played_ns - self._played_ns) / self._rate)

    def played_ns(self, monotonic_ns: int) -> int:
        return self._played_ns + round((monotonic_ns - self._monotonic_ns) * self._rate)

    def resume(self, played_ns: int, monotonic_ns: int) -> None:
        """Go on from here, after a pause."""
        self._played_ns, self._monotonic_ns = played_ns, monotonic_ns


class TypicalGap:
    """The median time between two messages of the topic that has the most of them."""

    def __init__(self, topics: Iterable[RecordedTopic]) -> None:
        self._topic = max(topics, key=lambda topic: (topic.count, topic.name)).name
        self._last_ns: int | None = None
        self._gaps_ns: list[int] = []

    def add(self, topic: str, time_ns: int) -> None:
        if topic != self._topic or len(self._gaps_ns) >= _GAPS_KEPT:
            return
        if self._last_ns is not None:
            self._gaps_ns.append(time_ns - self._last_ns)
        self._last_ns = time_ns

    def ns(self) -> int:
        """0.1 s where there was but one message."""
        return round(median(self._gaps_ns)) if self._gaps_ns else NS_PER_S // 10


def shift_stamp(data: bytes, shift_ns: int) -> bytes:
    """CDR bytes of a message that begins with a Header, its stamp moved by `shift_ns`.

    A zero stamp means "no stamp" and stays; so does what is no plain CDR or would leave its range.
    """
    stamp = _STAMPS.get(data[:2])
    if stamp is None or len(data) < _STAMP_OFFSET + stamp.size:
        return data
    seconds, nanoseconds = stamp.unpack_from(data, _STAMP_OFFSET)
    if not seconds and not nanoseconds:
        return data
    seconds, nanoseconds = divmod(seconds * NS_PER_S + nanoseconds + shift_ns, NS_PER_S)
    if not 0 <= seconds < 1 << 31:
        return data
    return b''.join((data[:_STAMP_OFFSET], stamp.pack(seconds, nanoseconds),
                     data[_STAMP_OFFSET + stamp.size:]))
