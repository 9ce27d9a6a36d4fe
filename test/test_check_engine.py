"""`vla-ros check`: backends against the baseline, on recorded observations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the backends need it')
pytest.importorskip('cv2', reason='observations are PNG')

from openvla_rig import save_drawn_oft  # noqa: E402

from vla_ros.core.types import Floats, ImageSize, Observation  # noqa: E402
from vla_ros.engines import registry, verdict  # noqa: E402
from vla_ros.engines.contract import Engine  # noqa: E402
from vla_ros.engines.verdict import Key, Verdict  # noqa: E402
from vla_ros.policies.contracts import contract_of  # noqa: E402
from vla_ros.policies.observations import fitted, load, save, shipped  # noqa: E402
from vla_ros.policies.openvla import oft_checkpoint  # noqa: E402
from vla_ros.policies.openvla.backend import Backend, Frame  # noqa: E402
from vla_ros.policies.openvla.backends import BackendOptions  # noqa: E402
from vla_ros.policies.openvla.checkpoint import random_checkpoint  # noqa: E402
from vla_ros.policies.openvla.config import OpenVlaConfig, tiny  # noqa: E402
from vla_ros.policies.openvla.oft_backend import OftGraph  # noqa: E402
from vla_ros.policies.openvla.oft_checkpoint import load_oft  # noqa: E402
from vla_ros.policies.openvla.parity import (  # noqa: E402
    changed,
    check_checkpoint,
    compare,
    generated,
    key_of,
)
from vla_ros.tools import cli  # noqa: E402

torch.set_num_threads(1)
K, BINS, FIRST = 7, 16, 100
KEY = Key('weights', 'fast', 'fp32', 'cpu', '2', '')
ROOT = Path(__file__).parents[1]


# Backends that are right, and wrong in one way each

class Plain(Backend):
    """Says for frame n, at place k, bin n + k; prefers it by `margin`."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__(tiny())
        self.margin = margin
        self.resets = 0

    def ids(self, frame: Frame) -> Any:
        return FIRST + (int(frame.ids[0]) + np.arange(K)) % BINS

    def step(self, frame: Frame) -> Any:
        return self.ids(frame)

    def reset(self) -> None:
        self.resets += 1

    def teacher_logits(self, frame: Frame, ids: Any) -> Any:
        assert (ids == self.ids(frame)).all(), 'told something else than the baseline said'
        logits = np.zeros((K, BINS), np.float32)
        logits[np.arange(K), self.ids(frame) - FIRST] = self.margin
        return logits


class Pipe(Plain):
    """Answers `lag` frames later; `slip` frames too late where it is wrong."""

    def __init__(self, lag: int, slip: int = 0, early: bool = False) -> None:
        super().__init__()
        self.lag, self._slip, self._early = lag, slip, early
        self._seen: list[Frame] = []

    def step(self, frame: Frame) -> Any:
        self._seen.append(frame)
        if len(self._seen) <= self.lag and not self._early:
            return None
        return self.ids(self._seen[max(0, len(self._seen) - 1 - self.lag - self._slip)])

    def reset(self) -> None:
        self._seen.clear()


class OneWrong(Plain):
    """Another bin at place 3 of frame 5."""

    def step(self, frame: Frame) -> Any:
        ids = self.ids(frame)
        if frame.ids[0] == 5:
            ids[3] += 1
        return ids


class OneWrongWhenTold(Plain):
    def teacher_logits(self, frame: Frame, ids: Any) -> Any:
        logits = super().teacher_logits(frame, ids)
        if frame.ids[0] == 5:
            logits[3] = np.roll(logits[3], 1)
        return logits


class NotFinite(Plain):
    def teacher_logits(self, frame: Frame, ids: Any) -> Any:
        return super().teacher_logits(frame, ids) * np.nan


def numbered(count: int) -> list[Frame]:
    return [Frame(np.zeros((1, 1, 1, 3), np.uint8), np.array([n])) for n in range(count)]


def compared(backend: Backend, precision: str = 'fp32', baseline: Backend | None = None,
             count: int = 20) -> Verdict:
    plain = baseline or Plain()
    made: Mapping[str, Callable[[], Backend]] = {'baseline': lambda: plain, 'fast': lambda: backend}
    return compare(lambda name, _: made[name](), replace(KEY, precision=precision), 'fp32', FIRST,
                   numbered(count), 'numbers', lambda _: None)


