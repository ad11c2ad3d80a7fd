"""`search`: base responses whose thoughts are a breadth-first search. This module runs such
searches, writes them as text, and parses and scores the text of a model line by line.

A written search of the 4x4 lake, from cell (3,1) to the goal (1,0):

    31: Left30 Down31 seen Right32 Up21 ; 30 32 21
    30 Left: Left30 seen Down30 seen Right31 seen Up20 ; 32 21 20
    32 Right: Left31 seen Down32 seen Right33 hole Up22 ; 21 20 22
    21 Up: Left20 seen Down31 seen Right22 seen Up11 ; 20 22 11
    20 Left Up: Left20 seen Down30 seen Right21 seen Up10 goal
    Left Up Up

A line names the state that it expands and the path to it. Then it lists every action with the state
that it leads to and a status. The status is the outcome of that state in the words of the game
(`goal`, `hole`), `seen` for a state found before, or nothing for a new state. The open states
follow the semicolon, the next one first. The search ends at the first goal, within the line; the
last line is the path to it.

In some games, a move has an intermediate stop (`TextEnv.way`), which is written before the state.
For example, `Left23c>13` lands on the cell 23 with the letter c, which pushes the player to the
cell 13.
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spa.envs.base import TextEnv
from spa.formats.base import SearchScore, WrittenFormat

GOAL = "goal"
SEEN = "seen"
NEW = "new"
"""Status of a move to a state that was not found before, in formats that write it
(`search_marked`)."""
WAY = ">"
"""Separates the intermediate stop of a move (`TextEnv.way`) from the state that it leads to."""
STATUSES = (SEEN, NEW, GOAL, "hole", "dead")
MAX_DEPTH = 32
MAX_LINES = 64
"""Limits of one search: the largest length of a path, and the largest number of expanded states. A
search on a 4x4 lake never reaches them."""
MAX_STATES = 10_000
"""Largest number of states of a game for this format. Games with more states are rejected."""

Successor = tuple[str, str, str]
"""An action, its target, and the outcome there ("" if the game does not end). The target is the key
of the state that the action leads to. If the move has an intermediate stop, the stop precedes the
key (see `target`)."""
Transitions = Mapping[str, Sequence[Successor]]
"""State key -> successors in the order of the actions. States that end the game are not keys."""


def target(way: str, key: str) -> str:
    """Write the target of a move: the intermediate stop `way`, if there is one, and the state
    `key`."""
    return f"{way}{WAY}{key}" if way else key


def state_of(target: str) -> str:
    """Return the state key in a target: `13` for both `23c>13` and `13`."""
    return target.rpartition(WAY)[2]


class TooManyStates(ValueError):
    """A game has more than `MAX_STATES` states."""


@dataclass(frozen=True, slots=True)
class Move:
    """One action within a line of a written search."""

    action: str
    target: str
    status: str

    @property
    def key(self) -> str:
        """Return the key of the state that the action leads to."""
        return state_of(self.target)


@dataclass(frozen=True, slots=True)
class Line:
    """One expanded state. `open_keys` contains the states still to be expanded after this line; it
    is empty if the line found the goal. `note` is `OpenStates.note` of the state."""

    key: str
    path: tuple[str, ...]
    moves: tuple[Move, ...]
    open_keys: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Search:
    """A finished search. `path` contains the actions to the goal; None if the search found no goal
    within its limits."""

    lines: tuple[Line, ...]
    path: tuple[str, ...] | None


class OpenStates:
    """The states that a search has found, and the queue of states to expand, in breadth-first
    order. Subclasses may use another order.

    `paths` maps each state that was found to the actions that lead to it.
    """

    def __init__(self, start: str, *, max_depth: int = MAX_DEPTH) -> None:
        self.paths: dict[str, tuple[str, ...]] = {start: ()}
        self.max_depth = max_depth
        self._queue = [start]

    def next(self) -> str | None:
        """Return the state to expand next; None if none is open."""
        return self._queue[0] if self._queue else None

    def close(self, key: str) -> None:
        """Remove a state from the open states. Has no effect if the state is not open."""
        self._queue = [each for each in self._queue if each != key]

    def note(self, key: str) -> str:
        """Return what the format writes directly after the key of an expanded state."""
        return ""

    def status(self, key: str, after: str, outcome: str) -> str:
        """Return the status of a move from `key` to `after`: `outcome` if there is one, `seen` for
        a known state, or "". Formats that name new states return `new` instead of ""."""
        # The outcome takes precedence: a hole that was found before has the status hole again, not
        # seen.
        return outcome or (SEEN if after in self.paths else "")

    def add(self, after: str, path: tuple[str, ...], status: str) -> None:
        """Record the state that a move led to, and queue it if it is new."""
        if status not in ("", NEW):
            return
        self.paths[after] = path
        # At the depth limit, a state is found but never expanded.
        if len(path) < self.max_depth:
            self._queue.append(after)

    def listed(self) -> tuple[str, ...]:
        """Return the open states, in the order in which a line lists them."""
        return tuple(self._queue)


def expanding(
    found: OpenStates, *, max_lines: int = MAX_LINES
) -> Generator[str, Sequence[Successor], Search]:
    """Search for the goal, expanding states in the order that `found` gives.

    This is a generator, so that several searches can be batched. It yields the key of the state to
    expand and receives that state's successors. It returns the finished search, without a path if
    no goal was found."""
    lines = list[Line]()
    while (key := found.next()) is not None and len(lines) < max_lines:
        found.close(key)
        moves = list[Move]()
        for action, target, outcome in (yield key):
            next_key = state_of(target)
            path = (*found.paths[key], action)
            status = found.status(key, next_key, outcome)
            moves.append(Move(action, target, status))
            if status == GOAL:
                last = Line(key, found.paths[key], tuple(moves), (), found.note(key))
                return Search((*lines, last), path)
            found.add(next_key, path, status)
        lines.append(Line(key, found.paths[key], tuple(moves), found.listed(), found.note(key)))
    return Search(tuple(lines), None)


def run_search(
    search: Generator[str, Sequence[Successor], Any], expand: Callable[[str], Sequence[Successor]]
) -> Any:
    """Run a search to its end and return the result. `expand` returns the successors of a state
    key."""
    key = next(search)
    while True:
        try:
            key = search.send(expand(key))
        except StopIteration as end:
            return end.value


def breadth_first(
    start: str,
    expand: Callable[[str], Sequence[Successor]],
    *,
    max_depth: int = MAX_DEPTH,
    max_lines: int = MAX_LINES,
) -> Search:
    """Search breadth first from `start`. States that are `max_depth` actions away are not
    expanded."""
    found = OpenStates(start, max_depth=max_depth)
    return run_search(expanding(found, max_lines=max_lines), expand)


def write_search(search: Search) -> str:
    """Write a search as text. Raises ValueError if the search found no goal, because it then has no
    path to write."""
    if search.path is None:
        raise ValueError(
            "write_search: the search found no goal, so it has no path to write; pass a search "
            "that reached the goal"
        )
    return "\n".join([*map(_write_line, search.lines), " ".join(search.path)])


def _write_line(line: Line) -> str:
    words = [" ".join((line.key, *line.path)) + ":"]
    for move in line.moves:
        words += [f"{move.action}{move.target}", *([move.status] if move.status else [])]
    return " ".join([*words, *((";", *line.open_keys) if line.moves[-1].status != GOAL else ())])


def explore(env: TextEnv) -> tuple[dict[str, tuple[Successor, ...]], dict[str, TextEnv]]:
    """Return the true transitions of every state reachable from the current one, and a copy of the
    game in each of these states. The current state is the first key. Each action is played in a
    copy to find its transition.

    Raises ValueError if the game is not deterministic, if its names would make searches ambiguous,
    if it does not accept its own actions, or if it has more than `MAX_STATES` states. Raises
    NotImplementedError if the game cannot be copied.
    """
    game = type(env).__name__
    start = env.state_key()
    if start is None:
        raise ValueError(
            f"{game} does not implement TextEnv.state_key, which searches need to tell states apart"
        )
    try:
        copies = {start: env.clone()}
    except NotImplementedError as error:
        raise NotImplementedError(
            f"{game} cannot be copied, which searches need; set TextEnv.changes or implement "
            "TextEnv.clone"
        ) from error
    names = env.action_names()
    if not names:
        raise ValueError(
            f"{game}.action_names is empty; a written search needs the names of all actions"
        )
    if len({name.casefold() for name in names}) < len(names):
        raise ValueError(f"{game} has two actions of one name among {', '.join(names)}")
    for what, word in (("state_key", start), *(("action", name) for name in names)):
        _check_word(game, what, word)
    outcomes = {start: env.state_outcome()}
    found = dict[str, tuple[Successor, ...]]()
    written_moves = dict[str, str]()  # written form of a move -> key of the state after it
    queue = deque([start])
    while queue:
        key = queue.popleft()
        here = copies[key]
        successors = list[Successor]()
        for name in here.legal_actions() or names:
            twin = here.clone()
            action = twin.to_action(name)
            if action is None:
                raise ValueError(
                    f"{game}.to_action does not accept {name!r}, an action of the game"
                )
            _, _, terminated, truncated, info = twin.step(action)
            next_key = twin.state_key()
            outcome = twin.state_outcome()
            after = f"after the action {name!r} in the state {key!r}"
            # A search records one outcome per action, so the outcome must not be random. Repeat the
            # action with other noise; a game without randomness ignores the seed.
            other = here.clone(noise_seed=len(copies))
            _, _, *other_end, _ = other.step(action)
            if (other.state_key(), *other_end) != (next_key, terminated, truncated):
                raise ValueError(
                    f"{game} is not deterministic: {next_key!r} and {other.state_key()!r} were reached {after}; "
                    "turn chance off (is_slippery: false), or return None from state_key"
                )
            if next_key is None:
                raise ValueError(
                    f"{game}.state_key returns None {after}; return a name in every state, the last "
                    "one included"
                )
            _check_word(game, "state_key", next_key)
            _check_word(game, "outcome", outcome or GOAL)
            if outcome in (SEEN, NEW):
                raise ValueError(
                    f"{game}.state_outcome returns {outcome!r}, which tells whether a state was found before; "
                    "return another word"
                )
            way = here.way(key, name)
            if way:
                _check_word(game, "way", way)
            led = target(way, next_key)
            if _action_of(f"{name}{led}", names) != name:
                raise ValueError(
                    f"{game} writes {name}{led} {after}, which reads as another action; choose names of "
                    "states that do not begin like the rest of an action's name"
                )
            ends = terminated or truncated
            if bool(info["success"]) != (outcome == GOAL) or (ends and not outcome):
                raise ValueError(
                    f"{game}.state_outcome returns {outcome!r} {after}, where info['success'] is "
                    f"{info['success']} and the game {'ends' if ends else 'continues'}; return {GOAL!r} where "
                    "the game is won, and another word where it is lost (raise max_steps if that ends it)"
                )
            if outcomes.setdefault(next_key, outcome) != outcome:
                raise ValueError(
                    f"{game}.state_key gives the name {next_key!r} to states with the outcomes "
                    f"{outcomes[next_key]!r} and {outcome!r}; give each state a name of its own"
                )
            written_moves[f"{name}{led}"] = next_key
            successors.append((name, led, outcome))
            # A state that ends the game has no successors.
            if not outcome and next_key not in copies:
                copies[next_key] = twin
                queue.append(next_key)
        found[key] = tuple(successors)
        if len(copies) > MAX_STATES:
            raise TooManyStates(
                f"{game} has more than {MAX_STATES} states, too many to search; use a smaller board"
            )
    for word in sorted({*STATUSES, *outcomes.values()} & written_moves.keys()):
        raise ValueError(
            f"{game} writes the move to the state {written_moves[word]!r} as {word!r}, which is also the word for "
            "an outcome; choose other names of states or actions"
        )
    return found, copies


def _check_word(game: str, what: str, word: str) -> None:
    if not re.fullmatch(r"[^\s:;>]+", word):
        raise ValueError(
            f"{game} has the {what} {word!r}; in a written search it must have at least one character, and no "
            "blanks, colons, semicolons or >"
        )


def _action_of(word: str, actions: Sequence[str]) -> str | None:
    """Return the action in a written move, such as Left in "Left30". None if the word is not an
    action followed by a state. If several action names match, the longest one counts."""
    begun = [name for name in actions if word.startswith(name) and word != name]
    return max(begun, key=len, default=None)


def dealt(true: Transitions, rng: np.random.Generator) -> dict[str, tuple[Successor, ...]]:
    """Return transitions for a control method: the outcomes of each state are permuted at random
    among its actions. Every state keeps its distance from the start, but is reached by different
    actions."""
    world = dict[str, tuple[Successor, ...]]()
    for key, successors in true.items():
        order = rng.permutation(len(successors))
        # Actions keep their positions; only the states that they lead to are permuted.
        world[key] = tuple(
            (action, *successors[int(other)][1:])
            for (action, _, _), other in zip(successors, order, strict=True)
        )
    return world


def read_line(
    text: str, actions: Sequence[str], statuses: Collection[str] = STATUSES
) -> Line | None:
    """Parse a line of a search; None if the text is not such a line. `statuses` are words that are
    read as a status even if they begin like an action."""
    head, colon, rest = text.partition(":")
    key, *path = head.split() or [""]
    if not colon or not key or any(action not in actions for action in path):
        return None
    listed, _, open_keys = rest.partition(";")
    moves = list[Move]()
    for word in listed.split():
        action = _action_of(word, actions)
        # If there is an action "h", "hole" after a move is still the status, not a move to "ole".
        waits = bool(moves) and not moves[-1].status
        if action is not None and not (waits and word in statuses):
            moves.append(Move(action, word[len(action) :], ""))
        # Any other word after a move is its status. A move has at most one.
        elif waits:
            moves[-1] = replace(moves[-1], status=word)
        else:
            return None
    return Line(key, tuple(path), tuple(moves), tuple(open_keys.split())) if moves else None


def score_search(
    text: str,
    true: Transitions,
    *,
    actions: Sequence[str],
    complete: bool = True,
    open_states: Callable[[str], OpenStates] = OpenStates,
) -> SearchScore | None:
    """Score a written search of the game whose true transitions are `true`. Their first key is the
    start.

    `complete` is False if the text was cut off; its last line is then not scored. `open_states`
    determines the order and the statuses of the search. Returns None if a search of at most
    `MAX_LINES` lines and `MAX_DEPTH` actions finds no goal.
    """
    start = next(iter(true))
    wanted = run_search(expanding(open_states(start)), lambda key: true[key])
    if wanted.path is None:
        return None
    outcomes = {
        state_of(target): outcome
        for successors in true.values()
        for _, target, outcome in successors
    }
    statuses = {*STATUSES, *outcomes.values()}
    counts = Counter[str]()
    errors = list[str]()
    score_lines(
        text.split("\n"),
        open_states(start),
        counts,
        errors,
        read=lambda line: read_line(line, actions, statuses),
        successors=lambda key: true.get(key, ()),
        outcome=lambda key: outcomes.get(key, ""),
        actions=actions,
        complete=complete,
    )
    # No part is wrong, but the text differs from the correct one, for example in its white space.
    if not errors and text != write_search(wanted):
        errors.append("unreadable")
    return SearchScore(**dict[str, Any](counts), failure=errors[0] if errors else "")


def score_lines(
    written: Sequence[str],
    found: OpenStates,
    counts: Counter[str],
    errors: list[str],
    *,
    read: Callable[[str], Line | None],
    successors: Callable[[str], Sequence[Successor]],
    outcome: Callable[[str], str],
    actions: Sequence[str],
    complete: bool,
) -> None:
    """Score the lines of a search and its path. Increases `counts`, whose keys are the fields of
    `SearchScore`, and appends the kind of each failure to `errors`. In formats with notes, `notes`
    and `notes_right` are also counted.

    Moves and outcomes are compared with the game. The order of expansion, `seen`, paths and lists
    of open states are compared with what the text itself has found so far.
    """
    goal: tuple[str, ...] | None = None
    expanded = set[str]()
    for number, each in enumerate(written if complete else written[:-1]):
        line = read(each)
        # The line after the goal must be the path. Scoring ends with this line, or with one that
        # cannot be read.
        if line is None or goal is not None:
            if not complete or number < len(written) - 1:
                errors.append("unreadable")
            elif goal is None:
                # The last line is a path although the search has found no goal, or it is not a line
                # of a search.
                is_path = all(word in actions for word in each.split())
                errors.append("no_goal" if is_path else "unreadable")
            else:
                _count_path(counts, errors, right=each == " ".join(goal))
            return
        # The line should expand the next open state.
        is_next = found.next() == line.key
        if not is_next:
            again = line.key in expanded
            errors.append(
                "expanded_again"
                if again
                else "skipped"
                if line.key in found.paths
                else "never_found"
            )
        counts.update(lines=1, next_right=int(is_next))
        note = found.note(line.key)
        if note or line.note:
            counts.update(notes=1, notes_right=int(line.note == note))
            errors += [] if line.note == note else ["wrong_fact"]
        if line.key in found.paths:
            _count_path(counts, errors, right=line.path == found.paths[line.key])
        expanded.add(line.key)
        # Scoring follows the order of the text: a state that the text skipped stays open.
        found.close(line.key)
        path = found.paths.get(line.key, line.path)
        known = {action: target for action, target, _ in successors(line.key)}
        for move in line.moves:
            # A search ends at its first goal, so all later moves in the line are wrong.
            if goal is not None:
                errors.append("wrong_move")
                counts.update(moves=1)
                continue
            status = found.status(line.key, move.key, outcome(move.key))
            right = known.get(move.action) == move.target
            errors += [] if right else ["wrong_move"]
            errors += [] if move.status == status else ["wrong_status"]
            counts.update(moves=1, moves_right=int(right), status_right=int(move.status == status))
            # After a goal, claimed or true, the next line must be the path to it.
            if GOAL in (status, move.status):
                goal = (*path, move.action)
            else:
                found.add(move.key, (*path, move.action), status)
        # A line must list all actions in their order; only the goal may end it early.
        done = [move.action for move in line.moves]
        if done != list(known)[: len(done)] or (goal is None and len(done) < len(known)):
            errors.append("wrong_move")
        if line.open_keys != (() if goal is not None else found.listed()):
            errors.append("wrong_open")
    end = "no_goal" if goal is None else "wrong_path"  # the path is missing
    # The last word of a text that was cut off may be only the beginning of a word.
    begun = read(written[-1].rpartition(" ")[0])
    passed = begun is not None and any(
        GOAL in (move.status, outcome(move.key)) for move in begun.moves[:-1]
    )
    errors.append(end if complete else "wrong_move" if passed else "over_limit")


def _count_path(counts: Counter[str], errors: list[str], *, right: bool) -> None:
    counts.update(paths=1, paths_right=int(right))
    if not right:
        errors.append("wrong_path")


def reachable_from(true: Transitions, start: str) -> dict[str, Sequence[Successor]]:
    """Return the transitions of the states reachable from `start`, with `start` as the first key.
    The result is the same as from `explore` in that state."""
    found = {start: true[start]}
    queue = deque([start])
    while queue:
        for _, target, outcome in true[queue.popleft()]:
            key = state_of(target)
            if not outcome and key not in found:
                found[key] = true[key]
                queue.append(key)
    return found


class BreadthFirst(WrittenFormat):
    """Format whose thoughts are, in every turn, a breadth-first search from the current state."""

    name = "search"
    open_states: type[OpenStates] = OpenStates

    def controls(self) -> tuple[str, ...]:
        """Return the names of the control methods: searches with permuted outcomes (`_dealt`), and
        searches of another puzzle."""
        return (f"{self.name}_dealt", f"{self.name}_other_puzzle")

    def overrides(self) -> tuple[str, ...]:
        """Return the configuration overrides shared by the methods whose examples are searches in
        this format."""
        return (f"agent_proxy.response_format={self.name}",)

    def asks(self, env: TextEnv, blank: Callable[[str], str]) -> str:
        """Return the request for a search, in the game's own words for states."""
        state, states = env.state_key_format
        search = f"search, {states}: from each {state} found, where each action leads, until the goal; then the path"
        return f"<think>{blank(search)}</think><answer>{blank('actions')}</answer>"

    def searching(self, start: str, view: Any) -> Generator[str, Sequence[Successor], Search]:
        """Search breadth first."""
        return expanding(self.open_states(start))

    def written(self, search: Search, view: Any) -> str:
        """Write one line per expanded state, then the path."""
        return write_search(search)

    def reference(self, env: TextEnv) -> Any:
        """Return the true transitions of the puzzle."""
        return explore(env)[0]

    def score(
        self, thoughts: str, reference: Any, env: TextEnv, *, complete: bool
    ) -> SearchScore | None:
        """Score the moves, outcomes, order of expansion, and paths of a search from the current
        state of `env`; None if the reference does not contain this state."""
        start = env.state_key()
        if start is None or start not in reference:
            return None
        true = reachable_from(reference, start)
        return score_search(
            thoughts,
            true,
            actions=env.action_names(),
            complete=complete,
            open_states=self.open_states,
        )

    def line_parts(self, line: str) -> Iterator[tuple[str, int, int]]:
        """Yield (kind, begin, end) for every word of a line. The kinds are `next` (the state that
        the line expands), `path`, `move`, `status` (one of `STATUSES`; a game's other outcomes
        count as moves), and `open` (a state that remains open). A move with an intermediate stop
        has two parts, `way` and `move`."""
        head, colon, _ = line.partition(":")
        moves, _, _ = line.partition(";")
        for word in re.finditer(r"[^\s:;]+", line):
            if not colon or 0 < word.start() < len(head):
                kind = "path"
            elif word.start() < len(head):
                kind = "next"
            elif word.start() > len(moves):
                kind = "open"
            else:
                kind = "status" if word[0] in STATUSES else "move"
            begin = word.start() + word[0].rfind(WAY) + 1
            if kind == "move" and begin > word.start():
                yield "way", word.start(), begin
            else:
                begin = word.start()
            yield kind, begin, word.end()

    def shown_line(self, text: str, actions: Sequence[str]) -> Line | None:
        """Parse a line for the viewer; None if the text is not a line of a search."""
        return read_line(text, actions)

    def show(self, thoughts: str, actions: Sequence[str]) -> list[dict[str, Any]]:
        """Return the expanded states with their moves."""
        # A search names actions of the game, so it cannot be read without their list.
        lines = (self.shown_line(each, actions) for each in thoughts.split("\n") if actions)
        return [
            {
                "key": line.key,
                "moves": [[move.action, move.key, move.status] for move in line.moves],
            }
            for line in lines
            if line is not None
        ]


FORMAT = BreadthFirst()
