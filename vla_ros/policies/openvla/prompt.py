"""From an instruction to the ids of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from vla_ros.policies.openvla.config import TEMPLATE, Prompt

VICUNA_TEMPLATE = (
    'A chat between a curious user and an artificial intelligence assistant. The assistant gives '
    "helpful, detailed, and polite answers to the user's questions. USER: What action should the "
    'robot take to {instruction}? ASSISTANT:')
# What Llama's tokenizer makes of TEMPLATE.
LLAMA_START = (1, 512, 29901, 1724, 3158, 881, 278, 19964, 2125, 304)
LLAMA_END = (29973, 13, 3744, 29901, 29871)
_MOST = 10_000  # characters of an instruction that are looked at


class Splitter(Protocol):
    """What turns text into ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, nothing added before or behind."""

    def unknown(self, text: str) -> tuple[str, ...]:
        """The words of a text that have no ids of their own."""


@dataclass(frozen=True)
class Encoded:
    """A prompt: `ids` int64 [L], BOS first; words that are unknown, words that found no place."""

    ids: NDArray[np.int64]
    unknown: tuple[str, ...] = ()
    cut: tuple[str, ...] = ()


class Prompts:
    """Makes prompts of at most `longest` ids. Raises ValueError where not even an empty one fits.

    A longer instruction loses its last words.
    """

    def __init__(self, prompt: Prompt, splitter: Splitter, longest: int) -> None:
        self._prompt, self._splitter, self._longest = prompt, splitter, longest
        shortest = len(self._ids(''))
        if shortest > longest:
            raise ValueError(f'prompt: {longest} ids: the template alone takes {shortest}; '
                             'allow longer prompts or shorten prompt.template')

    def encode(self, instruction: str) -> Encoded:
        """The prompt of an instruction."""
        text = instruction[:_MOST].lower()
        ids = self._ids(text)
        cut: tuple[str, ...] = ()
        if len(ids) > self._longest:
            words = text.split()
            kept = _most(len(words), lambda n: len(self._ids(' '.join(words[:n])))
                         <= self._longest)
            text, cut = ' '.join(words[:kept]), tuple(words[kept:])
            ids = self._ids(text)
        return Encoded(np.array(ids, np.int64), self._splitter.unknown(text), cut)

    def _ids(self, text: str) -> list[int]:
        prompt = self._prompt
        # Not str.format: an instruction or a template may hold braces.
        ids = [prompt.bos, *self._splitter.encode(prompt.template.replace('{instruction}', text))]
        if prompt.last is not None and ids[-1] != prompt.last:
            ids.append(prompt.last)
        return ids


def template_for(name: str) -> str:
    """The template of a published checkpoint: those of version 0.1 want Vicuna's."""
    return VICUNA_TEMPLATE if 'v01' in name else TEMPLATE


def check_llama(prompt: Prompt, splitter: Splitter, source: str) -> None:
    """Raises ValueError with one line unless `splitter` is the tokenizer of Llama 2.

    Checks nothing for another template or other special ids.
    """
    if prompt != Prompt():
        return
    ids: Sequence[int] = Prompts(prompt, splitter, 1000).encode('lift the cup').ids.tolist()
    start, end = tuple(ids[:len(LLAMA_START)]), tuple(ids[-len(LLAMA_END):])
    for where, found, wanted in (('begins', start, LLAMA_START), ('ends', end, LLAMA_END)):
        if found != wanted:
            raise ValueError(f'{source}: not the tokenizer of this checkpoint: the prompt {where} '
                             f'with {_row(found)}, not {_row(wanted)}; copy the tokenizer files of '
                             'the checkpoint again')


def _most(highest: int, fits: Callable[[int], bool]) -> int:
    """The highest n from 0 to `highest` that fits; 0 does."""
    low = 0
    while low < highest:
        middle = (low + highest + 1) // 2
        if fits(middle):
            low = middle
        else:
            highest = middle - 1
    return low


def _row(ids: Sequence[int]) -> str:
    return ','.join(map(str, ids))
