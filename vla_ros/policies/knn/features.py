"""What two frames and two sentences are compared by: colour layout, edges, words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

VERSION = 1
_SIDE = 64    # pixels; every image is brought to this square
_LAYOUT = 16  # side of the colour layout
_CELL = 8     # pixels of a cell of the edge histograms
_BINS = 9     # unsigned directions of an edge
_CELLS = _SIDE // _CELL
_ROWS = np.arange(_SIDE) // _CELL
_CELL_OF_PIXEL = _ROWS[:, None] * _CELLS + _ROWS  # [side, side]
SIZE = _LAYOUT * _LAYOUT * 3 + _CELLS * _CELLS * _BINS


def image_feature(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The feature [SIZE] of an image uint8 [h, w, 3] RGB: two parts, each of unit length."""
    small: Any = cv2.resize(pixels, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA)
    layout = cv2.resize(small, (_LAYOUT, _LAYOUT), interpolation=cv2.INTER_AREA)
    colours = layout.astype(np.float64).ravel() - layout.mean()
    feature = np.concatenate((_unit(colours), _unit(_edges(small).ravel())))
    return feature.astype(np.float32)


def _edges(small: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Histograms of oriented gradients [cells, cells, bins], each damped by its own length."""
    grey = small.astype(np.float64).mean(axis=2)
    dy, dx = np.gradient(grey)
    strength = np.hypot(dx, dy)
    bins = np.floor(np.arctan2(dy, dx) * (_BINS / np.pi)).astype(np.int64) % _BINS
    votes = np.bincount((_CELL_OF_PIXEL * _BINS + bins).ravel(), weights=strength.ravel(),
                        minlength=_CELLS * _CELLS * _BINS)
    cells = votes.reshape(_CELLS, _CELLS, _BINS)
    lengths = np.linalg.norm(cells, axis=2, keepdims=True)
    damped: NDArray[np.float64] = cells / np.sqrt(lengths + 1.0)
    return damped


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    length = np.linalg.norm(vector)
    return vector / length if length > 0.0 else vector


def closest_sentences(sentence: str, known: Sequence[str]) -> tuple[int, ...]:
    """Indices of the known sentences closest to this one.

    Those that are the same but for case and punctuation; else those with the highest cosine
    between the word counts; all where no word is shared.
    """
    words = _words(sentence)
    same = tuple(i for i, other in enumerate(known) if _words(other) == words)
    if same:
        return same
    vocabulary = sorted({word for text in (sentence, *known) for word in _words(text)})
    own = _counts(words, vocabulary)
    # Rounded, so that equal cosines are equal whatever the order of their sums.
    cosines = [round(float(own @ _counts(_words(other), vocabulary)), 9) for other in known]
    best = max(cosines)
    return tuple(i for i, cosine in enumerate(cosines) if cosine == best)


def _words(sentence: str) -> list[str]:
    return re.findall(r'\w+', sentence.casefold())


def _counts(words: list[str], vocabulary: list[str]) -> NDArray[np.float64]:
    return _unit(np.array([float(words.count(word)) for word in vocabulary]))
