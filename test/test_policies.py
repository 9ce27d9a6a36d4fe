"""The registry and the two families: what they answer, and one line for whatever is wrong."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_ros.core.action_spec import ActionSpec, Dimension, Group, Kind, Rotation
from vla_ros.core.types import Observation
from vla_ros.engines import registry
from vla_ros.engines.contract import Engine
from vla_ros.engines.registry import families, make_engine
from vla_ros.policies.knn import checkpoint
from vla_ros.policies.knn.engine import KnnEngine, blend
from vla_ros.policies.scripted import ScriptedEngine
from vla_ros.profiles.engine import EngineProfile, load_engine
from vla_ros.profiles.policy import PolicyProfile, load_policy

DATA = Path(__file__).parents[1] / 'data' / 'bridge_v2'
STAMP = 1_690_000_000_123_456_789
PERIOD = 200_000_000


@pytest.fixture
def cpu() -> EngineProfile:
    return load_engine('cpu')


def scripted(engine: EngineProfile, name: str = 'scripted_bridge',
             **options: Any) -> ScriptedEngine:
    """A scripted engine that notes what it would have slept."""
    naps: list[float] = []
    made = ScriptedEngine(with_options(load_policy(name), **options), engine, naps.append)
    made.load()
    made.naps = naps  # type: ignore[attr-defined]
    return made


def with_options(policy: PolicyProfile, **options: Any) -> PolicyProfile:
    return dataclasses.replace(policy, options=options)


def seen(engine: Engine, stamp_ns: int = STAMP, instruction: str = 'put carrot on plate',
         state: float = 0.0) -> Observation:
    example = engine.example()
    return dataclasses.replace(example, stamp_ns=stamp_ns, instruction=instruction,
                               state=np.full(len(example.state_names), state))


def actions_of(engine: Engine, observation: Observation) -> Any:
    return engine.infer(engine.preprocess(observation))


def message_of(action: Any, *arguments: Any) -> str:
    with pytest.raises(ValueError) as caught:
        action(*arguments)
    text = str(caught.value)
    assert '\n' not in text
    return text


# The registry

def with_entry_points(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    monkeypatch.setattr(registry, 'entry_points', lambda group: points)


def test_own_families_are_there_without_an_installed_package(
        monkeypatch: pytest.MonkeyPatch, cpu: EngineProfile) -> None:
    with_entry_points(monkeypatch)
    assert set(families()) == {'edgevla', 'knn', 'openvla', 'scripted'}
    assert isinstance(make_engine(load_policy('scripted_bridge'), cpu), ScriptedEngine)


def test_another_package_can_add_a_family(
        monkeypatch: pytest.MonkeyPatch, cpu: EngineProfile, tmp_path: Path) -> None:
    (tmp_path / 'their_family.py').write_text(
        'from vla_ros.policies.scripted import make as theirs\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with_entry_points(monkeypatch, EntryPoint('theirs', 'their_family:theirs', registry.GROUP))
    policy = dataclasses.replace(load_policy('scripted_bridge'), family='theirs')
    assert make_engine(policy, cpu).contract.family == 'theirs'


def test_an_unknown_family_is_named_with_those_there_are(cpu: EngineProfile) -> None:
    policy = dataclasses.replace(load_policy('scripted_bridge'), family='scriptd')
    text = message_of(make_engine, policy, cpu)
    assert "'scriptd'" in text
    assert 'knn, openvla, scripted' in text
    assert "did you mean 'scripted'?" in text
    assert str(policy.file) in text


def test_a_family_whose_module_is_missing_names_the_module(
        monkeypatch: pytest.MonkeyPatch, cpu: EngineProfile) -> None:
    with_entry_points(monkeypatch, EntryPoint('broken', 'absent_package.policy:make', 'g'))
    policy = dataclasses.replace(load_policy('scripted_bridge'), family='broken')
    text = message_of(make_engine, policy, cpu)
    assert "'broken'" in text
    assert "'absent_package'" in text


def test_a_family_that_fails_on_import_names_its_entry_point(
        monkeypatch: pytest.MonkeyPatch, cpu: EngineProfile, tmp_path: Path) -> None:
    (tmp_path / 'failing_family.py').write_text('raise RuntimeError("two\\nlines")\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with_entry_points(monkeypatch, EntryPoint('failing', 'failing_family:make', 'g'))
    policy = dataclasses.replace(load_policy('scripted_bridge'), family='failing')
    text = message_of(make_engine, policy, cpu)
    assert 'failing_family:make' in text
    assert 'two lines' in text


def test_two_packages_must_not_claim_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    with_entry_points(monkeypatch, EntryPoint('knn', 'other:make', registry.GROUP))
    text = message_of(families)
    assert "'knn'" in text
    assert 'other:make' in text


def test_a_factory_must_make_an_engine(
        monkeypatch: pytest.MonkeyPatch, cpu: EngineProfile, tmp_path: Path) -> None:
    (tmp_path / 'odd_family.py').write_text('def make(policy, engine): return 5\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    with_entry_points(monkeypatch, EntryPoint('odd', 'odd_family:make', 'g'))
    policy = dataclasses.replace(load_policy('scripted_bridge'), family='odd')
    assert 'made a int' in message_of(make_engine, policy, cpu)


def test_a_backend_that_the_family_lacks_is_refused(cpu: EngineProfile) -> None:
    tensorrt = dataclasses.replace(cpu, backends=('tensorrt',))
    text = message_of(make_engine, load_policy('scripted_bridge'), tensorrt)
    assert 'tensorrt' in text
    assert 'numpy' in text


def test_families_need_neither_ros_nor_torch_nor_opencv_before_load() -> None:
    code = (
        'import sys\n'
        'from vla_ros.engines.registry import make_engine\n'
        'from vla_ros.profiles.engine import load_engine\n'
        'from vla_ros.profiles.policy import load_policy\n'
        "for name in ('knn_bridge', 'scripted_bridge'):\n"
        "    make_engine(load_policy(name), load_engine('cpu'))\n"
        "print([m for m in ('rclpy', 'torch', 'cv2') if m in sys.modules])\n")
    done = subprocess.run([sys.executable, '-c', code], cwd=Path(__file__).parents[1],
                          capture_output=True, text=True, check=True)
    assert done.stdout.strip() == '[]'


# The family scripted

@pytest.mark.parametrize('motion', ['sine', 'ramp', 'constant'])
def test_a_chunk_depends_on_nothing_but_its_observation(cpu: EngineProfile, motion: str) -> None:
    first = scripted(cpu, motion=motion)
    second = scripted(cpu, motion=motion)
    actions_of(second, seen(second, STAMP + 5 * PERIOD, 'something else'))
    second.reset()
    one, two = actions_of(first, seen(first)), actions_of(second, seen(second))
    assert one.shape == (4, 7)
    assert np.array_equal(one, two)


@pytest.mark.parametrize('motion', ['sine', 'ramp'])
def test_chunks_of_one_sentence_continue_each_other(cpu: EngineProfile, motion: str) -> None:
    engine = scripted(cpu, motion=motion)
    one = actions_of(engine, seen(engine, STAMP))
    two = actions_of(engine, seen(engine, STAMP + PERIOD))
    assert np.allclose(one[1:], two[:-1], atol=1e-12)
    other = actions_of(engine, seen(engine, STAMP, 'turn lever'))
    assert np.abs(one - other).max() > 1e-4


def test_deltas_of_a_sine_sum_up_to_its_amplitude(cpu: EngineProfile) -> None:
    engine = scripted(cpu, frequency=0.25, amplitude={'dx': 0.03})
    deltas = np.concatenate([
        actions_of(engine, seen(engine, STAMP + i * 4 * PERIOD)) for i in range(5)])  # one turn
    way = np.cumsum(deltas, axis=0)
    assert np.ptp(way[:, 0]) == pytest.approx(0.06, rel=0.02)
    assert way[-1, 0] == pytest.approx(0.0, abs=1e-9)
    assert not way[:, 1:6].any()


def test_positions_start_at_the_measured_state(cpu: EngineProfile) -> None:
    engine = scripted(cpu, 'scripted_so101')
    chunk = actions_of(engine, seen(engine, state=0.7))
    assert np.array_equal(chunk[0, :5], np.full(5, 0.7))
    assert np.abs(chunk[:, :5] - 0.7).max() <= 0.04
    assert np.abs(chunk[-1, :5] - 0.7).max() > 0.0


def test_positions_around_zero_leave_the_state_out(cpu: EngineProfile) -> None:
    engine = scripted(cpu, 'scripted_so101', around='zero')
    low, high = (actions_of(engine, seen(engine, state=s)) for s in (-0.5, 0.5))
    assert np.array_equal(low, high)
    assert np.abs(low[:, :5]).max() <= 0.02


def test_a_gripper_opens_and_closes_by_its_period(cpu: EngineProfile) -> None:
    engine = scripted(cpu, gripper_period=1.6)
    chunks = [actions_of(engine, seen(engine, i * 4 * PERIOD + 1)) for i in range(4)]
    assert [set(chunk[:, 6]) for chunk in chunks] == [{1.0}, {0.0}, {1.0}, {0.0}]


def test_a_velocity_is_the_delta_per_second_and_a_relative_starts_at_zero(
        cpu: EngineProfile) -> None:
    policy = load_policy('scripted_bridge')
    spec = ActionSpec(tuple(
        Dimension(kind.value, 'm', kind, Group.TRANSLATION)
        for kind in (Kind.DELTA, Kind.VELOCITY, Kind.RELATIVE, Kind.POSITION)))
    engine = ScriptedEngine(dataclasses.replace(policy, action=spec), cpu)
    chunk = actions_of(engine, seen(engine))
    assert np.allclose(chunk[:, 1], chunk[:, 0] / 0.2)
    assert np.allclose(chunk[:, 2], np.concatenate(([0.0], np.cumsum(chunk[:-1, 0]))))
    assert np.allclose(chunk[:, 2], chunk[:, 3])  # a state of that name is not measured: zero


def test_quaternions_are_unit(cpu: EngineProfile) -> None:
    spec = ActionSpec(tuple(
        Dimension(name, '1', Kind.POSITION, Group.ROTATION, rotation=Rotation.QUATERNION)
        for name in ('qx', 'qy', 'qz', 'qw')))
    policy = dataclasses.replace(load_policy('scripted_bridge'), action=spec)
    engine = ScriptedEngine(policy, cpu)
    chunk = actions_of(engine, seen(engine))
    assert np.allclose(np.linalg.norm(chunk, axis=1), 1.0)
    assert chunk[:, 3].min() > 0.99


def test_rows_of_a_script_come_back_by_time(cpu: EngineProfile) -> None:
    rows = [[float(i)] * 6 + [1.0] for i in range(3)]
    engine = scripted(cpu, motion='script', rows=rows)
    assert actions_of(engine, seen(engine, 3 * PERIOD))[:, 0].tolist() == [0, 1, 2, 0]
    assert actions_of(engine, seen(engine, 4 * PERIOD))[:, 0].tolist() == [1, 2, 0, 1]


def test_faults_strike_at_their_inferences_and_warm_up_counts_none(cpu: EngineProfile) -> None:
    engine = scripted(cpu, latency=0.08, faults=[
        {'at': 1, 'fault': 'stall', 'seconds': 2.0},
        {'at': 2, 'fault': 'slow_ramp', 'seconds': 0.1, 'count': 2},
        {'at': 4, 'fault': 'nan'}, {'at': 5, 'fault': 'wrong_shape'},
        {'at': 6, 'fault': 'wrong_horizon'}, {'at': 7, 'fault': 'short'},
        {'at': 8, 'fault': 'raise'}])
    for _ in range(3):
        actions_of(engine, engine.example())
    shapes = [actions_of(engine, seen(engine)).shape for _ in range(4)]
    assert shapes == [(4, 7)] * 4
    assert engine.naps == pytest.approx([0.08] * 4 + [2.08, 0.18, 0.28])  # type: ignore[attr-defined]
    spoilt = actions_of(engine, seen(engine))
    assert np.isnan(spoilt).any()
    assert np.isfinite(spoilt).any()
    assert [actions_of(engine, seen(engine)).shape for _ in range(3)] == [(4, 8), (5, 7), (3, 7)]
    with pytest.raises(RuntimeError, match='scripted fault at inference 8'):
        actions_of(engine, seen(engine))
    assert np.isfinite(actions_of(engine, seen(engine))).all()


@pytest.mark.parametrize(('options', 'words'), [
    ({'motion': 'sin'}, ['options.motion', "'sin'", "did you mean 'sine'?"]),
    ({'latncy': 0.1}, ['options.latncy', 'latency']),
    ({'latency': -1.0}, ['options.latency', '-1.0', 'at least 0']),
    ({'frequency': 0.0}, ['options.frequency', 'above 0']),
    ({'amplitude': {'dX': 1.0}}, ['options.amplitude.dX', 'dx']),
    ({'motion': 'script'}, ['options.rows', 'a list of actions', '7 numbers']),
    ({'motion': 'script', 'rows': [[1.0]]}, ['options.rows', '[[1.0]]', '7 numbers']),
    ({'rows': [[0.0] * 7]}, ['options.rows', 'only with motion: script']),
    ({'faults': [{'at': 0, 'fault': 'explode'}]}, ['faults[0].fault', "'explode'", 'stall']),
    ({'faults': [{'at': 0, 'fault': 'stall'}]}, ['faults[0].seconds', 'missing']),
    ({'faults': [{'at': -1, 'fault': 'nan'}]}, ['faults[0].at', '-1', 'from 0']),
])
def test_an_option_that_makes_no_sense_is_one_line(
        cpu: EngineProfile, options: dict[str, Any], words: list[str]) -> None:
    text = message_of(make_engine, with_options(load_policy('scripted_bridge'), **options), cpu)
    assert all(word in text for word in ['scripted_bridge.yaml', *words]), text


# The family knn

def small_memory(frames: int = 6, **changes: Any) -> checkpoint.Memory:
    """Frames that differ, their actions told apart by dx = 0.01 * frame."""
    from vla_ros.policies.knn.features import SIZE, VERSION
    random = np.random.default_rng(7)
    policy = load_policy('knn_bridge')
    actions = np.zeros((frames, 4, 7))
    actions[..., 0] = 0.01 * np.arange(frames)[:, None]
    actions[..., 6] = np.arange(frames)[:, None] % 2
    memory = checkpoint.Memory(
        features=random.normal(size=(frames, SIZE)).astype(np.float32), actions=actions,
        sentence=np.arange(frames) // 3, sentences=('close the drawer', 'open the drawer'),
        names=policy.action.names, kinds=tuple(d.kind.value for d in policy.action.dimensions),
        period_ns=policy.period_ns, feature_version=VERSION, sources=('made up',))
    return dataclasses.replace(memory, **changes)


def knn(path: Path, engine: EngineProfile, **options: Any) -> KnnEngine:
    made = make_engine(with_options(load_policy('knn_bridge', str(path)), **options), engine)
    assert isinstance(made, KnnEngine)
    made.load()
    return made


@pytest.fixture(scope='module')
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of one bag, built by the command."""
    pytest.importorskip('rosbags', reason='rosbags is not installed')
    path = tmp_path_factory.mktemp('knn') / 'bridge.npz'
    build_knn([str(DATA / 'bridge_1'), '--out', str(path)])
    return path


