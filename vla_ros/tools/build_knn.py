"""`vla-ros build-knn`: makes a checkpoint of the family `knn` from recordings."""

from __future__ import annotations

import argparse
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.policies.knn.checkpoint import Memory, save
from vla_ros.policies.knn.features import VERSION, image_feature
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.replay.bags import Bag
from vla_ros.ros.image_codec import decode_compressed, resize, to_rgb

_ACTION_TOPIC = '/recorded_action'
_INSTRUCTION_TOPIC = '/vla/instruction'


@dataclass(frozen=True)
class Topics:
    """Where a recording has the primary camera's images, the actions and the sentences."""

    image: str
    action: str = _ACTION_TOPIC
    instruction: str = _INSTRUCTION_TOPIC


@dataclass(frozen=True)
class Clip:
    """Frames without a gap, under one sentence: features [n, F] and the actions taken [n, A]."""

    sentence: str
    features: NDArray[np.float32]
    actions: Floats


def build(paths: Sequence[Path], policy: PolicyProfile, topics: Topics, fit: str) -> Memory:
    """The memory of these recordings, for a policy profile.

    `fit` is how images get the policy's size: squash, crop or pad. Raises ValueError with one
    line.
    """
    for dimension in policy.action.dimensions:
        if dimension.kind is Kind.RELATIVE:
            raise ValueError(f'{policy.file}: action: {dimension.name}: kind relative cannot be '
                             f'learnt from recorded actions; allowed are delta, velocity, '
                             f'position and gripper')
    clips = [clip for path in paths for clip in read_clips(path, policy, topics, fit)]
    sentences = tuple(sorted({clip.sentence for clip in clips}))
    return Memory(
        features=np.concatenate([clip.features for clip in clips]),
        actions=np.concatenate([windows(clip.actions, policy.horizon, policy.action)
                                for clip in clips]),
        sentence=np.concatenate([np.full(len(clip.features), sentences.index(clip.sentence))
                                 for clip in clips]),
        sentences=sentences, names=policy.action.names,
        kinds=tuple(d.kind.value for d in policy.action.dimensions),
        period_ns=policy.period_ns, feature_version=VERSION,
        sources=tuple(path.resolve().name for path in paths))


def windows(actions: Floats, horizon: int, spec: ActionSpec) -> Floats:
    """For each of the actions [n, A] the next `horizon` of its clip: [n, horizon, A].

    Past the end deltas and velocities are zero; positions and grippers keep their last value.
    """
    count = len(actions)
    index = np.arange(count)[:, None] + np.arange(horizon)
    taken: Floats = actions[np.minimum(index, count - 1)]
    moving = spec.of_kind(Kind.DELTA, Kind.VELOCITY)
    taken[..., moving] *= (index < count)[..., None]
    return taken


def read_clips(path: Path, policy: PolicyProfile, topics: Topics, fit: str) -> list[Clip]:
    """The clips of one recording: cut at gaps, at new sentences and where an action is missing.

    A frame and an action belong together by their header stamps, at most half a period apart.
    Frames before the first sentence are left out. Raises ValueError with one line.
    """
    size = next(iter(policy.cameras.values()))
    frames: list[tuple[int, str, NDArray[np.float32]]] = []
    actions: list[tuple[int, Floats]] = []
    sentence = ''
    with Bag(path) as bag:
        names = {role: bag.require(getattr(topics, role)).name
                 for role in ('image', 'action', 'instruction')}
        kind = bag.topics[names['image']].type
        for _, topic, message in bag.messages(names.values()):
            if topic == names['instruction']:
                sentence = message.data.strip()
            elif topic == names['action']:
                actions.append((_stamp(message), _action(message, policy.action, path, topic)))
            elif sentence:
                pixels = resize(_pixels(message, kind, path, topic), size.width, size.height, fit)
                frames.append((_stamp(message), sentence, image_feature(pixels)))
    clips = _cut(sorted(frames, key=lambda f: f[0]), sorted(actions, key=lambda a: a[0]),
                 policy.period_ns)
    if not clips:
        raise ValueError(f'bag {path}: no frame on {names["image"]} has both a sentence on '
                         f'{names["instruction"]} before it and an action on {names["action"]} '
                         f'within {policy.period_ns / NS_PER_S / 2} s')
    return clips


