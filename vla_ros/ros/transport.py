"""Chooses the Fast DDS profile with which whole images pass from one process to the next.

With the defaults of Fast DDS most best-effort images of 640x480 are lost in the writer's process,
because they do not fit into its shared-memory segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

PROFILE_VARIABLES = ('FASTDDS_DEFAULT_PROFILES_FILE', 'FASTRTPS_DEFAULT_PROFILES_FILE')
PROFILE_NAME = 'config/fastdds.xml'


def transport_additions(environment: Mapping[str, str],
                        profile: Path | None = None) -> dict[str, str]:
    """What to add to `environment` so that ROS processes started with it lose no images.

    Empty where the user has set a profile of their own or uses another middleware. Humble reads
    the second variable, later distributions the first. `profile`: default the shipped one.
    Raises ValueError with one line where the shipped profile is missing.
    """
    if any(environment.get(variable) for variable in PROFILE_VARIABLES):
        return {}
    middleware = environment.get('RMW_IMPLEMENTATION', '')
    if middleware and not middleware.startswith('rmw_fastrtps'):
        return {}
    return dict.fromkeys(PROFILE_VARIABLES, str(profile or shipped_profile()))


def shipped_profile() -> Path:
    """The profile of this installation: beside the sources or in share/ of the prefix."""
    for parent in Path(__file__).resolve().parents:
        for candidate in (parent / 'share' / 'vla_ros' / PROFILE_NAME, parent / PROFILE_NAME):
            if candidate.is_file():
                return candidate
    raise ValueError(f'{PROFILE_NAME}: not found above {Path(__file__).resolve().parent}; '
                     'install vla_ros again or set FASTDDS_DEFAULT_PROFILES_FILE')
