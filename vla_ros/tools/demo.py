"""`vla-ros demo`: the whole graph on recorded robot footage, with a view, a summary and a plot."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any

from vla_ros.bringup.graph import Graph, Process, describe
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.ros.transport import transport_additions
from vla_ros.tools.logged_processes import LoggedProcesses, ProcessEnded
from vla_ros.tools.record import FAULT, Record

if TYPE_CHECKING:  # rich and matplotlib are for those who run the demo
    from rich.console import Console

    from vla_ros.tools.live_view import View

ROBOT, POLICY = 'widowx_bridge', 'knn_bridge'
DATA = Path('data', 'bridge_v2')
LEARNT, PLAYED = ('bridge_0', 'bridge_1', 'bridge_2'), 'bridge_3'
REMAPS = ('/ee_state:=joint_states', '/vla/instruction:=instruction')
ACTION_TOPIC = 'recorded_action'
START_S = 40.0     # the longest that the first command may take
DOMAINS = range(215, 233)  # seldom chosen by hand; their ports are nobody's on Linux
DRAW_S = 0.25
CHECK_S = 0.1
INTERRUPTED = 130


def add_parser(subparsers: Any) -> None:
    """Add `demo` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser(
        'demo', help='the whole graph on recorded robot footage',
        description='Builds a nearest-neighbour policy from three bags, plays a fourth as camera '
        'and state, and runs the three nodes on it. Ends with a summary and a plot.')
    parser.add_argument('--seconds', type=float, default=30.0, metavar='S',
                        help='time from the first command on (default 30)')
    parser.add_argument('--out', type=Path, default=Path('out'), metavar='FOLDER',
                        help='where plot, summary and logs go (default out)')
    parser.add_argument('--data', type=Path, metavar='FOLDER',
                        help=f'the bags (default {DATA} here or in the checkout)')
    parser.add_argument('--no-view', action='store_true',
                        help='plain lines instead of the live view')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns the exit status. Raises ValueError with one line."""
    if not 1.0 <= args.seconds <= 3600.0:
        raise ValueError(f'demo: seconds: {args.seconds:g}; allowed is 1 to 3600')
    data = _data(args.data)
    logs = args.out / 'logs'
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(_additions(os.environ, logs))

    from rich.console import Console

    console = Console(highlight=False)
    policy, robot = load_policy(POLICY), load_robot(ROBOT)
    checkpoint = args.out / 'knn_bridge.npz'
    notes = _build(console, data, policy, robot, checkpoint)
    graph = describe({'robot': ROBOT, 'policy': POLICY, 'model': str(checkpoint.resolve()),
                      'enable_on_start': 'true'})
    record = Record(bind(policy, robot).planned)
    view = _view(console, record, policy, graph, args)
    stop = _StopSignals()
    try:
        with _own_stderr(logs / 'demo.log'), LoggedProcesses(logs) as processes:
            processes.start(graph)
            until_ns = _watch(record, view, policy, robot, args.seconds, processes,
                              _player(data / PLAYED), stop)
    except ProcessEnded as ended:
        print(f'vla-ros: demo: {ended}', *ended.tail, sep='\n', file=sys.stderr)
        return 1
    if stop.came:
        console.print('interrupted; all processes have ended')
        return INTERRUPTED
    return _conclude(console, args.out, record, until_ns, policy, notes)


class _StopSignals:
    """Whether SIGINT, SIGTERM or SIGHUP came; from now on they interrupt nothing."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        self.came = True


def _watch(record: Record, view: View, policy: PolicyProfile, robot: RobotProfile, seconds: float,
           processes: LoggedProcesses, player: Graph, stop: _StopSignals) -> int:
    """Listen and show until the time is over or a signal comes; returns the time of the end.

    `player` starts once all the others have spoken, so that no frame is played to nobody. Raises
    ProcessEnded, and ValueError where no command comes.
    """
    from vla_ros.tools.recorder import listening

    nodes, playing = processes.names, False
    give_up = time.monotonic() + START_S
    draw = check = 0.0
    with listening(record, policy, robot, ACTION_TOPIC) as listen, view:
        while not stop.came:
            listen(CHECK_S)
            now, now_ns = time.monotonic(), time.time_ns()
            if now >= check:
                check = now + CHECK_S
                processes.check()
            if not playing and nodes <= record.statuses.keys():
                processes.start(player)
                playing = True
            if now >= draw:
                draw = now + DRAW_S
                view.update(now_ns)
            if record.began_ns is None and now > give_up:
                raise ValueError(_no_command(record))
            if record.began_ns and now_ns >= record.began_ns + round(seconds * NS_PER_S):
                return now_ns
    return time.time_ns()


