"""The files of a checkpoint folder of the family `edgevla`."""

from __future__ import annotations

from pathlib import Path

CONFIG = 'config.json'
WEIGHTS = 'model.safetensors'
GRAPH = 'model.onnx'
# Of the graph's metadata; the SHA-256 of the config and of the weights that it was made from.
CONFIG_KEY, WEIGHTS_KEY = 'config_sha256', 'weights_sha256'


def read_bytes(path: Path) -> bytes:
    """The content of a file of a checkpoint. Raises ValueError with one line."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: OSError) -> ValueError:
    """The one line for a file that is missing or cannot be read."""
    return ValueError(f'{path}: cannot be read: {error.strerror or error}; a checkpoint of edgevla '
                      f'is a folder with {CONFIG}, {WEIGHTS} (torch) and {GRAPH} (onnxruntime)')


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once, with its folder. Raises ValueError with one line."""
    part = path.with_name(path.name + '.part')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise ValueError(f'{path}: cannot be written: {error.strerror or error}') from None
