"""Runs the family `openvla`: observations in, actions in the units of the robot out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.core.types import Answer, Floats, Observation, Result
from vla_ros.engines.contract import Engine
from vla_ros.engines.verdict import Verdict, gate
from vla_ros.policies.contracts import contract_of
from vla_ros.policies.openvla import actions as action_tokens
from vla_ros.policies.openvla.config import OpenVlaConfig, Statistics
from vla_ros.policies.openvla.hf_config import read_config
from vla_ros.policies.openvla.oft_layout import OFT_BACKENDS, is_oft, read_oft_config
from vla_ros.policies.openvla.options import (
    BACKENDS,
    check_precision,
    read_engine_options,
    read_policy_options,
)
from vla_ros.policies.openvla.prompt import Encoded, Prompts, check_llama
from vla_ros.policies.openvla.tokenizer import load as load_tokenizer
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile

if TYPE_CHECKING:
    from vla_ros.policies.openvla.backend import Backend, Frame
    from vla_ros.policies.openvla.backends import BackendOptions
    from vla_ros.policies.openvla.oft_backend import OftBackend

_NAMED = 5  # words that a note quotes


@dataclass(frozen=True)
class Inputs:
    """An observation, and what the backend takes of it."""

    observation: Observation
    frame: Frame


class OpenVlaEngine(Engine):
    """One action chunk for an observation; with the backend `actionflow`, for an earlier one.

    The backend has to have passed the check against the baseline before it may act.
    """

    def __init__(self, policy: PolicyProfile, engine: EngineProfile) -> None:
        self.contract = contract_of(policy, BACKENDS)
        if policy.checkpoint is None:
            raise ValueError(f'{policy.file}: checkpoint: missing: the family openvla needs a '
                             'folder with config.json, *.safetensors and tokenizer.json; give it '
                             'as model:=')
        self._policy, self._profile = policy, engine
        self._folder: Path = policy.checkpoint
        self._backend_name = engine.backend_for(BACKENDS)
        self._options = read_engine_options(engine)
        self._policy_options = read_policy_options(policy)
        check_precision(engine, self._backend_name)
        self._backend: Backend | OftBackend | None = None
        self._waiting: deque[Observation] = deque()
        self._sentence: tuple[str, Encoded] | None = None

    # --- life ----------------------------------------------------------------------------------

    def load(self) -> None:
        self._read()
        torch = _torch()
        device = self._profile.device
        if device != 'cpu' and not torch.cuda.is_available():
            raise ValueError(f'{self._profile.file}: device: {device}: torch finds no GPU; choose '
                             'an engine profile with device: cpu, or install a torch with CUDA')
        if device == 'cpu':
            torch.set_num_threads(self._profile.threads)
        if self._options.deterministic:
            from vla_ros.policies.openvla.determinism import be_deterministic
            be_deterministic()
            self.report('deterministic: on; vla-ros bench engine --deterministic prints its cost')
        from vla_ros.policies.openvla.memory import check_memory
        self.report(check_memory(self._folder, self._config, self._profile, self._backend_name,
                                 self._backend_options()))
        self._gate()
        self.report(f'loading {self._folder}')
        self._backend = self._make()
        self.lag = self._backend.lag
        self._backend.warm_up(self.report)
        self.reset()

    def _read(self) -> None:
        """All that is small: config, statistics, tokenizer. Raises ValueError with one line."""
        if not self._folder.is_dir():
            wrong = 'is not a folder' if self._folder.exists() else 'no such folder'
            raise ValueError(f'{self._folder}: {wrong}: a checkpoint of openvla is a folder with '
                             'config.json, *.safetensors and tokenizer.json')
        options = self._policy_options
        self._config = self._read_config()
        if self._config.parallel and self._backend_name not in OFT_BACKENDS:
            raise ValueError(f'{self._profile.file}: backend: {self._backend_name}: OFT has '
                             f'{", ".join(OFT_BACKENDS)}; the others are for policies that decode '
                             'token by token')
        self._statistics = action_tokens.choose(self._config.statistics, options.unnorm_key)
        check(self._policy, self._config, self._statistics, self._folder)
        tokenizer = load_tokenizer(self._folder)
        check_llama(self._config.prompt, tokenizer, str(self._folder))
        self._prompts = Prompts(self._config.prompt, tokenizer, max(self._options.buckets))

    def _read_config(self) -> OpenVlaConfig:
        options = self._policy_options
        if options.oft or is_oft(self._folder):
            config = read_oft_config(self._folder, options.oft, options.unnorm_key)
        else:
            config = read_config(self._folder, options.unnorm_key, options.bounds)
        if options.center_crop is None:
            return config
        return replace(config, vision=replace(config.vision, center_crop=options.center_crop))

    def _gate(self) -> None:
        """Raises ValueError with one line where the check against the baseline failed."""
        if self._backend_name == 'baseline':
            return
        from vla_ros.policies.observations import fitted, load, shipped
        from vla_ros.policies.openvla.parity import key_of

        def compare() -> Verdict:
            file = shipped()
            seen = [fitted(each, self.contract.cameras, self.contract.state_names)
                    for each in load(file)]
            return self.check(seen, file.name, self.report)

        profile = self._profile
        gate(key_of(self._folder, self._backend_name, profile.precision, profile.device,
                    self._backend_options()), compare, self.report,
             self._options.allow_failed_check)

    def check(self, observations: Sequence[Observation], source: str,
              report: Callable[[str], None]) -> Verdict:
        """The verdict on this backend and precision, on recorded observations."""
        self._read()
        _torch()
        from vla_ros.policies.openvla.parity import check_checkpoint
        return check_checkpoint(
            self._folder, self._backend_name, self._profile.precision, self._profile.device,
            [self.preprocess(each).frame for each in observations], source, report,
            self._backend_options(), self._config)

    def _backend_options(self) -> BackendOptions:
        from vla_ros.policies.openvla.backends import BackendOptions
        options = self._options
        size = next(iter(self.contract.cameras.values()))
        return BackendOptions(options.prefill_precision, options.buckets, options.overlap,
                              (size.height, size.width))

    def _make(self) -> Backend | OftBackend:
        torch = _torch()
        from vla_ros.policies.openvla.backends import make_backend
        from vla_ros.policies.openvla.checkpoint import load
        from vla_ros.policies.openvla.precision import precision
        profile = self._profile
        activations = 'bfloat16' if profile.device != 'cpu' else 'float32'
        dtype = getattr(torch, precision(profile.precision, activations).activations)
        if self._config.parallel:
            from vla_ros.policies.openvla.oft_backend import make_oft_backend
            from vla_ros.policies.openvla.oft_checkpoint import load_oft
            oft = load_oft(self._folder, profile.device, dtype, config=self._config)
            return make_oft_backend(self._backend_name, oft.model, oft.head, profile.precision,
                                    self._backend_options(), True, self._policy_options.jpeg)
        model = load(self._folder, profile.device, dtype, self._config)
        return make_backend(self._backend_name, model, profile.precision,
                            self._backend_options(), consume=True)

    def reset(self) -> None:
        self._waiting.clear()
        if self._backend is not None:
            self._backend.reset()

    def close(self) -> None:
        self._backend = self._sentence = None
        self._waiting.clear()

    # --- inference -----------------------------------------------------------------------------

    def preprocess(self, observation: Observation) -> Inputs:
        from vla_ros.policies.openvla.backend import Frame
        images = np.stack([observation.images[name] for name in self.contract.cameras])
        state = None
        if self._config.state:
            state = action_tokens.normalize_state(
                np.asarray(observation.state, np.float64), self._statistics).astype(np.float32)
        return Inputs(observation, Frame(images, self._encode(observation.instruction).ids, state))

    def infer(self, inputs: Any, prefix: Floats | None = None) -> Result:
        given: Inputs = inputs
        if self._backend is None:
            raise RuntimeError('openvla: infer before load')
        answer = self._backend.step(given.frame)
        if not self._backend.lag:
            return None if answer is None else self._actions(answer)
        self._waiting.append(given.observation)
        if answer is None:
            return None
        return Answer(self._waiting.popleft(), self._actions(answer))

    def notes(self) -> tuple[str, ...]:
        return () if self._sentence is None else notes_on(self._sentence[1])

    def example(self) -> Observation:
        """Without words that a tokenizer may not know."""
        return replace(super().example(), instruction='')

    def _actions(self, answer: NDArray[Any]) -> Floats:
        """The chunk [H, A] in the units of the robot, of ids [K] or of OFT's numbers [H, A]."""
        normalized = answer if self._config.parallel else (
            action_tokens.chunk(answer, self._config.actions))
        return action_tokens.unnormalize(normalized, self._statistics)

    def _encode(self, text: str) -> Encoded:
        if self._sentence is None or self._sentence[0] != text:
            self._sentence = text, self._prompts.encode(text)
        return self._sentence[1]


