"""One table per node: the single source of its parameters, descriptors, validation and docs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter as RosParameter

TYPES = {bool: 'bool', int: 'int', float: 'double', str: 'string'}
# Parameters that rclpy declares or reads by itself.
FOREIGN = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')


@dataclass(frozen=True)
class Parameter:
    """One row: the type is that of `default`; `low` and `high` bound numbers, both inclusive."""

    name: str
    default: bool | int | float | str
    description: str
    unit: str = ''
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def problem(self, value: Any) -> str:
        """Why a value is not allowed, in one line, or ''."""
        kind = type(self.default)
        if type(value) is not kind:
            hint = f'; write {float(value)}' if kind is float and type(value) is int else ''
            return f'{self.name}: {value!r}: a {TYPES[kind]} is needed{hint}'
        if self.choices and value not in self.choices:
            return f'{self.name}: {value!r}: allowed are {", ".join(self.choices)}'
        # Written so that a nan fails, too.
        above_low = self.low is None or value >= self.low
        below_high = self.high is None or value <= self.high
        if not (above_low and below_high):
            bounds = ' '.join(f'{word} {bound}' for word, bound in (
                ('from', self.low), ('to', self.high)) if bound is not None)
            return f'{self.name}: {value}: {bounds}{self.unit and " " + self.unit} is allowed'
        return ''

    def descriptor(self) -> ParameterDescriptor:
        unit = f' [{self.unit}]' if self.unit else ''
        descriptor = ParameterDescriptor(
            description=self.description + unit,
            additional_constraints=f'one of {", ".join(self.choices)}' if self.choices else '')
        if self.low is not None and self.high is not None:
            if isinstance(self.default, float):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=float(self.low), to_value=float(self.high))]
            else:
                descriptor.integer_range = [
                    IntegerRange(from_value=int(self.low), to_value=int(self.high), step=1)]
        return descriptor


REAL_TIME_IMAGES = Parameter(
    'real_time', True, 'ask for a low real-time priority for what carries images; engines and '
    'decoding libraries keep the ordinary one')


class ParameterTable:
    """The parameters of one node, in order."""

    def __init__(self, rows: Iterable[Parameter]) -> None:
        self.rows = tuple(rows)

    def declare(self, node: Node) -> None:
        """Declare all; from then on a change is validated, and applied at the next configure.

        Raises ValueError with one line on an unknown name, a wrong type or a value out of range.
        """
        given = getattr(node, '_parameter_overrides', {})
        names = [row.name for row in self.rows]
        for name in given:
            if name not in names and not name.startswith(FOREIGN):
                near = get_close_matches(name, names, 1)
                raise ValueError(f'parameter {name!r}: {node.get_name()} has no such parameter; '
                                 f'it has {", ".join(names)}'
                                 + (f'; did you mean {near[0]}?' if near else ''))
        for row in self.rows:
            problem = row.problem(given[row.name].value) if row.name in given else ''
            if problem:
                raise ValueError(f'parameter {problem}')
            node.declare_parameter(row.name, row.default, row.descriptor())
        node.add_on_set_parameters_callback(self._validated)
        self.snapshot(node)

    def snapshot(self, node: Node) -> Mapping[str, Any]:
        """All values by name, as of now. Raises ValueError with one line."""
        values = {row.name: node.get_parameter(row.name).value for row in self.rows}
        for row in self.rows:
            problem = row.problem(values[row.name])
            if problem:
                raise ValueError(f'parameter {problem}')
        return values

    def markdown(self) -> str:
        """The table for the docs."""
        lines = ['| parameter | type | default | description |', '|---|---|---|---|']
        for row in self.rows:
            plain = str(row.default).lower() if isinstance(row.default, bool) else row.default
            default = f'`{plain}`' if row.default != '' else ''
            about = row.description
            if row.choices:
                about += f' ({", ".join(f"`{choice}`" for choice in row.choices)})'
            if row.unit:
                about += f' [{row.unit}]'
            lines.append(f'| `{row.name}` | {TYPES[type(row.default)]} | {default} | {about} |')
        return '\n'.join(lines)

    def _validated(self, parameters: list[RosParameter]) -> SetParametersResult:
        rows = {row.name: row for row in self.rows}
        for parameter in parameters:
            row = rows.get(parameter.name)
            problem = row.problem(parameter.value) if row is not None else ''
            if problem:
                return SetParametersResult(successful=False, reason=problem)
        return SetParametersResult(successful=True)
