"""The files of OpenVLA-OFT beside the shards of the policy, in and out."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vla_ros.policies.openvla.checkpoint import SHARD_BYTES, load, save
from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.hf_config import write_config
from vla_ros.policies.openvla.hf_files import is_pointer, part_of, unreadable, unwritable
from vla_ros.policies.openvla.model import OpenVla
from vla_ros.policies.openvla.oft import L1Head
from vla_ros.policies.openvla.oft_layout import (
    ACTION_HEAD,
    PROPRIO_PROJECTOR,
    newest_step,
    read_oft_config,
)

_PREFIX = 'module.'  # what training on several GPUs leaves before every name
_AGAIN = 'copy the checkpoint again'


@dataclass(frozen=True)
class Oft:
    """An OFT policy. `step`: of its extra files, where there were several the newest."""

    model: OpenVla
    head: L1Head
    step: str


def load_oft(folder: Path, device: torch.device | str = 'cpu',
             dtype: torch.dtype = torch.bfloat16, layout: str = '',
             config: OpenVlaConfig | None = None) -> Oft:
    """The policy of an OFT checkpoint, ready to act. Raises ValueError with one line.

    `layout`: the robot, where config.json does not say it. `config`: in place of both.
    """
    config = read_oft_config(folder, layout) if config is None else config
    step, files = newest_step(folder, config.state > 0)
    with torch.device('meta'):
        head = L1Head(config)
    _fill(head, files[ACTION_HEAD], device, dtype)
    model = load(folder, device, dtype, config, elsewhere=(f'{PROPRIO_PROJECTOR}.',))
    if config.state:
        _fill(model.proprio_projector, files[PROPRIO_PROJECTOR], device, dtype)
    return Oft(model, head.eval(), step)


def save_oft(folder: Path, model: OpenVla, head: L1Head, step: int = 1, *,
             shard_bytes: int = SHARD_BYTES, as_published: bool = False) -> None:
    """Write the shards, the head and the projector of the state. Raises ValueError with one line.

    `as_published`: with a config.json that leaves out what a Layout says.
    """
    config = model.config
    plain = replace(config, state=0, parallel=False)
    with torch.device('meta'):
        bare = OpenVla(plain)
    values = model.state_dict()
    bare.load_state_dict({name: values[name] for name in bare.state_dict()}, assign=True)
    save(folder, bare, shard_bytes)
    _write(folder / f'{ACTION_HEAD}--{step}_checkpoint.pt', head)
    if config.state:
        _write(folder / f'{PROPRIO_PROJECTOR}--{step}_checkpoint.pt', model.proprio_projector)
    if not as_published:
        write_config(folder, config, str(model.dtype).removeprefix('torch.'))


def read_component(file: Path, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of one file, mapped, without `module.`. Raises ValueError with one line.

    `wanted`: names and shapes that must be there, no more and no less.
    """
    found: dict[str, Tensor] = {}
    for name, value in _read(file).items():
        plain = name.removeprefix(_PREFIX) if isinstance(name, str) else ''
        if not plain or not isinstance(value, Tensor):
            raise ValueError(f'{file}: {name!r:.100}: a {type(value).__name__}: tensors by name '
                             f'are needed; {_AGAIN}')
        if plain in found:
            raise ValueError(f'{file}: {plain}: it is there with and without {_PREFIX}')
        found[plain] = value
    for name, like in wanted.items():
        if name not in found:
            raise ValueError(f'{file}: {name}: missing; {_AGAIN}')
        if found[name].shape != like.shape:
            raise ValueError(f'{file}: {name}: shape {list(found[name].shape)}: '
                             f'{list(like.shape)} is needed; is the checkpoint for another robot '
                             '(option oft)?')
        if not found[name].is_floating_point():
            raise ValueError(f'{file}: {name}: {str(found[name].dtype).removeprefix("torch.")}: '
                             f'floating point numbers are needed; {_AGAIN}')
    strangers = sorted(set(found) - set(wanted))
    if strangers:
        more = f' ({len(strangers)} such tensors)' if len(strangers) > 1 else ''
        raise ValueError(f'{file}: {strangers[0]:.200}: unknown tensor{more}; only the L1 head and '
                         'the projector of the state are read')
    return found


def _fill(module: nn.Module, file: Path, device: torch.device | str, dtype: torch.dtype) -> None:
    """Put the tensors of a file in place of those of a module on the meta device."""
    found = {name: value.to(device).to(dtype, copy=True)
             for name, value in read_component(file, module.state_dict()).items()}
    for name, value in found.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f'{file}: {name}: it holds numbers that are not finite in '
                             f'{str(dtype).removeprefix("torch.")}; {_AGAIN}')
    module.load_state_dict(found, assign=True)


def _read(file: Path) -> dict[Any, Any]:
    try:
        with file.open('rb') as opened:
            if is_pointer(opened.read(64)):
                raise ValueError(f'{file}: it is a pointer of Git LFS, not the weights: run git '
                                 'lfs pull in the folder')
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        values = torch.load(file, map_location='cpu', weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, AttributeError,
            pickle.UnpicklingError) as error:
        raise ValueError(f'{file}: not a file of tensors that torch wrote '
                         f'({" ".join(str(error).split()):.200}); {_AGAIN}') from None
    if not isinstance(values, dict):
        raise ValueError(f'{file}: a {type(values).__name__}: tensors by name are needed; {_AGAIN}')
    return values


def _write(file: Path, module: nn.Module) -> None:
    part = part_of(file)
    try:
        torch.save({_PREFIX + name: value.detach().to('cpu', copy=True)
                    for name, value in module.state_dict().items()}, part)
        part.replace(file)
    except (OSError, RuntimeError) as error:
        part.unlink(missing_ok=True)
        raise unwritable(file, error if isinstance(error, OSError) else OSError(str(error))
                         ) from None
