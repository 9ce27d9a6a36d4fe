"""Compares a backend in a precision with the plain baseline, on frames that were recorded."""

from __future__ import annotations

import gc
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vla_ros.engines.driver import gpu_driver
from vla_ros.engines.rules import Answers, Reference, judge, judge_numbers, summary
from vla_ros.engines.verdict import Key, Verdict

if TYPE_CHECKING:
    from vla_ros.policies.openvla.backend import Backend, Frame
    from vla_ros.policies.openvla.backends import BackendOptions
    from vla_ros.policies.openvla.config import OpenVlaConfig

Report = Callable[[str], None]
Make = Callable[[str, str], 'Backend']
PLAIN = {'float32': 'fp32', 'bfloat16': 'bf16', 'float16': 'fp16'}


def check_checkpoint(folder: Path, backend: str, precision: str, device: str,
                     frames: Sequence[Frame], observations: str, report: Report,
                     options: BackendOptions | None = None,
                     config: OpenVlaConfig | None = None) -> Verdict:
    """The verdict on a checkpoint. One model is there at a time: the baseline's first.

    `config`: in place of the folder's own. Raises ValueError with one line where there is nothing
    to compare, and whatever building says.
    """
    import torch

    from vla_ros.policies.openvla.backends import BackendOptions, make_backend
    from vla_ros.policies.openvla.checkpoint import load
    from vla_ros.policies.openvla.hf_config import read_config
    from vla_ros.policies.openvla.precision import precision as named
    chosen = options or BackendOptions()
    config = config or read_config(folder)
    activations = 'float32' if device == 'cpu' else 'bfloat16'  # of quantized weights, as engines
    key = key_of(folder, backend, precision, device, chosen)
    if config.parallel:
        return compare_oft(folder, config, key, device, frames, observations, report, chosen)

    def make(name: str, of: str) -> Backend:
        dtype = getattr(torch, named(of, activations).activations)
        # The baseline has no options, and its precision is plain.
        return make_backend(name, load(folder, device, dtype, config), of,
                            BackendOptions() if name == 'baseline' else chosen, consume=True)

    plain = PLAIN[named(precision, activations).activations]
    return compare(make, key, plain, config.actions.first, frames, observations, report)


def compare(make: Make, key: Key, plain: str, first: int, frames: Sequence[Frame],
            observations: str, report: Report) -> Verdict:
    """The verdict on `key.backend` in `key.precision`, beside the baseline in `plain`.

    `make` builds a backend by name and precision; `first` is the lowest action id.
    """
    if not frames:
        raise ValueError(f'{observations}: no observations; at least one is needed')
    report(f'check: baseline in {plain}, {len(frames)} observations')
    reference = reference_of(make('baseline', plain), frames, first)
    _free()
    report(f'check: {key.backend} in {key.precision}')
    backend = make(key.backend, key.precision)
    backend.warm_up(lambda stage: report(f'check: {stage}'))
    passes: list[float] = []
    answers = answers_of(backend, frames, reference.ids, passes)
    del backend
    _free()
    return Verdict(key, judge(key.precision, reference, answers), observations, len(frames),
                   {'baseline_precision': plain, **summary(reference, answers), **(
                       {'passes': round(sum(passes) / len(passes), 3)} if any(passes) else {})})


def compare_oft(folder: Path, config: OpenVlaConfig, key: Key, device: str,
                frames: Sequence[Frame], observations: str, report: Report,
                options: BackendOptions) -> Verdict:
    """The verdict on an OFT policy, whose actions are numbers."""
    import torch

    from vla_ros.policies.openvla.backends import BackendOptions
    from vla_ros.policies.openvla.oft_backend import make_oft_backend
    from vla_ros.policies.openvla.oft_checkpoint import load_oft
    from vla_ros.policies.openvla.precision import precision as named
    if not frames:
        raise ValueError(f'{observations}: no observations; at least one is needed')
    activations = named(key.precision, 'float32' if device == 'cpu' else 'bfloat16').activations

    def answered(name: str, precision: str, chosen: BackendOptions) -> NDArray[np.float32]:
        report(f'check: {name} in {precision}, {len(frames)} observations')
        oft = load_oft(folder, device, getattr(torch, activations), config=config)
        backend = make_oft_backend(name, oft.model, oft.head, precision, chosen, consume=True)
        backend.warm_up(lambda stage: report(f'check: {stage}'))
        return np.stack([backend.step(frame) for frame in frames])

    reference = answered('baseline', PLAIN[activations], BackendOptions())
    _free()
    found = answered(key.backend, key.precision, options)
    _free()
    return Verdict(key, judge_numbers(key.precision, reference, found, config.actions.bins),
                   observations, len(frames), {'baseline_precision': PLAIN[activations]})


def reference_of(baseline: Backend, frames: Sequence[Frame], first: int) -> Reference:
    """What the baseline says, and how sure it is of each token."""
    ids = generated(baseline, frames)
    return Reference(ids, told(baseline, frames, ids), first)


def answers_of(backend: Backend, frames: Sequence[Frame], ids: NDArray[np.int64],
               passes: list[float] | None = None) -> Answers:
    """What a backend says on its own, and what it would say told the `ids` [N, K]."""
    return Answers(generated(backend, frames, passes), told(backend, frames, ids))


def generated(backend: Backend, frames: Sequence[Frame], passes: list[float] | None = None
              ) -> NDArray[np.int64]:
    """The ids [N, K] of the frames, one after the other; `passes` of each action are added to.

    A pipeline is kept going with the last frame until it has answered for all. Raises ValueError
    with one line where it answers too early or too late.
    """
    backend.reset()
    found = []
    for number in range(len(frames) + backend.lag):
        ids = backend.step(frames[min(number, len(frames) - 1)])
        if (ids is None) != (number < backend.lag):
            raise ValueError(f'step {number}: {"no" if ids is None else "an"} action, with a '
                             f'pipeline of {backend.lag} steps')
        if ids is not None:
            found.append(np.array(ids, np.int64))
            if passes is not None:
                passes.append(backend.passes)
    backend.reset()
    return np.stack(found)


def told(backend: Backend, frames: Sequence[Frame], ids: NDArray[np.int64]
         ) -> NDArray[np.float32]:
    """Logits [N, K, bins], each token told those of `ids` [N, K] before it."""
    return np.stack([backend.teacher_logits(frame, said)
                     for frame, said in zip(frames, ids, strict=True)])


def key_of(folder: Path, backend: str, precision: str, device: str, options: BackendOptions
           ) -> Key:
    """What a verdict on this checkpoint depends on, here and now."""
    import torch

    from vla_ros.policies.openvla.backends import BackendOptions
    from vla_ros.policies.openvla.checkpoint import weights_id
    on_gpu = device.startswith('cuda')
    try:
        package = version('vla_ros')
    except PackageNotFoundError:
        package = ''
    return Key(weights=weights_id(folder), backend=backend, precision=precision,
               gpu=torch.cuda.get_device_name(device) if on_gpu else f'cpu {platform.machine()}',
               torch=torch.__version__, driver=gpu_driver() if on_gpu else '', package=package,
               options=changed(asdict(BackendOptions()), asdict(options)))


def changed(usual: Mapping[str, Any], chosen: Mapping[str, Any]) -> str:
    """The options that are not as usual, in one line; empty where all are."""
    values = {name: value for name, value in chosen.items() if value != usual[name]}
    return json.dumps(values, sort_keys=True) if values else ''


def _free() -> None:
    import torch
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