def _no_command(record: Record) -> str:
    spans = record.spans(time.time_ns())
    state = f'{spans[-1].state}: {spans[-1].cause}' if spans else 'silent'
    return f'demo: no command within {START_S:g} s; action_publisher is {state}'


def _conclude(console: Console, out: Path, record: Record, until_ns: int,
              policy: PolicyProfile, notes: dict[str, Any]) -> int:
    """Write plot and summary, and print the summary. Returns the exit status."""
    from vla_ros.tools.plot import plot
    from vla_ros.tools.summary import summarize, table

    summary = summarize(record, until_ns, policy.period_ns, notes)
    picture, figures = out / 'commands.png', out / 'summary.json'
    subtitle = (f'{PLAYED} of BridgeData V2 through the live graph, {summary.seconds:.0f} s at '
                f'{summary.rate:.0f} Hz; nearest neighbour among {notes["knn"]["frames"]} frames '
                'of other clips: plumbing, not skill')
    plot(record, summary.error, until_ns, policy.period_ns, 'Commands and recorded actions',
         subtitle, picture)
    figures.write_text(json.dumps(summary.json(), indent=2) + '\n')
    console.print(table(summary, [str(picture), str(figures), str(out / 'logs')]))
    spans = record.spans(until_ns)
    if spans and spans[-1].state == FAULT:
        raise ValueError(f'demo: ended in a fault: {spans[-1].cause}')
    return 0


def _build(console: Console, data: Path, policy: PolicyProfile, robot: RobotProfile,
           checkpoint: Path) -> dict[str, Any]:
    """Build the checkpoint and say how long that took; returns what the summary notes of it."""
    from vla_ros.policies.knn.checkpoint import save
    from vla_ros.tools.build_knn import Topics, build

    begin = time.monotonic()
    console.print(f'building {policy.name} from {", ".join(LEARNT)} of {data} …', end=' ')
    camera = robot.cameras[next(iter(policy.cameras))]
    memory = build([data / name for name in LEARNT], policy, Topics(camera.topic),
                   camera.resize.value)
    save(memory, checkpoint)
    seconds = time.monotonic() - begin
    console.print(f'{len(memory.features)} frames in {seconds:.1f} s')
    return {'knn': {'frames': len(memory.features), 'sentences': list(memory.sentences),
                    'built_in_seconds': round(seconds, 2)}}


def _player(bag: Path) -> Graph:
    # The delay lets the nodes match it: the wait is over when the recorder has.
    return Graph((Process('bag_player', 'bag_player', '', {}, lifecycle=False, arguments=(
        str(bag), '--loop', '--wait-for-subscribers', '5', '--delay', '0.5',
        '--remap', *REMAPS)),))


def _view(console: Console, record: Record, policy: PolicyProfile, graph: Graph,
          args: argparse.Namespace) -> View:
    from vla_ros.tools.live_view import LiveView, PlainView, Run

    shown = Run(f'vla-ros demo: {PLAYED} of BridgeData V2, robot {ROBOT}, policy {POLICY}',
                args.seconds, policy.horizon * policy.period_ns / NS_PER_S,
                tuple(process.name for process in graph.processes))
    if args.no_view or not console.is_terminal:
        return PlainView(console, record, shown)
    return LiveView(console, record, shown)


def _data(given: Path | None) -> Path:
    """The folder with the bags. Raises ValueError with one line."""
    beside = Path(__file__).resolve().parents[2] / DATA
    folder = given or (DATA if DATA.is_dir() else beside)
    for name in (*LEARNT, PLAYED):
        if not (folder / name).is_dir():
            raise ValueError(f'demo: {folder}: no bag {name} in it; run this in a clone of the '
                             'repository, which has the bags, or give their folder with --data')
    return folder


def _additions(environment: Mapping[str, str], logs: Path) -> dict[str, str]:
    """What keeps this graph to itself and its traces in the output folder."""
    additions = {
        'ROS_DOMAIN_ID': str(SystemRandom().choice(DOMAINS)),
        'ROS_LOG_DIR': str(logs.resolve() / 'ros')}
    if environment.get('ROS_DISTRO') == 'humble':
        additions['ROS_LOCALHOST_ONLY'] = '1'
    else:
        additions['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    # Never on the domain that is set: a robot may be listening there.
    return {**transport_additions(environment), **additions}


@contextmanager
def _own_stderr(file: Path) -> Iterator[None]:
    """Send what this process and its middleware say on stderr to a file, not into the view."""
    sys.stderr.flush()
    kept = os.dup(2)
    with file.open('wb') as log:
        os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
