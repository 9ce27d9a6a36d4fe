"""Trials in process: the control stack around the simulated arm, the scripted expert as policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from vla_ros.core.types import NS_PER_S, ImageSize, Observation, Plan
from vla_ros.profiles.binding import bind
from vla_ros.profiles.policy import load_policy
from vla_ros.profiles.robot import load_robot
from vla_ros.sim.arm import JOINTS, OPENING
from vla_ros.sim.closed_loop import FRAME_NS, ORIGIN_NS, LoopSettings, run_trial
from vla_ros.sim.controllers import CommandRouter, Controllers
from vla_ros.sim.oracle import Oracle
from vla_ros.sim.trial import TRIALS, Trial, make_trial
from vla_ros.sim.trial_record import TrialRecord, TrialResult, jerk
from vla_ros.sim.world import World

pytestmark = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')

ROBOT, POLICY = load_robot('sim_arm'), load_policy('edgevla_sim')
BLIND = LoopSettings(images=False)


@dataclass(frozen=True)
class Rig:
    """A world and the expert that acts in it."""

    world: World
    oracle: Oracle

    def play(self, trial: Trial, settings: LoopSettings = BLIND, **options: Any) -> TrialResult:
        return run_trial(trial, self.world, self.oracle, ROBOT, POLICY, settings, **options)


@pytest.fixture(scope='module')
def rig() -> Iterator[Rig]:
    world = World()
    oracle = Oracle(POLICY, world)
    oracle.load()
    yield Rig(world, oracle)
    oracle.close()
    world.close()


@pytest.mark.parametrize('name', TRIALS)
def test_expert_does_every_task_through_the_control_loop(rig: Rig, name: str) -> None:
    result = rig.play(make_trial(name, 3))
    assert result.success, result
    assert result.success_s == result.seconds < make_trial(name, 3).limit_s
    assert not result.holds
    moved = result.commands[np.isfinite(result.commands).all(axis=1)]
    assert len(moved) > 0.8 * result.seconds * 50
    velocity = np.abs(np.diff(moved[:, :6], axis=0)) / 0.02
    assert (velocity <= [ROBOT.dimensions[name].velocity + 1e-9 for name in JOINTS]).all()


def test_same_seed_gives_the_same_commands_bit_for_bit(rig: Rig) -> None:
    trial, other = make_trial('pick', 4), make_trial('push', 5)
    first = rig.play(trial)
    rig.play(other)  # nothing of it is left in world or engine
    again = rig.play(trial)
    np.testing.assert_array_equal(first.commands, again.commands)
    np.testing.assert_array_equal(first.seams, again.seams)
    assert first.success_s == again.success_s


def test_delay_is_what_the_settings_say_and_injected_latency_comes_on_top(rig: Rig) -> None:
    settings = LoopSettings(delay=50_000_000, injected_ns=170_000_000, camera_ns=30_000_000,
                            images=False)
    result = rig.play(make_trial('reach', 1), settings)
    assert result.delays_s.min() == pytest.approx(0.25)
    assert len(result.inferences_s) >= len(result.delays_s) > 3


def test_delay_may_depend_on_the_request(rig: Rig) -> None:
    delays = iter([30_000_000, 80_000_000] + [40_000_000] * 999)
    result = rig.play(make_trial('reach', 1), replace(BLIND, delay=lambda request: next(delays)))
    np.testing.assert_allclose(result.delays_s[:3], [0.05, 0.10, 0.06])


def test_engine_that_hangs_leaves_the_arm_at_rest(rig: Rig) -> None:
    trial = replace(make_trial('reach', 1), limit_s=1.0)
    result = rig.play(trial, replace(BLIND, delay=lambda request: None))
    assert not result.success
    assert result.seconds == 1.0
    assert np.isnan(result.success_s)
    assert np.isnan(result.commands).all()


def test_observations_are_those_of_both_cameras_at_one_time(rig: Rig) -> None:
    seen: list[Observation] = []
    world = World(POLICY.cameras)
    try:
        engine = Oracle(POLICY, world)
        engine.load()
        engine.preprocess = lambda observation: seen.append(observation) or observation  # type: ignore
        trial = replace(make_trial('reach', 1), limit_s=0.5)
        run_trial(trial, world, engine, ROBOT, POLICY)
    finally:
        world.close()
    assert len(seen) >= 4
    assert all((o.stamp_ns - ORIGIN_NS) % FRAME_NS == 0 for o in seen)
    assert all(o.oldest_stamp_ns == o.stamp_ns for o in seen), 'every part is of the same moment'
    assert {o.instruction for o in seen} == {trial.said[0].sentence}
    for observation in seen:
        assert {name: image.shape for name, image in observation.images.items()} == {
            name: (size.height, size.width, 3) for name, size in POLICY.cameras.items()}
        assert all(np.ptp(image) > 100 for image in observation.images.values())


def test_watch_sees_the_trial_from_beginning_to_tail() -> None:
    world = World({'view': ImageSize(64, 48)})
    frames: list[tuple[float, str, bool]] = []
    try:
        oracle = Oracle(POLICY, world)
        oracle.load()
        result = run_trial(
            make_trial('reach', 1), world, oracle, ROBOT, POLICY, replace(BLIND, tail_s=0.5),
            lambda pixels, time_s, text, done: frames.append((time_s, text, done)))
    finally:
        world.close()
    np.testing.assert_allclose(np.diff([time_s for time_s, _, _ in frames]), 0.1)
    assert [done for *_, done in frames] == sorted(done for *_, done in frames)
    assert sum(done for *_, done in frames) >= 5
    assert result.seconds == pytest.approx(result.success_s + 0.5)


@pytest.mark.parametrize('method', ['latest_only', 'pop_by_count', 'replace_at_arrival'])
def test_every_method_of_merging_can_be_played(rig: Rig, method: str) -> None:
    settings = replace(BLIND, method=method, injected_ns=100_000_000)
    result = rig.play(make_trial('reach', 1), settings)
    assert result.success or method == 'replace_at_arrival', 'going back and forth takes longer'
    assert not result.holds
    assert result.joint_seams.max() > 1e-4, 'plans that do not fade jump'


def test_crossfade_leaves_no_seam_however_late_chunks_are(rig: Rig) -> None:
    settings = replace(BLIND, injected_ns=200_000_000)
    faded = rig.play(make_trial('push', 2), replace(settings, method='crossfade'))
    jumped = rig.play(make_trial('push', 2), replace(settings, method='latest_only'))
    assert faded.joint_seams.max() < 1e-9 < 1e-2 < jumped.joint_seams.max()
    assert faded.joint_offers.max() > 1e-2
    rms = [float(np.sqrt(np.mean(r.jerk**2))) for r in (faded, jumped)]
    assert rms[0] < rms[1]


def test_robot_with_other_sinks_is_refused_in_one_line(rig: Rig) -> None:
    other = replace(ROBOT.sinks[0], topic='arm/commands')
    robot = replace(ROBOT, sinks=(other, ROBOT.sinks[1]))
    with pytest.raises(ValueError, match='arm/commands: the simulated arm takes') as caught:
        CommandRouter(robot, bind(POLICY, robot).planned, rig.world)
    assert '\n' not in str(caught.value)


def test_camera_delay_between_two_measurements_is_refused() -> None:
    with pytest.raises(ValueError, match='camera_ns: 15000000'):
        LoopSettings(camera_ns=15_000_000)


# --- controllers ---------------------------------------------------------------------------------

class Targets:
    """Stands for a world, and remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def command(self, **targets: Any) -> None:
        self.told.append(targets)


