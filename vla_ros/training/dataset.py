"""Recorded episodes on disk: flat arrays that are mapped, not read."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import ImageSize

FORMAT = 'vla_ros sim episodes 2'
DESCRIPTION = 'dataset.json'
STEPS = 2  # of 0.1 s that advice looks ahead
BLOCK = 8  # episodes that a worker takes at once


@dataclass(frozen=True)
class Shape:
    """How much is recorded: E episodes of F frames, with chunks of H steps; image side in px.

    `advised`: sentences of each frame for which it is recorded what the expert would do.
    """

    episodes: int
    frames: int = 60
    horizon: int = 16
    side: int = 128
    advised: int = 0

    def arrays(self) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of each array."""
        e, f, h = self.episodes, self.frames, self.horizon
        a = self.advised
        more = {'advice': ((e, f, a, STEPS + 1, 7), 'float32'), 'advised': ((e, f, a), 'int64'),
                'advised_objects': ((e, f, a, 6), 'float32')} if a else {}
        return {'images': ((e, f, 2, self.side, self.side, 3), 'uint8'),
                'state': ((e, f, 7), 'float32'), 'targets': ((e, f, h, 7), 'float32'),
                'valid': ((e, f, h), 'bool'), 'objects': ((e, f, 6), 'float32'),
                'things': ((e, f, 8, 3), 'float32'),
                'sentence': ((e, f), 'int64'), **more}


@dataclass(frozen=True)
class Dataset:
    """Mapped arrays [E, F, …]; `sentence` and `advised` index `sentences`."""

    arrays: dict[str, NDArray[Any]]
    sentences: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.arrays['state'])


def generate(folder: Path, shape: Shape, seed: int, workers: int, checkpoint: Path | None = None,
             report: Any = None) -> Dataset:
    """Record episodes with seeds from `seed` on in `workers` processes.

    `checkpoint`: a trained policy that drives between the expert's corrections (DAgger, arXiv
    1011.0686); random disturbances where there is none. `report(done)` is called now and then.
    """
    from vla_ros.sim.tasks import all_tasks, wordings
    sentences = tuple(sorted({text for task in all_tasks() for text in wordings(task)}))
    folder.mkdir(parents=True, exist_ok=True)
    for name, (size, dtype) in shape.arrays().items():
        np.lib.format.open_memmap(folder / f'{name}.npy', 'w+', np.dtype(dtype), size).flush()
    (folder / DESCRIPTION).unlink(missing_ok=True)
    jobs = [(folder, shape, sentences, seed, start, min(start + BLOCK, shape.episodes), checkpoint)
            for start in range(0, shape.episodes, BLOCK)]
    done = 0
    with ProcessPoolExecutor(workers, multiprocessing.get_context('spawn'), _prepare) as pool:
        try:
            for made in as_completed([pool.submit(_record, job) for job in jobs]):
                done += made.result()
                if report is not None:
                    report(done)
        except BrokenProcessPool:
            raise ValueError(f'{folder}: a process that recorded for it died after {done} of '
                             f'{shape.episodes} episodes (memory, or a crash told above); '
                             'record again with fewer workers') from None
        except BaseException:  # not when each has done its part
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
    # Last: whoever finds it finds everything.
    part = folder / f'{DESCRIPTION}.part'
    part.write_text(json.dumps(
        {'format': FORMAT, 'seed': seed, 'sentences': sentences, 'shape': vars(shape),
         'driven': checkpoint is not None}))
    part.replace(folder / DESCRIPTION)
    return load(folder)


def load(folder: Path) -> Dataset:
    """Map a recorded dataset. Raises ValueError with one line."""
    try:
        described = json.loads((folder / DESCRIPTION).read_text())
        if described.get('format') != FORMAT:
            raise ValueError(f'not of the format {FORMAT!r}')
        shape = Shape(**described['shape'])
        arrays = {name: np.load(folder / f'{name}.npy', mmap_mode='r') for name in shape.arrays()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = ' '.join(str(error).split())
        raise ValueError(f'{folder}: not a recorded dataset ({reason}); '
                         f'record one with: vla-ros train sim record {folder}') from error
    return Dataset(arrays, tuple(described['sentences']))


_WORLD: list[Any] = []  # of this worker process


def _prepare() -> None:
    os.environ.setdefault('OMP_NUM_THREADS', '1')


def _record(job: tuple[Path, Shape, tuple[str, ...], int, int, int, Path | None]) -> int:
    from vla_ros.sim.world import World
    from vla_ros.training.advice import Adviser
    from vla_ros.training.episodes import CAMERAS, record
    folder, shape, sentences, seed, start, end, checkpoint = job
    if not _WORLD:
        size = ImageSize(shape.side, shape.side)
        _WORLD.append(World(dict.fromkeys(CAMERAS, size)))
        _WORLD.append(None)
        _WORLD.append(Adviser() if shape.advised else None)
        if checkpoint is not None:
            from vla_ros.training.driver import policy_driver
            _WORLD[1] = policy_driver(checkpoint)
    index = {text: i for i, text in enumerate(sentences)}
    arrays = {name: np.load(folder / f'{name}.npy', mmap_mode='r+') for name in shape.arrays()}
    for episode in range(start, end):
        driver = _WORLD[1]() if _WORLD[1] is not None else None
        made = record(_WORLD[0], seed + episode, shape.frames, shape.horizon, driver,
                      shape.advised, _WORLD[2])
        for name in arrays.keys() - {'sentence', 'advised'}:
            arrays[name][episode] = getattr(made, name)
        arrays['sentence'][episode] = [index[text] for text in made.sentences]
        if shape.advised:
            arrays['advised'][episode] = [[index[text] for text in row] for row in made.advised]
    return end - start
