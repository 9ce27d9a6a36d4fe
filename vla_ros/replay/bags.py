"""Reads rosbag2 recordings (MCAP and SQLite) without ROS, with one-line errors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rosbags.highlevel import AnyReader
    from rosbags.interfaces import Connection

_NEXT = 'A recording that was cut off can be mended with `ros2 bag reindex` or `mcap recover`'


@dataclass(frozen=True)
class BagTopic:
    """One topic of a recording. `header` tells whether its messages begin with a std_msgs/Header.

    `transient_local` tells whether a recorded publisher kept its messages for late joiners.
    """

    name: str
    type: str
    count: int
    header: bool
    transient_local: bool


class RawMessage(NamedTuple):
    """One recorded message: receive time in nanoseconds, topic name, CDR bytes."""

    time_ns: int
    topic: str
    data: bytes


class BagMessage(NamedTuple):
    """One recorded message: receive time in nanoseconds, topic name, deserialized message."""

    time_ns: int
    topic: str
    message: Any


class Bag:
    """An open recording; a context manager.

    Every failure to read is a ValueError with one line; a missing path is one too. Messages come
    in the order (time, topic, sequence), so that two readings of one recording are the same.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._reader = _open(self.path)
        connections = self._reader.connections
        self.topics: dict[str, BagTopic] = {}
        for connection in sorted(connections, key=lambda c: c.topic):
            seen = self.topics.get(connection.topic)
            if seen is not None and seen.type != connection.msgtype:
                self.close()
                raise ValueError(
                    f'bag {self.path}: topic {connection.topic!r} was recorded with two types, '
                    f'{seen.type} and {connection.msgtype}; record it again under two names')
            self.topics[connection.topic] = BagTopic(
                connection.topic, connection.msgtype,
                connection.msgcount + (seen.count if seen else 0),
                self._begins_with_header(connection.msgtype),
                _transient_local(connection) or (seen is not None and seen.transient_local))
        self.message_count = self._reader.message_count
        if not self.message_count:
            self.close()
            raise ValueError(f'bag {self.path}: holds no messages; record it again')

    def __enter__(self) -> Bag:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def start_ns(self) -> int:
        """Receive time of the first message."""
        return int(self._reader.start_time)

    @property
    def end_ns(self) -> int:
        """Receive time of the last message."""
        return int(self._reader.end_time) - 1

    def require(self, topic: str) -> BagTopic:
        """The topic of this name. Raises ValueError where it is missing or holds no messages."""
        found = self.topics.get(topic) or self.topics.get('/' + topic)
        if found is None:
            near = get_close_matches(topic, self.topics, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            raise ValueError(f'bag {self.path}: no topic {topic!r}; it has '
                             f'{", ".join(self.topics)}{hint}')
        if not found.count:
            raise ValueError(f'bag {self.path}: topic {found.name!r} holds no messages; '
                             f'record it again')
        return found

    def raw(self, topics: Iterable[str] | None = None,
            start_ns: int | None = None) -> Iterator[RawMessage]:
        """The messages as CDR bytes, from `start_ns` on; all topics where none are given."""
        wanted = None if topics is None else {self.require(name).name for name in topics}
        connections = [c for c in self._reader.connections if wanted is None or c.topic in wanted]
        stream = self._guarded(connections, start_ns)
        for _, same_time in groupby(stream, key=lambda m: m.time_ns):
            yield from sorted(same_time, key=lambda m: m.topic)

    def messages(self, topics: Iterable[str] | None = None,
                 start_ns: int | None = None) -> Iterator[BagMessage]:
        """The messages deserialized, images still encoded; all topics where none are given."""
        for time_ns, topic, data in self.raw(topics, start_ns):
            yield BagMessage(time_ns, topic, self.deserialize(topic, data))

    def deserialize(self, topic: str, data: bytes) -> Any:
        """The message of one raw record. Raises ValueError on bytes that do not fit the type."""
        kind = self.topics[topic].type
        try:
            return self._reader.deserialize(data, kind)
        except Exception as error:
            raise ValueError(f'bag {self.path}: a message on {topic!r} is no {kind} '
                             f'({_line(error)}); record it again') from error

    def close(self) -> None:
        """Close the files; nothing can be read afterwards."""
        if self._reader.stack is not None:
            self._reader.close()

    def _guarded(self, connections: list[Connection],
                 start_ns: int | None) -> Iterator[RawMessage]:
        # An empty list would mean no filter.
        if not connections:
            return
        stream = self._reader.messages(connections, start=start_ns)
        missing = sum(connection.msgcount for connection in connections)
        while True:
            try:
                connection, time_ns, data = next(stream)
            except StopIteration:
                # The reader steps over damaged parts without a word.
                if start_ns is None and missing > 0:
                    raise ValueError(f'bag {self.path}: damaged, {missing} of its messages cannot '
                                     f'be read. {_NEXT}') from None
                return
            except Exception as error:
                raise ValueError(f'bag {self.path}: cannot be read to its end ({_line(error)}). '
                                 f'{_NEXT}') from error
            missing -= 1
            yield RawMessage(int(time_ns), connection.topic, bytes(data))

    def _begins_with_header(self, kind: str) -> bool:
        definition = self._reader.typestore.fielddefs.get(kind)
        if definition is None or not definition[1]:
            return False
        _, (_, first) = definition[1][0]
        return bool(first == 'std_msgs/msg/Header')


def _open(path: Path) -> AnyReader:
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ModuleNotFoundError as error:
        raise ValueError(f'bag {path}: reading bags needs the Python package '
                         f'{(error.name or "rosbags").partition(".")[0]!r}; '
                         f"install it with: pip install 'vla_ros[tools]'") from error
    if not path.exists():
        raise ValueError(f'bag {path}: does not exist; give a rosbag2 folder, '
                         f'an .mcap file or a .db3 file')
    source = _source(path)
    distribution = 'ros2_' + os.environ.get('ROS_DISTRO', '')
    known = {store.value: store for store in Stores}
    try:
        reader = AnyReader([source], default_typestore=get_typestore(
            known.get(distribution, Stores.LATEST)))
        reader.open()
    except Exception as error:
        raise ValueError(f'bag {path}: cannot be read ({_line(error)}). {_NEXT}') from error
    return reader


def _source(path: Path) -> Path:
    """What to hand to the reader: the folder, or the recording itself where metadata is missing."""
    if path.is_dir():
        if (path / 'metadata.yaml').exists():
            return path
        files = sorted(p for p in path.iterdir() if p.suffix in ('.mcap', '.db3'))
        if len(files) == 1:
            return files[0]
        raise ValueError(f'bag {path}: the folder has no metadata.yaml and {len(files)} .mcap or '
                         f'.db3 files; give a rosbag2 folder, an .mcap file or a .db3 file')
    if path.suffix not in ('.mcap', '.db3'):
        raise ValueError(f'bag {path}: {path.suffix or "no"} suffix is not a rosbag2 recording; '
                         f'give a rosbag2 folder, an .mcap file or a .db3 file')
    return path


def _transient_local(connection: Connection) -> bool:
    profiles = getattr(connection.ext, 'offered_qos_profiles', ())
    return any(getattr(profile.durability, 'name', '') == 'TRANSIENT_LOCAL' for profile in profiles)


def _line(error: BaseException) -> str:
    """An exception in one line without a final stop."""
    text = ' '.join(str(error).split()).rstrip('.')
    name = type(error).__name__
    return text if text and name.endswith('ReaderError') else f'{name}: {text}'.removesuffix(': ')
