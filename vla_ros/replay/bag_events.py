"""A recording as events of the discrete-event runtime, as the nodes would have received them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vla_ros.core.runtime import Event, Instruction
from vla_ros.core.types import NS_PER_S, Frame, StateSample
from vla_ros.profiles.camera import CameraProfile
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.replay.bags import Bag
from vla_ros.ros.image_codec import decode_compressed, resize, to_rgb

STATE_TOPIC = '/ee_state'
INSTRUCTION_TOPIC = '/vla/instruction'
_TYPES = {
    'image': ('sensor_msgs/msg/CompressedImage', 'sensor_msgs/msg/Image'),
    'state': ('sensor_msgs/msg/JointState',),
    'instruction': ('std_msgs/msg/String',),
}


class BagEvents:
    """Iterates over the events of a recording, read as they are needed.

    `image_topics` gives the topic of a camera by its name, where the recording has another one
    than the robot profile. Events arrive at the recorded receive times and bear the names that
    topics have on the graph. A frame that cannot be read is left out and counted in `counts`, as
    in camera_node. Raises ValueError with one line where a topic is missing or of a wrong type.
    """

    def __init__(self, bag: Bag, robot: RobotProfile, policy: PolicyProfile,
                 state_topic: str = STATE_TOPIC, instruction_topic: str = INSTRUCTION_TOPIC,
                 image_topics: Mapping[str, str] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._bag = bag
        self._policy = policy
        self._cameras: dict[str, CameraProfile] = {}
        for name in policy.cameras:
            camera = robot.cameras[name]
            topic = (image_topics or {}).get(name, camera.topic)
            if not topic:
                raise ValueError(f'{robot.file}: cameras: {name}: its source is '
                                 f'{camera.source.value}; say which topic of the bag it is')
            self._cameras[self._found(topic, 'image')] = camera
        self._state = self._found(state_topic, 'state')
        self._instruction = self._found(instruction_topic, 'instruction')

    def __iter__(self) -> Iterator[Event]:
        for message in self._bag.messages((*self._cameras, self._state, self._instruction)):
            time_ns, content = message.time_ns, message.message
            if message.topic == self._instruction:
                yield Event(time_ns, 'instruction', Instruction(content.data))
            elif message.topic == self._state:
                # A stamp of zero means that the driver sets none, and receipt stands for it.
                yield Event(time_ns, 'joint_states', StateSample(
                    _stamp_ns(content) or time_ns, time_ns, tuple(content.name),
                    np.array(content.position, dtype=np.float64)))
            else:
                frame = self._frame(self._cameras[message.topic], message.topic, time_ns, content)
                if frame is not None:
                    yield Event(time_ns, f'observation/{frame.camera}/image', frame)

    def _frame(self, camera: CameraProfile, topic: str, time_ns: int,
               message: Any) -> Frame | None:
        size = self._policy.cameras[camera.name]
        try:
            if self._bag.topics[topic].type == _TYPES['image'][0]:
                pixels = decode_compressed(message.data, message.format)
            else:
                pixels = to_rgb(message)
        except ValueError as error:
            self.counts[f'{topic}: {error}'] += 1
            return None
        pixels = resize(pixels, size.width, size.height, camera.resize.value)
        return Frame(camera.name, _stamp_ns(message), time_ns, pixels)

    def _found(self, name: str, role: str) -> str:
        topic, allowed = self._bag.require(name), _TYPES[role]
        if topic.type not in allowed:
            raise ValueError(f'bag {self._bag.path}: topic {topic.name!r}: type {topic.type}; '
                             f'allowed for {role} are {", ".join(allowed)}')
        return topic.name


def _stamp_ns(message: Any) -> int:
    return int(message.header.stamp.sec) * NS_PER_S + int(message.header.stamp.nanosec)
