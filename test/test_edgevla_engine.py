"""The engine: both backends alike, memory of frames, notes, one line for whatever is wrong."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip('torch', reason='the export needs it')
pytest.importorskip('onnx', reason='the export needs it')
pytest.importorskip('onnxruntime')

from edgevla_rig import by_frame, episode, tiny  # noqa: E402

from vla_ros.core.types import Observation  # noqa: E402
from vla_ros.engines.executor import warm_up  # noqa: E402
from vla_ros.engines.registry import families, make_engine  # noqa: E402
from vla_ros.policies.edgevla import checkpoint, make  # noqa: E402
from vla_ros.policies.edgevla.config import EdgeVlaConfig, read_config, small, to_json  # noqa: E402
from vla_ros.policies.edgevla.engine import EdgeVlaEngine, check  # noqa: E402
from vla_ros.policies.edgevla.export import (  # noqa: E402
    disagreement,
    export,
    random_checkpoint,
    write_checkpoint,
)
from vla_ros.policies.edgevla.model import EdgeVla  # noqa: E402
from vla_ros.policies.edgevla.onnx_runner import OnnxRunner  # noqa: E402
from vla_ros.profiles.engine import EngineProfile, load_engine  # noqa: E402
from vla_ros.profiles.policy import PolicyProfile, load_policy  # noqa: E402

torch.set_num_threads(1)
TOLERANCE = 1e-4
START = 1_790_000_000_123_456_789
PERIOD = 100_000_000
BACKENDS = ('onnxruntime', 'torch')
PROFILE = """\
policy: tiny
family: edgevla
checkpoint: tiny
horizon: 3
period: 0.1
cameras: {front: {width: 16, height: 32}, side: {width: 16, height: 32}}
state: [shoulder, finger, elbow]
action:
  - {name: elbow, unit: rad, kind: position, group: joints}
  - {name: grip, unit: '1', kind: gripper, group: gripper}
  - {name: shoulder, unit: rad, kind: position, group: joints}
"""


@pytest.fixture(scope='module')
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile, and beside it a checkpoint whose actions are as large as trained ones."""
    folder = tmp_path_factory.mktemp('edgevla')
    torch.manual_seed(0)
    model = EdgeVla(tiny())
    torch.nn.init.normal_(model.head[-1].weight, std=0.5)
    write_checkpoint(folder / 'tiny', model)
    (folder / 'tiny.yaml').write_text(PROFILE)
    return folder / 'tiny.yaml'


@pytest.fixture
def copied(shipped: Path, tmp_path: Path) -> Path:
    """The same, to be broken."""
    shutil.copytree(shipped.parent, tmp_path / 'copy')
    return tmp_path / 'copy' / shipped.name


def on(backend: str, **changes: Any) -> EngineProfile:
    return dataclasses.replace(load_engine('cpu'), backends=(backend,), **changes)


def engine_of(profile: Path, backend: str = 'onnxruntime', **changes: Any) -> EdgeVlaEngine:
    engine = EdgeVlaEngine(load_policy(profile), on(backend, **changes))
    engine.load()
    return engine


@pytest.fixture(params=BACKENDS)
def engine(request: pytest.FixtureRequest, shipped: Path) -> EdgeVlaEngine:
    return engine_of(shipped, request.param)


def observations(count: int, seed: int = 0, sentence: str = 'pick the red block',
                 gaps: tuple[int, ...] = (1,)) -> list[Observation]:
    """Random observations, `gaps` periods apart in turn."""
    config = tiny()
    stamp, made = START, []
    for i, (images, _, state, _) in enumerate(by_frame(episode(config, count, seed=seed))):
        made.append(Observation(
            stamp_ns=stamp, oldest_stamp_ns=stamp, received_ns=stamp,
            images=dict(zip(config.cameras.names, images[0], strict=True)),
            state=state[0].astype(np.float64), state_names=config.state, instruction=sentence))
        stamp += gaps[i % len(gaps)] * PERIOD
    return made


