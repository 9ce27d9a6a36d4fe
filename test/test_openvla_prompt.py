"""Prompts, with tokenizers made here: the published one cannot be shipped."""

from __future__ import annotations

import builtins
import json
from pathlib import Path
from typing import Any

import pytest

from vla_ros.policies.openvla.config import TEMPLATE, Prompt
from vla_ros.policies.openvla.prompt import (
    LLAMA_END,
    LLAMA_START,
    VICUNA_TEMPLATE,
    Prompts,
    check_llama,
    template_for,
)

tokenizers = pytest.importorskip('tokenizers')

from vla_ros.policies.openvla import tokenizer  # noqa: E402

SENTENCES = ('pick up the red block', 'put the blue ball in the bowl')


class Letters:
    """One id for each character, 100 and up."""

    def encode(self, text: str) -> list[int]:
        return [100 + ord(c) for c in text]

    def unknown(self, text: str) -> tuple[str, ...]:
        return tuple(word for word in text.split() if 'x' in word)


def ids(text: str) -> list[int]:
    return Letters().encode(text)


def test_a_prompt_is_bos_the_template_and_the_last_id() -> None:
    found = Prompts(Prompt(bos=7, last=9), Letters(), 1000).encode('Pick UP')
    assert found.ids.tolist() == [
        7, *ids('In: What action should the robot take to pick up?\nOut:'), 9]
    assert found.ids.dtype == 'int64'


def test_the_last_id_is_not_doubled_and_may_be_none() -> None:
    colon = 100 + ord(':')
    short = Prompt(template='{instruction}:', bos=1, last=colon)
    assert Prompts(short, Letters(), 99).encode('a').ids.tolist() == [1, *ids('a:')]
    none = Prompt(template='{instruction}', bos=1, last=None)
    assert Prompts(none, Letters(), 99).encode('').ids.tolist() == [1]


def test_braces_of_an_instruction_are_only_text() -> None:
    found = Prompts(Prompt(template='{instruction}!', last=None), Letters(), 99)
    assert found.encode('{0} {instruction}').ids.tolist() == [1, *ids('{0} {instruction}!')]


def test_unknown_words_are_told() -> None:
    assert Prompts(Prompt(), Letters(), 999).encode('fix the box').unknown == ('fix', 'box')


def test_a_long_instruction_loses_its_last_words() -> None:
    prompts = Prompts(Prompt(template='{instruction}:', last=None), Letters(), 12)
    found = prompts.encode('pick up the red cube')
    assert found.ids.tolist() == [1, *ids('pick up:')]
    assert found.cut == ('the', 'red', 'cube')
    assert prompts.encode('pick up').cut == ()
    assert prompts.encode('incomprehensibilities').ids.tolist() == [1, *ids(':')]


def test_endless_instructions_are_looked_at_in_part() -> None:
    found = Prompts(Prompt(last=None), Letters(), 60).encode('go ' * 1_000_000)
    assert len(found.ids) <= 60


def test_a_limit_below_the_template_is_refused() -> None:
    with pytest.raises(ValueError, match='prompt: 5 ids: the template alone takes'):
        Prompts(Prompt(), Letters(), 5)


def test_a_template_without_a_place_for_the_instruction_is_refused() -> None:
    with pytest.raises(ValueError, match='template'):
        Prompt(template='In: What?\nOut:')


@pytest.mark.parametrize(('name', 'template'), [
    ('openvla-7b', TEMPLATE), ('openvla-v01-7b', VICUNA_TEMPLATE),
    ('openvla-7b-finetuned-libero-10', TEMPLATE)])
def test_the_name_of_a_checkpoint_chooses_the_template(name: str, template: str) -> None:
    assert template_for(name) == template
    assert template.replace('{instruction}', 'x').endswith(
        'take to x?\nOut:' if template is TEMPLATE else 'take to x? ASSISTANT:')


class Llama:
    """Answers with given ids: what the published tokenizer answers, or something else."""

    def __init__(self, start: tuple[int, ...], end: tuple[int, ...]) -> None:
        self._ids = [*start, 12, 13, *end]

    def encode(self, text: str) -> list[int]:
        return list(self._ids)

    def unknown(self, text: str) -> tuple[str, ...]:
        return ()


def test_the_tokenizer_of_llama_is_known_by_its_ids() -> None:
    assert LLAMA_START == (1, 512, 29901, 1724, 3158, 881, 278, 19964, 2125, 304)
    assert LLAMA_END == (29973, 13, 3744, 29901, 29871)
    check_llama(Prompt(), Llama(LLAMA_START[1:], LLAMA_END[:-1]), 'here')
    check_llama(Prompt(), Llama(LLAMA_START[1:], LLAMA_END), 'here')
    for start, end, line in (
            ((512, 29901, 1724, 3158, 881, 278, 19964, 2125, 305), LLAMA_END,
             'here: not the tokenizer of this checkpoint: the prompt begins with 1,512,29901'),
            (LLAMA_START[1:], (29973, 29901), 'the prompt ends with 12,13,29973,29901,29871')):
        with pytest.raises(ValueError, match=line):
            check_llama(Prompt(), Llama(start, end), 'here')
    check_llama(Prompt(pad=0, last=None), Letters(), 'small')  # another vocabulary


# --- the small tokenizer -------------------------------------------------------------------------


def small() -> Any:
    return tokenizer.build_tokenizer(SENTENCES, 512)


