"""Starts a demo as people do, and looks at what it leaves."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_S = 60.0  # far beyond what a wait takes: a loaded machine is no failure


def start(words: Sequence[str], out: Path) -> subprocess.Popen[str]:
    """The running command `vla-ros demo`."""
    environment = {name: value for name, value in os.environ.items() if name != 'ROS_DOMAIN_ID'}
    environment['PYTHONPATH'] = os.pathsep.join([str(ROOT), environment.get('PYTHONPATH', '')])
    return subprocess.Popen(
        [sys.executable, '-u', '-m', 'vla_ros.tools.cli', 'demo', *words, '--out', str(out)],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f'/proc/{pid}/task/{pid}/children').read_text().split()
    return [int(child) for child in found]


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def picture_size(file: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    data = file.read_bytes()
    assert data[:8] == b'\x89PNG\r\n\x1a\n'
    width, height = struct.unpack('>II', data[16:24])
    return width, height
