"""Baselines that know the rules that a model would have to learn, or learn them by counting."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.frozen_lake_maps import TURNS, moves
from spa.envs.limits import checked_step
from spa.envs.solvers.frozen_lake import shortest_path
from spa.formats.search import GOAL, breadth_first
from spa.seeds import stream
from spa_bench.reference.puzzles import most_frequent, random_moves
from spa_games.hidden_dynamics_lake import HiddenDynamicsLake, world_of
from spa_games.sudoku import Sudoku

Table = Mapping[tuple[str, str], str]
"""Maps (state key, action) to the key of the most frequent next state."""


def count_table(env: TextEnv, moves: int, *, seed: int) -> Table:
    """Count the next states of each state and action in `moves` random moves on random puzzles.
    Returns the most frequent ones."""
    counts = defaultdict[tuple[str, str], Counter[str]](Counter)
    rng = stream(seed, "table/moves")
    played = random_moves(env, moves, rng, seed=seed, purpose="table", look=env.state_key)
    for before, name in played:
        after = env.state_key()
        assert before is not None and after is not None
        counts[before, name][after] += 1
    return most_frequent(counts)


def table_success(env: TextEnv, table: Table, limit: int) -> bool:
    """Return whether a breadth-first search with a counted table wins from the current state within
    `limit` actions. Holes and goal are read from the state text."""
    text = env.state_text("coords")

    def successors(key: str) -> list[tuple[str, str, str]]:
        found = []
        for name in env.action_names():
            after = table.get((key, name), key)
            shown = env.text_of_key(text, after)
            assert shown is not None
            found.append((name, after, env.outcome_of_text(shown)))
        return found

    start = env.state_key()
    assert start is not None
    search = breadth_first(start, successors)
    assert search.path is None or search.lines[-1].moves[-1].status == GOAL
    for name in (search.path or ())[:limit]:
        action = env.to_action(name)
        assert action is not None
        _, over, info = checked_step(env.step(action))
        if over:
            return bool(info["success"])
    return False


def single_candidate(env: TextEnv, rng: Any) -> str | None:
    """The action that fills the first empty Sudoku cell in which only one digit fits. None in other
    games, or if there is no such cell."""
    if not isinstance(env, Sudoku):
        return None
    for cell, digit in enumerate(env.cells):
        if digit:
            continue
        fitting = [d for d in range(1, env.size + 1) if env.fits(cell, d)]
        if len(fitting) == 1:
            return f"{cell // env.size + 1},{cell % env.size + 1},{fitting[0]}"
    return None


def ordinary_plan(env: TextEnv, rng: Any) -> str | None:
    """The next action of a shortest path around the holes of a HiddenDynamicsLake. It assumes that
    every action does what its name says and that letters have no effect. None in other games."""
    if not isinstance(env, HiddenDynamicsLake):
        return None
    return _planned(env, [name.lower() for name in env.action_names()], rng)


def plan_without_letters(env: TextEnv, rng: Any) -> str | None:
    """Like `ordinary_plan`, but with the true effects of the actions, to measure the value of
    knowing them."""
    if not isinstance(env, HiddenDynamicsLake):
        return None
    return _planned(env, [TURNS[turn] for turn in world_of(env.world)[0]], rng)


def _planned(env: HiddenDynamicsLake, directions: Sequence[str], rng: Any) -> str:
    """The first action of a shortest path if the actions move in these directions. Ties are broken
    at random. If there is no path, a random action."""
    near = [moves(env.size, direction)[env.player] for direction in directions]
    left = [shortest_path(env.lake, cell) for cell in near]
    known = [steps for steps in left if steps is not None]
    best = [
        name
        for name, steps in zip(env.action_names(), left, strict=True)
        if not known or steps == min(known)
    ]
    return best[int(rng.integers(len(best)))]
