"""Policy family `openvla`: a vision-language model whose last words are actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vla_ros.engines.contract import Engine
    from vla_ros.profiles.engine import EngineProfile
    from vla_ros.profiles.policy import PolicyProfile

__all__ = ['make']


def make(policy: PolicyProfile, engine: EngineProfile) -> Engine:
    """The factory of the family. Raises ValueError with one line."""
    from vla_ros.policies.openvla.engine import OpenVlaEngine  # training needs no profiles
    return OpenVlaEngine(policy, engine)
