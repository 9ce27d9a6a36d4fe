"""Verdicts of backends: how they are judged, kept and asked for. No torch, no files of models."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vla_ros.engines.rules import (
    MARGIN,
    MOST_EXACT,
    Answers,
    Reference,
    Rule,
    first_mismatches,
    judge,
    judge_numbers,
    margins,
    summary,
)
from vla_ros.engines.verdict import Key, Verdict, cache_folder, gate, load, store

N, K, BINS, FIRST = 40, 7, 16, 100
KEY = Key(weights='0123456789abcdef', backend='graph', precision='bf16', gpu='NVIDIA H200',
          torch='2.11.0+cu130', driver='580.95.05')
GOOD = (Rule('tokens that differ', 0, 0),)
BAD = (Rule('action error, mean', 0.2, 1.0, 'bins'), Rule('action error, p99', 7.5, 4.0, 'bins'))


def reference(margin: float = 1.0, first: int = FIRST) -> Reference:
    """The baseline prefers bin (n + k) mod BINS to all others by `margin`."""
    place = (np.arange(N)[:, None] + np.arange(K)) % BINS
    logits = np.zeros((N, K, BINS), np.float32)
    np.put_along_axis(logits, place[..., None], margin, -1)
    return Reference((place + first).astype(np.int64), logits, first)


def same(told: Reference) -> Answers:
    return Answers(told.ids.copy(), told.logits.copy())


def saying(told: Reference, n: int, k: int, place: int) -> Answers:
    """Told the same, the backend would say another bin at one place; on its own all is equal."""
    answers = same(told)
    answers.logits[n, k] = 0.0
    answers.logits[n, k, place] = 5.0
    return answers


def passed(precision: str, told: Reference, answers: Answers) -> list[bool]:
    return [rule.passed for rule in judge(precision, told, answers)]


# Judging

@pytest.mark.parametrize('precision', ['fp32', 'bf16', 'fp16', 'fp8', 'int8-weight', 'int4-weight'])
def test_the_same_answers_pass_in_every_precision(precision: str) -> None:
    told = reference()
    assert passed(precision, told, same(told)) == [True, True]


def test_one_other_token_fails_in_fp32_however_small_the_margin() -> None:
    told = reference(margin=1e-6)
    assert passed('fp32', told, saying(told, 3, 2, 0)) == [True, False]
    answers = same(told)
    answers.ids[3, 2] += 1
    rules = judge('fp32', told, answers)
    assert [(rule.passed, rule.value) for rule in rules] == [(False, 1.0), (True, 0.0)]


@pytest.mark.parametrize('precision', ['bf16', 'fp16'])
@pytest.mark.parametrize(('margin', 'fine'), [
    (0.0, True), (0.05, True), (0.0999, True), (0.125, False), (3.0, False)])
def test_rounding_may_only_decide_what_the_baseline_hardly_decides(
        precision: str, margin: float, fine: bool) -> None:
    told = reference(margin)
    assert passed(precision, told, saying(told, 3, 2, 0)) == [fine, True]
    answers = same(told)
    answers.ids[3, 2] += 1
    assert passed(precision, told, answers) == [True, fine]


def test_a_margin_of_the_limit_itself_fails() -> None:
    assert not Rule('margin', MARGIN, MARGIN, strict=True).passed
    assert Rule('margin', math.nextafter(MARGIN, 0.0), MARGIN, strict=True).passed


def test_a_token_that_the_baseline_ranks_low_fails_though_its_two_highest_are_close() -> None:
    told = reference(margin=5.0)
    place = int(told.ids[3, 2]) - FIRST
    second, last = (place + 1) % BINS, (place + 2) % BINS
    told.logits[3, 2, second] = 4.99
    assert passed('bf16', told, saying(told, 3, 2, second)) == [True, True]
    assert passed('bf16', told, saying(told, 3, 2, last)) == [False, True]


def test_on_its_own_only_the_first_token_that_differs_counts() -> None:
    told = reference(margin=2.0)
    told.logits[3, 2] = 0.0  # a tie, from which another way leads
    answers = same(told)
    answers.ids[3, 2:] = (told.ids[3, 2:] - FIRST + 5) % BINS + FIRST
    assert passed('bf16', told, answers) == [True, True]
    assert first_mismatches(told.ids, answers.ids).sum() == 1
    answers.ids[3, 1] = (told.ids[3, 1] - FIRST + 5) % BINS + FIRST  # now it is left before the tie
    assert passed('bf16', told, answers) == [True, False]


def test_an_id_that_is_no_action_fails() -> None:
    told = reference(margin=0.01)
    for wrong in (FIRST - 1, FIRST + BINS, 0):
        answers = same(told)
        answers.ids[0, 0] = wrong
        assert passed('bf16', told, answers) == [True, False]
        assert margins(told, answers.ids)[0, 0] == math.inf


@pytest.mark.parametrize('precision', ['fp32', 'bf16', 'fp8'])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_logits_that_are_not_finite_fail(precision: str, value: float) -> None:
    told = reference(margin=1e-3)
    answers = same(told)
    answers.logits[5, 5, 3] = value
    assert not all(passed(precision, told, answers))


@pytest.mark.parametrize('precision', ['fp8', 'int8-weight', 'int4-weight'])
def test_quantized_actions_may_be_off_by_a_bin_on_average_and_four_at_p99(precision: str) -> None:
    told = reference()
    answers = same(told)
    answers.ids[:] += 1
    assert passed(precision, told, answers) == [True, True]      # mean of 1 exactly
    answers.ids[0, 0] += 1
    assert passed(precision, told, answers) == [False, True]
    answers = same(told)
    answers.ids.ravel()[:3] += 200                               # 3 of 280 is more than 1 %
    assert passed(precision, told, answers) == [False, False]
    answers = same(told)
    answers.ids.ravel()[:2] -= 100                               # 2 of 280 is less
    assert passed(precision, told, answers) == [True, True]
    answers = same(told)
    answers.ids.ravel()[:10] -= 5
    assert passed(precision, told, answers) == [True, False]


def test_shapes_that_do_not_fit_are_named() -> None:
    told = reference()
    answers = same(told)
    with pytest.raises(ValueError, match=r'^ids: \[39, 7\]: the baseline has \[40, 7\]$'):
        judge('bf16', told, Answers(answers.ids[:-1], answers.logits))
    with pytest.raises(ValueError, match=r'^logits: \[40, 7, 15\]: the baseline has'):
        judge('bf16', told, Answers(answers.ids, answers.logits[..., :-1]))


# Numbers in place of tokens

SOME = 101       # the 99th percentile of so many is the highest but one
BIN = 2.0 ** -7  # of 257 edges over -1 to 1; sums of it are exact


def judged(precision: str, *errors: float, bins: int = 257) -> list[bool]:
    """Whether each rule is kept where so many of the numbers are off, and the others are equal."""
    baseline = np.zeros((SOME, 1, 1))
    found = baseline.copy()
    found[:len(errors), 0, 0] = errors
    return [rule.passed for rule in judge_numbers(precision, baseline, found, bins)]


@pytest.mark.parametrize('sign', [1.0, -1.0])
def test_a_number_in_fp32_may_be_off_by_the_limit_and_no_more(sign: float) -> None:
    assert judged('fp32') == [True]
    assert judged('fp32', sign * MOST_EXACT) == [True]
    assert judged('fp32', sign * math.nextafter(MOST_EXACT, 1.0)) == [False]


@pytest.mark.parametrize('precision', ['bf16', 'fp16', 'fp8', 'int8-weight', 'int4-weight'])
def test_numbers_in_other_precisions_may_be_off_by_as_many_bins_as_tokens(precision: str) -> None:
    assert judged(precision) == [True, True]
    assert judged(precision, *[BIN] * SOME) == [True, True]              # mean of 1 exactly
    assert judged(precision, *[BIN] * (SOME - 1), 2 * BIN) == [False, True]
    assert judged(precision, 4 * BIN, -4 * BIN) == [True, True]          # p99 of 4 exactly
    assert judged(precision, 4.1 * BIN, -4.1 * BIN) == [True, False]
    assert judged(precision, 50 * BIN) == [True, True]                   # beyond p99
    assert judged(precision, 50 * BIN, 60 * BIN) == [False, False]


def test_a_bin_is_as_wide_as_the_policy_has_them() -> None:
    assert judged('bf16', *[3 * BIN] * SOME) == [False, True]
    assert judged('bf16', *[3 * BIN] * SOME, bins=65) == [True, True]


@pytest.mark.parametrize('precision', ['fp32', 'bf16', 'fp8'])
@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_numbers_that_are_not_finite_fail(precision: str, value: float) -> None:
    baseline = np.zeros((2, 2, 3), np.float32)
    wrong = baseline.copy()
    wrong[1, 0, 2] = value
    for reference, found in ((baseline, wrong), (wrong, baseline), (wrong, wrong)):
        with np.errstate(invalid='ignore'):
            assert not any(rule.passed for rule in judge_numbers(precision, reference, found))


def test_chunks_that_do_not_fit_are_named() -> None:
    baseline = np.zeros((4, 2, 3))
    with pytest.raises(ValueError, match=r'^actions: \[3, 2, 3\]: the baseline has \[4, 2, 3\]$'):
        judge_numbers('fp32', baseline, baseline[:3])
    with pytest.raises(ValueError, match=r'^actions: \[0, 2, 3\]: the baseline has'):
        judge_numbers('fp32', baseline[:0], baseline[:0])


# What the baseline says

def test_a_baseline_that_says_nothing_is_no_reference() -> None:
    told = reference()
    with pytest.raises(ValueError, match='N at least 1'):
        Reference(told.ids[:0], told.logits[:0], FIRST)
    told.logits[0, 0, 0] = math.nan
    with pytest.raises(ValueError, match='its logits are not finite'):
        Reference(told.ids, told.logits, FIRST)


def test_the_summary_counts_what_differs() -> None:
    told = reference(margin=0.05)
    answers = saying(told, 3, 2, (int(told.ids[3, 2]) - FIRST + 2) % BINS)
    answers.ids[1, 1] += 4
    figures = summary(told, answers)
    assert figures['tokens'] == N * K
    assert (figures['differ'], figures['differ_told']) == (1, 1)
    assert figures['largest_margin_told'] == pytest.approx(0.05)
    assert figures['error_bins']['max'] == 4
    assert figures['error_bins_told']['max'] == 2


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_figure_that_is_no_number_fails(value: float) -> None:
    assert not Rule('x', value, 1.0).passed
    assert not Rule('x', value, 1.0, strict=True).passed


def test_a_verdict_without_rules_is_no_pass() -> None:
    assert not Verdict(KEY, (), 'shipped', 32).passed


# Keeping

def verdict(rules: tuple[Rule, ...] = GOOD, key: Key = KEY) -> Verdict:
    return Verdict(key, rules, 'shipped', 32, {'tokens': 224})


@pytest.mark.parametrize('rules', [GOOD, BAD, (Rule('x', 0.01, 0.1, 'logit', strict=True),)])
def test_a_verdict_comes_back_as_it_was_stored(rules: tuple[Rule, ...], tmp_path: Path) -> None:
    file = store(verdict(rules), tmp_path / 'new')
    assert load(KEY, tmp_path / 'new') == verdict(rules)
    assert [each.name for each in file.parent.iterdir()] == [file.name]  # and nothing beside it


def test_a_stored_verdict_can_be_read_by_people(tmp_path: Path) -> None:
    file = store(verdict(BAD), tmp_path)
    values = json.loads(file.read_text())
    assert values['passed'] is False
    assert values['key']['gpu'] == 'NVIDIA H200'
    assert values['rules'][1] == {'name': 'action error, p99', 'value': 7.5, 'limit': 4.0,
                                  'unit': 'bins', 'strict': False, 'passed': False}
    assert 'graph_bf16_NVIDIA_H200' in file.name
    assert file.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize('value', [math.nan, math.inf])
def test_a_failure_without_a_number_stays_one_when_stored(value: float, tmp_path: Path) -> None:
    store(verdict((Rule('margin', value, 0.1),)), tmp_path)
    found = load(KEY, tmp_path)
    assert found is not None
    assert not found.passed


@pytest.mark.parametrize('name', [field.name for field in fields(Key)])
def test_a_verdict_counts_for_nothing_else_than_its_key(name: str, tmp_path: Path) -> None:
    store(verdict(), tmp_path)
    other = replace(KEY, **{name: 'another'})
    assert load(other, tmp_path) is None
    assert other.file_name != KEY.file_name


def test_the_key_of_the_file_counts_not_only_its_name(tmp_path: Path) -> None:
    file = store(verdict(), tmp_path)
    other = replace(KEY, driver='1.2.3')
    file.rename(tmp_path / other.file_name)
    assert load(other, tmp_path) is None


@pytest.mark.parametrize('text', [
    '', '{', '[]', 'null', '{"format": 1}', '{"format": 0}', '"passed"', '\0', '{"format": 1, '
    '"key": {"weights": 1}, "rules": [], "observations": "", "count": 0, "figures": {}}'])
def test_a_damaged_verdict_is_none(text: str, tmp_path: Path) -> None:
    file = store(verdict(), tmp_path)
    file.write_text(text)
    assert load(KEY, tmp_path) is None


def test_a_verdict_that_says_passed_but_breaks_a_rule_is_not_believed(tmp_path: Path) -> None:
    file = store(verdict(BAD), tmp_path)
    file.write_text(file.read_text().replace('"passed": false', '"passed": true'))
    found = load(KEY, tmp_path)
    assert found is not None
    assert not found.passed


def test_storing_again_replaces_the_verdict(tmp_path: Path) -> None:
    store(verdict(BAD), tmp_path)
    store(verdict(GOOD), tmp_path)
    assert load(KEY, tmp_path) == verdict(GOOD)


def test_a_failed_write_leaves_the_old_verdict(tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    store(verdict(GOOD), tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('os.fsync', full)
    with pytest.raises(OSError, match='No space left'):
        store(verdict(BAD), tmp_path)
    assert load(KEY, tmp_path) == verdict(GOOD)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(('environment', 'folder'), [
    ({'VLA_ROS_CACHE': '/a', 'XDG_CACHE_HOME': '/b', 'HOME': '/c'}, '/a/verdicts'),
    ({'XDG_CACHE_HOME': '/b', 'HOME': '/c'}, '/b/vla_ros/verdicts'),
    ({'VLA_ROS_CACHE': '', 'XDG_CACHE_HOME': '', 'HOME': '/c'}, '/c/.cache/vla_ros/verdicts')])
def test_verdicts_are_kept_in_the_cache_of_the_user(environment: dict[str, str],
                                                    folder: str) -> None:
    assert cache_folder(environment) == Path(folder)


# Asking

class Asked:
    """A check that counts how often it was made, and what was reported."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self.rules, self.count = rules, 0
        self.lines: list[str] = []

    def check(self) -> Verdict:
        self.count += 1
        return verdict(self.rules)

    def gate(self, folder: Path, allow_failed: bool = False) -> Verdict:
        return gate(KEY, self.check, self.lines.append, allow_failed, folder)


