"""Random Sokoban rooms with the distribution of gym-sokoban's generator.

A random walk carves the floor, and the player and the targets are placed at random. Every box
starts on its target, and a depth-first search plays backwards, pulling the boxes away. The visited
state with the highest score becomes the puzzle, so every room can be solved. Finally, the player
may take a few random steps.

Cells are numbered like the characters of the grid text: row * (cols + 1) + column. The line breaks
count as walls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from spa.envs.options import uniforms
from spa.errors import ConfigError

# The constants below are gym-sokoban's.
TURN_PROBABILITY = 0.35
MAX_STATES = 300_000
# Each brush lists the cells that one step of the carving walk opens, as (row, column) offsets from
# the current cell.
BRUSHES = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)


Layout = tuple[int, list[int], int, tuple[tuple[int, ...], int, int, int]]
"""The part of a search state that changes only with a pull: (flags, cells, score, details).

`flags` has the boxes as bits (see `_pull_apart`). `cells` is a list with one integer, whose bits
are the player's cells visited with these flags. All layouts with these flags share the list.
`details` are the boxes in the order of their targets, their total displacement, the number of
switches to another pulled box, and the index of the box pulled last.
"""


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
        """The offsets of up, down, left and right between cell numbers."""
        stride = self.cols + 1
        return -stride, stride, -1, 1


def generate_room(
    rng: np.random.Generator, rows: int, cols: int, num_boxes: int, search_depth: int = 300
) -> Room:
    """Generate a random solvable room in which no box is on a target.

    Raises ConfigError if 1,000 attempts fail, because the board is too small for the boxes or the
    search too shallow.
    """
    uniform = uniforms(rng, 128)
    # The original gives up after four boards, which would leave some seeds without a puzzle.
    for _ in range(1_000):
        floor = _carve(uniform, rows, cols)
        # The player and each box need a cell, and the player needs one more to move to.
        if len(floor) <= num_boxes + 1:
            continue
        free = list(floor)
        player = free.pop(int(uniform() * len(free)))
        # Box i starts on target i; both are numbered row by row.
        targets = tuple(sorted(free.pop(int(uniform() * len(free))) for _ in range(num_boxes)))
        room = _pull_apart(
            Room(rows, cols, frozenset(floor), targets, targets, player), search_depth
        )
        moved = _displacement(room)
        if moved:
            # As in the original, random steps are more likely if the boxes moved by only one cell
            # in total.
            return _random_walk(uniform, room, 0.8 if moved == 1 else 0.5)
    raise ConfigError(
        f"sokoban: 1,000 attempts gave no {rows}x{cols} room with {num_boxes} boxes; raise "
        "'dim_x', 'dim_y' or 'search_depth', or lower 'num_boxes'"
    )


@lru_cache(maxsize=32)
def _brush_tables(rows: int, cols: int) -> tuple[dict[int, tuple[int, ...]], tuple[int, ...]]:
    """Return the cells that each brush opens at each inner cell, as bits, and the list of all inner
    cells."""
    stride = cols + 1
    inner = [row * stride + col for row in range(1, rows - 1) for col in range(1, cols - 1)]
    mask = sum(1 << cell for cell in inner)
    brushes = {
        cell: tuple(
            # The mask keeps brushes from opening the border.
            sum(1 << (cell + down * stride + right) for down, right in brush) & mask
            for brush in BRUSHES
        )
        for cell in inner
    }
    return brushes, tuple(inner)


def _carve(uniform: Callable[[], float], rows: int, cols: int) -> list[int]:
    """Carve the floor by a random walk of 1.7 * (rows + cols) steps. Returns the floor cells in
    row-major order."""
    brushes, inner = _brush_tables(rows, cols)
    headings = ((1, 0), (0, 1), (-1, 0), (0, -1))
    down, right = headings[int(uniform() * 4)]
    # The start may lie in the lower or right border, as in the original; the first step clamps it.
    row = 1 + int(uniform() * (rows - 1))
    col = 1 + int(uniform() * (cols - 1))
    last_row = rows - 2
    last_col = cols - 2
    stride = cols + 1
    bits = 0
    for _ in range(int(1.7 * (rows + cols))):
        if uniform() < TURN_PROBABILITY:
            down, right = headings[int(uniform() * 4)]
        row = min(max(row + down, 1), last_row)
        col = min(max(col + right, 1), last_col)
        bits |= brushes[row * stride + col][int(uniform() * 5)]
    return [cell for cell in inner if bits >> cell & 1]


def _displacement(room: Room) -> int:
    """Sum of the Manhattan distances between each box and its initial target."""
    stride = room.cols + 1
    return sum(
        abs(box // stride - target // stride) + abs(box % stride - target % stride)
        for box, target in zip(room.boxes, room.targets, strict=True)
    )


def _pull_apart(room: Room, search_depth: int) -> Room:
    """Search backwards from the solved `room` and return the visited state with the highest score.

    The search is depth-first, in the order up, down, left, right. A player who moves away from a
    box pulls it along. The score is the boxes' total displacement, times the number of pulls that
    switch to another box. The first pull counts as a switch. The score is 0 if a box or the player
    is on a target. Ties go to the first state. As in the original, a box that was pulled back to
    its old cell gives a different state from a box that was never pulled.

    Floor cells are renumbered from 0 to `count` - 1. Bit c of `flags` is set if a box is on cell c.
    Bit c + `count` is set if that box was ever pulled.
    """
    cells = sorted(room.floor)
    number = {cell: index for index, cell in enumerate(cells)}
    count = len(cells)
    targets = [number[target] for target in room.targets]
    target_bits = sum(1 << target for target in targets)
    distances = _distances(cells, targets, room.cols + 1)
    ways = _ways(room, number)
    states = 0
    best_score = 0
    best = (number[room.player], tuple(targets))
    # Maps flags to the cells where the player was seen, as bits. The bits are in a list of one
    # integer, which all layouts with these flags share and update.
    seen: dict[int, list[int]] = {target_bits: [0]}
    layout = (target_bits, seen[target_bits], 0, (best[1], 0, 0, -1))
    stack: list[tuple[int, int, Layout]] = [(best[0], 1, layout)]
    while stack and states < MAX_STATES:
        player, depth, layout = stack.pop()
        flags, cells_seen, score, details = layout
        here = 1 << player
        visited = cells_seen[0]
        # Another branch may have visited this state since it was pushed.
        if visited & here:
            continue
        cells_seen[0] = visited = visited | here
        states += 1
        # A state with a box or the player on a target has score 0. The flags of pulled boxes are
        # above the bits of all cells, so `target_bits` does not overlap them.
        if score > best_score and not (flags | here) & target_bits:
            best = (player, details[0])
            best_score = score
        depth += 1
        if depth == search_depth:
            continue
        closed = flags | visited
        for ahead, ahead_bit, behind, behind_bit in ways[player]:
            # Without a box behind, the player walks to a free cell that was not yet visited with
            # these boxes.
            if not flags & behind_bit:
                if not closed & ahead_bit:
                    stack.append((ahead, depth, layout))
            # In a pull, the box behind moves to the player's cell, where a flag marks it as pulled.
            elif not flags & ahead_bit:
                after = flags & ~(behind_bit | behind_bit << count) | here | here << count
                there = seen.setdefault(after, [0])
                if not there[0] & ahead_bit:
                    boxes, moved, swaps, last = details
                    index = boxes.index(behind)
                    boxes = (*boxes[:index], player, *boxes[index + 1 :])
                    moved += distances[index][player] - distances[index][behind]
                    # The score rewards switching to another box, because the player must walk
                    # between boxes.
                    swaps += index != last
                    stack.append(
                        (ahead, depth, (after, there, moved * swaps, (boxes, moved, swaps, index)))
                    )
    player, boxes = best
    return Room(
        room.rows,
        room.cols,
        room.floor,
        room.targets,
        tuple(cells[box] for box in boxes),
        cells[player],
    )


def _ways(room: Room, number: dict[int, int]) -> list[list[tuple[int, int, int, int]]]:
    """List the moves from each floor cell to other floor cells, as (cell ahead, its bit, cell
    behind, its bit).

    Cells are given by their index in `number`. If the cell behind is a wall, its index is -1 and
    its bit 0. The order is right, left, down, up, because a stack returns the last entry first.
    """
    bits = {cell: 1 << index for cell, index in number.items()}
    steps = tuple(reversed(room.deltas()))
    return [
        [
            (
                number[cell + step],
                bits[cell + step],
                number.get(cell - step, -1),
                bits.get(cell - step, 0),
            )
            for step in steps
            if cell + step in number
        ]
        for cell in number
    ]


def _distances(cells: list[int], targets: list[int], stride: int) -> list[list[int]]:
    """Return Manhattan distances, `[target][cell]`. `targets` are indices into `cells`. A cell is
    numbered row * stride + column."""
    places = [divmod(cell, stride) for cell in cells]
    return [
        [abs(row - places[target][0]) + abs(col - places[target][1]) for row, col in places]
        for target in targets
    ]


def _random_walk(uniform: Callable[[], float], room: Room, probability: float) -> Room:
    """With the given probability, move the player by up to three random steps over free cells,
    visiting none twice."""
    if uniform() >= probability:
        return room
    player = room.player
    visited = {room.player, *room.boxes}
    # After each of the first two steps, the walk continues with probability 1/2.
    for _ in range(3):
        ways = [player + delta for delta in room.deltas() if player + delta in room.floor - visited]
        if not ways:
            break
        player = ways[int(uniform() * len(ways))]
        visited.add(player)
        if uniform() >= 0.5:
            break
    return Room(room.rows, room.cols, room.floor, room.targets, room.boxes, player)