@pytest.mark.parametrize('backend', [Plain(), Pipe(lag=6), Pipe(lag=7), Pipe(lag=1)])
def test_a_backend_that_says_the_same_passes(backend: Backend) -> None:
    found = compared(backend)
    assert found.passed
    assert (found.count, found.observations) == (20, 'numbers')
    assert found.figures['tokens'] == 20 * K


@pytest.mark.parametrize(('backend', 'differ'), [
    (OneWrong(), 1), (Pipe(lag=6, slip=1), 19 * K), (OneWrongWhenTold(), 0), (NotFinite(), 0)])
def test_a_backend_that_says_something_else_fails(backend: Backend, differ: int) -> None:
    found = compared(backend)
    assert not found.passed
    assert found.figures['differ'] == differ


@pytest.mark.parametrize(('margin', 'fine'), [(0.05, True), (0.5, False)])
def test_rounding_is_judged_by_the_margin_of_the_baseline(margin: float, fine: bool) -> None:
    assert compared(OneWrong(margin), 'bf16', Plain(margin)).passed is fine
    assert compared(OneWrongWhenTold(margin), 'bf16', Plain(margin)).passed is fine


def test_a_pipeline_that_slips_by_a_frame_fails_in_every_precision() -> None:
    for precision in ('fp32', 'bf16'):
        assert not compared(Pipe(lag=6, slip=1), precision).passed
    assert not compared(Pipe(lag=6, slip=5), 'fp8').passed


def test_a_pipeline_that_answers_too_early_is_named() -> None:
    with pytest.raises(ValueError, match=r'^step 0: an action, with a pipeline of 3 steps$'):
        compared(Pipe(lag=3, early=True))


def test_one_observation_is_enough_for_a_pipeline_longer_than_all_frames() -> None:
    assert compared(Pipe(lag=6), count=1).passed


def test_a_backend_is_reset_before_and_after() -> None:
    plain = Plain()
    generated(plain, numbered(2))
    assert plain.resets == 2


def test_no_observations_are_named() -> None:
    with pytest.raises(ValueError, match='^numbers: no observations'):
        compared(Plain(), count=0)


# A real checkpoint

SIZES = tiny(images=2, state=7)


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('openvla') / 'random'
    folder.mkdir()
    random_checkpoint(folder, SIZES)
    return folder


def frame(seen: Observation, config: OpenVlaConfig = SIZES) -> Frame:
    """As an engine would make it, with ids that stand for the sentence in some way."""
    words = [3 + zlib.crc32(word.encode()) % 100 for word in seen.instruction.split()]
    return Frame(np.stack(list(seen.images.values())), np.array([config.prompt.bos, *words]),
                 np.asarray(seen.state, np.float32))


@pytest.fixture(scope='module')
def frames() -> list[Frame]:
    cameras = dict.fromkeys(('base', 'wrist'), ImageSize(28, 28))
    return [frame(fitted(seen, cameras, seen.state_names)) for seen in load(shipped())[::4]]


@pytest.mark.parametrize('backend', ['graph', 'actionflow', 'jacobi'])
@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_every_backend_agrees_with_the_baseline(backend: str, precision: str, checkpoint: Path,
                                                frames: list[Frame]) -> None:
    lines: list[str] = []
    found = check_checkpoint(checkpoint, backend, precision, 'cpu', frames, 'shipped',
                             lines.append)
    assert found.passed, found.rules
    assert found.figures['baseline_precision'] == precision
    assert found.count == len(frames)
    assert found.key.weights
    assert any('capturing' in line for line in lines)


def test_random_weights_in_fp8_fail(checkpoint: Path, frames: list[Frame]) -> None:
    """They hardly prefer one token to another, so that rounding shows."""
    found = check_checkpoint(checkpoint, 'graph', 'fp8', 'cpu', frames, 'shipped', lambda _: None)
    assert not found.passed
    assert found.broken is not None
    assert 'action error' in found.broken.name
    assert found.figures['baseline_precision'] == 'fp32'


def test_the_options_reach_the_backend_and_not_the_baseline(checkpoint: Path,
                                                            frames: list[Frame]) -> None:
    options = BackendOptions(prefill_precision='bf16', buckets=(48,), overlap=True)
    lines: list[str] = []
    found = check_checkpoint(checkpoint, 'actionflow', 'int8-weight', 'cpu', frames, 'shipped',
                             lines.append, options)
    assert json.loads(found.key.options) == {'buckets': [48], 'overlap': True,
                                             'prefill_precision': 'bf16'}
    assert any('48 tokens' in line for line in lines)


