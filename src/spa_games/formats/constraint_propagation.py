"""`constraint_propagation`: responses without states (`ctx_manager.mode=base`) whose thoughts
assign the variables of a constraint satisfaction problem, such as a Sudoku. This module derives and
writes such thoughts. It also parses and scores the thoughts that a model wrote, line by line.

A 4x4 Sudoku with four empty cells:

    open 11 12 41 43
    11: 12=0 13=1 14=4 21=1 31=4 41=0 22=4 fits 2 3
    12: 11=0 13=1 14=4 22=4 32=2 42=1 21=1 fits 3 so 12=3
    41: 42=1 43=0 44=2 11=0 21=1 31=4 32=2 fits 3 so 41=3
    43: 41=3 42=1 44=2 13=1 23=2 33=3 34=1 fits 4 so 43=4
    open 11
    11: 12=3 13=1 14=4 21=1 31=4 41=3 22=4 fits 2 so 11=2
    1,2,3 4,1,3 4,3,4 1,1,2

A sweep visits all open variables. Its first line lists their keys, and each has a line of its own.
That line names the variable, the value of each neighbour (0 if open), and, after `fits`, the values
that no neighbour has. A single fitting value is assigned after `so`. The last line of the text has
the actions, in the order of the assignments.

Each value is written next to its key, because models find what to copy by its key.
"""

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from spa.config.problems import Problems
from spa.config.schema import Config
from spa.envs.base import TextEnv, Variable
from spa.formats.base import SearchScore, WrittenFormat
from spa.formats.search import GOAL, Successor

OPEN = "0"
"""Placeholder for the value of an open neighbour."""
Problem = Mapping[str, Variable]


@dataclass(frozen=True, slots=True)
class Sweep:
    """The first line of a sweep. `keys` are the variables that are still open."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """The line of an open variable.

    `key` is the variable, `facts` its neighbours with their values, and `fits` the values that no
    neighbour has. `assigned` is the variable and the value of the assignment, or None.
    """

    key: str
    facts: tuple[tuple[str, str], ...]
    fits: tuple[str, ...]
    assigned: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Derivation:
    """A finished derivation.

    `steps` are its lines in order. `path` has the actions that assign all values, or is None if
    variables remain open because several values fit.
    """

    steps: tuple[Sweep | Line, ...]
    path: tuple[str, ...] | None

    @property
    def lines(self) -> tuple[Line, ...]:
        """The lines of variables, without the first lines of sweeps."""
        return tuple(step for step in self.steps if isinstance(step, Line))


def derive(problem: Problem) -> Derivation:
    """Sweep over the open variables and assign each that has a single fitting value. Stop when no
    variable is open or a sweep assigns nothing."""
    values = {key: variable.value for key, variable in problem.items()}
    steps = list[Sweep | Line]()
    path = list[str]()
    waiting = open_keys(values)
    while waiting:
        steps.append(Sweep(waiting))
        for key in waiting:
            line = derive_line(key, problem, values)
            if line.assigned is not None:
                values[key] = line.assigned[1]
                path.append(problem[key].actions[values[key]])
            steps.append(line)
        left = open_keys(values)
        if left == waiting:
            return Derivation(tuple(steps), None)
        waiting = left
    return Derivation(tuple(steps), tuple(path))


def open_keys(values: Mapping[str, str]) -> tuple[str, ...]:
    """The keys of the variables without a value."""
    return tuple(key for key, value in values.items() if not value)


def derive_line(key: str, problem: Problem, values: Mapping[str, str]) -> Line:
    """Derive the line of an open variable from the current values, where "" means open."""
    facts = tuple((each, values[each] or OPEN) for each in problem[key].neighbours)
    fits = fitting(problem[key], facts)
    return Line(key, facts, fits, (key, fits[0]) if len(fits) == 1 else None)


def fitting(variable: Variable, facts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The values of `variable` that no neighbour has according to `facts`."""
    taken = {value for _, value in facts}
    return tuple(value for value in variable.actions if value not in taken)


def write_derivation(derivation: Derivation) -> str:
    """Write a derivation as text. Raises ValueError if variables remain open, because such a
    derivation has no actions."""
    if derivation.path is None:
        raise ValueError(
            "write_derivation: the derivation stalled, so it has no actions to write; pass one that "
            "assigned all values"
        )
    return "\n".join([*map(_write_step, derivation.steps), " ".join(derivation.path)])


