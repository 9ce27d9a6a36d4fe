"""`vla-ros demo --bag`: the whole graph on recorded robot footage, with a view and a plot."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.bringup.graph import Graph, Process, describe
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import RobotProfile, load_robot
from vla_ros.tools.demo_parts import (
    CHECK_S,
    DRAW_S,
    INTERRUPTED,
    START_S,
    StopSignals,
    no_command,
    own_stderr,
)
from vla_ros.tools.logged_processes import LoggedProcesses, ProcessEnded
from vla_ros.tools.private_graph import private_additions
from vla_ros.tools.record import FAULT, Record

if TYPE_CHECKING:  # rich and matplotlib are for those who run the demo
    from rich.console import Console

    from vla_ros.tools.live_view import View

ROBOT, POLICY = 'widowx_bridge', 'knn_bridge'
DATA = Path('data', 'bridge_v2')
LEARNT, PLAYED = ('bridge_0', 'bridge_1', 'bridge_2'), 'bridge_3'
REMAPS = ('/ee_state:=joint_states', '/vla/instruction:=instruction')
ACTION_TOPIC = 'recorded_action'
SECONDS = 30.0


def run_on_bags(args: argparse.Namespace) -> int:
    """Run the demo; returns the exit status. Raises ValueError with one line."""
    seconds = SECONDS if args.seconds is None else args.seconds
    data = _data(args.data)
    logs = args.out / 'logs'
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(private_additions(os.environ, logs))

    from rich.console import Console

    console = Console(highlight=False)
    policy, robot = load_policy(POLICY), load_robot(ROBOT)
    checkpoint = args.out / 'knn_bridge.npz'
    notes = _build(console, data, policy, robot, checkpoint)
    graph = describe({'robot': ROBOT, 'policy': POLICY, 'model': str(checkpoint.resolve()),
                      'enable_on_start': 'true'})
    record = Record(bind(policy, robot).planned)
    view = _view(console, record, policy, graph, seconds, args.no_view)
    stop = StopSignals()
    try:
        with own_stderr(logs / 'demo.log'), LoggedProcesses(logs) as processes:
            processes.start(graph)
            until_ns = _watch(record, view, policy, robot, seconds, processes,
                              _player(data / PLAYED), stop)
    except ProcessEnded as ended:
        print(f'vla-ros: demo: {ended}', *ended.tail, sep='\n', file=sys.stderr)
        return 1
    if stop.came:
        console.print('interrupted; all processes have ended')
        return INTERRUPTED
    return _conclude(console, args.out, record, until_ns, policy, notes)


def _watch(record: Record, view: View, policy: PolicyProfile, robot: RobotProfile, seconds: float,
           processes: LoggedProcesses, player: Graph, stop: StopSignals) -> int:
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
                raise ValueError(f'demo: {no_command(record, START_S)}')
            if record.began_ns and now_ns >= record.began_ns + round(seconds * NS_PER_S):
                return now_ns
    return time.time_ns()


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
    assert summary.error is not None, 'the recording has actions'
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


def _view(console: Console, record: Record, policy: PolicyProfile, graph: Graph, seconds: float,
          plain: bool) -> View:
    from vla_ros.tools.live_view import LiveView, PlainView, Run, frame

    shown = Run(f'vla-ros demo: {PLAYED} of BridgeData V2, robot {ROBOT}, policy {POLICY}',
                seconds, policy.horizon * policy.period_ns / NS_PER_S,
                tuple(process.name for process in graph.processes))
    if plain or not console.is_terminal:
        return PlainView(console, record, shown)
    return LiveView(console, partial(frame, record, shown))


def _data(given: Path | None) -> Path:
    """The folder with the bags. Raises ValueError with one line."""
    beside = Path(__file__).resolve().parents[2] / DATA
    folder = given or (DATA if DATA.is_dir() else beside)
    for name in (*LEARNT, PLAYED):
        if not (folder / name).is_dir():
            raise ValueError(f'demo: {folder}: no bag {name} in it; run this in a clone of the '
                             'repository, which has the bags, or give their folder with --data')
    return folder