def _cut(frames: Sequence[tuple[int, str, NDArray[np.float32]]],
         actions: Sequence[tuple[int, Floats]], period_ns: int) -> list[Clip]:
    stamps = [stamp for stamp, _ in actions]
    clips: list[list[tuple[str, NDArray[np.float32], Floats]]] = []
    last_ns, last_sentence = 0, ''
    for stamp, sentence, feature in frames:
        first = bisect_left(stamps, stamp - period_ns // 2)
        last = bisect_right(stamps, stamp + period_ns // 2)
        if first == last:
            last_sentence = ''
            continue
        nearest = min(range(first, last), key=lambda i: abs(stamps[i] - stamp))
        if sentence != last_sentence or stamp - last_ns > period_ns * 3 // 2:
            clips.append([])
        clips[-1].append((sentence, feature, actions[nearest][1]))
        last_ns, last_sentence = stamp, sentence
    return [Clip(clip[0][0], np.array([f for _, f, _ in clip]), np.array([a for _, _, a in clip]))
            for clip in clips]


def _stamp(message: Any) -> int:
    return int(message.header.stamp.sec) * NS_PER_S + int(message.header.stamp.nanosec)


def _action(message: Any, spec: ActionSpec, path: Path, topic: str) -> Floats:
    """The action [A] of a JointState, by name."""
    values = dict(zip(message.name, message.position, strict=False))
    missing = [name for name in spec.names if name not in values]
    if missing:
        raise ValueError(f'bag {path}: {topic}: dimension {missing[0]!r} is missing; it has '
                         f'{", ".join(values) or "no names"}')
    action = np.array([values[name] for name in spec.names], dtype=np.float64)
    if not np.isfinite(action).all():
        raise ValueError(f'bag {path}: {topic}: action {action.tolist()} is not finite')
    return action


def _pixels(message: Any, kind: str, path: Path, topic: str) -> NDArray[np.uint8]:
    try:
        if kind == 'sensor_msgs/msg/CompressedImage':
            return decode_compressed(message.data, message.format)
        if kind == 'sensor_msgs/msg/Image':
            return to_rgb(message)
    except ValueError as error:
        raise ValueError(f'bag {path}: {topic}: {error}') from error
    raise ValueError(f'bag {path}: {topic}: type {kind}; allowed are sensor_msgs/msg/Image and '
                     f'sensor_msgs/msg/CompressedImage')


def add_parser(subparsers: Any) -> None:
    """Add `build-knn` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'build-knn', help='make a checkpoint of the policy family knn from bags',
        description='Stores a feature of every recorded frame and the actions that followed it.')
    parser.add_argument('bags', nargs='+', metavar='BAG', type=Path,
                        help='rosbag2 folder, .mcap file or .db3 file')
    parser.add_argument('--out', required=True, type=Path, metavar='FILE',
                        help='the checkpoint to write, .npz')
    parser.add_argument('--policy', default='knn_bridge', help='policy profile: name or path')
    parser.add_argument('--robot', default='widowx_bridge',
                        help='robot profile: how its cameras name and fit their images')
    parser.add_argument('--image-topic', metavar='TOPIC',
                        help='images of the primary camera (default: as in the robot profile)')
    parser.add_argument('--action-topic', default=_ACTION_TOPIC, metavar='TOPIC',
                        help=f'JointState with the actions taken (default {_ACTION_TOPIC})')
    parser.add_argument('--instruction-topic', default=_INSTRUCTION_TOPIC, metavar='TOPIC',
                        help=f'String with the sentences (default {_INSTRUCTION_TOPIC})')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build the checkpoint and say what is in it. Returns 0; raises ValueError with one line."""
    policy, robot = load_policy(args.policy), load_robot(args.robot)
    if policy.family != 'knn':
        raise ValueError(f'{policy.file}: family: {policy.family!r}: build-knn needs a policy of '
                         'family knn')
    camera = robot.cameras.get(next(iter(policy.cameras)))
    if camera is None:
        raise ValueError(f'{robot.file}: cameras: {", ".join(robot.cameras)}; the policy '
                         f'{policy.name} takes {next(iter(policy.cameras))!r}')
    image_topic = args.image_topic or camera.topic
    if not image_topic:
        raise ValueError(f'{robot.file}: cameras: {camera.name}: its source is '
                         f'{camera.source.value}; say where the bag has it with --image-topic')
    topics = Topics(image_topic, args.action_topic, args.instruction_topic)
    memory = build(args.bags, policy, topics, camera.resize.value)
    save(memory, args.out)
    print(f'{args.out}: {len(memory.features)} frames of {len(args.bags)} bags under '
          f'{len(memory.sentences)} sentences, horizon {memory.actions.shape[1]}')
    return 0
