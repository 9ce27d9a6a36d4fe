"""A trained policy that drives the arm while episodes are recorded (DAgger)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import Kind
from vla_ros.core.types import Floats, Observation
from vla_ros.engines.registry import make_engine
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import PolicyProfile, load_policy
from vla_ros.sim.arm import STATE_NAMES
from vla_ros.training.episodes import Driver


def policy_driver(checkpoint: Path) -> Callable[[], Driver]:
    """Gives a driver that remembers nothing for each episode. Raises ValueError with one line."""
    policy = load_policy(policy_of(checkpoint), str(checkpoint))
    profile = load_engine('cpu')
    # Of openvla: the one that needs no check of its answers first.
    engine = make_engine(policy, replace(profile, backends=('baseline', *profile.backends)))
    engine.load()

    def begin() -> Driver:
        engine.reset()
        targets = _Targets(policy)

        def drive(images: dict[str, NDArray[np.uint8]], state: Floats, sentence: str,
                  time_ns: int) -> Floats:
            seen = Observation(stamp_ns=time_ns, oldest_stamp_ns=time_ns, received_ns=time_ns,
                               images=images, state=state, state_names=STATE_NAMES,
                               instruction=sentence)
            chunk = np.asarray(engine.infer(engine.preprocess(seen)), dtype=np.float64)
            return targets.of(chunk, state)

        return drive

    return begin


def policy_of(checkpoint: Path) -> str:
    """The shipped policy whose profile fits a checkpoint. Raises ValueError with one line."""
    if not checkpoint.is_dir():
        raise ValueError(f'{checkpoint}: no such checkpoint; give the folder of one')
    file = checkpoint / 'config.json'
    try:
        told = json.loads(file.read_text())
        family = told.get('model_type', 'edgevla')
        return {'edgevla': 'edgevla_sim', 'openvla': 'openvla_small'}[family]
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise ValueError(f'{file}: not the config of a policy that could drive the simulated arm '
                         f'({" ".join(str(error).split())}); give a checkpoint of edgevla or '
                         'openvla') from None


class _Targets:
    """Makes targets [H, 7] of chunks; deltas go from the last target to the new one in a step.

    That is how the control loop plays them: its crossfade begins at the old plan.
    """

    def __init__(self, policy: PolicyProfile) -> None:
        self._deltas = policy.action.of_kind(Kind.DELTA)
        self._last: Floats | None = None

    def of(self, chunk: Floats, state: Floats) -> Floats:
        if not self._deltas.size:
            return chunk
        until = chunk.copy()
        until[:, self._deltas] = state[self._deltas] + np.cumsum(chunk[:, self._deltas], axis=0)
        begin = until[0].copy()
        begin[self._deltas] = (state if self._last is None else self._last)[self._deltas]
        self._last = until[0]
        return np.vstack([begin, until])
