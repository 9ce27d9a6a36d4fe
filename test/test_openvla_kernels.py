"""The Triton kernels, where triton can be had: the checks of kernel_checks.py, and what needs none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip('torch', reason='the kernels work on its tensors')

TEST = Path(__file__).parent
ON_GPU = torch.cuda.is_available()


def run(*arguments: str, **environment: str) -> str:
    """The output of a Python of its own that ends well."""
    path = os.pathsep.join([str(TEST), str(TEST.parent), os.environ.get('PYTHONPATH', '')])
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=110,
                          check=False, env={**os.environ, 'PYTHONPATH': path, **environment})
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


if ON_GPU:
    from kernel_checks import *  # noqa: F403
else:
    def test_kernels_are_right_in_the_interpreter() -> None:
        pytest.importorskip('triton', reason='there is none for this machine')
        said = run('-m', 'pytest', '-q', '-p', 'no:cacheprovider', str(TEST / 'kernel_checks.py'),
                   TRITON_INTERPRET='1')
        passed = re.search(r'(\d+) passed', said)
        assert passed
        assert int(passed[1]) > 50


def test_a_machine_without_triton_runs_on_its_cpu_all_the_same() -> None:
    code = ('import sys; sys.modules["triton"] = None\n'
            'import numpy as np\n'
            'from openvla_rig import config_of, frames, model_of\n'
            'from vla_ros.policies.openvla.backends import make_backend\n'
            'config = config_of()\n'
            'backend = make_backend("graph", model_of(config), "int4-weight")\n'
            'print(len(backend.step(frames(config, 1)[0])))\n')
    assert run('-c', code).split() == ['7']
