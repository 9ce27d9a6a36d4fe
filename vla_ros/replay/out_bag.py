"""Writes what a run gave as a rosbag2 recording (MCAP) with the topics of a live graph."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from vla_ros.replay.messages import Messages


class OutBag:
    """A recording that is being written; a context manager.

    It stands under its name only once it is whole: before, the folder has `.part` at its end.
    Messages lie in it in the order in which they are written. `latched`: topics whose messages
    are kept for late joiners. Raises ValueError with one line where the folder cannot be made.
    """

    def __init__(self, path: Path, messages: Messages, latched: Sequence[str] = ()) -> None:
        from rosbags.rosbag2 import StoragePlugin, Writer
        self.path = path
        self._messages = messages
        self._latched = frozenset(latched)
        self._part = path.with_name(path.name + '.part')
        self._connections: dict[str, Any] = {}
        try:
            shutil.rmtree(self._part, ignore_errors=True)
            self._part.parent.mkdir(parents=True, exist_ok=True)
            self._writer = Writer(self._part, version=9, storage_plugin=StoragePlugin.MCAP)
            self._writer.open()
        except OSError as error:
            raise ValueError(f'bag {path}: cannot be written: {error.strerror or error}; choose '
                             'another folder with --out') from error

    def __enter__(self) -> OutBag:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._writer.close()
        if kind is not None:
            shutil.rmtree(self._part, ignore_errors=True)
            return
        for file in self._part.iterdir():
            file.rename(file.with_name(file.name.replace(self._part.name, self.path.name)))
        metadata = self._part / 'metadata.yaml'
        metadata.write_text(metadata.read_text().replace(self._part.name, self.path.name))
        shutil.rmtree(self.path, ignore_errors=True)
        self._part.rename(self.path)

    def declare(self, topic: str, kind: str) -> None:
        """Let a topic be there, even without messages."""
        topic = '/' + topic.lstrip('/')
        if topic not in self._connections:
            self._connections[topic] = self._writer.add_connection(
                topic, kind, typestore=self._messages.typestore,
                offered_qos_profiles=[_qos(topic in self._latched)])

    def write(self, topic: str, time_ns: int, message: Any) -> None:
        """Write a message that `Messages` made."""
        self.write_raw(topic, time_ns, message.__msgtype__, self._messages.bytes(message))

    def write_raw(self, topic: str, time_ns: int, kind: str, data: bytes) -> None:
        """Write the bytes of a message as they are."""
        self.declare(topic, kind)
        self._writer.write(self._connections['/' + topic.lstrip('/')], time_ns, data)


def _qos(latched: bool) -> Any:
    from rosbags.interfaces import (
        Qos,
        QosDurability,
        QosHistory,
        QosLiveliness,
        QosReliability,
        QosTime,
    )
    never = QosTime(9223372036, 854775807)
    durability = QosDurability.TRANSIENT_LOCAL if latched else QosDurability.VOLATILE
    return Qos(QosHistory.KEEP_LAST, 1 if latched else 10, QosReliability.RELIABLE, durability,
               never, never, QosLiveliness.AUTOMATIC, never, False)
