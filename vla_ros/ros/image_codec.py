"""Turns every encoding that cameras send into RGB pixels, and gives them the policy's size.

cv_bridge ignores a padded `step` and the byte order and lacks some encodings, so this is an own
converter. 16-bit values (mono16, 16UC1 depth, bayer 16, 16-bit PNG) are scaled linearly from
0..65535 to 0..255, the same for every image: no value depends on the other pixels. YUV is taken
as BT.601 with limited range, as cameras send it. Alpha is dropped.
"""

from __future__ import annotations

import re
import struct
from typing import Any, NamedTuple, Protocol, cast

import cv2
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

RESIZE_MODES = ('squash', 'crop', 'pad')
MAX_PIXELS = 1 << 25
"""The largest compressed image that is decoded: a little more than 7680 x 4320."""

class _Packed(NamedTuple):
    """An encoding with one plane."""

    channels: int
    bytes_per_channel: int
    conversion: int | None  # of OpenCV; None: it is RGB already
    smallest: int = 1       # allowed width and height
    even_width: bool = False


# ROS names a mosaic by its first two rows from the first column on, OpenCV by its second row
# from the second column on.
_BAYER = {
    'rggb': cv2.COLOR_BayerBG2RGB,
    'bggr': cv2.COLOR_BayerRG2RGB,
    'gbrg': cv2.COLOR_BayerGR2RGB,
    'grbg': cv2.COLOR_BayerGB2RGB,
}
_UYVY = _Packed(2, 1, cv2.COLOR_YUV2RGB_UYVY, even_width=True)
_YUYV = _Packed(2, 1, cv2.COLOR_YUV2RGB_YUY2, even_width=True)
_PACKED = {
    'rgb8': _Packed(3, 1, None),
    'bgr8': _Packed(3, 1, cv2.COLOR_BGR2RGB),
    'rgba8': _Packed(4, 1, cv2.COLOR_RGBA2RGB),
    'bgra8': _Packed(4, 1, cv2.COLOR_BGRA2RGB),
    'mono8': _Packed(1, 1, cv2.COLOR_GRAY2RGB),
    '8UC1': _Packed(1, 1, cv2.COLOR_GRAY2RGB),
    'mono16': _Packed(1, 2, cv2.COLOR_GRAY2RGB),
    '16UC1': _Packed(1, 2, cv2.COLOR_GRAY2RGB),
    'yuv422': _UYVY,
    'uyvy': _UYVY,
    'yuv422_yuy2': _YUYV,
    'yuyv': _YUYV,
    # OpenCV makes black of mosaics smaller than 3x3.
    **{f'bayer_{pattern}{8 * size}': _Packed(1, size, conversion, smallest=3)
       for pattern, conversion in _BAYER.items() for size in (1, 2)},
}
_SEMI_PLANAR = {'nv12': cv2.COLOR_YUV2RGB_NV12, 'nv21': cv2.COLOR_YUV2RGB_NV21}

ENCODINGS = (*_PACKED, *_SEMI_PLANAR)


class ImageLike(Protocol):
    """sensor_msgs/Image or `cdr.RawImage`."""

    height: Any
    width: Any
    encoding: Any
    is_bigendian: Any
    step: Any
    data: Any


