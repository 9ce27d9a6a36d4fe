"""Gates: limits for figures, in a file that a team keeps, so that a run passes or fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from vla_ros.replay.figures import flat


@dataclass(frozen=True)
class Gate:
    """Limits of the figures whose dotted names match `figure`, in which * stands for anything."""

    figure: str
    least: float | None
    most: float | None


@dataclass(frozen=True)
class Judged:
    """One figure beside its gate. `value` is None where it could not be measured: that fails."""

    name: str
    value: float | None
    gate: Gate

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limits."""
        if self.value is None:
            return False
        low, high = self.gate.least, self.gate.most
        return (low is None or self.value >= low) and (high is None or self.value <= high)

    def __str__(self) -> str:
        value = 'not measured' if self.value is None else f'{self.value:g}'
        limits = [f'{word} {limit:g} is allowed' for word, limit in (
            ('at least', self.gate.least), ('at most', self.gate.most)) if limit is not None]
        return f'{self.name}: {value}; {", ".join(limits)}'

    def as_json(self) -> dict[str, Any]:
        """For replay.json."""
        return {'figure': self.name, 'value': self.value, 'min': self.gate.least,
                'max': self.gate.most, 'passed': self.passed}


def load_gates(file: Path) -> tuple[Gate, ...]:
    """Gates from YAML: `FIGURE: {max: N}`, `{min: N}` or both. Raises ValueError, one line."""
    try:
        given = yaml.safe_load(file.read_text())
    except OSError as error:
        raise ValueError(f'gates {file}: {error.strerror}; give a YAML file') from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f'gates {file}: no YAML: {" ".join(str(error).split())}') from error
    if not isinstance(given, dict) or not given:
        raise ValueError(f'gates {file}: allowed is a mapping such as '
                         '"latency_ms.first_command.p99: {max: 200}"')
    return tuple(_gate(file, str(name), limits) for name, limits in given.items())


def judge(gates: tuple[Gate, ...], figures: Mapping[str, Any]) -> tuple[Judged, ...]:
    """Every figure that a gate names. Raises ValueError where a gate names none that there is."""
    values = flat(figures)
    # A figure that is None as a whole has no parts to name.
    empty = [name for name, value in values.items() if value is None]
    judged = []
    for gate in gates:
        names = [name for name in values if fnmatchcase(name, gate.figure)]
        if not names and any(gate.figure.startswith(f'{name}.') for name in empty):
            judged.append(Judged(gate.figure, None, gate))
            continue
        if not names:
            near = get_close_matches(gate.figure, values, 1)
            hint = f'did you mean {near[0]!r}?' if near else 'replay.json lists the figures'
            raise ValueError(f'gate {gate.figure!r}: no figure of this name; {hint}')
        judged += [Judged(name, _number(values[name], gate), gate) for name in names]
    return tuple(judged)


def _number(value: Any, gate: Gate) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f'gate {gate.figure!r}: {value!r} is no number')
    return float(value)


def _gate(file: Path, name: str, limits: Any) -> Gate:
    keys = set(limits) if isinstance(limits, dict) else {''}
    if not keys or not keys <= {'min', 'max'}:
        raise ValueError(f'gates {file}: {name}: {limits!r}; allowed are {{max: N}}, {{min: N}} or '
                         'both')
    for key, value in limits.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f'gates {file}: {name}: {key}: {value!r}; allowed are numbers')
    return Gate(name, limits.get('min'), limits.get('max'))
