"""Finds policy families by name: those of this package and those that other packages add.

A package adds a family with an entry point in the group `vla_ros.policies`: its name is the
family, its value a function `make(policy: PolicyProfile, engine: EngineProfile) -> Engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from vla_ros.engines.contract import Engine
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile

GROUP = 'vla_ros.policies'
# Also there where the package runs from its sources and has no entry points.
BUILT_IN = {'edgevla': 'vla_ros.policies.edgevla:make', 'knn': 'vla_ros.policies.knn:make',
            'openvla': 'vla_ros.policies.openvla:make',
            'scripted': 'vla_ros.policies.scripted:make'}


def families() -> Mapping[str, EntryPoint]:
    """The entry point of every family, by name. Raises ValueError where two claim one name."""
    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for point in sorted(entry_points(group=GROUP)):
        known = found.setdefault(point.name, point)
        if known.value != point.value:
            raise ValueError(f'policy family {point.name!r}: claimed by {known.value} and by '
                             f'{point.value}; uninstall one of the two packages')
    return found


def make_engine(policy: PolicyProfile, engine: EngineProfile) -> Engine:
    """The engine for a policy, not loaded yet. Raises ValueError with one line."""
    found = families()
    point = found.get(policy.family)
    if point is None:
        near = get_close_matches(policy.family, found, 1)
        hint = f'did you mean {near[0]!r}?' if near else (
            f'a package adds a family by an entry point in {GROUP}')
        raise ValueError(f'{policy.file}: family: {policy.family!r}: allowed are '
                         f'{", ".join(sorted(found))}; {hint}')
    made = _factory(point)(policy, engine)
    if not isinstance(made, Engine):
        raise ValueError(f'policy family {point.name!r}: {point.value} made a '
                         f'{type(made).__name__}; it must make a vla_ros.engines.contract.Engine')
    engine.backend_for(made.contract.backends)
    return made


def _factory(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ModuleNotFoundError as error:
        raise ValueError(f'policy family {point.name!r}: Python module {error.name!r} is missing; '
                         f'install it, or the package of {point.value} again') from error
    except Exception as error:
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f'policy family {point.name!r}: {point.value} cannot be imported '
                         f'({reason}); install its package again') from error
