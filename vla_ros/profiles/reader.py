"""Reads YAML key by key; whatever is wrong becomes one line: file: key: value: what is allowed."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import yaml

from vla_ros.core.types import NS_PER_S

_SHOWN = 60  # characters of a refused value that a message quotes
_MOST_BYTES = 1 << 20
_MOST = 1e6  # of a position
_INF = math.inf
KINDS = ('robot', 'policy', 'engine')
TOPIC = re.compile(r'(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*')
TOPIC_RULE = 'a ROS topic name: letters, digits, _ and / between words, no digit first'
TOKEN = re.compile(r'[a-z][a-z0-9_]*')
TOKEN_RULE = 'lower-case letters, digits and _, a letter first'
NAME = re.compile(r'\S+')
NAME_RULE = 'a name without spaces'


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice instead of keeping the last one."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if (key.tag, key.value) in seen:
                raise yaml.MarkedYAMLError(problem=f'key {key.value!r} is written twice',
                                           problem_mark=key.start_mark)
            seen.add((key.tag, key.value))
        return node


def read_yaml(file: Path) -> Section:
    """The top-level mapping of a YAML file. Raises ValueError with one line."""
    try:
        # A subclass of SafeLoader, so that only plain values are built.
        if file.stat().st_size > _MOST_BYTES:
            raise ValueError(f'larger than {_MOST_BYTES} bytes, which no profile is')
        values = yaml.load(file.read_text(encoding='utf-8'), _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = '?' if mark is None else str(mark.line + 1)
        problem = ' '.join(str(error.problem or error.context).split())
        raise ValueError(f'{file}: line {line}: not YAML: {problem}') from None
    except UnicodeDecodeError:
        raise ValueError(f'{file}: not text in UTF-8; save it as UTF-8') from None
    except yaml.YAMLError as error:
        raise ValueError(f'{file}: not YAML: {" ".join(str(error).split())}') from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{file}: not YAML: {" ".join(str(error).split())}') from None
    except OSError as error:
        raise ValueError(f'{file}: cannot be read: {error.strerror or error}') from None
    if values is None:
        raise ValueError(f'{file}: empty: a profile needs keys and values')
    if not isinstance(values, dict):
        raise ValueError(f'{file}: {show(values)}: a profile is a mapping of keys to values')
    return Section(file, values)


def read_profile(file: Path, kind: str) -> Section:
    """A profile of this kind: 'robot', 'policy' or 'engine'. Raises ValueError with one line."""
    section = read_yaml(file)
    others = [other for other in KINDS if other != kind and other in section.keys()]
    if kind not in section.keys() and others:
        raise ValueError(f'{file}: {kind}: missing: this is a profile of kind {others[0]}; '
                         f'give one of kind {kind}')
    return section


class Section:
    """One mapping of a YAML file. Every getter raises ValueError with one line.

    A getter without `default` reads a required key. After the last getter `done()` refuses the
    keys that no getter asked for.
    """

    def __init__(self, file: Path, values: Mapping[Any, Any], path: str = '') -> None:
        self.file = file
        self.path = path
        self._values = values
        self._known: set[str] = set()
        self._excused: set[str] = set()
        for key in values:
            if not isinstance(key, str):
                raise ValueError(f'{file}: {self._at(show(key))}: a key must be text; '
                                 f'write it in quotes')

    def keys(self) -> tuple[str, ...]:
        return tuple(self._values)

    def has(self, key: str) -> bool:
        """Whether the optional key is given."""
        self._known.add(key)
        return key in self._values

    def is_mapping(self, key: str) -> bool:
        """Whether the optional key is given and holds a mapping."""
        self._known.add(key)
        return isinstance(self._values.get(key), dict)

    def is_list(self, key: str) -> bool:
        """Whether the optional key is given and holds a list."""
        self._known.add(key)
        return isinstance(self._values.get(key), list)

    def fail(self, key: str, allowed: str, value: Any = ...) -> NoReturn:
        """Refuse the value of this key (or the given value in its place)."""
        shown = show(self._values.get(key) if value is ... else value)
        raise ValueError(f'{self.file}: {self._at(key)}: {shown}: {allowed}')

    def refuse(self, key: str, only: str) -> None:
        """Refuse a key that counts only in another case, say 'only with source: v4l2'."""
        if key in self._values:
            self.fail(key, only)
        self._excused.add(key)

    def text(self, key: str, default: str | None = None, *, choices: Iterable[str] = (),
             pattern: re.Pattern[str] | None = None, rule: str = 'text') -> str:
        """A non-empty string; one of `choices`, or a full match of `pattern`, where given."""
        choices = tuple(choices)
        rule = 'one of ' + ', '.join(choices) if choices else rule
        value = self._value(key, default, rule)
        self._check_text(key, value, rule)
        if choices and value not in choices:
            self.fail(key, rule + hint(value, choices))
        if pattern is not None and not pattern.fullmatch(value):
            self.fail(key, rule)
        return str(value)

    def number(self, key: str, default: float | None = None, *, above: float = -_INF,
               low: float = -_INF, high: float = _INF, unit: str = '') -> float:
        """A finite number: > above, >= low, <= high."""
        rule = _range('a number', above, low, high, unit)
        value = self._value(key, default, rule)
        self._check_number(key, value, rule)
        if not (value > above and low <= value <= high):
            self.fail(key, rule)
        if abs(value) > _MOST:  # the differences of such numbers lose what matters
            self.fail(key, f'{rule}; {_MOST:g} is the most')
        return float(value)

    def seconds(self, key: str, default: float | None = None, *, above: float = -_INF,
                low: float = 0.0, high: float = 3600.0) -> int:
        """A time written in seconds, as nanoseconds."""
        return round(self.number(key, default, above=above, low=low, high=high, unit='s')
                     * NS_PER_S)

    def integer(self, key: str, default: int | None = None, *, low: int, high: int) -> int:
        """A whole number from low to high."""
        rule = f'a whole number from {low} to {high}'
        value = self._value(key, default, rule)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.fail(key, rule)
        return value

    def flag(self, key: str, default: bool | None = None) -> bool:
        """true or false."""
        value = self._value(key, default, 'true or false')
        if not isinstance(value, bool):
            self.fail(key, 'true or false, without quotes')
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None, *, minimum: int = 0,
              choices: Iterable[str] = (), rule: str = 'a list of names') -> tuple[str, ...]:
        """A list of different strings, each one of `choices` where given."""
        choices = tuple(choices)
        values = self._list(key, default, rule, minimum)
        for i, value in enumerate(values):
            self._check_text(f'{key}[{i}]', value, NAME_RULE)
            if not NAME.fullmatch(value):
                self.fail(f'{key}[{i}]', NAME_RULE, value)
            if choices and value not in choices:
                self.fail(f'{key}[{i}]', f'one of {", ".join(choices)}{hint(value, choices)}',
                          value)
        self._check_different(key, values)
        return tuple(values)

    def interval(self, key: str) -> tuple[float, float]:
        """A pair [low, high] of finite numbers with low < high."""
        rule = 'two numbers [low, high] with low below high'
        values = self._list(key, None, rule, 2)
        for i, value in enumerate(values):
            self._check_number(f'{key}[{i}]', value, 'a number')
            if abs(value) > _MOST:
                self.fail(f'{key}[{i}]', f'a number from {-_MOST:g} to {_MOST:g}', value)
        if len(values) != 2 or not values[0] < values[1]:
            self.fail(key, rule)
        return float(values[0]), float(values[1])

    def integers(self, key: str, default: tuple[int, ...] | None = None, *,
                 low: int, high: int) -> tuple[int, ...]:
        """A list of different whole numbers from low to high."""
        rule = f'a whole number from {low} to {high}'
        values = self._list(key, default, f'a list, each entry {rule}', 0)
        for i, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                self.fail(f'{key}[{i}]', rule, value)
        self._check_different(key, values)
        return tuple(values)

    def section(self, key: str, rule: str = 'a mapping of keys to values') -> Section:
        """A mapping; an empty one where the key is missing."""
        value = self._value(key, {}, rule)
        return self._child(key, value, rule)

    def named_sections(self, key: str, rule: str) -> dict[str, Section]:
        """A non-empty mapping of names to mappings, in the order of the file."""
        value = self._value(key, None, rule)
        outer = self._child(key, value, rule)
        if not value:
            self.fail(key, rule)
        for name in value:
            if not NAME.fullmatch(name):
                outer.fail(name, NAME_RULE, name)
        return {name: outer._child(name, inner, rule) for name, inner in value.items()}

    def listed_sections(self, key: str, rule: str) -> list[Section]:
        """A non-empty list of mappings."""
        values = self._list(key, None, rule, 1)
        return [self._child(f'{key}[{i}]', value, rule) for i, value in enumerate(values)]

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping handed on as it is, empty where missing; its owner checks what is in it."""
        return dict(self.section(key)._values)

    def done(self) -> None:
        """Refuse the keys that no getter asked for."""
        for key in self._values:
            if key not in self._known:
                known = sorted(self._known | self._excused)
                raise ValueError(f'{self.file}: {self._at(key)}: unknown key: '
                                 f'allowed are {", ".join(known)}{hint(key, known)}')

    def _value(self, key: str, default: Any, rule: str) -> Any:
        self._known.add(key)
        if key in self._values:
            return self._values[key]
        if default is not None:
            return default
        strangers = [k for k in self._values if k not in self._known]
        found = get_close_matches(key, strangers, 1, cutoff=0.75)
        slip = f'; is {found[0]!r} meant to be {key!r}?' if found else ''
        raise ValueError(f'{self.file}: {self._at(key)}: missing: {rule}{slip}')

    def _list(self, key: str, default: tuple[Any, ...] | None, rule: str,
              minimum: int) -> list[Any]:
        value = self._value(key, default, rule)
        if not isinstance(value, (list, tuple)):
            self.fail(key, f'{rule}; write it as [a, b]')
        if len(value) < minimum:
            self.fail(key, f'{rule}; at least {minimum}')
        return list(value)

    def _child(self, key: str, value: Any, rule: str) -> Section:
        if not isinstance(value, dict):
            self.fail(key, rule, value)
        return Section(self.file, value, self._at(key))

    def _check_text(self, key: str, value: Any, rule: str) -> None:
        if isinstance(value, str) and value.strip():
            return
        quotes = '' if isinstance(value, (str, list, dict, type(None))) else '; write it in quotes'
        self.fail(key, rule + quotes, value)

    def _check_number(self, key: str, value: Any, rule: str) -> None:
        if isinstance(value, str) and _looks_like_a_number(value):
            self.fail(key, f'{rule}; YAML reads this as text: write it without quotes and with a '
                           f'point, as in 1.0e-3', value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, rule, value)
        if not _is_finite(value):
            self.fail(key, f'{rule}; it must be finite', value)

    def _check_different(self, key: str, values: list[Any]) -> None:
        for i, value in enumerate(values):
            if value in values[:i]:
                self.fail(f'{key}[{i}]', 'named twice; the entries must differ', value)

    def _at(self, key: str) -> str:
        shown = key if key.isprintable() else show(key)
        return f'{self.path}.{shown}' if self.path else shown


def show(value: Any) -> str:
    """A value as a message quotes it: on one line, cut where it is long."""
    if value is None:
        return 'nothing'
    if isinstance(value, bool):
        return 'true' if value else 'false'
    # Not repr itself: aliases can make a small file into a value of any size.
    shorten = reprlib.Repr()
    shorten.maxlevel, shorten.maxstring, shorten.maxlong, shorten.maxother = 2, 5000, 5000, 5000
    text = shorten.repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN - 1] + '…'


def hint(word: str, words: Iterable[str]) -> str:
    """`; did you mean 'x'?` where one of the words is close to this one, else nothing."""
    matches = get_close_matches(word, tuple(words), 1)
    return f'; did you mean {matches[0]!r}?' if matches else ''


def _range(what: str, above: float, low: float, high: float, unit: str) -> str:
    bounds = []
    if above > -_INF:
        bounds.append(f'above {above:g}')
    elif low > -_INF:
        bounds.append(f'at least {low:g}')
    if high < _INF:
        bounds.append(f'at most {high:g}')
    return ' '.join(filter(None, (what, ' and '.join(bounds), unit)))


def _looks_like_a_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False
