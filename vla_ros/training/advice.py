"""What the expert would do now, whatever it is asked: labels for many sentences of one image.

A sentence that goes with one image only can be guessed from the image. Where the same image is
asked about many things, only who reads the sentence finds the right one.
"""

from __future__ import annotations

import numpy as np

from vla_ros.core.types import NS_PER_S, Floats
from vla_ros.sim.expert import Expert, gripper_position
from vla_ros.sim.judge import possible
from vla_ros.sim.oracle import Rehearsal
from vla_ros.sim.scene import BLOCK_HALF
from vla_ros.sim.tasks import Kind, Task, all_tasks
from vla_ros.sim.world import Snapshot, World, aside_of
from vla_ros.training.dataset import STEPS

TICK_NS = NS_PER_S // 50
STEP_TICKS = 5
IN_REACH = (0.12, 0.40, 0.24)  # m: least and most x, most |y| of a block that is to be moved
FREE = 0.09    # m of a block from all bowls


class Adviser:
    """Plays the expert ahead in a world of its own. Not thread-safe."""

    def __init__(self) -> None:
        self._ahead = Rehearsal()
        self._tasks = tuple(all_tasks())

    def close(self) -> None:
        """Give the world back."""
        self._ahead.close()

    def sensible(self, now: Snapshot) -> list[Task]:
        """The tasks that make sense now."""
        return [task for task in self._tasks if possible(now, task) and fair(now, task)]

    def targets(self, world: World, task: Task) -> Floats:
        """Commands [STEPS + 1, 7], now and every 0.1 s from now: rad, gripper 0 closed to 1 open.

        The expert goes on as if it had been on its way, so that what it does follows from what
        can be seen, and not from where the arm came from.
        """
        ahead, expert = self._ahead, Expert(TICK_NS / NS_PER_S)
        ahead.copy(world)
        expert.go_on(ahead.snapshot(), task)
        rows: list[Floats] = []
        for tick in range(STEPS * STEP_TICKS + 1):
            joints, gripper = expert.act(ahead.snapshot(), task)
            if tick % STEP_TICKS == 0:
                rows.append(np.append(joints, gripper))
            if len(rows) > STEPS:
                break
            ahead.command(joints, gripper_position(gripper))
            ahead.step_to(ahead.time_ns + TICK_NS)
        return np.array(rows)


def fair(now: Snapshot, task: Task) -> bool:
    """Whether the task makes sense now: what is in a bowl is left there."""
    if task.thing == 'bowl' or task.kind is Kind.REACH:
        return True
    block = now.blocks[task.colour]
    low, high, aside = IN_REACH
    if not (low < block[0] < high and abs(block[1]) < aside):
        return False
    if now.held == task.colour:
        return task.kind is not Kind.PUSH
    if block[2] > BLOCK_HALF + 0.004:
        return False
    return all(aside_of(block, bowl) > FREE for bowl in now.bowls.values())
