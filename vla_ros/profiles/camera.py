"""The cameras section of a robot profile: where frames come from and how they are resized."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.locate import resolve
from vla_ros.profiles.reader import TOPIC, TOPIC_RULE, Section


class Source(str, Enum):
    """Where the frames of a camera come from."""

    TOPIC = 'topic'
    V4L2 = 'v4l2'            # a device, through OpenCV
    GSTREAMER = 'gstreamer'  # a pipeline string, through OpenCV
    FILE = 'file'            # a video file or a folder of images


class Transport(str, Enum):
    """Which message a camera topic carries."""

    RAW = 'raw'                # sensor_msgs/Image
    COMPRESSED = 'compressed'  # sensor_msgs/CompressedImage


class Resize(str, Enum):
    """How a frame is brought to the policy's size."""

    SQUASH = 'squash'  # each side on its own
    CROP = 'crop'      # keeps the aspect, cuts the long side around the middle
    PAD = 'pad'        # keeps the aspect, fills the short side with black


_COMPRESSED = '/compressed'  # what image_transport appends to the base topic


@dataclass(frozen=True)
class CameraProfile:
    """One camera. Of `topic`, `device`, `pipeline` and `path` only that of the source is set.

    `topic` is the one to subscribe to, with `/compressed` where the transport is compressed.
    `rate`: frames per second that are expected. `capture_latency_ns` is taken off the time of a
    grab to get the stamp. `loop`: a file starts again at its end.
    """

    name: str
    source: Source
    rate: float
    resize: Resize = Resize.SQUASH
    transport: Transport = Transport.RAW
    topic: str = ''
    device: str = ''
    pipeline: str = ''
    path: Path | None = None
    loop: bool = False
    capture_latency_ns: int = 0

    @property
    def period_ns(self) -> int:
        """Time between two expected frames."""
        return round(NS_PER_S / self.rate)


def read_camera(name: str, section: Section) -> CameraProfile:
    """A camera from its section. Raises ValueError with one line."""
    source = Source(section.text('source', choices=[s.value for s in Source]))
    only = {'topic': Source.TOPIC, 'transport': Source.TOPIC, 'device': Source.V4L2,
            'pipeline': Source.GSTREAMER, 'path': Source.FILE, 'loop': Source.FILE}
    for key, owner in only.items():
        if owner is not source:
            section.refuse(key, f'only with source: {owner.value}; source is {source.value}')
    transport, topic, device, pipeline, path, loop = Transport.RAW, '', '', '', None, False
    if source is Source.TOPIC:
        transport = Transport(section.text('transport', 'raw',
                                           choices=[t.value for t in Transport]))
        topic = section.text('topic', pattern=TOPIC, rule=TOPIC_RULE)
        if transport is Transport.COMPRESSED and not topic.endswith(_COMPRESSED):
            topic += _COMPRESSED
        elif transport is Transport.RAW and topic.endswith(_COMPRESSED):
            section.fail('topic', 'ends in /compressed, so transport must be compressed')
    elif source is Source.V4L2:
        device = section.text('device', rule='a device such as /dev/video0')
    elif source is Source.GSTREAMER:
        pipeline = section.text('pipeline', rule='a GStreamer pipeline that ends in appsink')
    else:
        path = resolve(section.file, section.text('path', rule='a video file or image folder'))
        loop = section.flag('loop', False)
    camera = CameraProfile(
        name=name, source=source, transport=transport, topic=topic, device=device,
        pipeline=pipeline, path=path, loop=loop,
        rate=section.number('rate', low=0.1, high=1000.0, unit='Hz'),
        resize=Resize(section.text('resize', 'squash', choices=[r.value for r in Resize])),
        capture_latency_ns=section.seconds('capture_latency', 0.0, high=10.0))
    section.done()
    return camera