def _write_step(step: Sweep | Line) -> str:
    if isinstance(step, Sweep):
        return " ".join(("open", *step.keys))
    facts = (f"{key}={value}" for key, value in step.facts)
    follows = () if step.assigned is None else ("so", "=".join(step.assigned))
    return " ".join([f"{step.key}:", *facts, "fits", *step.fits, *follows])


_LINE = re.compile(
    r"(\S+):((?: [^\s=]+=[^\s=]+)*) fits((?: [^\s=]+)*?)(?: so ([^\s=]+)=([^\s=]+))?"
)


def read_step(text: str) -> Sweep | Line | None:
    """Parse a line of a derivation. Return None if the text is not such a line."""
    first, *rest = text.split(" ")
    if first == "open" and rest and all(rest):
        return Sweep(tuple(rest))
    match = _LINE.fullmatch(text)
    if match is None:
        return None
    key, facts, fits, assigned, value = match.groups()
    return Line(
        key,
        tuple((each.partition("=")[0], each.partition("=")[2]) for each in facts.split()),
        tuple(fits.split()),
        None if assigned is None else (assigned, value),
    )


def score_derivation(text: str, problem: Problem, *, complete: bool = True) -> SearchScore | None:
    """Score a written derivation, each line given the lines before it.

    Facts are judged by the problem's values and the text's own assignments. Fitting values are
    judged by the facts of their line, and an assignment by the fitting values of its line.
    `complete` is False for a truncated text, whose last line is not scored. Returns None if the
    problem cannot be solved by single fitting values.
    """
    wanted = derive(problem)
    if wanted.path is None:
        return None
    values = {key: variable.value for key, variable in problem.items()}
    waiting: list[str] | None = None  # variables left in the sweep; None before the first sweep
    swept = set[str]()
    path = list[str]()
    counts = Counter[str]()
    errors = list[str]()
    written = text.split("\n")

    def count(kind: str, right: bool, failure: str, *, of: str = "") -> None:
        counts.update({of or f"{kind}s": 1, f"{kind}_right": int(right)})
        if not right:
            errors.append(failure)

    for number, each in enumerate(written if complete else written[:-1]):
        step = read_step(each)
        left = open_keys(values)
        # The actions follow as soon as all variables have values. Scoring ends there, or at the
        # first line that cannot be parsed.
        if step is None or not left:
            last = complete and number == len(written) - 1
            if last and not left:
                count("path", each == " ".join(path), "wrong_path")
            elif last and all(word in _actions(problem) for word in each.split()):
                errors.append("no_goal")
            else:
                errors.append("unreadable")
            break
        if isinstance(step, Sweep):
            if waiting:
                errors.append("skipped")
            count("open", step.keys == left, "wrong_open")
            # Check the order of the following lines against this list, even if it is wrong.
            waiting = [key for key in step.keys if key in problem]
            swept.clear()
            continue
        if waiting is None or not waiting:
            count("open", False, "wrong_open")
            waiting = [*left]
            swept.clear()
        key = step.key
        is_next = waiting[:1] == [key]
        count("next", is_next, _order_error(key, values, swept), of="lines")
        waiting = [other for other in waiting if other != key]
        swept.add(key)
        if key not in left:
            continue
        true = derive_line(key, problem, values)
        facts = dict(step.facts)
        for other, value in true.facts:
            count("fact", facts.get(other) == value, "wrong_fact")
        if step.facts != true.facts and facts == dict(true.facts):
            errors.append("wrong_fact")  # facts in the wrong order, or with a duplicate
        elif not facts.keys() <= dict(true.facts).keys():
            errors.append("wrong_fact")
        count("candidate", step.fits == fitting(problem[key], step.facts), "wrong_move")
        assigns = (key, step.fits[0]) if len(step.fits) == 1 else None
        counts.update(
            moves=1,
            moves_right=int((step.fits, step.assigned) == (true.fits, true.assigned)),
            status_right=int(step.assigned == assigns),
        )
        if step.assigned != assigns:
            errors.append("wrong_status")
        if step.assigned is not None and step.assigned[0] in problem:
            assigned, value = step.assigned
            values[assigned] = value
            path.append(problem[assigned].actions.get(value, ""))
    else:
        end = "wrong_path" if not open_keys(values) else "no_goal"
        errors.append(end if complete else "over_limit")
    # The text can still differ from the reference, for example in white space.
    if not errors and text != write_derivation(wanted):
        errors.append("unreadable")
    return SearchScore(
        moves=counts["moves"],
        moves_right=counts["moves_right"],
        status_right=counts["status_right"],
        lines=counts["lines"],
        next_right=counts["next_right"],
        paths=counts["paths"],
        paths_right=counts["path_right"],
        kinds={
            kind: (counts[f"{kind}_right"], counts[f"{kind}s"])
            for kind in ("fact", "candidate", "open")
        },
        failure=errors[0] if errors else "",
    )


