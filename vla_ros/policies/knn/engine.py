"""Runs the family `knn`: the actions that followed the recorded frames closest to this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import ActionSpec, Kind
from vla_ros.core.types import Floats, Observation
from vla_ros.engines.contract import Engine
from vla_ros.policies.contracts import contract_of
from vla_ros.policies.knn.checkpoint import Memory, load
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile

BACKENDS = ('numpy',)
_BLOCK = 4096  # frames that are compared at once


@dataclass(frozen=True)
class Query:
    """An observation as it is compared: feature float32 [F] of the primary image, instruction."""

    feature: NDArray[np.float32]
    instruction: str


class KnnEngine(Engine):
    """Visual nearest-neighbour imitation after VINN (arXiv 2112.01511).

    Among the frames recorded under the closest sentence, the `neighbours` closest ones are
    weighted with exp(-distance / temperature). Same observation, same actions.
    """

    def __init__(self, policy: PolicyProfile, engine: EngineProfile) -> None:
        self.contract = contract_of(policy, BACKENDS)
        options = policy.read_options()
        self._neighbours = options.integer('neighbours', 5, low=1, high=1000)
        self._temperature = options.number('temperature', 0.1, above=0.0, high=100.0)
        options.done()
        if policy.checkpoint is None:
            raise ValueError(f'{policy.file}: checkpoint: missing: the family knn needs one; '
                             f'build it with: vla-ros build-knn BAG… --out FILE')
        self._path = policy.checkpoint
        self._threads = engine.threads
        self._camera = next(iter(self.contract.cameras))
        self._memory: Memory | None = None
        # Sentences come seldom and observations often: the frames of the last one are kept.
        self._asked: tuple[str, NDArray[np.intp], NDArray[np.float32]] | None = None

    def load(self) -> None:
        import cv2

        from vla_ros.policies.knn.features import SIZE, VERSION
        cv2.setNumThreads(self._threads)
        memory = load(self._path)
        contract = self.contract
        expected = {
            'names': contract.action.names,
            'kinds': tuple(d.kind.value for d in contract.action.dimensions),
            'period_ns': contract.period_ns,
            'feature_version': VERSION,
        }
        for name, wanted in expected.items():
            found = getattr(memory, name)
            if found != wanted:
                raise ValueError(f'{self._path}: {name}: {_shown(found)}: the policy profile says '
                                 f'{_shown(wanted)}; build the checkpoint again with this profile')
        if memory.actions.shape[1] < contract.horizon or memory.features.shape[1] != SIZE:
            raise ValueError(
                f'{self._path}: horizon {memory.actions.shape[1]} and feature size '
                f'{memory.features.shape[1]}: at least {contract.horizon} and exactly {SIZE} are '
                f'needed; build the checkpoint again with this profile')
        self._memory = memory

    def preprocess(self, observation: Observation) -> Query:
        from vla_ros.policies.knn.features import image_feature
        return Query(image_feature(observation.images[self._camera]), observation.instruction)

    def infer(self, inputs: Any, prefix: Floats | None = None) -> NDArray[np.float64]:
        from vla_ros.policies.knn.features import closest_sentences
        query: Query = inputs
        memory = self._memory
        if memory is None:
            raise RuntimeError('knn: infer before load')
        if self._asked is None or self._asked[0] != query.instruction:
            sentences = closest_sentences(query.instruction, memory.sentences)
            frames = np.flatnonzero(np.isin(memory.sentence, sentences))
            self._asked = query.instruction, frames, memory.features[frames]
        _, frames, features = self._asked
        distances = _distances(features, query.feature)
        order = np.argsort(distances, kind='stable')[:self._neighbours]
        weights = np.exp((distances[order[0]] - distances[order]) / self._temperature)
        windows = memory.actions[frames[order], :self.contract.horizon]  # [K, H, A]
        return blend(windows, weights / weights.sum(), self.contract.action)

    def close(self) -> None:
        self._memory = self._asked = None


def _distances(features: NDArray[np.float32], feature: NDArray[np.float32]) -> Floats:
    """Euclidean distance of each row of `features` [N, F] to `feature` [F]: [N].

    No matrix product: the order of its sums would depend on threads.
    """
    squares = np.empty(len(features))
    for start in range(0, len(features), _BLOCK):
        difference = features[start:start + _BLOCK] - feature
        squares[start:start + _BLOCK] = np.square(difference).sum(axis=1, dtype=np.float64)
    return np.sqrt(squares)


def blend(windows: Floats, weights: Floats, spec: ActionSpec) -> Floats:
    """The weighted mean [H, A] of windows [K, H, A], the closest first; weights [K] sum to 1.

    Grippers are not averaged but voted for: the weighted median. Quaternions are brought to the
    side of the first and made unit again.
    """
    windows = windows.copy()
    quaternion = spec.quaternion()
    if quaternion.size:
        turns = windows[..., quaternion]
        windows[..., quaternion] *= np.where((turns * turns[:1]).sum(axis=2) < 0.0, -1.0, 1.0)[
            ..., None]
    actions: Floats = (windows * weights[:, None, None]).sum(axis=0)
    if quaternion.size:
        actions[:, quaternion] /= np.linalg.norm(actions[:, quaternion], axis=1, keepdims=True)
    for i in spec.of_kind(Kind.GRIPPER):
        actions[:, i] = _weighted_median(windows[..., i], weights)
    return actions


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """The lowest of the values [K, H] with half of the weights [K] at or below it: [H]."""
    order = np.argsort(values, axis=0, kind='stable')
    reached = np.cumsum(weights[order], axis=0) >= 0.5
    first = np.argmax(reached, axis=0)
    median: Floats = np.take_along_axis(
        np.take_along_axis(values, order, axis=0), first[None], axis=0)[0]
    return median


def make(policy: PolicyProfile, engine: EngineProfile) -> Engine:
    """The factory of the family. Raises ValueError with one line."""
    return KnnEngine(policy, engine)


def _shown(value: Any) -> str:
    return ', '.join(value) if isinstance(value, tuple) else str(value)