def actions_of(engine: EdgeVlaEngine, *seen: Observation) -> Any:
    """The actions [n, H, A] of one observation after the other."""
    return np.stack([engine.infer(engine.preprocess(observation)) for observation in seen])


def refusal(action: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        action(*arguments)
    text = str(caught.value)
    assert '\n' not in text
    return text


# What comes out

def test_backends_agree_over_a_stream_longer_than_the_window(shipped: Path) -> None:
    seen = observations(15, gaps=(1, 2, 1, 30))
    onnx, torched = (actions_of(engine_of(shipped, name), *seen) for name in BACKENDS)
    assert onnx.shape == (15, 3, 3)
    assert onnx.std() > 0.1
    assert np.abs(onnx - torched).max() <= TOLERANCE


def test_stream_equals_one_pass_over_the_whole_episode(engine: EdgeVlaEngine,
                                                       shipped: Path) -> None:
    seen = observations(13, gaps=(1, 3))
    inputs = [engine.preprocess(observation) for observation in seen]
    since = np.zeros((1, 13), np.float32)
    since[0, 1:] = np.diff([observation.stamp_ns for observation in seen]) / 1e9
    batch = [torch.from_numpy(np.stack([getattr(frame, name)[0] for frame in inputs])[None])
             for name in ('images', 'ids', 'state')]
    with torch.no_grad():
        expected = checkpoint.load(shipped.parent / 'tiny')(*batch, torch.from_numpy(since))
    assert np.abs(actions_of(engine, *seen) - expected.actions[0].numpy()).max() <= TOLERANCE


def test_gripper_is_a_fraction_and_positions_follow_the_state(engine: EdgeVlaEngine) -> None:
    first = observations(1)[0]
    moved = dataclasses.replace(first, state=first.state + [0.0, 0.0, 100.0])
    actions = actions_of(engine, first)[0]
    engine.reset()
    far = actions_of(engine, moved)[0]
    assert ((actions[:, 1] > 0.0) & (actions[:, 1] < 1.0)).all()
    assert np.abs(far[:, 0] - actions[:, 0] - 100.0).max() < 20.0  # elbow
    assert np.abs(far[:, 2] - actions[:, 2]).max() < 20.0          # shoulder


def test_instruction_is_read(engine: EdgeVlaEngine) -> None:
    first = observations(1)[0]
    engine.infer(engine.preprocess(first))
    one = actions_of(engine, first)
    other = actions_of(engine, dataclasses.replace(first, instruction='block up'))
    assert np.abs(one - other).max() > 1e-5


# Memory

def test_frames_before_count_until_reset(engine: EdgeVlaEngine) -> None:
    seen = observations(6)
    fresh = actions_of(engine, *seen)
    onward = actions_of(engine, *(shifted(frame) for frame in seen))
    assert np.abs(onward - fresh)[0].max() > 1e-5
    engine.reset()
    assert np.array_equal(actions_of(engine, *seen), fresh)


def shifted(observation: Observation, by: int = 1_000_000_000_000) -> Observation:
    return dataclasses.replace(observation, stamp_ns=observation.stamp_ns + by)


def test_same_stamp_takes_the_place_of_the_last_frame(engine: EdgeVlaEngine) -> None:
    """The graph infers again with the same images where the instruction changes."""
    seen = observations(7)
    expected = actions_of(engine, *seen)
    engine.reset()
    for frame in seen:
        asked_before = dataclasses.replace(frame, instruction='up up up')
        actions_of(engine, asked_before)
        found = actions_of(engine, frame)[0]
        assert np.array_equal(found, expected[seen.index(frame)])


def test_new_instruction_keeps_the_frames_before(engine: EdgeVlaEngine) -> None:
    seen = observations(3)
    changed = dataclasses.replace(seen[2], instruction='block')
    remembered = actions_of(engine, seen[0], seen[1], changed)[2]
    engine.reset()
    assert np.abs(actions_of(engine, changed)[0] - remembered).max() > 1e-5


def test_ring_stays_where_it_is(engine: EdgeVlaEngine) -> None:
    ring: Any = engine._runner.ring  # type: ignore[union-attr]
    def place() -> int:
        now: Any = engine._runner.ring  # type: ignore[union-attr]
        assert now is ring
        return int(now.ctypes.data if isinstance(now, np.ndarray) else now.data_ptr())
    before = place()
    actions_of(engine, *observations(9))
    engine.reset()
    actions_of(engine, *observations(2))
    assert place() == before
    assert ring.shape == tiny().ring_shape()


def test_observation_that_is_not_finite_does_not_spoil_those_after_it(
        engine: EdgeVlaEngine) -> None:
    seen = observations(4)
    fresh = actions_of(engine, *seen[2:])
    engine.reset()
    broken = dataclasses.replace(seen[1], state=np.array([np.nan, 0.0, 0.0]))
    assert np.isnan(actions_of(engine, seen[0], broken)[1]).any()
    assert np.array_equal(actions_of(engine, *seen[2:]), fresh)


def test_failed_inference_does_not_count(engine: EdgeVlaEngine,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    seen = observations(6)
    expected = actions_of(engine, *seen[:3], *seen[4:])
    engine.reset()
    actions_of(engine, *seen[:3])
    with monkeypatch.context() as patched:
        patched.setattr(engine._runner, 'run', lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            actions_of(engine, seen[3])
    assert np.array_equal(actions_of(engine, *seen[4:]), expected[3:])


def test_warm_up_leaves_nothing_behind(engine: EdgeVlaEngine) -> None:
    expected = actions_of(engine, *observations(3))
    engine.reset()
    assert len(warm_up(engine, 3, lambda: 0, lambda _: '')) == 3
    assert engine.notes() == ()
    assert np.array_equal(actions_of(engine, *observations(3)), expected)


def test_closed_engine_can_be_loaded_again(engine: EdgeVlaEngine) -> None:
    expected = actions_of(engine, *observations(2))
    engine.close()
    with pytest.raises(RuntimeError, match='before load'):
        actions_of(engine, observations(1)[0])
    engine.load()
    assert np.array_equal(actions_of(engine, *observations(2)), expected)


# Notes

def test_words_never_seen_are_named_in_notes(engine: EdgeVlaEngine) -> None:
    known, strange = observations(2), observations(2, sentence='pick the\nblue teapot')
    actions_of(engine, *known)
    assert engine.notes() == ()
    actions_of(engine, *strange)
    line = "instruction: the policy has never seen: 'blue', 'teapot'"
    assert engine.notes() == (line,)
    actions_of(engine, *known)
    assert engine.notes() == ()


def test_words_that_are_cut_off_are_named(engine: EdgeVlaEngine) -> None:
    actions_of(engine, *observations(1, sentence='up ' * 6 + 'the red block'))
    assert engine.notes() == ("instruction: longer than the 6 words that the policy reads; left "
                              "out: 'the', 'red', 'block'",)


def test_notes_stay_short_whatever_the_sentence(engine: EdgeVlaEngine) -> None:
    words = ' '.join(f'x{i}' + 'y' * 200 for i in range(300))
    actions_of(engine, *observations(1, sentence=words))
    assert len(engine.notes()) == 2
    for note in engine.notes():
        assert len(note) < 400
        assert '\n' not in note
        assert 'more' in note


# What is refused

@pytest.mark.parametrize(('old', 'new', 'line'), [
    ('horizon: 3', 'horizon: 4', 'horizon: 4: the checkpoint '),
    ('period: 0.1', 'period: 0.2', 'period: 200000000 ns: '),
    ('front', 'top', 'cameras: top, side: '),
    ('side: {width: 16', 'side: {width: 32', 'cameras.side: 32x32: '),
    ('finger, elbow]', 'elbow, finger]', 'state: shoulder, elbow, finger: '),
    ('finger, elbow]', 'finger]', 'state: shoulder, finger: '),
    ('{name: elbow', '{name: wrist', 'action: wrist, grip, shoulder: '),
    ('rad, kind: position', 'rad, kind: delta', 'action elbow: kind: delta: '),
])
def test_profile_that_promises_something_else_is_refused(old: str, new: str, line: str,
                                                         copied: Path) -> None:
    copied.write_text(PROFILE.replace(old, new))
    text = refusal(engine_of, copied)
    assert text.startswith(f'{copied}: {line}')
    assert 'mend the profile or give another model' in text


def test_options_and_a_missing_checkpoint_are_refused(copied: Path) -> None:
    copied.write_text(PROFILE + 'options: {beam: 3}\n')
    assert 'options.beam: unknown key' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny\n', ''))
    assert 'checkpoint: missing' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny', 'checkpoint: nowhere'))
    assert 'nowhere: no such folder' in refusal(engine_of, copied)
    copied.write_text(PROFILE.replace('checkpoint: tiny', 'checkpoint: tiny/config.json'))
    assert 'config.json: is not a folder' in refusal(engine_of, copied)


@pytest.mark.parametrize(('backend', 'file'), [
    ('onnxruntime', 'model.onnx'), ('torch', 'model.safetensors'), ('onnxruntime', 'config.json')])
def test_missing_and_truncated_files_are_refused(backend: str, file: str, copied: Path) -> None:
    path = copied.parent / 'tiny' / file
    content = path.read_bytes()
    for kept in (0, 100, len(content) // 2):
        path.write_bytes(content[:kept])
        assert str(path) in refusal(engine_of, copied, backend)
    path.unlink()
    assert f'{path}: cannot be read' in refusal(engine_of, copied, backend)


def test_graph_of_another_config_is_refused(copied: Path) -> None:
    config = copied.parent / 'tiny' / 'config.json'
    config.write_text(to_json(dataclasses.replace(read_config(config), window=5)))
    assert 'model.onnx: it was not made from the config.json' in refusal(engine_of, copied)


def test_vocabulary_that_cannot_be_found_is_refused(copied: Path) -> None:
    config = copied.parent / 'tiny' / 'config.json'
    config.write_text(config.read_text().replace('"pick"', '"Pick"'))
    assert "text.words: 'Pick'" in refusal(engine_of, copied)


@pytest.mark.parametrize(('backend', 'changes', 'line'), [
    ('onnxruntime', {'precision': 'fp16'}, 'precision: fp16: edgevla on onnxruntime runs in fp32'),
    ('torch', {'precision': 'int8'}, 'precision: int8: edgevla on torch runs in fp32, bf16, fp16'),
    ('onnxruntime', {'device': 'cuda:7'}, 'device: cuda:7: '),
    ('torch', {'device': 'cuda:7'}, 'device: cuda:7: '),
    ('tensorrt', {}, 'backend: tensorrt: '),
])
def test_engine_profile_that_cannot_be_had_is_refused(
        backend: str, changes: dict[str, Any], line: str, shipped: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: 1)
    monkeypatch.setattr('onnxruntime.get_available_providers', lambda: ['CPUExecutionProvider'])
    assert line in refusal(lambda: engine_of(shipped, backend, **changes))


@pytest.mark.parametrize(('backend', 'missing', 'fix'), [
    ('onnxruntime', 'onnxruntime', 'pip install onnxruntime'),
    ('torch', 'torch', 'pip install torch safetensors'),
    ('torch', 'safetensors', 'pip install torch safetensors')])
def test_missing_framework_is_named_with_the_command_that_installs_it(
        backend: str, missing: str, fix: str, shipped: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ('torch_runner', 'checkpoint', 'model', 'vision', 'transformer'):
        monkeypatch.delitem(sys.modules, f'vla_ros.policies.edgevla.{module}', raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    text = refusal(engine_of, shipped, backend)
    assert f'module {missing} is missing' in text
    assert fix in text


# Backends

@pytest.mark.parametrize('precision', ['bf16', 'fp16'])
def test_half_precision_stays_near(precision: str, shipped: Path) -> None:
    seen = observations(9)
    exact = actions_of(engine_of(shipped, 'torch'), *seen)
    near = actions_of(engine_of(shipped, 'torch', precision=precision), *seen)
    assert 0.0 < np.abs(near - exact).max() < 0.1


def test_onnxruntime_needs_no_torch(shipped: Path) -> None:
    code = f"""
import sys
sys.modules['torch'] = sys.modules['safetensors'] = sys.modules['onnx'] = None
from pathlib import Path
from vla_ros.engines.registry import make_engine
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import load_policy
engine = make_engine(load_policy({str(shipped)!r}), load_engine('cpu'))
engine.load()
print(engine.infer(engine.preprocess(engine.example())).shape)
"""
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60,
                          cwd=Path(__file__).parents[1], check=False)
    assert done.stdout.strip() == '(3, 3)', done.stderr


def test_registry_makes_the_family_and_prefers_what_the_profile_prefers(shipped: Path) -> None:
    assert 'edgevla' in families()
    policy = load_policy(shipped)
    engine = make_engine(policy, load_engine('cpu'))
    assert isinstance(engine, EdgeVlaEngine)
    assert engine._backend == 'onnxruntime'
    assert make(policy, load_engine('desktop'))._backend == 'torch'  # type: ignore[attr-defined]


# Export

def test_graph_says_what_it_was_made_from(shipped: Path) -> None:
    folder = shipped.parent / 'tiny'
    runner = OnnxRunner(folder, read_config(folder / 'config.json'), threads=1)
    said = runner._session.get_modelmeta().custom_metadata_map
    weights = (folder / 'model.safetensors').read_bytes()
    assert said['weights_sha256'] == hashlib.sha256(weights).hexdigest()
    assert sorted(file.name for file in folder.iterdir()) == [
        'config.json', 'model.onnx', 'model.safetensors']


def test_export_is_repeatable(copied: Path) -> None:
    folder = copied.parent / 'tiny'
    before = (folder / 'model.onnx').read_bytes()
    assert export(folder) <= TOLERANCE
    assert (folder / 'model.onnx').read_bytes() == before


def test_graph_with_other_weights_would_be_noticed(copied: Path) -> None:
    folder = copied.parent / 'tiny'
    model = checkpoint.load(folder)
    with torch.no_grad():
        model.transformer.blocks[0].key.weight[0, 0] += 0.5
    assert disagreement(folder, model) > TOLERANCE


@pytest.mark.parametrize('changes', [
    {'compressor': dataclasses.replace(tiny().compressor, kind='average_pool', keep=4)},
    {'cameras': dataclasses.replace(tiny().cameras, fuse='channels'), 'gripper': '',
     'action': ('elbow', 'shoulder')}])
def test_other_configs_can_be_exported(changes: dict[str, Any], tmp_path: Path) -> None:
    random_checkpoint(tmp_path, tiny(**changes))  # checks itself


def test_untrained_checkpoint_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    state = torch.random.get_rng_state()
    for name, seed in (('a', 1), ('b', 1), ('c', 2)):
        random_checkpoint(tmp_path / name, tiny(), seed)
    a, b, c = ((tmp_path / name / 'model.safetensors').read_bytes() for name in 'abc')
    assert a == b != c
    assert torch.equal(torch.random.get_rng_state(), state)


def test_shipped_profile_fits_the_config_that_is_trained() -> None:
    policy: PolicyProfile = load_policy('edgevla_sim')
    config: EdgeVlaConfig = small()
    check(policy, config, Path('models/edgevla_sim'))
    assert policy.checkpoint is not None
    assert policy.checkpoint.resolve() == Path(__file__).parents[1] / 'models' / 'edgevla_sim'
