"""Whether a backend may answer in place of the baseline: the verdict of a check, kept, asked for.

It is kept as a file that people can read, under what it depends on: weights, backend, precision,
GPU, torch, driver.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vla_ros.core.types import Observation
from vla_ros.engines.atomic import write_text
from vla_ros.engines.rules import Rule

CACHE_VARIABLE = 'VLA_ROS_CACHE'
OVERRIDE = 'allow_failed_check'
FORMAT = 1


@dataclass(frozen=True)
class Key:
    """What a verdict depends on. `options`: of the backend, in one line; empty where plain."""

    weights: str
    backend: str
    precision: str
    gpu: str
    torch: str
    driver: str
    package: str = ''
    options: str = ''

    @property
    def file_name(self) -> str:
        """Of the verdict: readable, and different for different keys."""
        whole = json.dumps(asdict(self), sort_keys=True).encode()
        names = '_'.join((self.weights[:12], self.backend, self.precision, self.gpu))
        digest = hashlib.sha256(whole).hexdigest()[:8]
        return f'{re.sub("[^A-Za-z0-9.-]+", "_", names)}_{digest}.json'

    def __str__(self) -> str:
        return f'{self.backend} in {self.precision} on {self.gpu}'


@dataclass(frozen=True)
class Verdict:
    """What came of a check. `observations` says which and how many; `figures` is for people."""

    key: Key
    rules: tuple[Rule, ...]
    observations: str
    count: int
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether all rules are kept."""
        return bool(self.rules) and all(rule.passed for rule in self.rules)

    @property
    def broken(self) -> Rule | None:
        """The first rule that is not."""
        return next((rule for rule in self.rules if not rule.passed), None)

    def as_json(self) -> dict[str, Any]:
        """For files and for people."""
        rules = [{**asdict(rule), 'value': rule.value if math.isfinite(rule.value) else None,
                  'passed': rule.passed} for rule in self.rules]
        return {'format': FORMAT, 'passed': self.passed, 'key': asdict(self.key), 'rules': rules,
                'observations': self.observations, 'count': self.count,
                'figures': dict(self.figures)}


@runtime_checkable
class Checked(Protocol):
    """An engine that can be compared with the baseline of its family, loaded or not."""

    def check(self, observations: Sequence[Observation], source: str,
              report: Callable[[str], None]) -> Verdict:
        """The verdict on its backend and precision. Raises ValueError with one line."""


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where verdicts are kept: $VLA_ROS_CACHE, or vla_ros in the user's cache."""
    known = os.environ if environment is None else environment
    own = known.get(CACHE_VARIABLE)
    if own:
        return Path(own).expanduser() / 'verdicts'
    users = known.get('XDG_CACHE_HOME') or str(Path(known.get('HOME') or '~').expanduser()
                                               / '.cache')
    return Path(users) / 'vla_ros' / 'verdicts'


def store(verdict: Verdict, folder: Path | None = None) -> Path:
    """Write a verdict, whole or not at all. Raises OSError where that cannot be done."""
    folder = cache_folder() if folder is None else folder
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / verdict.key.file_name
    write_text(file, json.dumps(verdict.as_json(), indent=2, allow_nan=False) + '\n')
    return file


def load(key: Key, folder: Path | None = None) -> Verdict | None:
    """The verdict of a key; None where there is none, or none that can be read."""
    file = (cache_folder() if folder is None else folder) / key.file_name
    try:
        found = _verdict(json.loads(file.read_text(encoding='utf-8')))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if found.key == key else None


def _verdict(values: Any) -> Verdict:
    if values['format'] != FORMAT:
        raise ValueError('of another version')
    rules = tuple(Rule(rule['name'], math.nan if rule['value'] is None else float(rule['value']),
                       float(rule['limit']), rule['unit'], rule['strict'])
                  for rule in values['rules'])
    return Verdict(Key(**values['key']), rules, str(values['observations']), int(values['count']),
                   dict(values['figures']))


def gate(key: Key, check: Callable[[], Verdict], report: Callable[[str], None],
         allow_failed: bool = False, folder: Path | None = None) -> Verdict:
    """The verdict that lets an engine run, checked now where there is none yet.

    Raises ValueError with one line where it failed and `allow_failed` is not set. Baseline itself
    needs none: do not ask.
    """
    verdict = load(key, folder)
    if verdict is None:
        report(f'check: no verdict on {key} with these weights yet; comparing with the baseline')
        verdict = check()
        try:
            store(verdict, folder)
        except OSError as error:
            report(f'check: the verdict cannot be kept ({error.strerror or error}), and will be '
                   'made again next time')
    broken = verdict.broken
    if verdict.passed:
        report(f'check: {key}: passed on {verdict.count} observations')
    elif allow_failed:
        report(f'check: {key}: failed ({broken}), and {OVERRIDE} is set')
    else:
        raise ValueError(f'{key}: the check against the baseline failed: '
                         f'{broken or "it says nothing"}; choose another backend or precision, or '
                         f'set {OVERRIDE}: true in the options of the engine profile')
    return verdict
