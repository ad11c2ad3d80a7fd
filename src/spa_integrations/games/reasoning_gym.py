"""Reasoning Gym: a question of the seed, and its own scorer: `reasoning_gym:leg_counting`.

Source: https://github.com/open-thought/reasoning-gym . There is no world to model: a question, one
answer, a score.
"""

from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import require_int, reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.seeds import stream_seed
from spa_integrations.games import load_package
from spa_integrations.games.answers import evaluates, is_harmless
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import ANSWER_LIMIT, clean, content, require_task


class ReasoningGym(TextEnv):
    """One question per episode; the reward is the library's score, 0 to 1, and 1 is success.

    `retries`: how many more answers may follow one that scores less than 1. Other options go to the
    data set.
    """

    changes = ("own",)

    def __init__(self, task: str, *, retries: int = 0, **options: Any) -> None:
        library = load_package("reasoning_gym")
        require_task("reasoning_gym", task, self.tasks())
        self.retries = require_int(f"reasoning_gym:{task}", "retries", retries, 0, 30)
        self.task = task
        self.options = options
        self.create = library.create_dataset
        try:
            # Options are checked by making a first question: only the data set knows them.
            self.question(0)
        except Exception as error:
            raise ConfigError(
                f"env_type 'reasoning_gym:{task}' cannot be created ({type(error).__name__}: {error}). "
                "Check the name and the options of the environment."
            ) from error
        self.observation_space, self.action_space = text_space(), text_space(ANSWER_LIMIT)

    @classmethod
    def tasks(cls) -> list[str]:
        """The data sets that the library has registered."""
        return list(load_package("reasoning_gym", "reasoning_gym.factory").DATASETS)

    def question(self, seed: int) -> None:
        """Draw the question of a seed: a data set of one, made with that seed."""
        self.own = OwnRandomness(stream_seed(seed, "reasoning_gym/global"))
        with self.own:
            # One entry: the seed of the data set is the seed of the question.
            self.data = self.create(self.task, seed=seed % 2**31, size=1, **self.options)
            self.entry = self.data[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the question of the seed; there is no chance in the episode."""
        super().reset(seed=seed)
        self.question(reset_seeds(self, seed, options)[0])
        self.wrong = 0
        self.right = False
        return self.state_text("grid"), {}

    @property
    def _over(self) -> bool:
        return self.right or self.wrong > self.retries

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score an answer. An empty or over-long text, or one after the end, changes nothing."""
        answer = self.to_action(action) if isinstance(action, str) and not self._over else None
        score = 0.0
        if answer is not None:
            score = self.score(str(answer))
            # Partial scores are paid, but only 1 counts as right.
            self.right = score >= 1.0
            self.wrong += not self.right
        done = answer is not None
        info = {
            "action_is_valid": done,
            "action_is_effective": done,
            "success": done and self.right,
        }
        return self.state_text("grid"), score, self._over, False, info

    def score(self, answer: str) -> float:
        """The library's score; 0 where it cannot read the answer, or would evaluate text that is no
        plain formula."""
        if evaluates(type(self.data)) and not is_harmless(answer):
            return 0.0
        try:
            with self.own:
                return float(self.data.score_answer(answer, self.entry))
        except Exception:  # noqa: BLE001 - scorers are other people's code, and answers are anything
            return 0.0

    def state_text(self, mode: StateText) -> str:
        """The question, and how many answers were wrong so far. The same for every mode."""
        text = clean(str(self.entry["question"]))
        if self.right:
            return f"{text}\nYour answer was right."
        left = self.retries + 1 - self.wrong
        return (
            f"{text}\nWrong answers so far: {self.wrong}. Answers left: {left}."
            if self.wrong
            else text
        )

    def to_action(self, text: str) -> Action | None:
        """The answer without white space around it; None if it is empty or longer than 1,000
        characters."""
        return text.strip() if text.strip() and len(text) <= ANSWER_LIMIT else None

    def instruction(self, mode: StateText) -> str:
        """What is asked."""
        return "Answer the question with the result alone, in the form that it asks for."

    def random_action(self, rng: Any) -> str:
        """A whole number from 1 to 100."""
        return str(1 + int(rng.integers(100)))

    def example_actions(self) -> tuple[str, ...]:
        """The library's answer, a number where it has none."""
        return self.expert_actions(1) or ("42",)

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The library's own answer, if it can be written as an action and its scorer gives it 1."""
        answer = str(self.entry["answer"]).strip()
        # `||` separates actions, so such an answer could not be written.
        fits = self.to_action(answer) is not None and "||" not in answer and not self._over
        return (answer,)[:limit] if fits and self.score(answer) >= 1.0 else ()

    def optimal_steps(self) -> int | None:
        """One answer, where the library's own is right."""
        return 1 if self.expert_actions(1) else None

    def puzzle_text(self) -> str:
        """Question and answer, and what the scorer goes by."""
        return content({"task": self.task, **self.entry})