def build_knn(arguments: list[str]) -> None:
    import argparse

    from vla_ros.tools.build_knn import add_parser
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(['build-knn', *arguments])
    assert args.run(args) == 0


def test_the_same_bags_give_the_same_bytes(bridge: Path, tmp_path: Path) -> None:
    again = tmp_path / 'again.npz'
    build_knn([str(DATA / 'bridge_1'), '--out', str(again)])
    assert again.read_bytes() == bridge.read_bytes()


def test_clips_are_cut_at_gaps_and_their_tails_padded_by_kind(bridge: Path) -> None:
    memory = checkpoint.load(bridge)
    assert memory.actions.shape == (50, 4, 7)
    assert memory.sources == ('bridge_1',)
    for last in range(9, 50, 10):  # five clips of ten frames
        tail = memory.actions[last]
        assert not tail[1:, :6].any()
        assert (tail[:, 6] == tail[0, 6]).all()
        assert tail[0, :6].any()
        assert np.array_equal(memory.actions[last - 3, 3], tail[0])
    # Two clips under one sentence follow each other, and still do not run into each other.
    assert memory.sentence[10] == memory.sentence[20]


def test_a_frame_is_paired_with_its_own_action(bridge: Path) -> None:
    from vla_ros.replay.bags import Bag
    with Bag(DATA / 'bridge_1') as bag:
        recorded = [m.message.position for m in bag.messages(['/recorded_action'])]
    assert np.array_equal(checkpoint.load(bridge).actions[:, 0], np.array(recorded))


