"""Chooses the Fast DDS profile with which whole images pass from one process to the next.

With the defaults of Fast DDS most best-effort images of 640x480 are lost in the writer's process,
because they do not fit into its shared-memory segment of half a megabyte.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from vla_ros.profiles.locate import config_folder

PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
# They read the second variable only; later ones complain of it.
OLD_DISTRIBUTIONS = ('humble', 'iron', 'jazzy')
SHARED_MEMORY = Path('/dev/shm')
PROFILE = 'fastdds.xml'
SMALL_PROFILE = 'fastdds_small.xml'
ENOUGH_SHARED_MEMORY = 1 << 29
"""Bytes from which a dozen processes can take the 34 MB of the large profile."""


def transport_additions(environment: Mapping[str, str],
                        shared_memory: int | None = None) -> dict[str, str]:
    """What to add to `environment` so that ROS processes started with it lose no images.

    `shared_memory`: free bytes, default those of this machine. Empty where the user has set a
    profile of their own or another middleware than Fast DDS. Raises ValueError with one line where
    the profile is missing.
    """
    if any(environment.get(variable) for variable in PROFILE_VARIABLES):
        return {}
    middleware = environment.get('RMW_IMPLEMENTATION', '')
    if middleware and not middleware.startswith('rmw_fastrtps'):
        return {}
    free = free_shared_memory() if shared_memory is None else shared_memory
    profile = shipped_profile(PROFILE if free >= ENOUGH_SHARED_MEMORY else SMALL_PROFILE)
    old = environment.get('ROS_DISTRO') in OLD_DISTRIBUTIONS
    return {PROFILE_VARIABLES[old]: str(profile)}


def shipped_profile(name: str = PROFILE) -> Path:
    """A Fast DDS profile of this installation. Raises ValueError with one line."""
    path = config_folder() / name
    if not path.is_file():
        raise ValueError(f'{path}: not found: install vla_ros again, or set '
                         f'{PROFILE_VARIABLES[0]} to a profile of your own')
    return path


def remove_stale_segments(folder: Path = SHARED_MEMORY) -> int:
    """Give back the shared memory of processes that were killed; how many segments it was.

    Nothing else does: Fast DDS removes a segment only when its owner ends well. The owner holds a
    lock on the file beside it for as long as it lives, so that files in use stay.
    """
    removed = 0
    # A new segment is not locked from its first instant.
    oldest = time.time() - 60.0
    for lock in folder.glob('fastdds_*_el'):
        if '_port' in lock.name:
            continue
        with suppress(OSError), lock.open() as file:
            if os.fstat(file.fileno()).st_mtime > oldest:
                continue
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.with_name(lock.name[:-len('_el')]).unlink(missing_ok=True)
            lock.unlink()
            removed += 1
    return removed


def free_shared_memory(folder: Path = SHARED_MEMORY) -> int:
    """Free bytes of the file system in which Fast DDS shares memory; 0 where there is none."""
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize
