"""`best_first`: responses without states (`ctx_manager.mode=base`) whose thoughts are a best-first
search. It is for games in which a player pushes boxes onto targets.

All facts about pushes are written first, each next to its key. For example, in this
room, which the prompt shows, a box is in cell 22, its target in cell 21 and the player in cell 14:

    00#01#02#03#04#05#
    10#11_12_13_14P15#
    20#21O22X23_24#25#
    30#31_32_33_34_35#
    40#41_42_43_44_45#
    50#51#52#53#54#55#

The response first names the cells of the player, the boxes and the targets, and lists the cells
from which a lone box can reach a target, working backwards. Then it names the player and the boxes
again, and the search follows:

    player14 box22 target21
    21=0: Up11/01# Down31/41=1 Left20# Right22/23=1 ; 31 22
    31/41=1: Up21 seen Down41/51# Left30# Right32/33=2 ; 22 32
    22/23=1: Up12/02# Down32 seen Left21 seen Right23/24# ; 32
    32/33=2: Up22 seen Down42/52# Left31 seen Right33/34=3 ; 33
    33/34=3: Up23/13=4 Down43/53# Left32 seen Right34/35# ; 23
    23/13=4: Up13/03# Down33 seen Left22 seen Right24#
    player14 box22
    1422/23=1+0: Up04# Down24# Left1322/23=1+1=3~121=4~330=4 Right15# ; 1322=4 Left
    1322/23=1+1 Left: Up03# Down2322/23=1+2=4~220=4~330=4 Left1222/23=1+2=4~121=5~231=6 Right1422 seen ; 2322=4 Left Down 1222=6 Left Left
    2322/23=1+2 Left Down: Up1322 seen Down3322/23=1+3=5~321=6~330=6 Left2221 goal
    Left Down Left

The line of `31/41=1` says that a box in cell 31 is one push from a target, and that the player
pushes it from cell 41. The line lists the neighbours of cell 31, one for each action, as cells from
which a box may be pushed to cell 31. `Right32/33=2` is a new one: the player pushes the box in cell
32 from cell 33. `Down41/51#` means that a box in cell 41 cannot be pushed to cell 31, because cell
51 is a wall or because the model predicts no push; `Left30#` that cell 30 is a wall. After the
semicolon come the cells that have been found but have no line yet, the next one first. `facts_of`
derives these facts from single moves. A box in a floor cell that never gets a line is dead: it can
never reach a target.

Each line of the search expands one state. It begins with the state's key. Like a fact, it then names
the cell from which the player pushes the box, and the number of pushes to a target. With two
boxes, the cell is that of the first box not on a target, and both numbers of pushes are written
(`/31=2,1`). After `+` comes the length of the path to this state, then the path, then every action
with its result. `Up04#` changes nothing, because cell 04 blocks the way. A new state is
`Left1322/23=1+1=3~121=4~330=4`: it has the text that its own line will begin with, then a sum. The
length 1 plus twice 1 push is 3. The digits after `~` compare the player's cell 13 with cell 23. Rows
1 and 2 are 1 apart, so the sum is 4. Columns 3 and 3 are 0 apart, so it stays 4. The last sum is the
state's estimate, which may exceed the length of a solution. After the semicolon come the open states
with their estimates and paths: the lowest estimate first and, of equal ones, those of the newest
line, in the order of its actions.

The next line expands the first of them. The search ends at the first goal, even in the middle of a
line. The last line is the path to that goal.
"""  # noqa: E501 - a line of the example is longer

import re
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile, zip_longest
from typing import Any

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.envs.base import PushPuzzle, TextEnv
from spa.formats.base import SearchScore
from spa.formats.search import (
    GOAL,
    SEEN,
    BreadthFirst,
    Line,
    Move,
    OpenStates,
    Search,
    Successor,
    expanding,
    explore,
    read_line,
    run_search,
    score_lines,
    state_of,
    target,
)

