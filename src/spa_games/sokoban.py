"""Sokoban: push every box onto a target (after RAGEN's `ragen/env/sokoban`)."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import permutations
from typing import Any

from spa import seeds
from spa.envs import coords
from spa.envs.base import Action, PushPuzzle, StateText, action_index
from spa.envs.grids import GridGame
from spa.envs.options import require_bool, require_int, reset_seeds
from spa.envs.reference import reference_success
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.seeds import stream_seed
from spa_games.boards import sokoban_lines
from spa_games.sokoban_rooms import Room, generate_room
from spa_games.solvers.sokoban import fewest_moves, shortest_moves

NAME = "sokoban"
HARD_RUNS = 4
"""Number of episodes per reference policy, all of which must fail for a room to count as hard."""
MOST_ROOMS = 10_000
"""Number of rooms to try for a hard puzzle before raising an error."""
WALL, FLOOR, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
# The ids equal the original's, because the option `grid_lookup` refers to them.
SYMBOLS = {0: "#", 1: "_", 2: "O", 3: "√", 4: "X", 5: "P", 6: "S"}
MEANINGS = {
    0: "wall",
    1: "empty",
    2: "target",
    3: "box on target",
    4: "box",
    5: "player",
    6: "player on target",
}
ACTIONS = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}
SPRITES = {
    WALL: ("wall",),
    FLOOR: ("floor",),
    TARGET: ("floor", "target"),
    BOX_ON_TARGET: ("box in place",),
    BOX: ("floor", "box"),
    PLAYER: ("floor", "player"),
    PLAYER_ON_TARGET: ("floor", "target", "player"),
}


def room_text(room: Room) -> str:
    """The grid of a room in the standard symbols."""
    stride = room.cols + 1
    out = ["\n" if cell % stride == room.cols else "#" for cell in range(room.rows * stride - 1)]
    for cell in room.floor:
        box = cell in room.boxes
        target = cell in room.targets
        player = cell == room.player
        plain, on_target = ("P", "S") if player else ("X", "√") if box else ("_", "O")
        out[cell] = on_target if target else plain
    return "".join(out)


class Sokoban(GridGame):
    """A room with boxes, an equal number of targets, and a player who pushes the boxes.

    The reward is -0.1 for each action, plus 1 if it raises the number of boxes on targets, minus 1
    if it lowers that number. Solving the puzzle adds 10.
    """

    changes = ("boxes", "_grid_chars")

    state_key_format = ("state", "states as two digits for the player and two for each box")

    def __init__(
        self,
        *,
        dim_x: int = 6,
        dim_y: int = 6,
        num_boxes: int | Sequence[int] = 1,
        max_steps: int = 100,
        search_depth: int = 300,
        hard: int | None = None,
        grid_lookup: Mapping[int, str] | None = None,
        grid_vocab: Mapping[str, str] | None = None,
        action_lookup: Mapping[int, str] | None = None,
        cell_keys: bool = False,
        render_mode: str = "text",
        state_text: StateText | None = None,
    ) -> None:
        """Create a room of `dim_x` rows and `dim_y` columns, walls included.

        `num_boxes` is a number, or a list from which each puzzle takes a number at random.
        `search_depth` is the maximum number of reverse moves in the generator.

        With `hard`, rooms are generated until one can be solved within `hard` actions, but not by
        the reference policies walk and look-ahead (`spa.envs.reference`). Each policy plays
        `HARD_RUNS` episodes of at most `hard` actions, and all of them must fail. The puzzle's seed
        and the index of the room seed these episodes.

        With `cell_keys`, the row and the column of each cell precede its symbol in the grid, as in
        `11_12X`. This needs at most ten rows and columns.
        """
        self.rows = require_int(NAME, "dim_x", dim_x, 3, 64)
        self.cols = require_int(NAME, "dim_y", dim_y, 3, 64)
        # The generator first puts each box on a target. The player and one free cell need space,
        # too.
        room_for = (self.rows - 2) * (self.cols - 2) - 2
        if room_for < 1:
            raise ConfigError(
                f"{NAME}: a box does not fit on a {self.rows}x{self.cols} board; raise "
                "'dim_x' or 'dim_y'"
            )
        counts = num_boxes if isinstance(num_boxes, list | tuple) else [num_boxes]
        self._counts = tuple(require_int(NAME, "num_boxes", n, 1, room_for) for n in counts)
        if not self._counts:
            raise ConfigError(
                f"{NAME}: option 'num_boxes' is an empty list; name a number of boxes"
            )
        self.num_boxes = max(self._counts)
        self.hard = None if hard is None else require_int(NAME, "hard", hard, 1, 1_000_000)
        self.max_steps = require_int(NAME, "max_steps", max_steps, 1, 1_000_000)
        self.search_depth = require_int(NAME, "search_depth", search_depth, 3, 1_000_000)
        self.cell_keys = require_bool(NAME, "cell_keys", cell_keys)
        if self.cell_keys and max(self.rows, self.cols) > 10:
            raise ConfigError(
                f"{NAME}: option 'cell_keys' writes a row and a column as one digit each; lower "
                "'dim_x' and 'dim_y' to 10 or less, or leave 'cell_keys' out"
            )
        super().__init__(
            NAME,
            SYMBOLS,
            MEANINGS,
            ACTIONS,
            grid_lookup=grid_lookup,
            grid_vocab=grid_vocab,
            action_lookup=action_lookup,
            render_mode=render_mode,
            state_text=state_text,
        )
        stride = self.cols + 1
        # In the grid text, a line break ends each row, so a step up or down changes the index by
        # cols + 1.
        steps = {"up": -stride, "down": stride, "left": -1, "right": 1}
        self._deltas = [steps[direction] for direction in self._means]
        # An upper limit for the length of a state text: the grid with keys, three lists of cells, and
        # the words.
        longest = 3 * self.rows * stride + 3 * 16 * self.num_boxes + 200
        self.observation_space = text_space(longest)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle of `seed`, or the board in `options["board"]`, in the format of
        `puzzle_text`."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        board = (options or {}).get("board")
        if board is None:
            self._sample(puzzle_seed)
        else:
            self._begin(self._parse(board))
        return self.state_text(self.default_state_text), {}

    def _sample(self, puzzle_seed: int) -> None:
        """Generate the puzzle of a seed and start it."""
        rng = seeds.stream(puzzle_seed, "sokoban/puzzle")
        boxes = self._counts[0]
        if len(self._counts) > 1:
            boxes = self._counts[int(rng.random() * len(self._counts))]
        for number in range(MOST_ROOMS):
            self._begin(generate_room(rng, self.rows, self.cols, boxes, self.search_depth))
            chance = stream_seed(puzzle_seed, "sokoban/hard", number)
            if self.hard is None or self._is_hard(self.hard, chance):
                return
        raise ConfigError(
            f"{NAME}: none of {MOST_ROOMS} rooms was hard and could be solved within {self.hard} "
            "actions; raise 'hard', 'dim_x' or 'dim_y', or leave 'hard' out"
        )

    def _is_hard(self, actions: int, chance: int) -> bool:
        """Return whether the current room can be solved within `actions` steps, but not by the
        reference policies. The seed of their episodes is `chance`."""
        room = self.room
        steps = fewest_moves(room)
        if steps is None or steps > actions:
            return False
        for name in ("walk", "look_ahead"):
            for sample in range(HARD_RUNS):
                won = reference_success(self, name, actions, seed=chance, sample=sample)
                self._begin(room)
                if won:
                    return False
        return True

    def _begin(self, room: Room) -> None:
        self.num_boxes = len(room.boxes)
        self.room = room
        self._targets = frozenset(room.targets)
        self.player = room.player
        self.boxes = set(room.boxes)
        self.on_target = len(self.boxes & self._targets)
        self.steps = 0
        self._grid_chars = self._render_grid(self._symbols)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make one move. Walking into a box pushes it if the cell behind it is free. An unknown
        action, or any action after the end, moves nothing."""
        self.steps += 1
        index = action_index(action, self._labels)
        # After the end, an action neither moves the player nor earns a reward.
        over = self.on_target == self.num_boxes
        moved = index is not None and not over and self._move(self._deltas[index])
        reward = 0.0 if over else -0.1
        if moved:
            on_target = len(self.boxes & self._targets)
            if on_target != self.on_target:
                reward += 1.0 if on_target > self.on_target else -1.0
                self.on_target = on_target
        solved = self.on_target == self.num_boxes
        if solved and not over:
            reward += 10.0
        info = {
            "action_is_valid": index is not None,
            "action_is_effective": moved,
            "success": solved,
        }
        truncated = self.steps >= self.max_steps and not solved
        return self.state_text(self.default_state_text), reward, solved, truncated, info

    def _move(self, delta: int) -> bool:
        start = self.player
        ahead = self.player + delta
        floor = self.room.floor
        boxes = self.boxes
        if ahead not in floor:
            return False
        if ahead in boxes:
            beyond = ahead + delta
            if beyond not in floor or beyond in boxes:
                return False
            boxes.remove(ahead)
            boxes.add(beyond)
            # A move changes at most three characters of the grid.
            self._grid_chars[beyond] = self._symbols[
                BOX_ON_TARGET if beyond in self._targets else BOX
            ]
        self.player = ahead
        self._grid_chars[start] = self._symbols[TARGET if start in self._targets else FLOOR]
        self._grid_chars[ahead] = self._symbols[
            PLAYER_ON_TARGET if ahead in self._targets else PLAYER
        ]
        return True

    def _grid(self) -> str:
        return self._drawn("".join(self._grid_chars))

    def _drawn(self, symbols: str) -> str:
        """The grid with these symbols as this instance shows it."""
        return _with_keys(symbols) if self.cell_keys else symbols

    def _render_grid(self, symbols: Mapping[int, str]) -> list[str]:
        """The characters of the grid, line breaks included. A cell's number is the index of its
        character."""
        stride = self.cols + 1
        out = [symbols[WALL]] * (self.rows * stride - 1)
        # Each row but the last ends in a line break.
        out[self.cols :: stride] = "\n" * (self.rows - 1)
        for cell in self.room.floor:
            out[cell] = symbols[FLOOR]
        for cell in self._targets:
            out[cell] = symbols[TARGET]
        for cell in self.boxes:
            out[cell] = symbols[BOX_ON_TARGET if cell in self._targets else BOX]
        out[self.player] = symbols[PLAYER_ON_TARGET if self.player in self._targets else PLAYER]
        return out

    def _sentence(self) -> str:
        stride = self.cols + 1
        symbols = self._symbols
        boxes = [divmod(box, stride) for box in self.boxes]
        parts = [
            coords.phrase("Player", "Players", symbols[PLAYER], [divmod(self.player, stride)]),
            coords.phrase("box", "boxes", symbols[BOX], boxes),
            coords.phrase(
                "target",
                "targets",
                symbols[TARGET],
                [divmod(target, stride) for target in self._targets],
            ),
        ]
        if self.player in self._targets:
            parts[0] += " on a target"
        # A box on its target is also among the boxes and the targets above.
        covered = [divmod(box, stride) for box in self.boxes & self._targets]
        if covered:
            parts.append(
                coords.phrase("box on target", "boxes on targets", symbols[BOX_ON_TARGET], covered)
            )
        return "; ".join(parts) + "."

    def _parse(self, board: str) -> Room:
        """Parse a board in the standard symbols. Raises ConfigError if it does not fit the options
        of this instance."""
        stride = self.cols + 1
        rows = sokoban_lines(board)
        cells: dict[str, list[int]] = {symbol: [] for symbol in SYMBOLS.values()}
        for row, line in enumerate(rows):
            for col, symbol in enumerate(line):
                # An unknown symbol adds a key here, so `fits` below finds too many keys.
                cells.setdefault(symbol, []).append(row * stride + col)
        _wall, floor, target, both, box, player, player_on_target = (
            cells[symbol] for symbol in SYMBOLS.values()
        )
        targets = target + both + player_on_target
        boxes = box + both
        players = player + player_on_target
        inner = {
            row * stride + col for row in range(1, self.rows - 1) for col in range(1, self.cols - 1)
        }
        fits = (
            len(rows) == self.rows
            and all(len(line) == self.cols for line in rows)
            and len(cells) == len(SYMBOLS)
        )
        free = frozenset(floor + target + both + box + player + player_on_target)
        if (
            not fits
            or len(players) != 1
            or len(targets) != len(boxes)
            or len(boxes) not in self._counts
            # An open border would lead the player off the board.
            or free - inner
        ):
            raise ConfigError(
                f"{NAME}: the board must be {self.rows}x{self.cols} with walls around it, "
                f"one player, and {' or '.join(map(str, self._counts))} boxes and targets. Use the symbols "
                f"{''.join(SYMBOLS.values())} or those of XSB files (#@+$*. and spaces); got {board!r}"
            )
        return Room(
            self.rows, self.cols, free, tuple(sorted(targets)), tuple(sorted(boxes)), players[0]
        )

    def puzzle_text(self) -> str:
        """The initial board in the standard symbols, even if this instance shows other symbols."""
        return room_text(self.room)

    def _now(self) -> Room:
        """The current state as a room."""
        return replace(self.room, boxes=tuple(self.boxes), player=self.player)

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The first `limit` moves of a shortest solution; empty if there is no solution."""
        moves = shortest_moves(self._now()) or ()
        # The solver numbers moves in the order up, down, left, right, but labels may be permuted.
        labels = [self._labels[self._deltas.index(delta)] for delta in self.room.deltas()]
        return tuple(labels[move] for move in moves[:limit])

    def optimal_steps(self) -> int | None:
        """The length of a shortest solution; None if there is no solution."""
        return fewest_moves(self._now())

    def greedy_action(self, rng: Any) -> str | None:
        """The move with the lowest `goal_distance` after it, ignoring walls. Ties are broken at
        random."""
        costs = [
            _distance(*_moved(self.player, self.boxes, delta), self._targets, self.cols + 1)
            for delta in self._deltas
        ]
        best = [
            label for label, cost in zip(self._labels, costs, strict=True) if cost == min(costs)
        ]
        return best[int(rng.integers(len(best)))]

    def goal_distance(self) -> float:
        """Estimate the distance to the goal, ignoring walls.

        It is the sum of two terms: twice the fewest pushes that bring all boxes to targets, and the
        player's steps to the nearest useful cell. From there, a push moves a box closer to its
        target.
        """
        return _distance(self.player, self.boxes, self._targets, self.cols + 1)

    def state_value(self, text: str) -> float:
        """The fraction of boxes that are on targets, according to a state text."""
        grid = self._symbol_lines(text) if "\n" in text else []
        shown = sum(line.count(self._symbols[BOX_ON_TARGET]) for line in grid)
        # Without a grid, count the cells after the last `(√)`, as in `boxes on targets (√) are at
        # (1,2) (3,4)`.
        if not grid:
            shown = (
                text.rpartition(f"({self._symbols[BOX_ON_TARGET]})")[2].count("(")
                if "on target" in text
                else 0
            )
        return min(1.0, shown / self.num_boxes)

    def state_key(self) -> str | None:
        """The rows and columns of the player and each box as digits: 1322 for a player at (1,3) and
        a box at (2,2). None for rooms with more than ten rows or columns."""
        if max(self.rows, self.cols) > 10:
            return None
        return "".join(map(self._cell_key, (self.player, *sorted(self.boxes))))

    def _cell_key(self, cell: int) -> str:
        """The row and the column of a cell as digits."""
        row, column = divmod(cell, self.cols + 1)
        return f"{row}{column}"

    def way(self, key: str, action: str) -> str:
        """The cells that decide where the action leads, each with its symbol: the player's cell, the
        next one and, if a box is there, the one behind it. For example, `14P13_` or `23P22X21O`.

        `key` is the state before the action. Examples of single moves include the result, because a
        model looks a symbol up by the key of its cell. Empty without `cell_keys`, because prompts
        then show no keys, and if the room has no such state.
        """
        index = action_index(self.to_action(action), self._labels)
        there = self._at(key)
        if not self.cell_keys or index is None or there is None:
            return ""
        delta = self._deltas[index]
        ahead = there.player + delta
        cells = [there.player, ahead, *([ahead + delta] if ahead in there.boxes else [])]
        return "".join(f"{self._cell_key(cell)}{there._grid_chars[cell]}" for cell in cells)

    def state_outcome(self) -> str:
        """Return "goal", "dead" if a box is in a corner that is not a target, else "". Other dead
        ends are not detected."""
        if self.on_target == self.num_boxes:
            return "goal"
        return "dead" if any(map(self._in_corner, self.boxes - self._targets)) else ""

    def _in_corner(self, cell: int) -> bool:
        floor = self.room.floor
        up, down, left, right = self.room.deltas()
        # A box can move along an axis only if both of its neighbours on that axis are floor.
        return not ({cell + up, cell + down} <= floor or {cell + left, cell + right} <= floor)

    def key_of_text(self, text: str) -> str | None:
        """The key of the state in a grid. None for texts without a grid, because a coordinate
        sentence does not show the walls."""
        shown = self._shown(text)
        return None if shown is None else shown.state_key()

    def text_of_key(self, text: str, key: str) -> str | None:
        """Render the state `key` of the room in `text`. None if `text` has no grid or the room has
        no such state."""
        shown = self._shown(text)
        there = None if shown is None else shown._at(key)
        if there is None:
            return None
        return there.state_text("grid" if text.count("\n") == self.rows - 1 else "grid_and_coords")

    def _at(self, key: str) -> "Sokoban | None":
        """A copy of the game in the state `key`; None if the room has no such state."""
        if not key.isascii() or not key.isdecimal() or len(key) != 2 + 2 * self.num_boxes:
            return None
        stride = self.cols + 1
        player, *boxes = (int(key[i]) * stride + int(key[i + 1]) for i in range(0, len(key), 2))
        # A column outside the board would be mistaken for a line break or a cell of the next row.
        inside = all(int(column) < self.cols for column in key[1::2])
        taken = {player, *boxes}
        if not inside or len(taken) < 1 + self.num_boxes or not taken <= self.room.floor:
            return None
        # A state has one key, which names the boxes in order.
        if boxes != sorted(boxes):
            return None
        there = self.clone()
        assert isinstance(there, Sokoban)
        there._begin(replace(self.room, boxes=tuple(sorted(boxes)), player=player))
        return there

    def push_puzzle(self) -> PushPuzzle | None:
        """Describe the room for a best-first search; None if it has more than ten rows or
        columns."""
        if max(self.rows, self.cols) > 10:
            return None
        stride = self.cols + 1
        return PushPuzzle(
            floor=frozenset(map(self._cell_key, self.room.floor)),
            targets=tuple(map(self._cell_key, sorted(self._targets))),
            steps={
                label: (delta // stride, 0) if delta % stride == 0 else (0, delta)
                for label, delta in zip(self._labels, self._deltas, strict=True)
            },
            at=self._at,
        )

    def outcome_of_text(self, text: str) -> str:
        """The `state_outcome` of the state that a text shows as a grid. Empty if the text has no
        valid grid."""
        shown = self._shown(text)
        return "" if shown is None else shown.state_outcome()

    def _symbol_lines(self, text: str) -> list[str]:
        """The symbols of each line of the grid in a text."""
        lines = text.split("\n")[: self.rows]
        # With keys, every third character is a symbol.
        return [line[2::3] for line in lines] if self.cell_keys else lines

    def _shown(self, text: str) -> "Sokoban | None":
        """A copy of the game in the state that a grid shows. None if the text has no valid grid."""
        standard = str.maketrans(
            {symbol: SYMBOLS[identity] for identity, symbol in self._symbols.items()}
        )
        board = "\n".join(self._symbol_lines(text))
        if self._drawn(board) != "\n".join(text.split("\n")[: self.rows]):
            return None
        try:
            room = self._parse(board.translate(standard))
        except ConfigError:
            return None
        shown = self.clone()
        assert isinstance(shown, Sokoban)
        shown._begin(room)
        return shown

    def _sprites(self) -> list[list[tuple[str, ...]]]:
        # All symbols are single characters.
        names = {symbol: SPRITES[identity] for identity, symbol in self._symbols.items()}
        return [[names[symbol] for symbol in row] for row in "".join(self._grid_chars).split("\n")]

    def instruction(self, mode: StateText) -> str:
        """The rules, and how coordinates are numbered if they are shown."""
        text = (
            "You are playing Sokoban. Push every box onto a target. You push a box by walking into it, and it moves "
            "one cell in your direction; you cannot pull a box, push two boxes at once, or walk or push into a wall."
        )
        if mode != "coords" and self.cell_keys:
            text += " In the grid, the row and the column of each cell precede its symbol."
        if mode != "grid":
            text += " " + coords.counting(self.rows, self.cols)
        if mode == "coords":
            text += " The outermost rows and columns are walls; there may be more walls, which are not listed."
        if self.render_mode == "rgb_array":
            text += (
                " In the picture bricks are walls, a red frame is a target, a brown crate is a "
                "box, a green one is a box on its target, and the person is you."
            )
        return text


def _with_keys(grid: str) -> str:
    """Write each cell's row and column before its symbol."""
    return "\n".join(
        "".join(f"{row}{col}{symbol}" for col, symbol in enumerate(line))
        for row, line in enumerate(grid.split("\n"))
    )


