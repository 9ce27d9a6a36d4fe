"""The sizes of an EdgeVLA policy: what `config.json` beside its weights says."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, Union

from vla_ros.policies.edgevla.files import read_bytes

FORMAT = 'vla_ros edgevla 1'
FUSIONS = ('tokens', 'channels')
COMPRESSORS = ('learned_query', 'average_pool', 'none')
_MOST = 1 << 24  # of any size; a larger one is a slip
_SHOWN = 60      # characters of a refused value that a message quotes


@dataclass(frozen=True)
class Cameras:
    """Cameras in the order of the input, all of one image size in pixels.

    fuse: tokens = the tokens of all cameras stand side by side; channels = the features of one
    place in all images make one token (for stereo pairs).
    """

    names: tuple[str, ...]
    height: int
    width: int
    fuse: str = 'tokens'

    def __post_init__(self) -> None:
        _names('names', self.names)
        _choice('fuse', self.fuse, FUSIONS)


@dataclass(frozen=True)
class ConvEncoder:
    """Convolutions, each with a group norm and SiLU: good at local geometry."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]
    strides: tuple[int, ...]
    groups: int = 8
    kind: str = 'conv'

    def __post_init__(self) -> None:
        _choice('kind', self.kind, ('conv',))
        if not len(self.channels) == len(self.kernels) == len(self.strides) > 0:
            _refuse('channels', self.channels, 'as many as kernels and strides, one at least')
        for kernel in self.kernels:
            if kernel % 2 == 0:
                _refuse('kernels', self.kernels, 'odd numbers')
        for channels in self.channels:
            _divides('channels', channels, 'groups', self.groups)

    @property
    def size(self) -> int:
        """Channels of a cell of the grid."""
        return self.channels[-1]

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the features of an image."""
        stride = math.prod(self.strides)
        _divides('height', height, 'the product of strides', stride)
        _divides('width', width, 'the product of strides', stride)
        return height // stride, width // stride


@dataclass(frozen=True)
class VitEncoder:
    """A vision transformer: good at what things are. Sizes in pixels of a patch and in channels.

    `shuffle`: n x n neighbouring cells become one with n * n times the channels.
    """

    patch: int
    width: int
    depth: int
    heads: int
    shuffle: int = 1
    kind: str = 'vit'

    def __post_init__(self) -> None:
        _choice('kind', self.kind, ('vit',))
        _divides('width', self.width, 'heads', self.heads)

    @property
    def size(self) -> int:
        """Channels of a cell of the grid."""
        return self.width * self.shuffle**2

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the features of an image."""
        cell = self.patch * self.shuffle
        _divides('height', height, 'patch times shuffle', cell)
        _divides('width', width, 'patch times shuffle', cell)
        return height // cell, width // cell


Encoder = Union[ConvEncoder, VitEncoder]  # noqa: UP007 (evaluated at run time by Python 3.10)


@dataclass(frozen=True)
class Compressor:
    """How many visual tokens reach the transformer; `keep` is 0 with kind none: all."""

    kind: str
    keep: int = 0
    heads: int = 8

    def __post_init__(self) -> None:
        _choice('kind', self.kind, COMPRESSORS)
        if self.kind == 'none' and self.keep:
            _refuse('keep', self.keep, '0 with kind none, which keeps all tokens')
        if self.kind != 'none' and not self.keep:
            _refuse('keep', self.keep, f'at least 1 with kind {self.kind}')


@dataclass(frozen=True)
class Text:
    """The sentence as `length` tokens. `words` of the policy, or only the `size` of a vocabulary.

    `size` counts the two tokens for padding and for unknown words too; 0 = as many as needed.
    """

    words: tuple[str, ...]
    length: int
    size: int = 0

    def __post_init__(self) -> None:
        _different('words', self.words)
        if self.size and self.size < len(self.words) + 2:
            _refuse('size', self.size, f'at least {len(self.words) + 2} for these words, or 0')

    @property
    def vocabulary(self) -> int:
        """Number of different tokens."""
        return self.size or len(self.words) + 2