def test_a_missing_verdict_is_made_once_and_kept(tmp_path: Path) -> None:
    asked = Asked(GOOD)
    assert asked.gate(tmp_path).passed
    assert asked.gate(tmp_path).passed
    assert asked.count == 1
    assert load(KEY, tmp_path) == verdict(GOOD)


def test_a_failed_check_refuses_with_one_line_each_time(tmp_path: Path) -> None:
    asked = Asked(BAD)
    for _ in range(2):
        with pytest.raises(ValueError) as refused:
            asked.gate(tmp_path)
        line = str(refused.value)
        assert '\n' not in line
        for part in ('graph in bf16 on NVIDIA H200', 'action error, p99', '7.5 bins',
                     'at most 4 bins', 'allow_failed_check: true'):
            assert part in line
    assert asked.count == 1


def test_a_failed_check_can_be_overridden_and_is_reported_all_the_same(tmp_path: Path) -> None:
    asked = Asked(BAD)
    assert not asked.gate(tmp_path, allow_failed=True).passed
    assert 'failed' in asked.lines[-1]
    assert '7.5 bins' in asked.lines[-1]


def test_a_cache_that_cannot_be_written_does_not_stop_the_engine(tmp_path: Path) -> None:
    folder = tmp_path / 'file'
    folder.write_text('not a folder')
    asked = Asked(GOOD)
    assert asked.gate(folder).passed
    assert any('cannot be kept' in line for line in asked.lines)


def test_a_check_that_breaks_leaves_no_verdict(tmp_path: Path) -> None:
    def broken() -> Verdict:
        raise ValueError('out of memory')

    with pytest.raises(ValueError, match='out of memory'):
        gate(KEY, broken, lambda _: None, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
