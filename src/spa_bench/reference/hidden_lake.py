"""Learners of a HiddenDynamicsLake. Some know the structure described in the prompt: every action
has a direction, and every letter has a push or none. Others only count."""

from collections import Counter, defaultdict
from collections.abc import Callable
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
from spa_bench.reference.puzzles import most_frequent, random_moves
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


Lead = Callable[[HiddenDynamicsLake, int, int], int]
"""(lake, index of an action, the player's cell) -> the cell after the action."""


class CountedLake(HiddenDynamicsLake):
    """A lake with the moves that a learner has counted."""

    def __init__(self, size: int, lead: Lead) -> None:
        super().__init__(size=size)
        self._effects, self._counted = tuple(range(len(TURNS))), lead

    def _lead(self, turn: int, cell: int) -> int:
        return self._counted(self, turn, cell)


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
    if _ends_there(env, before, landed):
        return [(None, None)] if landed == env.player else []
    return [
        (env.letters[landed], push)
        for push in PUSHES
        if env.player == (landed if push is None else moves(env.size, TURNS[push])[landed])
    ]


def _ends_there(env: HiddenDynamicsLake, before: int, landed: int) -> bool:
    """Return whether the move ends where it landed, because of the border, the goal or a hole."""
    return landed == before or landed == env.lake.goal or landed in env.lake.holes


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


def count_landings(env: HiddenDynamicsLake, count: int, *, seed: int) -> Lead:
    """Count, in `count` random moves that name the cell from which a letter pushes, where each action
    lands from each cell, and where each letter leads from each cell. Returns the most frequent
    results. A pair that was never seen changes nothing."""
    rng = stream(seed, "landings/moves")
    landings = defaultdict[tuple[int, int], Counter[int]](Counter)
    pushes = defaultdict[tuple[int, str], Counter[int]](Counter)
    played = random_moves(env, count, rng, seed=seed, purpose="landings", look=lambda: env.player)
    for before, name in played:
        row, col = divmod(before, env.size)
        way = env.way(f"{row}{col}", name)
        landed = int(way[0]) * env.size + int(way[1]) if way else env.player
        landings[env.action_names().index(name), before][landed] += 1
        if not _ends_there(env, before, landed):
            pushes[landed, env.letters[landed]][env.player] += 1
    lands = most_frequent(landings)
    leads = most_frequent(pushes)

    def lead(lake: HiddenDynamicsLake, action: int, cell: int) -> int:
        landed = lands.get((action, cell), cell)
        if _ends_there(lake, cell, landed):
            return landed
        return leads.get((landed, lake.letters[landed]), landed)

    return lead


def count_neighbours(env: HiddenDynamicsLake, count: int, *, seed: int) -> Lead:
    """Count, in `count` random moves, where each action leads from each cell by the content of one
    neighbouring cell. For each action, it is the neighbour with which the other moves predict most
    moves. A pair that was never seen changes nothing."""
    rng = stream(seed, "neighbours/moves")
    counts = defaultdict[tuple[int, int, int, str], Counter[int]](Counter)
    played = random_moves(
        env,
        count,
        rng,
        seed=seed,
        purpose="neighbours",
        look=lambda: (env.player, [_beside(env, env.player, turn) for turn in range(len(TURNS))]),
    )
    for (before, beside), name in played:
        for turn, content in enumerate(beside):
            counts[env.action_names().index(name), turn, before, content][env.player] += 1
    right = Counter[tuple[int, int]]()
    for (action, turn, _, _), after in counts.items():
        for cell, seen in after.items():
            others = after - Counter([cell])
            if others and others.most_common(1)[0][0] == cell:
                right[action, turn] += seen
    looks = [
        max(range(len(TURNS)), key=lambda turn: right[action, turn]) for action in range(len(TURNS))
    ]
    leads = most_frequent(counts)

    def lead(lake: HiddenDynamicsLake, action: int, cell: int) -> int:
        turn = looks[action]
        return leads.get((action, turn, cell, _beside(lake, cell, turn)), cell)

    return lead


def _beside(lake: HiddenDynamicsLake, cell: int, turn: int) -> str:
    """Return what the prompt shows in the next cell in a direction: a letter, the goal, a hole or the
    border."""
    beside = moves(lake.size, TURNS[turn])[cell]
    if beside == cell:
        return "border"
    if beside == lake.lake.goal:
        return "goal"
    return "hole" if beside in lake.lake.holes else lake.letters[beside]


def believed_plan(believed: HiddenDynamicsLake) -> NextAction:
    """Build a policy that plans in the lake that a learner believes in by breadth-first search, and
    replans after every action.

    It follows a shortest path. If there is none, it takes an action that it does not expect to end in
    a hole. It returns None in other games.
    """

    @lru_cache(maxsize=100_000)
    def best(board: str) -> tuple[str, ...]:
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

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, HiddenDynamicsLake):
            return None
        names = best(env.state_text("grid"))
        return names[int(rng.integers(len(names)))]

    return play


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
