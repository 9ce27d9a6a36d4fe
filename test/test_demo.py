"""`vla-ros demo`: sentences through the real graph to the simulated arm, and what is left of it."""

from __future__ import annotations

import io
import json
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip('rclpy', reason='ROS 2 is not installed')
pytest.importorskip('rich', reason='rich is not installed')
pytest.importorskip('matplotlib', reason='matplotlib is not installed')

from demo_rig import LIMIT_S, alive, children, picture_size, start  # noqa: E402
from PIL import Image  # noqa: E402
from rich.console import Console, RenderableType  # noqa: E402

from vla_ros.core.types import NS_PER_S  # noqa: E402
from vla_ros.profiles.binding import bind  # noqa: E402
from vla_ros.profiles.policy import load_policy  # noqa: E402
from vla_ros.profiles.robot import load_robot  # noqa: E402
from vla_ros.sim.arm import OPENING  # noqa: E402
from vla_ros.sim.tasks import VOCABULARY  # noqa: E402
from vla_ros.tools import demo_film, demo_play  # noqa: E402
from vla_ros.tools.demo_course import Course, End  # noqa: E402
from vla_ros.tools.demo_film import DemoFilm, write_demo_film  # noqa: E402
from vla_ros.tools.demo_play import Play  # noqa: E402
from vla_ros.tools.demo_plot import plot_demo  # noqa: E402
from vla_ros.tools.demo_script import Cue, Script, own_script, shown_script  # noqa: E402
from vla_ros.tools.demo_summary import course_notes, course_table, not_by_us  # noqa: E402
from vla_ros.tools.demo_view import TaskLines, TaskView  # noqa: E402
from vla_ros.tools.live_view import Run  # noqa: E402
from vla_ros.tools.record import Record  # noqa: E402
from vla_ros.tools.reel import Reel  # noqa: E402
from vla_ros.tools.summary import summarize  # noqa: E402

