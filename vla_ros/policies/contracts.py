"""The contract that a policy profile describes."""

from __future__ import annotations

from collections.abc import Iterable

from vla_ros.engines.contract import PolicyContract
from vla_ros.profiles.policy import PolicyProfile


def contract_of(policy: PolicyProfile, backends: Iterable[str],
                prefix_support: bool = False) -> PolicyContract:
    """The contract of a family that takes everything else from the profile."""
    return PolicyContract(
        family=policy.family, horizon=policy.horizon, period_ns=policy.period_ns,
        start=policy.start, cameras=policy.cameras,
        state_names=policy.state_names, action=policy.action, backends=tuple(backends),
        prefix_support=prefix_support, pad_short_chunks=policy.pad_short_chunks)
