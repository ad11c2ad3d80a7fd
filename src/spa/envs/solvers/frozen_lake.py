"""Solve FrozenLake by value iteration with a budget of actions."""

from functools import lru_cache

from spa.envs.frozen_lake_maps import TURNS, Lake, moves

Values = tuple[float, ...]
"""For each cell, the highest probability of reaching the goal from it."""


@lru_cache(maxsize=256)
def values(lake: Lake, success_rate: float, limit: int) -> tuple[Values, ...]:
    """Compute the values of all cells with 0, 1, …, `limit` actions left.

    `success_rate` is the probability that a move goes in the intended direction (1 without slips).
    """
    # With no actions left, the value is 1 on the goal and 0 elsewhere.
    now = tuple(float(cell == lake.goal) for cell in range(lake.size**2))
    out = [now]
    for _ in range(limit):
        # V_k(cell) = max over actions of the expected V_(k-1); goal and holes keep their value.
        best = [action_values(lake, success_rate, out[-1], cell) for cell in range(lake.size**2)]
        out.append(
            tuple(max(options) if options else now[cell] for cell, options in enumerate(best))
        )
    return tuple(out)


def action_values(lake: Lake, success_rate: float, after: Values, cell: int) -> tuple[float, ...]:
    """Return the values of moving left, down, right and up from `cell`, in this order.

    `after` contains the values of all cells after the move. The result is empty if `cell` is the
    goal or a hole.
    """
    if cell == lake.goal or cell in lake.holes:
        return ()
    reached = [after[moves(lake.size, direction)[cell]] for direction in TURNS]
    slip = (1 - success_rate) / 2
    return tuple(
        # A slip leads to one of the two neighbours of a direction in TURNS. Index -1 wraps around.
        success_rate * reached[turn] + slip * (reached[turn - 1] + reached[(turn + 1) % 4])
        for turn in range(4)
    )


def best_turn(lake: Lake, success_rate: float, cell: int, limit: int) -> int | None:
    """Return the index in TURNS of the best action with `limit` actions left; None if the goal
    cannot be reached."""
    if limit < 1:
        return None
    options = action_values(lake, success_rate, values(lake, success_rate, limit)[limit - 1], cell)
    # `index` returns the first of several best actions, which makes expert play deterministic.
    return options.index(max(options)) if options and max(options) > 0 else None


def shortest_path(lake: Lake, cell: int) -> int | None:
    """Return the number of moves on a shortest path from `cell` to the goal, ignoring slips; None
    if there is no path."""
    if cell in lake.holes:
        return None
    tables = [moves(lake.size, direction) for direction in TURNS]
    seen = {cell}
    frontier = {cell}
    steps = 0
    while frontier:
        if lake.goal in frontier:
            return steps
        # Breadth-first search: after `steps` rounds, the frontier has the cells `steps` moves away.
        frontier = {table[place] for place in frontier for table in tables} - seen - lake.holes
        seen |= frontier
        steps += 1
    return None
