"""The file of the family `knn`: features of recorded frames and the actions that followed them."""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import Floats

FORMAT = 'vla_ros knn 1'
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the same frames give the same bytes


@dataclass(frozen=True)
class Memory:
    """What was seen and what was done.

    `features` float32 [N, F]; `actions` float64 [N, H, A], step 0 taken at the frame; `sentence`
    int64 [N] indexes `sentences`. `names` and `kinds` are those of the A dimensions. `sources`
    names the recordings.
    """

    features: NDArray[np.float32]
    actions: Floats
    sentence: NDArray[np.int64]
    sentences: tuple[str, ...]
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    period_ns: int
    feature_version: int
    sources: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.features)
        shapes = (self.features.ndim == 2 and self.actions.ndim == 3 and count > 0
                  and len(self.actions) == count and self.actions.shape[1] > 0
                  and self.sentence.shape == (count,)
                  and len(self.names) == len(self.kinds) == self.actions.shape[2])
        if not shapes:
            raise ValueError(f'features {self.features.shape}, actions {self.actions.shape}, '
                             f'sentence {self.sentence.shape} and {len(self.names)} names do not '
                             f'fit each other')
        if not (np.isfinite(self.features).all() and np.isfinite(self.actions).all()):
            raise ValueError('a feature or an action is not finite')
        if self.sentence.min() < 0 or self.sentence.max() >= len(self.sentences):
            raise ValueError(f'a frame has no sentence; {len(self.sentences)} are stored')


def save(memory: Memory, path: Path) -> None:
    """Write a checkpoint, equal bytes for an equal memory. Raises ValueError with one line."""
    described = {'format': FORMAT, 'sentences': memory.sentences, 'names': memory.names,
                 'kinds': memory.kinds, 'period_ns': memory.period_ns,
                 'feature_version': memory.feature_version, 'sources': memory.sources}
    text = json.dumps(described, sort_keys=True, ensure_ascii=False).encode()
    arrays: dict[str, NDArray[Any]] = {
        'features': memory.features, 'actions': memory.actions,
        'sentence': memory.sentence, 'description': np.frombuffer(text, np.uint8)}
    content = io.BytesIO()
    with zipfile.ZipFile(content, 'w', zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            little = array.astype(array.dtype.newbyteorder('<'), copy=False)
            np.save(entry, little, allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f'{name}.npy', _EPOCH), entry.getvalue())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + '.part')
        part.write_bytes(content.getvalue())
        part.replace(path)
    except OSError as error:
        raise ValueError(f'{path}: cannot be written: {error.strerror or error}') from error


def load(path: Path) -> Memory:
    """Read a checkpoint. Raises ValueError with one line where it is missing or broken."""
    fix = f'build it with: vla-ros build-knn BAG… --out {path}'
    if not path.exists():
        raise ValueError(f'{path}: no such checkpoint; {fix}')
    try:
        with np.load(path, allow_pickle=False) as stored:
            described = json.loads(stored['description'].tobytes().decode())
            if described.pop('format') != FORMAT:
                raise ValueError(f'it is not of the format {FORMAT!r}')
            texts = ('sentences', 'names', 'kinds', 'sources')
            described.update({name: tuple(described[name]) for name in texts})
            memory = Memory(features=stored['features'].astype(np.float32, copy=False),
                            actions=stored['actions'].astype(np.float64, copy=False),
                            sentence=stored['sentence'].astype(np.int64, copy=False),
                            **described)
    except (OSError, EOFError, KeyError, TypeError, AttributeError, ValueError,
            MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        reason = ' '.join(f'{type(error).__name__}: {error}'.split())
        raise ValueError(f'{path}: not a whole knn checkpoint ({reason}); {fix}') from error
    return memory
