"""Faults on a schedule: what can go wrong, when, and how a person writes it down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

Value = float | str


class Where(str, Enum):
    """What a fault befalls."""

    ENGINE = 'engine'
    CAMERA = 'camera'
    STATE = 'state'
    GRAPH = 'graph'


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault. `values`: what it may be told, with the defaults; '' must be given.

    `says`: what happens; `expects`: what the runtime should do about it; `lasts`: whether it has a
    duration, without which it lasts to the end.
    """

    name: str
    where: Where
    says: str
    expects: str
    lasts: bool = True
    values: Mapping[str, Value] = field(default_factory=dict)


_ENGINE, _CAMERA, _STATE, _GRAPH = Where
_HOLDS = 'hold once the plan runs out or is too old; resumes by itself'
KINDS: Mapping[str, FaultKind] = {kind.name: kind for kind in (
    FaultKind('engine_stall', _ENGINE, 'inferences that start now end when the fault ends', _HOLDS),
    FaultKind('engine_slow', _ENGINE, 'inferences take `by` seconds longer',
              'plays more slowly, then holds where the delay exceeds the horizon',
              values={'by': 0.5}),
    FaultKind('engine_crash', _ENGINE, 'inferences raise', 'fault until reset'),
    FaultKind('engine_nan', _ENGINE, 'the first value of each chunk is NaN', 'fault until reset'),
    FaultKind('engine_shape', _ENGINE, 'chunks lack their last dimension', 'fault until reset'),
    FaultKind('inference_gone', _ENGINE, 'the inference process dies', 'hold: inference_node '
              'silent', lasts=False),
    FaultKind('camera_stop', _CAMERA, 'no frames', _HOLDS, values={'camera': '*'}),
    FaultKind('camera_freeze', _CAMERA, 'the last picture again and again, with new stamps',
              'counted and named in /diagnostics; nothing is stopped: a still scene looks the same',
              values={'camera': '*'}),
    FaultKind('camera_drop', _CAMERA, 'a share `rate` of the frames is lost', 'goes on; holds '
              'where the plan runs out', values={'camera': '*', 'rate': 0.5}),
    FaultKind('camera_back_dated', _CAMERA, 'stamps are `by` seconds too old', 'frames dropped, '
              'then hold', values={'camera': '*', 'by': 2.0}),
    FaultKind('camera_future', _CAMERA, 'stamps are `by` seconds ahead', 'frames dropped, then '
              'hold', values={'camera': '*', 'by': 2.0}),
    FaultKind('camera_resolution', _CAMERA, 'observations have another size', 'frames dropped, '
              'then hold', values={'camera': '*', 'width': 320.0, 'height': 240.0}),
    FaultKind('state_stop', _STATE, 'no measurements', 'hold: state too old'),
    FaultKind('state_missing', _STATE, 'measurements lack the joint `joint`', 'hold: state too '
              'old', values={'joint': ''}),
    FaultKind('state_reordered', _STATE, 'names and positions in reverse order', 'nothing: joints '
              'are matched by name'),
    FaultKind('state_nan', _STATE, 'positions are NaN', 'measurements dropped, then hold'),
    FaultKind('clock_jump', _GRAPH, 'ROS time jumps by `by` seconds', 'rest, a new epoch, resumes '
              'by itself', lasts=False, values={'by': 1.0}),
    FaultKind('instruction', _GRAPH, 'the sentence `text` arrives', 'the old plan plays on for '
              'the grace, then the new one', lasts=False, values={'text': ''}),
    FaultKind('second_publisher', _GRAPH, 'somebody else publishes on a command topic', 'rest, '
              'fault until reset', lasts=False),
    FaultKind('estop', _GRAPH, 'the e-stop is pressed, and released when the fault ends',
              'stop, silent until reset and enable'),
    FaultKind('reset', _GRAPH, 'an operator calls reset', 'waiting', lasts=False),
    FaultKind('enable', _GRAPH, 'an operator calls enable', 'active', lasts=False),
    FaultKind('disable', _GRAPH, 'an operator calls enable with false', 'rest, waiting',
              lasts=False),
)}
_WORD = re.compile(r'(?P<kind>\w+)@(?P<at>[^+:]+)(\+(?P<for>[^:]+))?(:(?P<values>.+))?')
_NEXT = re.compile(r',(?=\w+=)')


