"""Questions of Reasoning Gym, scored by the library: `reasoning_gym:leg_counting`.

Source: https://github.com/open-thought/reasoning-gym . Each seed gives one question. A question has
no dynamics, so there is no world model to learn.
"""

from typing import Any

from spa.envs.base import StateText
from spa.envs.options import require_int, reset_seeds
from spa.errors import ConfigError
from spa.seeds import stream_seed
from spa_games.questions import QuestionGame
from spa_integrations.games import load_package
from spa_integrations.games.answers import evaluates, is_harmless
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import clean, content, require_task


class ReasoningGym(QuestionGame):
    """One question per episode. The reward is the library's score from 0 to 1; a score of 1 is a
    success.

    `retries` is the number of further answers that are allowed after an answer that scores less
    than 1. Other options are passed to the dataset.
    """

    changes = ("own",)

    def __init__(self, task: str, *, retries: int = 0, **options: Any) -> None:
        library = load_package("reasoning_gym")
        require_task("reasoning_gym", task, self.tasks())
        super().__init__(require_int(f"reasoning_gym:{task}", "retries", retries, 0, 30))
        self.task = task
        self.options = options
        self.create = library.create_dataset
        try:
            # Only the dataset can check its options, so a first question is generated here.
            self.question(0)
        except Exception as error:
            raise ConfigError(
                f"env_type 'reasoning_gym:{task}' cannot be created ({type(error).__name__}: {error}). "
                "Check the name and the options of the environment."
            ) from error

    @classmethod
    def tasks(cls) -> list[str]:
        """Names of the datasets that the library has registered."""
        return list(load_package("reasoning_gym", "reasoning_gym.factory").DATASETS)

    def question(self, seed: int) -> None:
        """Generate the question of a seed and make it the current one."""
        self.own = OwnRandomness(stream_seed(seed, "reasoning_gym/global"))
        with self.own:
            # The dataset has one entry, so its seed is the seed of the question.
            self.data = self.create(self.task, seed=seed % 2**31, size=1, **self.options)
            self.entry = self.data[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start with the question that `seed` generates. The episode has no random outcomes."""
        self.question(reset_seeds(self, seed, options)[0])
        self._begin()
        return self.state_text("grid"), {}

    def _question(self) -> str:
        return clean(str(self.entry["question"]))

    def _judge(self, answer: str) -> tuple[bool, float]:
        # A partial score counts as reward, but only a score of 1 is a success.
        score = self.score(answer)
        return score >= 1.0, score

    def score(self, answer: str) -> float:
        """Score an answer with the library. The score is 0 if the library cannot read the answer.
        It is also 0 if the library would execute the answer as code and the answer is not a plain
        formula."""
        # The library's own answers are always allowed. Some, such as integrals, are not plain
        # formulas.
        own = (self.entry["answer"], *self.entry.get("metadata", {}).get("valid_answers", ()))
        known = answer.strip() in (str(text).strip() for text in own)
        if evaluates(type(self.data)) and not known and not is_harmless(answer):
            return 0.0
        try:
            with self.own:
                return float(self.data.score_answer(answer, self.entry))
        except Exception:  # noqa: BLE001 - a scorer may raise any exception on a model's answer
            return 0.0

    def instruction(self, mode: StateText) -> str:
        """Instruction to answer with the result alone. It is the same for every dataset."""
        return "Answer the question with the result alone, in the form that it asks for."

    def example_actions(self) -> tuple[str, ...]:
        """One example answer: the library's own, or a number if that cannot be used."""
        return self.expert_actions(1) or ("42",)

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The library's own answer, if it can be written as an action and gets a score of 1."""
        answer = str(self.entry["answer"]).strip()
        # `||` separates actions, so an answer that contains it cannot be an action.
        fits = self.to_action(answer) is not None and "||" not in answer and not self._over
        return (answer,)[:limit] if fits and self.score(answer) >= 1.0 else ()

    def optimal_steps(self) -> int | None:
        """Number of answers needed: 1 if the library's own answer is right."""
        return 1 if self.expert_actions(1) else None

    def puzzle_text(self) -> str:
        """The task, and the entry of the question: its text, answer and metadata."""
        return content({"task": self.task, **self.entry})
