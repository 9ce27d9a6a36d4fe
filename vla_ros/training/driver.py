"""A trained policy that drives the arm while episodes are recorded (DAgger)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import Floats, Observation
from vla_ros.engines.registry import make_engine
from vla_ros.profiles.engine import load_engine
from vla_ros.profiles.policy import load_policy
from vla_ros.sim.arm import STATE_NAMES
from vla_ros.training.episodes import Driver

POLICY = 'edgevla_sim'


def policy_driver(checkpoint: Path) -> Callable[[], Driver]:
    """Gives a driver with an empty cache for each episode."""
    engine = make_engine(replace(load_policy(POLICY), checkpoint=checkpoint), load_engine('cpu'))
    engine.load()

    def begin() -> Driver:
        engine.reset()
        return drive

    def drive(images: dict[str, NDArray[np.uint8]], state: Floats, sentence: str,
              time_ns: int) -> Floats:
        seen = Observation(stamp_ns=time_ns, oldest_stamp_ns=time_ns, received_ns=time_ns,
                           images=images, state=state, state_names=STATE_NAMES,
                           instruction=sentence)
        return np.asarray(engine.infer(engine.preprocess(seen)), dtype=np.float64)

    return begin