@dataclass(frozen=True)
class Fault:
    """A fault of a kind, `at_s` seconds into the recording, for `for_s` or (None) to its end."""

    kind: FaultKind
    at_s: float
    for_s: float | None
    values: Mapping[str, Value]

    def number(self, name: str) -> float:
        """A value that is a number."""
        return float(self.values[name])

    def text(self, name: str) -> str:
        """A value that is a text."""
        return str(self.values[name])

    def active(self, second: float) -> bool:
        """Whether the fault is at work at this second of the recording."""
        return self.at_s <= second and (self.for_s is None or second < self.at_s + self.for_s)

    def __str__(self) -> str:
        values = ','.join(f'{name}={value:g}' if isinstance(value, float) else f'{name}={value}'
                          for name, value in self.values.items()
                          if value != self.kind.values[name])
        duration = '' if self.for_s is None else f'+{self.for_s:g}'
        return f'{self.kind.name}@{self.at_s:g}{duration}{":" if values else ""}{values}'


def parse_fault(word: str) -> Fault:
    """A fault as it stands on a command line: KIND@T[+S][:NAME=VALUE,…]. Raises ValueError."""
    match = _WORD.fullmatch(word.strip())
    if match is None:
        raise ValueError(f'fault {word!r}: write KIND@SECOND, KIND@SECOND+SECONDS or '
                         'KIND@SECOND+SECONDS:NAME=VALUE, such as engine_stall@3+2')
    values = dict(part.partition('=')[::2] for part in _NEXT.split(match['values'] or '') if part)
    return _made(word, match['kind'], match['at'], match['for'], values)


def load_faults(file: Path) -> tuple[Fault, ...]:
    """A schedule from YAML: a list of words as on a command line, or of mappings with the keys
    fault, at, for and the values. Raises ValueError with one line.
    """
    try:
        given = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ValueError(f'faults {file}: {error.strerror}; give a YAML file') from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f'faults {file}: no YAML: {" ".join(str(error).split())}') from error
    if not isinstance(given, list):
        raise ValueError(f'faults {file}: allowed is a list, such as "- engine_stall@3+2"')
    found = []
    for entry in given:
        if isinstance(entry, str):
            found.append(parse_fault(entry))
        elif isinstance(entry, dict) and 'fault' in entry and 'at' in entry:
            values = {str(k): v for k, v in entry.items() if k not in ('fault', 'at', 'for')}
            found.append(_made(f'{file}: {entry["fault"]}', str(entry['fault']), entry['at'],
                               entry.get('for'), values))
        else:
            raise ValueError(f'faults {file}: {entry!r}: allowed are a word such as '
                             'engine_stall@3+2, or a mapping with fault, at and for')
    return tuple(found)


def described(kinds: Iterable[FaultKind] = KINDS.values()) -> str:
    """The kinds of faults for `--help`, a line each."""
    return '\n'.join(
        f'  {kind.name:<18} {kind.says}' + (f' ({", ".join(kind.values)})' if kind.values else '')
        for kind in kinds)


def _made(word: str, name: str, at: Any, duration: Any, values: Mapping[str, Any]) -> Fault:
    kind = KINDS.get(name)
    if kind is None:
        near = get_close_matches(name, KINDS, 1)
        hint = f'did you mean {near[0]}?' if near else f'allowed are {", ".join(KINDS)}'
        raise ValueError(f'fault {word!r}: no kind {name!r}; {hint}')
    if duration is not None and not kind.lasts:
        raise ValueError(f'fault {word!r}: {name} is a moment and has no duration; leave it out')
    unknown = [key for key in values if key not in kind.values]
    if unknown:
        allowed = ', '.join(kind.values) or 'none'
        raise ValueError(f'fault {word!r}: {unknown[0]!r}: {name} takes {allowed}')
    full: dict[str, Value] = {}
    for key, default in kind.values.items():
        value = values.get(key, default)
        full[key] = _number(word, key, value) if isinstance(default, float) else str(value)
        if key not in values and default == '':
            raise ValueError(f'fault {word!r}: {key}: missing, such as {name}@3:{key}=…')
    if 'rate' in full and not 0.0 <= float(full['rate']) <= 1.0:
        raise ValueError(f'fault {word!r}: rate: {full["rate"]}; allowed is 0 to 1')
    for key in ('width', 'height'):
        if key in full and not 1.0 <= float(full[key]) <= 8192.0:
            raise ValueError(f'fault {word!r}: {key}: {full[key]}; allowed is 1 to 8192')
    second = _number(word, 'at', at, least=0.0)
    seconds = None if duration is None else _number(word, 'for', duration, least=0.0)
    return Fault(kind, second, seconds, full)


def _number(word: str, name: str, value: Any, least: float = -1e9) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = float('nan')
    if not least <= number <= 1e9:
        raise ValueError(f'fault {word!r}: {name}: {value!r}; allowed are seconds or numbers'
                         + (' from 0' if least == 0.0 else ''))
    return number
