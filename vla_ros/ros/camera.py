"""One camera of the policy: takes frames, resizes, publishes, keeps count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from rclpy.node import Node
from sensor_msgs.msg import Image

from vla_ros.core.diagnostic_values import latency_values
from vla_ros.core.latency import LatencyAccount
from vla_ros.core.types import NS_PER_S, ImageSize
from vla_ros.profiles.camera import CameraProfile, Transport
from vla_ros.ros.cdr import read_compressed_image, read_image
from vla_ros.ros.frame_gaps import FrameGapDetector
from vla_ros.ros.image_codec import decode_compressed, resize, to_rgb
from vla_ros.ros.image_publishing import ImageWriter
from vla_ros.ros.qos import IMAGE

SILENT_PERIODS = 2.5  # a camera is called silent after this many of its periods …
SILENT_LEAST_NS = 3 * NS_PER_S // 10  # … and not sooner than this
DEPTH = '16UC1'


class Camera:
    """Publishes frames on `observation/<camera>/image`.

    `account` gets stamp, receipt and publication of each frame in nanoseconds. `on_message` and
    `publish` may be called from one thread at a time.
    """

    def __init__(self, node: Node, profile: CameraProfile, size: ImageSize,
                 account: Callable[[int, int, int], None]) -> None:
        self.profile = profile
        self._node = node
        self._size = size
        self._account = account
        self._writer = ImageWriter(f'{profile.name}_optical_frame')
        self._gaps = FrameGapDetector(profile.name, profile.period_ns)
        self._latency = LatencyAccount(('capture_to_receipt', 'convert'))
        self._counts: Counter[str] = Counter()
        self._seen_ns = 0
        self._publisher = node.create_publisher(Image, f'observation/{profile.name}/image', IMAGE)

    def close(self) -> None:
        self._node.destroy_publisher(self._publisher)

    def on_message(self, message: bytes) -> None:
        """Take a serialized Image or CompressedImage."""
        received_ns = self.now_ns()
        try:
            if self.profile.transport is Transport.COMPRESSED:
                compressed = read_compressed_image(message)
                stamp_ns = compressed.stamp_ns
                pixels = decode_compressed(compressed.data, compressed.format)
            else:
                image = read_image(message)
                stamp_ns, pixels = image.stamp_ns, to_rgb(image)
                if image.encoding == DEPTH:
                    self._node.get_logger().warning(
                        f'{self.profile.topic}: encoding {DEPTH} is a depth image; it is shown to '
                        'the policy as grey; name the colour topic if that is not meant', once=True)
        except ValueError as error:
            self._counts['frames that cannot be read'] += 1
            self._node.get_logger().error(f'{self.profile.topic}: {error}',
                                          throttle_duration_sec=1.0)
            return
        self.publish(pixels, stamp_ns, received_ns)

    def publish(self, pixels: NDArray[np.uint8], stamp_ns: int, received_ns: int) -> None:
        """Resize and publish a frame of uint8 [H, W, 3] RGB, captured at `stamp_ns`."""
        notice = self._gaps.observe(stamp_ns)
        if notice is not None:
            self._counts[f'frames {notice.event.value}'] += notice.frames
            self._node.get_logger().warning(notice.text, throttle_duration_sec=1.0)
        pixels = resize(pixels, self._size.width, self._size.height, self.profile.resize.value)
        self._publisher.publish(self._writer.message(pixels, stamp_ns))
        published_ns = self.now_ns()
        self._counts['frames'] += 1
        self._seen_ns = received_ns
        self._latency.add(capture_to_receipt=received_ns - stamp_ns,
                          convert=published_ns - received_ns)
        self._account(stamp_ns, received_ns, published_ns)

    def expect(self) -> None:
        """Frames are due from now on."""
        self._seen_ns = self.now_ns()
        self._gaps.reset()

    def silence(self) -> str:
        """The camera as a line, if it has been silent for too long; else ''."""
        if not self._seen_ns:  # simulated time had not begun
            self.expect()
        silent_ns = self.now_ns() - self._seen_ns
        if silent_ns <= max(SILENT_PERIODS * self.profile.period_ns, SILENT_LEAST_NS):
            return ''
        line = (f'{self.profile.name}: no frame for {silent_ns / NS_PER_S:.1f} s '
                f'(one is due every {self.profile.period_ns / NS_PER_S:.3g} s)')
        topic = self.profile.topic
        if topic and not self._node.count_publishers(self._node.resolve_topic_name(topic)):
            line += f'; nobody publishes {self._node.resolve_topic_name(topic)}'
        return line

    def values(self) -> dict[str, object]:
        """Counts and latencies for `/diagnostics`."""
        values = {**self._counts, **latency_values(self._latency.summaries())}
        return {f'{self.profile.name}: {key}': value for key, value in values.items()}

    def now_ns(self) -> int:
        """ROS time in nanoseconds."""
        return int(self._node.get_clock().now().nanoseconds)
