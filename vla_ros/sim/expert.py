"""The scripted expert: sees the true state, knows every task, recovers from anything.

It has no phases to remember: what to do next follows from where things are, so that whatever
happened before, it goes on from there. A policy that sees only images can therefore learn it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vla_ros.core.types import Floats
from vla_ros.sim.arm import OPENING
from vla_ros.sim.kinematics import reach_down
from vla_ros.sim.tasks import Kind, Side, Task
from vla_ros.sim.world import Snapshot, aside_of

# m
GRASP = 0.017           # height of the tool at a grasp
HOVER = 0.085           # and over a block or a bowl that is reached
CARRY = 0.13            # with a block on the way to a bowl
LIFT = 0.15
RELEASE = 0.075         # over a bowl
PUSH_HEIGHT = 0.020
PUSH_FROM = 0.046       # behind the centre of a block, before a push
EDGE = 0.21             # blocks are pushed up to this |y|
NEAR = 0.008            # aligned for a grasp or a push
LEASH = 0.06            # the target is never farther from the tool
# m/s and 1/s
SPEED, PUSH_SPEED, GAIN = 0.24, 0.12, 5.0
SLOWING = 1.6           # m/s2
LEAD_S = 0.06           # s that the tool is behind its target on its way


@dataclass(frozen=True)
class Goal:
    """Where the tool should be [3] in m, how open the gripper (0 or 1), how fast at most (m/s)."""

    point: Floats
    gripper: float
    speed: float = SPEED


class Expert:
    """Turns goals into a smooth target for the tool: `act` once per control period."""

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._target: Floats | None = None
        self._velocity: Floats = np.zeros(3)

    def begin(self) -> None:
        """Take over from wherever the tool is."""
        self._target = None
        self._velocity = np.zeros(3)

    def go_on(self, now: Snapshot, task: Task) -> None:
        """Take over as if it had been on its way for a while: at full speed, the target ahead."""
        goal = decide(now, task)
        way = goal.point - now.tool
        distance = float(np.linalg.norm(way))
        speed = min(goal.speed, GAIN * distance)
        self._velocity = way / distance * speed if distance > 1e-9 else np.zeros(3)
        self._target = now.tool + self._velocity * LEAD_S

    def act(self, now: Snapshot, task: Task) -> tuple[Floats, float]:
        """Joint targets [6] and the gripper, 0 closed to 1 open."""
        goal = decide(now, task)
        if self._target is None:
            self._target = now.tool.copy()
        way = goal.point - self._target
        distance = float(np.linalg.norm(way))
        speed = min(goal.speed, GAIN * distance)
        wanted = way / distance * speed if distance > 1e-9 else np.zeros(3)
        change = wanted - self._velocity
        most = SLOWING * self._period_s
        size = float(np.linalg.norm(change))
        self._velocity = self._velocity + change * min(1.0, most / size if size > 0.0 else 1.0)
        target = self._target + self._velocity * self._period_s
        ahead = target - now.tool
        size = float(np.linalg.norm(ahead))
        self._target = now.tool + ahead * min(1.0, LEASH / size if size > 0.0 else 1.0)
        return reach_down(self._target), goal.gripper


def decide(now: Snapshot, task: Task) -> Goal:
    """What to do next, from the true state alone."""
    wrong = now.held is not None and not (
        task.kind in (Kind.PICK, Kind.BOWL) and now.held == task.colour)
    if wrong:
        return _put_down(now)
    if task.kind is Kind.REACH:
        things = now.bowls if task.thing == 'bowl' else now.blocks
        return Goal(_over(now, things[task.colour], HOVER, HOVER), 1.0)
    if task.kind is Kind.PUSH:
        assert task.side is not None
        return _push(now, now.blocks[task.colour], task.side)
    block = now.blocks[task.colour]
    held = now.held == task.colour
    if task.kind is Kind.BOWL:
        bowl = now.bowls[task.bowl]
        if held:
            over = _over(now, bowl, RELEASE, CARRY)
            return Goal(over, 1.0 if _there(now, bowl, RELEASE, 0.018, 0.012) else 0.0)
        if aside_of(block, bowl) < 0.040:
            return Goal(np.array([now.tool[0], now.tool[1], LIFT]), 1.0)
    if held:
        return Goal(np.array([now.tool[0], now.tool[1], LIFT]), 0.0)
    at = np.array([block[0], block[1], max(block[2], GRASP)])
    closing = _there(now, at, at[2], NEAR, 0.006)
    return Goal(_over(now, at, at[2], HOVER), 0.0 if closing else 1.0)


def _put_down(now: Snapshot) -> Goal:
    """Let go of a block: in the bowl that is below, or down on the table."""
    height = GRASP + 0.004
    for bowl in now.bowls.values():
        if aside_of(now.tool, bowl) < 0.075:
            height = RELEASE
    down = now.tool[2] < height + 0.008
    return Goal(np.array([now.tool[0], now.tool[1], height]), 1.0 if down else 0.0, 0.18)


def _push(now: Snapshot, block: Floats, side: Side) -> Goal:
    sign = side.sign
    if block[1] * sign >= EDGE:  # done: leave upwards, where the block is
        return Goal(np.array([now.tool[0], now.tool[1], LIFT]), 0.0)
    behind = (block[1] - now.tool[1]) * sign
    low = now.tool[2] < PUSH_HEIGHT + 0.012
    if low and abs(now.tool[0] - block[0]) < 0.014 and 0.022 < behind < PUSH_FROM + 0.012:
        return Goal(np.array([block[0], block[1], PUSH_HEIGHT]), 0.0, PUSH_SPEED)
    start = np.array([block[0], block[1] - sign * PUSH_FROM, PUSH_HEIGHT])
    return Goal(_over(now, start, PUSH_HEIGHT, HOVER), 0.0)


def _over(now: Snapshot, point: Floats, height: float, travel: float) -> Floats:
    """The next goal on a way that rises to `travel`, goes across and comes down like a funnel."""
    aside = aside_of(now.tool, point)
    wanted = height + np.clip((aside - NEAR) / 0.03, 0.0, 1.0) * (travel - height)
    # Low and far away: first up, so that nothing is swept off the table.
    across = 1.0
    if aside > 0.02:
        across = float(np.clip((now.tool[2] - (travel - 0.04)) / 0.025, 0.0, 1.0))
    tool = now.tool
    return np.array([tool[0] + across * (point[0] - tool[0]),
                     tool[1] + across * (point[1] - tool[1]), wanted])


def _there(now: Snapshot, point: Floats, height: float, aside: float, above: float) -> bool:
    return aside_of(now.tool, point) < aside and now.tool[2] < height + above


def gripper_position(share: float) -> float:
    """Finger position in m for a gripper command from 0 closed to 1 open."""
    return share * OPENING
