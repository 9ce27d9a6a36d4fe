"""How long an inference takes in a replay: fixed, drawn with a seed, or measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vla_ros.core.types import NS_PER_S

MEASURED = 'measured'
LATENCY_TOPIC = 'latency'
MOST_S = 600.0


@dataclass(frozen=True)
class Delays:
    """Delays of inference. `fixed_ns`, or one of `drawn_ns`, or, with neither, measured ones."""

    says: str
    fixed_ns: int | None = None
    drawn_ns: tuple[int, ...] = ()
    seed: int = 0

    @property
    def measured(self) -> bool:
        """Whether the time is that of this machine, so that no two runs are the same."""
        return self.fixed_ns is None and not self.drawn_ns

    def source(self) -> Draw:
        """Delays one by one."""
        return Draw(self)


class Draw:
    """Draws one delay after the other."""

    def __init__(self, delays: Delays) -> None:
        self._delays = delays
        self._random = np.random.default_rng(delays.seed)

    def next_ns(self) -> int:
        """The next delay; not for measured ones."""
        if self._delays.fixed_ns is not None:
            return self._delays.fixed_ns
        return self._delays.drawn_ns[int(self._random.integers(len(self._delays.drawn_ns)))]


def read_delays(word: str, seed: int, usual_ns: int) -> Delays:
    """Delays as a command line says them; '' is the engine profile's `inference_time`.

    A number: milliseconds. `measured`. A JSON file: a list of milliseconds, or a replay.json. A
    bag: the stages on its topic `latency`. Raises ValueError with one line.
    """
    if not word:
        return Delays(f'{usual_ns / 1e6:g} ms, from the engine profile', usual_ns)
    if word == MEASURED:
        return Delays('measured on this machine: not repeatable')
    try:
        fixed_ms = float(word)
    except ValueError:
        pass
    else:
        return Delays(f'{fixed_ms:g} ms', _ns([fixed_ms], word)[0])
    path = Path(word)
    if not path.exists():
        raise ValueError(f'delay {word!r}: allowed are milliseconds, {MEASURED!r}, a JSON file '
                         f'with a list of milliseconds, or a bag with the topic {LATENCY_TOPIC!r}')
    delays_ms = _json(path) if path.suffix == '.json' else _recorded(path)
    return Delays(f'drawn from {len(delays_ms)} of {path.name}, seed {seed}',
                  drawn_ns=_ns(delays_ms, word), seed=seed)


def _json(path: Path) -> list[Any]:
    try:
        given = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f'delay {path}: no JSON: {" ".join(str(error).split())}') from error
    if isinstance(given, dict):
        given = given.get('machine', {}).get('inference_ms')
    if not isinstance(given, list) or not given:
        raise ValueError(f'delay {path}: allowed is a list of milliseconds, or a replay.json with '
                         'machine.inference_ms')
    return given


def _recorded(path: Path) -> list[float]:
    """From `started` to `inferred` of every inference."""
    from vla_ros.replay.bags import Bag
    found = []
    with Bag(path) as bag:
        for message in bag.messages([LATENCY_TOPIC]):
            values = {pair.key: pair.value for pair in message.message.values}
            if 'inferred' in values:
                begun = values.get('called', values.get('started', ''))
                found.append((int(values['inferred']) - int(begun)) / 1e6)
    if not found:
        raise ValueError(f'bag {path}: topic {LATENCY_TOPIC!r} holds no inference; record it with '
                         'publish_latency: true')
    return found


def _ns(delays_ms: Sequence[Any], word: str) -> tuple[int, ...]:
    for each in delays_ms:
        if not isinstance(each, int | float) or not 0.0 <= each <= MOST_S * 1e3:
            raise ValueError(f'delay {word}: {each!r} ms; allowed is 0 to {MOST_S * 1e3:g}')
    return tuple(round(each / 1e3 * NS_PER_S) for each in delays_ms)
