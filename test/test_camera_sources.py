"""Files, devices and pipelines give RGB frames with the right stamps; losses are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.ros import camera_sources
from vla_ros.ros.camera_sources import (
    CameraEnded,
    CameraLost,
    CameraSource,
    FileSource,
    GStreamerSource,
    V4L2Source,
    has_gstreamer,
)
from vla_ros.ros.frame_gaps import FrameEvent, FrameGapDetector

PIPELINE = 'videotestsrc ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true'


class Ticks:
    """A clock that goes on by one second with every reading, from 101 s."""

    def __init__(self) -> None:
        self.now_ns = 100 * 10**9

    def __call__(self) -> int:
        self.now_ns += 10**9
        return self.now_ns


def flat(red: int, height: int = 32, width: int = 48) -> Any:
    """A BGR image whose red tells which one it is."""
    return np.full((height, width, 3), (0, 0, red), np.uint8)


def reds(source: CameraSource, frames: int) -> list[int]:
    return [round(int(source.grab()[0][8, 8, 0]) / 40) for _ in range(frames)]


@pytest.fixture
def video(tmp_path: Path) -> Path:
    """Four frames at 12 Hz whose red is 0, 40, 80, 120."""
    path = tmp_path / 'clip.mp4'
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'mp4v'), 12.0, (48, 32))
    for frame in range(4):
        writer.write(flat(40 * frame))
    writer.release()
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images that plain sorting would put into the order 1, 10, 2."""
    path = tmp_path / 'images'
    path.mkdir()
    for number, red in ((1, 40), (2, 80), (10, 120)):
        cv2.imwrite(str(path / f'frame_{number}.png'), flat(red))
    (path / 'notes.txt').write_text('no image')
    return path


# ---- files

def test_a_video_gives_its_frames_in_rgb_and_then_ends(video: Path) -> None:
    source = FileSource('primary', video, Ticks())
    assert source.open() == f'camera primary: {video}: video 48x32 at 12 Hz'
    assert source.rate == 12.0
    pixels, stamp_ns = source.grab()
    assert pixels.shape == (32, 48, 3)
    assert stamp_ns == 101 * 10**9
    assert reds(source, 3) == [1, 2, 3]
    with pytest.raises(CameraEnded, match=r'camera primary: .*clip.mp4 has ended'):
        source.grab()


def test_a_looping_video_begins_again(video: Path) -> None:
    source = FileSource('primary', video, Ticks(), loop=True)
    source.open()
    assert reds(source, 9) == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_folder_gives_its_images_in_natural_order(folder: Path) -> None:
    source = FileSource('primary', folder, Ticks(), loop=True)
    assert source.open() == f'camera primary: {folder}: 3 images'
    assert source.rate is None
    assert reds(source, 4) == [1, 2, 3, 1]


def test_a_single_image_is_a_source(folder: Path) -> None:
    source = FileSource('primary', folder / 'frame_2.png', Ticks(), loop=True)
    source.open()
    assert reds(source, 2) == [2, 2]


def test_an_ended_file_can_be_opened_again(folder: Path) -> None:
    source = FileSource('primary', folder, Ticks())
    source.open()
    reds(source, 3)
    with pytest.raises(CameraEnded):
        source.grab()
    source.open()
    assert reds(source, 1) == [1]


def test_an_image_that_vanishes_is_a_lost_camera(folder: Path) -> None:
    source = FileSource('primary', folder, Ticks())
    source.open()
    (folder / 'frame_2.png').unlink()
    reds(source, 1)
    with pytest.raises(CameraLost, match=r'^camera primary: .*images is lost: .*frame_2.png'):
        source.grab()


def test_a_video_that_vanishes_is_a_lost_camera(video: Path) -> None:
    source = FileSource('primary', video, Ticks(), loop=True)
    source.open()
    video.unlink()
    reds(source, 4)
    with pytest.raises(CameraLost, match=r'is lost: .*clip.mp4 does not exist'):
        source.grab()


def broken_image(path: Path) -> None:
    path.mkdir()
    (path / 'a.jpg').write_bytes(b'\xff\xd8 no jpeg')


