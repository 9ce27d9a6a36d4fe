"""The one description of the graph, from which both `launch/*.launch.py` and `vla-ros up` start it.

Nothing here imports launch or rclpy: what would be started can be looked at without a ROS graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from vla_ros.engines.registry import make_engine
from vla_ros.profiles.binding import bind
from vla_ros.profiles.camera import Source, Transport
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.profiles.sink import SinkType

COMPRESSED = '/compressed'


@dataclass(frozen=True)
class Argument:
    """One argument of the launch files and of `vla-ros up`."""

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()


BOOLEAN = ('true', 'false')
ARGUMENTS = (
    Argument('robot', 'widowx_bridge', 'robot profile: a shipped name or a path'),
    Argument('policy', 'knn_bridge', 'policy profile: a shipped name or a path'),
    Argument('engine', 'cpu', 'engine profile: cpu, desktop, jetson or a path'),
    Argument('model', '', 'checkpoint that replaces the one of the policy profile'),
    Argument('instruction', '', 'instruction at start'),
    Argument('namespace', '', 'namespace of all nodes'),
    Argument('image_topic', '', 'topic of the primary camera, instead of the profile one'),
    Argument('command_topic', '', 'topic of the first sink, instead of the profile one'),
    Argument('state_topic', '', 'topic of the measured state, instead of joint_states'),
    Argument('use_sim_time', 'false', 'time from /clock', BOOLEAN),
    Argument('shadow', 'false', 'compute everything, command nothing', BOOLEAN),
    Argument('enable_on_start', 'false', 'drive without being enabled; simulation only', BOOLEAN),
    Argument('autostart', 'true', 'false where a lifecycle manager drives the nodes', BOOLEAN),
    Argument('publish_latency', 'false', 'stages of every frame and chunk on topic latency',
             BOOLEAN),
)
REPLAY_ARGUMENTS = (
    Argument('bag', '', 'rosbag2 folder, .mcap file or .db3 file'),
    Argument('rate', '1.0', 'speed of the replay'),
    Argument('loop', 'false', 'start again at the end', BOOLEAN),
    Argument('remap', '', 'topics of the bag under other names: from:=to, separated by blanks'),
)


@dataclass(frozen=True)
class Process:
    """One process of the graph: an executable of this package and what it is told.

    `parameters` hold str, bool, int and float only; `arguments` come before `--ros-args`.
    """

    executable: str
    name: str
    namespace: str
    parameters: Mapping[str, str | bool | int | float]
    remappings: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    lifecycle: bool = True


@dataclass(frozen=True)
class Graph:
    """The processes, in the order in which they start."""

    processes: tuple[Process, ...]
    notes: tuple[str, ...] = field(default=())


def describe(given: Mapping[str, str]) -> Graph:
    """The graph for these arguments; those not given have their defaults.

    Reads and binds the profiles, so that whatever does not fit stops before anything starts.
    Raises ValueError with one line.
    """
    values = _values(given, ARGUMENTS)
    robot = load_robot(values['robot'])
    policy = load_policy(values['policy'], values['model'])
    make_engine(policy, load_engine(values['engine']))  # not loaded: its options are checked
    try:
        binding = bind(policy, robot)
    except ValueError as error:
        if given.get('policy'):
            raise
        raise ValueError(f'{error}; this is the default policy, choose another with policy:=') \
            from None
    primary = next(iter(policy.cameras))
    profiles = {'robot': values['robot'], 'policy': values['policy']}
    common: dict[str, str | bool | int | float] = {
        'use_sim_time': values['use_sim_time'] == 'true',
        'autostart': values['autostart'] == 'true',
        'publish_latency': values['publish_latency'] == 'true'}
    state = (('joint_states', values['state_topic']),) if values['state_topic'] else ()
    namespace = values['namespace']
    camera = Process('camera_node', 'camera_node', namespace, profiles | common,
                     _image_remap(robot, primary, values['image_topic']))
    inference = Process(
        'inference_node', 'inference_node', namespace,
        profiles | common | {key: values[key] for key in ('model', 'engine', 'instruction')}, state)
    publisher = Process(
        'action_publisher', 'action_publisher', namespace,
        profiles | common | {key: values[key] == 'true' for key in ('shadow', 'enable_on_start')},
        state + _command_remap(robot, values['command_topic']))
    # The publisher first: it says from which moment on plans count.
    return Graph((publisher, inference, camera), binding.notes)


def describe_replay(given: Mapping[str, str]) -> Graph:
    """The graph on a recording: simulated time from the player's /clock."""
    own = {argument.name for argument in REPLAY_ARGUMENTS}
    values = _values({k: v for k, v in given.items() if k in own}, REPLAY_ARGUMENTS)
    if not values['bag']:
        raise ValueError('bag: none is given; bag:=<rosbag2 folder, .mcap or .db3 file>')
    if not Path(values['bag']).expanduser().exists():
        raise ValueError(f'bag: {values["bag"]}: no such file or folder; give a rosbag2 folder, a '
                         '.mcap or a .db3 file')
    if not _positive(values['rate']):
        raise ValueError(f'rate: {values["rate"]!r}: a number above 0 is needed, such as 0.5')
    check_remaps(values['remap'].split())
    others = {k: v for k, v in given.items() if k not in own}
    graph = describe({**others, 'use_sim_time': 'true'})
    arguments = [values['bag'], '--clock', '--rate', values['rate'], '--wait-for-subscribers']
    if values['loop'] == 'true':
        arguments.append('--loop')
    if values['remap']:
        # Names of a bag are relative to the namespace, whatever the bag says.
        arguments += ['--remap', *(rule.lstrip('/') for rule in values['remap'].split())]
    player = Process('bag_player', 'bag_player', given.get('namespace', ''), {},
                     arguments=tuple(arguments), lifecycle=False)
    return Graph((*graph.processes, player), graph.notes)


