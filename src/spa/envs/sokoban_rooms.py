"""Random Sokoban rooms with the distribution of the original's generator (REFERENCE section 2.1).

A walk over an empty board carves the floor. Player and targets are placed at random, every box starts on its target,
and the boxes are pulled away by playing backwards: of all states that a depth-first search meets, the one with the
largest score becomes the puzzle, so every room can be solved. At last the player may take a few random steps.

Cells are numbered like the characters of the drawing: row * (cols + 1) + column. The line breaks count as walls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spa.envs.options import uniforms
from spa.errors import ConfigError

TURN_PROBABILITY = 0.35
MAX_STATES = 300_000
# What one step of the carving walk opens around the walker, as (row, column) offsets.
BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


@dataclass(frozen=True, slots=True)
class Room:
    """A puzzle. Cells are numbered row * (cols + 1) + column."""

    rows: int
    cols: int
    floor: frozenset[int]
    targets: tuple[int, ...]
    boxes: tuple[int, ...]
    player: int

    def deltas(self) -> tuple[int, int, int, int]:
        """What up, down, left and right add to a cell."""
        stride = self.cols + 1
        return -stride, stride, -1, 1


def generate_room(rng: np.random.Generator, rows: int, cols: int, num_boxes: int, search_depth: int = 300) -> Room:
    """A random solvable room with all boxes off target.

    Raises ConfigError if 1,000 draws give none (the board is too small for the boxes, or the search too shallow).
    """
    draw = uniforms(rng, 128)
    for _ in range(1_000):
        floor = _carve(draw, rows, cols)
        if len(floor) <= num_boxes + 1:
            continue
        free = list(floor)
        player = free.pop(int(draw() * len(free)))
        targets = tuple(sorted(free.pop(int(draw() * len(free))) for _ in range(num_boxes)))
        room = _pull_apart(Room(rows, cols, frozenset(floor), targets, targets, player), search_depth)
        moved = _displacement(room)
        if moved:
            return _stroll(draw, room, 0.8 if moved == 1 else 0.5)
    raise ConfigError(
        f"sokoban: no {rows}x{cols} room with {num_boxes} boxes in 1,000 draws; "
        "raise 'dim_x', 'dim_y' or 'search_depth', or lower 'num_boxes'"
    )


@lru_cache(maxsize=32)
def _brush_tables(rows: int, cols: int) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
    """The bits that each brush opens at each inner cell, and all inner cells."""
    stride = cols + 1
    inner = [row * stride + col for row in range(1, rows - 1) for col in range(1, cols - 1)]
    mask = sum(1 << cell for cell in inner)
    brushes = {
        cell: tuple(sum(1 << (cell + down * stride + right) for down, right in brush) & mask for brush in BRUSHES)
        for cell in inner
    }
    return brushes, tuple(inner)


def _carve(draw: Callable[[], float], rows: int, cols: int) -> list[int]:
    """The floor cells that a random walk of 1.7 * (rows + cols) steps opens, in row-major order."""
    brushes, inner = _brush_tables(rows, cols)
    headings = ((1, 0), (0, 1), (-1, 0), (0, -1))
    down, right = headings[int(draw() * 4)]
    row, col = 1 + int(draw() * (rows - 1)), 1 + int(draw() * (cols - 1))
    last_row, last_col, stride, bits = rows - 2, cols - 2, cols + 1, 0
    for _ in range(int(1.7 * (rows + cols))):
        if draw() < TURN_PROBABILITY:
            down, right = headings[int(draw() * 4)]
        row = min(max(row + down, 1), last_row)
        col = min(max(col + right, 1), last_col)
        bits |= brushes[row * stride + col][int(draw() * 5)]
    return [cell for cell in inner if bits >> cell & 1]


def _displacement(room: Room) -> int:
    """Sum of the Manhattan distances between each box and the target it started on."""
    stride = room.cols + 1
    return sum(
        abs(box // stride - target // stride) + abs(box % stride - target % stride)
        for box, target in zip(room.boxes, room.targets, strict=True)
    )


def _pull_apart(room: Room, search_depth: int) -> Room:
    """The best state that playing backwards from the solved `room` meets.

    Depth-first over up, down, left, right; moving away from a box pulls it along. A state's score is the number of
    times that the pulled box changed, times the displacement; 0 if anything stands on a target. The first of the best
    wins. As in the original, a box that was pulled back to where it was is another state than one never pulled.
    """
    floor, deltas, stride = room.floor, room.deltas(), room.cols + 1
    width = room.rows * stride
    target_bits = sum(1 << target for target in room.targets)
    backwards = tuple(reversed(deltas))  # a stack returns the last entry first
    start = sum(1 << box for box in room.boxes)
    # player, boxes, key without player, swaps, last box pulled, depth
    stack = [(room.player, room.boxes, start, 0, -1, 1)]
    seen: set[tuple[int, int]] = set()
    best, best_score = room, 0
    while stack:
        player, boxes, key, swaps, last, depth = stack.pop()
        if (player, key) in seen or len(seen) >= MAX_STATES or depth >= search_depth:
            continue
        seen.add((player, key))
        if swaps and not (key | key >> width | 1 << player) & target_bits:
            candidate = Room(room.rows, room.cols, floor, room.targets, boxes, player)
            score = swaps * _displacement(candidate)
            if score > best_score:
                best, best_score = candidate, score
        for delta in backwards:
            ahead, behind = player + delta, player - delta
            if ahead not in floor or ahead in boxes:
                continue
            if behind not in boxes:
                stack.append((ahead, boxes, key, swaps, last, depth + 1))
                continue
            index = boxes.index(behind)
            pulled = (*boxes[:index], player, *boxes[index + 1 :])
            # A box's bit moves up by `width` when it is first pulled.
            flag = 1 << behind if key >> behind & 1 else 1 << behind + width
            pulled_key = key ^ flag | 1 << player + width
            stack.append((ahead, pulled, pulled_key, swaps + (index != last), index, depth + 1))
    return best


def _stroll(draw: Callable[[], float], room: Room, probability: float) -> Room:
    """Up to three random steps of the player over free cells, none visited twice."""
    if draw() >= probability:
        return room
    player, visited = room.player, {room.player, *room.boxes}
    for _ in range(3):
        ways = [player + delta for delta in room.deltas() if player + delta in room.floor - visited]
        if not ways:
            break
        player = ways[int(draw() * len(ways))]
        visited.add(player)
        if draw() >= 0.5:
            break
    return Room(room.rows, room.cols, room.floor, room.targets, room.boxes, player)
