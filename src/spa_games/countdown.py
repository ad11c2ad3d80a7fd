"""Countdown: write an expression that uses each number once and hits the target."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import require_bool, require_int, require_rate, reset_seeds, uniforms
from spa.envs.spaces import text_space
from spa.errors import DataError
from spa.seeds import stream
from spa_games.arithmetic import MAX_LENGTH, Expression, parse_expression
from spa_games.datafiles import Row, file_stamp, read_rows
from spa_games.solvers.countdown import sign_solution, solve

NAME = "countdown"
MAX_NUMBERS = 6


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The numbers, each of which must be used once, and the target value."""

    numbers: tuple[int, ...]
    target: int


def generate_puzzle(rng: np.random.Generator) -> Puzzle:
    """Generate three or four numbers from 1 to 99, and a target from 1 to 100. Adding and
    subtracting the numbers in the given order reaches the target."""
    uniform = uniforms(rng, 16)
    while True:
        numbers = tuple(1 + int(uniform() * 99) for _ in range(3 if uniform() < 0.5 else 4))
        # The target is computed from the numbers, so every puzzle has a solution.
        target = sum(number if uniform() < 0.5 else -number for number in numbers)
        if 1 <= target <= 100:
            return Puzzle(numbers, target)


@lru_cache(maxsize=8)
def load_puzzles(
    source: str, split: str, limit: int, signs_only: bool, stamp: tuple[int, int] | None
) -> tuple[Puzzle, ...]:
    """Load the puzzles of a file or Hub data set with columns `nums` and `target`.

    Only the first `limit` rows are read. As in the original, `signs_only` keeps a puzzle only if
    plus and minus signs can solve it. `stamp` is unused except as a part of the cache key, so that
    a changed file is loaded again. Raises DataError if the file cannot be read, a row is invalid or
    no puzzle remains.
    """
    rows = read_rows(source, ("nums", "target"), split=split, limit=limit)
    puzzles = [_puzzle(row) for row in rows]
    if signs_only:
        puzzles = [
            puzzle for puzzle in puzzles if sign_solution(puzzle.numbers, puzzle.target) is not None
        ]
    if not puzzles:
        raise DataError(
            f"{source}: the first {limit} rows have no usable puzzle "
            f"(signs_only={signs_only}); use another file or raise 'max_instances'"
        )
    return tuple(puzzles)


def _puzzle(row: Row) -> Puzzle:
    numbers = row.integers("nums")
    target = row.integer("target")
    # The parser reads integers of at most nine digits.
    if not 1 <= len(numbers) <= MAX_NUMBERS or not all(0 <= number < 10**9 for number in numbers):
        raise row.fail("nums", f"one to {MAX_NUMBERS} integers from 0 to 999999999")
    if abs(target) >= 10**18:
        raise row.fail("target", "an integer of at most 18 digits")
    return Puzzle(numbers, target)


class Countdown(TextEnv):
    """Write one expression per episode. The reward is `score` if it uses exactly the given numbers
    and equals the target, `format_score` if only the numbers are correct, else 0. Text that is not
    an arithmetic expression is an invalid action without a penalty.

    `data` is a parquet or JSON-lines file, or a Hub name, with columns `nums` and `target`
    (TinyZero's layout). Seed s plays puzzle s modulo the number of puzzles. Without `data`, each
    seed generates a solvable puzzle.
    """

    changes = ()

    def __init__(
        self,
        *,
        data: str | None = None,
        split: str = "train",
        max_instances: int = 20_000,
        signs_only: bool = True,
        # The original gives 1 for a correct answer, and 0.1 for the right numbers with a wrong
        # value.
        score: float = 1.0,
        format_score: float = 0.1,
    ) -> None:
        limit = require_int(NAME, "max_instances", max_instances, 1, 10_000_000)
        signs_only = require_bool(NAME, "signs_only", signs_only)
        self.score = require_rate(NAME, "score", score, 0.0, 1e6)
        self.format_score = require_rate(NAME, "format_score", format_score, 0.0, 1e6)
        self.puzzles = (
            load_puzzles(str(data), split, limit, signs_only, file_stamp(str(data)))
            if data
            else None
        )
        self.observation_space = text_space()
        self.action_space = text_space(MAX_LENGTH)
        self.puzzle = Puzzle((), 0)
        self._verdict = ""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle that the seed selects or generates. Episodes are deterministic."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        if self.puzzles:
            self.puzzle = self.puzzles[puzzle_seed % len(self.puzzles)]
        else:
            self.puzzle = generate_puzzle(stream(puzzle_seed, f"{NAME}/puzzle"))
        self._verdict = ""
        return self.state_text("grid"), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an expression and end the episode. A text that is not an expression, or any action
        after the end, is invalid and changes nothing."""
        expression = (
            # There is only one attempt: after a verdict, the episode is over.
            parse_expression(action) if isinstance(action, str) and not self._verdict else None
        )
        reward = 0.0
        if expression is not None:
            self._verdict, reward = self._judge(expression)
        info = {
            "action_is_valid": expression is not None,
            "action_is_effective": expression is not None,
            "success": expression is not None and self._verdict == "right",
        }
        return self.state_text("grid"), reward, bool(self._verdict), False, info

    def _judge(self, expression: Expression) -> tuple[str, float]:
        if sorted(expression.numbers) != sorted(self.puzzle.numbers):
            return "wrong numbers", 0.0
        # Values are compared exactly, whereas the original accepts a difference below 1e-5. A
        # division by zero has the value None, which never equals the target.
        if expression.value != self.puzzle.target:
            return "right numbers, wrong value", self.format_score
        return "right", self.score

    def state_text(self, mode: StateText) -> str:
        """The target, the numbers and, after the answer, the verdict; the same text in every
        mode."""
        text = f"Target: {self.puzzle.target}\nNumbers: {', '.join(map(str, self.puzzle.numbers))}"
        return f"{text}\nYour answer: {self._verdict}" if self._verdict else text

    def to_action(self, text: str) -> Action | None:
        """The text itself if it is an arithmetic expression within the limits, else None."""
        return text.strip() if parse_expression(text) is not None else None

    def instruction(self, mode: StateText) -> str:
        """The rules."""
        return (
            "Write an arithmetic expression whose value is the target. Use each of the given numbers exactly once and "
            "no other number; +, -, *, / and parentheses are allowed. Answer with the expression alone, without an "
            "equals sign. You have one attempt."
        )

    def random_action(self, rng: Any) -> str:
        """The numbers in random order with random operators between them."""
        numbers = [
            self.puzzle.numbers[int(place)] for place in rng.permutation(len(self.puzzle.numbers))
        ]
        text = str(numbers[0])
        for number in numbers[1:]:
            text += f" {'+-*/'[int(rng.integers(4))]} {number}"
        return text

    def puzzle_text(self) -> str:
        """The target and the sorted numbers, so that the order of the numbers makes no
        difference."""
        return f"{NAME}: {self.puzzle.target} from {sorted(self.puzzle.numbers)}"

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """One expression that solves the puzzle; empty if there is none, or if the puzzle has been
        answered."""
        solution = None if self._verdict else solve(self.puzzle.numbers, self.puzzle.target)
        return () if solution is None else (solution,)[:limit]

    def optimal_steps(self) -> int | None:
        """1 if the puzzle can be solved and has not been answered, else None."""
        return 1 if self.expert_actions(1) else None
