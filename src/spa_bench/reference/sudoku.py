"""Sudoku baseline that does not use the rules. It copies a stored solution of a training puzzle
that agrees with the clues."""

from collections.abc import Collection
from itertools import islice
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.reference import NextAction
from spa_bench.reference.puzzles import different_puzzles
from spa_games.sudoku import Sudoku


def stored_solutions(
    env: Sudoku, count: int, *, seed: int, held_out: Collection[str]
) -> list[list[int]]:
    """Collect the solutions of `count` different puzzles that are not in `held_out` (content
    hashes)."""
    found = list[list[int]]()
    puzzles = different_puzzles(env, seed=seed, purpose="solutions", held_out=held_out)
    for _ in islice(puzzles, count):
        for action in env.expert_actions(env.cells.count(0)):
            env.step(action)
        found.append([*env.cells])
    return found


def solution_lookup(solutions: Collection[list[int]]) -> NextAction:
    """Build a policy that copies a stored solution that agrees with the clues, from the first empty
    cell on. Without such a solution, it takes a random action."""

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, Sudoku):
            return None
        for solution in solutions:
            if all(given in (0, digit) for given, digit in zip(env.given, solution, strict=True)):
                cell = env.cells.index(0)
                return f"{cell // env.size + 1},{cell % env.size + 1},{solution[cell]}"
        return env.random_action(rng)

    return play