@pytest.mark.parametrize(('make', 'named'), [
    (lambda path: None, 'path .*thing does not exist'),
    (Path.mkdir, r'folder .*thing has no images, allowed are files named \*.png, \*.jpg'),
    (lambda path: path.write_text('text'), 'thing is not a video that OpenCV can read'),
    (lambda path: path.write_bytes(b''), 'thing is not a video that OpenCV can read'),
    (broken_image, 'a.jpg: CompressedImage: .* corrupt'),
])
def test_a_bad_file_gives_one_line(
        make: Callable[[Path], Any], named: str, tmp_path: Path) -> None:
    make(tmp_path / 'thing')
    with pytest.raises(ValueError, match='^camera primary: .*' + named) as error:
        FileSource('primary', tmp_path / 'thing', Ticks()).open()
    assert '\n' not in str(error.value)


def test_an_unreadable_file_is_named(video: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'access', lambda *_: False)
    with pytest.raises(ValueError, match='clip.mp4 is not readable'):
        FileSource('primary', video, Ticks()).open()


# ---- live captures, with a stand-in that fails on demand

class FakeCapture:
    """A cv2.VideoCapture whose frames are given: an array, None (damaged) or an exception."""

    opened: list[FakeCapture] = []
    frames: list[Any] = []

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.settings: list[tuple[int, float]] = []
        self.released = False
        self._left = list(self.frames)
        self._frame: Any = None
        FakeCapture.opened.append(self)

    def isOpened(self) -> bool:
        return bool(self._left)

    def set(self, setting: int, value: float) -> bool:
        self.settings.append((setting, value))
        return True

    def get(self, setting: int) -> float:
        return {cv2.CAP_PROP_FRAME_WIDTH: 48.0, cv2.CAP_PROP_FRAME_HEIGHT: 32.0}.get(setting, 30.0)

    def grab(self) -> bool:
        if not self._left:
            return False
        self._frame = self._left.pop(0)
        if isinstance(self._frame, Exception):
            raise self._frame
        return True

    def retrieve(self) -> tuple[bool, Any]:
        return self._frame is not None, self._frame

    def release(self) -> None:
        self.released = True


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that exists, with a FakeCapture behind it."""
    monkeypatch.setattr(cv2, 'VideoCapture', FakeCapture)
    monkeypatch.setattr(FakeCapture, 'opened', [])
    path = tmp_path / 'video7'
    path.touch()
    return str(path)


def give(monkeypatch: pytest.MonkeyPatch, *frames: Any) -> None:
    monkeypatch.setattr(FakeCapture, 'frames', list(frames))


def test_a_device_gives_rgb_stamped_with_the_grab_less_the_latency(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, flat(80))
    source = V4L2Source('wrist', device, Ticks(), capture_latency_ns=30_000_000)
    assert source.open() == f'camera wrist: device {device}: 48x32 at 30 Hz'
    pixels, stamp_ns = source.grab()
    assert pixels[0, 0].tolist() == [80, 0, 0]
    assert stamp_ns == 101 * 10**9 - 30_000_000


def test_a_device_is_asked_for_one_buffer_and_the_format_before_the_size(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, flat(0))
    V4L2Source('wrist', device, Ticks(), width=640, height=480, rate=15.0, fourcc='MJPG').open()
    capture = FakeCapture.opened[-1]
    assert capture.arguments == (device, cv2.CAP_V4L2)
    assert capture.settings == [
        (cv2.CAP_PROP_FOURCC, 0x47504A4D), (cv2.CAP_PROP_FRAME_WIDTH, 640),
        (cv2.CAP_PROP_FRAME_HEIGHT, 480), (cv2.CAP_PROP_FPS, 15.0),
        (cv2.CAP_PROP_BUFFERSIZE, 1)]


def test_an_unplugged_device_is_lost_and_can_be_opened_again(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, flat(40))
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    assert reds(source, 1) == [1]
    with pytest.raises(CameraLost, match='^camera wrist: device .*video7 gives no more frames$'):
        source.grab()
    assert FakeCapture.opened[-1].released
    with pytest.raises(CameraLost, match='is not open'):
        source.grab()
    os.unlink(device)
    with pytest.raises(ValueError, match='does not exist'):
        source.open()
    Path(device).touch()
    give(monkeypatch, flat(80))
    source.open()
    assert reds(source, 1) == [2]


def test_single_damaged_frames_are_passed_over(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, None, None, flat(40))
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    _, stamp_ns = source.grab()
    assert stamp_ns == 103 * 10**9


def test_only_damaged_frames_are_a_lost_camera(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, *[None] * 9)
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    with pytest.raises(CameraLost, match='gave 5 frames in a row that cannot be decoded'):
        source.grab()


def test_an_exception_of_opencv_is_a_lost_camera_in_one_line(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, cv2.error('select()\n timeout'))
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    with pytest.raises(CameraLost, match=r'video7 failed: select\(\) timeout$'):
        source.grab()


def test_grey_frames_become_rgb(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, np.full((4, 4), 9, np.uint8), np.full((4, 4, 1), 9, np.uint8))
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    assert source.grab()[0][0, 0].tolist() == [9, 9, 9]
    assert source.grab()[0].shape == (4, 4, 3)


def test_frames_that_are_neither_bgr_nor_grey_are_named(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, np.zeros((4, 4, 2), np.uint8))
    source = V4L2Source('wrist', device, Ticks())
    source.open()
    with pytest.raises(CameraLost, match='gives uint8 frames with 2 channels, allowed is BGR'):
        source.grab()


def test_a_missing_device_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match='device /dev/video999 does not exist, found: '):
        V4L2Source('wrist', '/dev/video999', Ticks()).open()


def test_a_device_without_permission_names_the_group(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'access', lambda *_: False)
    with pytest.raises(ValueError, match=r'is not readable, add the user .*video'):
        V4L2Source('wrist', device, Ticks()).open()


def test_a_file_that_is_no_device_is_named(tmp_path: Path) -> None:
    path = tmp_path / 'video7'
    path.touch()
    with pytest.raises(ValueError, match='cannot be opened, it is busy or does not capture'):
        V4L2Source('wrist', str(path), Ticks()).open()


def test_a_bad_pixel_format_is_named() -> None:
    with pytest.raises(ValueError, match="fourcc is 'JPEG2', allowed are 4 letters"):
        V4L2Source('wrist', '/dev/video0', Ticks(), fourcc='JPEG2')


def test_a_pipeline_gives_rgb(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_sources, 'has_gstreamer', lambda: True)
    give(monkeypatch, flat(80))
    source = GStreamerSource('wrist', PIPELINE, Ticks(), capture_latency_ns=1)
    source.open()
    assert FakeCapture.opened[-1].arguments == (PIPELINE, cv2.CAP_GSTREAMER)
    pixels, stamp_ns = source.grab()
    assert pixels[0, 0].tolist() == [80, 0, 0]
    assert stamp_ns == 101 * 10**9 - 1
    with pytest.raises(CameraLost, match='pipeline "videotestsrc .*" gives no more frames'):
        source.grab()


def test_a_pipeline_that_does_not_start_is_named(
        device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(camera_sources, 'has_gstreamer', lambda: True)
    give(monkeypatch)
    with pytest.raises(ValueError, match='cannot be started, try it with gst-launch-1.0'):
        GStreamerSource('wrist', PIPELINE, Ticks()).open()


def test_a_pipeline_without_appsink_names_the_fix() -> None:
    with pytest.raises(ValueError, match='has no appsink, end it with "videoconvert'):
        GStreamerSource('wrist', 'videotestsrc ! fakesink', Ticks()).open()


@pytest.mark.skipif(has_gstreamer(), reason='this OpenCV has GStreamer')
def test_an_opencv_without_gstreamer_names_the_fix() -> None:
    with pytest.raises(ValueError, match='the one of PyPI has none: .* install python3-opencv'):
        GStreamerSource('wrist', PIPELINE, Ticks()).open()


@pytest.mark.skipif(not has_gstreamer(), reason='this OpenCV has no GStreamer (that of PyPI)')
def test_a_real_pipeline_gives_frames() -> None:
    source = GStreamerSource('wrist', PIPELINE, Ticks())
    source.open()
    assert source.grab()[0].ndim == 3
    source.close()


@pytest.mark.parametrize(('line', 'expected'), [
    ('    GStreamer:                   YES (1.20.3)\n', True),
    ('    GStreamer:                   NO\n', False), ('', False)])
def test_gstreamer_is_found_in_the_build_information(
        line: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cv2, 'getBuildInformation', lambda: f'  Video I/O:\n{line}    v4l2: YES\n')
    assert has_gstreamer() is expected


# ---- lost frames

def observe(stamps_ms: list[float], period_ms: float = 100.0) -> tuple[FrameGapDetector, list[Any]]:
    detector = FrameGapDetector('primary', round(period_ms * 1e6))
    notices = [detector.observe(round(1e9 + stamp * 1e6)) for stamp in stamps_ms]
    return detector, [notice and (notice.event, notice.frames) for notice in notices]


LOST, TWICE, BACK = FrameEvent.LOST, FrameEvent.DUPLICATED, FrameEvent.BACK_DATED


@pytest.mark.parametrize(('stamps', 'expected'), [
    ([0, 100, 200], [None, None, None]),
    ([0, 175], [None, None]),
    ([0, 176], [None, (LOST, 1)]),
    ([0, 249], [None, (LOST, 1)]),
    ([0, 251], [None, (LOST, 2)]),
    ([0, 1000, 1100], [None, (LOST, 9), None]),
    ([0, 20, 40], [None, None, None]),
    ([0, 0, 100, 100, 100], [None, (TWICE, 1), None, (TWICE, 1), (TWICE, 1)]),
    # one frame out of order
    ([0, 100, 50, 200], [None, None, (BACK, 1), None]),
    ([0, 100, 50, 50, 200], [None, None, (BACK, 1), (TWICE, 1), None]),
    # the clock was set back: said once, then counted from there
    ([5000, 0, 100, 400], [None, (BACK, 1), None, (LOST, 2)]),
    ([5000, 0, 300, 400], [None, (BACK, 1), (LOST, 2), None]),
])
def test_what_the_stamps_say(stamps: list[float], expected: list[Any]) -> None:
    assert observe(stamps)[1] == expected


@given(st.lists(st.booleans(), min_size=2, max_size=60), st.floats(-0.2, 0.2))
def test_every_missing_frame_is_counted_once(kept: list[bool], jitter: float) -> None:
    stamps = [100 * frame + 100 * jitter * (frame % 2) for frame, keep in enumerate(kept) if keep]
    places = [frame for frame, keep in enumerate(kept) if keep]
    detector, _ = observe(stamps)
    assert detector.received == len(places)
    assert detector.lost == (places[-1] - places[0] + 1 - len(places) if places else 0)


def test_a_notice_names_the_camera_the_frames_and_the_gap() -> None:
    detector = FrameGapDetector('wrist', 100_000_000)
    detector.observe(12_000_000_000)
    notice = detector.observe(12_300_000_000)
    assert notice is not None
    assert notice.text == ('camera wrist: 2 lost frames: 300.0 ms between 12.000000000 and '
                           '12.300000000, expected 100.0 ms')
    notice = detector.observe(12_250_000_000)
    assert notice is not None
    assert notice.text == ('camera wrist: 1 back-dated frame: stamp 12.250000000 is 50.0 ms '
                           'before 12.300000000')


def test_a_reopened_camera_starts_without_a_gap() -> None:
    detector = FrameGapDetector('wrist', 100_000_000)
    detector.observe(0)
    detector.reset()
    assert detector.observe(10**10) is None
    assert (detector.received, detector.lost) == (2, 0)


def test_a_period_of_nothing_is_named() -> None:
    with pytest.raises(ValueError, match='camera wrist: period is 0 ns, allowed is more than 0'):
        FrameGapDetector('wrist', 0)
