"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_text(file: Path, text: str) -> None:
    """Write a file so that no reader ever sees half of it; its folder must be there."""
    handle, name = tempfile.mkstemp(prefix=f'.{file.name}.', dir=file.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, 'w', encoding='utf-8') as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        part.chmod(0o644)
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
