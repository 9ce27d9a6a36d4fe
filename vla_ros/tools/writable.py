"""Whether a result can be written, asked before the work for it begins."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(file: Path, suffix: str = '') -> None:
    """Raises ValueError with one line unless `file` can be written; it is left as it is."""
    if suffix and file.suffix.lower() != suffix:
        raise ValueError(f'{file}: the name must end with {suffix}')
    if file.is_dir():
        raise ValueError(f'{file}: it is a folder; give the name of a file in it')
    if not file.parent.is_dir():
        raise ValueError(f'{file}: no such folder: {file.parent}; make it first')
    if not file.name or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f'{file}: cannot be written; choose another place')
    if file.exists() and not file.is_file():
        raise ValueError(f'{file}: it is no ordinary file; choose another place')


def check_folder(folder: Path) -> None:
    """Raises ValueError with one line unless `folder` is, or can be made, a folder to write in."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f'{folder}: no folder can be made there '
                         f'({error.strerror or error}); choose another place') from None
    if not os.access(folder, os.W_OK):
        raise ValueError(f'{folder}: cannot be written to; choose another place')
