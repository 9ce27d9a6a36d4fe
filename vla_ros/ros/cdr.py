"""Reads images straight from serialized messages, without copying the pixels.

A subscription made with `raw=True` hands over the CDR bytes of a message. rclpy needs about 3 ms
to turn those of one 640x480 image into a message; reading the few fields in front of the pixels
takes microseconds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vla_ros.core.types import NS_PER_S

Buffer = bytes | bytearray | memoryview

_BYTE_ORDERS = {b'\x00\x00': '>', b'\x00\x01': '<', b'\x00\x06': '>', b'\x00\x07': '<'}
_HEADER_BYTES = 4


@dataclass(frozen=True)
class RawImage:
    """A sensor_msgs/Image; `data` is a view of the message's bytes and keeps them alive."""

    stamp_ns: int
    frame_id: str
    height: int
    width: int
    encoding: str
    is_bigendian: bool
    step: int
    data: memoryview


@dataclass(frozen=True)
class RawCompressedImage:
    """A sensor_msgs/CompressedImage; `data` is a view of the message's bytes."""

    stamp_ns: int
    frame_id: str
    format: str
    data: memoryview


def read_image(message: Buffer) -> RawImage:
    """Read a serialized sensor_msgs/Image. Raises ValueError with one line."""
    reader = _Reader(message, 'sensor_msgs/Image')
    return RawImage(
        stamp_ns=reader.stamp('header.stamp'), frame_id=reader.string('header.frame_id'),
        height=reader.uint32('height'), width=reader.uint32('width'),
        encoding=reader.string('encoding'), is_bigendian=reader.uint8('is_bigendian') != 0,
        step=reader.uint32('step'), data=reader.sequence('data'))


def read_compressed_image(message: Buffer) -> RawCompressedImage:
    """Read a serialized sensor_msgs/CompressedImage. Raises ValueError with one line."""
    reader = _Reader(message, 'sensor_msgs/CompressedImage')
    return RawCompressedImage(
        stamp_ns=reader.stamp('header.stamp'), frame_id=reader.string('header.frame_id'),
        format=reader.string('format'), data=reader.sequence('data'))


class _Reader:
    """Takes the fields of one message in order; positions count from the end of the header."""

    def __init__(self, message: Buffer, type_name: str) -> None:
        self._type = type_name
        view = memoryview(message)
        if view.format != 'B' or not view.contiguous:
            view = view.cast('B')
        if len(view) < _HEADER_BYTES:
            raise ValueError(f'{type_name}: {len(view)} bytes received, but the CDR header alone '
                             f'has {_HEADER_BYTES}')
        order = _BYTE_ORDERS.get(bytes(view[:2]))
        if order is None:
            raise ValueError(f'{type_name}: CDR header {bytes(view[:2]).hex()} is not supported, '
                             'allowed are 0000, 0001, 0006, 0007 (plain CDR)')
        self._order = order
        self._body = view[_HEADER_BYTES:].toreadonly()
        self._position = 0

    def uint8(self, field: str) -> int:
        return self._take(1, field)[0]

    def uint32(self, field: str) -> int:
        return self._number('I', field)

    def stamp(self, field: str) -> int:
        seconds = self._number('i', f'{field}.sec')
        nanoseconds = self._number('I', f'{field}.nanosec')
        if nanoseconds >= NS_PER_S:
            raise ValueError(f'{self._type}: {field}.nanosec is {nanoseconds}, '
                             'allowed are 0 to 999999999')
        return seconds * NS_PER_S + nanoseconds

    def string(self, field: str) -> str:
        raw = bytes(self.sequence(field))
        try:
            return raw[:-1].decode() if raw.endswith(b'\x00') else raw.decode()
        except UnicodeDecodeError:
            raise ValueError(f'{self._type}: {field} is not UTF-8 text: {raw[:32]!r}') from None

    def sequence(self, field: str) -> memoryview:
        return self._take(self.uint32(f'{field} length'), field)

    def _number(self, code: str, field: str) -> int:
        self._position += -self._position % 4
        return int(struct.unpack(self._order + code, self._take(4, field))[0])

    def _take(self, size: int, field: str) -> memoryview:
        end = self._position + size
        if end > len(self._body):
            left = max(len(self._body) - self._position, 0)
            raise ValueError(f'{self._type}: message is cut off: {field} needs {size} bytes, '
                             f'{left} are left')
        taken = self._body[self._position:end]
        self._position = end
        return taken
