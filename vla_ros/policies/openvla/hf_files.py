"""The files of an OpenVLA checkpoint folder, as Hugging Face lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONFIG = 'config.json'
STATISTICS = 'dataset_statistics.json'  # of a fine-tuned checkpoint; in place of norm_stats
WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'
TOKENIZER = 'tokenizer.json'
SLOW_TOKENIZER = 'tokenizer.model'
_MOST_BYTES = 1 << 26  # of a JSON file


def read_json(file: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ValueError with one line."""
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f'{file}: larger than {_MOST_BYTES} bytes, which no such file is')
        content = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from None
    try:
        values = json.loads(content.decode('utf-8'))
    except UnicodeDecodeError:
        raise ValueError(f'{file}: not text in UTF-8; copy the checkpoint again') from None
    except (ValueError, RecursionError) as error:
        pointer = '; it is a pointer of Git LFS: run git lfs pull in the folder' \
            if is_pointer(content) else ''
        raise ValueError(f'{file}: not JSON: {" ".join(str(error).split())}{pointer}') from None
    if not isinstance(values, dict):
        raise ValueError(f'{file}: a {type(values).__name__}: it must hold a mapping of keys to '
                         'values')
    return values


def is_pointer(start: bytes) -> bool:
    """Whether a file that begins like this is only Git LFS's pointer to the real one."""
    return start.startswith(b'version https://git-lfs')


def unreadable(file: Path, error: OSError) -> ValueError:
    """The one line for a file that is missing or cannot be read."""
    return ValueError(f'{file}: cannot be read: {error.strerror or error}; a checkpoint of openvla '
                      f'is a folder with {CONFIG}, {TOKENIZER} and {WEIGHTS}, or {INDEX} and the '
                      'files that it names')


def part_of(file: Path) -> Path:
    """Where a file is written before it takes its place."""
    return file.with_name(file.name + '.part')


def write_bytes(file: Path, content: bytes) -> None:
    """Write a file at once, with its folder. Raises ValueError with one line."""
    part = part_of(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(file)
    except OSError as error:
        raise unwritable(file, error) from None


def unwritable(file: Path, error: OSError) -> ValueError:
    """The one line for a file that cannot be written."""
    return ValueError(f'{file}: cannot be written: {error.strerror or error}')