BLOCKED = "#"
DEAD = "dead"
_WORDS = (SEEN, DEAD, GOAL)
_PLACES = re.compile(r"player[0-9]{2}(?: box[0-9]{2})+(?: target[0-9]{2})*")
_FACTS = re.compile(r"([0-9]{2})(?:/([0-9]{2}))?=([0-9]{1,3}):")
_PUSHES = r"/[0-9]{2}=[0-9]{1,3}(?:,[0-9]{1,3})*"
_ESTIMATE = r"=[0-9]{1,3}(?:~[0-9]{3}=[0-9]{1,3}){2}"
_PARTS = re.compile(rf"(.*?)((?:/[^~]*)?)((?:{_ESTIMATE})?)")
_MOVE = re.compile(rf"([0-9]+)(#|{_PUSHES}\+[0-9]{{1,3}}{_ESTIMATE})?")


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about single boxes.

    `pushes` maps each cell to the fewest pushes that bring a box from there to a target, in the
    order of discovery. A floor cell without an entry is dead. `sides` maps a cell to the cell from
    which the player makes the first of these pushes.
    """

    pushes: Mapping[str, int]
    sides: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class BestFirstSearch(Search):
    """A finished best-first search, and the facts that it used."""

    facts: Facts


def facts_of(puzzle: PushPuzzle, boxes: int) -> Generator[str, Sequence[Successor], Facts]:
    """Derive the facts by a backward search from the targets, one push at a time.

    This generator yields the key of the state before each push, expects that state's successors to
    be sent back, and returns the facts. A push is possible if any successor equals the state after
    the push. Other boxes are placed in cells that do not block the push.
    """
    pushes = dict.fromkeys(puzzle.targets, 0)
    sides = dict[str, str]()
    queue = deque(puzzle.targets)
    while queue:
        cell = queue.popleft()
        for step in puzzle.steps.values():
            box = _beside(cell, step)
            player = _beside(box, step)
            if box in pushes or not {box, player} <= puzzle.floor:
                continue
            # Keep the other boxes off the targets. Otherwise this push could solve the puzzle and
            # end the game.
            free = sorted(puzzle.floor.difference((cell, box, player), puzzle.targets))
            others = free[: boxes - 1]
            if len(others) < boxes - 1:
                continue
            after = _key(box, [cell, *others])
            led = yield _key(player, [box, *others])
            if any(state_of(each) == after for _, each, _ in led):
                pushes[box] = pushes[cell] + 1
                sides[box] = player
                queue.append(box)
    return Facts(pushes, sides)


class BestStates(OpenStates):
    """Open states of a best-first search, ordered by `estimate`. Of equal ones, those of the newest
    line come first, in the order of its actions."""

    def __init__(self, start: str, facts: Facts, targets: Sequence[str]) -> None:
        super().__init__(start)
        self.facts = facts
        self.targets = targets
        self._ranks = {start: (0, 0, 0)}
        self._lines = 0

    def next(self) -> str | None:
        """The best open state; None if no state is open."""
        return min(self._ranks, key=self._ranks.__getitem__, default=None)

    def listed(self) -> tuple[str, ...]:
        """The words for the open states, the best first: each state with its estimate, then the
        actions that lead to it."""
        best = sorted(self._ranks, key=self._ranks.__getitem__)
        return tuple(
            word for key in best for word in (f"{key}={self._ranks[key][0]}", *self.paths[key])
        )

    def close(self, key: str) -> None:
        """Begin the line of a state, which is then no longer open."""
        self._ranks.pop(key, None)
        self._lines += 1

    def aim(self, key: str) -> str:
        """The cell from which the player pushes the first box that is not on a target. Empty if all
        boxes are on targets or that box is dead."""
        away = (box for box in _cells(key)[1:] if box not in self.targets)
        return self.facts.sides.get(next(away, ""), "")

    def note(self, key: str) -> str:
        """The text after a state's key at the beginning of a line, as in `/23=1+0`: the cell `aim`,
        the pushes of each box, and the length of the path to this state."""
        return self._note(key, len(self.paths.get(key, ())))

    def estimate(self, key: str, length: int) -> str:
        """The text after the key of a new state that a path of `length` actions reaches, as in
        `/23=1+1=3~121=4~330=4`.

        The state's note comes first, then the sum of `length` and twice the pushes. First for rows and
        then for columns, the text after `~` names where the player is, where the cell `aim` is and the
        difference, then the sum with this difference. The last sum is the estimate."""
        player, *boxes = _cells(key)
        total = length + 2 * sum(self.facts.pushes.get(box, 0) for box in boxes)
        text = f"{self._note(key, length)}={total}"
        for here, there in zip(player, self.aim(key) or player, strict=True):
            apart = abs(int(here) - int(there))
            total += apart
            text += f"~{here}{there}{apart}={total}"
        return text

    def _note(self, key: str, length: int) -> str:
        found = (self.facts.pushes.get(box) for box in _cells(key)[1:])
        pushes = ",".join(DEAD if n is None else str(n) for n in found)
        return f"/{self.aim(key)}={pushes}+{length}"

    def status(self, key: str, after: str, outcome: str) -> str:
        """The status of a move from the state `key` to `after`: `GOAL`, `BLOCKED`, `DEAD`, `SEEN`,
        or the `estimate` of a new state."""
        if outcome == GOAL:
            return GOAL
        if after == key:
            return BLOCKED
        # A key of a different length does not name a state of this puzzle, so it counts as dead.
        if len(after) != len(key):
            return DEAD
        # `outcome` comes from the text of a predicted state. It may show that the state is lost
        # even if the predicted facts do not.
        if outcome or not all(box in self.facts.pushes for box in _cells(after)[1:]):
            return DEAD
        if after in self.paths:
            return SEEN
        return self.estimate(after, len(self.paths.get(key, ())) + 1)

    def add(self, after: str, path: tuple[str, ...], status: str) -> None:
        """Record a state whose status is an estimate. Open it unless it is at the depth limit."""
        if "+" not in status:
            return
        self.paths[after] = path
        # A state at the depth limit is recorded but never expanded.
        if len(path) < self.max_depth:
            self._ranks[after] = (int(status.rpartition("=")[2]), -self._lines, len(self.paths))


class BestFirst(BreadthFirst):
    """Format whose thoughts are, in every turn, a best-first search from the current state."""

    name = "best_first"
    reads_puzzle = True

    def check(self, cfg: Config, problems: Problems) -> None:
        """Also require prompts that show the grid, because the responses look up walls in it."""
        super().check(cfg, problems)
        if cfg.state_text == "coords":
            problems.add(
                "state_text",
                f"must be grid or grid_and_coords with agent_proxy.response_format={self.name}, "
                "which looks up walls in the grid",
            )

    def overrides(self) -> tuple[str, ...]:
        """Also return the override that makes prompts show the grid, and name the cells of player,
        boxes and targets."""
        return (*super().overrides(), "state_text=grid_and_coords")

    def asks(self, env: TextEnv, blank: Callable[[str], str]) -> str:
        """Ask for the facts, followed by a search that names states as the game does."""
        search = (
            f"best-first search, {env.state_key_format[1]}: the pushes from each cell to a target; "
            "from each state, where each action leads, until the goal; then the path"
        )
        return f"<think>{blank(search)}</think><answer>{blank('actions')}</answer>"

    def explore(self, env: TextEnv) -> tuple[dict[str, tuple[Successor, ...]], dict[str, TextEnv]]:
        """Explore the game and return two tables, each keyed by state.

        The first has the successors of all states that are reachable or that the facts need. The
        second has a copy of the game in every reachable state that does not end it.
        """
        puzzle = _puzzle(env)
        true, copies = explore(env)

        def expand(key: str) -> tuple[Successor, ...]:
            return true.setdefault(key, _successors(puzzle, key))

        run_search(facts_of(puzzle, _boxes(next(iter(true)))), expand)
        return true, copies

    def searching(self, start: str, view: Any) -> Generator[str, Sequence[Successor], Search]:
        """Derive the facts, then run a best-first search. The generator returns a
        `BestFirstSearch`."""
        puzzle = _puzzle(view)
        facts = yield from facts_of(puzzle, _boxes(start))
        search = yield from expanding(BestStates(start, facts, puzzle.targets))
        return BestFirstSearch(search.lines, search.path, facts)

    def written(self, search: Search, view: Any) -> str:
        """Write the places, the facts, a line for each expanded state, then the path."""
        assert isinstance(search, BestFirstSearch)  # the type that `searching` returns
        assert search.path is not None  # the caller drops a search without a path
        puzzle = _puzzle(view)
        lines = _fact_lines(search.lines[0].key, search.facts, puzzle)
        for line in search.lines:
            head = " ".join((line.key + line.note, *line.path))
            words = [_written_move(line.key, move, puzzle) for move in line.moves]
            words += [";", *line.open_keys] if line.open_keys else []
            lines.append(f"{head}: {' '.join(words)}")
        return "\n".join((*lines, " ".join(search.path)))

    def reference(self, env: TextEnv) -> Any:
        """Return a function that maps a state's key to its true successors, without intermediate
        stops, or None for a game without boxes."""
        puzzle = env.push_puzzle()
        if puzzle is None:
            return None

        @cache
        def expand(key: str) -> tuple[Successor, ...]:
            found = _successors(puzzle, key)
            return tuple((action, state_of(led), outcome) for action, led, outcome in found)

        return expand

    def score(
        self, thoughts: str, reference: Any, env: TextEnv, *, complete: bool
    ) -> SearchScore | None:
        """Score the places and facts, the moves with their estimates and statuses, the choices of the next
        state, and the path.

        In `kinds`, `fact` counts words of places and facts, and `note` counts what follows the keys of expanded
        states. Each line is judged by the facts in the text, even if they are wrong. Returns None if
        the game has no boxes to push, or if the reference search finds no path to the goal.
        """
        start = env.state_key()
        puzzle = env.push_puzzle()
        if start is None or puzzle is None:
            return None
        wanted = run_search(self.searching(start, env), reference)
        if wanted.path is None:
            return None
        right = _fact_lines(start, wanted.facts, puzzle)
        written = thoughts.split("\n")
        # The last line of a truncated text may be incomplete, so it is not scored.
        whole = written if complete else written[:-1]
        header = [*takewhile(_is_fact, whole)]
        begun = len(whole) > len(header)
        expected = right if begun or complete else right[: len(header)]
        counts = Counter[str]()
        errors = ["wrong_fact"] * (header != expected)
        found = BestStates(start, _read_facts(header), puzzle.targets)

        def outcome(key: str) -> str:
            there = puzzle.at(key)
            return "" if there is None else there.state_outcome()

        if begun:
            score_lines(
                written[len(header) :],
                found,
                counts,
                errors,
                read=lambda text: _read_move_line(text, env.action_names(), puzzle),
                successors=reference,
                outcome=outcome,
                actions=env.action_names(),
                complete=complete,
            )
        else:
            errors.append("unreadable" if complete else "over_limit")
        if not errors and thoughts != self.written(wanted, env):
            errors.append("unreadable")
        kinds = {
            "fact": _right_words(header, expected),
            "note": (counts.pop("notes_right", 0), counts.pop("notes", 0)),
        }
        return SearchScore(
            **dict[str, Any](counts), failure=errors[0] if errors else "", kinds=kinds
        )

    def line_parts(self, line: str) -> Iterator[tuple[str, int, int]]:
        """Yield the kind, start and end of every word.

        In the lines before facts and search, `place` is a cell and what is there. In lines of facts,
        `cell` is the cell that a line is about, and `fact` a neighbour or its status. In lines of the
        search, `next` is the state that a line expands, `note` a cell to push from with the pushes and
        the path's length, and `estimate` the sums that end with the estimate. In both, `open` is a
        word after the semicolon.
        """
        head, colon, _ = line.partition(":")
        if not colon:
            kind = "place" if _PLACES.fullmatch(line) else "path"
            yield from ((kind, *word.span()) for word in re.finditer(r"\S+", line))
            return
        facts = _FACTS.match(line)
        listed = line.partition(";")[0]
        for word in re.finditer(r"[^\s:;]+", line):
            start, stop = word.span()
            if start > len(listed):
                yield "open", start, stop
                continue
            if facts:
                yield "fact" if start else "cell", start, stop
                continue
            if word[0] in _WORDS:
                yield "status", start, stop
                continue
            kind = "move" if start > len(head) else "path" if start else "next"
            parts = _PARTS.fullmatch(word[0])
            assert parts is not None  # the pattern matches any word
            for number, name in enumerate((kind, "note", "estimate"), start=1):
                if parts[number]:
                    yield name, start + parts.start(number), start + parts.end(number)

    def shown_line(self, text: str, actions: Sequence[str]) -> Line | None:
        """Parse a line of the search for display. Return None for any other line."""
        return None if _FACTS.match(text) else _words_of_line(text, actions)


def _puzzle(env: Any) -> PushPuzzle:
    puzzle = env.push_puzzle()
    if puzzle is None:
        raise ValueError(
            f"{type(env).__name__}.push_puzzle returns None, and a best-first search needs the board "
            "of a game of pushing boxes; choose agent_proxy.response_format=search"
        )
    return puzzle


def _cells(key: str) -> list[str]:
    """The cells of a state: the player's cell, then the boxes' cells."""
    return [key[place : place + 2] for place in range(0, len(key), 2)]


def _boxes(key: str) -> int:
    return len(key) // 2 - 1


def _key(player: str, boxes: Sequence[str]) -> str:
    return player + "".join(sorted(boxes))


def _beside(cell: str, step: tuple[int, int]) -> str:
    return f"{int(cell[0]) + step[0]}{int(cell[1]) + step[1]}"


def _successors(puzzle: PushPuzzle, key: str) -> tuple[Successor, ...]:
    """The true successors of a state; none if the puzzle has no such state."""
    here = puzzle.at(key)
    if here is None:
        return ()
    found = list[Successor]()
    for name in here.action_names():
        twin = here.clone()
        action = twin.to_action(name)
        assert action is not None  # `action_names` lists only valid actions
        twin.step(action)
        led = target(here.way(key, name), twin.state_key() or "")
        found.append((name, led, twin.state_outcome()))
    return tuple(found)


def _is_fact(line: str) -> bool:
    return bool(_PLACES.fullmatch(line) or _FACTS.match(line))


def _fact_lines(start: str, facts: Facts, puzzle: PushPuzzle) -> list[str]:
    """Write the lines that precede the search.

    They are the cells of player, boxes and targets, and a line for each cell from which a box can
    reach a target. The last line names player and boxes again.
    """
    player, *boxes = _cells(start)
    movable = " ".join((f"player{player}", *(f"box{cell}" for cell in boxes)))
    lines = [" ".join((movable, *(f"target{cell}" for cell in puzzle.targets)))]
    found = [*puzzle.targets]
    for done, cell in enumerate(facts.pushes, start=1):
        words = list[str]()
        for action, step in puzzle.steps.items():
            box = _beside(cell, step)
            player = _beside(box, step)
            if box not in puzzle.floor:
                word = f"{box}{BLOCKED}"
            elif box in found:
                word = f"{box} {SEEN}"
            elif facts.sides.get(box) == player:
                found.append(box)
                word = _fact(facts, box)
            else:
                word = f"{box}/{player}{BLOCKED}"
            words.append(action + word)
        rest = [";", *found[done:]] if found[done:] else []
        lines.append(" ".join((f"{_fact(facts, cell)}:", *words, *rest)))
    return [*lines, movable]


def _fact(facts: Facts, cell: str) -> str:
    side = f"/{facts.sides[cell]}" if cell in facts.sides else ""
    return f"{cell}{side}={facts.pushes[cell]}"


def _read_facts(lines: Sequence[str]) -> Facts:
    """Parse the facts with which the lines begin."""
    found = [match.groups() for match in map(_FACTS.match, lines) if match]
    return Facts(
        pushes={cell: int(count) for cell, _, count in found},
        sides={cell: side for cell, side, _ in found if side},
    )


def _right_words(written: Sequence[str], right: Sequence[str]) -> tuple[int, int]:
    """Count the words that are correct at their position in their line, and all words. A line's
    total is its number of written or of expected words, whichever is larger."""
    same = total = 0
    for text, wanted in zip_longest(written, right, fillvalue=""):
        words, true = text.split(), wanted.split()
        same += sum(word == other for word, other in zip(words, true, strict=False))
        total += max(len(words), len(true))
    return same, total


def _tried(key: str, action: str, puzzle: PushPuzzle) -> str:
    """The cells that block a move without effect: the next cell and, if a box is there, the cell
    behind it."""
    player, *boxes = _cells(key)
    step = puzzle.steps[action]
    ahead = _beside(player, step)
    return ahead + _beside(ahead, step) if ahead in boxes else ahead


def _written_move(key: str, move: Move, puzzle: PushPuzzle) -> str:
    if move.status == BLOCKED:
        return f"{move.action}{_tried(key, move.action, puzzle)}{BLOCKED}"
    between = " " if move.status in _WORDS else ""
    return f"{move.action}{move.key}{between}{move.status}"


def _words_of_line(text: str, actions: Sequence[str]) -> Line | None:
    """Parse a line and keep its keys as written. Return None if it cannot be parsed.

    The status of a move is its estimate (such as `/23=1+1=3~121=4~330=4`), `#`, or a word such as `seen`.
    """
    line = read_line(text, actions, _WORDS)
    if line is None:
        return None
    moves = list[Move]()
    for move in line.moves:
        parts = _MOVE.fullmatch(move.target)
        if parts is None or (parts[2] and move.status):
            return None
        moves.append(Move(move.action, parts[1], parts[2] or move.status))
    key, slash, note = line.key.partition("/")
    return replace(line, key=key, note=slash + note, moves=tuple(moves))


def _read_move_line(text: str, actions: Sequence[str], puzzle: PushPuzzle) -> Line | None:
    """Parse a line. Return None if it cannot be parsed or its state is not in the puzzle.

    A blocked move gets the line's own state as its target if it names the correct cells, else none.
    """
    line = _words_of_line(text, actions)
    if line is None or puzzle.at(line.key) is None:
        return None
    key = line.key

    def led(move: Move) -> Move:
        if move.status != BLOCKED:
            return move
        return replace(move, target=key if move.target == _tried(key, move.action, puzzle) else "")

    return replace(line, moves=tuple(map(led, line.moves)))


FORMAT = BestFirst()
