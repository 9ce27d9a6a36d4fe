"""The engine from files to actions: backends alike, pipelines, the gate, one line for the rest."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the backends need it')
pytest.importorskip('tokenizers', reason='prompts need it')
pytest.importorskip('cv2', reason='the observations of the check are PNG')

from openvla_rig import model_of  # noqa: E402

from vla_ros.core.types import Answer, Observation  # noqa: E402
from vla_ros.engines.executor import warm_up  # noqa: E402
from vla_ros.engines.registry import families, make_engine  # noqa: E402
from vla_ros.engines.rules import Rule  # noqa: E402
from vla_ros.engines.verdict import Checked, Verdict  # noqa: E402
from vla_ros.policies import observations as recorded  # noqa: E402
from vla_ros.policies.openvla import actions, checkpoint, memory, parity  # noqa: E402
from vla_ros.policies.openvla.backend import Frame  # noqa: E402
from vla_ros.policies.openvla.baseline import Baseline  # noqa: E402
from vla_ros.policies.openvla.config import OpenVlaConfig, Statistics, tiny  # noqa: E402
from vla_ros.policies.openvla.engine import OpenVlaEngine  # noqa: E402
from vla_ros.policies.openvla.options import BACKENDS  # noqa: E402
from vla_ros.policies.openvla.prompt import Prompts  # noqa: E402
from vla_ros.policies.openvla.tokenizer import build_tokenizer  # noqa: E402
from vla_ros.policies.openvla.tokenizer import load as load_tokenizer  # noqa: E402
from vla_ros.profiles.engine import EngineProfile, load_engine  # noqa: E402
from vla_ros.profiles.policy import load_policy  # noqa: E402

torch.set_num_threads(1)
START, PERIOD = 1_790_000_000_123_456_789, 100_000_000
SENTENCES = ('lift the red cup', 'push the blue block')
NAMES = ('elbow', 'grip', 'shoulder')
STATE = ('shoulder', 'elbow')
ARM = Statistics((-0.5, 0.0, -2.0), (0.5, 1.0, 4.0), (True, False, True), (-1.0, 0.0), (1.0, 3.0))
OTHER = dataclasses.replace(ARM, low=(-5.0, 0.0, -20.0), high=(5.0, 1.0, 40.0))
LAGS = {'graph': 0, 'jacobi': 0, 'baseline': 0, 'actionflow': 5}
PROFILE = """\
policy: tiny
family: openvla
checkpoint: tiny
horizon: 2
period: 0.1
start: arrival
cameras: {front: {width: 28, height: 28}, side: {width: 28, height: 28}}
state: [shoulder, elbow]
action:
  - {name: elbow, unit: rad, kind: delta, group: joints}
  - {name: grip, unit: '1', kind: gripper, group: gripper}
  - {name: shoulder, unit: rad, kind: delta, group: joints}
"""


def config_of(**statistics: Statistics) -> OpenVlaConfig:
    config = tiny(images=2, state=2, horizon=2, dimensions=3)
    return dataclasses.replace(
        config, actions=dataclasses.replace(config.actions, names=NAMES),
        statistics=statistics or {'arm': ARM})


@pytest.fixture(scope='module')
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile, and beside it a checkpoint with drawn weights and a tokenizer."""
    folder = tmp_path_factory.mktemp('openvla')
    checkpoint.save(folder / 'tiny', model_of(config_of(), seed=1), 100_000)
    build_tokenizer(SENTENCES, 300).save(folder / 'tiny')
    (folder / 'tiny.yaml').write_text(PROFILE)
    recorded.save(folder / 'seen.npz', observations(3, seed=9))
    return folder / 'tiny.yaml'


@pytest.fixture
def copied(shipped: Path, tmp_path: Path) -> Path:
    """The same, to be broken."""
    shutil.copytree(shipped.parent, tmp_path / 'copy', ignore=shutil.ignore_patterns('cache'))
    return tmp_path / 'copy' / shipped.name


