"""Work with fixed buffers, recorded once as a CUDA graph and replayed; plain calls on a CPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

WARM_UPS = 3  # calls before the recording: kernels are compiled, libraries choose theirs


class Captured:
    """`work` as a graph. It may allocate, but must neither wait nor read from the host."""

    def __init__(self, work: Callable[[], None], device: torch.device,
                 pool: Any = None) -> None:
        self._work, self._graph = work, None
        if device.type != 'cuda':
            return
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), torch.inference_mode():
            for _ in range(WARM_UPS):
                work()
        torch.cuda.current_stream(device).wait_stream(side)
        torch.cuda.synchronize(device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(self._graph, pool=pool):
            work()

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            with torch.inference_mode():
                self._work()

    def milliseconds(self, device: torch.device, times: int = 30) -> float:
        """The median time of a call."""
        took: list[float] = []
        for _ in range(times):
            if device.type == 'cuda':
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self()
                end.record()
                end.synchronize()
                took.append(begin.elapsed_time(end))
            else:
                start = time.perf_counter()
                self()
                took.append(1e3 * (time.perf_counter() - start))
        return statistics.median(took)
