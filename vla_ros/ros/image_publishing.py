"""Makes the images that are published."""

from __future__ import annotations

import numpy as np
from builtin_interfaces.msg import Time
from cv_bridge import CvBridge
from numpy.typing import NDArray
from sensor_msgs.msg import Image

from vla_ros.core.types import NS_PER_S


class ImageWriter:
    """Turns RGB pixels into messages. Any thread; the message owns a copy of the pixels."""

    def __init__(self, frame_id: str) -> None:
        self._frame_id = frame_id
        self._bridge = CvBridge()

    def message(self, pixels: NDArray[np.uint8], stamp_ns: int) -> Image:
        """An rgb8 message of `pixels` uint8 [H, W, 3]. Raises ValueError with one line."""
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
            raise ValueError(f'image to publish is {pixels.dtype} {list(pixels.shape)}, '
                             'allowed is uint8 [height, width, 3]')
        message = self._bridge.cv2_to_imgmsg(pixels, encoding='rgb8')
        message.header.stamp = Time(sec=stamp_ns // NS_PER_S, nanosec=stamp_ns % NS_PER_S)
        message.header.frame_id = self._frame_id
        return message
