"""Every encoding becomes the right RGB pixels; bad images give one clear line."""

from __future__ import annotations

import array
import struct
import zlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.ros import image_codec
from vla_ros.ros.image_codec import ENCODINGS, decode_compressed, resize, to_rgb

PATTERNS = ('rggb', 'bggr', 'gbrg', 'grbg')


def image(encoding: str, pixels: Any, *, width: int | None = None, height: int | None = None,
          padding: int = 0, big_endian: bool = False) -> SimpleNamespace:
    """An image message of rows `pixels` [rows, ...], with junk behind every row."""
    rows = np.ascontiguousarray(pixels)
    rows = rows.reshape(len(rows), -1).view(np.uint8)
    padded = np.full((len(rows), rows.shape[1] + padding), 0xA5, np.uint8)
    padded[:, :rows.shape[1]] = rows
    return SimpleNamespace(
        encoding=encoding, width=width or np.shape(pixels)[1], height=height or len(rows),
        is_bigendian=int(big_endian), step=padded.shape[1], data=array.array('B', padded.tobytes()))


def noise(*shape: int, dtype: Any = np.uint8) -> Any:
    return np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def pixels_or_line(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ValueError as error:
        return str(error)


def grey(values: Any) -> Any:
    return np.repeat(np.asarray(values)[..., None], 3, axis=2)


def yuv_to_rgb(y: Any, u: Any, v: Any) -> Any:
    """BT.601 with limited range, as written in its standard."""
    y, u, v = (np.asarray(plane, float) for plane in (y, u, v))
    luma = 255 / 219 * (y - 16)
    red = luma + 255 / 112 * 0.701 * (v - 128)
    green = luma - 255 / 112 * (0.886 * 0.114 / 0.587 * (u - 128) + 0.701 * 0.299 / 0.587
                                * (v - 128))
    blue = luma + 255 / 112 * 0.886 * (u - 128)
    return np.clip(np.stack([red, green, blue], axis=-1), 0, 255)


def close(pixels: Any, expected: Any, tolerance: float = 1.5) -> bool:
    return pixels.shape == np.shape(expected) and bool(
        (np.abs(pixels.astype(float) - expected) <= tolerance).all())


# ---- packed encodings

@pytest.mark.parametrize('padding', [0, 1, 5, 16])
@pytest.mark.parametrize(('encoding', 'order'), [
    ('rgb8', [0, 1, 2]), ('bgr8', [2, 1, 0]), ('rgba8', [0, 1, 2, 3]), ('bgra8', [2, 1, 0, 3])])
def test_colour_channels_are_put_in_order(encoding: str, order: list[int], padding: int) -> None:
    rgb = noise(6, 7, 4)
    stored = rgb[..., order]
    pixels = to_rgb(image(encoding, stored, padding=padding))
    assert pixels.dtype == np.uint8
    assert pixels.flags.c_contiguous
    np.testing.assert_array_equal(pixels, rgb[..., :3])


@pytest.mark.parametrize('padding', [0, 3])
@pytest.mark.parametrize('encoding', ['mono8', '8UC1'])
def test_grey_is_repeated_in_every_channel(encoding: str, padding: int) -> None:
    values = noise(5, 7)
    np.testing.assert_array_equal(to_rgb(image(encoding, values, padding=padding)), grey(values))


@pytest.mark.parametrize('padding', [0, 1, 6])
@pytest.mark.parametrize('big_endian', [False, True])
@pytest.mark.parametrize('encoding', ['mono16', '16UC1'])
def test_16_bit_is_scaled_over_the_full_range_in_both_byte_orders(
        encoding: str, big_endian: bool, padding: int) -> None:
    values = noise(5, 7, dtype=np.uint16)
    values[0, :4] = 0, 65535, 128, 129
    stored = values.astype('>u2' if big_endian else '<u2')
    pixels = to_rgb(image(encoding, stored, padding=padding, big_endian=big_endian))
    np.testing.assert_array_equal(pixels, grey(np.round(values / 257).astype(np.uint8)))
    assert pixels[0, :4, 0].tolist() == [0, 255, 0, 1]


def test_scaling_of_depth_does_not_depend_on_the_other_pixels() -> None:
    near = to_rgb(image('16UC1', np.array([[3000, 0]], np.uint16)))
    far = to_rgb(image('16UC1', np.array([[3000, 65535]], np.uint16)))
    assert near[0, 0].tolist() == far[0, 0].tolist()


def test_unpadded_rgb8_is_a_view() -> None:
    message = image('rgb8', noise(4, 5, 3))
    pixels = to_rgb(message)
    message.data[0] ^= 0xFF
    assert pixels[0, 0, 0] == message.data[0]


def test_the_view_of_a_bytes_message_cannot_be_written() -> None:
    message = image('rgb8', noise(4, 5, 3))
    message.data = message.data.tobytes()
    with pytest.raises(ValueError, match='read-only'):
        to_rgb(message)[0, 0, 0] = 1


@pytest.mark.parametrize('encoding', ['rgb8', 'bgr8', 'mono16', 'yuyv', 'bayer_rggb8'])
def test_the_padding_of_the_last_row_may_be_missing(encoding: str) -> None:
    width = {'rgb8': 3, 'bgr8': 3, 'bayer_rggb8': 1}.get(encoding, 2) * 4
    message = image(encoding, noise(4, width), width=4, padding=9)
    whole = to_rgb(message)
    message.data = message.data[:-9]
    np.testing.assert_array_equal(to_rgb(message), whole)


# ---- yuv

@pytest.mark.parametrize('padding', [0, 3, 8])
@pytest.mark.parametrize(('encoding', 'places'), [
    ('yuv422', 'uyvy'), ('uyvy', 'uyvy'), ('yuv422_yuy2', 'yuyv'), ('yuyv', 'yuyv')])
def test_yuv422_pairs_share_their_chroma(encoding: str, places: str, padding: int) -> None:
    luma, chroma = 16 + noise(4, 6) % 220, noise(4, 3, 2)
    stored = np.empty((4, 6, 2), np.uint8)
    stored[..., places.index('y')] = luma
    stored[..., 1 - places.index('y')] = chroma.reshape(4, 6)
    pixels = to_rgb(image(encoding, stored, padding=padding))
    u, v = (np.repeat(chroma[..., channel], 2, axis=1) for channel in (0, 1))
    assert close(pixels, yuv_to_rgb(luma, u, v))


@pytest.mark.parametrize('padding', [0, 6])
@pytest.mark.parametrize(('encoding', 'first'), [('nv12', 0), ('nv21', 1)])
@pytest.mark.parametrize('height_counts_both_planes', [False, True])
def test_semi_planar_blocks_share_their_chroma(
        encoding: str, first: int, padding: int, height_counts_both_planes: bool) -> None:
    luma, chroma = 16 + noise(4, 6) % 220, noise(2, 3, 2)
    stored = np.concatenate([luma, chroma[..., [first, 1 - first]].reshape(2, 6)])
    message = image(encoding, stored, padding=padding,
                    height=6 if height_counts_both_planes else 4)
    u, v = (np.kron(chroma[..., channel], np.ones((2, 2))) for channel in (0, 1))
    assert close(to_rgb(message), yuv_to_rgb(luma, u, v))


# ---- bayer

def mosaic(pattern: str, rgb: Any) -> Any:
    """What a sensor with this pattern of its first two rows sees of `rgb` [H, W, 3]."""
    height, width = rgb.shape[:2]
    channel = np.array(['rgb'.index(letter) for letter in pattern]).reshape(2, 2)
    tiled = np.tile(channel, (height // 2 + 1, width // 2 + 1))[:height, :width]
    return np.take_along_axis(rgb, tiled[..., None], axis=2)[..., 0]


@pytest.mark.parametrize('size', [(8, 8), (7, 9), (3, 3)])
@pytest.mark.parametrize('bits', [8, 16])
@pytest.mark.parametrize('pattern', PATTERNS)
def test_a_mosaic_of_one_colour_becomes_that_colour(
        pattern: str, bits: int, size: tuple[int, int]) -> None:
    colour = np.array([200, 100, 20])
    values = mosaic(pattern, np.broadcast_to(colour, (*size, 3)))
    stored = values.astype(np.uint8) if bits == 8 else (values * 257).astype('<u2')
    pixels = to_rgb(image(f'bayer_{pattern}{bits}', stored, padding=5))
    np.testing.assert_array_equal(pixels, np.broadcast_to(colour, (*size, 3)))


@pytest.mark.parametrize('pattern', PATTERNS)
def test_a_mosaic_of_a_ramp_becomes_the_ramp(pattern: str) -> None:
    columns, rows = np.meshgrid(np.arange(12), np.arange(10))
    ramp = np.stack([20 + 10 * columns, 200 - 8 * rows, 5 * (columns + rows)], axis=2)
    pixels = to_rgb(image(f'bayer_{pattern}8', mosaic(pattern, ramp).astype(np.uint8)))
    assert close(pixels[1:-1, 1:-1], ramp[1:-1, 1:-1], tolerance=1)


@pytest.mark.parametrize('pattern', PATTERNS)
def test_a_big_endian_mosaic_equals_the_little_endian_one(pattern: str) -> None:
    values = noise(8, 10, dtype=np.uint16)
    encoding = f'bayer_{pattern}16'
    np.testing.assert_array_equal(
        to_rgb(image(encoding, values.astype('>u2'), big_endian=True)),
        to_rgb(image(encoding, values.astype('<u2'))))


# ---- against cv_bridge, where it is right

@pytest.mark.parametrize(('encoding', 'channels'), [
    ('rgb8', 3), ('bgr8', 3), ('rgba8', 4), ('bgra8', 4), ('mono8', 1),
    ('bayer_rggb8', 1), ('bayer_bggr8', 1), ('bayer_gbrg8', 1)])
def test_pixels_equal_those_of_cv_bridge(encoding: str, channels: int) -> None:
    cv_bridge = pytest.importorskip('cv_bridge', reason='needs cv_bridge')
    stored = noise(9, 12, channels)
    message = image(encoding, stored)
    np.testing.assert_array_equal(to_rgb(message),
                                  cv_bridge.CvBridge().imgmsg_to_cv2(message, 'rgb8'))


def test_jpeg_equals_that_of_cv_bridge() -> None:
    cv_bridge = pytest.importorskip('cv_bridge', reason='needs cv_bridge')
    data = encoded('.jpg', noise(20, 30, 3))
    bgr = cv_bridge.CvBridge().compressed_imgmsg_to_cv2(SimpleNamespace(data=data, format='jpeg'))
    np.testing.assert_array_equal(decode_compressed(data, 'jpeg'), bgr[..., ::-1])


@pytest.mark.parametrize('contiguous', [True, False])
def test_a_published_image_reads_as_it_was_written(contiguous: bool) -> None:
    pytest.importorskip('cv_bridge', reason='needs cv_bridge')
    from vla_ros.ros.image_publishing import ImageWriter
    pixels = noise(6, 10, 3)[:, ::1 if contiguous else 2]
    message = ImageWriter('camera_optical_frame').message(pixels, 1_700_000_000_123_456_789)
    assert message.header.frame_id == 'camera_optical_frame'
    assert (message.header.stamp.sec, message.header.stamp.nanosec) == (1_700_000_000, 123_456_789)
    assert (message.encoding, message.step) == ('rgb8', pixels.shape[1] * 3)
    np.testing.assert_array_equal(to_rgb(message), pixels)


@pytest.mark.parametrize('pixels', [
    np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3)),
    np.zeros((0, 4, 3), np.uint8)])
def test_pixels_that_cannot_be_published_are_named(pixels: Any) -> None:
    pytest.importorskip('cv_bridge', reason='needs cv_bridge')
    from vla_ros.ros.image_publishing import ImageWriter
    with pytest.raises(ValueError, match=r'image to publish is .* allowed is uint8 \[height'):
        ImageWriter('camera').message(pixels, 0)


# ---- bad images

@pytest.mark.parametrize(('encoding', 'changes', 'named'), [
    ('rgb9', {}, "encoding 'rgb9' is not supported, allowed are rgb8, bgr8"),
    ('', {}, "encoding '' is not supported"),
    ('32FC1', {}, "encoding '32FC1' is not supported"),
    ('rgb8', {'width': 0}, 'size is 0x4, allowed is at least 1x1'),
    ('nv12', {'height': 0}, 'size is 4x0, allowed is at least 1x1'),
    ('rgb8', {'step': 11}, 'step is 11, allowed is at least 12'),
    ('rgb8', {'step': 0}, 'step is 0, allowed is at least 12'),
    ('mono16', {'step': 7}, 'step is 7, allowed is at least 8'),
    ('nv12', {'step': 3}, 'step is 3, allowed is at least 4'),
    ('rgb8', {'data': bytes(47)}, 'data has 47 bytes, 4 rows with step 12 need 48'),
    ('rgb8', {'data': b''}, 'data has 0 bytes'),
    ('mono8', {'height': 2**32 - 1}, 'data has 48 bytes, 4294967295 rows'),
    ('nv12', {'step': 4, 'data': bytes(23)}, 'data has 23 bytes, 6 rows with step 4 need 24'),
    ('yuyv', {'width': 5}, 'yuyv image: width is 5, allowed are even widths'),
    ('yuv422', {'width': 3}, 'yuv422 image: width is 3, allowed are even widths'),
    ('nv12', {'width': 3}, 'size is 3x4, allowed are even sizes'),
    ('nv21', {'height': 5}, 'size is 4x5, allowed are even sizes'),
    ('bayer_rggb8', {'height': 2}, 'size is 4x2, allowed is at least 3x3'),
    ('bayer_grbg16', {'width': 1}, 'size is 1x4, allowed is at least 3x3'),
])
def test_a_bad_image_gives_one_line_that_names_it(
        encoding: str, changes: dict[str, Any], named: str) -> None:
    message = SimpleNamespace(encoding=encoding, width=4, height=4, is_bigendian=0, step=12,
                              data=bytes(48))
    vars(message).update(changes)
    with pytest.raises(ValueError, match=named) as error:
        to_rgb(message)
    assert '\n' not in str(error.value)


@given(st.sampled_from([*ENCODINGS, 'other']), st.integers(0, 9), st.integers(0, 9),
       st.integers(0, 40), st.integers(0, 400), st.booleans())
def test_any_image_becomes_rgb_of_its_size_or_one_line(
        encoding: str, width: int, height: int, step: int, size: int, big_endian: bool) -> None:
    message = SimpleNamespace(encoding=encoding, width=width, height=height, step=step,
                              is_bigendian=big_endian, data=bytes(size))
    pixels = pixels_or_line(lambda: to_rgb(message))
    if isinstance(pixels, str):
        assert '\n' not in pixels
    else:
        assert pixels.dtype == np.uint8
        assert pixels.shape[1:] == (width, 3)
        assert pixels.shape[0] in (height, height // 3 * 2)


# ---- compressed

def encoded(kind: str, pixels: Any) -> bytes:
    _, data = cv2.imencode(kind, pixels)
    return bytes(data)


def png(width: int, height: int, bits: int, colour: int, rows: bytes = b'',
        palette: bytes = b'') -> bytes:
    """A PNG by hand, of the kinds that OpenCV does not write."""
    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack('>I', len(body)) + name + body + struct.pack(
            '>I', zlib.crc32(name + body))

    header = struct.pack('>IIBBBBB', width, height, bits, colour, 0, 0, 0)
    return (b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header)
            + (chunk(b'PLTE', palette) if palette else b'')
            + chunk(b'IDAT', zlib.compress(rows)) + chunk(b'IEND', b''))


def jpeg_header(width: int, height: int) -> bytes:
    data = bytearray(encoded('.jpg', np.zeros((16, 16, 3), np.uint8)))
    frame = data.index(b'\xff\xc0')
    data[frame + 5:frame + 9] = struct.pack('>HH', height, width)
    return bytes(data)


def test_png_is_decoded_without_loss() -> None:
    rgb = noise(6, 7, 3)
    np.testing.assert_array_equal(decode_compressed(encoded('.png', rgb[..., ::-1]), 'png'), rgb)


def test_jpeg_is_decoded_in_the_order_rgb() -> None:
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 2] = 255
    assert close(decode_compressed(encoded('.jpg', red), 'jpeg')[8, 8], [255, 0, 0], 3)


