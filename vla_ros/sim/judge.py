"""Whether a task is done, judged from the true state of the simulator and nothing else."""

from __future__ import annotations

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.scene import BLOCK_HALF
from vla_ros.sim.tasks import Kind, Task
from vla_ros.sim.world import Snapshot, aside_of

# m
REACH_ASIDE = 0.025     # of the tool from above the centre
REACH_ABOVE = 0.13      # of the tool over the table
PUSHED = 0.05           # along the side that was asked for
STRAYED = 0.03          # at most, across it
LIFTED = 0.06           # of the block over where it lay
IN_BOWL = 0.040         # of the block from the bowl's centre
IN_BOWL_HEIGHT = 0.05   # of the block's centre over the table
MOVED = 0.03            # a block that is only to be reached stays where it was
HOLD_NS = NS_PER_S // 2  # for how long it must stay done


def possible(now: Snapshot, task: Task) -> bool:
    """Whether what the task speaks of is on the table."""
    things = now.bowls if task.thing == 'bowl' else now.blocks
    return task.colour in things and (not task.bowl or task.bowl in now.bowls)


class Judge:
    """Watches one task from `first` on. Success is latched."""

    def __init__(self, task: Task, first: Snapshot) -> None:
        self.task = task
        self.success = False
        self._first = first
        self._since_ns: int | None = None

    @property
    def possible(self) -> bool:
        """Whether what the task speaks of is on the table."""
        return possible(self._first, self.task)

    def update(self, now: Snapshot) -> bool:
        """Look again; whether the task is done."""
        if not self.success and self.possible:
            if not self._holds(now):
                self._since_ns = None
            elif self._since_ns is None:
                self._since_ns = now.time_ns
            self.success = (self._since_ns is not None
                            and now.time_ns - self._since_ns >= HOLD_NS)
        return self.success

    def _holds(self, now: Snapshot) -> bool:
        task = self.task
        if task.kind is Kind.REACH:
            things = now.bowls if task.thing == 'bowl' else now.blocks
            point = things[task.colour]
            still = task.thing == 'bowl' or aside_of(
                point, self._first.blocks[task.colour]) < MOVED
            return still and aside_of(now.tool, point) < REACH_ASIDE and now.tool[2] < REACH_ABOVE
        block, before = now.blocks[task.colour], self._first.blocks[task.colour]
        if task.kind is Kind.PUSH:
            assert task.side is not None
            way = block - before
            return bool(way[1] * task.side.sign >= PUSHED and abs(way[0]) <= STRAYED
                        and block[2] < 2.0 * BLOCK_HALF and now.held != task.colour)
        if task.kind is Kind.PICK:
            return bool(now.held == task.colour and block[2] >= BLOCK_HALF + LIFTED)
        return bool(aside_of(block, now.bowls[task.bowl]) < IN_BOWL and block[2] < IN_BOWL_HEIGHT
                    and now.held != task.colour)
