"""Chooses the Fast DDS profile with which whole images pass from one process to the next.

With the defaults of Fast DDS most best-effort images of 640x480 are lost in the writer's process,
because they do not fit into its shared-memory segment of half a megabyte.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from vla_ros.profiles.locate import config_folder

PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
PROFILE = 'fastdds.xml'
SMALL_PROFILE = 'fastdds_small.xml'
ENOUGH_SHARED_MEMORY = 1 << 29
"""Bytes from which a dozen processes can take the 34 MB of the large profile."""


def transport_additions(environment: Mapping[str, str],
                        shared_memory: int | None = None) -> dict[str, str]:
    """What to add to `environment` so that ROS processes started with it lose no images.

    `shared_memory`: free bytes, default those of this machine. Empty where the user has set a
    profile of their own or another middleware than Fast DDS. Humble reads the second variable,
    later distributions the first. Raises ValueError with one line where the profile is missing.
    """
    if any(environment.get(variable) for variable in PROFILE_VARIABLES):
        return {}
    middleware = environment.get('RMW_IMPLEMENTATION', '')
    if middleware and not middleware.startswith('rmw_fastrtps'):
        return {}
    free = free_shared_memory() if shared_memory is None else shared_memory
    profile = shipped_profile(PROFILE if free >= ENOUGH_SHARED_MEMORY else SMALL_PROFILE)
    return dict.fromkeys(PROFILE_VARIABLES, str(profile))


def shipped_profile(name: str = PROFILE) -> Path:
    """A Fast DDS profile of this installation. Raises ValueError with one line."""
    path = config_folder() / name
    if not path.is_file():
        raise ValueError(f'{path}: not found: install vla_ros again, or set '
                         f'{PROFILE_VARIABLES[0]} to a profile of your own')
    return path


def free_shared_memory(path: str = '/dev/shm') -> int:
    """Free bytes of the file system in which Fast DDS shares memory; 0 where there is none."""
    try:
        status = os.statvfs(path)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
