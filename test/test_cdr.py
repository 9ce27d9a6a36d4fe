"""Serialized images are read as rclpy reads them; damaged ones give one clear line."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.ros.cdr import read_compressed_image, read_image

pytest.importorskip('rclpy', reason='needs ROS 2')

from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image  # noqa: E402

names = st.text(st.characters(exclude_characters='\x00', exclude_categories=['Cs']), max_size=20)
uint32 = st.integers(0, 2**32 - 1)


def image_message(frame_id: str = 'camera', encoding: str = 'rgb8',
                  data: bytes = bytes(range(48)), step: int = 12) -> Image:
    message = Image(height=4, width=5, encoding=encoding, is_bigendian=1, step=step, data=data)
    message.header.stamp.sec, message.header.stamp.nanosec = 1700000000, 123456789
    message.header.frame_id = frame_id
    return message


def compressed_message(frame_id: str = 'camera', data: bytes = b'pixels') -> CompressedImage:
    message = CompressedImage(format='rgb8; jpeg compressed bgr8', data=data)
    message.header.stamp.sec, message.header.stamp.nanosec = -5, 999999999
    message.header.frame_id = frame_id
    return message


def by_hand(order: str, *, nanosec: int = 1, frame_id: bytes = b'odd\x00', length: int = 2,
            header: bytes | None = None) -> bytes:
    """A 1x2 mono8 image, laid out by hand."""
    def padded(body: bytes) -> bytes:
        return body + bytes(-len(body) % 4)

    body = padded(struct.pack(f'{order}iII', 7, nanosec, len(frame_id)) + frame_id)
    body = body + struct.pack(f'{order}III', 1, 2, 6) + b'mono8\x00' + b'\x01'
    body = padded(body) + struct.pack(f'{order}II', 2, length) + b'\x0a\x0b'
    return (header or (b'\x00\x01\x00\x00' if order == '<' else b'\x00\x00\x00\x00')) + body


def refusal(read: Callable[[bytes], Any], raw: bytes) -> str:
    """The line with which a message is refused; its type's name where it can be read."""
    try:
        return str(type(read(raw)).__name__).replace('Raw', 'sensor_msgs/')
    except ValueError as error:
        return str(error).replace('\n', 'more than one line')


def same(read: Any, message: Any, fields: tuple[str, ...]) -> None:
    stamp = message.header.stamp
    assert read.stamp_ns == stamp.sec * 10**9 + stamp.nanosec
    assert read.frame_id == message.header.frame_id
    assert [getattr(read, field) for field in fields] == [getattr(message, field)
                                                          for field in fields]
    assert bytes(read.data) == message.data.tobytes()


IMAGE_FIELDS = ('height', 'width', 'encoding', 'is_bigendian', 'step')


@given(names, names, st.binary(max_size=50), uint32)
def test_any_image_reads_as_rclpy_reads_it(
        frame_id: str, encoding: str, data: bytes, step: int) -> None:
    raw = serialize_message(image_message(frame_id, encoding, data, step))
    same(read_image(raw), deserialize_message(raw, Image), IMAGE_FIELDS)


@given(names, st.binary(max_size=50))
def test_any_compressed_image_reads_as_rclpy_reads_it(frame_id: str, data: bytes) -> None:
    raw = serialize_message(compressed_message(frame_id, data))
    same(read_compressed_image(raw), deserialize_message(raw, CompressedImage), ('format',))


@pytest.mark.parametrize('order', ['<', '>'])
@pytest.mark.parametrize('frame_id', [b'', b'\x00', b'a\x00', b'ab\x00', b'abc\x00', b'abcd\x00'])
def test_both_byte_orders_read_as_rclpy_reads_them(order: str, frame_id: bytes) -> None:
    raw = by_hand(order, frame_id=frame_id)
    image = read_image(raw)
    assert image.stamp_ns == 7_000_000_001
    assert (image.height, image.width, image.encoding, image.step) == (1, 2, 'mono8', 2)
    assert bytes(image.data) == b'\x0a\x0b'
    same(image, deserialize_message(raw, Image), IMAGE_FIELDS)


def test_pixels_are_not_copied() -> None:
    raw = bytearray(serialize_message(image_message(data=bytes(48))))
    image = read_image(raw)
    raw[-1 - (-len(raw) % 4)] = 77
    assert image.data[-1] == 77
    assert image.data.readonly


@pytest.mark.parametrize('kind', [bytes, bytearray, memoryview])
def test_any_kind_of_buffer_can_be_read(kind: Callable[[bytes], Any]) -> None:
    assert read_image(kind(by_hand('<'))).width == 2


@pytest.mark.parametrize(('read', 'message'), [(read_image, image_message()),
                                               (read_compressed_image, compressed_message())])
def test_every_cut_gives_one_line(read: Callable[[bytes], Any], message: Any) -> None:
    raw = serialize_message(message)
    # rclpy may pad the end to four bytes, which is not missed.
    end = raw.rindex(message.data.tobytes()) + len(message.data)
    for size in range(end):
        with pytest.raises(ValueError, match='sensor_msgs/') as error:
            read(raw[:size])
        assert '\n' not in str(error.value)


@given(st.binary(max_size=200), st.sampled_from([read_image, read_compressed_image]),
       st.sampled_from([b'', b'\x00\x00\x00\x00', b'\x00\x01\x00\x00']))
def test_garbage_is_read_or_refused_with_one_line(
        garbage: bytes, read: Callable[[bytes], Any], header: bytes) -> None:
    assert refusal(read, header + garbage).startswith('sensor_msgs/')


@given(st.integers(0, len(by_hand('<')) - 1), st.integers(0, 255))
def test_one_wrong_byte_is_read_or_refused_with_one_line(place: int, value: int) -> None:
    raw = bytearray(by_hand('<'))
    raw[place] = value
    assert refusal(read_image, bytes(raw)).startswith('sensor_msgs/Image')


@pytest.mark.parametrize(('raw', 'named'), [
    (b'', '0 bytes received'),
    (by_hand('<', header=b'\x00\x03\x00\x00'), 'CDR header 0003'),
    (by_hand('<', nanosec=10**9), 'header.stamp.nanosec is 1000000000'),
    (by_hand('<', frame_id=b'\xff\xfe\x00'), 'header.frame_id is not UTF-8'),
    (by_hand('<', length=3), 'data needs 3 bytes, 2 are left'),
    (by_hand('<', length=2**32 - 1), 'data needs 4294967295 bytes'),
    (by_hand('<')[:4], 'header.stamp.sec needs 4 bytes, 0 are left'),
])
def test_an_absurd_message_names_what_is_wrong(raw: bytes, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_image(raw)
