"""`vla-ros demo --bag`: the real graph on a real bag, what it writes, how it ends; its pictures."""

from __future__ import annotations

import io
import json
import math
import signal
import time
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')
pytest.importorskip('rich', reason='rich is not installed')
pytest.importorskip('matplotlib', reason='matplotlib is not installed')

from demo_rig import LIMIT_S, alive, children, picture_size, start  # noqa: E402
from rich.console import Console  # noqa: E402

from vla_ros.bringup.graph import Graph, Process  # noqa: E402
from vla_ros.core.action_spec import ActionSpec  # noqa: E402
from vla_ros.core.types import NS_PER_S, Plan  # noqa: E402
from vla_ros.profiles.binding import bind  # noqa: E402
from vla_ros.profiles.policy import load_policy  # noqa: E402
from vla_ros.profiles.robot import load_robot  # noqa: E402
from vla_ros.tools.live_view import PlainView, Run, frame, sparkline  # noqa: E402
from vla_ros.tools.logged_processes import LoggedProcesses, ProcessEnded  # noqa: E402
from vla_ros.tools.plot import plot  # noqa: E402
from vla_ros.tools.record import Record, cause_name, stops  # noqa: E402
from vla_ros.tools.summary import action_error, summarize  # noqa: E402

PERIOD_NS = NS_PER_S // 5
START_NS = 1_000 * NS_PER_S
STALE = 'no fresh state: the last state of x is 0.51 s old (limit 0.5 s)'
RUN = Run('a title', 10.0, 0.8, ('camera_node', 'inference_node', 'action_publisher'))


def spec() -> ActionSpec:
    return bind(load_policy('knn_bridge'), load_robot('widowx_bridge')).planned


# The whole of it

def test_it_runs_the_graph_and_leaves_a_summary_and_a_picture(tmp_path: Path) -> None:
    process = start(['--bag', '--seconds', '6', '--no-view'], tmp_path)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert not errors

    figures = json.loads((tmp_path / 'summary.json').read_text())
    assert 5.9 < figures['seconds'] < 8.0
    assert 0.8 * 50 * figures['seconds'] < figures['commands'] < 1.1 * 50 * figures['seconds']
    # Six seconds hold a clip of ten frames and most of another.
    assert figures['observations'] >= 10
    assert 8 <= figures['chunks'] <= figures['observations'] + 2
    assert figures['latency_ms']['first_command']['p50'] > 0.0
    assert figures['knn']['frames'] == 150
    # The pause between two clips ends the motion, and what is missing has a name.
    causes = set(figures['holds'])
    assert causes & {'no fresh state', 'plan exhausted', 'observation too old'}, causes
    assert 0.0 < sum(hold['seconds'] for hold in figures['holds'].values()) < 4.0
    error = figures['action_error']
    assert error['recorded_actions'] >= 8
    assert 'not skill' in error['note']
    assert all(0.0 < error['rms'][name] < 2.0 for name in ('dx', 'dy', 'dz', 'droll', 'dyaw'))

    assert picture_size(tmp_path / 'commands.png') > (600, 400)
    for name in ('camera_node', 'inference_node', 'action_publisher', 'bag_player'):
        assert (tmp_path / 'logs' / f'{name}.log').exists()
    for shown in ('holding', 'turn lever', 'commands 50', 'watchdog holds', 'plumbing, not skill'):
        assert shown in output


def test_an_interrupt_in_motion_ends_everything(tmp_path: Path) -> None:
    process = start(['--bag', '--no-view'], tmp_path)
    assert process.stdout is not None
    started: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    for line in process.stdout:
        started = children(process.pid)
        if line.endswith('active\n') or time.monotonic() > deadline:
            break
    assert len(started) == 4  # three nodes and the player
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert not errors
    assert 'interrupted' in output
    assert not [pid for pid in started if alive(pid)]
    assert not (tmp_path / 'summary.json').exists()


@pytest.mark.parametrize(('words', 'line'), [
    (['--bag', '--data', '/nowhere'],
     'vla-ros: demo: /nowhere: no bag bridge_0 in it; run this in a clone of the repository, which '
     'has the bags, or give their folder with --data\n'),
    (['--bag', '--seconds', '0'], 'vla-ros: demo: seconds: 0; allowed is 1 to 3600\n')])
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    process = start(words, tmp_path)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (1, line)