def to_rgb(image: ImageLike) -> Pixels:
    """The pixels of an image, uint8 [height, width, 3] RGB.

    rgb8 without padding is a view of `image.data`; everything else is a new array. Raises
    ValueError with one line that names the value and what is allowed.
    """
    encoding, width, height = image.encoding, int(image.width), int(image.height)
    if encoding not in ENCODINGS:
        raise ValueError(f'image encoding {encoding!r} is not supported, '
                         f'allowed are {", ".join(ENCODINGS)}')
    if width < 1 or height < 1:
        raise ValueError(f'image size is {width}x{height}, allowed is at least 1x1')
    data = np.frombuffer(image.data, np.uint8)
    if encoding in _SEMI_PLANAR:
        return _semi_planar(encoding, width, height, int(image.step), data)
    layout = _PACKED[encoding]
    if min(width, height) < layout.smallest:
        raise ValueError(f'{encoding} image: size is {width}x{height}, '
                         f'allowed is at least {layout.smallest}x{layout.smallest}')
    if layout.even_width and width % 2:
        raise ValueError(f'{encoding} image: width is {width}, allowed are even widths')
    row_bytes = width * layout.channels * layout.bytes_per_channel
    rows = _rows(encoding, row_bytes, height, int(image.step), data)
    if layout.conversion is None:
        return np.ascontiguousarray(rows).reshape(height, width, layout.channels)
    if layout.bytes_per_channel == 2:
        stored = np.dtype('>u2' if image.is_bigendian else '<u2')
        wide = np.ascontiguousarray(rows).view(stored).astype(np.uint16, copy=False)
        # To 8 bits first: the conversion then moves half the bytes, demosaicing is off by one at
        # most.
        return _rgb(_to_8_bit(wide), layout.conversion)
    pixels = np.lib.stride_tricks.as_strided(
        rows, (height, width, layout.channels), (rows.strides[0], layout.channels, 1),
        writeable=False)
    return _rgb(pixels, layout.conversion)


def decode_compressed(data: Any, image_format: str) -> Pixels:
    """The pixels of a JPEG or PNG, uint8 [height, width, 3] RGB.

    `image_format` is the field of sensor_msgs/CompressedImage, such as `jpeg` or
    `rgb8; jpeg compressed bgr8`. Raises ValueError with one line.
    """
    kind = 'CompressedImage' if not image_format else f'CompressedImage of format {image_format!r}'
    if 'compressedDepth' in image_format:
        raise ValueError(f'{kind} is not supported, allowed are jpeg and png')
    encoded = np.frombuffer(data, np.uint8)
    width, height = _encoded_size(encoded.data, kind)
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise ValueError(f'{kind}: size is {width}x{height}, allowed are 1 to {MAX_PIXELS} pixels')
    try:
        pixels = cv2.imdecode(encoded, cv2.IMREAD_UNCHANGED)
    except cv2.error:
        pixels = None
    if pixels is None:
        raise ValueError(f'{kind}: its {len(encoded)} bytes are corrupt, decoding failed')
    if pixels.dtype == np.uint16:
        pixels = _to_8_bit(pixels)
    channels = 1 if pixels.ndim == 2 else pixels.shape[2]
    conversion = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB, 4: cv2.COLOR_BGRA2RGB}[channels]
    rgb = _rgb(pixels, conversion)
    # image_transport encodes the channels as they lie; the format tells which order that was.
    if channels > 1 and re.search(r'compressed rgb', image_format):
        rgb = np.ascontiguousarray(rgb[..., ::-1])
    return rgb


def resize(pixels: Pixels, width: int, height: int, mode: str) -> Pixels:
    """`pixels` [H, W, 3] at another size, [height, width, 3].

    squash: both axes on their own. crop: the largest centred part with the new aspect ratio.
    pad: the whole image, centred between black bars. The same array where the sizes agree.
    """
    if mode not in RESIZE_MODES:
        raise ValueError(f'resize is {mode!r}, allowed are {", ".join(RESIZE_MODES)}')
    if width < 1 or height < 1:
        raise ValueError(f'resize to {width}x{height}, allowed is at least 1x1')
    source_height, source_width = pixels.shape[:2]
    if (source_width, source_height) == (width, height):
        return pixels
    if mode == 'crop':
        return _scaled(_centre_crop(pixels, width, height), width, height)
    if mode == 'squash':
        return _scaled(pixels, width, height)
    scale = min(width / source_width, height / source_height)
    inner_width = min(max(round(source_width * scale), 1), width)
    inner_height = min(max(round(source_height * scale), 1), height)
    left, top = (width - inner_width) // 2, (height - inner_height) // 2
    padded = np.zeros((height, width, 3), np.uint8)
    padded[top:top + inner_height, left:left + inner_width] = _scaled(
        pixels, inner_width, inner_height)
    return padded