def test_a_recorded_frame_gives_what_followed_it(bridge: Path, cpu: EngineProfile) -> None:
    from vla_ros.replay.bags import Bag
    from vla_ros.ros.image_codec import decode_compressed, resize
    engine = knn(bridge, cpu, neighbours=1)
    memory = checkpoint.load(bridge)
    with Bag(DATA / 'bridge_1') as bag:
        frames = [decode_compressed(m.message.data, m.message.format)
                  for m in bag.messages(['/camera/image_raw/compressed'])]
    for i in (3, 13, 27, 46):  # where the arm moves: at rest one frame is like the next
        pixels = resize(frames[i], 224, 224, 'squash')
        observation = dataclasses.replace(
            seen(engine, instruction=memory.sentences[memory.sentence[i]]),
            images={'primary': pixels})
        assert np.array_equal(actions_of(engine, observation), memory.actions[i])
        shifted = dataclasses.replace(
            observation, images={'primary': np.roll(pixels, 1, axis=1)})
        assert np.array_equal(actions_of(engine, shifted), memory.actions[i])


def test_two_engines_agree_bit_for_bit(bridge: Path, cpu: EngineProfile) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (224, 224, 3), np.uint8)
    chunks = []
    for _ in range(2):
        engine = knn(bridge, cpu)
        observation = dataclasses.replace(seen(engine), images={'primary': pixels})
        actions_of(engine, engine.example())
        chunks.append(actions_of(engine, observation))
    assert np.array_equal(*chunks)


