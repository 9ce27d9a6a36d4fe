"""The weights of an OpenVLA policy in Hugging Face's layout, in and out.

Reading goes shard by shard and tensor by tensor from the mapped file to the device, so that the
host never holds more than one shard, whatever the size of the policy.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vla_ros.policies.openvla.config import OpenVlaConfig
from vla_ros.policies.openvla.hf_config import read_config, write_config
from vla_ros.policies.openvla.hf_files import (
    CONFIG,
    INDEX,
    WEIGHTS,
    is_pointer,
    part_of,
    read_json,
    unreadable,
    unwritable,
    write_bytes,
)
from vla_ros.policies.openvla.model import OpenVla, random_model

SHARD_BYTES = 5_000_000_000
STORED = {'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16}
_AGAIN = 'copy the checkpoint again'
_MOST_HEADER = 100_000_000
_WINDOWS, _WINDOW = 16, 64  # of each tensor that `weights_id` reads, and their bytes
_SHARD = re.compile(r'model(-\d{5}-of-\d{5})?\.safetensors')
# Never run: final norms, attention pool; and tables of rotary positions that old versions stored.
_DEAD = re.compile(r'vision_backbone\.(fused_)?featurizer\.(norm|fc_norm|attn_pool)\..*'
                   r'|language_model\.model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq')
_BLOCK = re.compile(r'vision_backbone\.(featurizer|fused_featurizer)\.blocks\.(\d+)\..*')


@dataclass(frozen=True)
class Stored:
    """A tensor in a file: its name there, type as safetensors writes it, place of its bytes."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Needed:
    """Bytes that a policy needs before it runs.

    `weights` and `cache` (keys and values of one sequence of `rows`) on the device, `host` while
    it is loaded. What the passes need on top depends on the backend.
    """

    weights: int
    cache: int
    host: int

    @property
    def device(self) -> int:
        return self.weights + self.cache


def load(folder: Path, device: torch.device | str = 'cpu', dtype: torch.dtype = torch.bfloat16,
         config: OpenVlaConfig | None = None, check_finite: bool = True,
         elsewhere: tuple[str, ...] = ()) -> OpenVla:
    """The policy of a checkpoint, ready to act. Raises ValueError with one line.

    `config`: in place of the folder's own. `check_finite`: refuse numbers that are not finite; the
    check runs on the device. `elsewhere`: beginnings of keys that other files hold; what they name
    stays on the meta device for the caller to fill in.
    """
    config = read_config(folder) if config is None else config
    with torch.device('meta'):
        model = OpenVla(config)
    wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()
              if not name.startswith(elsewhere)}
    stored = read_headers(folder)
    plan = match(folder, stored, wanted, config)
    tensors: dict[str, Tensor] = {}
    broken: list[tuple[Stored, Tensor]] = []
    for file in dict.fromkeys(found.file for found in plan.values()):
        names = {key: found for key, found in plan.items() if found.file == file}
        for key, tensor in _read(file, names, torch.device(device), dtype):
            tensors[key] = tensor
            if check_finite:
                # Exact, and without a copy of the tensor.
                broken.append((names[key], ~torch.isfinite(torch.stack(torch.aminmax(tensor)))
                               .all()))
    if broken and bool((flags := torch.stack([flag for _, flag in broken])).any()):
        found = broken[int(flags.int().argmax())][0]
        raise ValueError(f'{found.file}: {found.name}: it holds numbers that are not finite in '
                         f'{_plain(dtype)}; {_AGAIN}, or load it as bf16 or fp32')
    model.load_state_dict(tensors, strict=not elsewhere, assign=True)
    return model.eval()