def _actions(problem: Problem) -> set[str]:
    return {action for variable in problem.values() for action in variable.actions.values()}


def _order_error(key: str, values: Mapping[str, str], swept: set[str]) -> str:
    """Name the error of a line whose variable is not the next open one."""
    if key not in values:
        return "never_found"
    return "expanded_again" if key in swept or values[key] else "skipped"


def check_problem(env: TextEnv) -> Problem:
    """Return a game's constraint satisfaction problem after checking it.

    Raises ValueError if the game has none, if its words would make a derivation unreadable, or if
    neighbours are not mutual.
    """
    game = type(env).__name__
    problem = env.constraint_problem()
    if problem is None:
        raise ValueError(
            f"{game} does not implement TextEnv.constraint_problem, which derivations need"
        )
    for key, variable in problem.items():
        own = (variable.value,) if variable.value else ()
        for word in (key, *own, *variable.actions, *variable.actions.values()):
            if not re.fullmatch(r"[^\s:=]+", word) or word in ("open", "fits", "so"):
                raise ValueError(
                    f"{game}.constraint_problem has the word {word!r}; keys, values and actions must have no blanks, "
                    "colons and equals signs, and cannot be open, fits or so"
                )
        if OPEN in variable.actions:
            raise ValueError(
                f"{game}.constraint_problem has the value {OPEN!r} for {key}, which means an open variable; "
                "choose another word"
            )
        for other in variable.neighbours:
            if other not in problem or key not in problem[other].neighbours:
                raise ValueError(
                    f"{game}.constraint_problem: {other} is a neighbour of {key}, but not the reverse; list both"
                )
    return problem


