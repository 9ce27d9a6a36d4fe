"""The layered watchdog: limits, severity and the first cause."""

from __future__ import annotations

import itertools

import pytest

from vla_ros.core.types import NS_PER_S
from vla_ros.core.watchdog import Ages, Layer, LayerLimit, Reaction, Violation, Watchdog

LIMITS = {layer: LayerLimit(100 * (i + 1)) for i, layer in enumerate(Layer)}


@pytest.mark.parametrize('layer', Layer)
def test_a_layer_is_late_just_beyond_its_limit_and_not_at_it(layer: Layer) -> None:
    watchdog, limit = Watchdog(dict(LIMITS)), LIMITS[layer].limit_ns
    assert watchdog.late(Ages(**{layer.value: limit})) == []
    found = watchdog.late(Ages(**{layer.value: limit + 1}))
    assert [violation.reaction for violation in found] == [Reaction.HOLD]


def test_late_layers_come_in_the_order_of_the_layers_whatever_the_order_of_the_profile() -> None:
    backwards = dict(reversed(list(LIMITS.items())))
    ages = Ages(**{layer.value: NS_PER_S for layer in Layer})
    causes = [violation.cause.split(':')[0] for violation in Watchdog(backwards).late(ages)]
    assert causes == ['inference_node silent', 'observation too old', 'no new action chunk in time',
                      'plan exhausted', 'control loop late']


def test_unknown_ages_and_layers_without_a_limit_are_not_late() -> None:
    assert Watchdog(dict(LIMITS)).late(Ages()) == []
    assert Watchdog({}).late(Ages(observation_age=1 << 60)) == []


def test_a_cause_tells_age_and_limit() -> None:
    watchdog = Watchdog({Layer.OBSERVATION_AGE: LayerLimit(NS_PER_S)})
    found = watchdog.late(Ages(observation_age=NS_PER_S * 5 // 4))
    assert found[0].cause == 'observation too old: 1.25 s (limit 1 s)'


@pytest.mark.parametrize('order', itertools.permutations([
    Reaction.FAULT, Reaction.ESTOP, Reaction.STOP_PUBLISHING, Reaction.DECELERATE]))
def test_the_most_severe_acts_and_the_first_is_told(order: tuple[Reaction, ...]) -> None:
    watchdog = Watchdog({})
    worst = watchdog.judge(Violation(reaction, reaction.name) for reaction in order)
    assert worst is not None
    assert worst.reaction is Reaction.FAULT
    assert watchdog.first_cause == order[0].name


def test_severity_is_as_designed() -> None:
    assert (Reaction.FAULT > Reaction.ESTOP > Reaction.STOP_PUBLISHING > Reaction.DECELERATE
            > Reaction.HOLD > Reaction.NONE)


def test_the_first_cause_stays_until_recovery() -> None:
    watchdog = Watchdog({})
    watchdog.judge([Violation(Reaction.HOLD, 'first')])
    watchdog.judge([Violation(Reaction.FAULT, 'second')])
    watchdog.judge([])
    assert watchdog.first_cause == 'first'
    watchdog.recovered()
    watchdog.judge([Violation(Reaction.HOLD, 'third')])
    assert watchdog.first_cause == 'third'


def test_nothing_wrong_is_no_reaction() -> None:
    assert Watchdog({}).judge([]) is None
