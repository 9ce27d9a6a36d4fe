"""camera_node: frames of every source arrive at the policy's size, with the capture stamp."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')

from live import Camera, Graph, Running, changed_profile, graph  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image  # noqa: E402

from vla_ros.ros.messages import to_ns, to_time  # noqa: E402
from vla_ros.ros.qos import IMAGE  # noqa: E402

OUTPUT = 'observation/primary/image'


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Graph]:
    with graph(tmp_path) as made:
        yield made


def policy(folder: Path, **cameras: dict[str, int]) -> str:
    def change(profile: dict[str, Any]) -> None:
        profile['cameras'] = cameras or {'primary': {'width': 32, 'height': 24}}
    return changed_profile(folder, 'policies', 'scripted_bridge', change)


def robot(folder: Path, **cameras: dict[str, Any]) -> str:
    return changed_profile(folder, 'robots', 'widowx_bridge',
                           lambda profile: profile.update(cameras=cameras))


def start(live: Graph, robot_file: str, policy_file: str, **parameters: Any) -> Running:
    return live.start('camera_node', {'robot': robot_file, 'policy': policy_file, **parameters})


def pixels(message: Image) -> Any:
    return np.frombuffer(bytes(message.data), np.uint8).reshape(
        message.height, message.width, 3)


def bgr(red: int, green: int, blue: int, width: int = 64, height: int = 48) -> Any:
    return np.full((height, width, 3), (blue, green, red), np.uint8)


def folder_of_images(folder: Path, *reds: int) -> str:
    path = folder / 'images'
    path.mkdir()
    for i, red in enumerate(reds):
        cv2.imwrite(str(path / f'{i}.png'), bgr(red, 20, 200))
    return str(path)


def test_a_raw_topic_is_resized_and_keeps_its_stamp(live: Graph, tmp_path: Path) -> None:
    images = live.heard(Image, OUTPUT, IMAGE)
    source = live.node.create_publisher(Image, 'eye/image', IMAGE)
    start(live, robot(tmp_path, primary={'source': 'topic', 'topic': 'eye/image', 'rate': 20.0}),
          policy(tmp_path))
    live.matched(source)
    message = Image(width=64, height=48, step=192, encoding='bgr8')
    message.data.frombytes(bgr(10, 20, 200).tobytes())
    sent: list[int] = []

    def send() -> None:
        sent.append(live.now_ns())
        message.header.stamp = to_time(sent[-1])
        source.publish(message)

    live.every(0.05, send)
    live.until(lambda: len(images) >= 3, 'images')
    image = images[-1]
    assert (image.width, image.height, image.step, image.encoding, image.is_bigendian) == (
        32, 24, 96, 'rgb8', 0)
    assert image.header.frame_id == 'primary_optical_frame'
    assert to_ns(image.header.stamp) in sent
    assert (pixels(image) == (10, 20, 200)).all()


def test_a_compressed_topic_is_decoded(live: Graph, tmp_path: Path) -> None:
    images = live.heard(Image, OUTPUT, IMAGE)
    source = live.node.create_publisher(CompressedImage, 'eye/image/compressed', IMAGE)
    start(live, robot(tmp_path, primary={'source': 'topic', 'topic': 'eye/image', 'rate': 20.0,
                                         'transport': 'compressed'}), policy(tmp_path))
    live.matched(source)
    message = CompressedImage(format='bgr8; png compressed bgr8')
    message.data.frombytes(cv2.imencode('.png', bgr(10, 20, 200))[1].tobytes())

    def send() -> None:
        message.header.stamp = to_time(live.now_ns())
        source.publish(message)

    live.every(0.05, send)
    live.until(lambda: images, 'images')
    assert (pixels(images[0]) == (10, 20, 200)).all()


def test_a_folder_of_images_plays_in_a_loop_at_the_rate_of_the_profile(
        live: Graph, tmp_path: Path) -> None:
    images = live.heard(Image, OUTPUT, IMAGE)
    path = folder_of_images(tmp_path, 50, 100, 150)
    start(live, robot(tmp_path, primary={'source': 'file', 'path': path, 'rate': 20.0,
                                         'loop': True}), policy(tmp_path))
    live.until(lambda: len(images) >= 8, 'images')
    reds = [int(pixels(image)[0, 0, 0]) for image in images]
    first = reds.index(50)
    order = [50, 100, 150] * 4
    assert reds[first:first + 5] == order[:5]
    stamps = np.diff([to_ns(image.header.stamp) for image in images])
    assert np.median(stamps) == pytest.approx(50e6, rel=0.3)


def test_two_cameras_have_topics_of_their_own(live: Graph, tmp_path: Path) -> None:
    path = folder_of_images(tmp_path, 50)
    both = robot(tmp_path,
                 primary={'source': 'file', 'path': path, 'rate': 20.0, 'loop': True},
                 wrist={'source': 'topic', 'topic': 'wrist/image', 'rate': 20.0})
    Camera(live, 'wrist/image', 64, 48, rate=20.0)
    primary, wrist = live.heard(Image, OUTPUT, IMAGE), live.heard(
        Image, 'observation/wrist/image', IMAGE)
    start(live, both, policy(tmp_path, primary={'width': 32, 'height': 24},
                             wrist={'width': 16, 'height': 16}))
    live.until(lambda: primary and wrist, 'images of both')
    assert (primary[-1].width, primary[-1].height) == (32, 24)
    assert (wrist[-1].width, wrist[-1].height) == (16, 16)
    assert (pixels(wrist[-1]) == 128).all()
    live.more_reports(1, 'camera_node')
    values = live.values('camera_node')
    assert int(values['primary: frames']) > 0
    assert int(values['wrist: frames']) > 0
    assert values['wrist: latency convert [ms]'].startswith('p50 ')


def test_a_lost_frame_is_named_and_counted(live: Graph, tmp_path: Path) -> None:
    node = start(live, robot(tmp_path, primary={'source': 'topic', 'topic': 'eye/image',
                                                'rate': 5.0}), policy(tmp_path))
    camera = Camera(live, 'eye/image', 64, 48)
    live.matched(camera.publisher)
    live.says('streaming', 'camera_node')
    live.until(lambda: 'primary: frames' in live.values('camera_node'), 'frames')
    camera.unplug()
    assert 'primary: no frame for' in live.says('no frame', 'camera_node')
    camera.plug_in()
    live.line(node, 'lost frame')
    live.until(lambda: int(live.values('camera_node').get('primary: frames lost', 0)) >= 2, 'count')
    live.says('streaming', 'camera_node')


def test_an_image_that_cannot_be_read_is_named_with_its_topic_and_counted(
        live: Graph, tmp_path: Path) -> None:
    node = start(live, robot(tmp_path, primary={'source': 'topic', 'topic': 'eye/image',
                                                'rate': 5.0}), policy(tmp_path))
    source = live.node.create_publisher(Image, 'eye/image', IMAGE)
    live.matched(source)
    live.every(0.05, lambda: source.publish(Image(width=4, height=4, encoding='yuv411')))
    assert 'eye/image: ' in live.line(node, 'yuv411')
    live.until(lambda: 'primary: frames that cannot be read' in live.values('camera_node'), 'count')
    assert node.process.poll() is None
    assert 'Traceback' not in node.output


def test_a_file_that_ends_is_told_and_a_missing_one_refused(live: Graph, tmp_path: Path) -> None:
    path = folder_of_images(tmp_path, 50, 100)
    node = start(live, robot(tmp_path, primary={'source': 'file', 'path': path, 'rate': 20.0,
                                                'loop': False}), policy(tmp_path))
    live.line(node, 'has ended')
    assert 'primary: no frame for' in live.says('no frame', 'camera_node')
    missing = robot(tmp_path, primary={'source': 'v4l2', 'device': '/dev/video99',
                                          'rate': 5.0})
    failing = start(live, missing, policy(tmp_path)).may_end()
    assert failing.wait() == 1
    assert 'camera primary: device /dev/video99 does not exist' in failing.output
    assert 'Traceback' not in failing.output


def test_deactivation_ends_the_stream_and_activation_begins_it_once(
        live: Graph, tmp_path: Path) -> None:
    images, wrist = live.heard(Image, OUTPUT, IMAGE), live.heard(
        Image, 'observation/wrist/image', IMAGE)
    path = folder_of_images(tmp_path, 50)
    both = robot(tmp_path,
                 wrist={'source': 'topic', 'topic': 'wrist/image', 'rate': 20.0},
                 primary={'source': 'file', 'path': path, 'rate': 20.0, 'loop': True})
    camera = Camera(live, 'wrist/image', 64, 48, rate=20.0)
    node = start(live, both, policy(tmp_path, primary={'width': 32, 'height': 24},
                                    wrist={'width': 16, 'height': 16}))
    live.until(lambda: images and wrist, 'images')
    assert live.transition('camera_node', 'deactivate')
    live.until(lambda: not camera.publisher.get_subscription_count(), 'the end of the subscription')
    assert live.transition('camera_node', 'activate')
    live.matched(camera.publisher)
    have = len(images), len(wrist)
    live.until(lambda: len(images) >= have[0] + 3 and len(wrist) >= have[1] + 3, 'images again')
    stamps = [to_ns(image.header.stamp) for image in wrist]
    assert len(set(stamps)) == len(stamps), 'no frame comes twice'
    assert live.transition('camera_node', 'deactivate')
    assert live.transition('camera_node', 'cleanup')
    assert live.transition('camera_node', 'configure')
    assert live.transition('camera_node', 'activate')
    have = len(images), len(wrist)
    live.until(lambda: len(images) >= have[0] + 3 and len(wrist) >= have[1] + 3, 'images again')
    assert node.process.poll() is None
    assert 'Traceback' not in node.output