def test_only_frames_of_the_closest_sentence_are_asked(tmp_path: Path, cpu: EngineProfile) -> None:
    checkpoint.save(small_memory(), tmp_path / 'm.npz')
    engine = knn(tmp_path / 'm.npz', cpu, neighbours=100, temperature=100.0)

    def speed(instruction: str) -> float:
        return float(actions_of(engine, seen(engine, instruction=instruction))[0, 0])

    assert speed('close the drawer') == pytest.approx(0.01, abs=1e-3)  # frames 0, 1, 2
    assert speed('Open the drawer!') == pytest.approx(0.04, abs=1e-3)  # frames 3, 4, 5
    assert speed('please open that drawer') == pytest.approx(0.04, abs=1e-3)
    assert speed('wipe everything') == pytest.approx(0.025, abs=1e-3)  # no word known: all


def test_closer_frames_weigh_more(tmp_path: Path, cpu: EngineProfile) -> None:
    memory = small_memory()
    checkpoint.save(memory, tmp_path / 'm.npz')
    engine = knn(tmp_path / 'm.npz', cpu, neighbours=3, temperature=5.0)
    query = dataclasses.replace(
        engine.preprocess(seen(engine, instruction='close the drawer')),
        feature=memory.features[2])
    near = engine.infer(query)[0, 0]
    assert 0.01 < near < 0.02  # the mean of 0, 0.01 and 0.02, drawn towards the last