def test_a_node_that_ends_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    bad = Graph((Process('camera_node', 'camera_node', '', {'robot': 'nobody'}),))
    with LoggedProcesses(tmp_path) as processes:
        processes.start(bad)
        with pytest.raises(ProcessEnded, match=r'^camera_node ended with status 1; .*\.log:$') as e:
            wait_for_an_end(processes)
    assert "robot profile 'nobody': not found" in '\n'.join(e.value.tail)


def wait_for_an_end(processes: LoggedProcesses) -> None:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        processes.check()
        time.sleep(0.05)


# What was heard

@pytest.mark.parametrize(('cause', 'name'), [
    (STALE, 'no fresh state'),
    ('observation too old: 1.02 s (limit 1 s)', 'observation too old'),
    ('plan exhausted (primary: no frame for 0.60 s)', 'plan exhausted'),
    ('e-stop', 'e-stop')])
def test_a_cause_is_named_without_its_numbers(cause: str, name: str) -> None:
    assert cause_name(cause, spec()) == name


def test_holds_are_counted_and_timed_by_cause() -> None:
    record = Record(spec())
    for seconds, state, cause in ((0, 'waiting', 'not enabled'), (1, 'active', ''),
                                  (3, 'holding', STALE), (4, 'holding', STALE), (5, 'active', ''),
                                  (6, 'holding', 'plan exhausted'), (8, 'active', ''),
                                  (9, 'holding', STALE.replace('0.51', '0.52'))):
        record.on_status('/robot/action_publisher', {'state': state, 'cause': cause},
                         START_NS + seconds * NS_PER_S)
    spans = record.spans(START_NS + 10 * NS_PER_S)
    assert [span.seconds for span in spans] == [1.0, 2.0, 2.0, 1.0, 2.0, 1.0, 1.0]
    assert stops(spans, record.spec) == {'no fresh state': (2, 3.0), 'plan exhausted': (1, 2.0)}


def test_the_seam_is_what_changes_when_a_plan_arrives() -> None:
    record = Record(spec())
    values = np.zeros((4, 7))
    record.on_plan(Plan(START_NS, START_NS, PERIOD_NS, values), START_NS)
    assert record.seam is None
    values = values.copy()
    values[0, 1] = -0.25
    record.on_plan(Plan(START_NS + 1, START_NS, PERIOD_NS, values), START_NS + 1)
    assert record.seam_max.tolist() == [0.0, 0.25, 0.0, 0.0, 0.0, 0.0, 0.0]


def test_latencies_and_clips_are_read_from_the_diagnostics() -> None:
    record = Record(spec())
    record.on_status('/camera_node', {
        'primary: latency convert [ms]': 'p50 1.50, p95 3.44, p99 3.58, max 3.63'}, START_NS)
    record.on_status('/action_publisher', {
        'clips velocity dx': '2', 'clips acceleration dx': '3', 'missed ticks': '4'}, START_NS)
    assert record.latencies() == {'convert': {'p50': 1.5, 'p95': 3.44, 'p99': 3.58, 'max': 3.63}}
    assert (record.clips()['dx'], record.clips()['dy']) == (5, 0)
    assert summarize(record, START_NS, PERIOD_NS, {}).ticks_missed == 4


# What it comes to

def commanded(offset: float) -> Record:
    """Ten seconds: dx as recorded but for `offset` m/s, a hold in the middle, then no action."""
    record = Record(spec())
    for i in range(25):
        record.on_action(START_NS + i * PERIOD_NS, np.array([0.01, 0, 0, 0, 0, 0, 1.0]))
    for i in range(500):
        stamp_ns = START_NS + i * NS_PER_S // 50
        record.heard('command', stamp_ns)
        record.on_command(record.spec.names, [0.05 + offset, 0, 0, 0, 0, 0, 0.8], stamp_ns)
    record.on_sentence('put carrot on plate', START_NS)
    for seconds, state, cause in ((0, 'active', ''), (5, 'holding', STALE), (7, 'active', '')):
        record.on_status('action_publisher', {'state': state, 'cause': cause},
                         START_NS + seconds * NS_PER_S)
    return record


def test_the_error_counts_only_commands_that_a_recorded_action_speaks_of() -> None:
    error = action_error(commanded(0.02), PERIOD_NS)
    assert error.actions == 25
    assert error.rms['dx'] == pytest.approx(0.02)
    assert error.still['dx'] == pytest.approx(0.05)
    assert error.rms['dy'] == 0.0
    assert error.agreement == 1.0


