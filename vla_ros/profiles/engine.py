"""The engine profile: on what a policy runs and with how much of the machine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla_ros.profiles.locate import locate
from vla_ros.profiles.reader import NAME_RULE, TOKEN, TOKEN_RULE, Section, read_profile

PRECISIONS = ('fp32', 'fp16', 'bf16', 'fp8', 'int8-weight', 'int4-weight')
_DEVICE = re.compile(r'cpu|cuda(:\d+)?')


@dataclass(frozen=True)
class EngineProfile:
    """How to run a policy. `backends` in order of preference.

    `threads`: of the backend on the CPU. `affinity`: CPU numbers of the inference process, empty =
    all. `warm_up`: inferences before the node may be activated. `inference_time_ns`: what an
    inference is taken to last in a replay; a live graph measures its own.
    """

    file: Path
    name: str
    backends: tuple[str, ...]
    device: str
    precision: str
    threads: int
    affinity: tuple[int, ...]
    warm_up: int
    inference_time_ns: int
    options: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """The preferred backend."""
        return self.backends[0]

    def backend_for(self, offered: Iterable[str]) -> str:
        """The most preferred of the backends that a policy offers. Raises ValueError, one line."""
        offered = tuple(offered)
        for backend in self.backends:
            if backend in offered:
                return backend
        raise ValueError(f'{self.file}: backend: {", ".join(self.backends)}: the policy runs on '
                         f'{", ".join(offered)}; choose another engine profile or add one of these')

    def read_options(self) -> Section:
        """The options as a section, so that a backend can validate them with one-line errors."""
        return Section(self.file, self.options, 'options')


def load_engine(name: str | Path) -> EngineProfile:
    """An engine profile by shipped name or path. Raises ValueError with one line."""
    file = locate('engine', name)
    section = read_profile(file, 'engine')
    rule = 'name of a backend or a list of names, the preferred one first'
    backends = (section.texts('backend', minimum=1, rule=rule) if section.is_list('backend')
                else (section.text('backend', pattern=TOKEN, rule=f'{rule}; {NAME_RULE}'),))
    engine = EngineProfile(
        file=file,
        name=section.text('engine', pattern=TOKEN, rule=TOKEN_RULE),
        backends=backends,
        device=section.text('device', 'cpu', pattern=_DEVICE, rule='cpu, cuda or cuda:<number>'),
        precision=section.text('precision', 'fp32', choices=PRECISIONS),
        threads=section.integer('threads', 1, low=1, high=1024),
        affinity=section.integers('affinity', (), low=0, high=4095),
        warm_up=section.integer('warm_up', 3, low=1, high=1000),
        inference_time_ns=section.seconds('inference_time', 0.04, low=0.0, high=60.0),
        options=section.mapping('options'))
    section.done()
    return engine
