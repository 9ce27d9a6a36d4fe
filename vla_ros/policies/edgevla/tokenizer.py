"""Sentences as tokens: one per word, of a vocabulary that the policy was trained on."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PAD, UNKNOWN, FIRST = 0, 1, 2  # ids; the words follow from FIRST on
_WORD = re.compile(r'\w+')
_MOST = 10_000  # characters of a sentence that are looked at


@dataclass(frozen=True)
class Encoded:
    """A sentence: `ids` int64 [L]; the words that are unknown and those that found no place."""

    ids: NDArray[np.int64]
    unknown: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


def split(text: str) -> list[str]:
    """The words of a text as the vocabulary writes them; punctuation and the like is dropped."""
    # Folding can undo the normal form, and the normal form can bring capitals.
    seen = ''.join(c for c in text[:_MOST] if unicodedata.category(c) != 'Cf')  # soft hyphens, say
    folded = unicodedata.normalize('NFKC', seen).casefold()
    return _WORD.findall(unicodedata.normalize('NFKC', folded).casefold())


class Tokenizer:
    """Turns sentences into `length` ids each. Raises ValueError on words it could never find."""

    def __init__(self, words: Sequence[str], length: int) -> None:
        for word in words:
            if split(word) != [word]:
                raise ValueError(f'text.words: {word!r}: one word in lower case, as in '
                                 f'{" ".join(split(word)) or "red"!r}')
        self.length = length
        self._ids = {word: FIRST + i for i, word in enumerate(words)}

    def encode(self, text: str) -> Encoded:
        """The tokens of a sentence, padded at the end. The empty sentence is all padding."""
        words = split(text)
        kept, cut = words[:self.length], words[self.length:]
        ids = np.full(self.length, PAD, np.int64)
        ids[:len(kept)] = [self._ids.get(word, UNKNOWN) for word in kept]
        unknown = dict.fromkeys(word for word in words if word not in self._ids)
        return Encoded(ids, tuple(unknown), tuple(cut))
