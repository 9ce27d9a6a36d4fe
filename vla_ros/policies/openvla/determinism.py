"""Equal bits for equal inputs, also after a restart."""

from __future__ import annotations

import os

import torch

WORKSPACE = ('CUBLAS_WORKSPACE_CONFIG', ':4096:8')


def be_deterministic() -> None:
    """Ask torch and the libraries below it for one order of every sum.

    For the whole process. Own kernels always sum in one order. Raises ValueError with one line
    where a library has been started that would have had to be told before.
    """
    name, value = WORKSPACE
    if torch.cuda.is_initialized() and os.environ.get(name) not in (':4096:8', ':16:8'):
        raise ValueError(f'deterministic: true: CUDA is in use already; set {name}={value} before '
                         'the start')
    os.environ.setdefault(name, value)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
