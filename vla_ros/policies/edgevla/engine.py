"""Runs the family `edgevla` frame by frame, on ONNX Runtime or torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.action_spec import Kind
from vla_ros.core.types import NS_PER_S, Floats, ImageSize, Observation
from vla_ros.engines.contract import Engine
from vla_ros.policies.contracts import contract_of
from vla_ros.policies.edgevla.config import EdgeVlaConfig, read_config
from vla_ros.policies.edgevla.files import CONFIG, GRAPH, WEIGHTS
from vla_ros.policies.edgevla.tokenizer import Encoded, Tokenizer
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile

BACKENDS = ('onnxruntime', 'torch')
PRECISIONS = {'onnxruntime': ('fp32',), 'torch': ('fp32', 'bf16', 'fp16')}
_NAMED = 5  # words that a note quotes


class Runner(Protocol):
    """A backend with the cache of one robot."""

    def run(self, images: NDArray[np.uint8], ids: NDArray[np.int64], state: NDArray[np.float32],
            since: NDArray[np.float32], frame: int) -> NDArray[np.float32]: ...

    def clear(self) -> None: ...


@dataclass(frozen=True)
class Inputs:
    """A frame: images uint8 [1, C, height, width, 3], ids int64 [1, L], state float32 [1, S]."""

    stamp_ns: int
    images: NDArray[np.uint8]
    ids: NDArray[np.int64]
    state: NDArray[np.float32]


class EdgeVlaEngine(Engine):
    """Remembers the last frames of the episode; `reset` begins a new one.

    A new instruction does not: the frames before it are still true. An observation with the stamp
    of the last one (it is inferred again under another instruction) takes its place.
    """

    def __init__(self, policy: PolicyProfile, engine: EngineProfile) -> None:
        self.contract = contract_of(policy, BACKENDS)
        policy.read_options().done()
        if policy.checkpoint is None:
            raise ValueError(f'{policy.file}: checkpoint: missing: the family edgevla needs a '
                             f'folder with {CONFIG}, {GRAPH} and {WEIGHTS}; give it as model:=')
        self._policy, self._profile = policy, engine
        self._folder: Path = policy.checkpoint
        self._backend = engine.backend_for(BACKENDS)
        self._runner: Runner | None = None
        self._sentence: tuple[str, Encoded] | None = None
        self._count = 0     # frames since the reset
        self._stamp_ns = 0  # of the last frame
        self._since_s = 0.0  # from the frame before the last to the last

    def load(self) -> None:
        profile = self._profile
        precisions = PRECISIONS[self._backend]
        if profile.precision not in precisions:
            raise ValueError(f'{profile.file}: precision: {profile.precision}: edgevla on '
                             f'{self._backend} runs in {", ".join(precisions)}')
        if not self._folder.is_dir():
            wrong = 'is not a folder' if self._folder.exists() else 'no such folder'
            raise ValueError(f'{self._folder}: {wrong}: a checkpoint of edgevla is a folder with '
                             f'{CONFIG}, {GRAPH} and {WEIGHTS}; train one with: vla-ros train sim')
        config = read_config(self._folder / CONFIG)
        check(self._policy, config, self._folder)
        self._tokenizer = Tokenizer(config.text.words, config.text.length)
        self._cameras = config.cameras.names
        self._runner = self._make_runner(config)
        self.reset()

    def _make_runner(self, config: EdgeVlaConfig) -> Runner:
        profile = self._profile
        if self._backend == 'onnxruntime':
            from vla_ros.policies.edgevla.onnx_runner import OnnxRunner
            return OnnxRunner(self._folder, config, profile.threads, profile.device)
        try:
            from vla_ros.policies.edgevla.torch_runner import TorchRunner
        except ModuleNotFoundError as error:
            raise ValueError(f'backend torch: Python module {error.name} is missing; '
                             'pip install torch safetensors') from None
        return TorchRunner(self._folder, profile.threads, profile.device, profile.precision)

    def preprocess(self, observation: Observation) -> Inputs:
        images = np.stack([observation.images[name] for name in self._cameras])
        state = np.asarray(observation.state, np.float32)
        return Inputs(observation.stamp_ns, images[None],
                      self._encode(observation.instruction).ids[None], state[None])

    def infer(self, inputs: Any, prefix: Floats | None = None) -> NDArray[np.float32]:
        frame: Inputs = inputs
        if self._runner is None:
            raise RuntimeError('edgevla: infer before load')
        again = self._count > 0 and frame.stamp_ns == self._stamp_ns
        index, since_s = self._count, 0.0
        if again:
            index, since_s = self._count - 1, self._since_s
        elif self._count:
            since_s = (frame.stamp_ns - self._stamp_ns) / NS_PER_S
        chunk = self._runner.run(frame.images, frame.ids, frame.state,
                                 np.array([since_s], np.float32), index)
        self._count, self._stamp_ns, self._since_s = index + 1, frame.stamp_ns, since_s
        if not np.isfinite(chunk).all():
            self.reset()  # the frame would spoil all that remember it
        return chunk

    def notes(self) -> tuple[str, ...]:
        return () if self._sentence is None else notes_on(self._sentence[1])

    def reset(self) -> None:
        self._count, self._stamp_ns, self._since_s = 0, 0, 0.0
        if self._runner is not None:
            self._runner.clear()

    def close(self) -> None:
        self._runner = self._sentence = None

    def example(self) -> Observation:
        """As of the base, without words that the policy has never seen."""
        return replace(super().example(), instruction='')

    def _encode(self, text: str) -> Encoded:
        """The tokens of a sentence."""
        if self._sentence is None or self._sentence[0] != text:
            self._sentence = text, self._tokenizer.encode(text)
        return self._sentence[1]


def notes_on(sentence: Encoded) -> tuple[str, ...]:
    """What a person should know of a sentence: words never seen in training, words cut off."""
    notes = []
    if sentence.unknown:
        notes.append('instruction: the policy has never seen: ' + _quoted(sentence.unknown))
    if sentence.cut:
        notes.append(f'instruction: longer than the {len(sentence.ids)} words that the policy '
                     'reads; left out: ' + _quoted(sentence.cut))
    return tuple(notes)


def check(policy: PolicyProfile, config: EdgeVlaConfig, folder: Path) -> None:
    """Raises ValueError with one line unless the profile promises what the checkpoint gives."""
    size = ImageSize(width=config.cameras.width, height=config.cameras.height)
    pairs = (
        ('cameras', tuple(policy.cameras), config.cameras.names),
        ('state', policy.state_names, config.state),
        ('horizon', policy.horizon, config.horizon),
        ('period', policy.period_ns, round(config.period * NS_PER_S)),
        ('action', policy.action.names, config.action),
        *((f'cameras.{name}', found, size) for name, found in policy.cameras.items()),
        *((f'action {d.name}: kind', d.kind.value,
           Kind.GRIPPER.value if d.name == config.gripper else Kind.POSITION.value)
          for d in policy.action.dimensions),
    )
    for key, said, made_for in pairs:
        if said != made_for:
            raise ValueError(f'{policy.file}: {key}: {_shown(said)}: the checkpoint {folder} is '
                             f'for {_shown(made_for)}; mend the profile or give another model')


def _shown(value: Any) -> str:
    if isinstance(value, ImageSize):
        return f'{value.width}x{value.height}'
    if isinstance(value, tuple):
        return ', '.join(value) or 'none'
    return f'{value} ns' if isinstance(value, int) and value > 1_000_000 else str(value)


def _quoted(words: tuple[str, ...]) -> str:
    more = f' and {len(words) - _NAMED} more' if len(words) > _NAMED else ''
    return ', '.join(repr(word[:40]) for word in words[:_NAMED]) + more
