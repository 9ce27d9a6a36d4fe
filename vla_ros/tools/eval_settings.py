"""What is evaluated, and how; checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.baselines import BASELINES, METHODS
from vla_ros.sim.closed_loop import FRAME_NS, STATE_NS, LoopSettings
from vla_ros.sim.trial import HELD_OUT, TRIALS

PER_SEED = 100_000  # trials of one evaluation seed
ALL = 'all'
CAMERA_RATE = NS_PER_S / FRAME_NS  # Hz
SLOWEST_RATE = 2.0                 # Hz
CLOSE_ENOUGH = 1e-3                # of a period: a third has no end in decimals


@dataclass(frozen=True)
class EvalSettings:
    """One evaluation: `episodes` of each of `tasks`.

    `method`: a merge policy or a baseline, '' for that of the policy profile. `latency_s` comes on
    top of every inference, which takes `delay_s` where time is simulated (`fast`). `camera_rate`:
    images per second of each camera, Hz. `expert`: the scripted expert in place of the policy.
    """

    tasks: tuple[str, ...]
    episodes: int
    seed: int = 0
    fast: bool = False
    robot: str = 'sim_arm'
    policy: str = 'edgevla_sim'
    model: str = ''
    engine: str = 'cpu'
    method: str = ''
    latency_s: float = 0.0
    delay_s: float = 0.04
    camera_rate: float = CAMERA_RATE
    expert: bool = False

    def __post_init__(self) -> None:
        for task in self.tasks:
            _require(task in TRIALS, 'task', task, f'{", ".join(TRIALS)}, {ALL}')
        _require(1 <= self.episodes <= PER_SEED, 'episodes', self.episodes, f'1 to {PER_SEED}')
        _require(0 <= self.seed < 10_000, 'seed', self.seed, '0 to 9999')
        _require(not self.method or self.method in METHODS, 'merge', self.method,
                 ', '.join(METHODS))
        for name, value in (('latency', self.latency_s), ('delay', self.delay_s)):
            _require(math.isfinite(value) and 0.0 <= value <= 10.0, name, value, '0 to 10 s')
        _require(self._frame_ns > 0, 'camera-rate', self.camera_rate,
                 f'{SLOWEST_RATE:g} to {NS_PER_S / STATE_NS:g} Hz with a period that is a multiple '
                 f'of {STATE_NS / 1e6:g} ms: 100, 50, 25, 20, 10, …')
        if self.fast:
            return
        _require(self.method not in BASELINES, 'merge', self.method,
                 'the merge policies; baselines only with --fast')
        _require(self.latency_s == 0.0, 'latency', self.latency_s, '0, or any with --fast')
        _require(self._frame_ns == FRAME_NS, 'camera-rate', self.camera_rate,
                 f'{CAMERA_RATE:g}, or others with --fast')
        _require(not self.expert, 'expert', True, 'only with --fast')

    def seeds(self) -> range:
        """Seeds of the trials of each task; none of them is a training seed."""
        first = HELD_OUT + self.seed * PER_SEED
        return range(first, first + self.episodes)

    def loop(self, tail_s: float = 0.0) -> LoopSettings:
        """For trials in process."""
        return LoopSettings(delay=round(self.delay_s * NS_PER_S),
                            injected_ns=round(self.latency_s * NS_PER_S), method=self.method,
                            tail_s=tail_s, images=not self.expert, frame_ns=self._frame_ns)

    def json(self) -> dict[str, Any]:
        """For the report."""
        values: dict[str, Any] = {
            'mode': 'fast' if self.fast else 'graph', 'episodes': self.episodes,
            'seed': self.seed, 'first_trial_seed': self.seeds()[0], 'robot': self.robot,
            'policy': 'the scripted expert' if self.expert else self.policy,
            'model': self.model, 'engine': self.engine, 'merge': self.method or 'of the policy'}
        if self.fast:
            values |= {'inference_delay_s': self.delay_s, 'injected_latency_s': self.latency_s,
                       'camera_rate_hz': NS_PER_S / self._frame_ns}
        return values

    @property
    def _frame_ns(self) -> int:
        """Between two images, 0 where the simulator has no such rate."""
        if not SLOWEST_RATE <= self.camera_rate <= NS_PER_S / STATE_NS:  # nan is not, either
            return 0
        steps = NS_PER_S / self.camera_rate / STATE_NS
        return round(steps) * STATE_NS if abs(steps / round(steps) - 1.0) < CLOSE_ENOUGH else 0


def tasks_of(words: Sequence[str]) -> tuple[str, ...]:
    """The tasks that `--task` names; `all` stands for each of them."""
    named = [name for word in words for name in (TRIALS if word == ALL else (word,))]
    return tuple(dict.fromkeys(named))


def _require(good: bool, name: str, value: object, allowed: str) -> None:
    if not good:
        raise ValueError(f'eval: {name}: {value}: allowed is {allowed}')
