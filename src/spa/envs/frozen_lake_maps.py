"""Generate random lakes by the method of RAGEN's `ragen/env/frozen_lake`, and tabulate the moves on
them."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spa.envs.options import uniforms

TURNS = ("left", "down", "right", "up")  # in circular order: a slip changes the index by one
STEPS = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


@dataclass(frozen=True, slots=True)
class Lake:
    """A puzzle: a square lake of `size` x `size` cells. Cells are numbered row by row, from the top
    left corner."""

    size: int
    start: int
    goal: int
    holes: frozenset[int]


def generate_lake(rng: np.random.Generator, size: int, p: float) -> Lake:
    """Generate a random lake whose goal can be reached from its start.

    Each cell is frozen with probability `p`. Start and goal are sampled uniformly.
    """
    uniform = uniforms(rng)
    cells = size * size
    # The loop ends for every `p`: even without ice, start and goal are sometimes neighbours.
    while True:
        # Keep the order of these samples (ice, start, goal): it determines the lake of every seed.
        holes = frozenset([cell for cell in range(cells) if uniform() >= p])
        start = int(uniform() * cells)
        goal = int(uniform() * cells)
        # As in the original, start and goal replace holes, and an unsuitable lake is discarded as a
        # whole.
        if start != goal:
            lake = Lake(size, start, goal, holes - {start, goal})
            if _reachable(lake):
                return lake


@lru_cache(maxsize=256)
def moves(size: int, direction: str) -> tuple[int, ...]:
    """Return, for each cell, the cell that a move in `direction` leads to. A move off the lake
    leads back to the same cell."""
    down, right = STEPS[direction]
    last = size - 1
    return tuple(
        min(max(row + down, 0), last) * size + min(max(col + right, 0), last)
        for row in range(size)
        for col in range(size)
    )


@lru_cache(maxsize=64)
def _neighbours(size: int) -> tuple[tuple[int, ...], ...]:
    return tuple(zip(*(moves(size, direction) for direction in TURNS), strict=True))


def _reachable(lake: Lake) -> bool:
    near = _neighbours(lake.size)
    goal = lake.goal
    # Holes count as visited, so that no path leads through them.
    seen = {lake.start, *lake.holes}
    frontier = [lake.start]
    while frontier:
        for cell in near[frontier.pop()]:
            if cell == goal:
                return True
            if cell not in seen:
                seen.add(cell)
                frontier.append(cell)
    return False