def _rows(encoding: str, row_bytes: int, height: int, step: int, data: Pixels) -> Pixels:
    """The rows without their padding, a view [height, row_bytes]."""
    if step < row_bytes:
        raise ValueError(f'{encoding} image: step is {step}, allowed is at least {row_bytes} '
                         'bytes a row')
    # The last row may come without its padding.
    needed = step * (height - 1) + row_bytes
    if len(data) < needed:
        raise ValueError(f'{encoding} image: data has {len(data)} bytes, '
                         f'{height} rows with step {step} need {needed}')
    return np.lib.stride_tricks.as_strided(data, (height, row_bytes), (step, 1), writeable=False)


def _semi_planar(encoding: str, width: int, height: int, step: int, data: Pixels) -> Pixels:
    """A plane of luma, then one of half the height with the chroma pairs."""
    # Some drivers count the rows of both planes as the height; the data tells.
    if height % 3 == 0 and len(data) == step * height:
        height = height // 3 * 2
    if width % 2 or height % 2:
        raise ValueError(f'{encoding} image: size is {width}x{height}, allowed are even sizes')
    rows = _rows(encoding, width, height // 2 * 3, step, data)
    return _rgb(rows, _SEMI_PLANAR[encoding])


def _to_8_bit(values: NDArray[Any]) -> Pixels:
    scaled = cv2.convertScaleAbs(values, alpha=255.0 / 65535.0)
    return cast(Pixels, scaled).reshape(values.shape)


def _encoded_size(encoded: memoryview, kind: str) -> tuple[int, int]:
    """Width and height from the header, before anything is decoded."""
    if bytes(encoded[:8]) == b'\x89PNG\r\n\x1a\n' and bytes(encoded[12:16]) == b'IHDR':
        if bytes(encoded).rfind(b'IEND') < 0:
            raise ValueError(f'{kind}: its {len(encoded)} bytes are cut off, the PNG has no end')
        if len(encoded) >= 24:
            width, height = struct.unpack('>II', encoded[16:24])
            return width, height
    elif bytes(encoded[:2]) == b'\xff\xd8':
        return _jpeg_size(encoded, kind)
    raise ValueError(f'{kind}: data begins with {bytes(encoded[:8]).hex() or "nothing"}, '
                     'allowed are jpeg (ffd8) and png (89504e47)')


def _jpeg_size(encoded: memoryview, kind: str) -> tuple[int, int]:
    position = 2
    size: tuple[int, int] | None = None
    while position + 4 <= len(encoded) and encoded[position] == 0xff:
        marker = encoded[position + 1]
        if marker == 0xff:
            position += 1
            continue
        length = int.from_bytes(encoded[position + 2:position + 4], 'big')
        if 0xc0 <= marker <= 0xcf and marker not in (0xc4, 0xc8, 0xcc):
            if position + 9 > len(encoded):
                break
            height, width = struct.unpack('>HH', encoded[position + 5:position + 9])
            size = width, height
        if marker == 0xda and size is not None:
            # Some versions of OpenCV fill the rest of a cut image with grey and say nothing.
            if bytes(encoded[position:]).rfind(b'\xff\xd9') < 0:
                raise ValueError(f'{kind}: its {len(encoded)} bytes are cut off, '
                                 'the JPEG has no end')
            return size
        position += 2 + length
    raise ValueError(f'{kind}: its {len(encoded)} bytes are corrupt, the JPEG header is not whole')


def _centre_crop(pixels: Pixels, width: int, height: int) -> Pixels:
    source_height, source_width = pixels.shape[:2]
    crop_width, crop_height = source_width, source_height
    if source_width * height > source_height * width:
        crop_width = max(round(source_height * width / height), 1)
    else:
        crop_height = max(round(source_width * height / width), 1)
    left, top = (source_width - crop_width) // 2, (source_height - crop_height) // 2
    return pixels[top:top + crop_height, left:left + crop_width]


def _scaled(pixels: Pixels, width: int, height: int) -> Pixels:
    source_height, source_width = pixels.shape[:2]
    if (source_width, source_height) == (width, height):
        return np.ascontiguousarray(pixels)
    shrinks = width <= source_width and height <= source_height
    return cast(Pixels, cv2.resize(
        pixels, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR))


def _rgb(pixels: NDArray[Any], conversion: int) -> Pixels:
    return cast(Pixels, cv2.cvtColor(pixels, conversion))
