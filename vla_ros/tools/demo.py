"""`vla-ros demo`: the simulated arm does what sentences say, through the whole graph."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vla_ros.bringup.graph import Graph, Process, describe
from vla_ros.core.types import NS_PER_S
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.tools.demo_course import Course
from vla_ros.tools.demo_parts import (
    CHECK_S,
    DRAW_S,
    INTERRUPTED,
    START_S,
    StopSignals,
    no_command,
    own_stderr,
)
from vla_ros.tools.demo_script import TRIAL, Script, own_script, shown_script
from vla_ros.tools.logged_processes import LoggedProcesses, ProcessEnded
from vla_ros.tools.private_graph import private_additions
from vla_ros.tools.record import FAULT, Record
from vla_ros.tools.reel import Reel

if TYPE_CHECKING:  # rich and matplotlib are for those who run the demo
    from rich.console import Console

    from vla_ros.tools.live_view import View

ROBOT, POLICY, ENGINE = 'sim_arm', 'edgevla_sim', 'cpu'
SECONDS = 60.0  # for the sequence, however little of it is done
ABOUT = """
Starts the simulated arm, the three nodes and a small trained policy, and says one sentence after
the other; the simulator judges what comes of each. Ends with a summary, a plot and a film.
"""


def add_parser(subparsers: Any) -> None:
    """Add `demo` to the subcommands of `vla-ros`."""
    parser = subparsers.add_parser('demo', help='the simulated arm does what sentences say',
                                   description=ABOUT)
    parser.add_argument('--instruction', action='append', metavar='SENTENCE',
                        help='your own sentence instead of the sequence; may be repeated')
    parser.add_argument('--seed', type=int, metavar='S',
                        help='of the table and of the wordings (default 0)')
    parser.add_argument('--seconds', type=float, metavar='S',
                        help=f'time at most (default {SECONDS:g}; with --instruction what the '
                        'sentences may take, with --bag 30)')
    parser.add_argument('--model', type=Path, metavar='FOLDER',
                        help='another checkpoint of the policy')
    parser.add_argument('--out', type=Path, default=Path('out'), metavar='FOLDER',
                        help='where film, plot, summary and logs go (default out)')
    parser.add_argument('--no-view', action='store_true',
                        help='plain lines instead of the live view')
    parser.add_argument('--bag', action='store_true',
                        help='recorded robot footage instead of the simulator: builds a '
                        'nearest-neighbour policy from three bags and plays a fourth')
    parser.add_argument('--data', type=Path, metavar='FOLDER', help='the bags of --bag')
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one of the demos; returns the exit status. Raises ValueError with one line."""
    if args.seconds is not None and not 1.0 <= args.seconds <= 3600.0:
        raise ValueError(f'demo: seconds: {args.seconds:g}; allowed is 1 to 3600')
    if args.bag:
        for name in ('instruction', 'seed', 'model'):
            if getattr(args, name) is not None:
                raise ValueError(f'demo: {name}: not with --bag')
        from vla_ros.tools.demo_bag import run_on_bags
        return run_on_bags(args)
    if args.data is not None:
        raise ValueError('demo: data: only with --bag')
    return _run_simulated(args)


def _run_simulated(args: argparse.Namespace) -> int:
    seed = 0 if args.seed is None else args.seed
    script = own_script(args.instruction, seed) if args.instruction else shown_script(seed)
    seconds = args.seconds
    if seconds is None:
        seconds = math.inf if args.instruction else SECONDS  # each sentence has its limit
    policy = load_policy(POLICY, '' if args.model is None else str(args.model.resolve()))
    warnings = [*script.notes, *unseen(policy, script)]
    graph = sim_graph(policy, script)

    from vla_ros.sim.rendering import import_mujoco
    import_mujoco()  # what is missing is said here, in a line
    logs = args.out / 'logs'
    logs.mkdir(parents=True, exist_ok=True)
    os.environ.update(private_additions(os.environ, logs))

    from rich.console import Console

    console = Console(highlight=False)
    for line in warnings:
        console.print(f'warning: {line}', style='yellow', markup=False, soft_wrap=True)
    record = Record(bind(policy, load_robot(ROBOT)).planned)
    course, reel = Course(script), Reel()
    view = _view(console, course, record, graph, policy, warnings, args.no_view)
    stop = StopSignals()
    try:
        with own_stderr(logs / 'demo.log'), LoggedProcesses(logs) as processes:
            processes.start(graph)
            _show(record, course, reel, view, policy, seconds, processes, stop)
    except ProcessEnded as ended:
        print(f'vla-ros: demo: {ended}', *ended.tail, sep='\n', file=sys.stderr)
        return 1
    except _Stopped:
        pass
    if stop.came:
        console.print('interrupted; all processes have ended')
        return INTERRUPTED
    stop.release()
    return _conclude(console, args.out, record, course, reel, policy, warnings)


def sim_graph(policy: PolicyProfile, script: Script) -> Graph:
    """The simulator with the first table, and the nodes that drive it. Raises ValueError."""
    graph = describe({'robot': ROBOT, 'policy': POLICY, 'engine': ENGINE, 'enable_on_start': 'true',
                      'model': str(policy.checkpoint)})
    simulator = Process('sim_robot', 'sim_robot', '',
                        {'trial': TRIAL, 'seed': script.cues[0].scene})
    return Graph((simulator, *graph.processes), graph.notes)


