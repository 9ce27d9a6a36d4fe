"""What each number of an action means: name, unit, kind and group of every dimension."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray


class Kind(str, Enum):
    """How the value of a dimension is to be read."""

    POSITION = 'position'  # absolute, interpolated between steps
    VELOCITY = 'velocity'  # constant over a step
    DELTA = 'delta'        # change over one policy step
    RELATIVE = 'relative'  # offset from the state at the observation
    GRIPPER = 'gripper'    # newest value, never blended


class Group(str, Enum):
    """Dimensions that are scaled together, so that a limit keeps their direction."""

    TRANSLATION = 'translation'
    ROTATION = 'rotation'
    JOINTS = 'joints'
    GRIPPER = 'gripper'


class Rotation(str, Enum):
    """How the numbers of a rotation group are to be read."""

    VECTOR = 'vector'          # rotation vector: axis times angle, 3 dimensions
    EULER = 'euler'            # roll, pitch, yaw taken component by component
    QUATERNION = 'quaternion'  # x, y, z, w: 4 dimensions of kind position


@dataclass(frozen=True)
class Dimension:
    """One number of an action.

    `state` names the entry of the measured state that this dimension moves; empty where the
    robot does not measure it. `rotation` counts only in the rotation group.
    """

    name: str
    unit: str
    kind: Kind
    group: Group
    state: str = ''
    rotation: Rotation = Rotation.VECTOR


@dataclass(frozen=True)
class ActionSpec:
    """The dimensions of an action, in order. Raises ValueError on a spec that makes no sense."""

    dimensions: tuple[Dimension, ...]

    def __post_init__(self) -> None:
        if not self.dimensions:
            raise ValueError('action: no dimensions; at least one is needed')
        names = self.names
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f'action: dimension {twice[0]!r} is named twice; names must differ')
        for dimension in self.dimensions:
            if (dimension.kind is Kind.GRIPPER) != (dimension.group is Group.GRIPPER):
                raise ValueError(
                    f'action: dimension {dimension.name!r} has kind {dimension.kind.value!r} and '
                    f'group {dimension.group.value!r}; gripper goes with gripper only')
        rotation = [d for d in self.dimensions if d.group is Group.ROTATION]
        if len({(d.rotation, d.kind) for d in rotation}) > 1:
            raise ValueError('action: the dimensions of the rotation group differ in kind or in '
                             'rotation; they must be alike')
        if rotation and rotation[0].rotation is Rotation.QUATERNION and (
                len(rotation) != 4 or rotation[0].kind is not Kind.POSITION):
            raise ValueError(f'action: a quaternion needs 4 dimensions (x, y, z, w) of kind '
                             f'position; found {len(rotation)} of kind {rotation[0].kind.value!r}')
        if rotation and rotation[0].rotation is Rotation.VECTOR and len(rotation) != 3 and (
                rotation[0].kind in (Kind.DELTA, Kind.RELATIVE)):
            raise ValueError(f'action: rotation vectors need 3 dimensions; found {len(rotation)}')

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.dimensions)

    @property
    def size(self) -> int:
        """Number of dimensions A."""
        return len(self.dimensions)

    def of_kind(self, *kinds: Kind) -> NDArray[np.intp]:
        """Indices of the dimensions of these kinds, in order."""
        return _indices(i for i, d in enumerate(self.dimensions) if d.kind in kinds)

    def of_group(self, group: Group) -> NDArray[np.intp]:
        """Indices of the dimensions of this group, in order."""
        return _indices(i for i, d in enumerate(self.dimensions) if d.group is group)

    def quaternion(self) -> NDArray[np.intp]:
        """Indices of the quaternion group (x, y, z, w); empty where there is none."""
        return _indices(i for i, d in enumerate(self.dimensions)
                        if d.group is Group.ROTATION and d.rotation is Rotation.QUATERNION)

    def indices(self, names: Iterable[str]) -> NDArray[np.intp]:
        """Indices of these dimensions, in the order of `names`. Raises ValueError on a stranger."""
        own = self.names
        names = tuple(names)
        for name in names:
            if name not in own:
                raise ValueError(f'dimension {name!r} is not in the action; it has '
                                 f'{", ".join(own)}')
        return _indices(own.index(name) for name in names)

    def as_planned(self, absolute: Collection[str]) -> ActionSpec:
        """The spec of a plan: relative dimensions and the deltas in `absolute` become positions.

        Plans carry no offsets from a state that their reader would have to know again.
        """
        def planned(d: Dimension) -> Dimension:
            anchored = d.kind is Kind.RELATIVE or (d.kind is Kind.DELTA and d.name in absolute)
            return replace(d, kind=Kind.POSITION) if anchored else d
        return ActionSpec(tuple(planned(d) for d in self.dimensions))


def _indices(values: Iterable[int]) -> NDArray[np.intp]:
    return np.fromiter(values, dtype=np.intp)