def check_remaps(rules: Iterable[str]) -> None:
    """Raises ValueError with one line on a rule that is not from:=to."""
    for rule in rules:
        old, separator, new = rule.partition(':=')
        if not (old and separator and new):
            raise ValueError(f'remap: {rule!r}: write it as from:=to')


def _positive(text: str) -> bool:
    try:
        return 0.0 < float(text) < float('inf')
    except ValueError:
        return False


def parse(words: list[str], arguments: tuple[Argument, ...] = ARGUMENTS) -> dict[str, str]:
    """`name:=value` words as a mapping. Raises ValueError with one line."""
    given: dict[str, str] = {}
    for word in words:
        name, separator, value = word.partition(':=')
        if not separator:
            raise ValueError(f'{word!r}: arguments are written as name:=value')
        if name in given:
            raise ValueError(f'{name}: given twice')
        given[name] = value
    _values(given, arguments)
    return given


def _values(given: Mapping[str, str], arguments: tuple[Argument, ...]) -> dict[str, str]:
    known = {argument.name: argument for argument in arguments}
    for name, value in given.items():
        if name not in known:
            near = get_close_matches(name, known, 1)
            raise ValueError(f'{name}: no such argument; there are {", ".join(known)}'
                             + (f'; did you mean {near[0]}?' if near else ''))
        choices = known[name].choices
        if choices and value not in choices:
            raise ValueError(f'{name}: {value!r}: allowed are {", ".join(choices)}')
    return {name: given.get(name, argument.default) for name, argument in known.items()}


def _image_remap(robot: RobotProfile, primary: str, topic: str) -> tuple[tuple[str, str], ...]:
    if not topic:
        return ()
    camera = robot.cameras[primary]
    if camera.source is not Source.TOPIC:
        raise ValueError(f'image_topic: {topic}: camera {primary} of robot {robot.name} has '
                         f'source {camera.source.value}; only source topic has a topic')
    if camera.transport is Transport.COMPRESSED and not topic.endswith(COMPRESSED):
        topic += COMPRESSED
    return ((camera.topic, topic),)


def _command_remap(robot: RobotProfile, topic: str) -> tuple[tuple[str, str], ...]:
    if not topic:
        return ()
    first = robot.sinks[0]
    if first.type is SinkType.GRIPPER_COMMAND:
        raise ValueError(f'command_topic: {topic}: the first sink of robot {robot.name} is an '
                         'action, not a topic; remap its topics instead')
    return ((first.topic, topic),)
