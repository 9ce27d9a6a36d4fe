"""The interval in which a success rate lies, from so many successes in so many episodes."""

from __future__ import annotations

from math import sqrt

Z95 = 1.959964  # of 95 % of the normal distribution


def wilson(successes: int, episodes: int, z: float = Z95) -> tuple[float, float]:
    """Wilson's score interval (low, high), which stays in [0, 1] and holds for few episodes, too.

    Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927). Raises ValueError with one line.
    """
    if episodes < 1 or not 0 <= successes <= episodes:
        raise ValueError(f'wilson: {successes} successes of {episodes} episodes: allowed are at '
                         'least 1 episode and from 0 to as many successes')
    rate, squared = successes / episodes, z * z
    middle = rate + squared / (2 * episodes)
    half = z * sqrt(rate * (1 - rate) / episodes + squared / (4 * episodes**2))
    share = 1 + squared / episodes
    # Rounding must not keep the ends from being exactly 0 and 1.
    low = 0.0 if successes == 0 else (middle - half) / share
    high = 1.0 if successes == episodes else (middle + half) / share
    return low, high
