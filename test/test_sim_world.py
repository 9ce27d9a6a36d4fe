"""The simulated arm: its numbers, its physics, its determinism, and what it can hold."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

from vla_ros.core.types import NS_PER_S, ImageSize
from vla_ros.sim.arm import HIGH, JOINTS, LOW, OPENING, STATE_NAMES
from vla_ros.sim.kinematics import reach_down, tool_point
from vla_ros.sim.scene import BLOCK_BLOCK, BLOCK_BOWL, BOWL_BOWL, make_scene
from vla_ros.sim.trial import TRIALS, make_trial
from vla_ros.sim.world import World

pytestmark = pytest.mark.skipif(find_spec('mujoco') is None, reason='MuJoCo is not installed')
SIZE = ImageSize(64, 48)


@pytest.fixture(scope='module')
def world() -> World:
    made = World({'base': SIZE, 'wrist': SIZE})
    yield made
    made.close()


def test_limits_of_the_arm_are_those_of_the_model(world: World) -> None:
    model = world._model
    for name, low, high in zip(JOINTS, LOW, HIGH, strict=True):
        np.testing.assert_allclose(model.joint(name).range, (low, high))
        np.testing.assert_allclose(model.actuator(name).ctrlrange, (low, high))
    for finger in ('left_finger', 'right_finger'):
        np.testing.assert_allclose(model.joint(finger).range, (0.0, OPENING))


@pytest.mark.parametrize('point', [(0.2, 0.0, 0.18), (0.35, 0.17, 0.02), (0.17, -0.2, 0.1),
                                   (0.38, -0.1, 0.15)])
def test_closed_form_kinematics_agree_with_the_model(
        world: World, point: tuple[float, float, float]) -> None:
    joints = reach_down(point)
    np.testing.assert_allclose(tool_point(joints), point, atol=1e-9)
    world.reset(replace(make_scene(np.random.default_rng(0)), tool=point))
    np.testing.assert_allclose(world.snapshot().tool, point, atol=1e-6)
    np.testing.assert_allclose(world.positions()[:6], joints, atol=1e-9)


def test_a_point_out_of_reach_gives_a_pose_within_limits() -> None:
    joints = reach_down((2.0, 1.0, 0.5))
    assert np.isfinite(joints).all()
    assert (joints >= LOW).all()
    assert (joints <= HIGH).all()


def test_same_seed_gives_the_same_scene_motion_and_image(world: World) -> None:
    def played(seed: int) -> tuple[np.ndarray, np.ndarray]:
        trial = make_trial('pick', seed)
        world.reset(trial.scene)
        block = trial.scene.blocks[0]
        world.command(reach_down((block.x, block.y, 0.02)), 0.0)
        world.step_to(NS_PER_S)
        return world.positions(), world.render('base')

    first, again, other = played(5), played(5), played(6)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])
    assert np.abs(first[0] - other[0]).max() > 0.01
    assert (first[1] != other[1]).any()


def test_the_arm_goes_where_it_is_told_and_holds_the_last_command(world: World) -> None:
    world.reset(make_scene(np.random.default_rng(1)))
    target = reach_down((0.3, 0.1, 0.15))
    world.command(target, 0.01)
    world.step_to(2 * NS_PER_S)
    np.testing.assert_allclose(world.positions(), [*target, 0.01], atol=0.01)
    world.step_to(4 * NS_PER_S)
    np.testing.assert_allclose(world.positions()[:6], target, atol=0.005)
    assert world.time_ns == 4 * NS_PER_S


def test_commands_beyond_the_limits_are_clipped(world: World) -> None:
    world.reset(make_scene(np.random.default_rng(1)))
    world.command(np.full(6, 99.0), 99.0)
    assert (world._data.ctrl[:6] == HIGH).all()
    assert world._data.ctrl[6] == OPENING


def test_a_block_can_be_grasped_and_lifted(world: World) -> None:
    trial = make_trial('pick', 3)
    block = trial.scene.blocks[0]
    world.reset(trial.scene)
    for height, gripper, until in ((0.09, OPENING, 1), (0.017, OPENING, 2), (0.017, 0.0, 3),
                                   (0.15, 0.0, 4)):
        world.command(reach_down((block.x, block.y, height)), gripper)
        world.step_to(until * NS_PER_S)
    now = world.snapshot()
    assert now.held == block.colour
    assert now.blocks[block.colour][2] > 0.1
    world.command(None, OPENING)
    world.step_to(5 * NS_PER_S)
    assert world.snapshot().held is None


def test_state_has_a_name_for_every_position(world: World) -> None:
    world.reset(make_scene(np.random.default_rng(0)))
    assert len(world.positions()) == len(STATE_NAMES)


@pytest.mark.parametrize('name', TRIALS)
def test_scenes_leave_room_between_all_things(name: str) -> None:
    for seed in range(40):
        scene = make_trial(name, seed).scene
        blocks, bowls = scene.blocks, scene.bowls
        assert len({b.colour for b in blocks}) == len(blocks)
        for group, other, least in ((blocks, blocks, BLOCK_BLOCK), (blocks, bowls, BLOCK_BOWL),
                                    (bowls, bowls, BOWL_BOWL)):
            assert all(np.hypot(a.x - b.x, a.y - b.y) >= least
                       for a in group for b in other if a is not b)