def test_a_gripper_is_voted_for_and_never_averaged() -> None:
    spec = load_policy('knn_bridge').action
    windows = np.zeros((3, 2, 7))
    windows[:, 0, 6] = [1.0, 0.0, 0.0]
    windows[:, 1, 6] = [1.0, 1.0, 0.0]
    windows[:, :, 0] = np.array([[1.0], [2.0], [3.0]])
    chunk = blend(windows, np.array([0.4, 0.35, 0.25]), spec)
    assert chunk[:, 6].tolist() == [0.0, 1.0]
    assert chunk[:, 0] == pytest.approx(1.85)


def test_opposite_signs_of_one_quaternion_do_not_cancel_out() -> None:
    spec = ActionSpec(tuple(
        Dimension(name, '1', Kind.POSITION, Group.ROTATION, rotation=Rotation.QUATERNION)
        for name in ('x', 'y', 'z', 'w')))
    turn = np.array([0.0, 0.0, 0.6, 0.8])
    chunk = blend(np.array([[turn], [-turn]]), np.array([0.5, 0.5]), spec)
    assert np.allclose(chunk, turn)


def test_a_missing_checkpoint_says_how_to_build_it(tmp_path: Path, cpu: EngineProfile) -> None:
    text = message_of(knn, tmp_path / 'gone.npz', cpu)
    assert f'{tmp_path / "gone.npz"}: no such checkpoint' in text
    assert 'vla-ros build-knn' in text


