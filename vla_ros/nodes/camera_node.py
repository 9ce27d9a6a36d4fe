"""camera_node: frames from topics, devices, pipelines or files, at the policy's size, as rgb8."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from vla_ros.core.latency import LatencyAccount
from vla_ros.core.types import NS_PER_S, ImageSize
from vla_ros.profiles.camera import CameraProfile, Source, Transport
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.camera_sources import (
    CameraEnded,
    CameraLost,
    CameraSource,
    FileSource,
    GStreamerSource,
    V4L2Source,
)
from vla_ros.ros.cdr import read_compressed_image, read_image
from vla_ros.ros.diagnostics import OK, WARN, Diagnostics, latency_values
from vla_ros.ros.frame_gaps import FrameGapDetector
from vla_ros.ros.image_codec import decode_compressed, resize, to_rgb
from vla_ros.ros.image_publishing import ImageWriter
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.parameters import Parameter, ParameterTable
from vla_ros.ros.qos import IMAGE, subscription_events
from vla_ros.ros.stages import PUBLISH_LATENCY, stage_publisher

PARAMETERS = ParameterTable([
    Parameter('robot', 'widowx_bridge', 'robot profile: a shipped name or a path'),
    Parameter('policy', 'knn_bridge', 'policy profile: a shipped name or a path'),
    AUTOSTART,
    PUBLISH_LATENCY,
])
REOPEN_S = (0.5, 1.0, 2.0, 5.0)  # waits before a lost camera is opened again
SILENT_PERIODS = 2.5             # a camera is called silent after this many of its periods
CHECK_S = 0.2
JOIN_S = 1.0


class Camera:
    """One camera of the policy: takes frames, resizes, publishes, keeps count.

    `publish` may be called from one thread at a time.
    """

    def __init__(self, node: CameraNode, profile: CameraProfile, size: ImageSize) -> None:
        self.profile = profile
        self._node = node
        self._size = size
        self._writer = ImageWriter(f'{profile.name}_optical_frame')
        self._gaps = FrameGapDetector(profile.name, profile.period_ns)
        self.latency = LatencyAccount(('capture_to_receipt', 'convert'))
        self.counts: Counter[str] = Counter()
        self.seen_ns = node.now_ns()
        self.publisher = node.create_publisher(
            Image, f'observation/{profile.name}/image', IMAGE)

    def on_message(self, message: bytes) -> None:
        """Take a serialized Image or CompressedImage."""
        received_ns = self._node.now_ns()
        try:
            if self.profile.transport is Transport.COMPRESSED:
                compressed = read_compressed_image(message)
                stamp_ns = compressed.stamp_ns
                pixels = decode_compressed(compressed.data, compressed.format)
            else:
                image = read_image(message)
                stamp_ns, pixels = image.stamp_ns, to_rgb(image)
        except ValueError as error:
            self.counts['frames that cannot be read'] += 1
            self._node.get_logger().error(f'{self.profile.topic}: {error}',
                                          throttle_duration_sec=1.0)
            return
        self.publish(pixels, stamp_ns, received_ns)

    def publish(self, pixels: NDArray[np.uint8], stamp_ns: int, received_ns: int) -> None:
        """Resize and publish a frame of uint8 [H, W, 3] RGB, captured at `stamp_ns`."""
        notice = self._gaps.observe(stamp_ns)
        if notice is not None:
            self.counts[f'frames {notice.event.value}'] += notice.frames
            self._node.get_logger().warning(notice.text, throttle_duration_sec=1.0)
        pixels = resize(pixels, self._size.width, self._size.height, self.profile.resize.value)
        self.publisher.publish(self._writer.message(pixels, stamp_ns))
        published_ns = self._node.now_ns()
        self.counts['frames'] += 1
        self.seen_ns = received_ns
        self.latency.add(capture_to_receipt=received_ns - stamp_ns,
                         convert=published_ns - received_ns)
        self._node.account(stamp_ns, received_ns, published_ns)

    def silence(self, now_ns: int) -> str:
        """The camera as a line, if it has been silent for too long; else ''."""
        silent_ns = now_ns - self.seen_ns
        if silent_ns <= SILENT_PERIODS * self.profile.period_ns:
            return ''
        return (f'{self.profile.name}: no frame for {silent_ns / NS_PER_S:.1f} s '
                f'(one is due every {self.profile.period_ns / NS_PER_S:g} s)')


class CameraNode(LifecycleNode):
    """Wiring of the cameras. Topics are served by the executor, other sources by a thread each."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('camera_node', debug)
        self._cameras: list[Camera] = []
        self._handles: list[tuple[Any, Any]] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def configure(self, parameters: Mapping[str, Any]) -> None:
        robot = load_robot(parameters['robot'])
        policy = load_policy(parameters['policy'])
        self._stages = stage_publisher(self, parameters)
        for name, size in policy.cameras.items():
            if name not in robot.cameras:
                raise ValueError(f'{robot.file}: cameras: {name}: policy {policy.name} needs it; '
                                 f'the robot has {", ".join(robot.cameras)}')
            camera = Camera(self, robot.cameras[name], size)
            self._cameras.append(camera)
            self._handles.append((self.destroy_publisher, camera.publisher))
        self._diagnostics = Diagnostics(self, robot.name)
        self._source_of = {id(camera): _source(camera.profile, self.now_ns)
                           for camera in self._cameras
                           if camera.profile.source is not Source.TOPIC}
        for camera in self._cameras:
            source = self._source_of.get(id(camera))
            if source is not None:
                self.get_logger().info(source.open())

    def activate(self) -> None:
        self._stop.clear()
        for camera in self._cameras:
            source = self._source_of.get(id(camera))
            if source is None:
                self._subscribe(camera)
            else:
                thread = threading.Thread(target=self._grab, args=(camera, source), daemon=True)
                self._threads.append(thread)
                thread.start()
        self._timer = self.create_timer(CHECK_S, self._report)

    def deactivate(self) -> None:
        self.destroy_timer(self._timer)
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads = []

    def clean_up(self) -> None:
        for destroy, handle in self._handles:
            destroy(handle)
        self._handles, self._cameras = [], []

    def now_ns(self) -> int:
        return int(self.get_clock().now().nanoseconds)

    def account(self, stamp_ns: int, received_ns: int, published_ns: int) -> None:
        if self._stages is not None:
            self._stages.publish(stamp_ns, received=received_ns, image_published=published_ns)

    def _subscribe(self, camera: Camera) -> None:
        compressed = camera.profile.transport is Transport.COMPRESSED
        topic = camera.profile.topic
        subscription = self.create_subscription(
            CompressedImage if compressed else Image, topic, camera.on_message, IMAGE, raw=True,
            event_callbacks=subscription_events(self, topic))
        self._handles.append((self.destroy_subscription, subscription))

    def _grab(self, camera: Camera, source: CameraSource) -> None:
        """Read a source until told to stop; a lost one is opened again, ever more patiently."""
        attempt = 0
        paced = camera.profile.source is Source.FILE
        while not self._stop.is_set():
            try:
                pixels, stamp_ns = source.grab()
                attempt = 0
            except CameraEnded as ended:
                self.get_logger().info(str(ended))
                return
            except CameraLost as lost:
                self.get_logger().error(str(lost))
                while not self._stop.wait(REOPEN_S[min(attempt, len(REOPEN_S) - 1)]):
                    attempt += 1
                    try:
                        self.get_logger().info(source.open())
                        break
                    except ValueError as error:
                        self.get_logger().error(str(error))
                continue
            camera.publish(pixels, stamp_ns, self.now_ns())
            if paced:
                self._stop.wait(camera.profile.period_ns / NS_PER_S)
        source.close()

    def _report(self) -> None:
        now_ns = self.now_ns()
        silent = next(filter(None, (camera.silence(now_ns) for camera in self._cameras)), '')
        level = WARN if silent else OK
        if not self._diagnostics.due(level, level.hex(), now_ns):
            return
        if silent:
            self.get_logger().warning(silent, throttle_duration_sec=5.0)
        values: dict[str, object] = {}
        for camera in self._cameras:
            name = camera.profile.name
            values |= {f'{name}: {what}': count for what, count in camera.counts.items()}
            values |= {f'{name}: {key}': text
                       for key, text in latency_values(camera.latency.summaries()).items()}
        self._diagnostics.publish(level, silent or 'streaming', values, now_ns)


SOURCES: dict[Source, Callable[[CameraProfile, Callable[[], int]], CameraSource]] = {
    Source.V4L2: lambda p, clock: V4L2Source(
        p.name, p.device, clock, p.capture_latency_ns, rate=p.rate),
    Source.GSTREAMER: lambda p, clock: GStreamerSource(
        p.name, p.pipeline, clock, p.capture_latency_ns),
    Source.FILE: lambda p, clock: FileSource(p.name, p.path or '', clock, loop=p.loop),
}


def _source(profile: CameraProfile, clock: Callable[[], int]) -> CameraSource:
    return SOURCES[profile.source](profile, clock)


def main() -> None:
    """Entry point of the executable."""
    sys.exit(run(lambda debug: CameraNode(debug)))


if __name__ == '__main__':
    main()
