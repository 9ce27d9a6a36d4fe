"""Counts by reason that stay small, whatever text comes in over the wire."""

from __future__ import annotations

from collections import Counter

MOST_REASONS = 64
OTHER = 'other'


class Counts(Counter[str]):
    """A Counter of at most 64 reasons; what comes after them is counted as `other`."""

    def __setitem__(self, reason: str, count: int) -> None:
        if reason not in self and len(self) >= MOST_REASONS:
            reason, count = OTHER, self.get(OTHER, 0) + count
        super().__setitem__(reason, count)
