"""Word problems with a short answer, from MetaMathQA or generated (arXiv 2309.12284)."""

import logging
from functools import lru_cache
from typing import Any

from spa.envs.base import StateText
from spa.envs.options import require_int, reset_seeds
from spa.errors import DataError
from spa.seeds import stream
from spa_games.datafiles import file_stamp, read_rows
from spa_games.questions import QuestionGame
from spa_games.word_problems import Problem, generate_problem

log = logging.getLogger("spa.games")

NAME = "metamathqa"
MARK = "The answer is:"


@lru_cache(maxsize=4)
def load_problems(
    source: str, split: str, limit: int | None, stamp: tuple[int, int] | None
) -> tuple[Problem, ...]:
    """Load the problems of a file or Hub data set with columns `query` and `response`.

    The answer is the text after the last "The answer is:" of the response. Rows without an answer
    are skipped, and their number is logged. `stamp` is unused except as a part of the cache key, so
    that a changed file is loaded again. Raises DataError, which names file, row and column, if a
    row is invalid, or if no row has an answer.
    """
    problems: list[Problem] = []
    without: list[int] = []
    for row in read_rows(source, ("query", "response"), split=split, limit=limit):
        _, mark, answer = row.text("response").rpartition(MARK)
        if mark and normalize(answer):
            problems.append(Problem(row.text("query").strip(), answer.strip()))
        else:
            without.append(row.number)
    if not problems:
        why = (
            f"none of the {len(without)} responses ends in {MARK!r} and an answer"
            if without
            else "the file has no rows"
        )
        raise DataError(
            f"{source}: the file has no usable example, because {why}; use another data file"
        )
    if without:
        log.warning(
            "%s: spa skipped %d examples without an answer; the first skipped example is number %d",
            source,
            len(without),
            without[0],
        )
    return tuple(problems)


def normalize(answer: str) -> str:
    """Normalize an answer for comparison: lower case, without any white space."""
    return "".join(answer.lower().split())


class MetamathQA(QuestionGame):
    """Answer a word problem. The reward is 1 for a correct answer, halved for each wrong answer
    before it.

    An answer is correct if it equals the expected text after lower-casing and removing white space;
    "7" and "7.0" differ. After a wrong answer, up to `retries` more attempts are allowed. With 0,
    the first answer ends the episode. Retries also need a `max_actions_per_traj` of at least
    `retries` + 1.

    `data` is a parquet or JSON-lines file, or a Hub name such as `meta-math/MetaMathQA`, with
    columns `query` and `response`. The seed selects a row at random. Without `data`, each seed
    generates an arithmetic word problem.
    """

    changes = ()

    def __init__(
        self,
        *,
        data: str | None = None,
        split: str = "train",
        max_instances: int | None = None,
        # RAGEN allows one action per episode in this environment, so by default there is no second
        # attempt.
        retries: int = 0,
    ) -> None:
        limit = (
            None
            if max_instances is None
            else require_int(NAME, "max_instances", max_instances, 1, 10_000_000)
        )
        self.problems = (
            load_problems(str(data), split, limit, file_stamp(str(data))) if data else None
        )
        self.problem = Problem("", "")
        super().__init__(require_int(NAME, "retries", retries, 0, 30))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the problem that the seed selects or generates. Episodes are deterministic."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        rng = stream(puzzle_seed, f"{NAME}/puzzle")
        if self.problems:
            # Use `rng.random`, because `rng.integers` may give other values in other NumPy
            # versions.
            self.problem = self.problems[int(rng.random() * len(self.problems))]
        else:
            self.problem = generate_problem(rng)
        self._begin()
        return self.state_text("grid"), {}

    def _question(self) -> str:
        return self.problem.question

    def _judge(self, answer: str) -> tuple[bool, float]:
        right = normalize(answer) == normalize(self.problem.answer)
        return right, 0.5**self.wrong if right else 0.0

    def instruction(self, mode: StateText) -> str:
        """The task and, if there are retries, their cost."""
        text = "Solve the problem. Answer with the result alone, without units, words or steps."
        if self.retries:
            text += f" After a wrong answer you may try again, {self.retries} more at most;"
            text += " each wrong one halves the reward."
        return text

    def puzzle_text(self) -> str:
        """The question and its correct answer."""
        return f"{self.problem.question}\n{MARK} {self.problem.answer}"

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The correct answer; empty once the episode is over."""
        return () if self._over else (self.problem.answer,)[:limit]

    def optimal_steps(self) -> int | None:
        """1 until the episode is over, then None."""
        return None if self._over else 1