@pytest.mark.parametrize('share', [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_checkpoint_is_one_line(
        tmp_path: Path, cpu: EngineProfile, share: float) -> None:
    path = tmp_path / 'cut.npz'
    checkpoint.save(small_memory(), path)
    path.write_bytes(path.read_bytes()[:int(path.stat().st_size * share)])
    text = message_of(knn, path, cpu)
    assert f'{path}: not a whole knn checkpoint' in text
    assert 'vla-ros build-knn' in text


@pytest.mark.parametrize('place', [0.001, 0.3, 0.7, 0.9])
def test_a_flipped_byte_is_noticed(tmp_path: Path, cpu: EngineProfile, place: float) -> None:
    path = tmp_path / 'flipped.npz'
    checkpoint.save(small_memory(), path)
    content = bytearray(path.read_bytes())
    content[int(len(content) * place)] ^= 0xff
    path.write_bytes(content)
    assert str(path) in message_of(knn, path, cpu)


def test_a_pickle_is_never_loaded(tmp_path: Path, cpu: EngineProfile) -> None:
    path = tmp_path / 'pickled.npz'
    np.savez(path, description=np.array([{'format': checkpoint.FORMAT}], dtype=object))
    assert 'not a whole knn checkpoint' in message_of(knn, path, cpu)


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, cpu: EngineProfile) -> None:
    memory = small_memory()
    memory.actions[1, 2, 3] = np.nan  # behind the back of its check
    checkpoint.save(memory, tmp_path / 'nan.npz')
    assert 'not finite' in message_of(knn, tmp_path / 'nan.npz', cpu)


@pytest.mark.parametrize(('changes', 'words'), [
    ({'period_ns': 100_000_000}, ['period_ns', '100000000', '200000000']),
    ({'names': tuple('abcdefg')}, ['names', 'a, b, c', 'dx, dy, dz']),
    ({'kinds': ('velocity',) * 6 + ('gripper',)}, ['kinds', 'velocity', 'delta']),
    ({'feature_version': 0}, ['feature_version', '0', '1']),
    ({'actions': np.zeros((6, 3, 7))}, ['horizon 3', 'at least 4']),
])
def test_a_checkpoint_of_another_policy_is_refused(
        tmp_path: Path, cpu: EngineProfile, changes: dict[str, Any], words: list[str]) -> None:
    checkpoint.save(small_memory(**changes), tmp_path / 'm.npz')
    text = message_of(knn, tmp_path / 'm.npz', cpu)
    assert all(word in text for word in [str(tmp_path / 'm.npz'), *words]), text


def test_a_policy_without_a_checkpoint_says_so(cpu: EngineProfile) -> None:
    policy = dataclasses.replace(load_policy('knn_bridge'), checkpoint=None)
    assert 'checkpoint: missing' in message_of(make_engine, policy, cpu)


@pytest.mark.parametrize(('arguments', 'words'), [
    (['--action-topic', '/actions'], ["'/actions'", '/recorded_action']),
    (['--action-topic', '/ee_state'], ['/ee_state', "'dx' is missing", 'x, y, z']),
    (['--image-topic', '/ee_state'], ['/ee_state', 'sensor_msgs/msg/Image']),
    (['--instruction-topic', '/nothing'], ["'/nothing'", '/vla/instruction']),
])
def test_a_bag_that_does_not_fit_is_one_line(
        tmp_path: Path, arguments: list[str], words: list[str]) -> None:
    pytest.importorskip('rosbags', reason='rosbags is not installed')
    text = message_of(build_knn, [str(DATA / 'bridge_3'), '--out', str(tmp_path / 'm.npz'),
                                  *arguments])
    assert all(word in text for word in words), text
    assert not (tmp_path / 'm.npz').exists()
