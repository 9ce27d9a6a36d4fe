"""What a backend may answer differently from the plain baseline, by precision.

Judges arrays, so that any family whose actions are tokens can use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARGIN = 0.1                      # logit; a tie that rounding may decide either way is below it
MEAN_BINS, P99_BINS = 1.0, 4.0    # of the actions of quantized weights
EXACT = ('fp32',)
MOST_EXACT = 1e-3                 # of numbers in -1 to 1
ROUNDED = ('bf16', 'fp16')

Ids = NDArray[np.int64]
Logits = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Rule:
    """A figure and the most that it may be; below it where `strict`. What is nan fails."""

    name: str
    value: float
    limit: float
    unit: str = ''
    strict: bool = False

    @property
    def passed(self) -> bool:
        """Whether the figure is within its limit."""
        return self.value < self.limit if self.strict else self.value <= self.limit

    def __str__(self) -> str:
        unit = f' {self.unit}' if self.unit else ''
        return (f'{self.name}: {self.value:.4g}{unit}, allowed is '
                f'{"below" if self.strict else "at most"} {self.limit:g}{unit}')


@dataclass(frozen=True)
class Reference:
    """What the baseline says of N observations: `ids` [N, K], `logits` [N, K, bins] of each token
    told those before it. `first`: the id of bin 0 of the logits.
    """

    ids: Ids
    logits: Logits
    first: int

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.logits.shape[:2] != self.ids.shape or not self.ids.size:
            raise ValueError(f'baseline: ids {self.ids.shape}, logits {self.logits.shape}: allowed '
                             'are [N, K] and [N, K, bins], N at least 1')
        if not np.isfinite(self.logits).all():
            raise ValueError('baseline: its logits are not finite; nothing can be compared with '
                             'them; try precision fp32')


@dataclass(frozen=True)
class Answers:
    """What the backend says of the same: `ids` [N, K] on its own; `logits` told the baseline's."""

    ids: Ids
    logits: Logits


def judge_numbers(precision: str, reference: NDArray[np.floating[Any]],
                  found: NDArray[np.floating[Any]], bins: int = 256) -> tuple[Rule, ...]:
    """The rules of actions that are numbers in -1 to 1, not tokens: [N, H, A] both.

    fp32: no number differs by more than MOST_EXACT. Anything else: as far as tokens may, counted in
    bins of that range. Raises ValueError with one line where shapes do not fit.
    """
    if found.shape != reference.shape or not reference.size:
        raise ValueError(f'actions: {list(found.shape)}: the baseline has {list(reference.shape)}')
    error = np.abs(np.asarray(found, np.float64) - np.asarray(reference, np.float64))
    if precision in EXACT:
        return (Rule('largest difference of an action', float(error.max()), MOST_EXACT),)
    error *= (bins - 1) / 2.0
    return (Rule('action error, mean', float(error.mean()), MEAN_BINS, 'bins'),
            Rule('action error, p99', float(np.percentile(error, 99.0)), P99_BINS, 'bins'))


def judge(precision: str, reference: Reference, answers: Answers) -> tuple[Rule, ...]:
    """The rules of a precision. Raises ValueError with one line where shapes do not fit.

    fp32: all tokens equal. bf16 and fp16: where a token differs, the baseline hardly decides.
    Anything else: the error of the actions.
    """
    for name, found, wanted in (('ids', answers.ids.shape, reference.ids.shape),
                                ('logits', answers.logits.shape, reference.logits.shape)):
        if found != wanted:
            raise ValueError(f'{name}: {list(found)}: the baseline has {list(wanted)}')
    if precision in EXACT:
        return exact_rules(reference, answers)
    if precision in ROUNDED:
        return rounded_rules(reference, answers)
    return quantized_rules(reference, answers)


def exact_rules(reference: Reference, answers: Answers) -> tuple[Rule, ...]:
    """Every token equal, on its own and told the baseline's."""
    return (Rule('tokens that differ', int((answers.ids != reference.ids).sum()), 0),
            Rule("tokens that differ, told the baseline's",
                 int(told_mismatches(reference, answers).sum()), 0))


def rounded_rules(reference: Reference, answers: Answers) -> tuple[Rule, ...]:
    """How much the baseline prefers its token to the one that the backend says in its place.

    At least the baseline's margin, the difference of its two highest logits. Of what the backend
    says on its own, only the first token that differs counts: those after it were told another.
    """
    told = told_mismatches(reference, answers)
    said = answers.logits.argmax(-1) + reference.first
    first = first_mismatches(reference.ids, answers.ids)
    worst_told = _most(margins(reference, said)[told])
    if not np.isfinite(answers.logits).all():
        worst_told = math.nan
    return (Rule('margin of a token that differs, told the same before', worst_told, MARGIN,
                 'logit', strict=True),
            Rule('margin of the first token that differs',
                 _most(margins(reference, answers.ids)[first]), MARGIN, 'logit', strict=True))


def quantized_rules(reference: Reference, answers: Answers) -> tuple[Rule, ...]:
    """The error of the actions in bins, over all dimensions and observations, on its own."""
    error = np.abs(answers.ids - reference.ids)
    finite = bool(np.isfinite(answers.logits).all())
    return (Rule('action error, mean', float(error.mean()) if finite else math.nan, MEAN_BINS,
                 'bins'),
            Rule('action error, p99', float(np.percentile(error, 99.0)) if finite else math.nan,
                 P99_BINS, 'bins'))


def margins(reference: Reference, ids: Ids) -> NDArray[np.float64]:
    """By how much [N, K] the baseline's highest logit is above that of `ids` [N, K]; inf where an
    id stands for no bin.
    """
    logits = np.asarray(reference.logits, np.float64)
    place = ids - reference.first
    there = (place >= 0) & (place < logits.shape[-1])
    said = np.take_along_axis(logits, np.where(there, place, 0)[..., None], -1)[..., 0]
    return np.where(there, logits.max(-1) - said, math.inf)


def told_mismatches(reference: Reference, answers: Answers) -> NDArray[np.bool_]:
    """Where [N, K] the backend, told the baseline's tokens, would say another one."""
    said = answers.logits.argmax(-1) + reference.first
    finite = np.isfinite(answers.logits).all(-1)
    return np.asarray((said != reference.ids) | ~finite)


def first_mismatches(told: Ids, said: Ids) -> NDArray[np.bool_]:
    """Where [N, K] an action leaves the baseline's: the first token of each that differs."""
    different = told != said
    return np.asarray(different & (different.cumsum(1) == 1))


def summary(reference: Reference, answers: Answers) -> dict[str, Any]:
    """Figures for people, whatever the precision. `told`: told the baseline's tokens before."""
    told = told_mismatches(reference, answers)
    said = answers.logits.argmax(-1) + reference.first
    return {'tokens': int(told.size), 'differ': int((answers.ids != reference.ids).sum()),
            'differ_told': int(told.sum()),
            'largest_margin_told': round(_most(margins(reference, said)[told]), 5),
            'error_bins': _errors(answers.ids, reference.ids),
            'error_bins_told': _errors(said, reference.ids)}


def _errors(ids: Ids, wanted: Ids) -> dict[str, float]:
    error = np.abs(ids - wanted)
    return {'mean': round(float(error.mean()), 4),
            'p99': round(float(np.percentile(error, 99.0)), 3), 'max': int(error.max())}


def _most(values: NDArray[Any]) -> float:
    return float(values.max()) if values.size else 0.0
