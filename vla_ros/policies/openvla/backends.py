"""The backends of the family by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from vla_ros.policies.openvla.actionflow import ActionFlow
from vla_ros.policies.openvla.backend import Backend
from vla_ros.policies.openvla.baseline import Baseline
from vla_ros.policies.openvla.graph import GraphBackend
from vla_ros.policies.openvla.jacobi import Jacobi
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.precision import Precision, precision
from vla_ros.policies.openvla.static_backend import BUCKETS, StaticOptions, check_buckets

STATIC: Mapping[str, Callable[[OpenVla, StaticOptions], Backend]] = MappingProxyType(
    {'graph': GraphBackend, 'actionflow': ActionFlow, 'jacobi': Jacobi})
BACKENDS = ('baseline', *STATIC)


@dataclass(frozen=True)
class BackendOptions:
    """What the options of an engine profile may say. `prefill_precision`: default, bf16 or fp8.

    `image`: height and width of the images that come, if not those of the policy.
    """

    prefill_precision: str = 'default'
    buckets: tuple[int, ...] = BUCKETS
    overlap: bool = False
    image: tuple[int, int] | None = None


def make_backend(name: str, model: OpenVla, precision_name: str,
                 options: BackendOptions = BackendOptions(),  # noqa: B008 (frozen)
                 consume: bool = False) -> Backend:
    """A backend for a model in its own dtype. Raises ValueError with one line.

    `consume`: the model may be used up, so that its weights are never there twice.
    """
    if name not in BACKENDS:
        raise ValueError(f'backend: {name}: the family openvla has {", ".join(BACKENDS)}')
    wanted = checked_precision(precision_name, model, options)
    if name == 'baseline':
        if wanted.quantized:
            raise ValueError(f'precision: {precision_name}: the baseline is plain: it runs in '
                             'fp32, fp16 and bf16')
        return Baseline(model)
    check_gpu(model.device, wanted)
    return STATIC[name](model, StaticOptions(wanted, check_buckets(options.buckets), consume,
                                             options.overlap, options.image))


def check_gpu(device: torch.device, wanted: Precision) -> None:
    """Raises ValueError with one line where a GPU lacks what the kernels need."""
    if device.type != 'cuda':
        return
    try:
        import triton  # noqa: F401
    except ModuleNotFoundError:
        raise ValueError('backend: Python module triton is missing: only the backend baseline '
                         'runs on a GPU without it; pip install triton') from None
    able = torch.cuda.get_device_capability(device)
    if 'fp8' in (wanted.decode, wanted.prefill) and able < (8, 9):
        raise ValueError(f'precision: {wanted.name}: {torch.cuda.get_device_name(device)} has no '
                         'fp8 (compute capability 8.9 or later has); choose int8-weight or bf16')


def checked_precision(name: str, model: OpenVla, options: BackendOptions) -> Precision:
    """The precision, whose activations are the model's dtype."""
    dtype = str(model.dtype).removeprefix('torch.')
    found = precision(name, dtype, options.prefill_precision)
    if found.activations != dtype:
        raise ValueError(f'precision: {name}: the weights were loaded as {dtype}')
    return found
