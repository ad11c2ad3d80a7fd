"""Shortest Sokoban solutions by breadth-first search over sets of player cells.

A state is the boxes and the player. All players that stand somewhere with the same boxes after the same number of moves
are one integer of bits, so that a step of the whole crowd is a few shifts. Boxes are never pushed to dead cells, from
which no target can be reached.
"""

from functools import lru_cache
from itertools import count

from spa.envs.sokoban_rooms import Room

Layer = dict[int, int]
"""Boxes (bits) -> the cells where the player may stand (bits), for the first time after so many moves."""


def shortest_moves(room: Room, *, limit: int | None = None) -> tuple[int, ...] | None:
    """A shortest solution of `room` as indices into up, down, left, right; None if there is none (within `limit`)."""
    layers = _layers(room, limit)
    return None if layers is None else _trace(room, layers)


def fewest_moves(room: Room, *, limit: int | None = None) -> int | None:
    """The length of a shortest solution; None if there is none (within `limit` moves)."""
    layers = _layers(room, limit)
    return None if layers is None else len(layers) - 1


def fewest_pushes(room: Room) -> int | None:
    """The fewest pushes that solve `room`, however far the player walks; None if it cannot be solved."""
    floor, goal = _bits(room.floor), _bits(room.targets)
    live = live_cells(room.floor, room.targets, room.cols)
    frontier = {_bits(room.boxes): 1 << room.player}
    visited: Layer = {}
    for pushes in count():
        if goal in frontier:
            return pushes
        reached: Layer = {}
        for boxes, players in frontier.items():
            players = _flood(players & ~visited.get(boxes, 0), floor & ~boxes, room.cols + 1)
            visited[boxes] = visited.get(boxes, 0) | players
            for after, player in _pushes(boxes, players, floor, live, room.cols + 1):
                if not player & visited.get(after, 0):
                    reached[after] = reached.get(after, 0) | player
        if not reached:
            return None
        frontier = reached
    return None


@lru_cache(maxsize=4096)
def live_cells(floor: frozenset[int], targets: tuple[int, ...], cols: int) -> int:
    """The cells (bits) from which a lone box can be pushed to some target, found by pulling back from the targets."""
    live, frontier = set(targets), list(targets)
    while frontier:
        cell = frontier.pop()
        for step in (-cols - 1, cols + 1, -1, 1):
            origin = cell - step  # the box came from here, pushed by a player who stood one cell further back
            if origin in floor and origin - step in floor and origin not in live:
                live.add(origin)
                frontier.append(origin)
    return _bits(live)


def _layers(room: Room, limit: int | None) -> list[Layer] | None:
    """The states by distance from the start, up to the first layer that holds a solved one; None without a solution."""
    floor, goal, stride = _bits(room.floor), _bits(room.targets), room.cols + 1
    live = live_cells(room.floor, room.targets, room.cols)
    layer: Layer = {_bits(room.boxes): 1 << room.player}
    layers, visited = [layer], dict(layer)
    while goal not in layer:
        if limit is not None and len(layers) > limit:
            return None
        reached: Layer = {}
        for boxes, players in layer.items():
            near = players << stride | players >> stride | players << 1 | players >> 1
            walks = near & floor & ~boxes & ~visited[boxes]
            if walks:
                reached[boxes] = reached.get(boxes, 0) | walks
            if near & boxes:
                for after, player in _pushes(boxes, players, floor, live, stride):
                    if not player & visited.get(after, 0):
                        reached[after] = reached.get(after, 0) | player
        for boxes, players in reached.items():
            visited[boxes] = visited.get(boxes, 0) | players
        if not reached:
            return None
        layer = reached
        layers.append(layer)
    return layers


def _pushes(boxes: int, players: int, floor: int, live: int, stride: int) -> list[tuple[int, int]]:
    """Each push that one of `players` can make: the boxes after it, and the player's cell (one bit)."""
    found = []
    free = live & floor & ~boxes
    for step in (stride, 1):
        for pushed, beyond_free, shift in (
            (players << step & boxes, free >> step, step),
            (players >> step & boxes, free << step, -step),
        ):
            pushed &= beyond_free
            while pushed:
                box = pushed & -pushed
                pushed ^= box
                found.append((boxes ^ box ^ (box << shift if shift > 0 else box >> -shift), box))
    return found


def _flood(players: int, free: int, stride: int) -> int:
    """All cells that can be walked to from `players` over `free` cells."""
    while True:
        wider = (players | players << stride | players >> stride | players << 1 | players >> 1) & free
        if wider == players:
            return players
        players = wider


def _trace(room: Room, layers: list[Layer]) -> tuple[int, ...]:
    """The moves of a shortest solution, walked back from the last layer."""
    deltas = room.deltas()
    boxes = _bits(room.targets)
    player = layers[-1][boxes].bit_length() - 1
    moves = []
    for layer in reversed(layers[:-1]):
        index, boxes, player = _step_back(layer, boxes, player, deltas)
        moves.append(index)
    return tuple(reversed(moves))


def _step_back(layer: Layer, boxes: int, player: int, deltas: tuple[int, ...]) -> tuple[int, int, int]:
    """The move into (boxes, player) from a state of `layer`, and that state."""
    for index, delta in enumerate(deltas):
        before, beyond = player - delta, player + delta
        if layer.get(boxes, 0) >> before & 1:
            return index, boxes, before
        if boxes >> beyond & 1:
            pulled = boxes ^ 1 << beyond ^ 1 << player
            if layer.get(pulled, 0) >> before & 1:
                return index, pulled, before
    raise AssertionError("a state of a later layer has a predecessor")


def _bits(cells: frozenset[int] | set[int] | tuple[int, ...]) -> int:
    return sum(1 << cell for cell in cells)