def notes_on(sentence: Encoded) -> tuple[str, ...]:
    """What a person should know of a sentence: words that are unknown, words cut off."""
    notes = []
    if sentence.unknown:
        notes.append('instruction: the policy has never seen: ' + _quoted(sentence.unknown))
    if sentence.cut:
        notes.append('instruction: longer than the longest bucket of prompts; left out: '
                     + _quoted(sentence.cut))
    return tuple(notes)


def check(policy: PolicyProfile, config: OpenVlaConfig, statistics: Statistics, folder: Path
          ) -> None:
    """Raises ValueError with one line unless the profile promises what the checkpoint gives."""
    sizes = set(policy.cameras.values())
    if len(sizes) > 1:
        shown = ', '.join(f'{size.width}x{size.height}' for size in policy.cameras.values())
        raise ValueError(f'{policy.file}: cameras: {shown}: all images of openvla have one size')
    pairs = (
        ('cameras', len(policy.cameras), config.vision.images),
        ('state', len(policy.state_names), config.state),
        ('horizon', policy.horizon, config.actions.horizon),
        ('action', len(policy.action.names), config.actions.dimensions),
        ('unnorm_key', len(statistics.low), config.actions.dimensions))
    for key, said, made_for in pairs:
        if said != made_for:
            raise ValueError(f'{policy.file}: {key}: {said}: the checkpoint {folder} is for '
                             f'{made_for}; mend the profile or give another model')
    names = config.actions.names
    if names and names != policy.action.names:
        raise ValueError(f'{policy.file}: action: {", ".join(policy.action.names)}: the checkpoint '
                         f'{folder} is for {", ".join(names)}; mend the profile')


def _torch() -> Any:
    try:
        import safetensors  # noqa: F401
        import torch
    except ModuleNotFoundError as error:
        raise ValueError(f'family openvla: Python module {error.name} is missing; '
                         'pip install torch safetensors tokenizers') from None
    return torch


def _quoted(words: tuple[str, ...]) -> str:
    more = f' and {len(words) - _NAMED} more' if len(words) > _NAMED else ''
    return ', '.join(repr(word[:40]) for word in words[:_NAMED]) + more