def test_a_run_without_recorded_actions_has_no_error_but_a_summary() -> None:
    record = Record(spec())
    summary = summarize(record, START_NS, PERIOD_NS, {})
    assert summary.error.actions == 0
    assert math.isnan(summary.error.agreement)
    assert json.loads(json.dumps(summary.json()))['action_error']['gripper_agreement'] is None


# What is shown

def shown(record: Record, seconds: float, width: int = 100, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(frame(record, RUN, START_NS + round(seconds * NS_PER_S), width, height))
    return console.export_text()


def test_a_hold_is_shown_with_its_name_and_how_long_it_has_lasted() -> None:
    record = commanded(0.0)
    for node in RUN.nodes[:2]:
        record.on_status(node, {}, START_NS)
    assert '● active 2.0 s' in shown(record, 9.0)
    record.on_status('action_publisher', {'state': 'holding', 'cause': STALE},
                     START_NS + 9 * NS_PER_S)
    text = shown(record, 9.5)
    assert '● holding 0.5 s  no fresh state: the last state of x' in text  # the rest is wrapped
    assert 'put carrot on plate' in text
    assert '9.5 of 10 s' in text


def test_nodes_that_have_not_spoken_are_named() -> None:
    record = Record(spec())
    record.on_status('inference_node', {}, START_NS)
    assert 'starting camera_node, action_publisher' in shown(record, 0.0)


@pytest.mark.parametrize('height', [10, 20, 24, 30, 40])
@pytest.mark.parametrize('width', [60, 80, 120])
def test_the_view_fits_into_the_terminal(width: int, height: int) -> None:
    lines = shown(commanded(0.0), 9.0, width, height).rstrip('\n').split('\n')
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert any('watchdog' in line for line in lines)


def test_plain_lines_tell_each_change_of_state_once(capsys: pytest.CaptureFixture[str]) -> None:
    record = commanded(0.0)
    for node in RUN.nodes:
        record.statuses.setdefault(node, {})
    with PlainView(Console(width=200), record, RUN) as view:
        for seconds in (7.5, 8.0, 8.5):
            view.update(START_NS + round(seconds * NS_PER_S))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if 'Hz' not in line] == [
        '  0.0 s  active', f'  5.0 s  holding: {STALE}', '  7.0 s  active']
    assert len([line for line in lines if 'Hz' in line]) == 1


def test_a_sparkline_has_zero_in_its_middle() -> None:
    assert sparkline([0.0] * 200, 1.0, True) == '▅' * 25
    assert sparkline([-1.0] * 8 + [1.0] * 8, 1.0, True) == ' ' * 23 + '▁█'
    assert sparkline([0.0] * 8, 0.0, False) == ' ' * 24 + '▁'


def test_the_picture_shows_where_commands_and_holds_are(tmp_path: Path) -> None:
    from matplotlib import image

    record, until_ns = commanded(0.02), START_NS + 10 * NS_PER_S
    error = action_error(record, PERIOD_NS)
    plot(record, error, until_ns, PERIOD_NS, 'a title', 'more', tmp_path / 'one.png')
    pixels = image.imread(tmp_path / 'one.png')[..., :3]
    height, width = pixels.shape[:2]
    assert (width, height) == picture_size(tmp_path / 'one.png')
    assert width > 600
    assert height > 400
    # A hold from 5 to 7 s of 10 is shaded over a fifth of the axes, which are 0.843 of the width.
    shaded = (np.abs(pixels - np.array([0.98, 0.91, 0.79])) < 0.02).all(axis=2)
    assert shaded.any(axis=0).sum() > 0.15 * width
    blue = (np.abs(pixels - np.array([0x17, 0x69, 0xc4]) / 255) < 0.05).all(axis=2)
    assert blue.any(axis=0).sum() > 0.7 * width


def test_a_run_in_which_nothing_was_heard_can_be_drawn(tmp_path: Path) -> None:
    record = Record(spec())
    plot(record, action_error(record, PERIOD_NS), START_NS, PERIOD_NS, 'a', 'b',
         tmp_path / 'one.png')
    assert picture_size(tmp_path / 'one.png') > (600, 400)