# A checkpoint of OFT, whose actions are numbers

NUMBERS = tiny(images=2, state=7, parallel=True, horizon=2)


@pytest.fixture(scope='module')
def oft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('openvla') / 'oft'
    save_drawn_oft(folder, NUMBERS)
    return folder


def check_oft(folder: Path, seen: Sequence[Frame], precision: str = 'fp32') -> Verdict:
    return check_checkpoint(folder, 'graph', precision, 'cpu', seen, 'shipped', lambda _: None)


@pytest.mark.parametrize(('precision', 'names'), [
    ('fp32', ['largest difference of an action']),
    ('bf16', ['action error, mean', 'action error, p99'])])
def test_actions_that_are_numbers_agree_with_the_baseline(
        precision: str, names: list[str], oft: Path, frames: list[Frame]) -> None:
    found = check_oft(oft, frames, precision)
    assert found.passed, found.rules
    assert [rule.name for rule in found.rules] == names
    assert (found.count, found.observations) == (len(frames), 'shipped')
    assert found.figures['baseline_precision'] == precision


def test_actions_of_other_weights_than_the_baseline_has_fail(
        oft: Path, frames: list[Frame], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    def load_another(*given: Any, **options: Any) -> Any:
        loaded.append(load_oft(*given, **options))
        if len(loaded) == 2:  # the baseline is loaded first
            with torch.no_grad():
                loaded[-1].head.model.fc2.bias[0] += 0.01
        return loaded[-1]

    monkeypatch.setattr(oft_checkpoint, 'load_oft', load_another)
    found = check_oft(oft, frames)
    assert len(loaded) == 2
    assert not found.passed
    assert found.broken is not None
    assert found.broken.value == pytest.approx(0.01, abs=1e-4)


@pytest.mark.parametrize('precision', ['fp32', 'bf16'])
def test_actions_of_the_frame_before_fail(precision: str, oft: Path, frames: list[Frame],
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    right, before = OftGraph.step, [np.zeros((2, 7), np.float32)]

    def late(backend: OftGraph, frame: Frame) -> Any:
        before.append(right(backend, frame))
        return before[-2]

    monkeypatch.setattr(OftGraph, 'step', late)
    assert not check_oft(oft, frames, precision).passed
    assert len(before) == len(frames) + 1


def test_numbers_need_observations_too(oft: Path) -> None:
    with pytest.raises(ValueError, match='^shipped: no observations; at least one is needed$'):
        check_oft(oft, [])


def test_the_key_says_what_the_verdict_depends_on(checkpoint: Path, tmp_path: Path) -> None:
    key = key_of(checkpoint, 'graph', 'fp32', 'cpu', BackendOptions())
    assert key == key_of(checkpoint, 'graph', 'fp32', 'cpu', BackendOptions())
    assert key.torch == torch.__version__
    assert key.gpu.startswith('cpu')
    assert key.options == ''
    other = key_of(checkpoint, 'graph', 'fp32', 'cpu', BackendOptions(buckets=(48,)))
    assert json.loads(other.options) == {'buckets': [48]}
    random_checkpoint(tmp_path, SIZES, seed=1)
    assert key_of(tmp_path, 'graph', 'fp32', 'cpu', BackendOptions()).weights != key.weights


def test_options_as_usual_are_told_in_no_words() -> None:
    assert changed({'a': 1, 'b': 2}, {'a': 1, 'b': 2}) == ''
    assert changed({'a': 1, 'b': 2}, {'a': 1, 'b': 3}) == '{"b": 3}'


# Recorded observations

def observations(count: int = 3) -> list[Observation]:
    random = np.random.default_rng(0)
    return [Observation(n, n, n, {
        name: random.integers(0, 256, (size, size, 3), np.uint8)
        for name, size in (('base', 8), ('wrist', 12))}, random.standard_normal(2),
        ('elbow', 'gripper'), f'lift block {n}') for n in range(count)]


def test_observations_come_back_as_they_were_recorded(tmp_path: Path) -> None:
    file, seen = tmp_path / 'seen.npz', observations()
    save(file, seen)
    found = load(file)
    assert len(found) == len(seen)
    for one, other in zip(found, seen, strict=True):
        assert list(one.images) == ['base', 'wrist']
        for name in one.images:
            np.testing.assert_array_equal(one.images[name], other.images[name])
        np.testing.assert_array_equal(one.state, other.state)
        assert (one.state_names, one.instruction) == (other.state_names, other.instruction)


def test_the_shipped_observations_fit_the_simulated_robot_and_are_small() -> None:
    found = load(shipped())
    assert len(found) == 32
    assert {name: image.shape for name, image in found[0].images.items()} == {
        'base': (128, 128, 3), 'wrist': (128, 128, 3)}
    assert len({seen.instruction for seen in found}) >= 6
    assert all(seen.state.shape == (7,) for seen in found)
    assert shipped().stat().st_size < 1_500_000


@pytest.mark.parametrize('damage', ['cut', 'text', 'other', 'image', 'state'])
def test_a_damaged_file_is_one_line(damage: str, tmp_path: Path) -> None:
    file = tmp_path / 'seen.npz'
    save(file, observations())
    if damage == 'cut':
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == 'text':
        file.write_text('no archive')
    elif damage == 'other':
        np.savez(file, state=np.zeros(3))
    else:
        with np.load(file) as whole:
            arrays = dict(whole)
        if damage == 'image':
            arrays['images'][arrays['ends'][0]:][:50] = 0
        else:
            arrays['state'][0, 0] = np.nan
        np.savez(file, **arrays)
    with pytest.raises(ValueError, match='seen.npz') as refused:
        load(file)
    assert '\n' not in str(refused.value)
    assert 'vla-ros check record' in str(refused.value)


def test_an_observation_is_fitted_to_what_a_policy_takes() -> None:
    seen = observations()[0]
    made = fitted(seen, {'front': ImageSize(6, 4), 'wrist': ImageSize(12, 12),
                         'third': ImageSize(8, 8)}, ('gripper', 'waist'))
    assert [image.shape for image in made.images.values()] == [
        (4, 6, 3), (12, 12, 3), (8, 8, 3)]
    np.testing.assert_array_equal(made.images['wrist'], seen.images['wrist'])
    np.testing.assert_array_equal(made.images['third'], seen.images['base'])  # the first of two
    assert made.state.tolist() == [seen.state[1], 0.0]
    assert made.state_names == ('gripper', 'waist')


# The command

PROFILE = """\
policy: random
family: checked
checkpoint: {folder}
horizon: 1
period: 0.1
cameras: {{base: {{width: 28, height: 28}}, wrist: {{width: 28, height: 28}}}}
state: [waist, shoulder, elbow, forearm_roll, wrist_angle, wrist_rotate, gripper]
action: [{{name: gripper, unit: '1', kind: gripper, group: gripper}}]
"""
WRONG: list[str] = []  # what the rig raises instead of checking


class Rig(Engine):
    """An engine that can be checked."""

    def __init__(self, policy: Any, profile: Any) -> None:
        self.contract = contract_of(policy, ('graph', 'baseline'))
        self._policy, self._profile = policy, profile

    def load(self) -> None:
        raise AssertionError('a check needs no loaded engine')

    def infer(self, inputs: Any, prefix: Floats | None = None) -> Any:
        raise AssertionError('a check infers by itself')

    def check(self, seen: Sequence[Observation], source: str, report: Callable[[str], None]
              ) -> Verdict:
        if WRONG:
            raise RuntimeError(WRONG[0])
        profile = self._profile
        return check_checkpoint(
            self._policy.checkpoint, profile.backend_for(self.contract.backends),
            profile.precision, profile.device, [frame(each) for each in seen], source, report)


def make(policy: Any, profile: Any) -> Engine:
    """The factory of the family `checked`."""
    return Rig(policy, profile)


@pytest.fixture
def profile(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(registry.BUILT_IN, 'checked', f'{__name__}:make')
    monkeypatch.setenv('VLA_ROS_CACHE', str(tmp_path / 'cache'))
    file = tmp_path / 'random.yaml'
    file.write_text(PROFILE.format(folder=checkpoint))
    return file


def kept(folder: Path) -> list[Path]:
    return list((folder / 'cache' / 'verdicts').glob('*.json'))


def check(profile: Path, *words: str) -> int:
    return cli.main(['check', 'engine', '--policy', str(profile), '--engine', 'cpu', '--backend',
                     'graph', '--count', '6', *words])


def test_a_pass_ends_with_0_and_is_kept(profile: Path, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    assert check(profile, '--json') == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed['passed'] is True
    assert (printed['count'], printed['observations']) == (6, 'shipped')
    assert printed['key']['precision'] == 'fp32'
    file, = kept(tmp_path)
    assert json.loads(file.read_text()) == printed
    found = verdict.load(Key(**printed['key']))
    assert found is not None
    assert found.passed


def test_a_failure_ends_with_1_and_is_kept_too(profile: Path, tmp_path: Path,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    assert check(profile, '--precision', 'fp8') == 1
    written = capsys.readouterr()
    assert 'failed' in written.out
    assert 'FAILED action error, mean' in written.out
    assert json.loads(kept(tmp_path)[0].read_text())['passed'] is False


def test_a_cache_that_cannot_be_written_is_reported_and_changes_no_verdict(
        profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'file').write_text('')
    monkeypatch.setenv('VLA_ROS_CACHE', str(tmp_path / 'file'))
    assert check(profile) == 0
    assert 'cannot be kept' in capsys.readouterr().err


def test_recorded_files_and_bags_can_be_checked_on(
        profile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / 'mine.npz'
    save(file, observations(2))
    assert check(profile, '--observations', str(file), '--json') == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed['count'], printed['observations']) == (2, 'mine.npz')


def test_a_bag_gives_each_frame_with_what_came_before_it() -> None:
    pytest.importorskip('rosbags')
    from vla_ros.profiles.policy import load_policy
    from vla_ros.profiles.robot import load_robot
    from vla_ros.tools.check import recorded
    policy = load_policy('knn_bridge')
    seen = recorded(ROOT / 'data/bridge_v2/bridge_0', load_robot('widowx_bridge'), policy)
    assert len(seen) > 10
    name, size = next(iter(policy.cameras.items()))
    for each in seen:
        assert each.images[name].shape == (size.height, size.width, 3)
        assert each.instruction
        assert len(each.state) == len(each.state_names)
    assert len({each.stamp_ns for each in seen}) == len(seen)
    assert np.ptp([each.state for each in seen[1:]], axis=0).max() > 0.0


@pytest.fixture(scope='module')
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of the family openvla, and beside it a checkpoint with a tokenizer."""
    pytest.importorskip('tokenizers')
    from vla_ros.policies.openvla.config import Prompt, Statistics
    from vla_ros.policies.openvla.tokenizer import build_tokenizer
    folder = tmp_path_factory.mktemp('real')
    config = replace(SIZES, prompt=Prompt(pad=0, last=None), statistics={'sim': Statistics(
        (-1.0,) * 7, (1.0,) * 7, (True,) * 7, (-3.0,) * 7, (3.0,) * 7)})
    (folder / 'random').mkdir()
    random_checkpoint(folder / 'random', config)
    build_tokenizer({seen.instruction for seen in load(shipped())}, config.actions.top).save(
        folder / 'random')
    names = ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate')
    joints = ', '.join(f'{{name: {name}, unit: rad, kind: position, group: joints}}'
                       for name in names)
    text = PROFILE.format(folder='random').replace('family: checked', 'family: openvla')
    (folder / 'real.yaml').write_text(text.replace('action: [', f'action: [{joints}, '))
    return folder / 'real.yaml'


@pytest.mark.parametrize(('words', 'status'), [
    (('--backend', 'actionflow', '--precision', 'bf16'), 0),
    (('--backend', 'graph', '--precision', 'fp8'), 1), (('--backend', 'fast'), 2)])
def test_the_family_openvla_is_checked_as_a_process(words: tuple[str, ...], status: int,
                                                    real: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, '-m', 'vla_ros.tools.cli', 'check', 'engine', '--policy', str(real),
         '--engine', 'cpu', '--count', '6', '--json', *words], cwd=ROOT, capture_output=True,
        env={**os.environ, 'PYTHONPATH': str(ROOT), 'VLA_ROS_CACHE': str(tmp_path / 'cache')},
        text=True, timeout=100.0, check=False)
    assert done.returncode == status, done.stderr
    assert 'Traceback' not in done.stderr
    if status == 2:
        assert done.stderr.startswith('vla-ros: ')
        assert not kept(tmp_path)
    else:
        printed = json.loads(done.stdout)
        assert printed['passed'] is (status == 0)
        assert json.loads(kept(tmp_path)[0].read_text()) == printed


def test_an_engine_asks_for_the_verdict_before_it_runs(
        real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.engines.registry import make_engine
    from vla_ros.profiles.engine import load_engine
    from vla_ros.profiles.policy import load_policy
    monkeypatch.setenv('VLA_ROS_CACHE', str(tmp_path / 'cache'))
    profile = replace(load_engine('cpu'), backends=('graph',), precision='fp8')
    with pytest.raises(ValueError, match='action error, mean: .* allow_failed_check: true'):
        make_engine(load_policy(real), profile).load()
    assert len(kept(tmp_path)) == 1
    allowed = make_engine(load_policy(real), replace(profile, options={
        'allow_failed_check': True}))
    allowed.load()  # by the verdict that is kept
    assert np.isfinite(allowed.infer(allowed.preprocess(allowed.example()))).all()
    exact = make_engine(load_policy(real), replace(profile, precision='fp32'))
    exact.load()
    assert sorted(json.loads(file.read_text())['passed'] for file in kept(tmp_path)) == [
        False, True]


@pytest.mark.parametrize(('backend', 'precision', 'passed'), [
    ('jacobi', 'fp32', True), ('graph', 'fp8', False)])
def test_a_row_of_an_ablation_is_checked_once_and_may_then_be_played(
        backend: str, precision: str, passed: bool, real: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    from vla_ros.engines.registry import make_engine
    from vla_ros.policies.openvla import parity
    from vla_ros.profiles.engine import load_engine
    from vla_ros.profiles.policy import load_policy
    from vla_ros.tools.ablation_engine import EngineRow, checked, settings_of
    from vla_ros.tools.eval_settings import EvalSettings
    monkeypatch.setenv('VLA_ROS_CACHE', str(tmp_path / 'cache'))
    row = EngineRow(backend, precision)
    settings = settings_of(row, EvalSettings(('reach',), 1, fast=True, policy=str(real)), tmp_path,
                           'cpu')
    found = checked(row, settings)
    assert found['passed'] is passed
    assert ('action error' in found['broken']) is not passed
    assert (found['error_bins']['mean'] > 0.0) is not passed
    assert (found['passes'] is not None) is (backend == 'jacobi')
    assert found['observations'] == 32
    monkeypatch.setattr(parity, 'check_checkpoint', lambda *_: pytest.fail('checked again'))
    make_engine(load_policy(settings.policy), load_engine(settings.engine)).load()


@pytest.mark.parametrize(('words', 'line'), [
    (('--observations', 'nowhere.npz'), 'nowhere.npz: cannot be read: No such file'),
    (('--observations', 'nowhere'), '--robot: missing: the topics of the bag nowhere'),
    (('--observations', 'nowhere', '--robot', 'sim_arm'), 'bag nowhere: does not exist'),
    (('--count', '0'), 'check: count: 0; allowed is 1 to 100000'),
    (('--model', '/nowhere'), '/nowhere'),
    (('--precision', 'int2'), 'precision: int2'),
    (('--backend', 'fast'), 'fast'), (('--engine', 'none'), "engine profile 'none': not found")])
def test_bad_input_is_one_line_and_2(words: tuple[str, ...], line: str, profile: Path,
                                     tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(profile, *words) == 2
    errors = capsys.readouterr().err
    assert line in errors.splitlines()[-1]
    assert not kept(tmp_path)


def test_an_engine_that_breaks_is_bad_input_not_a_failed_check(
        profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(f'{__name__}.WRONG', ['CUDA out of memory.\nTried to allocate 14 GiB'])
    assert check(profile) == 2
    assert capsys.readouterr().err == ('vla-ros: RuntimeError: CUDA out of memory. Tried to '
                                       'allocate 14 GiB\n')
    assert not kept(tmp_path)


def test_a_family_without_a_baseline_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['check', 'engine', '--policy', 'scripted_so101', '--engine', 'cpu']) == 2
    assert 'family: scripted: ' in capsys.readouterr().err


@pytest.mark.parametrize(('words', 'line'), [
    (('x.npz', '--count', '0'), 'check: count: 0'), (('x.npz', '--seed', '-1'), 'check: seed: -1'),
    (('x.txt',), 'x.txt: the name must end with .npz'),
    (('/nowhere/x.npz',), '/nowhere/x.npz: no such folder')])
def test_bad_recordings_are_refused_before_any_work(words: tuple[str, ...], line: str,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(['check', 'record', *words]) == 2
    assert line in capsys.readouterr().err


@pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
def test_the_simulator_records_the_shipped_observations_again() -> None:
    from vla_ros.tools.check import simulated
    for one, other in zip(simulated(5, seed=0), load(shipped()), strict=False):
        assert one.instruction == other.instruction
        np.testing.assert_allclose(one.state, other.state, atol=1e-6)
