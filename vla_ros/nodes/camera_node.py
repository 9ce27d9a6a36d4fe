"""camera_node: frames from topics, devices, pipelines or files, at the policy's size, as rgb8."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image

from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.camera import CameraProfile, Source, Transport
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.ros.camera import Camera
from vla_ros.ros.camera_sources import (
    CameraEnded,
    CameraLost,
    CameraSource,
    FileSource,
    GStreamerSource,
    V4L2Source,
)
from vla_ros.ros.diagnostics import OK, WARN, Diagnostics
from vla_ros.ros.lifecycle import AUTOSTART, LifecycleNode, run
from vla_ros.ros.pacing import other_threads, own_thread, raise_image_priority
from vla_ros.ros.parameters import REAL_TIME_IMAGES, Parameter, ParameterTable
from vla_ros.ros.qos import IMAGE, subscription_events
from vla_ros.ros.stages import PUBLISH_LATENCY, stage_publisher

PARAMETERS = ParameterTable([
    Parameter('robot', 'widowx_bridge', 'robot profile: a shipped name or a path'),
    Parameter('policy', 'knn_bridge', 'policy profile: a shipped name or a path'),
    AUTOSTART,
    REAL_TIME_IMAGES,
    PUBLISH_LATENCY,
])
REOPEN_S = (0.5, 1.0, 2.0, 5.0)  # waits before a lost camera is opened again
CHECK_S = 0.2
JOIN_S = 1.0


class CameraNode(LifecycleNode):
    """Wiring of the cameras. Topics are served by the executor, other sources by a thread each."""

    PARAMETERS = PARAMETERS

    def __init__(self, debug: bool = False) -> None:
        super().__init__('camera_node', debug)
        self._cameras: list[tuple[Camera, CameraSource | None]] = []
        self._listening: list[Subscription] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    # --- hooks of the lifecycle ----------------------------------------------------------------

    def configure(self, parameters: Mapping[str, Any]) -> None:
        robot = load_robot(parameters['robot'])
        policy = load_policy(parameters['policy'])
        self._stages = stage_publisher(self, parameters)
        self._diagnostics = self.keep(Diagnostics(self, robot.name), Diagnostics.close)
        for name, size in policy.cameras.items():
            if name not in robot.cameras:
                raise ValueError(f'{robot.file}: cameras: {name}: policy {policy.name} needs it; '
                                 f'the robot has {", ".join(robot.cameras)}')
            profile = robot.cameras[name]
            camera = self.keep(Camera(self, profile, size, self._account), Camera.close)
            source = None
            if profile.source is not Source.TOPIC:
                source = SOURCES[profile.source](profile, camera.now_ns)
                self.keep(source, lambda source: source.close())
                source.open()  # what cannot be opened is told before activation
            self._cameras.append((camera, source))

    def activate(self) -> None:
        if self.get_parameter(REAL_TIME_IMAGES.name).value:
            raise_image_priority([own_thread(), *other_threads()])
        self._stop.clear()
        for camera, source in self._cameras:
            camera.expect()
            if source is None:
                self._listening.append(self._subscribed(camera))
                continue
            # Anew: a frame that has waited in the device since would get a wrong stamp.
            self.get_logger().info(source.open())
            thread = threading.Thread(target=self._grab, args=(camera, source), daemon=True)
            self._threads.append(thread)
            thread.start()
        self._timer = self.create_timer(CHECK_S, self._report)

    def deactivate(self) -> None:
        self.destroy_timer(self._timer)
        for subscription in self._listening:
            self.destroy_subscription(subscription)
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._listening, self._threads = [], []

    def clean_up(self) -> None:
        self._cameras = []

    # --- wiring --------------------------------------------------------------------------------

    def _account(self, stamp_ns: int, received_ns: int, published_ns: int) -> None:
        if self._stages is not None:
            self._stages.publish(stamp_ns, received=received_ns, image_published=published_ns)

    def _subscribed(self, camera: Camera) -> Subscription:
        compressed = camera.profile.transport is Transport.COMPRESSED
        topic = camera.profile.topic
        return self.create_subscription(
            CompressedImage if compressed else Image, topic, camera.on_message, IMAGE, raw=True,
            event_callbacks=subscription_events(self, topic))

    def _grab(self, camera: Camera, source: CameraSource) -> None:
        """Read a source until told to stop; what fails here is named, and the thread ends."""
        try:
            self._stream(camera, source)
        except CameraEnded as ended:
            self.get_logger().info(str(ended))
        except Exception as error:
            self.get_logger().error(traceback.format_exc() if self.debug else
                                    f'camera {camera.profile.name}: given up: {error}')
        finally:
            source.close()

    def _stream(self, camera: Camera, source: CameraSource) -> None:
        """Publish frames until told to stop. Raises CameraEnded."""
        paced = camera.profile.source is Source.FILE
        due_s = time.monotonic()
        while not self._stop.is_set():
            try:
                pixels, stamp_ns = source.grab()
            except CameraLost as lost:
                self.get_logger().error(str(lost))
                self._reopen(source)
                continue
            camera.publish(pixels, stamp_ns, camera.now_ns())
            if paced:  # a live source paces itself
                due_s = max(due_s + camera.profile.period_ns / NS_PER_S, time.monotonic())
                self._stop.wait(due_s - time.monotonic())

    def _reopen(self, source: CameraSource) -> None:
        """Open a lost camera again, ever more patiently, until told to stop."""
        attempt = 0
        while not self._stop.wait(REOPEN_S[min(attempt, len(REOPEN_S) - 1)]):
            attempt += 1
            try:
                self.get_logger().info(source.open())
                return
            except ValueError as error:
                self.get_logger().error(str(error))

    def _report(self) -> None:
        cameras = [camera for camera, _ in self._cameras]
        silent = next(filter(None, (camera.silence() for camera in cameras)), '')
        level, now_ns = WARN if silent else OK, cameras[0].now_ns()
        if not self._diagnostics.due(level, '', now_ns):
            return
        values = {key: value for camera in cameras for key, value in camera.values().items()}
        self._diagnostics.publish(level, silent or 'streaming', values, now_ns)


SOURCES: dict[Source, Callable[[CameraProfile, Callable[[], int]], CameraSource]] = {
    Source.V4L2: lambda p, clock: V4L2Source(
        p.name, p.device, clock, p.capture_latency_ns, rate=p.rate),
    Source.GSTREAMER: lambda p, clock: GStreamerSource(
        p.name, p.pipeline, clock, p.capture_latency_ns),
    Source.FILE: lambda p, clock: FileSource(p.name, p.path or '', clock, loop=p.loop),
}


def main() -> None:
    """Entry point of the executable."""
    sys.exit(run(lambda debug: CameraNode(debug)))


if __name__ == '__main__':
    main()