@pytest.fixture(autouse=True)
def kept(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdicts but those of these tests, made on three observations."""
    monkeypatch.setenv('VLA_ROS_CACHE', str(shipped.parent / 'cache'))
    monkeypatch.setattr(recorded, 'shipped', lambda: shipped.parent / 'seen.npz')
    monkeypatch.setattr(parity, '_free', lambda: None)  # what it frees here is not worth its time


@pytest.fixture
def cache(tmp_path: Path, kept: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Not even those."""
    monkeypatch.setenv('VLA_ROS_CACHE', str(tmp_path / 'cache'))
    return tmp_path / 'cache' / 'verdicts'


def on(backend: str, precision: str = 'fp32', **options: Any) -> EngineProfile:
    return dataclasses.replace(load_engine('cpu'), backends=(backend,), precision=precision,
                               options=options)


def engine_of(profile: Path, backend: str = 'graph', precision: str = 'fp32', **options: Any
              ) -> OpenVlaEngine:
    """A loaded engine; its lines are in `said`."""
    engine: Any = make_engine(load_policy(profile), on(backend, precision, **options))
    engine.said = []
    engine.report = engine.said.append
    engine.load()
    assert isinstance(engine, OpenVlaEngine)
    return engine


def observations(count: int, seed: int = 0, size: tuple[int, int] = (28, 28)
                 ) -> list[Observation]:
    """Random observations; the instruction changes among them."""
    random = np.random.default_rng(seed)
    made = []
    for i in range(count):
        stamp = START + i * PERIOD
        images = {name: np.asarray(
            random.integers(0, 256, 3) * random.uniform(0.5, 1.0, (*size, 1)), np.uint8)
            for name in ('front', 'side')}
        made.append(Observation(stamp, stamp, stamp, images, random.uniform(-1.0, 3.0, 2), STATE,
                                SENTENCES[i // 3 % 2]))
    return made


def expected(profile: Path, seen: list[Observation], statistics: Statistics = ARM) -> Any:
    """The actions [n, 2, 3] of the plain baseline, put together by hand from its parts."""
    folder = profile.parent / 'tiny'
    model = checkpoint.load(folder, dtype=torch.float32)
    prompts = Prompts(model.config.prompt, load_tokenizer(folder), 64)
    baseline, made = Baseline(model), []
    for each in seen:
        low, high = np.array(statistics.state_low), np.array(statistics.state_high)
        state = np.clip(2.0 * (each.state - low) / (high - low + 1e-8) - 1.0, -1.0, 1.0)
        ids = baseline.step(Frame(np.stack([each.images['front'], each.images['side']]),
                                  prompts.encode(each.instruction).ids, state.astype(np.float32)))
        made.append(actions.unnormalize(actions.decode(ids, model.config.actions).reshape(2, 3),
                                        statistics))
    return np.stack(made)


def results(engine: OpenVlaEngine, seen: list[Observation]) -> list[Any]:
    return [engine.infer(engine.preprocess(each)) for each in seen]


def refusal(action: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        action(*arguments, **options)
    text = str(caught.value)
    assert '\n' not in text
    return text


# --- what comes out ------------------------------------------------------------------------------


@pytest.mark.parametrize('backend', BACKENDS)
def test_actions_are_those_of_the_parts_put_together_by_hand(backend: str, shipped: Path) -> None:
    seen = observations(10)
    wanted = expected(shipped, seen)
    assert wanted.std(0).min() > 0.01
    engine = engine_of(shipped, backend)
    assert engine.lag == LAGS[backend]
    for number, result in enumerate(results(engine, seen)):
        if number < engine.lag:
            assert result is None
            continue
        answered = seen[number - engine.lag]
        if engine.lag:
            assert isinstance(result, Answer)
            assert result.observation is answered
            result = result.actions
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, wanted[number - engine.lag], atol=1e-12)


def test_overlapping_images_cost_one_observation_more(shipped: Path) -> None:
    seen = observations(10)
    engine = engine_of(shipped, 'actionflow', overlap=True)
    assert engine.lag == 6
    found = results(engine, seen)
    assert found[:6] == [None] * 6
    for number, answer in enumerate(found[6:]):
        assert answer.observation is seen[number]
        np.testing.assert_allclose(answer.actions, expected(shipped, seen[number:number + 1])[0])


@pytest.mark.parametrize('backend', BACKENDS)
def test_images_of_the_size_that_the_profile_says_are_resized(backend: str, copied: Path) -> None:
    copied.write_text(PROFILE.replace('width: 28, height: 28', 'width: 40, height: 21'))
    seen = observations(8, size=(21, 40))
    engine = engine_of(copied, backend)
    found = [result for result in results(engine, seen) if result is not None]
    assert len(found) == 8 - engine.lag
    for result, wanted in zip(found, expected(copied, seen), strict=False):
        np.testing.assert_allclose(getattr(result, 'actions', result), wanted)


def test_masked_dimensions_have_no_units_and_others_those_of_the_dataset(shipped: Path) -> None:
    found = np.stack(results(engine_of(shipped), observations(12)))
    assert found.shape == (12, 2, 3)
    assert (np.abs(found[..., 0]) <= 0.5).all()
    assert (np.abs(found[..., 1]) <= 1.0).all()
    assert found[..., 1].min() < 0.0  # not squeezed into 0 to 1
    assert ((found[..., 2] >= -2.0) & (found[..., 2] <= 4.0)).all()


def test_quantized_weights_are_near(shipped: Path) -> None:
    seen = observations(6)
    plain = np.stack(results(engine_of(shipped), seen))
    near = np.stack(results(engine_of(shipped, precision='int8-weight', allow_failed_check=True),
                            seen))
    assert near.shape == plain.shape
    assert np.isfinite(near).all()


# --- memory --------------------------------------------------------------------------------------


@pytest.mark.parametrize('backend', BACKENDS)
def test_reset_forgets_what_came_before(backend: str, shipped: Path) -> None:
    seen = observations(14)
    engine = engine_of(shipped, backend)
    results(engine, seen[:8])
    engine.reset()
    found = results(engine, seen[8:])
    assert found[:engine.lag] == [None] * engine.lag
    for number, wanted in enumerate(expected(shipped, seen[8:14 - engine.lag])):
        result = found[engine.lag + number]
        if engine.lag:
            assert result.observation is seen[8 + number]
            result = result.actions
        np.testing.assert_allclose(result, wanted)


@pytest.mark.parametrize('backend', BACKENDS)
def test_warm_up_leaves_nothing_behind(backend: str, shipped: Path) -> None:
    engine = engine_of(shipped, backend)
    warm_up(engine, 3, lambda: 0, lambda _: '')
    assert engine.notes() == ()
    seen = observations(7)
    found = results(engine, seen)
    assert found[:engine.lag] == [None] * engine.lag
    np.testing.assert_allclose(getattr(found[engine.lag], 'actions', found[engine.lag]),
                               expected(shipped, seen[:1])[0])


def test_closed_engine_can_be_loaded_again(shipped: Path) -> None:
    engine = engine_of(shipped, 'actionflow')
    seen = observations(9)
    fresh = make_engine(load_policy(shipped), on('graph'))
    with pytest.raises(RuntimeError, match='infer before load'):
        fresh.infer(engine.preprocess(seen[0]))
    results(engine, seen[:3])
    inputs = engine.preprocess(seen[0])
    engine.close()
    with pytest.raises(RuntimeError, match='infer before load'):
        engine.infer(inputs)
    engine.reset()
    engine.load()
    found = results(engine, seen)
    assert found[:5] == [None] * 5
    assert found[5].observation is seen[0]


# --- notes ---------------------------------------------------------------------------------------


def test_words_never_seen_are_named_until_a_sentence_is_known(shipped: Path) -> None:
    engine = engine_of(shipped)
    known = observations(1)[0]
    strange = dataclasses.replace(known, instruction='lift the GREEN\nteapot')
    results(engine, [known])
    assert engine.notes() == ()
    results(engine, [strange])
    assert engine.notes() == ("instruction: the policy has never seen: 'green', 'teapot'",)
    results(engine, [known])
    assert engine.notes() == ()


def test_words_that_find_no_place_are_named_in_a_short_line(shipped: Path) -> None:
    engine = engine_of(shipped, buckets=[24])
    long = dataclasses.replace(observations(1)[0],
                               instruction=' '.join(f'x{i}' * 60 for i in range(90)))
    results(engine, [long])
    assert len(engine.notes()) == 2
    assert 'longer than the longest bucket of prompts; left out: ' in engine.notes()[1]
    for note in engine.notes():
        assert len(note) < 400
        assert 'more' in note


# --- the check against the baseline --------------------------------------------------------------


def test_verdict_is_made_once_and_kept(shipped: Path, cache: Path,
                                       monkeypatch: pytest.MonkeyPatch) -> None:
    first: Any = engine_of(shipped, 'jacobi')
    assert any('no verdict on jacobi in fp32 on cpu' in line for line in first.said)
    assert any('passed on 3 observations' in line for line in first.said)
    assert len(list(cache.glob('*.json'))) == 1
    monkeypatch.setattr(parity, 'check_checkpoint', lambda *_: pytest.fail('checked again'))
    again: Any = engine_of(shipped, 'jacobi')
    assert not any('no verdict' in line for line in again.said)
    assert any('passed on 3 observations' in line for line in again.said)


def test_baseline_needs_no_verdict(shipped: Path, cache: Path,
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, 'check_checkpoint', lambda *_: pytest.fail('checked'))
    engine_of(shipped, 'baseline')
    assert not cache.exists()


def test_failed_check_refuses_with_one_line_unless_it_is_overridden(
        shipped: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(folder: Path, backend: str, precision: str, device: str, frames: Any, source: str,
                report: Any, options: Any = None, config: Any = None) -> Verdict:
        assert len(frames) == 3
        assert isinstance(frames[0], Frame)
        key = parity.key_of(folder, backend, precision, device, options)
        return Verdict(key, (Rule('tokens that differ', 3, 0),), source, len(frames))

    monkeypatch.setattr(parity, 'check_checkpoint', failing)
    text = refusal(engine_of, shipped)
    assert 'graph in fp32 on cpu' in text
    assert 'the check against the baseline failed: tokens that differ: 3, allowed is at most 0' \
        in text
    assert 'set allow_failed_check: true in the options of the engine profile' in text
    engine: Any = engine_of(shipped, allow_failed_check=True)
    assert any('failed (tokens that differ' in line and 'allow_failed_check is set' in line
               for line in engine.said)
    seen = observations(1)
    np.testing.assert_allclose(results(engine, seen)[0], expected(shipped, seen)[0])


def test_weights_that_lose_too_much_in_4_bits_are_refused(shipped: Path, cache: Path) -> None:
    """For real: drawn weights have no margins."""
    text = refusal(engine_of, shipped, precision='int4-weight')
    assert len(list(cache.glob('*int4-weight*.json'))) == 1
    assert 'graph in int4-weight on cpu' in text
    assert 'the check against the baseline failed: action error' in text


def test_engine_can_be_checked_without_being_loaded(shipped: Path) -> None:
    engine: Any = make_engine(load_policy(shipped), on('actionflow'))
    assert isinstance(engine, Checked)
    lines: list[str] = []
    verdict = engine.check(observations(2), 'mine', lines.append)
    assert verdict.passed
    assert (verdict.observations, verdict.count) == ('mine', 2)
    assert verdict.key.backend == 'actionflow'
    assert lines


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(('old', 'new', 'line'), [
    ('horizon: 2', 'horizon: 1', 'horizon: 1: the checkpoint '),
    (', side: {width: 28, height: 28}', '', 'cameras: 1: the checkpoint '),
    ('side: {width: 28', 'side: {width: 30', 'cameras: 28x28, 30x28: all images of openvla have '),
    ('[shoulder, elbow]', '[shoulder]', 'state: 1: the checkpoint '),
    ("  - {name: grip, unit: '1', kind: gripper, group: gripper}\n", '',
     'action: 2: the checkpoint '),
    ('{name: elbow', '{name: wrist', 'action: wrist, grip, shoulder: the checkpoint ')])
def test_profile_that_promises_something_else_is_refused(old: str, new: str, line: str,
                                                         copied: Path) -> None:
    assert old in PROFILE
    copied.write_text(PROFILE.replace(old, new))
    text = refusal(engine_of, copied)
    assert text.startswith(f'{copied}: {line}')


def test_unnorm_key_is_chosen_or_named_as_missing(copied: Path) -> None:
    folder = copied.parent / 'tiny'
    config = config_of(arm=ARM, other_arm=OTHER)
    checkpoint.save(folder, model_of(config, seed=1))
    text = refusal(engine_of, copied)
    assert 'unnorm_key: missing' in text
    assert 'arm, other_arm' in text
    copied.write_text(PROFILE + 'options: {unnorm_key: othr_arm}\n')
    text = refusal(engine_of, copied)
    assert "unnorm_key: 'othr_arm': allowed are arm, other_arm; did you mean 'other_arm'?" in text
    seen = observations(2)
    for key, statistics in (('arm', ARM), ('other_arm', OTHER)):
        copied.write_text(PROFILE + f'options: {{unnorm_key: {key}}}\n')
        np.testing.assert_allclose(np.stack(results(engine_of(copied), seen)),
                                   expected(copied, seen, statistics))


def test_options_and_missing_folders_are_refused(copied: Path) -> None:
    copied.write_text(PROFILE + 'options: {beam: 3}\n')
    assert 'options.beam: unknown key' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny\n', ''))
    assert 'checkpoint: missing: the family openvla needs a folder' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny', 'checkpoint: nowhere'))
    assert 'nowhere: no such folder: a checkpoint of openvla is' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny', 'checkpoint: tiny/config.json'))
    assert 'config.json: is not a folder' in refusal(engine_of, copied)


@pytest.mark.parametrize(('options', 'line'), [
    ({'beam': 3}, 'options.beam: unknown key'), ({'buckets': []}, 'options.buckets: empty'),
    ({'buckets': [4]}, 'options.buckets'), ({'overlap': 'yes'}, 'options.overlap'),
    ({'prefill_precision': 'int4'}, 'options.prefill_precision'),
    ({'prefill_precision': 'fp8'}, 'prefill_precision: fp8: only with fp8'),
    ({'buckets': [200]}, 'buckets: 200: the prompt, the images and the action take'),
    ({'buckets': [8]}, 'prompt: 8 ids: the template alone takes')])
def test_options_of_the_engine_profile_are_checked(options: dict[str, Any], line: str,
                                                   shipped: Path) -> None:
    assert line in refusal(engine_of, shipped, **options)


@pytest.mark.parametrize(('backend', 'precision', 'line'), [
    ('baseline', 'int8-weight', 'precision: int8-weight: openvla on baseline runs in fp32, bf16'),
    ('tensorrt', 'fp32', 'backend: tensorrt: ')])
def test_backends_and_precisions_that_do_not_go_together_are_refused(
        backend: str, precision: str, line: str, shipped: Path) -> None:
    assert line in refusal(engine_of, shipped, backend, precision)


@pytest.mark.parametrize('file', ['config.json', 'tokenizer.json', 'model.safetensors.index.json'])
def test_missing_and_truncated_files_are_refused(file: str, copied: Path) -> None:
    path = copied.parent / 'tiny' / file
    content = path.read_bytes()
    for kept in (0, len(content) // 2):
        path.write_bytes(content[:kept])
        assert str(path) in refusal(engine_of, copied)
    path.unlink()
    assert str(path.parent) in refusal(engine_of, copied)


def test_machine_without_a_gpu_is_named(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    profile = dataclasses.replace(on('graph'), device='cuda')
    engine = make_engine(load_policy(shipped), profile)
    text = refusal(engine.load)
    assert text.startswith(f'{profile.file}: device: cuda: torch finds no GPU; choose an engine')


def test_too_little_memory_is_refused_with_numbers_before_weights_are_read(
        shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = engine_of(shipped)
    assert engine.said[0].startswith('memory: ')
    monkeypatch.setattr(memory, 'available_bytes', lambda device: 100_000)
    monkeypatch.setattr(checkpoint, 'load', lambda *_: pytest.fail('weights were read'))
    text = refusal(engine_of, shipped)
    assert 'GB needed on cpu, 0.00 GB available; end what else runs there, or choose a precision' \
        in text


@pytest.mark.parametrize(('backend', 'precision'), [
    ('baseline', 'fp32'), ('graph', 'fp32'), ('actionflow', 'bf16'), ('graph', 'int8-weight')])
def test_memory_needed_covers_the_tensors_that_are_there(backend: str, precision: str,
                                                         shipped: Path) -> None:
    from vla_ros.policies.openvla.backends import BackendOptions
    config = checkpoint.read_config(shipped.parent / 'tiny')
    kept, host = memory.needed_bytes(shipped.parent / 'tiny', config, precision, backend,
                                     BackendOptions(), on_gpu=True)
    size = {'fp32': 4, 'bf16': 2, 'int8-weight': 2}[precision]
    weights = sum(value.numel() for value in model_of(config).parameters()) * size
    assert weights < kept - memory.WORKING < 4 * weights
    assert 0 < host < 1_000_000
    assert memory.available_bytes('cpu') > 10_000_000


# --- determinism ---------------------------------------------------------------------------------


@pytest.fixture
def as_before() -> Iterator[None]:
    """Whatever torch is told for the whole process is taken back."""
    cudnn = torch.backends.cudnn
    before = (torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
        yield
    torch.use_deterministic_algorithms(before[0])
    cudnn.deterministic, cudnn.benchmark = before[1:]


@pytest.mark.parametrize('backend', BACKENDS)
@pytest.mark.usefixtures('as_before')
def test_deterministic_engines_run_and_give_equal_bits(backend: str, shipped: Path) -> None:
    """Deterministic torch refuses operations that are not; none of ours is among them."""
    seen = observations(8)
    first, second = (results(engine_of(shipped, backend, deterministic=True), seen)
                     for _ in range(2))
    assert torch.are_deterministic_algorithms_enabled()
    for one, other in zip(first, second, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert np.array_equal(getattr(one, 'actions', one), getattr(other, 'actions', other))


def test_determinism_that_comes_too_late_is_refused(shipped: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv('CUBLAS_WORKSPACE_CONFIG', raising=False)
    monkeypatch.setattr(torch.cuda, 'is_initialized', lambda: True)
    assert 'deterministic: true: CUDA is in use already; set CUBLAS_WORKSPACE_CONFIG=:4096:8' \
        in refusal(engine_of, shipped, deterministic=True)


# --- the family ----------------------------------------------------------------------------------


@pytest.mark.parametrize(('missing', 'fix'), [
    ('torch', 'pip install torch safetensors tokenizers'),
    ('safetensors', 'pip install torch safetensors tokenizers'),
    ('tokenizers', 'pip install tokenizers')])
def test_missing_module_is_named_with_the_command_that_installs_it(missing: str, fix: str,
                                                                   shipped: Path) -> None:
    """The profile is read, and the family made, without it."""
    code = (f'import sys; sys.modules[{missing!r}] = None\n'
            'from vla_ros.engines.registry import make_engine\n'
            'from vla_ros.profiles.engine import load_engine\n'
            'from vla_ros.profiles.policy import load_policy\n'
            f'engine = make_engine(load_policy({str(shipped)!r}), load_engine("cpu"))\n'
            'assert engine.contract.backends\n'
            'try:\n'
            '    engine.load()\n'
            'except ValueError as error:\n'
            '    print(error)\n')
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join([root, os.environ.get('PYTHONPATH', '')])
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=100,
                          check=False, env={**os.environ, 'PYTHONPATH': path})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1
    assert f'Python module {missing} is missing' in lines[0]
    assert fix in lines[0]


def test_registry_makes_the_family_and_prefers_what_the_profile_prefers(shipped: Path) -> None:
    assert 'openvla' in families()
    policy = load_policy(shipped)
    for profile, backend in (('cpu', 'graph'), ('desktop', 'graph'), ('jetson', 'graph')):
        engine: Any = make_engine(policy, load_engine(profile))
        assert isinstance(engine, OpenVlaEngine)
        assert engine._backend_name == backend
        assert engine.contract.backends == BACKENDS
        assert engine.contract.horizon == 2


def test_example_fits_the_contract_and_has_no_word(shipped: Path) -> None:
    engine = engine_of(shipped)
    example = engine.example()
    assert example.instruction == ''
    assert engine.infer(engine.preprocess(example)).shape == (2, 3)  # type: ignore[union-attr]
    assert engine.notes() == ()
