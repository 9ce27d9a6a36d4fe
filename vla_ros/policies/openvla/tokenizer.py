"""Text as ids: the tokenizer files of a checkpoint, and a small tokenizer for small policies."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vla_ros.policies.openvla.config import TEMPLATE, Prompt
from vla_ros.policies.openvla.hf_files import (
    SLOW_TOKENIZER,
    TOKENIZER,
    is_pointer,
    unreadable,
    write_bytes,
)

PAD, BOS, EOS, UNKNOWN = '<pad>', '<s>', '</s>', '<unk>'
SMALL_PROMPT = Prompt(pad=0, bos=1, eos=2, last=None)
"""The prompt that fits a tokenizer of `build_tokenizer`."""
_MOST_SIZE = 2048


class Tokenizer:
    """Text as ids, by a tokenizer of the library `tokenizers`."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        unknown = getattr(inner.model, 'unk_token', None)
        self._unknown = None if unknown is None else inner.token_to_id(unknown)

    @property
    def size(self) -> int:
        """One more than the highest id."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, nothing added before or behind."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def unknown(self, text: str) -> tuple[str, ...]:
        """The words of a text that have no ids of their own, each once."""
        found = self._inner.encode(text, add_special_tokens=False)
        return tuple(dict.fromkeys(
            text[slice(*place)] for number, place in zip(found.ids, found.offsets, strict=True)
            if number == self._unknown))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, equal bytes for equal tokenizers. Raises ValueError: one line."""
        write_bytes(folder / TOKENIZER, self._inner.to_str(pretty=True).encode())


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint: tokenizer.json, else tokenizer.model through transformers.

    Raises ValueError with one line. Runs no code of the folder.
    """
    file = folder / TOKENIZER
    if not file.exists() and (folder / SLOW_TOKENIZER).exists():
        return _load_slow(folder / SLOW_TOKENIZER)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise unreadable(file, error) from None
    inner = _library().Tokenizer
    try:
        return Tokenizer(inner.from_str(content.decode('utf-8')))
    except Exception as error:  # the library raises no narrower one
        raise ValueError(f'{file}: not a tokenizer: {_line(error)}; {_fix(content)}') from None


def build_tokenizer(sentences: Iterable[str], size: int, template: str = TEMPLATE,
                    bins: int = 256) -> Tokenizer:
    """A tokenizer of whole words and punctuation, for a policy with a vocabulary of `size`.

    Ids: pad, BOS, EOS, unknown, then the words of `template` and `sentences` in order; the last
    `bins` ids are left to the actions. Raises ValueError with one line.
    """
    library = _library()
    normalizer = library.normalizers.Sequence([
        library.normalizers.NFKC(), library.normalizers.Lowercase(), library.normalizers.NFKC(),
        # Soft hyphens and other signs that nobody sees.
        library.normalizers.Replace(library.Regex(r'\p{Cf}'), '')])
    splitter = library.pre_tokenizers.Whitespace()
    words = {word for text in (template.replace('{instruction}', ' '), *sentences)
             for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    tokens = [PAD, BOS, EOS, UNKNOWN, *sorted(words)]
    if size > _MOST_SIZE:
        raise ValueError(f'vocabulary: {size}: at most {_MOST_SIZE}')
    if len(tokens) > size - bins:
        raise ValueError(f'vocabulary: {size}: {len(tokens)} ids for words and {bins} for actions '
                         f'take {len(tokens) + bins}; allowed is that to {_MOST_SIZE}')
    inner = library.Tokenizer(library.models.WordLevel(
        {token: number for number, token in enumerate(tokens)}, unk_token=UNKNOWN))
    inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    return Tokenizer(inner)


def _load_slow(file: Path) -> Tokenizer:
    try:
        from transformers import LlamaTokenizerFast
    except ImportError as error:
        raise ValueError(f'{file}: needs the Python module {error.name or "transformers"} as long '
                         f'as there is no {TOKENIZER} beside it: pip install transformers '
                         'sentencepiece') from None
    try:
        made = LlamaTokenizerFast.from_pretrained(str(file.parent), local_files_only=True)
        return Tokenizer(made.backend_tokenizer)
    except Exception as error:  # of many kinds: missing sentencepiece, a truncated file
        raise ValueError(f'{file}: cannot be made into a {TOKENIZER}: {_line(error)}; copy that '
                         'file of the checkpoint beside it') from None


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ValueError('openvla: Python module tokenizers is missing; pip install tokenizers'
                         ) from None
    return tokenizers


def _fix(content: bytes) -> str:
    return 'it is a pointer of Git LFS: run git lfs pull in the folder' \
        if is_pointer(content) else 'copy it again'


def _line(error: BaseException) -> str:
    return ' '.join(str(error).split())[:200]
