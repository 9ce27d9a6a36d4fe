"""What stands on the table and how it looks, drawn from a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

COLOURS: Mapping[str, tuple[float, float, float]] = {
    'red': (0.85, 0.12, 0.10),
    'green': (0.12, 0.62, 0.18),
    'blue': (0.12, 0.28, 0.85),
    'yellow': (0.95, 0.80, 0.10),
}
BLOCKS, BOWLS = 3, 2
BLOCK_HALF = 0.018  # m
X, Y = (0.20, 0.35), (-0.17, 0.17)  # m, where objects stand
# m, least distance between centres: fingers fit between all of them
BLOCK_BLOCK, BLOCK_BOWL, BOWL_BOWL = 0.09, 0.115, 0.13


@dataclass(frozen=True)
class Placed:
    """An object on the table: colour, centre x and y in m, turn in rad."""

    colour: str
    x: float
    y: float
    turn: float = 0.0


@dataclass(frozen=True)
class Look:
    """How the camera sees it: shades are factors [3], offsets in m and rad."""

    table: tuple[float, float, float]
    light: float
    hue: Mapping[str, tuple[float, float, float]]
    camera_offset: tuple[float, float, float]
    camera_turn: tuple[float, float, float]


@dataclass(frozen=True)
class Scene:
    """Blocks and bowls, each of a colour of its own, and the start of the tool [3] in m.

    `gripper`: the fingers' start, from 0 closed to 1 open.
    """

    blocks: tuple[Placed, ...]
    bowls: tuple[Placed, ...]
    look: Look
    tool: tuple[float, float, float]
    gripper: float


def make_scene(rng: np.random.Generator) -> Scene:
    """A scene in which nothing touches anything."""
    colours = list(COLOURS)
    while True:
        points: list[tuple[float, float]] = []
        for i in range(BLOCKS + BOWLS):
            for _ in range(30):
                point = (float(rng.uniform(*X)), float(rng.uniform(*Y)))
                if _free(point, points, i):
                    points.append(point)
                    break
            else:
                break
        if len(points) == BLOCKS + BOWLS:
            break
    bowl_colours = rng.permutation(colours)[:BOWLS]
    block_colours = rng.permutation(colours)[:BLOCKS]
    # The larger bowls came first, since the last place is the hardest to find.
    bowls = tuple(Placed(str(c), *p) for c, p in zip(bowl_colours, points[:BOWLS], strict=True))
    blocks = tuple(Placed(str(c), *p, float(rng.uniform(-0.25, 0.25)))
                   for c, p in zip(block_colours, points[BOWLS:], strict=True))
    tool = (float(rng.uniform(0.17, 0.24)), float(rng.uniform(-0.08, 0.08)),
            float(rng.uniform(0.15, 0.20)))
    return Scene(blocks, bowls, _look(rng), tool, float(rng.integers(0, 2)))


def _free(point: tuple[float, float], points: list[tuple[float, float]], index: int) -> bool:
    for other, placed in enumerate(points):
        bowls = (index < BOWLS) + (other < BOWLS)
        least = (BLOCK_BLOCK, BLOCK_BOWL, BOWL_BOWL)[bowls]
        if np.hypot(point[0] - placed[0], point[1] - placed[1]) < least:
            return False
    return True


def _look(rng: np.random.Generator) -> Look:
    def shades(spread: float) -> tuple[float, float, float]:
        r, g, b = rng.uniform(1.0 - spread, 1.0 + spread, 3)
        return float(r), float(g), float(b)

    def offsets(spread: float) -> tuple[float, float, float]:
        x, y, z = rng.uniform(-spread, spread, 3)
        return float(x), float(y), float(z)

    return Look(table=shades(0.15), light=float(rng.uniform(0.8, 1.2)),
                hue={colour: shades(0.10) for colour in COLOURS},
                camera_offset=offsets(0.008), camera_turn=offsets(0.012))
