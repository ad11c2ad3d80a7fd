"""Sokoban policies that know the walls: greedy walk and look-ahead by distances around walls."""

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import permutations
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.reference import NextAction
from spa_games.sokoban import Sokoban
from spa_games.sokoban_rooms import Room

State = tuple[int, frozenset[int]]
"""The player's cell and the boxes' cells."""


def look_ahead_around_walls(depth: int, *, remember: bool) -> NextAction:
    """Build a policy that searches up to `depth` moves ahead for the state with the smallest
    `distance`. It takes the first move towards this state. Ties go to fewer moves, then are broken
    at random.

    With `remember`, no move leads to a state that the episode has already visited. The policy knows
    the rules and the walls. It needs rooms with the default action names, and returns None in other
    games.
    """
    visited = set[State]()

    def play(env: TextEnv, rng: Any) -> str | None:
        if not isinstance(env, Sokoban):
            return None
        now = env.player, frozenset(env.boxes)
        if env.steps == 0:
            visited.clear()
        if remember:
            visited.add(now)
        values = [
            _least_distance(env.room, moved(env.room, now, delta), depth, visited)
            for delta in env.room.deltas()
        ]
        best = [
            name
            for name, value in zip(env.action_names(), values, strict=True)
            if value == min(values)
        ]
        return best[int(rng.integers(len(best)))]

    return play


def walk_around_walls(env: TextEnv, rng: Any) -> str | None:
    """The move to the state with the smallest `distance` to the goal. The cost of a box is its
    number of steps to the target around walls, as if it could be pushed from every side. Ties are
    broken at random. None in other games."""
    if not isinstance(env, Sokoban):
        return None
    now = env.player, frozenset(env.boxes)
    costs = [
        distance(env.room, moved(env.room, now, delta), _steps_to) for delta in env.room.deltas()
    ]
    best = [
        name for name, cost in zip(env.action_names(), costs, strict=True) if cost == min(costs)
    ]
    return best[int(rng.integers(len(best)))]


def _least_distance(room: Room, start: State, depth: int, visited: set[State]) -> tuple[float, int]:
    """The smallest distance within `depth` - 1 moves after `start`, and the number of these
    moves."""
    found = [(float("inf"), depth)]
    frontier = {start} - visited
    for steps in range(depth):
        found += [(distance(room, state, pushes_to), steps) for state in frontier]
        frontier = {
            moved(room, state, delta)
            for state in frontier
            if state[1] != frozenset(room.targets)
            for delta in room.deltas()
        } - visited
    return min(found)


def moved(room: Room, state: State, delta: int) -> State:
    """The state after a move. A blocked move changes nothing."""
    player, boxes = state
    ahead = player + delta
    if ahead not in room.floor:
        return state
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + delta
    if beyond not in room.floor or beyond in boxes:
        return state
    return ahead, boxes - {ahead} | {beyond}


BoxCosts = Callable[[Room, int], dict[int, int]]
"""A function of (room, target) that returns, for each cell, the cost of moving a box from there to
the target."""


@lru_cache(maxsize=100_000)
def distance(room: Room, state: State, box_costs: BoxCosts) -> float:
    """Estimate the distance of a state from the goal.

    It is twice the boxes' total cost to the targets, plus the player's steps to a cell from which a
    push reduces that cost. The player walks around walls and boxes. Infinite if some box cannot
    reach a target.
    """
    player, boxes = state
    if boxes == frozenset(room.targets):
        return 0.0
    costs = {target: box_costs(room, target) for target in room.targets}
    far = float("inf")
    least, order = min(
        (sum(costs[target].get(box, far) for box, target in zip(boxes, order, strict=True)), order)
        for order in permutations(room.targets)
    )
    steps = _spread([player], lambda cell: _free(room, boxes, cell))
    near = [
        steps[box - delta]
        for box, target in zip(boxes, order, strict=True)
        for delta in room.deltas()
        if box - delta in steps
        and box + delta not in boxes
        and costs[target].get(box + delta, far) < costs[target].get(box, far)
    ]
    # If no push helps now, use a number of steps that exceeds the distance to any cell.
    return 2.0 * least + min(near, default=len(room.floor))


def _free(room: Room, boxes: frozenset[int], cell: int) -> list[int]:
    around = [cell + delta for delta in room.deltas()]
    return [place for place in around if place in room.floor and place not in boxes]


@lru_cache(maxsize=10_000)
def pushes_to(room: Room, target: int) -> dict[int, int]:
    """The fewest pushes that bring a single box from each cell to the target. The player is assumed
    to reach every side of the box. Cells without a way to the target are missing."""

    def before(cell: int) -> list[int]:
        return [
            cell - delta
            for delta in room.deltas()
            if {cell - delta, cell - 2 * delta} <= room.floor
        ]

    return _spread([target], before)


@lru_cache(maxsize=10_000)
def _steps_to(room: Room, target: int) -> dict[int, int]:
    return _spread([target], lambda cell: _free(room, frozenset(), cell))


def _spread(start: Iterable[int], neighbours: Callable[[int], Iterable[int]]) -> dict[int, int]:
    """Search breadth-first from `start`. Returns the number of steps to every reachable cell."""
    steps = dict.fromkeys(start, 0)
    queue = deque(steps)
    while queue:
        cell = queue.popleft()
        for place in neighbours(cell):
            if place not in steps:
                steps[place] = steps[cell] + 1
                queue.append(place)
    return steps
