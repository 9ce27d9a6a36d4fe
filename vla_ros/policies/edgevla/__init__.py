"""Policy family `edgevla`: a small vision-language-action transformer with a streaming cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vla_ros.engines.contract import Engine
    from vla_ros.profiles.engine import EngineProfile
    from vla_ros.profiles.policy import PolicyProfile

__all__ = ['make']


def make(policy: PolicyProfile, engine: EngineProfile) -> Engine:
    """The factory of the family. Raises ValueError with one line."""
    from vla_ros.policies.edgevla.engine import EdgeVlaEngine  # the trainer needs no profiles
    return EdgeVlaEngine(policy, engine)
