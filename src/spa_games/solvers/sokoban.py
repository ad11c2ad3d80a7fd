"""Shortest Sokoban solutions by bidirectional breadth-first search over sets of player cells.

A state is the boxes and the player. All player cells that occur with the same boxes after the same
number of moves are the bits of one integer, so that a few shifts advance them all. The forward
search never pushes a box to a dead cell, from which it cannot reach a target. The backward search
pulls boxes. Each step advances the side with fewer box layouts by one move, and the first meeting
gives a shortest solution.
"""

from collections.abc import Callable
from functools import lru_cache, partial

from spa_games.sokoban_rooms import Room

Layer = dict[int, int]
"""States that are first reached after a given number of moves. Maps the boxes, as bits, to the
player's cells, as bits."""


def shortest_moves(room: Room) -> tuple[int, ...] | None:
    """A shortest solution of `room` as indices into (up, down, left, right), or None if it has no
    solution."""
    meeting = _meet(room)
    if meeting is None:
        return None
    ahead, behind, boxes, player = meeting
    deltas = room.deltas()
    moves = []
    # Trace back from the meeting state to the start, then forward from the meeting state to the
    # goal.
    at = boxes
    where = player
    for layer in reversed(ahead[:-1]):
        index, at, where = _step_back(layer, at, where, deltas)
        moves.append(index)
    moves.reverse()
    for layer in reversed(behind[:-1]):
        index, boxes, player = _step_on(layer, boxes, player, deltas)
        moves.append(index)
    return tuple(moves)


def fewest_moves(room: Room) -> int | None:
    """The length of a shortest solution, or None if there is no solution."""
    meeting = _meet(room)
    # Each list of layers begins with the layer of zero moves, which adds nothing to the length.
    return None if meeting is None else len(meeting[0]) + len(meeting[1]) - 2


@lru_cache(maxsize=4096)
def live_cells(floor: frozenset[int], targets: tuple[int, ...], cols: int) -> int:
    """The cells, as bits, from which a lone box can be pushed to some target. They are found by
    pulling boxes back from the targets."""
    live = set(targets)
    frontier = list(targets)
    while frontier:
        cell = frontier.pop()
        for step in (-cols - 1, cols + 1, -1, 1):
            # The box came from `origin`, pushed by a player one cell further back.
            origin = cell - step
            if origin in floor and origin - step in floor and origin not in live:
                live.add(origin)
                frontier.append(origin)
    return _bits(live)


def _meet(room: Room) -> tuple[list[Layer], list[Layer], int, int] | None:
    """Search from both ends until they meet.

    Returns the layers from the start, the layers from the goal, and the boxes and player of a
    common state. Returns None if there is no solution.
    """
    floor = _bits(room.floor)
    goal = _bits(room.targets)
    stride = room.cols + 1
    live = live_cells(room.floor, room.targets, room.cols)
    pushes = partial(_pushes, free=live & floor, stride=stride)
    pulls = partial(_pulls, free=floor, stride=stride)
    ahead: list[Layer] = [{_bits(room.boxes): 1 << room.player}]
    # The backward search begins with all boxes on targets and the player on any free cell.
    behind: list[Layer] = [{goal: floor & ~goal}]
    seen_ahead = dict(ahead[0])
    seen_behind = dict(behind[0])
    state = _common(ahead[0], seen_behind)
    while state is None:
        if len(ahead[-1]) <= len(behind[-1]):
            reached = _advance(ahead[-1], seen_ahead, floor, stride, pushes)
            ahead.append(reached)
            state = _common(reached, seen_behind)
        else:
            reached = _advance(behind[-1], seen_behind, floor, stride, pulls)
            behind.append(reached)
            state = _common(reached, seen_ahead)
        # If one side has no new states before they meet, there is no solution.
        if not reached:
            return None
    return ahead, behind, *state


def _common(reached: Layer, others: Layer) -> tuple[int, int] | None:
    """The boxes and the player of a state that both sides have reached, or None if there is
    none."""
    for boxes, players in reached.items():
        both = players & others.get(boxes, 0)
        if both:
            # Every common state is on a shortest solution, so choose any of its player cells.
            return boxes, both.bit_length() - 1
    return None