def test_the_small_tokenizer_knows_the_words_of_template_and_sentences() -> None:
    words = sorted({*'in : what action should the robot take to ? out :'.split(),
                    *' '.join(SENTENCES).split()})
    numbers = {word: 4 + i for i, word in enumerate(words)}
    found = Prompts(tokenizer.SMALL_PROMPT, small(), 64).encode('Put the RED ball in the bowl')
    text = 'in : what action should the robot take to put the red ball in the bowl ? out :'
    assert found.ids.tolist() == [1, *(numbers[word] for word in text.split())]
    assert found.unknown == ()
    assert small().size == 4 + len(words) <= 512 - 256


def test_the_small_tokenizer_names_what_it_does_not_know() -> None:
    found = Prompts(tokenizer.SMALL_PROMPT, small(), 64).encode('push the green block, Green!')
    assert found.unknown == ('push', 'green', ',', '!')
    assert found.ids.tolist().count(3) == 5


def test_signs_that_nobody_sees_change_nothing() -> None:
    known = small()
    # A soft hyphen; wide letters and a space that does not break.
    for text in ('pi\u00adck up', '\uff30\uff29\uff23\uff2b\u00a0up'):
        assert known.encode(text) == known.encode('pick up')


def test_equal_sentences_make_equal_files(tmp_path: Path) -> None:
    small().save(tmp_path / 'one')
    tokenizer.build_tokenizer(reversed(SENTENCES), 512).save(tmp_path / 'two')
    content = (tmp_path / 'one/tokenizer.json').read_bytes()
    assert content == (tmp_path / 'two/tokenizer.json').read_bytes()
    loaded = tokenizer.load(tmp_path / 'one')
    assert loaded.encode('pick up the zebra') == small().encode('pick up the zebra')
    loaded.save(tmp_path / 'three')
    assert content == (tmp_path / 'three/tokenizer.json').read_bytes()


@pytest.mark.parametrize(('size', 'line'), [
    (270, 'vocabulary: 270: .* for words and 256 for actions take'),
    (4096, 'vocabulary: 4096: at most 2048')])
def test_a_vocabulary_that_does_not_fit_is_refused(size: int, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        tokenizer.build_tokenizer(SENTENCES, size)


# --- files ---------------------------------------------------------------------------------------


def byte_pairs() -> Any:
    """Like that of Llama: spaces become letters, unknown bytes have ids, BOS comes by itself."""
    letters = '▁abcdefghijklmnopqrstuvwxyzIOW:?'
    pieces = ['<unk>', '<s>', '</s>', *(f'<0x{i:02X}>' for i in range(256)), *letters, 'th', 'the',
              '▁the']
    made = tokenizers.Tokenizer(tokenizers.models.BPE(
        {piece: number for number, piece in enumerate(pieces)},
        [('t', 'h'), ('th', 'e'), ('▁', 'the')], unk_token='<unk>', byte_fallback=True,
        fuse_unk=True))
    made.normalizer = tokenizers.normalizers.Sequence([
        tokenizers.normalizers.Prepend('▁'), tokenizers.normalizers.Replace(' ', '▁')])
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single='<s> $A', pair='<s> $A $B', special_tokens=[('<s>', 1)])
    return made


def test_a_tokenizer_that_adds_bos_itself_does_not_double_it(tmp_path: Path) -> None:
    made = byte_pairs()
    made.save(str(tmp_path / 'tokenizer.json'))
    prompt = Prompt(template='{instruction}:', bos=1, last=None)
    found = Prompts(prompt, tokenizer.load(tmp_path), 64).encode('Take the é')
    known = made.get_vocab()
    spelled = ['▁', *'take', '▁the', '▁', '<0xC3>', '<0xA9>', ':']
    assert found.ids.tolist() == [1, *(known[piece] for piece in spelled)]
    assert found.unknown == ()


@pytest.mark.parametrize(('content', 'line'), [
    (b'', 'not a tokenizer'), (b'{"model": 3}', 'not a tokenizer'),
    (b'\xff\xfe', 'not a tokenizer'),
    (b'version https://git-lfs.github.com/spec/v1\n', 'run git lfs pull'),
    (None, 'cannot be read: No such file')])
def test_a_tokenizer_that_cannot_be_read_is_told_in_one_line(
        tmp_path: Path, content: bytes | None, line: str) -> None:
    if content is not None:
        (tmp_path / 'tokenizer.json').write_bytes(content)
    with pytest.raises(ValueError, match=line) as caught:
        tokenizer.load(tmp_path)
    assert '\n' not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / 'tokenizer.json'))


def without(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    whole = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split('.')[0] == module:
            raise ModuleNotFoundError(f'No module named {name!r}', name=module)
        return whole(name, *args, **kwargs)
    monkeypatch.setattr(builtins, '__import__', refuse)


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / 'tokenizer.model').write_bytes(b'slow')
    small().save(tmp_path / 'fast')
    with monkeypatch.context() as patch:
        without(patch, 'transformers')
        with pytest.raises(ValueError, match='pip install transformers sentencepiece'):
            tokenizer.load(tmp_path)
    with monkeypatch.context() as patch:
        without(patch, 'tokenizers')
        with pytest.raises(ValueError, match='pip install tokenizers'):
            tokenizer.load(tmp_path / 'fast')


def test_the_slow_files_of_a_tokenizer_that_are_broken_give_one_line(tmp_path: Path) -> None:
    pytest.importorskip('transformers')
    (tmp_path / 'tokenizer.model').write_bytes(b'\0' * 64)
    (tmp_path / 'tokenizer_config.json').write_text(json.dumps({'tokenizer_class': 'Llama'}))
    with pytest.raises(ValueError, match=r'tokenizer\.model: cannot be made into') as caught:
        tokenizer.load(tmp_path)
    assert '\n' not in str(caught.value)
