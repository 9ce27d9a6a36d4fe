"""The weights of an EdgeVLA policy: `model.safetensors` beside `config.json` in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from vla_ros.policies.edgevla.config import FORMAT, read_config, to_json
from vla_ros.policies.edgevla.files import CONFIG, WEIGHTS, unreadable, write_bytes
from vla_ros.policies.edgevla.model import EdgeVla

_FIX = 'copy the checkpoint again, or train it again'


def save(folder: Path, model: EdgeVla) -> None:
    """Write config.json and model.safetensors, equal bytes for equal weights.

    Raises ValueError with one line.
    """
    tensors = {name: value.detach().to('cpu', torch.float32).contiguous()
               for name, value in model.state_dict().items()}
    # One entry only: the order of several is not always the same.
    content = serialize(tensors, metadata={'format': FORMAT})
    write_bytes(folder / CONFIG, to_json(model.config).encode())
    write_bytes(folder / WEIGHTS, content)


def load(folder: Path) -> EdgeVla:
    """The model of a checkpoint in float32 on the CPU. Raises ValueError with one line."""
    config = read_config(folder / CONFIG)
    path = folder / WEIGHTS
    try:
        tensors = load_file(path)
    except OSError as error:
        raise unreadable(path, error) from None
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f'{path}: not a whole safetensors file '
                         f'({" ".join(str(error).split())}); {_FIX}') from None
    with torch.random.fork_rng(devices=[]):  # what is drawn is replaced
        model = EdgeVla(config)
    check_tensors(path, tensors, model.state_dict())
    model.load_state_dict(tensors)
    return model.eval()


def check_tensors(path: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Raises ValueError with one line unless names, shapes, types and values are right."""
    for name, like in wanted.items():
        if name not in found:
            strangers = [other for other in found if other not in wanted]
            near = get_close_matches(name, strangers, 1)
            hint = f'; is {near[0]!r} meant to be it?' if near else ''
            raise ValueError(f'{path}: {name}: missing: {CONFIG} beside it asks for it{hint}; '
                             f'{_FIX}')
        tensor = found[name]
        if tensor.shape != like.shape:
            raise ValueError(f'{path}: {name}: shape {list(tensor.shape)}: {list(like.shape)} is '
                             f'needed by {CONFIG} beside it; {_FIX}')
        if tensor.dtype != torch.float32:
            raise ValueError(f'{path}: {name}: {str(tensor.dtype).removeprefix("torch.")}: '
                             f'float32 is needed; {_FIX}')
        if not torch.isfinite(tensor).all():
            raise ValueError(f'{path}: {name}: it holds numbers that are not finite; {_FIX}')
    for name in found:
        if name not in wanted:
            raise ValueError(f'{path}: {name}: unknown tensor: {CONFIG} beside it knows no such '
                             f'one; {_FIX}')
