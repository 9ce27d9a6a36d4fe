"""An engine that knows the truth: the scripted expert, played ahead in a second world.

What it does through the control loop is the most that any policy could do there; it is for tests
and for telling the worth of the way chunks are merged from that of a policy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from vla_ros.core.types import NS_PER_S, Floats, Observation
from vla_ros.engines.contract import Engine
from vla_ros.policies.contracts import contract_of
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.sim.arm import OPENING
from vla_ros.sim.expert import Expert
from vla_ros.sim.judge import possible
from vla_ros.sim.tasks import Task, parse
from vla_ros.sim.world import World

CONTROL_NS = NS_PER_S // 50  # between two targets of the expert


class Rehearsal(World):
    """A world in which to try out what would happen in another one."""

    def copy(self, world: World) -> None:
        """Be as `world` is now."""
        self._scene = world._scene
        self._mujoco.mj_copyData(self._data, self._model, world._data)


class Oracle(Engine):
    """Gives chunks of joint targets and the gripper; `world` is the one that is acted in."""

    def __init__(self, policy: PolicyProfile, world: World) -> None:
        self.contract = contract_of(policy, ('mujoco',))
        self._world = world
        self._rehearsal: Rehearsal | None = None

    def load(self) -> None:
        self._rehearsal = Rehearsal()

    def close(self) -> None:
        if self._rehearsal is not None:
            self._rehearsal.close()

    def infer(self, inputs: Any, prefix: Floats | None = None) -> Floats:
        """Targets [H, 7]: rad, and 0 closed to 1 open; where nothing can be done, rest."""
        assert self._rehearsal is not None, 'load comes first'
        observation: Observation = inputs
        task = parse(observation.instruction)
        ahead = self._rehearsal
        ahead.copy(self._world)
        if task is None or not possible(ahead.snapshot(), task):
            positions = ahead.positions()
            rest = np.append(positions[:-1], np.clip(positions[-1] / OPENING, 0.0, 1.0))
            return np.tile(rest, (self.contract.horizon, 1))
        return self._rehearsed(ahead, task)

    def _rehearsed(self, world: World, task: Task) -> Floats:
        expert = Expert(CONTROL_NS / NS_PER_S)
        rows = []
        for _ in range(self.contract.horizon):
            until_ns = world.time_ns + self.contract.period_ns
            row: Floats | None = None
            while world.time_ns < until_ns:
                joints, gripper = expert.act(world.snapshot(), task)
                row = np.append(joints, gripper) if row is None else row
                world.command(joints, gripper * OPENING)
                world.step_to(world.time_ns + CONTROL_NS)
            assert row is not None
            rows.append(row)
        return np.array(rows)