class ConstraintPropagation(WrittenFormat):
    """Format whose thoughts are, in every turn, a derivation from the current state.

    The program, not the model, supplies the neighbours of each variable, and the rule that
    neighbours have different values.
    """

    name = "constraint_propagation"
    reads_puzzle = True
    unsolved = "stalled"

    def check(self, cfg: Config, problems: Problems) -> None:
        """Also reject search with a learned model, which does not predict the rules."""
        super().check(cfg, problems)
        if cfg.generate.policy == "search" and cfg.generate.search.dynamics == "model":
            problems.add(
                "generate.search.dynamics",
                f"must be simulator with agent_proxy.response_format={self.name}: the program supplies which variables "
                "are neighbours, which predicted moves do not tell",
            )

    def controls(self) -> tuple[str, ...]:
        """Names of the control methods: one permutes the given values, the other uses the
        derivation of another puzzle."""
        return ("supplied_rules_permuted", "supplied_rules_other_puzzle")

    def asks(self, env: TextEnv, blank: Callable[[str], str]) -> str:
        """Ask for a derivation that names variables as the game does."""
        one, many = env.state_key_format
        thoughts = (
            f"the open {one}s, {many}; for each of them the values of its neighbours ({OPEN}: open) and the values "
            "that fit; the same for those that stay open, until none does; then the actions"
        )
        return f"<think>{blank(thoughts)}</think><answer>{blank('actions')}</answer>"

    def explore(self, env: TextEnv) -> tuple[dict[str, tuple[Successor, ...]], dict[str, TextEnv]]:
        """Execute the derivation's actions one by one.

        Returns the successors of the states on this path, and copies of the game in them. Both are
        keyed by the number of actions taken ("0", "1", …). Raises ValueError if an action is not
        accepted or the last one does not reach the goal, and NotImplementedError if the game cannot
        be copied.
        """
        game = type(env).__name__
        path = derive(check_problem(env)).path or ()
        try:
            copies = {"0": env.clone()}
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{game} cannot be copied, which derivations need; set TextEnv.changes or implement TextEnv.clone"
            ) from error
        true = dict[str, tuple[Successor, ...]]({"0": ()})
        outcome = ""
        for count, name in enumerate(path):
            here = copies[str(count)].clone()
            action = here.to_action(name)
            if action is None:
                raise ValueError(
                    f"{game}.to_action does not accept {name!r}, an action of constraint_problem"
                )
            _, _, terminated, truncated, info = here.step(action)
            outcome = GOAL if info["success"] else "over" if terminated or truncated else ""
            true[str(count)] = ((name, str(count + 1), outcome),)
            if outcome:
                break
            copies[str(count + 1)] = here
        if path and (outcome != GOAL or len(copies) != len(path)):
            raise ValueError(
                f"{game}: the actions of constraint_problem do not reach the goal when the last value is assigned; "
                "let the game end with success there (raise max_steps if that ends it)"
            )
        return true, copies

    def searching(self, start: str, view: Any) -> Generator[str, Sequence[Successor], Derivation]:
        """Derive from the values in the current state. The caller expects a search, so the
        generator requests the successors of `start`, but ignores them."""
        yield start
        return derive(view.constraint_problem())

    def written(self, search: Derivation, view: Any) -> str:
        """Write the sweeps over the open variables, then the actions."""
        return write_derivation(search)

    def dealt(self, true: Any, start: str, view: Any, rng: np.random.Generator) -> Derivation:
        """Derive a control from permuted values.

        A random permutation replaces each given value with another. So all given facts are wrong,
        but the inferences from them are valid.
        """
        problem = view.constraint_problem()
        values = list(dict.fromkeys(value for each in problem.values() for value in each.actions))
        order = [values[int(place)] for place in rng.permutation(len(values))]
        other = dict(zip(order, [*order[1:], *order[:1]], strict=True))
        return derive(
            {
                key: replace(variable, value=other.get(variable.value, variable.value))
                for key, variable in problem.items()
            }
        )

    def reference(self, env: TextEnv) -> Any:
        """The game's constraint problem, or None if it has none."""
        return env.constraint_problem()

    def score(
        self, thoughts: str, reference: Any, env: TextEnv, *, complete: bool
    ) -> SearchScore | None:
        """Score the facts, fitting values, assignments and the order of variables. Return None if
        the game has no constraint problem, or if single fitting values do not solve it."""
        problem = env.constraint_problem()
        return None if problem is None else score_derivation(thoughts, problem, complete=complete)

    def line_parts(self, line: str) -> Iterator[tuple[str, int, int]]:
        """Yield the kind, start and end of every word. The kind `next` is the variable that begins
        a line, `open` a variable in the first line of a sweep."""
        head, colon, _ = line.partition(":")
        facts, _, _ = line.partition(" fits")
        kind = "open" if line.startswith("open") else "next" if colon else "path"
        # `open` and `so` form one part with the word after them. Writing `open` or `so` is itself a
        # decision, which a copied word is not.
        for word in re.finditer(r"(?:open|so) \S+|[^\s:]+", line):
            if colon and word.start() > len(head):
                kind = "fact" if word.start() < len(facts) else "candidate"
                kind = "value" if word[0].startswith("so ") else kind
            if word[0] not in ("open", "fits"):
                yield kind, *word.span()

    def show(self, thoughts: str, actions: Sequence[str]) -> list[dict[str, Any]]:
        """Return the derivation as a tree for display: the open variables, and under each line its
        facts and fitting values."""
        lines = [step for each in thoughts.split("\n") if isinstance(step := read_step(each), Line)]
        if not lines:
            return []
        shown = list[dict[str, Any]]()
        for number, line in enumerate(lines):
            sweep = sum(line.key == other.key for other in lines[:number])
            follows = ["fits", " ".join(line.fits), "" if line.assigned else "open"]
            moves = [[f"{key} =", value, ""] for key, value in line.facts]
            again = f" (again, {sweep})" if sweep else ""
            shown.append({"key": f"{line.key}{again}", "moves": [*moves, follows]})
        return [{"key": "open", "moves": [["", each["key"], ""] for each in shown]}, *shown]


FORMAT = ConstraintPropagation()