needs_mujoco = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
START_NS = 1_000 * NS_PER_S
NODES = ('sim_robot', 'action_publisher', 'inference_node', 'camera_node')
RUN = Run('a title', 0.0, 1.6, NODES)
LATENCY = 'p50 12.50, p95 20.00, p99 21.00, max 30.00'


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped policy, or one that was never trained."""
    shipped = load_policy('edgevla_sim').checkpoint
    if shipped is not None and shipped.is_dir():
        return shipped
    pytest.importorskip('torch', reason='torch is not installed')
    pytest.importorskip('onnx', reason='onnx is not installed')
    from vla_ros.policies.edgevla.config import small
    from vla_ros.policies.edgevla.export import random_checkpoint
    folder = tmp_path_factory.mktemp('checkpoint')
    random_checkpoint(folder, replace(small(VOCABULARY), window=2))
    return folder


# The whole of it

@needs_mujoco
def test_it_runs_the_graph_and_leaves_a_summary_a_picture_and_a_film(
        checkpoint: Path, tmp_path: Path) -> None:
    process = start(['--instruction', 'reach the purple block', '--seconds', '5', '--no-view',
                     '--model', str(checkpoint)], tmp_path)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    assert not errors

    figures = json.loads((tmp_path / 'summary.json').read_text())
    assert (figures['done'], figures['judged']) == (0, 0)
    [said] = figures['sentences']
    assert (said['sentence'], said['kind'], said['result']) == (
        'reach the purple block', None, 'cut short')
    assert 4.9 < said['seconds'] < 7.0
    warning = '"reach the purple block": the policy has never seen: \'purple\''
    assert figures['warnings'] == [warning]
    assert 0.6 * 50 * 4 < figures['commands'] < 1.1 * 50 * figures['seconds']
    assert 10 <= figures['chunks'] <= figures['observations'] + 2
    assert figures['latency_ms']['first_command']['p50'] > 0.0
    assert figures['latency_ms']['infer']['p50'] > 0.0
    assert 'action_error' not in figures
    for shown in (f'warning: {warning}', '“reach the purple block”', 'active', 'commands ',
                  'nothing to be judged', 'cut short', 'for one inference'):
        assert shown in output

    assert picture_size(tmp_path / 'commands.png') > (600, 400)
    film = Image.open(tmp_path / 'demo.gif')
    assert film.size[0] == 480
    assert film.size[1] > 360
    seconds = 0.0
    for i in range(film.n_frames):
        film.seek(i)
        seconds += film.info['duration'] / 1e3
    assert 4.0 < seconds < 8.0
    assert film.n_frames > 15
    for name in NODES:
        assert (tmp_path / 'logs' / f'{name}.log').exists()
    told = (tmp_path / 'logs' / 'inference_node.log').read_text()
    assert "the policy has never seen: 'purple'" in told


@needs_mujoco
def test_an_interrupt_in_motion_ends_everything(checkpoint: Path, tmp_path: Path) -> None:
    process = start(['--no-view', '--model', str(checkpoint)], tmp_path)
    assert process.stdout is not None
    started: list[int] = []
    deadline = time.monotonic() + LIMIT_S
    for line in process.stdout:
        started = children(process.pid)
        if line.endswith('active\n') or time.monotonic() > deadline:
            break
    assert len(started) == 4
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert not errors
    assert 'interrupted' in output
    assert not [pid for pid in started if alive(pid)]
    assert not (tmp_path / 'summary.json').exists()


@pytest.mark.parametrize(('words', 'line'), [
    (['--model', '/nowhere'], 'vla-ros: demo: /nowhere: no such folder: it should hold a trained '
                              'policy; train one with vla-ros train sim and give it as --model\n'),
    (['--seconds', '0'], 'vla-ros: demo: seconds: 0; allowed is 1 to 3600\n'),
    (['--seed', '-1'], 'vla-ros: demo: seed: -1; allowed is 0 to 9999\n'),
    (['--instruction', ' '], 'vla-ros: demo: instruction: empty: write a sentence, such as "pick '
                             'up the red block"\n'),
    (['--bag', '--seed', '1'], 'vla-ros: demo: seed: not with --bag\n'),
    (['--data', '.'], 'vla-ros: demo: data: only with --bag\n')])
def test_bad_input_is_one_line(tmp_path: Path, words: list[str], line: str) -> None:
    process = start(words, tmp_path)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, errors) == (1, line)


# Playing

class Stage:
    """In place of the operator: tells of what `will` says for each sentence."""

    def __init__(self, will: dict[str, str]) -> None:
        self.will, self.acts = will, list[str]()
        self.events: list[str] = []
        self.filming = False
        self._said = ''

    def say(self, sentence: str) -> None:
        self._said = sentence
        self.acts.append(sentence)

    def told(self, event: str) -> float | None:
        return 0.1 if self.will.get(self._said) == event else None

    def rest(self, silence_s: float) -> None:
        self.acts.append('rest')

    def lay_out(self, trial: str, seed: int) -> None:
        self.acts.append(f'table {seed}')

    def enable(self) -> str:
        self.acts.append('enable')
        return ''

    def spin(self, seconds: float) -> None:
        time.sleep(0.005)


def cue(sentence: str, **changes: object) -> Cue:
    made = Cue(sentence, own_script(['reach the red block'], 0).cues[0].task, 0.1, 7)
    return replace(made, **changes)  # type: ignore[arg-type]


def played(monkeypatch: pytest.MonkeyPatch, stage: Stage, *cues: Cue, seconds: float = 10.0
           ) -> Course:
    monkeypatch.setattr(demo_play, 'TAIL_S', 0.01)
    monkeypatch.setattr(demo_play, 'IMPOSSIBLE_S', 0.01)
    course = Course(Script(cues))
    Play(stage, course, record(), seconds).play()  # type: ignore[arg-type]
    return course


def record() -> Record:
    return Record(bind(load_policy('edgevla_sim'), load_robot('sim_arm')).planned)


def test_nothing_is_laid_out_anew_while_all_goes_well(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage({'a': 'success', 'c': 'success'})
    course = played(monkeypatch, stage, cue('a', limit_s=5.0), cue('b', cut=True), cue('c'))
    assert stage.acts == ['a', 'b', 'c']
    assert [turn.end for turn in course.turns] == [End.DONE, End.CHANGED, End.DONE]
    assert (course.done, course.judged, course.score) == (2, 2, '2 of 2 done')
    assert course.turns[0].took_s == 0.1
    assert not any(turn.fresh for turn in course.turns)


def test_after_a_failure_and_for_another_table_everything_is_laid_out_anew(
        monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage({'b': 'success', 'c': 'success'})
    course = played(monkeypatch, stage, cue('a'), cue('b'), cue('c', scene=8, fresh=True))
    assert stage.acts == ['a', 'rest', 'table 7', 'b', 'enable', 'rest', 'table 8', 'c', 'enable']
    assert [turn.end for turn in course.turns] == [End.FAILED, End.DONE, End.DONE]
    assert [turn.fresh for turn in course.turns] == [False, True, True]


def test_what_cannot_be_judged_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage({'b': 'impossible'})
    course = played(monkeypatch, stage, cue('a', task=None), cue('b', limit_s=5.0), cue('c'))
    assert stage.acts == ['a', 'b', 'c']
    assert [turn.end for turn in course.turns] == [End.UNJUDGED, End.IMPOSSIBLE, End.FAILED]
    assert course.score == '0 of 1 done'


def test_the_time_ends_the_sentence_at_hand_and_all_after_it(
        monkeypatch: pytest.MonkeyPatch) -> None:
    course = played(monkeypatch, Stage({}), cue('a', limit_s=9.0), cue('b'), seconds=0.05)
    assert [turn.end for turn in course.turns] == [End.CUT]
    assert course.score == 'nothing to be judged'


# What is shown

def course_of_three(script: Script | None = None) -> Course:
    """From 0 to 4 s: done at 1.5 s; a change of mind; done; not done on a new table; going on."""
    course = Course(script or shown_script(0))
    cues = course.script.cues

    def at(seconds: float) -> int:
        return START_NS + round(seconds * NS_PER_S)

    course.say(cues[0], at(0.0))
    course.succeed(1.5, at(1.5))
    course.conclude(End.FAILED, at(2.0))
    course.say(cues[1], at(2.0))
    course.conclude(End.FAILED, at(3.0))
    course.say(cues[2], at(3.6), at(3.5))
    return course


def heard(seconds: float = 4.0) -> Record:
    """Commands at 50 Hz, the publisher active but for a rest from 3 to 3.6 s."""
    found = record()
    for i in range(round(seconds * 50)):
        stamp_ns = START_NS + i * NS_PER_S // 50
        if 3.1 <= i / 50 < 3.7:
            continue
        found.heard('command', stamp_ns)
        found.on_command(found.spec.names[:6], [0.1 * np.sin(i / 20), 0.2, 0.3, 0.0, 0.5, 0.6],
                         stamp_ns)
        found.on_command(('gripper',), [OPENING * (i % 100 > 50)], stamp_ns)
    for node in ('sim_robot', 'camera_node'):
        found.on_status(node, {}, START_NS)
    found.on_status('inference_node', {'latency infer [ms]': LATENCY}, START_NS)
    for at, state, cause in ((0.0, 'active', ''), (3.0, 'waiting', 'no instruction; publish one'),
                             (3.6, 'active', '')):
        found.on_status('action_publisher', {
            'state': state, 'cause': cause, 'latency first_command [ms]': LATENCY},
            START_NS + round(at * NS_PER_S))
    return found


def text_of(picture: RenderableType, width: int = 100, height: int = 40) -> str:
    console = Console(width=width, height=height, record=True, file=io.StringIO())
    console.print(picture)
    return console.export_text()


def shown(course: Course, found: Record, seconds: float, width: int = 100, height: int = 40,
          warnings: Sequence[str] = ()) -> str:
    view = TaskView(course, found, RUN, warnings)
    now_ns = START_NS + round(seconds * NS_PER_S)
    return text_of(view.picture(now_ns, width, height), width, height)


def test_sentences_are_shown_with_what_came_of_them() -> None:
    text = shown(course_of_three(), heard(), 4.1, warnings=['a word is unknown'])
    lines = [line.strip() for line in text.splitlines()]
    assert 'instruction  “lift the yellow block”' in text
    assert ' 0.5 of 10 s' in text
    assert any(line.startswith('✓ touch the green bowl') and line.endswith('1.5 s')
               for line in lines)
    assert any(line.startswith('✗ slide the blue block') and line.endswith('not done')
               for line in lines)
    assert any(line.startswith('▸ lift the yellow block') and line.endswith('0.5 s')
               for line in lines)
    assert '· put the green block in the yellow bowl' in lines
    assert '● active 0.5 s' in text
    for name in ('capture → command', 'policy, inference'):
        assert any(name in line and line.endswith('12.5   21.0') for line in lines)
    assert '! a word is unknown' in lines


def test_a_success_is_shown_at_once() -> None:
    course = course_of_three()
    course.succeed(0.4, START_NS + 4 * NS_PER_S)
    text = shown(course, heard(), 4.1)
    assert '✓ “lift the yellow block”' in text
    assert '✓ lift the yellow block' in text


def test_troubles_are_told_of_only_where_they_come_up_meanwhile() -> None:
    course, found = course_of_three(), heard()
    view = TaskView(course, found, RUN, ())
    found.on_status('camera_node', {}, START_NS, 'base: no frame for 0.4 s')
    shown = []
    for seconds, periods in ((0.0, 0), (1.0, 3), (2.0, 3), (3.0, 3), (4.0, 4)):
        found.on_status('sim_robot', {'periods fallen behind': str(periods)}, START_NS)
        text = text_of(view.picture(START_NS + round(seconds * NS_PER_S), 100, 40))
        shown.append(('! sim_robot: simulated time has fallen behind' in text,
                      '! camera_node: base: no frame for 0.4 s' in text))
    assert shown == [(False, False), (False, False), (False, True), (False, True), (True, True)]


@pytest.mark.parametrize('height', [10, 16, 20, 24, 40])
@pytest.mark.parametrize('width', [60, 80, 120])
def test_the_view_fits_into_the_terminal(width: int, height: int) -> None:
    text = shown(course_of_three(), heard(), 4.0, width, height, ['a warning ' * 20, 'another'])
    lines = text.rstrip('\n').split('\n')
    assert len(lines) < height
    assert max(map(len, lines)) <= width
    assert any('lift the yellow block' in line for line in lines)


def test_plain_lines_tell_each_turn_once(capsys: pytest.CaptureFixture[str]) -> None:
    course, found = course_of_three(), heard()
    with TaskLines(Console(width=200), course, found, RUN) as view:
        for seconds in (3.7, 4.0, 4.1):
            view.update(START_NS + round(seconds * NS_PER_S))
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if 'Hz' not in line] == [
        '  0.0 s  “touch the green bowl”', '  2.0 s  ✓ 1.5 s: “touch the green bowl”',
        '  2.0 s  “slide the blue block to the left”',
        '  3.0 s  ✗ not done: “slide the blue block to the left”',
        '  3.6 s  “lift the yellow block”', '  0.0 s  active', '  3.6 s  active']


# What it comes to

def test_the_summary_counts_successes_and_leaves_rests_out_of_the_rate() -> None:
    course, found = course_of_three(), heard()
    course.conclude(End.CUT, START_NS + 4 * NS_PER_S)
    found.on_status('action_publisher', {'state': 'holding', 'cause': 'plan exhausted'},
                    START_NS + round(3.8 * NS_PER_S))
    summary = summarize(found, START_NS + 4 * NS_PER_S, None, course_notes(course, ['a word']))
    assert summary.rate == pytest.approx(50.0)
    assert summary.longest_gap_ms == pytest.approx(20.0)
    assert summary.waiting_s == pytest.approx(0.6)
    assert not_by_us({'disabled': (1, 2.0), 'e-stop': (1, 1.0)}) == {'e-stop': (1, 1.0)}
    values = json.loads(json.dumps(summary.json()))
    assert (values['done'], values['judged'], values['warnings']) == (1, 2, ['a word'])
    assert [said['result'] for said in values['sentences']] == ['done', 'not done', 'cut short']
    assert values['sentences'][0]['success_after'] == 1.5
    assert [said['laid_out_anew'] for said in values['sentences']] == [False, False, True]
    text = text_of(course_table(course, summary, ['a word'], ['a/file']))
    for line in ('1 of 2 done', '✓ touch the green bowl  1.5 s',
                 '- lift the yellow block  cut short', 'p50 12.5 ms, p99 21.0 ms for one inference',
                 '1 x plan exhausted, 0.2 s in all', 'a word', 'a/file'):
        assert line in text


# The film

def images(*seconds: float, size: tuple[int, int] = (48, 64)) -> Reel:
    """Grey images, a little brighter each, with a moving white block."""
    reel = Reel()
    for i, at in enumerate(seconds):
        pixels = np.full((*size, 3), 40 + i, np.uint8)
        pixels[4:12, i % 40:i % 40 + 8] = 255
        reel.add(START_NS + round(at * NS_PER_S), pixels)
    return reel


def test_a_reel_gives_back_what_it_was_given() -> None:
    given = [np.random.default_rng(i).integers(0, 256, (6, 8, 3), dtype=np.uint8) for i in range(5)]
    reel = Reel()
    for i, pixels in enumerate(given):
        reel.add(i, pixels)
        pixels = pixels.copy()
    reel.add(9, np.zeros((3, 3, 3), np.uint8))  # of another size
    assert len(reel) == 5
    for _ in range(2):
        for i, (stamp, pixels) in enumerate(reel):
            assert stamp == i
            np.testing.assert_array_equal(pixels, given[i])


def test_each_frame_says_what_was_true_at_its_time() -> None:
    course = course_of_three()
    course.conclude(End.CUT, START_NS + 4 * NS_PER_S)
    frames = list(DemoFilm(images(-0.5, 0.5, 1.6, 2.1, 3.2, 3.55, 3.9), course))
    assert [(frame.caption.split()[0], frame.done, frame.failed, frame.last, frame.note)
            for frame in frames] == [
        ('touch', False, False, False, '1 of 6'), ('touch', True, False, False, '1 of 6'),
        ('slide', False, False, False, '2 of 6'), ('slide', False, True, True, '2 of 6'),
        ('lift', False, False, False, '3 of 6'), ('lift', False, False, True, '3 of 6')]
    assert [frame.ms for frame in frames[:2]] == [500, 500]
    assert frames[4].ms == 350


def test_the_film_plays_as_long_as_it_took(tmp_path: Path) -> None:
    file = tmp_path / 'demo.gif'
    assert write_demo_film(images(*np.arange(0.0, 3.0, 0.1)), course_of_three(), file)
    film = Image.open(file)
    assert film.size == (64, 48 + 36)
    seen = []
    for i in range(film.n_frames):
        film.seek(i)
        seen.append((film.info['duration'], np.asarray(film.convert('RGB'))[:48].astype(int)))
    assert sum(duration for duration, _ in seen) == 29 * 100 + 900
    for (_, pixels), (_, expected) in zip(seen, images(*np.arange(0.0, 3.0, 0.1)), strict=True):
        assert np.abs(pixels - expected).max() < 24


def test_a_film_that_would_be_too_large_has_fewer_frames(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reel, sizes = images(*np.arange(0.0, 4.0, 0.1)), []
    for limit in (10**9, 1):
        monkeypatch.setattr(demo_film, 'LIMIT_BYTES', limit)
        assert write_demo_film(reel, course_of_three(), tmp_path / 'demo.gif')
        sizes.append(Image.open(tmp_path / 'demo.gif').n_frames)
    assert sizes == [40, 8]


def test_no_film_is_made_of_nothing(tmp_path: Path) -> None:
    assert not write_demo_film(Reel(), course_of_three(), tmp_path / 'demo.gif')
    assert not write_demo_film(images(-2.0, -1.0), course_of_three(), tmp_path / 'demo.gif')
    assert not (tmp_path / 'demo.gif').exists()


# The picture

def pixels_near(file: Path, colour: str) -> int:
    pixels = np.asarray(Image.open(file).convert('RGB')).astype(int)
    wanted = [int(colour[i:i + 2], 16) for i in (1, 3, 5)]
    return int((np.abs(pixels - wanted) < 14).all(axis=2).sum())


def test_the_picture_shows_sentences_commands_and_successes(tmp_path: Path) -> None:
    course, found, reel = course_of_three(), heard(), images(0.5, 1.9, 2.9, 3.9)
    course.conclude(End.CUT, START_NS + 4 * NS_PER_S)
    with_all, without = tmp_path / 'one.png', tmp_path / 'two.png'
    until_ns = START_NS + 4 * NS_PER_S
    plot_demo(found, course, reel, until_ns, 'a title', 'more', with_all)
    failed = course_of_three()
    failed.turns[0] = replace(failed.turns[0], done_ns=None, end=End.FAILED)
    plot_demo(found, failed, Reel(), until_ns, 'a title', 'more', without)
    assert picture_size(with_all) > (1000, 600)
    green, blue = '#1f9d55', '#1769c4'
    assert pixels_near(with_all, green) > 500
    assert pixels_near(without, green) == 0
    assert pixels_near(with_all, blue) > 3000


def test_a_demo_in_which_nothing_was_heard_can_be_drawn(tmp_path: Path) -> None:
    plot_demo(record(), Course(shown_script(0)), Reel(), START_NS, 'a', 'b', tmp_path / 'one.png')
    assert picture_size(tmp_path / 'one.png') > (600, 400)