@pytest.mark.parametrize('kind', ['.png', '.jpg'])
def test_compressed_grey_is_repeated_in_every_channel(kind: str) -> None:
    values = np.full((16, 16), 90, np.uint8)
    assert close(decode_compressed(encoded(kind, values), ''), grey(values))


def test_16_bit_png_is_scaled_like_mono16() -> None:
    values = noise(5, 7, dtype=np.uint16)
    np.testing.assert_array_equal(decode_compressed(encoded('.png', values), 'mono16; png'),
                                  grey(np.round(values / 257).astype(np.uint8)))
    colours = noise(5, 7, 3, dtype=np.uint16)
    np.testing.assert_array_equal(decode_compressed(encoded('.png', colours[..., ::-1]), 'png'),
                                  np.round(colours / 257).astype(np.uint8))


def test_alpha_is_dropped() -> None:
    stored = noise(5, 7, 4)
    np.testing.assert_array_equal(decode_compressed(encoded('.png', stored), 'png'),
                                  stored[..., 2::-1])


def test_palette_grey_alpha_and_single_bit_png_are_decoded() -> None:
    palette = decode_compressed(png(2, 1, 8, 3, b'\x00\x01\x00', b'\x0a\x14\x1e\xc8\x64\x32'), '')
    assert palette.tolist() == [[[200, 100, 50], [10, 20, 30]]]
    grey_alpha = decode_compressed(png(2, 1, 8, 4, b'\x00\x46\xff\x50\x00'), '')
    assert grey_alpha.tolist() == [[[70] * 3, [80] * 3]]
    bits = decode_compressed(png(2, 1, 1, 0, b'\x00\x40'), '')
    assert bits.tolist() == [[[0] * 3, [255] * 3]]