def _moved(player: int, boxes: Set[int], delta: int) -> tuple[int, Set[int]]:
    """The player and the boxes after a move in a room without walls."""
    ahead = player + delta
    if ahead not in boxes:
        return ahead, boxes
    # Two boxes in a row cannot be pushed.
    return (player, boxes) if ahead + delta in boxes else (ahead, boxes - {ahead} | {ahead + delta})


def _distance(player: int, boxes: Set[int], targets: Set[int], stride: int) -> float:
    """Compute `Sokoban.goal_distance`. `stride` is the difference between the numbers of cells one
    row apart."""
    if boxes == targets:
        return 0.0
    away = sorted(boxes - targets)
    # Assign boxes to targets so that the total number of steps is smallest.
    least = min(
        (
            sum(_steps(box, target, stride) for box, target in zip(away, order, strict=True)),
            order,
        )
        for order in permutations(sorted(targets - boxes))
    )
    nearest = min(
        _approach(player, box, side, stride)
        for box, target in zip(away, least[1], strict=True)
        for side in _pushing_cells(box, target, stride)
    )
    return 2.0 * least[0] + nearest


def _steps(start: int, end: int, stride: int) -> int:
    row, col = divmod(start, stride)
    other_row, other_col = divmod(end, stride)
    return abs(row - other_row) + abs(col - other_col)


def _pushing_cells(box: int, target: int, stride: int) -> list[int]:
    """The cells from which a push moves `box` closer to `target`."""
    row, col = divmod(box, stride)
    other_row, other_col = divmod(target, stride)
    cells = []
    if row != other_row:
        cells.append(box - stride if other_row > row else box + stride)
    if col != other_col:
        cells.append(box - 1 if other_col > col else box + 1)
    return cells


def _approach(player: int, box: int, side: int, stride: int) -> int:
    """The player's number of steps to `side`, a cell next to `box`, walking around the box if
    necessary."""
    steps = _steps(player, side, stride)
    # The box is in the way if it is between the player and `side` on a straight line.
    around = _steps(player, box, stride) + 1 == steps and (
        player // stride == side // stride or player % stride == side % stride
    )
    return steps + 2 if around else steps
