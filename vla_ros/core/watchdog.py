"""The layered watchdog: what is too late, how bad that is, and what came first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum

from vla_ros.core.types import NS_PER_S


class Reaction(IntEnum):
    """What a violation asks for; a greater one wins. Each begins by bringing motion to rest."""

    NONE = 0
    HOLD = 1             # keep publishing, resume by itself
    WAIT = 2             # go silent once at rest and wait to be enabled: nothing is wrong
    DECELERATE = 3       # stay at rest until enabled again
    STOP_PUBLISHING = 4  # go silent once at rest, until enabled again
    ESTOP = 5            # go silent once at rest, until reset
    FAULT = 6            # go silent once at rest, until reset


class Layer(str, Enum):
    """The layers of the watchdog, in the order in which an outage travels through them."""

    INFERENCE_SILENCE = 'inference_silence'
    OBSERVATION_AGE = 'observation_age'
    INFERENCE_DEADLINE = 'inference_deadline'
    PLAN_EXHAUSTED = 'plan_exhausted'
    OUTPUT_AGE = 'output_age'


@dataclass(frozen=True)
class LayerLimit:
    """A layer's limit in nanoseconds and the reaction when it is exceeded."""

    limit_ns: int
    reaction: Reaction = Reaction.HOLD


@dataclass(frozen=True)
class Violation:
    """Something that must not be: `cause` is one line for people and `/diagnostics`."""

    reaction: Reaction
    cause: str


@dataclass(frozen=True)
class Ages:
    """What the layers look at, in nanoseconds; None where it is not known or not used."""

    inference_silence: int | None = None
    observation_age: int | None = None
    inference_deadline: int | None = None
    plan_exhausted: int | None = None
    output_age: int | None = None


WORDS = {
    Layer.INFERENCE_SILENCE: 'inference_node silent',
    Layer.OBSERVATION_AGE: 'observation too old',
    Layer.INFERENCE_DEADLINE: 'no new action chunk in time',
    Layer.PLAN_EXHAUSTED: 'plan exhausted',
    Layer.OUTPUT_AGE: 'control loop late',
}


@dataclass
class Watchdog:
    """Checks the layers and remembers the first cause until `recovered`. Not thread-safe."""

    limits: dict[Layer, LayerLimit]
    first_cause: str = ''

    def late(self, ages: Ages) -> list[Violation]:
        """The layers over their limit, in layer order."""
        found = []
        for layer in Layer:
            limit, age = self.limits.get(layer), getattr(ages, layer.value)
            if limit is not None and age is not None and age > limit.limit_ns:
                words = WORDS[layer]
                if layer is not Layer.PLAN_EXHAUSTED:
                    words += f': {age / NS_PER_S:.2f} s (limit {limit.limit_ns / NS_PER_S:g} s)'
                found.append(Violation(limit.reaction, words))
        return found

    def judge(self, violations: Iterable[Violation]) -> Violation | None:
        """The most severe violation acts; the first cause of this outage is what gets reported."""
        worst: Violation | None = None
        for violation in violations:
            if not self.first_cause:
                self.first_cause = violation.cause
            if worst is None or violation.reaction > worst.reaction:
                worst = violation
        return worst

    def recovered(self) -> None:
        """Everything is well again: the next violation is a first cause."""
        self.first_cause = ''
