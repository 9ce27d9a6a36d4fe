"""Sentences as tokens, whatever people write."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_ros.policies.edgevla.tokenizer import FIRST, PAD, UNKNOWN, Encoded, Tokenizer, split

WORDS = ('pick', 'up', 'the', 'red', 'block', 'strasse', 'красный')
LENGTH = 6


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(WORDS, LENGTH)


def ids(*words: str) -> list[int]:
    known = [FIRST + WORDS.index(word) if word in WORDS else UNKNOWN for word in words]
    return known + [PAD] * (LENGTH - len(known))


def test_every_word_has_its_place(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode('pick up the red block')
    assert encoded.ids.dtype == np.int64
    assert encoded.ids.tolist() == ids('pick', 'up', 'the', 'red', 'block')
    assert (encoded.unknown, encoded.cut) == ((), ())


@pytest.mark.parametrize('text', [
    '  Pick\tup THE red, block!! ', 'pick-up the red/block.', 'pick up\nthe\r\nred block\0',
    'pick\x1bup the \x07red block', 'ｐｉｃｋ up the ｒed block',
    'pick up the re\u00add\u200b block'])
def test_case_punctuation_and_invisible_characters_do_not_matter(
        tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.encode(text).ids.tolist() == ids('pick', 'up', 'the', 'red', 'block')


@pytest.mark.parametrize('text', ['', '   ', '\n\t\0', '!?…', '🙂🤖', '\u200b\ufeff'])
def test_text_without_words_is_all_padding(tokenizer: Tokenizer, text: str) -> None:
    encoded = tokenizer.encode(text)
    assert encoded.ids.tolist() == [PAD] * LENGTH
    assert (encoded.unknown, encoded.cut) == ((), ())


def test_unknown_words_keep_their_place_and_are_named_once(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode('Pick the banana, the BANANA peel')
    assert encoded.ids.tolist() == ids('pick', 'the', '?', 'the', '?', '?')
    assert encoded.unknown == ('banana', 'peel')


def test_words_that_find_no_place_are_named(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode('pick up the red block the teapot')
    assert encoded.ids.tolist() == ids('pick', 'up', 'the', 'red', 'block', 'the')
    assert encoded.cut == ('teapot',)
    assert encoded.unknown == ('teapot',)


def test_very_long_text_takes_no_longer_than_its_beginning(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode('red ' * 1_000_000)
    assert encoded.ids.tolist() == ids(*['red'] * LENGTH)
    assert len(encoded.cut) < 3000
    one_word = tokenizer.encode('x' * 1_000_000)
    assert one_word.ids.tolist() == ids('?')
    assert len(one_word.unknown[0]) <= 10_000


@pytest.mark.parametrize(('text', 'word'), [
    ('КРАСНЫЙ', 'красный'), ('Красныи\u0306', 'красный'), ('Straße', 'strasse')])
def test_other_scripts_are_folded_as_their_writers_do(
        tokenizer: Tokenizer, text: str, word: str) -> None:
    assert tokenizer.encode(text).ids.tolist() == ids(word)


def test_words_of_other_scripts_are_named_as_they_are(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode('拿起 红色 积木').unknown == ('拿起', '红色', '积木')
    assert tokenizer.encode('خذ المكعب').unknown == ('خذ', 'المكعب')
    assert tokenizer.encode('e\u0301t\u00e9').unknown == ('\u00e9t\u00e9',)


@pytest.mark.parametrize('word', ['Red', 'two words', '', 'red!', 'straße'])
def test_vocabulary_with_words_that_nobody_can_write_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r'^text\.words: ') as caught:
        Tokenizer(('pick', word), LENGTH)
    assert '\n' not in str(caught.value)


def check(encoded: Encoded) -> None:
    assert encoded.ids.shape == (LENGTH,)
    assert (encoded.ids >= 0).all()
    assert (encoded.ids < FIRST + len(WORDS)).all()
    padding = encoded.ids == PAD
    assert (np.diff(padding.astype(int)) >= 0).all()  # all at the end
    assert (UNKNOWN in encoded.ids) <= bool(encoded.unknown)
    assert not encoded.cut or not padding.any()


@given(st.text(max_size=200) | st.lists(st.sampled_from(WORDS), max_size=9).map(' '.join))
def test_any_text_becomes_tokens_and_its_words_the_same_tokens(text: str) -> None:
    tokenizer = Tokenizer(WORDS, LENGTH)
    encoded = tokenizer.encode(text)
    check(encoded)
    again = tokenizer.encode(' '.join(split(text)))
    assert again.ids.tolist() == encoded.ids.tolist()
    assert (again.unknown, again.cut) == (encoded.unknown, encoded.cut)
