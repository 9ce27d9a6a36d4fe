"""Cameras that are read here and not from a topic: V4L2 devices, GStreamer pipelines, files.

`grab` blocks until the next frame (OpenCV waits up to 10 s for a V4L2 device that is silent), so
it belongs into a thread of its own; one source is used by one thread at a time. Nothing here
sleeps: how often to grab and when to open again after a loss is the caller's choice.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, cast

import cv2
import numpy as np
from numpy.typing import NDArray

from vla_ros.ros.image_codec import decode_compressed

Pixels = NDArray[np.uint8]
Clock = Callable[[], int]
"""The current time in nanoseconds."""

IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg')
_UNDECODABLE_IN_A_ROW = 5


class CameraLost(RuntimeError):
    """The camera gives no more frames (unplugged, pipeline ended); the message is one line."""


class CameraEnded(RuntimeError):
    """A file that does not loop has no more frames."""


class CameraSource(ABC):
    """One camera. Life: `open`, `grab` any number of times, `close`; then `open` again."""

    def __init__(self, camera: str, clock: Clock) -> None:
        self._camera = camera
        self._clock = clock

    @abstractmethod
    def open(self) -> str:
        """Start the camera; one line for the log. Raises ValueError with one line."""

    @abstractmethod
    def grab(self) -> tuple[Pixels, int]:
        """The next frame, uint8 [height, width, 3] RGB, and its stamp in ns.

        Raises CameraLost or CameraEnded; the source is closed then and can be opened again.
        """

    @abstractmethod
    def close(self) -> None:
        """Give the camera back. May be called at any time."""

    def _named(self, text: str) -> str:
        return f'camera {self._camera}: {text}'


class _CaptureSource(CameraSource):
    """What V4L2 and GStreamer share: live frames of a cv2.VideoCapture."""

    def __init__(self, camera: str, clock: Clock, capture_latency_ns: int) -> None:
        super().__init__(camera, clock)
        self._capture_latency_ns = capture_latency_ns
        self._capture: cv2.VideoCapture | None = None

    def open(self) -> str:
        self.close()
        capture = self._start()
        self._capture = capture
        return self._named(f'{self._where()}: {capture.get(cv2.CAP_PROP_FRAME_WIDTH):.0f}x'
                           f'{capture.get(cv2.CAP_PROP_FRAME_HEIGHT):.0f} at '
                           f'{capture.get(cv2.CAP_PROP_FPS):g} Hz')

    def grab(self) -> tuple[Pixels, int]:
        if self._capture is None:
            raise CameraLost(self._named(f'{self._where()} is not open'))
        # A damaged frame now and then is normal for MJPEG over USB.
        for _ in range(_UNDECODABLE_IN_A_ROW):
            try:
                if not self._capture.grab():
                    self._lose('gives no more frames')
                stamp_ns = self._clock() - self._capture_latency_ns
                decoded, frame = self._capture.retrieve()
            except cv2.error as error:
                self._lose(f'failed: {_one_line(error)}')
            if decoded and frame is not None and frame.size:
                return self._rgb(frame), stamp_ns
        self._lose(f'gave {_UNDECODABLE_IN_A_ROW} frames in a row that cannot be decoded')

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
            self._capture = None

    @abstractmethod
    def _start(self) -> cv2.VideoCapture:
        """An opened capture. Raises ValueError with one line."""

    @abstractmethod
    def _where(self) -> str:
        """The device or pipeline, as named in errors."""

    def _lose(self, reason: str) -> NoReturn:
        self.close()
        raise CameraLost(self._named(f'{self._where()} {reason}'))

    def _rgb(self, frame: NDArray[Any]) -> Pixels:
        channels = 1 if frame.ndim == 2 else frame.shape[2]
        if frame.dtype != np.uint8 or channels not in _TO_RGB:
            self._lose(f'gives {frame.dtype} frames with {channels} channels, allowed is BGR or '
                       'grey with 8 bits; convert with "videoconvert ! video/x-raw,format=BGR"')
        return _convert(frame)


class V4L2Source(_CaptureSource):
    """A camera device of the kernel. The stamp is the time of the grab less the capture latency.

    `width`, `height` in pixels and `rate` in Hz are wishes; the driver takes the nearest it has.
    `fourcc`: pixel format asked for, such as MJPG.
    """

    def __init__(self, camera: str, device: str, clock: Clock, capture_latency_ns: int = 0, *,
                 width: int | None = None, height: int | None = None, rate: float | None = None,
                 fourcc: str | None = None) -> None:
        super().__init__(camera, clock, capture_latency_ns)
        self._device = device
        self._wishes = [(cv2.CAP_PROP_FRAME_WIDTH, width), (cv2.CAP_PROP_FRAME_HEIGHT, height),
                        (cv2.CAP_PROP_FPS, rate)]
        if fourcc is not None:
            if len(fourcc) != 4 or not fourcc.isascii():
                raise ValueError(self._named(f'fourcc is {fourcc!r}, allowed are 4 letters such '
                                             'as MJPG'))
            code = int.from_bytes(fourcc.encode(), 'little')
            # The pixel format decides which sizes there are, so it comes first.
            self._wishes.insert(0, (cv2.CAP_PROP_FOURCC, code))

    def _start(self) -> cv2.VideoCapture:
        if not os.path.exists(self._device):
            found = ', '.join(sorted(map(str, Path('/dev').glob('video*')))) or 'none'
            raise ValueError(self._named(f'device {self._device} does not exist, found: {found}'))
        if not os.access(self._device, os.R_OK | os.W_OK):
            raise ValueError(self._named(f'device {self._device} is not readable, add the user to '
                                         'its group (usually video)'))
        capture = cv2.VideoCapture(self._device, cv2.CAP_V4L2)
        if not capture.isOpened():
            capture.release()
            raise ValueError(self._named(f'device {self._device} cannot be opened, it is busy or '
                                         'does not capture video'))
        for wish, value in self._wishes:
            if value is not None:
                capture.set(wish, value)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1)
        return capture

    def _where(self) -> str:
        return f'device {self._device}'


class GStreamerSource(_CaptureSource):
    """A GStreamer pipeline that ends in an appsink, for example with a hardware decoder."""

    def __init__(self, camera: str, pipeline: str, clock: Clock,
                 capture_latency_ns: int = 0) -> None:
        super().__init__(camera, clock, capture_latency_ns)
        self._pipeline = pipeline

    def _start(self) -> cv2.VideoCapture:
        if 'appsink' not in self._pipeline:
            raise ValueError(self._named(
                f'{self._where()} has no appsink, end it with "videoconvert ! '
                'video/x-raw,format=BGR ! appsink drop=true max-buffers=1 sync=false"'))
        if not has_gstreamer():
            raise ValueError(self._named(
                f'{self._where()} needs an OpenCV with GStreamer, the one of PyPI has none: '
                'uninstall opencv-python* and install python3-opencv of the distribution'))
        capture = cv2.VideoCapture(self._pipeline, cv2.CAP_GSTREAMER)
        if not capture.isOpened():
            capture.release()
            raise ValueError(self._named(
                f'{self._where()} cannot be started, try it with gst-launch-1.0'))
        return capture

    def _where(self) -> str:
        return f'pipeline "{self._pipeline}"'


class FileSource(CameraSource):
    """A video, an image or a folder of images in the natural order of their names.

    Every grab gives the next frame, stamped with the clock: the caller sets the pace.
    """

    def __init__(self, camera: str, path: str | Path, clock: Clock, *, loop: bool = False) -> None:
        super().__init__(camera, clock)
        self._path = Path(path)
        self._loop = loop
        self._frames: _Frames | None = None

    @property
    def rate(self) -> float | None:
        """The video's own rate in Hz once it is open; None for images."""
        return None if self._frames is None else self._frames.rate

    def open(self) -> str:
        self.close()
        self._frames = self._begin()
        return self._named(self._frames.description)

    def grab(self) -> tuple[Pixels, int]:
        if self._frames is None:
            raise CameraLost(self._named(f'{self._path} is not open'))
        try:
            pixels = self._frames.next()
            if pixels is None and self._loop:
                self._frames.close()
                self._frames = self._begin()
                pixels = self._frames.next()
        except (OSError, ValueError) as error:
            self.close()
            raise CameraLost(self._named(f'{self._path} is lost: {error}')) from None
        if pixels is None:
            self.close()
            raise CameraEnded(self._named(f'{self._path} has ended'))
        return pixels, self._clock()

    def close(self) -> None:
        if self._frames is not None:
            self._frames.close()
            self._frames = None

    def _begin(self) -> _Frames:
        if not self._path.exists():
            raise ValueError(self._named(f'path {self._path} does not exist'))
        if not os.access(self._path, os.R_OK):
            raise ValueError(self._named(f'path {self._path} is not readable'))
        try:
            if self._path.is_dir() or self._path.suffix.lower() in IMAGE_SUFFIXES:
                return _ImageFrames(self._path)
            return _VideoFrames(self._path)
        except ValueError as error:
            raise ValueError(self._named(str(error))) from None


