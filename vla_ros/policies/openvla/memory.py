"""Whether a policy fits, asked before gigabytes are read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from vla_ros.policies.openvla.backends import BackendOptions
from vla_ros.policies.openvla.checkpoint import needed
from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.precision import precision
from vla_ros.policies.openvla.quantize import packed_bytes
from vla_ros.profiles.engine import EngineProfile

WORKING = 1_200_000_000  # bytes: CUDA context, libraries, buffers of a pass
GB = 1e9


def check_memory(folder: Path, config: OpenVlaConfig, profile: EngineProfile, backend: str,
                 options: BackendOptions) -> str:
    """One line on what is needed and available. Raises ValueError with one line if too little."""
    on_gpu = profile.device != 'cpu'
    kept, host = needed_bytes(folder, config, profile.precision, backend, options, on_gpu)
    available = available_bytes(profile.device)
    line = (f'memory: {kept / GB:.2f} GB needed on {profile.device}, {available / GB:.2f} GB '
            f'available')
    if kept > available:
        raise ValueError(f'{folder}: {line}; end what else runs there, or choose a precision with '
                         'fewer bits')
    free = available_bytes('cpu')
    if on_gpu and host > free:
        raise ValueError(f'{folder}: memory: {host / GB:.2f} GB needed on the host while it is '
                         f'loaded, {free / GB:.2f} GB available; end what else runs there')
    return line


def needed_bytes(folder: Path, config: OpenVlaConfig, name: str, backend: str,
                 options: BackendOptions, on_gpu: bool) -> tuple[int, int]:
    """Bytes on the device at the most, and on the host while loading."""
    wanted = precision(name, 'bfloat16' if on_gpu else 'float32', options.prefill_precision)
    dtype = getattr(torch, wanted.activations)
    tokens = config.actions.tokens
    plain = needed(folder, dtype, max(options.buckets))
    if config.parallel:
        from vla_ros.policies.openvla.oft import L1Head
        with torch.device('meta'):
            head = L1Head(config)
        plain = replace(plain, weights=plain.weights + dtype.itemsize * sum(
            value.numel() for value in head.parameters()))
    slots = tokens if backend == 'actionflow' else 1
    extra = 0
    llama = config.llama
    kv = 2 * llama.kv_heads * llama.head
    shapes = ((llama.width + kv, llama.width), (llama.width, llama.width),
              (2 * llama.hidden, llama.width), (llama.width, llama.hidden))
    if wanted.quantized:
        formats = {wanted.decode, wanted.prefill} - {'plain'}
        extra = llama.layers * sum(packed_bytes(n, k, form, dtype.itemsize)
                                   for n, k in shapes for form in formats)
        if 'plain' not in (wanted.decode, wanted.prefill):  # plain ones go layer by layer
            extra -= (llama.layers - 1) * sum(n * k for n, k in shapes) * dtype.itemsize
    if not on_gpu and backend != 'baseline':  # fused, and unpacked once
        extra += llama.layers * sum(n * k for n, k in shapes) * dtype.itemsize
    total = plain.weights + slots * plain.cache + extra + (WORKING if on_gpu else 0)
    return total, plain.host


def available_bytes(device: str) -> int:
    """Free memory of a device, or what the host can give without swapping."""
    if device != 'cpu':
        free, _ = torch.cuda.mem_get_info(torch.device(device))
        return free
    for line in Path('/proc/meminfo').read_text().splitlines():
        if line.startswith('MemAvailable:'):
            return int(line.split()[1]) * 1024
    raise ValueError('/proc/meminfo: MemAvailable is missing; the memory cannot be checked')