@pytest.mark.parametrize(('topic', 'numbers', 'problem'), [
    ('forward_position_controller/commands', [0.0] * 5, '5 numbers; 6 are needed'),
    ('forward_position_controller/commands', [0.0] * 5 + [float('nan')], 'nan; all numbers must'),
    ('gripper_controller/commands', [], '0 numbers; 1 are needed'),
    ('gripper_controller/commands', [float('inf')], 'inf; all numbers must be finite'),
])
def test_wrong_numbers_change_no_target(topic: str, numbers: list[float], problem: str) -> None:
    targets = Targets()
    said = Controllers(targets).take(topic, numbers)  # type: ignore[arg-type]
    assert problem in said
    assert said.startswith(topic)
    assert not targets.told


def test_right_numbers_become_targets() -> None:
    targets = Targets()
    controllers = Controllers(targets)  # type: ignore[arg-type]
    assert controllers.take('forward_position_controller/commands', range(6)) == ''
    assert controllers.take('gripper_controller/commands', [0.03]) == ''
    np.testing.assert_array_equal(targets.told[0]['arm'], np.arange(6.0))
    assert targets.told[1] == {'gripper': 0.03}


def test_gripper_is_mapped_to_metres_on_its_way(rig: Rig) -> None:
    result = rig.play(make_trial('reach', 1))  # the expert opens its gripper
    sent = result.commands[np.isfinite(result.commands).all(axis=1)]
    assert sent[-1, -1] == pytest.approx(OPENING)


# --- the figures ---------------------------------------------------------------------------------

def test_jerk_of_a_cubic_is_its_third_derivative() -> None:
    times = np.arange(50) * 0.02
    positions = np.stack([times**3, 2.0 * times**2], axis=1)
    np.testing.assert_allclose(jerk(positions, 0.02), [[6.0, 0.0]] * 47, atol=1e-6)


def test_jerk_leaves_out_what_spans_a_gap() -> None:
    positions = np.arange(20.0)[:, None]
    positions[8] = np.nan
    positions[9:] += 100.0
    found = jerk(positions, 1.0)
    assert len(found) == 13
    np.testing.assert_allclose(found, 0.0)
    assert jerk(positions[:3], 1.0).shape == (0, 1)


def plan(stamp_s: float, start_s: float, values: list[float]) -> Plan:
    rows = np.zeros((len(values), POLICY.action.size))
    rows[:, 0] = values
    return Plan(round(stamp_s * NS_PER_S), round(start_s * NS_PER_S), NS_PER_S // 10, rows)


def test_seam_is_the_jump_of_the_setpoint_between_two_plans() -> None:
    record = TrialRecord(bind(POLICY, ROBOT).planned)
    record.on_plan(plan(0.0, 0.0, [0.0, 1.0, 2.0, 3.0]), 50_000_000)
    record.on_plan(plan(0.1, 0.1, [1.5, 2.5, 3.5]), 150_000_000)
    record.on_plan(plan(0.2, 0.9, [9.0]), 250_000_000)
    np.testing.assert_allclose(record.seams[0, 0], 0.5)   # 2.0 against 1.5
    np.testing.assert_allclose(record.seams[1, 0], 6.0)   # 3.0 against 9.0, which begins at once
    np.testing.assert_allclose(record.delays_s, [0.05, 0.05, 0.05])
    assert np.isnan(record.offered).all()


def test_plan_that_follows_an_exhausted_one_makes_no_seam() -> None:
    record = TrialRecord(bind(POLICY, ROBOT).planned)
    record.on_plan(plan(0.0, 0.0, [0.0]), 0)
    record.on_plan(plan(0.5, 0.5, [5.0]), NS_PER_S // 2)
    assert record.seams.shape == (0, POLICY.action.size)