class _Frames(ABC):
    """One pass over a file's frames."""

    rate: float | None = None
    description: str

    @abstractmethod
    def next(self) -> Pixels | None:
        """The next frame; None after the last. Raises OSError or ValueError with one line."""

    @abstractmethod
    def close(self) -> None:
        """Give the file back."""


class _ImageFrames(_Frames):
    def __init__(self, path: Path) -> None:
        files = sorted(path.iterdir(), key=_natural) if path.is_dir() else [path]
        self._files = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
        if not self._files:
            raise ValueError(f'folder {path} has no images, allowed are files named '
                             f'{", ".join("*" + suffix for suffix in IMAGE_SUFFIXES)}')
        self._next = 0
        _read_image(self._files[0])
        self.description = f'{path}: {len(self._files)} images'

    def next(self) -> Pixels | None:
        if self._next == len(self._files):
            return None
        self._next += 1
        return _read_image(self._files[self._next - 1])

    def close(self) -> None:
        pass


class _VideoFrames(_Frames):
    def __init__(self, path: Path) -> None:
        self._capture = cv2.VideoCapture(str(path))
        # Only a decoded frame proves that it is a video.
        self._first: NDArray[Any] | None = None
        if self._capture.isOpened():
            _, self._first = self._capture.read()
        if self._first is None:
            self._capture.release()
            raise ValueError(f'{path} is not a video that OpenCV can read')
        rate = self._capture.get(cv2.CAP_PROP_FPS)
        self.rate = rate if rate > 0 else None
        height, width = self._first.shape[:2]
        self.description = f'{path}: video {width}x{height} at {rate:g} Hz'

    def next(self) -> Pixels | None:
        frame, self._first = self._first, None
        if frame is None:
            _, frame = self._capture.read()
        return None if frame is None else _convert(frame)

    def close(self) -> None:
        self._capture.release()


def has_gstreamer() -> bool:
    """Whether this OpenCV was built with GStreamer."""
    return re.search(r'GStreamer:\s+YES', cv2.getBuildInformation()) is not None


_TO_RGB = {1: cv2.COLOR_GRAY2RGB, 3: cv2.COLOR_BGR2RGB}


def _convert(frame: NDArray[Any]) -> Pixels:
    channels = 1 if frame.ndim == 2 else frame.shape[2]
    return cast(Pixels, cv2.cvtColor(frame, _TO_RGB[channels]))


def _read_image(path: Path) -> Pixels:
    try:
        return decode_compressed(path.read_bytes(), '')
    except ValueError as error:
        raise ValueError(f'{path.name}: {error}') from None


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sorts frame_2 before frame_10."""
    return [(int(part), '') if part.isdigit() else (-1, part)
            for part in re.split(r'(\d+)', path.name)]


def _one_line(error: Exception) -> str:
    return ' '.join(str(error).split())