def test_the_format_tells_when_the_channels_were_stored_as_they_lie() -> None:
    rgb = noise(6, 7, 3)
    as_it_lies, swapped = encoded('.png', rgb), encoded('.png', rgb[..., ::-1])
    np.testing.assert_array_equal(decode_compressed(as_it_lies, 'rgb8; png compressed rgb8'), rgb)
    np.testing.assert_array_equal(decode_compressed(swapped, 'rgb8; png compressed bgr8'), rgb)


@pytest.mark.parametrize('kind', ['.png', '.jpg'])
def test_every_cut_of_a_compressed_image_gives_one_line(kind: str) -> None:
    data = encoded(kind, noise(16, 16, 3))
    for size in range(0, len(data) - 8, 7):
        with pytest.raises(ValueError, match='CompressedImage') as error:
            decode_compressed(data[:size], 'x')
        assert '\n' not in str(error.value)


@pytest.mark.parametrize(('data', 'image_format', 'named'), [
    (b'', 'jpeg', "format 'jpeg': data begins with nothing, allowed are jpeg"),
    (b'BM123456789', '', 'CompressedImage: data begins with 424d'),
    (b'\xff\xd8\xff', 'jpeg', 'the JPEG header is not whole'),
    (png(2, 1, 8, 0, b'\x00'), 'png', "format 'png': its .* bytes are corrupt"),
    (b'any', '16UC1; compressedDepth png', 'compressedDepth .* is not supported'),
    (png(0, 5, 8, 0), 'png', 'size is 0x5'),
])
def test_a_bad_compressed_image_gives_one_line_that_names_it(
        data: bytes, image_format: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        decode_compressed(data, image_format)
    assert '\n' not in str(error.value)


@pytest.mark.parametrize('data', [png(50_000, 50_000, 8, 2), jpeg_header(65_500, 65_500)])
def test_a_decompression_bomb_is_refused_before_it_is_decoded(
        data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, 'imdecode', lambda *_: pytest.fail('was decoded'))
    with pytest.raises(ValueError, match=r'size is \d+x\d+, allowed are 1 to 33554432 pixels'):
        decode_compressed(data, 'any')


@given(st.integers(0, 10**6), st.integers(0, 255), st.sampled_from(['.png', '.jpg']))
def test_one_wrong_byte_is_decoded_or_refused_with_one_line(
        place: int, value: int, kind: str) -> None:
    data = bytearray(encoded(kind, noise(12, 12, 3)))
    data[place % len(data)] = value
    # A wrong byte in the size would cost a large array each time.
    with mock.patch.object(image_codec, 'MAX_PIXELS', 10_000):
        pixels = pixels_or_line(lambda: decode_compressed(bytes(data), ''))
    if isinstance(pixels, str):
        assert '\n' not in pixels
    else:
        assert pixels.dtype == np.uint8
        assert pixels.shape[2:] == (3,)


# ---- resize

def test_an_image_of_the_right_size_is_not_copied() -> None:
    pixels = noise(5, 7, 3)
    for mode in image_codec.RESIZE_MODES:
        assert resize(pixels, 7, 5, mode) is pixels


def test_squash_scales_both_axes() -> None:
    pixels = np.repeat(np.repeat(noise(3, 4, 3), 4, axis=0), 2, axis=1)
    np.testing.assert_array_equal(resize(pixels, 4, 3, 'squash'), pixels[::4, ::2])


def test_crop_keeps_the_centre() -> None:
    wide, high = noise(4, 10, 3), noise(11, 4, 3)
    np.testing.assert_array_equal(resize(wide, 4, 4, 'crop'), wide[:, 3:7])
    np.testing.assert_array_equal(resize(high, 4, 4, 'crop'), high[3:7])


def test_pad_keeps_the_whole_image_between_black_bars() -> None:
    wide, high = 1 + noise(4, 8, 3) // 2, 1 + noise(8, 3, 3) // 2
    padded = resize(wide, 8, 8, 'pad')
    np.testing.assert_array_equal(padded[2:6], wide)
    assert not padded[:2].any()
    assert not padded[6:].any()
    padded = resize(high, 8, 8, 'pad')
    np.testing.assert_array_equal(padded[:, 2:5], high)
    assert not padded[:, :2].any()
    assert not padded[:, 5:].any()


def test_shrinking_averages_and_growing_interpolates() -> None:
    stripes = np.zeros((8, 8, 3), np.uint8)
    stripes[:, ::2] = 200
    assert (resize(stripes, 4, 4, 'squash') == 100).all()
    edge = np.zeros((2, 2, 3), np.uint8)
    edge[:, 1] = 200
    assert len(np.unique(resize(edge, 8, 8, 'squash'))) > 2


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 30), st.integers(1, 30),
       st.sampled_from(image_codec.RESIZE_MODES))
def test_any_size_becomes_any_other(
        source_width: int, source_height: int, width: int, height: int, mode: str) -> None:
    pixels = np.full((source_height, source_width, 3), 77, np.uint8)
    resized = resize(pixels, width, height, mode)
    assert resized.shape == (height, width, 3)
    assert resized.flags.c_contiguous
    assert set(np.unique(resized)) <= ({0, 77} if mode == 'pad' else {77})
    assert (resized == 77).any()


@pytest.mark.parametrize(('arguments', 'named'), [
    ((4, 4, 'stretch'), "resize is 'stretch', allowed are squash, crop, pad"),
    ((0, 4, 'pad'), 'resize to 0x4, allowed is at least 1x1')])
def test_a_bad_resize_is_named(arguments: tuple[int, int, str], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        resize(noise(3, 3, 3), *arguments)
