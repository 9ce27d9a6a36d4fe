"""Records part after part beside a training; every other one is driven by the newest weights."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from vla_ros.training.dataset import DESCRIPTION, Dataset, Shape, generate, load

READY = 'ready'  # an empty file beside a checkpoint that may be used


def record_rounds(folder: Path, checkpoints: Path, shape: Shape, seed: int, workers: int,
                  seconds: float, most: int) -> None:
    """Record parts `part_<n>` of `shape` until `seconds` are over or there are `most` of them."""
    # An orderly end, in which the worker processes end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begin = time.monotonic()
    for index in range(most):
        if time.monotonic() - begin > seconds:
            return
        driver = _newest(checkpoints) if index % 2 else None
        generate(folder / f'part_{index}', shape, seed + index * shape.episodes, workers, driver)


def _newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is ready, with its ONNX graph; None where there is none."""
    ready = sorted(checkpoints.glob(f'*/{READY}'), key=lambda file: file.stat().st_mtime)
    if not ready:
        return None
    folder = ready[-1].parent
    if not (folder / 'model.onnx').exists():
        from vla_ros.policies.edgevla.export import export
        export(folder, check=False)
    return folder


class Parts:
    """The finished parts of a folder, each given once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given: set[Path] = set()

    def __call__(self) -> list[Dataset]:
        """Those that have been finished since the last call."""
        new = sorted(set(self._folder.glob(f'part_*/{DESCRIPTION}')) - self._given)
        self._given.update(new)
        return [load(file.parent) for file in new]
