"""Learners of a HiddenDynamicsLake that know the structure described in the prompt: every action
has a direction, and every letter has a push or none."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations, product
from typing import Any

import numpy as np

from spa.envs.base import TextEnv
from spa.envs.frozen_lake_maps import TURNS, moves
from spa.envs.limits import checked_step
from spa.envs.reference import NextAction
from spa.seeds import stream
from spa_bench.reference.puzzles import random_moves
from spa_games.hidden_dynamics_lake import LETTERS, HiddenDynamicsLake

PUSHES = (*range(len(TURNS)), None)
"""Possible pushes of a letter: an index into `TURNS`, or None for no push."""
TURN_ACTIONS = 2
"""Number of actions per turn. As for language models, the state is observed only between turns."""
DISCOUNT = 0.8
"""Factor by which each further action reduces the value of a win."""


@dataclass(frozen=True, slots=True)
class World:
    """Nine facts about the dynamics: the direction of each action, in the order of the action
    names, and the push of each letter."""

    turns: tuple[int, ...]
    pushes: tuple[int | None, ...]


class InferredLake(HiddenDynamicsLake):
    """A lake with the dynamics that a learner has inferred."""

    def __init__(self, size: int, world: World) -> None:
        super().__init__(size=size)
        self._effects, self._pushes = world.turns, world.pushes


def learn_world(env: HiddenDynamicsLake, count: int, *, seed: int) -> World:
    """Learn the nine facts from `count` random moves on random puzzles. Returns the facts that
    explain the most moves. Ties are broken at random."""
    rng = stream(seed, "factored/moves")
    # Maps (action, direction) to the number of moves that this direction explains, by letter and
    # push. The key (None, None) counts moves that arrive at no letter.
    explained = defaultdict[tuple[int, int], Counter[tuple[str | None, int | None]]](Counter)
    played = random_moves(env, count, rng, seed=seed, purpose="factored", look=lambda: env.player)
    for before, name in played:
        index = env.action_names().index(name)
        for turn in range(len(TURNS)):
            explained[index, turn].update(_explanations(env, before, turn))
    return _most_explained(explained, rng)


def _explanations(
    env: HiddenDynamicsLake, before: int, turn: int
) -> list[tuple[str | None, int | None]]:
    """List the pairs of letter and push that explain the last move if the action's direction is
    `turn`."""
    landed = moves(env.size, TURNS[turn])[before]
    if landed == before or landed == env.lake.goal or landed in env.lake.holes:
        return [(None, None)] if landed == env.player else []
    return [
        (env.letters[landed], push)
        for push in PUSHES
        if env.player == (landed if push is None else moves(env.size, TURNS[push])[landed])
    ]


def _most_explained(
    explained: dict[tuple[int, int], Counter[tuple[str | None, int | None]]], rng: Any
) -> World:
    """Find the facts that explain the most moves. For given directions, each letter can be chosen
    independently."""
    ranked = []
    for turns in product(range(len(TURNS)), repeat=len(TURNS)):
        counts = sum((explained[pair] for pair in enumerate(turns)), Counter())
        pushes = [
            max(PUSHES, key=lambda p: (counts[letter, p], rng.random())) for letter in LETTERS
        ]
        total = counts[None, None] + sum(counts[pair] for pair in zip(LETTERS, pushes, strict=True))
        ranked.append((total, rng.random(), World(turns, tuple(pushes))))
    return max(ranked, key=lambda entry: entry[:2])[2]


def believed_plan(world: World) -> NextAction:
    """Build a policy that plans in the inferred world by breadth-first search, and replans after
    every action.

    It follows a shortest path. If there is none, it takes an action that does not end in a hole of
    the inferred world. It returns None in other games.
    """

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, HiddenDynamicsLake):
            return None
        names = _believed_moves(env.size, world, env.state_text("grid"))
        return names[int(rng.integers(len(names)))]

    return play


@lru_cache(maxsize=100_000)
def _believed_moves(size: int, world: World, board: str) -> tuple[str, ...]:
    believed = InferredLake(size, world)
    believed.reset(seed=0, options={"board": board})
    path = believed.expert_actions(1)
    if path:
        return path
    safe = list[str]()
    for name in believed.action_names():
        believed.reset(seed=0, options={"board": board})
        if not checked_step(believed.step(name))[1]:
            safe.append(name)
    return tuple(safe) or believed.action_names()


@dataclass(frozen=True, slots=True)
class Beliefs:
    """The worlds that are still possible. `turns` has the shape [worlds, actions] and `pushes`
    [worlds, letters], where the last index of `PUSHES` means no push."""

    turns: np.ndarray
    pushes: np.ndarray

    def keep(self, possible: np.ndarray) -> "Beliefs":
        """Keep the worlds that a boolean mask selects."""
        return Beliefs(self.turns[possible], self.pushes[possible])


def all_worlds(*, renamed: bool = False) -> Beliefs:
    """All worlds in which no two actions have the same direction, and no two letters the same push.
    With `renamed`, only those in which no action moves in the direction of its name."""
    orders = [
        order
        for order in permutations(range(len(TURNS)))
        if not renamed or all(turn != index for index, turn in enumerate(order))
    ]
    pairs = [*product(orders, permutations(range(len(PUSHES))))]
    return Beliefs(np.array([turns for turns, _ in pairs]), np.array([push for _, push in pairs]))


def elimination_episode(
    env: HiddenDynamicsLake, beliefs: Beliefs, limit: int, rng: Any
) -> tuple[bool, Beliefs]:
    """Play an episode of at most `limit` actions, starting from the worlds in `beliefs`
    (`all_worlds()` for a learner without experience). Return whether it succeeded, and the worlds
    that remain possible.

    Each turn plays the pair of actions with the highest mean value over the possible worlds. A win
    d actions after the pair has the value 0.8 ** d, assuming that the later actions are chosen with
    knowledge of the world. Ties are broken at random.
    """
    for start in range(0, limit, TURN_ACTIONS):
        end_cells = _end_cells(env, beliefs)
        cell_values = _cell_values(env, end_cells, limit - start - TURN_ACTIONS)
        worlds = np.arange(len(end_cells))
        pairs = [*product(range(len(TURNS)), repeat=TURN_ACTIONS)]
        ends = [
            end_cells[worlds, second, end_cells[:, first, env.player]] for first, second in pairs
        ]
        values = np.array([cell_values[worlds, end].mean() for end in ends])
        best = np.flatnonzero(values >= values.max() - 1e-9)
        choice = int(best[int(rng.integers(len(best)))])
        over, won = False, False
        for index in pairs[choice]:
            if not over:
                _, over, info = checked_step(env.step(env.action_names()[index]))
                won = bool(info["success"])
        beliefs = beliefs.keep(ends[choice] == env.player)
        if over:
            return won, beliefs
    return False, beliefs


def _end_cells(env: HiddenDynamicsLake, beliefs: Beliefs) -> np.ndarray:
    """The cell in which each action ends, int [worlds, actions, cells], by the player's cell before
    it. In a hole or on the goal, the player remains."""
    cells = np.arange(env.size**2)
    tables = np.array([*(moves(env.size, turn) for turn in TURNS), cells])
    ends = np.isin(cells, [*env.lake.holes, env.lake.goal])
    letters = np.array([LETTERS.index(letter) for letter in env.letters])
    landed = tables[beliefs.turns]
    worlds = np.arange(len(landed))[:, None, None]
    pushed = tables[beliefs.pushes[worlds, letters[landed]], landed]
    end_cells = np.where((landed == cells) | ends[landed], landed, pushed)
    return np.where(ends, cells, end_cells)


def _cell_values(env: HiddenDynamicsLake, end_cells: np.ndarray, left: int) -> np.ndarray:
    """The value of each cell, float [worlds, cells]. It is `DISCOUNT` ** d if the goal is d <=
    `left` actions away, else 0."""
    cell_values = np.zeros((len(end_cells), env.size**2))
    cell_values[:, env.lake.goal] = 1.0
    worlds = np.arange(len(end_cells))[:, None, None]
    for _ in range(left):
        cell_values = np.maximum(cell_values, DISCOUNT * cell_values[worlds, end_cells].max(axis=1))
    return cell_values
