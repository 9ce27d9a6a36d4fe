"""What is evaluated, and how; checked before anything starts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vla_ros.core.types import NS_PER_S
from vla_ros.sim.baselines import BASELINES, METHODS
from vla_ros.sim.closed_loop import LoopSettings
from vla_ros.sim.trial import HELD_OUT, TRIALS

PER_SEED = 100_000  # trials of one evaluation seed
ALL = 'all'


@dataclass(frozen=True)
class EvalSettings:
    """One evaluation: `episodes` of each of `tasks`.

    `method`: a merge policy or a baseline, '' for that of the policy profile. `latency_s` comes on
    top of every inference, which takes `delay_s` where time is simulated (`fast`). `expert`: the
    scripted expert in place of the policy.
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
        if self.fast:
            return
        _require(self.method not in BASELINES, 'merge', self.method,
                 'the merge policies; baselines only with --fast')
        _require(self.latency_s == 0.0, 'latency', self.latency_s, '0, or any with --fast')
        _require(not self.expert, 'expert', True, 'only with --fast')

    def seeds(self) -> range:
        """Seeds of the trials of each task; none of them is a training seed."""
        first = HELD_OUT + self.seed * PER_SEED
        return range(first, first + self.episodes)

    def loop(self, tail_s: float = 0.0) -> LoopSettings:
        """For trials in process."""
        return LoopSettings(delay=round(self.delay_s * NS_PER_S),
                            injected_ns=round(self.latency_s * NS_PER_S), method=self.method,
                            tail_s=tail_s, images=not self.expert)

    def json(self) -> dict[str, Any]:
        """For the report."""
        values: dict[str, Any] = {
            'mode': 'fast' if self.fast else 'graph', 'episodes': self.episodes,
            'seed': self.seed, 'first_trial_seed': self.seeds()[0], 'robot': self.robot,
            'policy': 'the scripted expert' if self.expert else self.policy,
            'model': self.model, 'engine': self.engine, 'merge': self.method or 'of the policy'}
        if self.fast:
            values |= {'inference_delay_s': self.delay_s, 'injected_latency_s': self.latency_s}
        return values


def tasks_of(words: Sequence[str]) -> tuple[str, ...]:
    """The tasks that `--task` names; `all` stands for each of them."""
    named = [name for word in words for name in (TRIALS if word == ALL else (word,))]
    return tuple(dict.fromkeys(named))


def _require(good: bool, name: str, value: object, allowed: str) -> None:
    if not good:
        raise ValueError(f'eval: {name}: {value}: allowed is {allowed}')
