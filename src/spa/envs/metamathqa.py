"""Word problems with a short answer, from MetaMathQA or generated (arXiv 2309.12284)."""

import logging
from functools import lru_cache
from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.datafiles import file_stamp, read_rows
from spa.envs.options import require_int, reset_seeds
from spa.envs.spaces import text_space
from spa.envs.word_problems import Problem, generate_problem
from spa.errors import DataError
from spa.seeds import stream

log = logging.getLogger(__name__)

NAME = "metamathqa"
MARK = "The answer is:"
MAX_ANSWER = 1000


@lru_cache(maxsize=4)
def load_problems(
    source: str, split: str, limit: int | None, stamp: tuple[int, int] | None
) -> tuple[Problem, ...]:
    """The problems of a file or hub data set with columns `query` and `response`. `stamp` marks a
    changed file.

    The answer is what follows the last "The answer is:" of the response. A row without one is left
    out, and the log says how many there were. Raises DataError that names file, row, column, or
    says that no row has an answer.
    """
    problems: list[Problem] = []
    without: list[int] = []
    for row in read_rows(source, ("query", "response"), split=split, limit=limit):
        _, mark, answer = row.text("response").rpartition(MARK)
        if mark and normalise(answer):
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


def normalise(answer: str) -> str:
    """An answer as it is compared: lower case, without any white space."""
    return "".join(answer.lower().split())


class MetamathQA(TextEnv):
    """Answer a word problem. Reward 1 for a right first answer, halved with every answer that was
    wrong before.

    Answers are right if they are the same text after lower-casing and dropping white space; "7" and
    "7.0" differ. `retries` more answers may follow a wrong one: 0 ends the episode with the first
    answer. A retry also needs room in the budget of actions (`max_actions_per_traj` of at least
    `retries` + 1).

    `data`: a parquet or JSON-lines file, or a hub name such as `meta-math/MetaMathQA`, with columns
    `query` and `response`; the seed draws a row uniformly. Without it, each seed generates an
    arithmetic word problem.
    """

    changes = ()

    def __init__(
        self,
        *,
        data: str | None = None,
        split: str = "train",
        max_instances: int | None = None,
        # As in the original, whose limit of one action leaves no room for a second answer.
        retries: int = 0,
    ) -> None:
        limit = (
            None
            if max_instances is None
            else require_int(NAME, "max_instances", max_instances, 1, 10_000_000)
        )
        self.retries = require_int(NAME, "retries", retries, 0, 30)
        self.problems = (
            load_problems(str(data), split, limit, file_stamp(str(data))) if data else None
        )
        self.observation_space = text_space()
        self.action_space = text_space(MAX_ANSWER)
        self.problem = Problem("", "")
        self.wrong = 0
        self.right = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the problem of the seed; there is no chance in the episode."""
        super().reset(seed=seed)
        puzzle_seed, _ = reset_seeds(self, seed, options)
        rng = stream(puzzle_seed, f"{NAME}/puzzle")
        if self.problems:
            # Not `rng.integers`, whose values may change with NumPy, see `uniforms`.
            self.problem = self.problems[int(rng.random() * len(self.problems))]
        else:
            self.problem = generate_problem(rng)
        self.wrong = 0
        self.right = False
        return self.state_text("grid"), {}

    @property
    def _over(self) -> bool:
        return self.right or self.wrong > self.retries

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer. An empty or over-long text, or one after the end, changes nothing."""
        answer = self.to_action(action) if isinstance(action, str) and not self._over else None
        reward = 0.0
        if answer is not None:
            self.right = normalise(str(answer)) == normalise(self.problem.answer)
            reward = 0.5**self.wrong if self.right else 0.0
            self.wrong += not self.right
        info = {
            "action_is_valid": answer is not None,
            "action_is_effective": answer is not None,
            "success": answer is not None and self.right,
        }
        return self.state_text("grid"), reward, self._over, False, info

    def state_text(self, mode: StateText) -> str:
        """The question, and how many answers were wrong so far. The same for every mode."""
        if self.right:
            return f"{self.problem.question}\nYour answer was right."
        if not self.wrong:
            return self.problem.question
        left = self.retries + 1 - self.wrong
        return f"{self.problem.question}\nWrong answers so far: {self.wrong}. Answers left: {left}."

    def to_action(self, text: str) -> Action | None:
        """The answer without white space around it; None if it is empty or longer than 1,000
        characters."""
        if len(text) > MAX_ANSWER or not text.strip():
            return None
        return text.strip()

    def instruction(self, mode: StateText) -> str:
        """What is asked, and what a retry costs."""
        text = "Solve the problem. Answer with the result alone, without units, words or steps."
        if self.retries:
            text += f" After a wrong answer you may try again, {self.retries} more at most;"
            text += " each wrong one halves the reward."
        return text

    def random_action(self, rng: Any) -> str:
        """A whole number from 1 to 100."""
        return str(1 + int(rng.integers(100)))

    def puzzle_text(self) -> str:
        """Question and answer."""
        return f"{self.problem.question}\n{MARK} {self.problem.answer}"

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The right answer; nothing once the episode is over."""
        return () if self._over else (self.problem.answer,)[:limit]

    def optimal_steps(self) -> int | None:
        """One answer."""
        return None if self._over else 1
