"""How others turn chunks into motion, for comparison only: nothing here drives a robot.

`replace_at_arrival`: a chunk is played from its first step on when it arrives, whatever was being
played. `pop_by_count`: LeRobot's asynchronous client; steps are matched by how many actions have
been executed, not by time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from vla_ros.core.action_spec import ActionSpec
from vla_ros.core.chunk_buffer import ChunkBuffer, Merged
from vla_ros.core.executor_state import Trigger
from vla_ros.core.inference_loop import InferenceLoop
from vla_ros.core.merging import Merge
from vla_ros.core.types import NS_PER_S, ActionChunk, Floats, Plan, Start
from vla_ros.core.watchdog import Layer, LayerLimit
from vla_ros.profiles.binding import Binding
from vla_ros.profiles.loops import inference_loop
from vla_ros.profiles.policy import PolicyProfile
from vla_ros.profiles.robot import RobotProfile

POP_BY_COUNT, REPLACE_AT_ARRIVAL = 'pop_by_count', 'replace_at_arrival'
BASELINES = (POP_BY_COUNT, REPLACE_AT_ARRIVAL)
METHODS = (*(merge.value for merge in Merge), *BASELINES)
NEW_SHARE = 0.7       # of the new action where both queues have one: LeRobot's weighted_average
THRESHOLD = 0.5       # share of the chunk in the queue below which LeRobot asks for the next one
_REMEMBERED = 256     # pops; an observation is never that old
_AGELESS_NS = 600 * NS_PER_S


def arranged(policy: PolicyProfile, robot: RobotProfile,
             method: str) -> tuple[PolicyProfile, RobotProfile]:
    """The profiles for a method of METHODS, '' being the policy's own. Raises ValueError.

    Baselines start chunks at their arrival, so nothing is slowed down for them, and are not held
    for the age of a plan, which they do not know.
    """
    if not method:
        return policy, robot
    if method not in METHODS:
        raise ValueError(f'merge: {method!r}: allowed are {", ".join(METHODS)}')
    if method not in BASELINES:
        return replace(policy, merge=Merge(method)), robot
    policy = replace(policy, start=Start.ARRIVAL, merge=Merge.LATEST_ONLY)
    if method == POP_BY_COUNT:
        policy = replace(policy, trigger=Trigger.THRESHOLD, threshold=THRESHOLD)
    deadline = robot.watchdog[Layer.INFERENCE_DEADLINE]
    ageless = LayerLimit(_AGELESS_NS, deadline.reaction)
    return policy, replace(robot, watchdog={**robot.watchdog, Layer.INFERENCE_DEADLINE: ageless})


def method_loop(robot: RobotProfile, policy: PolicyProfile, binding: Binding,
                method: str) -> InferenceLoop:
    """The inference loop of a method; the profiles are those that `arranged` gave."""
    loop = inference_loop(robot, policy, binding)
    if method == POP_BY_COUNT:
        loop.buffer = CountQueue(binding.planned, policy.period_ns)
    return loop


class CountQueue(ChunkBuffer):
    """A queue of actions from which one is popped every period, and that knows no other time.

    As in LeRobot (async_inference, robot_client.py): an observation bears the number of the action
    that was executed last, the steps of its chunk are numbered on from that one; numbers that have
    been executed by the arrival are skipped, those in the queue are averaged, the rest is appended.
    An empty queue pops nothing and its numbers stand still, whatever time passes.

    The plan it gives is what will be popped if nothing else comes. Between two pops motion goes on
    to the next action, as everywhere here, instead of jumping to it.
    """

    def __init__(self, spec: ActionSpec, period_ns: int, share: float = NEW_SHARE) -> None:
        super().__init__(spec, Merge.LATEST_ONLY)
        self._period_ns = period_ns
        self._share = share
        self.clear()

    def clear(self) -> None:
        super().clear()
        self._queue: dict[int, Floats] = {}
        self._popped: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)  # when, which number
        self._current: Floats | None = None
        self._next_ns: int | None = None  # of the next pop

    def remaining_ns(self, now_ns: int) -> int:
        self._pop(now_ns)
        return len(self._queue) * self._period_ns

    def merge(self, chunk: ActionChunk, now_ns: int, fade: bool = False) -> Merged:
        """Match the chunk by number; `fade` and the chunk's start mean nothing here."""
        self._pop(now_ns)
        executed = self._popped[-1][1] if self._popped else -1
        begin = max(self._number_at(chunk.stamp_ns), 0)
        queue = {}
        for number, action in enumerate(chunk.actions, begin):
            if number > executed:
                old = self._queue.get(number, action)
                queue[number] = old + self._share * (action - old)
        self._queue = queue
        if not queue:
            return Merged(None, 'all steps are past')
        if self._next_ns is None:  # the first action is popped as soon as it is there
            self._next_ns = now_ns
            self._pop(now_ns)
        self.plan = self._as_plan(chunk.stamp_ns, now_ns)
        return Merged(self.plan)

    def _pop(self, now_ns: int) -> None:
        while self._next_ns is not None and self._next_ns <= now_ns:
            self._current = None
            if self._queue:
                number = min(self._queue)
                self._current = self._queue.pop(number)
                self._popped.append((self._next_ns, number))
            self._next_ns += self._period_ns

    def _number_at(self, time_ns: int) -> int:
        """The number of the action that had been executed last at a time; -1 for none."""
        return next((number for when, number in reversed(self._popped) if when <= time_ns), -1)

    def _as_plan(self, stamp_ns: int, now_ns: int) -> Plan:
        assert self._next_ns is not None
        values = [self._queue[number] for number in sorted(self._queue)]
        start_ns = self._next_ns
        if self._current is not None:  # popped, and still being executed
            values.insert(0, self._current)
            start_ns -= self._period_ns
        return Plan(stamp_ns, start_ns, self._period_ns, np.array(values))
