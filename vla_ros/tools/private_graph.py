"""The environment of a graph that keeps to itself: no robot on the network hears of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import SystemRandom

from vla_ros.ros.transport import transport_additions

DOMAINS = range(215, 233)  # seldom chosen by hand; their ports are nobody's on Linux


def private_additions(environment: Mapping[str, str], logs: Path) -> dict[str, str]:
    """What to add to an environment, so that a graph is its own and its traces lie in `logs`."""
    additions = {
        'ROS_DOMAIN_ID': str(SystemRandom().choice(DOMAINS)),
        'ROS_LOG_DIR': str(logs.resolve() / 'ros')}
    if environment.get('ROS_DISTRO') == 'humble':
        additions['ROS_LOCALHOST_ONLY'] = '1'
    else:
        additions['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    # Never on the domain that is set: a robot may be listening there.
    return {**transport_additions(environment), **additions}
