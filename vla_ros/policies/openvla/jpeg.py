"""Images as they are after JPEG once, as the images of OFT's datasets were."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

QUALITY = 95  # of TensorFlow's encoder, with colours at half resolution


def through_jpeg(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Encode and decode images uint8 [n, h, w, 3] RGB on the host.

    Not to the last bit what TensorFlow makes, whose decoder uses a faster transform.
    """
    import cv2
    made = np.empty_like(images)
    for image, out in zip(images, made, strict=True):
        _, coded = cv2.imencode('.jpg', cv2.cvtColor(image, cv2.COLOR_RGB2BGR),
                                [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
        decoded = cv2.imdecode(coded, cv2.IMREAD_COLOR)
        assert decoded is not None
        out[:] = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
    return made
