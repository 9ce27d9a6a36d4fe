"""Rows of `vla-ros eval ablation engine`: one policy on each backend and in each precision.

A row is checked against the plain baseline first, as any engine is before it may act. One that
fails is played nevertheless: what its error costs is what the row is there to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from vla_ros.engines.verdict import Verdict
    from vla_ros.tools.eval_settings import EvalSettings

PIPELINED_S = 0.01  # that a tick of a pipeline takes in simulated time
FASTER = 50.0       # Hz, of a camera that keeps a pipeline going


@dataclass(frozen=True)
class EngineRow:
    """A backend in a precision; `camera_rate` in Hz, `delay_s` of an inference or a tick."""

    backend: str
    precision: str = 'fp32'
    prefill: str = 'default'
    camera_rate: float = 10.0
    delay_s: float = 0.04

    @property
    def name(self) -> str:
        """Of the row."""
        more = '' if self.prefill == 'default' else f' with {self.prefill} prefill'
        rate = '' if self.camera_rate == 10.0 else f', camera {self.camera_rate:g} Hz'
        return f'{self.backend} {self.precision}{more}{rate}'

    def profile(self, device: str) -> str:
        """An engine profile, YAML."""
        options: dict[str, Any] = {} if self.backend == 'baseline' else {
            'prefill_precision': self.prefill, 'allow_failed_check': True}
        return yaml.safe_dump({
            'engine': 'ablation', 'backend': self.backend, 'device': device,
            'precision': self.precision, 'options': options})


REFERENCE = EngineRow('baseline')
ROWS = (
    REFERENCE,
    EngineRow('graph'),
    EngineRow('jacobi'),
    EngineRow('actionflow'),
    EngineRow('baseline', camera_rate=FASTER),
    EngineRow('actionflow', camera_rate=FASTER, delay_s=PIPELINED_S),
    EngineRow('actionflow', camera_rate=2.0 * FASTER, delay_s=PIPELINED_S),
    EngineRow('graph', 'bf16'),
    EngineRow('graph', 'fp8'),
    EngineRow('graph', 'int8-weight'),
    EngineRow('graph', 'int4-weight'),
    EngineRow('graph', 'int4-weight', 'fp8'),
)


def chosen(names: Sequence[str]) -> tuple[EngineRow, ...]:
    """The rows of these names, all where there are none. Raises ValueError with one line."""
    known = {row.name: row for row in ROWS}
    for name in names:
        if name not in known:
            raise ValueError(f'eval: row: {name}: allowed is {"; ".join(known)}')
    return tuple(row for row in ROWS if not names or row.name in names)


def settings_of(row: EngineRow, plain: EvalSettings, folder: Path, device: str) -> EvalSettings:
    """What to play; the engine profile goes into `folder`."""
    file = folder / f'{row.name.replace(" ", "_").replace(",", "")}.yaml'
    file.write_text(row.profile(device))
    return replace(plain, engine=str(file), camera_rate=row.camera_rate, delay_s=row.delay_s)


def checked(row: EngineRow, settings: EvalSettings) -> dict[str, Any]:
    """What the check says of a row; its verdict is kept for who plays it. Empty of the baseline.

    Raises ValueError with one line.
    """
    if row.backend == 'baseline':
        return {}
    from vla_ros.engines.registry import make_engine
    from vla_ros.engines.verdict import Checked, store
    from vla_ros.policies.observations import fitted, load, shipped
    from vla_ros.profiles.engine import load_engine
    from vla_ros.profiles.policy import load_policy
    policy = load_policy(settings.policy, settings.model)
    engine = make_engine(policy, load_engine(settings.engine))
    if not isinstance(engine, Checked):
        raise ValueError(f'{policy.file}: family: {policy.family}: its backends are not compared '
                         'with a baseline; give a policy of the family openvla')
    seen = [fitted(each, engine.contract.cameras, engine.contract.state_names)
            for each in load(shipped())]
    verdict = engine.check(seen, shipped().name,
                           lambda line: print(line, file=sys.stderr, flush=True))
    store(verdict)
    return told(verdict)


def told(verdict: Verdict) -> dict[str, Any]:
    """A verdict for the table: whether it passed, the rule that it broke, errors in bins."""
    figures = verdict.figures
    return {'passed': verdict.passed, 'broken': str(verdict.broken or ''),
            'observations': verdict.count, 'gpu': verdict.key.gpu,
            'error_bins': figures.get('error_bins'), 'passes': figures.get('passes')}