def _advance(
    layer: Layer,
    visited: Layer,
    floor: int,
    stride: int,
    jumps: Callable[[int, int], list[tuple[int, int]]],
) -> Layer:
    """Return the new states that are one move away, by walking or by `jumps` (pushes or pulls).
    Adds them to `visited`."""
    reached: Layer = {}
    for boxes, players in layer.items():
        # Move all players with these boxes by one cell in all four directions at once. Walls and
        # line breaks are not in `floor`, so no move crosses an edge of the board.
        near = players << stride | players >> stride | players << 1 | players >> 1
        walks = near & floor & ~boxes & ~visited[boxes]
        if walks:
            reached[boxes] = reached.get(boxes, 0) | walks
        # A push or pull is possible only if some player is next to a box.
        if near & boxes:
            for others, player in jumps(boxes, players):
                if not player & visited.get(others, 0):
                    reached[others] = reached.get(others, 0) | player
    for boxes, players in reached.items():
        visited[boxes] = visited.get(boxes, 0) | players
    return reached


def _pushes(boxes: int, players: int, free: int, stride: int) -> list[tuple[int, int]]:
    """List all pushes that a player in `players` can make onto a cell of `free`. Each is a pair of
    the boxes and the player's cell after the push, as bits."""
    successors = []
    free &= ~boxes
    for step in (stride, 1):
        # Pushes towards higher numbers need a player on the cell before the box and a free cell
        # after it. Shifts bind tighter than `&`.
        down = players << step & boxes & free >> step
        while down:
            # Isolate the lowest set bit.
            box = down & -down
            down ^= box
            successors.append((boxes ^ box ^ box << step, box))
        up = players >> step & boxes & free << step
        while up:
            box = up & -up
            up ^= box
            successors.append((boxes ^ box ^ box >> step, box))
    return successors


def _pulls(boxes: int, players: int, free: int, stride: int) -> list[tuple[int, int]]:
    """List all pushes that end with these boxes and a player in `players`, and that the player
    began on a cell of `free`. Each is a pair of the boxes and the player's cell before the push, as
    bits."""
    predecessors = []
    free &= ~boxes
    for step in (stride, 1):
        # To undo a push towards higher numbers, the pushed box must be on the cell after the
        # player, and the cell before must be free. The box moves back to the player's cell.
        down = players & boxes >> step & free << step
        while down:
            player = down & -down
            down ^= player
            predecessors.append((boxes ^ player << step ^ player, player >> step))
        up = players & boxes << step & free >> step
        while up:
            player = up & -up
            up ^= player
            predecessors.append((boxes ^ player >> step ^ player, player << step))
    return predecessors


def _step_back(
    layer: Layer, boxes: int, player: int, deltas: tuple[int, ...]
) -> tuple[int, int, int]:
    """Find the move from a state of `layer` that leads to (boxes, player). Returns the index of the
    move, and the boxes and player of the earlier state."""
    for index, delta in enumerate(deltas):
        before = player - delta
        beyond = player + delta
        # The move was a walk from `before`, or a push of a box from the player's cell to `beyond`.
        if layer.get(boxes, 0) >> before & 1:
            return index, boxes, before
        if boxes >> beyond & 1:
            pulled = boxes ^ 1 << beyond ^ 1 << player
            if layer.get(pulled, 0) >> before & 1:
                return index, pulled, before
    raise AssertionError(
        "internal error of the Sokoban solver: a searched state has no predecessor; report the puzzle's seed"
    )


def _step_on(
    layer: Layer, boxes: int, player: int, deltas: tuple[int, ...]
) -> tuple[int, int, int]:
    """Find a move from (boxes, player) to a state of `layer`. Returns the index of the move, and
    the boxes and player of the later state."""
    for index, delta in enumerate(deltas):
        ahead = player + delta
        # A push moves the box ahead one cell further.
        after = boxes ^ 1 << ahead ^ 1 << ahead + delta if boxes >> ahead & 1 else boxes
        if layer.get(after, 0) >> ahead & 1:
            return index, after, ahead
    raise AssertionError("sokoban solver: no move leads to a state of the next layer")


def _bits(cells: frozenset[int] | set[int] | tuple[int, ...]) -> int:
    return sum(1 << cell for cell in cells)