def unseen(policy: PolicyProfile, script: Script) -> list[str]:
    """What the policy cannot read of the sentences, a line each. Raises ValueError."""
    from vla_ros.policies.edgevla.config import read_config
    from vla_ros.policies.edgevla.engine import notes_on
    from vla_ros.policies.edgevla.files import CONFIG
    from vla_ros.policies.edgevla.tokenizer import Tokenizer

    folder = policy.checkpoint
    if folder is None or not folder.is_dir():
        where = folder if folder is None else folder.resolve()
        raise ValueError(f'demo: {where}: no such folder: it should hold a trained policy; train '
                         'one with vla-ros train sim and give it as --model')
    text = read_config(folder / CONFIG).text
    tokenizer = Tokenizer(text.words, text.length)
    return [f'"{sentence}": {note.removeprefix("instruction: ")}'
            for sentence in dict.fromkeys(cue.sentence for cue in script.cues)
            for note in notes_on(tokenizer.encode(sentence))]


class _Stopped(Exception):
    """A signal asked for the end."""


class _Watch:
    """Looks after everything while the play goes on."""

    def __init__(self, record: Record, course: Course, view: View, processes: LoggedProcesses,
                 stop: StopSignals) -> None:
        self._record, self._course, self._view = record, course, view
        self._processes, self._stop = processes, stop
        self._check = self._draw = 0.0

    def look(self) -> None:
        """Raises _Stopped, ProcessEnded, and ValueError where no command comes."""
        if self._stop.came:
            raise _Stopped
        now, now_ns = time.monotonic(), time.time_ns()
        if now >= self._check:
            self._check = now + CHECK_S
            self._processes.check()
        if now >= self._draw:
            self._draw = now + DRAW_S
            self._view.update(now_ns)
        turns = self._course.turns
        if self._record.began_ns is None and turns and turns[0].seconds(now_ns) > START_S:
            raise ValueError(no_command(self._record, START_S))


def _show(record: Record, course: Course, reel: Reel, view: View, policy: PolicyProfile,
          seconds: float, processes: LoggedProcesses, stop: StopSignals) -> None:
    """Play everything and show it. Raises _Stopped, ProcessEnded and ValueError."""
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    from vla_ros.tools.demo_play import DemoOperator, Play
    from vla_ros.tools.recorder import Recorder

    robot = load_robot(ROBOT)
    watch = _Watch(record, course, view, processes, stop)
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    try:
        recorder = Recorder(record, policy, robot)
        operator = DemoOperator(robot, record.spec, policy, reel, [recorder], watch.look)
        try:
            with view:
                operator.ready(sorted(processes.names), START_S)
                Play(operator, course, record, seconds).play()
                view.update(time.time_ns())
        except ValueError as error:
            raise ValueError(f'demo: {str(error).removeprefix("eval: ")}') from None
        finally:
            operator.close()
            recorder.destroy_node()
    finally:
        rclpy.try_shutdown()


def _conclude(console: Console, out: Path, record: Record, course: Course, reel: Reel,
              policy: PolicyProfile, warnings: Sequence[str]) -> int:
    """Write film, plot and summary, and print the summary. Returns the exit status."""
    from vla_ros.tools.demo_film import write_demo_film
    from vla_ros.tools.demo_plot import plot_demo
    from vla_ros.tools.demo_summary import course_notes, course_table, not_by_us
    from vla_ros.tools.summary import summarize

    until_ns = course.turns[-1].ended_ns or time.time_ns()
    summary = summarize(record, until_ns, None, {
        'robot': ROBOT, 'policy': policy.name, **course_notes(course, warnings)})
    summary = replace(summary, stops=not_by_us(summary.stops))
    film, picture, figures = out / 'demo.gif', out / 'commands.png', out / 'summary.json'
    console.print('writing plot and film …')
    plot_demo(record, course, reel, until_ns, f'The demo: {course.score}',
              f'robot {ROBOT}, policy {policy.name}, {summary.seconds:.0f} s through the live '
              f'graph at {summary.rate:.0f} Hz', picture)
    filmed = write_demo_film(reel, course, film)
    if not filmed:
        film.unlink(missing_ok=True)  # of an earlier run
    figures.write_text(json.dumps(summary.json(), indent=2) + '\n')
    files = [*([film] if filmed else []), picture, figures, out / 'logs']
    console.print(course_table(course, summary, warnings, [str(file) for file in files]))
    spans = record.spans(until_ns)
    if record.began_ns is None:
        raise ValueError(f'demo: {no_command(record, summary.seconds)}')
    if spans and spans[-1].state == FAULT:
        raise ValueError(f'demo: ended in a fault: {spans[-1].cause}')
    return 0


def _view(console: Console, course: Course, record: Record, graph: Graph, policy: PolicyProfile,
          warnings: Sequence[str], plain: bool) -> View:
    from vla_ros.tools.demo_view import TaskLines, TaskView
    from vla_ros.tools.live_view import LiveView, Run

    shown = Run(f'vla-ros demo: robot {ROBOT}, policy {policy.name}', 0.0,
                policy.horizon * policy.period_ns / NS_PER_S,
                tuple(process.name for process in graph.processes), 'the first command')
    if plain or not console.is_terminal:
        return TaskLines(console, course, record, shown)
    return LiveView(console, TaskView(course, record, shown, warnings).picture)
