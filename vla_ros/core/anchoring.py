"""Deltas and relative actions made absolute, once, at the state measured at the chunk's stamp."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Group, Kind, Rotation
from vla_ros.core.padding import pad
from vla_ros.core.rotations import (
    multiply,
    quaternion_from_vector,
    unwrapped,
    vector_from_quaternion,
)
from vla_ros.core.types import Floats


class Anchoring:
    """Turns a chunk of the policy's spec into one of the planned spec.

    A relative value of step i is added to the anchor. Deltas are the way over their step: at the
    beginning of step i the deltas before it have been made, so H deltas are H + 1 positions, from
    the anchor to the anchor plus all of them, and a chunk with anchored deltas gets a last step in
    which they are held. Played by an arm without lag this is the velocity delta / period, and an
    arm that follows it is where the next chunk takes its anchor.

    Rotation vectors are composed in the fixed frame, R_i = exp(delta_i) R_(i-1), and their anchor
    is a measured rotation vector; Euler angles are added component by component.
    """

    def __init__(self, spec: ActionSpec, absolute: Collection[str]) -> None:
        self.spec = spec
        self.planned = spec.as_planned(absolute)
        pairs = zip(spec.dimensions, self.planned.dimensions, strict=True)
        anchored = [i for i, (own, planned) in enumerate(pairs) if own.kind is not planned.kind]
        for i in anchored:
            if not spec.dimensions[i].state:
                raise ValueError(f'dimension {spec.dimensions[i].name!r}: its deltas must be made '
                                 'absolute, but no measured state is named for it; give it one')
        vector = [i for i in anchored if spec.dimensions[i].group is Group.ROTATION
                  and spec.dimensions[i].rotation is Rotation.VECTOR]
        kinds = np.array([d.kind for d in spec.dimensions], dtype=object)
        self._vector = np.array(vector, dtype=np.intp)
        self._vector_delta = bool(vector) and kinds[vector[0]] is Kind.DELTA
        plain = [i for i in anchored if i not in vector]
        self._cumulated = np.array([i for i in plain if kinds[i] is Kind.DELTA], dtype=np.intp)
        self._added = np.array(plain, dtype=np.intp)
        self._anchored: NDArray[np.intp] = np.array(anchored, dtype=np.intp)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The state entries whose measured values `apply` needs, in order."""
        return tuple(self.spec.dimensions[i].state for i in self._anchored)

    def apply(self, actions: Floats, anchor: Floats) -> Floats:
        """Actions in the planned spec: [H + 1, A] where deltas are anchored, else [H, A].

        `anchor` [n] as in `state_names`.
        """
        actions = np.array(actions, dtype=np.float64)
        if self._cumulated.size or self._vector_delta:
            actions = pad(actions, len(actions) + 1, self.spec)
        full = np.zeros(self.spec.size)
        full[self._anchored] = anchor
        deltas = actions[:, self._cumulated]
        actions[:, self._cumulated] = np.cumsum(deltas, axis=0) - deltas
        actions[:, self._added] += full[self._added]
        if self._vector.size:
            actions[:, self._vector] = self._composed(actions[:, self._vector], full[self._vector])
        return actions

    def _composed(self, vectors: Floats, anchor: Floats) -> Floats:
        base = quaternion_from_vector(anchor)
        if self._vector_delta:  # at the beginning of a step its own delta has not been made
            vectors = np.vstack([np.zeros(3), vectors[:-1]])
        near = anchor
        result = np.empty_like(vectors)
        for i, vector in enumerate(vectors):
            rotation = multiply(quaternion_from_vector(vector), base)
            if self._vector_delta:
                base = rotation
            near = result[i] = unwrapped(vector_from_quaternion(rotation), near)
        return result
