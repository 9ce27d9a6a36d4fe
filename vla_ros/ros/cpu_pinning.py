"""CPU affinity of this process, for engines that shall leave cores to ROS and control."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from vla_ros.profiles.engine import EngineProfile


def pin(engine: EngineProfile, allowed: Iterable[int]) -> None:
    """Confine all threads of this process, those of the middleware included.

    `allowed`: the CPUs that the process had when it started; all of them where the profile names
    none. Raises ValueError with one line.
    """
    wanted, available = sorted(set(engine.affinity)), sorted(set(allowed))
    missing = [cpu for cpu in wanted if cpu not in available]
    if missing:
        raise ValueError(f'{engine.file}: affinity: {wanted}: CPU {missing[0]} is not available; '
                         f'this process may use {", ".join(map(str, available))}; choose another '
                         'engine profile, or copy this one')
    for thread in os.listdir('/proc/self/task'):
        with suppress(ProcessLookupError):  # it ended meanwhile
            os.sched_setaffinity(int(thread), wanted or available)
