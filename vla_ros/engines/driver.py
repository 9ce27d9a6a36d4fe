"""Which driver the GPU of this machine runs with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_VERSION = Path('/proc/driver/nvidia/version')


def gpu_driver() -> str:
    """The version of the NVIDIA driver, such as 580.95.05; empty where none can be found."""
    try:
        found = re.search(r'\b(\d{3,}(?:\.\d+)+)', _VERSION.read_text())
        if found:
            return found.group(1)
    except OSError:
        pass
    try:
        done = subprocess.run(['nvidia-smi', '--query-gpu=driver_version', '--format=csv,noheader'],
                              capture_output=True, text=True, timeout=20.0, check=False)
    except (OSError, subprocess.SubprocessError):
        return ''
    lines = done.stdout.split() if done.returncode == 0 else []
    return lines[0] if lines else ''
