"""OpenVLA-OFT: what its checkpoints do not say about themselves, and the files it adds.

Source: OpenVLA-OFT (arXiv 2502.19645). Its config.json is that of OpenVLA; how many steps, images
and numbers of the state there are depends on the robot it was fine-tuned for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from vla_ros.policies.openvla.config import OpenVlaConfig, published
from vla_ros.policies.openvla.hf_config import read_config
from vla_ros.policies.openvla.hf_files import INDEX, WEIGHTS, unreadable

ACTION_HEAD, PROPRIO_PROJECTOR = 'action_head', 'proprio_projector'
OFT_BACKENDS = ('baseline', 'graph')
ADAPTER = 'lora_adapter'  # the folder of weights that were not merged
LATEST = 'latest'         # what fine-tuning writes in place of a step where it keeps one
_FILE = re.compile(r'(?P<part>[a-z_]+)--(?P<step>\d{1,12}|latest)_checkpoint\.pt')
_FOREIGN = {'vision_backbone': 'FiLM', 'noisy_action_projector': 'a diffusion head'}
_FOREIGN_MEANS = 'only OFT with the L1 head and without FiLM is read'


@dataclass(frozen=True)
class Layout:
    """Of a robot: steps of a chunk, action dimensions, numbers of the state (0 = none), images.

    `bounds`: statistics are the range min to max, not the quantiles 0.01 to 0.99. `center_crop`:
    area of the centre that is kept; all were fine-tuned with augmentation.
    """

    horizon: int
    dimensions: int
    state: int
    images: int
    bounds: bool = False
    center_crop: float = 0.9


LAYOUTS: Mapping[str, Layout] = MappingProxyType({
    'libero': Layout(8, 7, 8, 2),
    'aloha': Layout(25, 14, 14, 3, bounds=True),
    'bridge': Layout(5, 7, 7, 1),
})


def libero() -> OpenVlaConfig:
    """OFT for LIBERO: third person and wrist camera."""
    return with_layout(published(), LAYOUTS['libero'])


def aloha() -> OpenVlaConfig:
    """OFT for ALOHA: one camera above, one on each wrist; two arms."""
    return with_layout(published(), LAYOUTS['aloha'])


def bridge() -> OpenVlaConfig:
    """OFT for BridgeData V2."""
    return with_layout(published(), LAYOUTS['bridge'])


def with_layout(config: OpenVlaConfig, layout: Layout) -> OpenVlaConfig:
    """The same policy with all actions in one pass."""
    return replace(
        config, state=layout.state, parallel=True,
        vision=replace(config.vision, images=layout.images, center_crop=layout.center_crop),
        actions=replace(config.actions, horizon=layout.horizon, dimensions=layout.dimensions))


def is_oft(folder: Path) -> bool:
    """Whether a folder holds an OFT checkpoint, whole or not."""
    return bool(component_files(folder).get(ACTION_HEAD)) or (folder / ADAPTER).is_dir()


def read_oft_config(folder: Path, layout: str = '', key: str | None = None) -> OpenVlaConfig:
    """The config of an OFT checkpoint. Raises ValueError with one line.

    `layout`: a name of LAYOUTS, needed where config.json does not say it (only ours do). `key`:
    the dataset of the statistics.
    """
    if layout and layout not in LAYOUTS:
        raise ValueError(f'oft: {layout}: allowed are {", ".join(LAYOUTS)}')
    found = LAYOUTS.get(layout)
    config = read_config(folder, key, found is not None and found.bounds)
    if found is not None:
        return with_layout(config, found)
    if not config.parallel:
        raise ValueError(f'{folder}: oft: missing: its config.json does not say which robot the '
                         f'checkpoint is for; name one of {", ".join(LAYOUTS)}')
    return config


def component_files(folder: Path) -> dict[str, dict[str, Path]]:
    """Files `<part>--<step>_checkpoint.pt` of a folder by part and by step, oldest step first.

    Raises ValueError with one line where the folder cannot be read.
    """
    try:
        names = sorted(file.name for file in folder.iterdir())
    except OSError as error:
        raise unreadable(folder, error) from None
    found: dict[str, dict[str, Path]] = {}
    for name in names:
        match = _FILE.fullmatch(name)
        if match:
            found.setdefault(match['part'], {})[match['step']] = folder / name
    return {part: dict(sorted(files.items(), key=lambda item: _age(item[0])))
            for part, files in found.items()}


def newest_step(folder: Path, state: bool) -> tuple[str, dict[str, Path]]:
    """The newest step of the action head and its files by part; `state`: with the projector.

    Raises ValueError with one line: a part missing, or of another step; what is not read here.
    """
    files = component_files(folder)
    for part, what in _FOREIGN.items():
        if part in files:
            raise ValueError(f'{next(iter(files[part].values()))}: the checkpoint uses {what}; '
                             f'{_FOREIGN_MEANS}')
    if (folder / ADAPTER).is_dir() and not any((folder / name).is_file()
                                               for name in (WEIGHTS, INDEX)):
        raise ValueError(f'{folder / ADAPTER}: its LoRA weights are not merged into a policy; '
                         'merge them with merge_lora_weights_and_save.py of OpenVLA-OFT, which '
                         f'writes {INDEX} and its files beside it')
    heads = files.get(ACTION_HEAD, {})
    if not heads:
        raise ValueError(f'{folder}: {ACTION_HEAD}--<step>_checkpoint.pt: no such file; OFT keeps '
                         'its action head there: copy it from the checkpoint')
    step = list(heads)[-1]
    found = {ACTION_HEAD: heads[step]}
    if state:
        projectors = files.get(PROPRIO_PROJECTOR, {})
        if step not in projectors:
            there = f'; there is one of step {", ".join(projectors)}' if projectors else ''
            raise ValueError(f'{folder}: {PROPRIO_PROJECTOR}--{step}_checkpoint.pt: no such file, '
                             f'but {heads[step].name} is there{there}; copy both of one step')
        found[PROPRIO_PROJECTOR] = projectors[step]
    return step, found


def _age(step: str) -> tuple[int, int]:
    return (1, 0) if step == LATEST else (0, int(step))
