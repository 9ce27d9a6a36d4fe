"""What a device gives at most, measured: copies, and matrix products of random numbers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vla_ros.tools.engine_floor import Ceilings

if TYPE_CHECKING:
    from torch import Tensor

    from vla_ros.policies.openvla.config import OpenVlaConfig

WARM_UPS, REPEATS = 3, 20


@dataclass(frozen=True)
class Size:
    """How much is copied (bytes) and multiplied (side of the square); layers of weights."""

    copy: int
    side: int
    layers: int


ON_GPU, ON_CPU = Size(4 << 30, 8192, 4), Size(32 << 20, 512, 1)


def measure_ceilings(config: OpenVlaConfig, text: int, device: str, plain: str
                     ) -> tuple[Ceilings, dict[str, Any]]:
    """The ceilings and what is told of them.

    `plain`: the precision of activations, bf16, fp16 or fp32. The linear layers of the language
    model are also timed with the rows of a prompt of `text` ids: what a prefill can reach.
    """
    import torch
    size = ON_GPU if device.startswith('cuda') else ON_CPU
    dtype = {'bf16': torch.bfloat16, 'fp16': torch.float16, 'fp32': torch.float32}[plain]
    bandwidth = _copy(device, size.copy)
    square = 2.0 * size.side ** 3 / _square(device, dtype, size.side)
    rows = config.prefix_tokens(text)
    prefill = _prefill(config, rows, device, dtype, size.layers)
    told: dict[str, Any] = {
        'copy_tb_s': round(bandwidth / 1e12, 4), 'copy_bytes': size.copy, 'precision': plain,
        'matmul_tflops': round(square / 1e12, 4), 'matmul_side': size.side,
        'matmul_prefill_tflops': round(prefill / 1e12, 4), 'matmul_prefill_rows': rows}
    rates = {plain: square}
    if device.startswith('cuda'):
        try:
            rates['fp8'] = 2.0 * size.side ** 3 / _square_fp8(device, size.side)
            told['matmul_fp8_tflops'] = round(rates['fp8'] / 1e12, 1)
        except (RuntimeError, AttributeError, ValueError) as error:  # older devices have none
            told['matmul_fp8_tflops'] = None
            told['matmul_fp8_error'] = ' '.join(str(error).split())[:200]
        torch.cuda.empty_cache()
    return Ceilings(bandwidth, rates, plain), told


def _copy(device: str, count: int) -> float:
    """Bytes read and written in a second by a copy on the device."""
    import torch
    source = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2.0 * count / _seconds(lambda: target.copy_(source), device)


def _square(device: str, dtype: Any, side: int) -> float:
    import torch
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(side, side, device=device, dtype=dtype)
    return _seconds(lambda: torch.mm(a, b, out=out), device)


def _square_fp8(device: str, side: int) -> float:
    import torch
    kind = torch.float8_e4m3fn
    a, b = (torch.randn(side, side, device=device).to(kind) for _ in range(2))
    one = torch.ones((), device=device)
    return _seconds(lambda: torch._scaled_mm(a, b.t(), one, one, out_dtype=torch.bfloat16,
                                             use_fast_accum=True), device)


def _prefill(config: OpenVlaConfig, rows: int, device: str, dtype: Any, layers: int) -> float:
    """FLOP/s of the linear layers of the language model, with the rows of a prompt.

    Several layers of weights in turn, so that none comes from the cache.
    """
    import torch
    llama = config.llama
    kv = llama.kv_heads * llama.head
    shapes = ((llama.width, llama.width + 2 * kv), (llama.width, llama.width),
              (llama.width, 2 * llama.hidden), (llama.hidden, llama.width))
    inputs = {k: torch.randn(rows, k, device=device, dtype=dtype) for k, _ in shapes}
    weights: list[Tensor] = [torch.randn(n, k, device=device, dtype=dtype)
                             for _ in range(layers) for k, n in shapes]

    def run() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    flops = sum(2.0 * rows * weight.numel() for weight in weights)
    return flops / _seconds(run, device)


def _seconds(run: Callable[[], Any], device: str) -> float:
    """The median time of a run, on the device's own clock where it has one."""
    import torch
    for _ in range(WARM_UPS):
        run()
    if not device.startswith('cuda'):
        times = []
        for _ in range(REPEATS):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)
    events: list[Any] = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    return float(statistics.median(
        a.elapsed_time(b) for a, b in zip(events, events[1:], strict=False))) / 1e3
