"""The options of the profiles that concern the family: read, checked, told in one line."""

from __future__ import annotations

from dataclasses import dataclass

from vla_ros.policies.openvla.oft_layout import LAYOUTS
from vla_ros.profiles.engine import EngineProfile
from vla_ros.profiles.policy import PolicyProfile

BACKENDS = ('graph', 'actionflow', 'jacobi', 'baseline')
PLAIN = ('fp32', 'bf16', 'fp16')
QUANTIZED = ('fp8', 'int8-weight', 'int4-weight')
PREFILLS = ('default', 'bf16', 'fp8')
BUCKETS = (32, 64)


@dataclass(frozen=True)
class EngineOptions:
    """Of an engine profile.

    `prefill_precision`: of the pass over the prompt: bf16, fp8, or default, as the precision asks.
    `buckets`: lengths that prompts are padded to, in tokens. `overlap`: of actionflow, look at the
    next images during a pass. `deterministic`: equal bits for equal inputs, also after a restart.
    """

    prefill_precision: str = 'default'
    buckets: tuple[int, ...] = BUCKETS
    overlap: bool = False
    deterministic: bool = False
    allow_failed_check: bool = False


@dataclass(frozen=True)
class PolicyOptions:
    """Of a policy profile.

    `unnorm_key`: the dataset whose statistics un-normalize actions; `bounds`: they are the range
    min to max, not the quantiles 0.01 to 0.99. `center_crop`: area of the centre of an image that
    is kept, None as the checkpoint says. `oft`: the robot that an OFT checkpoint was tuned for;
    `jpeg`: its images go through JPEG before they are resized.
    """

    unnorm_key: str | None = None
    bounds: bool = False
    center_crop: float | None = None
    oft: str = ''
    jpeg: bool = False


def read_engine_options(profile: EngineProfile) -> EngineOptions:
    """Raises ValueError with one line: file, key, value, allowed."""
    section = profile.read_options()
    usual = EngineOptions()
    found = EngineOptions(
        section.text('prefill_precision', usual.prefill_precision, choices=PREFILLS),
        tuple(sorted(set(section.integers('buckets', usual.buckets, low=8, high=2048)))),
        section.flag('overlap', usual.overlap),
        section.flag('deterministic', usual.deterministic),
        section.flag('allow_failed_check', usual.allow_failed_check))
    section.done()
    if not found.buckets:
        raise ValueError(f'{profile.file}: options.buckets: empty: at least one length in tokens')
    return found


def read_policy_options(policy: PolicyProfile) -> PolicyOptions:
    """Raises ValueError with one line: file, key, value, allowed."""
    section = policy.read_options()
    key = section.text('unnorm_key', '') if section.has('unnorm_key') else ''
    crop = section.number('center_crop', above=0.0, high=1.0) if section.has('center_crop') \
        else None
    oft = section.text('oft', choices=LAYOUTS) if section.has('oft') else ''
    found = PolicyOptions(key or None, section.flag('bounds', False), crop, oft,
                          section.flag('jpeg', False))
    section.done()
    return found


def check_precision(profile: EngineProfile, backend: str) -> None:
    """Raises ValueError with one line unless the backend runs in the profile's precision."""
    allowed = PLAIN if backend == 'baseline' else (*PLAIN, *QUANTIZED)
    if profile.precision not in allowed:
        raise ValueError(f'{profile.file}: precision: {profile.precision}: openvla on {backend} '
                         f'runs in {", ".join(allowed)}')
