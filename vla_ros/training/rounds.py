"""Records part after part beside a training; policies drive some of them."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from vla_ros.training.dataset import DESCRIPTION, Dataset, Shape, generate, load

READY = 'ready'  # an empty file beside a checkpoint that may be used
OWN_SHARE = 0.4  # of the episodes of a part, where the policy in training, a slow one, drives too


@dataclass(frozen=True)
class Rounds:
    """What is recorded: at most `parts` parts of `shape`.

    Every other part is driven by the newest of `checkpoints`, the others are disturbed at random.
    With a `driver` it drives every other part instead, and the newest of `checkpoints` drives
    every fourth of them all, which is smaller.
    """

    folder: Path
    checkpoints: Path
    shape: Shape
    seed: int
    workers: int
    parts: int
    driver: Path | None = None


def record_rounds(rounds: Rounds) -> None:
    """Record parts `part_<n>`."""
    # An orderly end, in which the worker processes end too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for index in range(rounds.parts):
        shape, seed = rounds.shape, rounds.seed + index * rounds.shape.episodes
        driver = None
        if index % 2:
            driver = rounds.driver or newest(rounds.checkpoints)
        if rounds.driver is not None and index % 4 == 2:
            driver = newest(rounds.checkpoints)
            if driver is not None:
                shape = replace(shape, episodes=max(1, round(OWN_SHARE * shape.episodes)))
        generate(rounds.folder / f'part_{index}', shape, seed, rounds.workers, driver)


def newest(checkpoints: Path) -> Path | None:
    """The newest checkpoint that is ready, with its ONNX graph where its family has one."""
    ready = sorted(checkpoints.glob(f'*/{READY}'), key=lambda file: file.stat().st_mtime)
    if not ready:
        return None
    folder = ready[-1].parent
    from vla_ros.training.driver import policy_of
    if policy_of(folder) == 'edgevla_sim' and not (folder / 'model.onnx').exists():
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
