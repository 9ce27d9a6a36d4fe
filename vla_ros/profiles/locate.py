"""Where a profile lies: a bare name in the packaged config folder, anything else a path."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from vla_ros.profiles.reader import hint

PACKAGE = 'vla_ros'
FOLDERS = {'robot': 'robots', 'policy': 'policies', 'engine': 'engines'}
_SUFFIXES = ('.yaml', '.yml')


def config_folder() -> Path:
    """The packaged config folder, of a checkout or of an installation. Raises ValueError."""
    for folder in _candidates():
        if all((folder / name).is_dir() for name in FOLDERS.values()):
            return folder
    raise ValueError('config folder of vla_ros: not found: install the package with colcon or '
                     'pip, or give profiles as paths that end in .yaml')


def shipped(kind: str) -> tuple[str, ...]:
    """Names of the shipped profiles of a kind: 'robot', 'policy' or 'engine'."""
    folder = config_folder() / FOLDERS[kind]
    return tuple(sorted(file.stem for file in folder.iterdir() if file.suffix in _SUFFIXES))


def locate(kind: str, name: str | Path) -> Path:
    """The file of a profile, by bare name or by path. Raises ValueError with one line."""
    text = str(name)
    if text.endswith(_SUFFIXES) or '/' in text:
        path = Path(text).expanduser()
        if path.is_file():
            return path
        wrong = 'is a folder' if path.is_dir() else 'no such file'
        raise ValueError(f'{path}: {wrong}: a {kind} profile is a .yaml file, or one of the '
                         f'shipped names {", ".join(shipped(kind))}')
    for suffix in _SUFFIXES:
        path = config_folder() / FOLDERS[kind] / (text + suffix)
        if text and path.is_file():
            return path
    names = shipped(kind)
    raise ValueError(f'{kind} profile {text!r}: not found: shipped are {", ".join(names)}'
                     f'{hint(text, names)}; a path must end in .yaml')


def resolve(file: Path, text: str) -> Path:
    """A path written in `file`: absolute, ~, package://name/rest, or relative to the file."""
    if text.startswith('package://'):
        package, _, rest = text[len('package://'):].partition('/')
        for prefix in _ament_prefixes():
            if (prefix / 'share' / package).is_dir():
                return prefix / 'share' / package / rest
        raise ValueError(f'{file}: {text}: package {package!r} is in no folder of '
                         f'AMENT_PREFIX_PATH; source its workspace or write a path')
    path = Path(text).expanduser()
    return path if path.is_absolute() else file.parent / path


def _candidates() -> Iterator[Path]:
    package = Path(__file__).resolve().parent.parent
    # Beside the code first, so that code and profiles are of the same version.
    if (package.parent / 'package.xml').is_file():
        yield package.parent / 'config'
    for prefix in (*package.parents, Path(sys.prefix), *_ament_prefixes()):
        yield prefix / 'share' / PACKAGE / 'config'


def _ament_prefixes() -> tuple[Path, ...]:
    paths = os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep)
    return tuple(Path(path) for path in paths if path)
