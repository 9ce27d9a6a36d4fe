"""The families that can be trained, behind one interface; torch is imported when one is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from vla_ros.policies.edgevla.config import Compressor
    from vla_ros.training.dataset import Dataset
    from vla_ros.training.trainer import Batches, Recipe, Trainer


class Family(Protocol):
    """How a policy of one family is trained.

    `files` are those of a checkpoint that `Trainer.train` writes.
    """

    files: tuple[str, ...]

    def begin(self, first: Dataset, recipe: Recipe, start: Path | None) -> tuple[Batches, Trainer]:
        """Empty batches and a trainer, sized by `start` or by the first dataset."""

    def finish(self, folder: Path) -> str:
        """Make what else a checkpoint needs; one line on it."""


class EdgeVlaFamily:
    """Sequences of frames; the sizes that are shipped, but for these."""

    files: tuple[str, ...] = ('config.json', 'model.safetensors', 'training.json')

    def __init__(self, window: int = 8, compressor: Compressor | None = None) -> None:
        self._window, self._compressor = window, compressor

    def begin(self, first: Dataset, recipe: Recipe, start: Path | None) -> tuple[Batches, Trainer]:
        from vla_ros.policies.edgevla.config import read_config, small
        from vla_ros.sim.tasks import VOCABULARY
        from vla_ros.training.edgevla_trainer import EdgeVlaTrainer, Sequences, normalization
        if start is not None and self._compressor is None:
            config = read_config(start / 'config.json')
        else:
            scales = (normalization(first) if start is None
                      else read_config(start / 'config.json').normalization)
            config = replace(small(VOCABULARY, scales), window=self._window)
            if self._compressor is not None:
                config = replace(config, compressor=self._compressor)
        batches = Sequences(config, recipe)
        return batches, EdgeVlaTrainer(batches, config, recipe, start)

    def finish(self, folder: Path) -> str:
        from vla_ros.policies.edgevla.export import export
        difference = export(folder)
        return f'ONNX Runtime differs from torch by at most {difference:.1e}'


class OpenVlaFamily:
    """Single frames; the sizes that are shipped."""

    files: tuple[str, ...] = ('config.json', 'model.safetensors', 'tokenizer.json',
                              'training.json')

    def begin(self, first: Dataset, recipe: Recipe, start: Path | None) -> tuple[Batches, Trainer]:
        from vla_ros.policies.openvla.hf_config import read_config
        from vla_ros.policies.openvla.tokenizer import load
        from vla_ros.training.openvla_trainer import (
            Frames,
            OpenVlaTrainer,
            make_config,
            tokenizer_of,
        )
        config = make_config(first) if start is None else read_config(start)
        tokenizer = tokenizer_of(first.sentences) if start is None else load(start)
        batches = Frames(config, tokenizer, recipe)
        return batches, OpenVlaTrainer(batches, config, tokenizer, recipe, start)

    def finish(self, folder: Path) -> str:
        size = sum((folder / name).stat().st_size for name in self.files)
        return f'{size / 1e6:.1f} MB'


FAMILIES: dict[str, Callable[[], Family]] = {'edgevla': EdgeVlaFamily, 'openvla': OpenVlaFamily}


def add_all(batches: Batches, datasets: Sequence[Dataset]) -> None:
    """Bring datasets to the device."""
    for dataset in datasets:
        batches.add(dataset)
