"""A recording as events of the discrete-event runtime, as the nodes would have received them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla_ros.core.runtime import EStop, Event, Instruction
from vla_ros.core.types import NS_PER_S, Floats, Frame, StateSample
from vla_ros.profiles.camera import CameraProfile
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile
from vla_ros.replay.bags import Bag, BagTopic, RawMessage
from vla_ros.ros.cdr import read_compressed_image, read_image
from vla_ros.ros.image_codec import decode_compressed, resize, to_rgb

STATE_TOPIC = '/ee_state'
INSTRUCTION_TOPIC = '/vla/instruction'
COMPRESSED = 'sensor_msgs/msg/CompressedImage'
TYPES = {
    'image': (COMPRESSED, 'sensor_msgs/msg/Image'),
    'state': ('sensor_msgs/msg/JointState',),
    'instruction': ('std_msgs/msg/String',),
    'action': ('sensor_msgs/msg/JointState',),
    'estop': ('std_msgs/msg/Bool',),
}


@dataclass(frozen=True)
class RecordedAction:
    """What the demonstrator did about the observation of this stamp, by dimension."""

    stamp_ns: int
    names: tuple[str, ...]
    values: Floats


@dataclass(frozen=True)
class BagTopics:
    """Which topic of a recording plays which part; '' where none does. `images` by camera."""

    images: Mapping[str, str]
    state: str
    instruction: str = ''
    action: str = ''
    estop: str = ''


class BagEvents:
    """Iterates over the events of a recording, read as they are needed.

    `image_topics` gives the topic of a camera by its name, where the recording has another one
    than the robot profile. Events arrive at the recorded receive times and bear the names that
    topics have on the graph. A frame that cannot be read is left out and counted in `counts`, as
    in camera_node. `on_action` is told of recorded actions, `on_raw` of every message as it is,
    before its event. Raises ValueError with one line where a topic is missing or of a wrong type.
    """

    def __init__(self, bag: Bag, robot: RobotProfile, policy: PolicyProfile,
                 state_topic: str = STATE_TOPIC, instruction_topic: str = INSTRUCTION_TOPIC,
                 image_topics: Mapping[str, str] | None = None, action_topic: str = '',
                 estop_topic: str = '',
                 on_action: Callable[[RecordedAction], None] | None = None,
                 on_raw: Callable[[RawMessage], None] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._bag = bag
        self._policy = policy
        self._on_action, self._on_raw = on_action, on_raw
        self._cameras: dict[str, CameraProfile] = {}
        for name in policy.cameras:
            camera = robot.cameras[name]
            topic = (image_topics or {}).get(name, camera.topic)
            if not topic:
                raise ValueError(f'{robot.file}: cameras: {name}: its source is '
                                 f'{camera.source.value}; say which topic of the bag it is')
            self._cameras[self._found(topic, 'image').name] = camera
        roles = {'state': state_topic, 'instruction': instruction_topic, 'action': action_topic,
                 'estop': estop_topic}
        self._roles = {self._found(topic, role).name: role for role, topic in roles.items()
                       if topic}

    def __iter__(self) -> Iterator[Event]:
        for raw in self._bag.raw((*self._cameras, *self._roles)):
            if self._on_raw is not None:
                self._on_raw(raw)
            camera = self._cameras.get(raw.topic)
            if camera is not None:
                frame = self._frame(camera, raw)
                if frame is not None:
                    yield Event(raw.time_ns, f'observation/{frame.camera}/image', frame)
                continue
            event = self._event(raw, self._bag.deserialize(raw.topic, raw.data))
            if event is not None:
                yield event

    def _event(self, raw: RawMessage, content: Any) -> Event | None:
        role, time_ns = self._roles[raw.topic], raw.time_ns
        if role == 'instruction':
            return Event(time_ns, 'instruction', Instruction(content.data))
        if role == 'estop':
            return Event(time_ns, 'estop', EStop(bool(content.data)))
        # A stamp of zero means that the driver sets none, and receipt stands for it.
        stamp_ns = _stamp_ns(content) or time_ns
        names, values = tuple(content.name), np.array(content.position, dtype=np.float64)
        if role == 'state':
            return Event(time_ns, 'joint_states', StateSample(stamp_ns, time_ns, names, values))
        if self._on_action is not None and len(names) == len(values):
            self._on_action(RecordedAction(stamp_ns, names, values))
        return None

    def _frame(self, camera: CameraProfile, raw: RawMessage) -> Frame | None:
        size = self._policy.cameras[camera.name]
        try:
            if self._bag.topics[raw.topic].type == COMPRESSED:
                compressed = read_compressed_image(raw.data)
                stamp_ns = compressed.stamp_ns
                pixels = decode_compressed(compressed.data, compressed.format)
            else:
                image = read_image(raw.data)
                stamp_ns, pixels = image.stamp_ns, to_rgb(image)
        except ValueError as error:
            self.counts[f'{raw.topic}: {error}'] += 1
            return None
        pixels = resize(pixels, size.width, size.height, camera.resize.value)
        return Frame(camera.name, stamp_ns, raw.time_ns, pixels)

    def _found(self, name: str, role: str) -> BagTopic:
        topic, allowed = self._bag.require(name), TYPES[role]
        if topic.type not in allowed:
            raise ValueError(f'bag {self._bag.path}: topic {topic.name!r}: type {topic.type}; '
                             f'allowed for {role} are {", ".join(allowed)}')
        return topic


def find_topics(bag: Bag, robot: RobotProfile, policy: PolicyProfile,
                remaps: Mapping[str, str]) -> BagTopics:
    """Which topics of a recording are which, by the names that they have on the graph.

    `remaps`: the graph's name by that of the recording. Where the recording lacks the name of the
    graph, the usual other ones are tried. Raises ValueError with one line that names what lacks.
    """
    renamed = {new.lstrip('/'): old for old, new in remaps.items()}

    def found(role: str, *names: str, must: bool = True) -> str:
        for name in names:
            if name in renamed:
                return bag.require(renamed[name]).name
        for name in names:
            for topic in (bag.topics.get('/' + name), bag.topics.get(name)):
                if topic is not None and topic.count and topic.type in TYPES[role]:
                    return topic.name
        return bag.require(names[0]).name if must else ''

    images = {}
    for name in policy.cameras:
        topic = robot.cameras[name].topic.lstrip('/')
        names = [*([topic, f'{topic}/compressed'] if topic else []), f'observation/{name}/image']
        images[name] = found('image', *names)
    return BagTopics(
        images, found('state', 'joint_states', 'ee_state'),
        found('instruction', 'instruction', 'vla/instruction', must=False),
        found('action', 'recorded_action', must=False), found('estop', 'estop', must=False))


def _stamp_ns(message: Any) -> int:
    return int(message.header.stamp.sec) * NS_PER_S + int(message.header.stamp.nanosec)