def save(folder: Path, model: OpenVla, shard_bytes: int = SHARD_BYTES,
         dtype: torch.dtype | None = None) -> None:
    """Write config.json and the weights; equal bytes for equal weights. `dtype`: of the files.

    The folder's other files stay; shards of an older checkpoint go. It is without config.json
    while it is written, so nobody can load half of it. Raises ValueError with one line.
    """
    values = model.state_dict()
    dtype = model.dtype if dtype is None else dtype
    if dtype not in STORED.values():
        raise ValueError(f'dtype: {_plain(dtype)}: allowed are '
                         f'{", ".join(map(_plain, STORED.values()))}')
    shards = _shards({name: values[name].numel() * dtype.itemsize for name in sorted(values)},
                     shard_bytes)
    names = [WEIGHTS] if len(shards) == 1 else [
        f'model-{i:05}-of-{len(shards):05}.safetensors' for i in range(1, len(shards) + 1)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, keys in zip(names, shards, strict=True):
            save_file({key: values[key].detach().to('cpu', dtype).contiguous() for key in keys},
                      part_of(folder / name), metadata={'format': 'pt'})
        for stale in (CONFIG, INDEX):
            (folder / stale).unlink(missing_ok=True)
        for file in sorted(folder.iterdir()):
            if _SHARD.fullmatch(file.name) and file.name not in names:
                file.unlink()
        for name in names:
            part_of(folder / name).replace(folder / name)
    except (OSError, SafetensorError) as error:
        for name in names:
            part_of(folder / name).unlink(missing_ok=True)
        raise unwritable(folder, error if isinstance(error, OSError) else OSError(str(error))
                         ) from None
    if len(shards) > 1:
        index = {'metadata': {'total_size': sum(v.numel() for v in values.values())
                              * dtype.itemsize},
                 'weight_map': {key: name for name, keys in zip(names, shards, strict=True)
                                for key in keys}}
        write_bytes(folder / INDEX, (json.dumps(index, indent=2, sort_keys=True) + '\n').encode())
    write_config(folder, model.config, _plain(dtype))


def random_checkpoint(folder: Path, config: OpenVlaConfig, seed: int = 0,
                      dtype: torch.dtype = torch.float32, shard_bytes: int = SHARD_BYTES
                      ) -> OpenVla:
    """Write a checkpoint of drawn weights; the model that was written."""
    model = random_model(config, dtype=dtype, seed=seed)
    save(folder, model, shard_bytes)
    return model


def needed(source: Path | OpenVlaConfig, dtype: torch.dtype, text: int = 64, rows: int = 0
           ) -> Needed:
    """What the policy of a folder, or of a config, will need, with prompts of `text` ids.

    `rows` of the cache; 0 = prefix and action. Raises ValueError with one line.
    """
    config = read_config(source) if isinstance(source, Path) else source
    with torch.device('meta'):
        model = OpenVla(config)
    llama = config.llama
    rows = rows or config.prefix_tokens(text) + config.actions.tokens
    cache = 2 * llama.layers * llama.kv_heads * llama.head * rows * dtype.itemsize
    host = max((file.stat().st_size for file in shard_files(source)), default=0) \
        if isinstance(source, Path) else 0
    return Needed(sum(value.numel() for value in model.state_dict().values()) * dtype.itemsize,
                  cache, host)


def weights_id(folder: Path) -> str:
    """16 hexadecimal digits that stand for the weights, for what was measured with them.

    SHA-256 of config.json, of every tensor's name, type and shape, and of 16 pieces of 64 bytes
    spread over each tensor from its first byte to its last (of all of it where it is no larger);
    likewise of *.pt files beside them. How the weights are dealt to files makes no difference. It
    tells trainings, fine-tunes and precisions apart without reading gigabytes; a few numbers
    changed by hand inside a large tensor it can miss. Raises ValueError with one line.
    """
    digest = hashlib.sha256()
    try:
        digest.update((folder / CONFIG).read_bytes())
    except OSError as error:
        raise unreadable(folder / CONFIG, error) from None
    tensors = sorted(read_headers(folder), key=lambda found: found.name)
    pieces = [(found.file, found.start, found.end, [found.name, found.dtype, found.shape])
              for found in tensors]
    pieces += [(file, 0, file.stat().st_size, [file.name]) for file in sorted(folder.glob('*.pt'))]
    open_files: dict[Path, BinaryIO] = {}
    try:
        for file, start, end, said in pieces:
            digest.update(json.dumps([*said, end - start]).encode())
            if file not in open_files:
                open_files[file] = file.open('rb')
            for at, size in _windows(start, end):
                open_files[file].seek(at)
                digest.update(open_files[file].read(size))
    except OSError as error:
        raise unreadable(file, error) from None
    finally:
        for opened in open_files.values():
            opened.close()
    return digest.hexdigest()[:16]


def shard_files(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights. Raises ValueError with one line."""
    if (folder / WEIGHTS).exists() or not (folder / INDEX).exists():
        files: tuple[Path, ...] = (folder / WEIGHTS,)
    else:
        files = tuple(folder / name for name in dict.fromkeys(read_index(folder).values()))
    for file in files:
        if not file.is_file():
            other = next(iter(sorted(folder.glob('pytorch_model*.bin'))), None)
            fix = _AGAIN if len(files) > 1 else \
                f'a checkpoint of openvla has {WEIGHTS}, or {INDEX} and the files that it names'
            if other is not None:
                fix = f'{other.name} is not read: save the policy as safetensors'
            where = f'; {INDEX} names it' if len(files) > 1 else ''
            raise ValueError(f'{file}: no such file{where}; {fix}')
    return files


def read_index(folder: Path) -> dict[str, str]:
    """The file of each key, as the index says. Raises ValueError with one line."""
    file = folder / INDEX
    names = read_json(file).get('weight_map')
    if not isinstance(names, dict) or not names:
        raise ValueError(f'{file}: weight_map: a mapping of keys to files is needed; {_AGAIN}')
    for key, name in names.items():
        if not isinstance(name, str) or name != Path(name).name or not name.endswith(
                '.safetensors'):
            raise ValueError(f'{file}: weight_map.{key}: {name!r:.60}: allowed is the name of a '
                             f'safetensors file in the same folder; {_AGAIN}')
    return names


def read_headers(folder: Path) -> tuple[Stored, ...]:
    """What the files of a checkpoint hold, file by file. Raises ValueError with one line."""
    found: dict[str, Stored] = {}
    for file in shard_files(folder):
        for tensor in _read_header(file):
            if tensor.name in found:
                raise ValueError(f'{file}: {tensor.name}: it is in {found[tensor.name].file.name} '
                                 f'too; {_AGAIN}')
            found[tensor.name] = tensor
    return tuple(found.values())


def match(folder: Path, stored: Iterable[Stored], wanted: Mapping[str, Sequence[int]],
          config: OpenVlaConfig) -> dict[str, Stored]:
    """Where to find each key that is wanted. Raises ValueError with one line.

    Accepts what no pass ever needs (`_DEAD`, and each tower's last block), and timm's own name of
    the scales of a layer.
    """
    plan, strangers = {}, []
    for found in stored:
        key = found.name
        if key not in wanted and key.endswith('.gamma'):
            key = key.removesuffix('.gamma') + '.scale_factor'
        if key in plan:
            raise ValueError(f'{found.file}: {found.name}: {key} is there too; remove one of them')
        if key in wanted:
            plan[key] = found
        elif not _is_dead(key, config):
            strangers.append(found)
    for key, shape in wanted.items():
        if key not in plan:
            near = get_close_matches(key, [found.name for found in strangers], 1)
            hint = f'; is {near[0]!r} meant to be it?' if near else ''
            raise ValueError(f'{folder}: {key}: missing: {CONFIG} asks for it{hint}; {_AGAIN}')
        found = plan[key]
        if found.shape != tuple(shape):
            raise ValueError(f'{found.file}: {found.name}: shape {list(found.shape)}: '
                             f'{list(shape)} is needed by {CONFIG} beside it; {_AGAIN}')
        if found.dtype not in STORED:
            raise ValueError(f'{found.file}: {found.name}: {found.dtype:.20}: allowed are '
                             f'{", ".join(STORED)}; quantized files are not read, the policy is '
                             'quantized when it is loaded')
    if strangers:
        more = f' ({len(strangers)} such tensors)' if len(strangers) > 1 else ''
        raise ValueError(f'{strangers[0].file}: {strangers[0].name:.200}: unknown tensor{more}: '
                         f'{CONFIG} beside it knows no such one; {_AGAIN}')
    return plan


def _is_dead(key: str, config: OpenVlaConfig) -> bool:
    if _DEAD.fullmatch(key):
        return True
    block = _BLOCK.fullmatch(key)
    if block is None:
        return False
    tower = config.vision.dino if block[1] == 'featurizer' else config.vision.siglip
    return int(block[2]) == tower.depth - 1


def _read(file: Path, names: Mapping[str, Stored], device: torch.device, dtype: torch.dtype
          ) -> Iterator[tuple[str, Tensor]]:
    """The tensors of one file on the device, each a copy: the file is closed afterwards."""
    try:
        with safe_open(file, framework='pt', device='cpu') as opened:
            for key, found in names.items():
                # Mapped, then moved as stored, then converted where it is cheap.
                moved = opened.get_tensor(found.name).to(device)
                yield key, moved.to(dtype, copy=moved.device.type == 'cpu')
    except OSError as error:
        raise unreadable(file, error) from None
    except SafetensorError as error:
        raise _broken(file, error) from None


def _read_header(file: Path) -> list[Stored]:
    try:
        size = file.stat().st_size
        with file.open('rb') as opened:
            start = opened.read(8)
            if is_pointer(start + opened.peek(64)):
                raise ValueError(f'{file}: it is a pointer of Git LFS, not the weights: run git '
                                 'lfs pull in the folder')
            length = struct.unpack('<Q', start)[0] if len(start) == 8 else size
            if 8 + length > min(size, _MOST_HEADER):
                raise _broken(file, 'the header goes beyond its end')
            header = json.loads(opened.read(length))
    except OSError as error:
        raise unreadable(file, error) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _broken(file, error) from None
    if not isinstance(header, dict):
        raise _broken(file, 'the header is no mapping')
    return [_stored(file, name, said, 8 + length, size) for name, said in header.items()
            if name != '__metadata__']


def _stored(file: Path, name: str, said: Any, offset: int, size: int) -> Stored:
    try:
        dtype, shape, (start, end) = said['dtype'], tuple(said['shape']), said['data_offsets']
        numbers = (*shape, start, end)
        sound = isinstance(dtype, str) and all(type(n) is int and n >= 0 for n in numbers)
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or start > end or (
            dtype in STORED and end - start != prod(shape) * STORED[dtype].itemsize):
        raise _broken(file, f'{name:.100}: its entry in the header makes no sense')
    if offset + end > size:
        raise _broken(file, f'{name:.100} ends {offset + end - size} bytes after its end')
    return Stored(file, name, dtype, shape, offset + start, offset + end)


def _shards(sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Names in order, dealt to files of at most `most` bytes, or of one tensor."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > most:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _windows(start: int, end: int) -> list[tuple[int, int]]:
    """Where to read, and how many bytes."""
    if end - start <= _WINDOWS * _WINDOW:
        return [(start, end - start)]
    last = end - start - _WINDOW
    return [(start + last * i // (_WINDOWS - 1), _WINDOW) for i in range(_WINDOWS)]


def _broken(file: Path, problem: object) -> ValueError:
    return ValueError(f'{file}: not a whole safetensors file ({" ".join(str(problem).split())}); '
                      f'{_AGAIN}')


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix('torch.')