@dataclass(frozen=True)
class Transformer:
    """Causal, pre-norm, rotary positions, grouped queries; `hidden` is the width of its SwiGLU."""

    width: int
    layers: int
    heads: int
    kv_heads: int
    hidden: int
    epsilon: float = 1e-6
    theta: float = 10_000.0

    def __post_init__(self) -> None:
        _divides('width', self.width, 'heads', self.heads)
        _divides('heads', self.heads, 'kv_heads', self.kv_heads)
        if self.head % 2:
            _refuse('width', self.width, f'width / heads must be even; it is {self.head}')
        for name in ('epsilon', 'theta'):
            if getattr(self, name) <= 0.0:
                _refuse(name, getattr(self, name), 'a number above 0')

    @property
    def head(self) -> int:
        """Width of one head."""
        return self.width // self.heads


@dataclass(frozen=True)
class Normalization:
    """What brings numbers to the size of 1: of the state [S], of the predicted offsets [H, P].

    Units of the state and of the action; P counts the action's dimensions without the gripper.
    """

    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    offset_scale: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        for name, values in (('state_std', self.state_std),
                             *(('offset_scale', row) for row in self.offset_scale)):
            if min(values, default=1.0) <= 0.0:
                _refuse(name, min(values), 'numbers above 0')


@dataclass(frozen=True)
class EdgeVlaConfig:
    """One EdgeVLA policy. Raises ValueError with one line on sizes that do not fit.

    `action` names the dimensions; each moves the state of the same name, except the one named by
    `gripper` (empty: there is none), which is 0 closed to 1 open. `window`: frames that are
    remembered; `period`: seconds between two steps of a chunk.
    """

    cameras: Cameras
    spatial: Encoder
    semantic: Encoder
    compressor: Compressor
    text: Text
    transformer: Transformer
    state: tuple[str, ...]
    action: tuple[str, ...]
    gripper: str
    horizon: int
    period: float
    window: int
    normalization: Normalization

    def __post_init__(self) -> None:
        _names('state', self.state)
        _names('action', self.action)
        if self.gripper and self.gripper not in self.action:
            _refuse('gripper', self.gripper, f'one of {", ".join(self.action)}, or empty')
        for name in self.positions:
            if name not in self.state:
                _refuse('action', name, f'the measured state has {", ".join(self.state)}')
        if not 0.0 < self.period <= 10.0:
            _refuse('period', self.period, 'above 0 and at most 10 s')
        self._check_vision()
        sizes = {'state_mean': len(self.state), 'state_std': len(self.state),
                 'offset_scale': self.horizon}
        for name, size in sizes.items():
            found = len(getattr(self.normalization, name))
            if found != size:
                _fail(f'normalization.{name}', f'{found} entries', f'{size} are needed')
        for row in self.normalization.offset_scale:
            if len(row) != len(self.positions):
                _fail('normalization.offset_scale', f'a row of {len(row)}',
                      f'{len(self.positions)} are needed: {", ".join(self.positions)}')

    def _check_vision(self) -> None:
        camera = self.cameras
        grids = []
        for name in ('spatial', 'semantic'):
            try:
                grids.append(getattr(self, name).grid(camera.height, camera.width))
            except ValueError as error:
                raise ValueError(f'{name}: {error}') from None
        fine, coarse = grids
        if fine[0] % coarse[0] or fine[1] % coarse[1]:
            _fail('semantic', f'a grid of {coarse[0]}x{coarse[1]} cells',
                  f'it must divide the {fine[0]}x{fine[1]} cells of spatial')
        if self.compressor.kind == 'learned_query':
            try:
                _divides('transformer.width', self.transformer.width, 'heads',
                         self.compressor.heads)
            except ValueError as error:
                raise ValueError(f'compressor: {error}') from None
        if self.compressor.keep > self.grid_tokens:
            _refuse('compressor.keep', self.compressor.keep, f'at most {self.grid_tokens}')
        if self.compressor.kind == 'average_pool':
            try:
                _divides('keep', self.compressor.keep, 'the number of grids', self.grids)
            except ValueError as error:
                raise ValueError(f'compressor: {error}') from None

    @property
    def positions(self) -> tuple[str, ...]:
        """The dimensions of the action without the gripper."""
        return tuple(name for name in self.action if name != self.gripper)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of visual tokens."""
        return self.spatial.grid(self.cameras.height, self.cameras.width)

    @property
    def grids(self) -> int:
        """Number of grids of visual tokens."""
        return len(self.cameras.names) if self.cameras.fuse == 'tokens' else 1

    @property
    def grid_tokens(self) -> int:
        """Visual tokens before the compressor."""
        return self.grids * math.prod(self.grid)

    @property
    def visual_tokens(self) -> int:
        """Visual tokens after the compressor."""
        return self.compressor.keep or self.grid_tokens

    @property
    def frame_tokens(self) -> int:
        """Tokens T of one frame: text, visual, state, readout."""
        return self.text.length + self.visual_tokens + 2

    def ring_shape(self, batch: int = 1) -> tuple[int, ...]:
        """[layers, keys and values, B, W, T, kv heads, head] of the cache."""
        sizes = self.transformer
        return (sizes.layers, 2, batch, self.window, self.frame_tokens, sizes.kv_heads, sizes.head)


def small(words: Sequence[str] = (), normalization: Normalization | None = None) -> EdgeVlaConfig:
    """The policy that is trained and shipped here: two 128x128 cameras, a 6-joint arm, gripper."""
    joints = ('waist', 'shoulder', 'elbow', 'forearm_roll', 'wrist_angle', 'wrist_rotate')
    state = (*joints, 'gripper')
    horizon = 16
    return EdgeVlaConfig(
        cameras=Cameras(('base', 'wrist'), 128, 128),
        spatial=ConvEncoder((32, 64, 96, 96), (5, 3, 3, 3), (2, 2, 2, 1)),
        semantic=VitEncoder(patch=16, width=96, depth=2, heads=4),
        compressor=Compressor('learned_query', keep=24, heads=8),
        text=Text(tuple(words), length=12),
        transformer=Transformer(width=160, layers=4, heads=5, kv_heads=1, hidden=432),
        state=state, action=state, gripper='gripper', horizon=horizon, period=0.1, window=8,
        normalization=normalization or _unit(state, horizon, joints))


def published() -> EdgeVlaConfig:
    """The published size ("Manip 1.5B"); its weights are not public."""
    state = tuple(f's{i}' for i in range(80))
    horizon = 30
    vit = VitEncoder(patch=14, width=1024, depth=24, heads=16, shuffle=2)
    return EdgeVlaConfig(
        cameras=Cameras(('left', 'right'), 448, 448, fuse='channels'),
        spatial=vit, semantic=vit,
        compressor=Compressor('learned_query', keep=64, heads=8),
        text=Text((), length=32, size=151_936),
        transformer=Transformer(width=1536, layers=28, heads=12, kv_heads=2, hidden=8960,
                                theta=1_000_000.0),
        state=state, action=state, gripper='', horizon=horizon, period=0.1, window=60,
        normalization=_unit(state, horizon, state))


def _unit(state: Sequence[str], horizon: int, positions: Sequence[str]) -> Normalization:
    """A normalization that changes nothing."""
    return Normalization((0.0,) * len(state), (1.0,) * len(state),
                         ((1.0,) * len(positions),) * horizon)


# --- file ----------------------------------------------------------------------------------------


def to_json(config: EdgeVlaConfig) -> str:
    """The text of config.json, equal for equal configs."""
    return json.dumps({'format': FORMAT, **asdict(config)}, indent=1, ensure_ascii=False) + '\n'


def read_config(file: Path) -> EdgeVlaConfig:
    """The config of a checkpoint. Raises ValueError with one line: file, key, value, allowed."""
    content = read_bytes(file)
    try:
        values = json.loads(content.decode('utf-8'))
    except UnicodeDecodeError:
        raise ValueError(f'{file}: not text in UTF-8; copy the checkpoint again') from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{file}: not JSON: {" ".join(str(error).split())}') from None
    try:
        return from_values(values)
    except ValueError as error:
        raise ValueError(f'{file}: {error}') from None


def from_values(values: Any) -> EdgeVlaConfig:
    """The config in a parsed config.json. Raises ValueError with one line."""
    if not isinstance(values, dict):
        raise ValueError(f'{_show(values)}: a config is a mapping of keys to values')
    values = dict(values)
    found = values.pop('format', None)
    if found != FORMAT:
        _refuse('format', found, repr(FORMAT))
    config: EdgeVlaConfig = _mapping(EdgeVlaConfig, values, '')
    return config


def _mapping(kind: Any, values: Any, path: str) -> Any:
    """An instance of the dataclass `kind` from a mapping."""
    if not isinstance(values, dict):
        _refuse(path, values, 'a mapping of keys to values')
    prefix = f'{path}.' if path else ''
    hints = typing.get_type_hints(kind)
    known = [f.name for f in fields(kind)]
    for key in values:
        if key not in known:
            near = get_close_matches(str(key), known, 1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            _fail(f'{prefix}{key}', 'unknown key', f'allowed are {", ".join(known)}{hint}')
    given = {}
    for item in fields(kind):
        at = prefix + item.name
        if item.name in values:
            given[item.name] = _value(hints[item.name], values[item.name], at,
                                      zero=item.default == 0)
        elif item.default is MISSING and item.default_factory is MISSING:
            _fail(at, 'missing', 'it has no default')
    try:
        return kind(**given)
    except ValueError as error:
        raise ValueError(f'{prefix}{error}') from None


def _value(hint: Any, value: Any, path: str, zero: bool) -> Any:
    """A value of the type `hint`; whole numbers are sizes: at least 1, or 0 where `zero`."""
    origin = typing.get_origin(hint)
    if origin in (Union, getattr(types, 'UnionType', Union)):
        return _tagged(typing.get_args(hint), value, path)
    if origin is tuple:
        if not isinstance(value, list):
            _refuse(path, value, 'a list')
        inner = typing.get_args(hint)[0]
        return tuple(_value(inner, item, f'{path}[{i}]', zero) for i, item in enumerate(value))
    if is_dataclass(hint):
        return _mapping(hint, value, path)
    if hint is str:
        if not isinstance(value, str):
            _refuse(path, value, 'text')
    elif hint is int:
        least = 0 if zero else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            _refuse(path, value, f'a whole number from {least} to {_MOST}')
    else:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or (
                not abs(value) < math.inf):
            _refuse(path, value, 'a finite number')
        value = float(value)
    return value


def _tagged(kinds: Iterable[Any], value: Any, path: str) -> Any:
    """One of several dataclasses, told apart by its key `kind`."""
    by_kind = {kind.kind: kind for kind in kinds}
    tag = value.get('kind') if isinstance(value, Mapping) else None
    if not isinstance(tag, str) or tag not in by_kind:
        _refuse(f'{path}.kind', tag, f'one of {", ".join(by_kind)}')
    return _mapping(by_kind[tag], value, path)


def _choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        _refuse(key, value, f'one of {", ".join(choices)}')


def _divides(key: str, value: int, other: str, divisor: int) -> None:
    if value % divisor:
        _refuse(key, value, f'a multiple of {other} ({divisor})')


def _names(key: str, values: Sequence[str]) -> None:
    if not values:
        _refuse(key, list(values), 'one name at least')
    _different(key, values)


def _different(key: str, values: Sequence[str]) -> None:
    for i, value in enumerate(values):
        if value in values[:i]:
            _refuse(key, value, 'named twice; the entries must differ')
        if not value:
            _refuse(key, value, 'no empty entry')


def _refuse(key: str, value: Any, allowed: str) -> NoReturn:
    _fail(key, _show(value), allowed)


def _fail(key: str, said: str, allowed: str) -> NoReturn:
    raise ValueError(': '.join(filter(None, (key, said, allowed))))


def _show(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN - 1] + '…'
