"""Base class of games that ask a question and may allow retries: MetamathQA and Reasoning Gym."""

from abc import abstractmethod
from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.spaces import text_space

MAX_ANSWER = 1000
"""Maximum length of an answer in characters."""


class QuestionGame(TextEnv):
    """A game with one question per episode. After a wrong answer, up to `retries` more attempts are
    allowed."""

    def __init__(self, retries: int) -> None:
        self.retries = retries
        self.observation_space = text_space()
        self.action_space = text_space(MAX_ANSWER)
        self._begin()

    def _begin(self) -> None:
        self.wrong = 0
        self.right = False

    @abstractmethod
    def _question(self) -> str:
        """The question as text."""

    @abstractmethod
    def _judge(self, answer: str) -> tuple[bool, float]:
        """Return whether an answer is correct, and its reward."""

    @property
    def _over(self) -> bool:
        return self.right or self.wrong > self.retries

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge an answer. A text that is empty or too long, or that comes after the end, changes
        nothing."""
        answer = self.to_action(action) if isinstance(action, str) and not self._over else None
        reward = 0.0
        if answer is not None:
            self.right, reward = self._judge(answer)
            self.wrong += not self.right
        done = answer is not None
        info = {
            "action_is_valid": done,
            "action_is_effective": done,
            "success": done and self.right,
        }
        return self.state_text("grid"), reward, self._over, False, info

    def state_text(self, mode: StateText) -> str:
        """The question and, after an answer, the result or the number of answers left. All modes
        show the same text."""
        if self.right:
            return f"{self._question()}\nYour answer was right."
        if not self.wrong:
            return self._question()
        left = self.retries + 1 - self.wrong
        return f"{self._question()}\nWrong answers so far: {self.wrong}. Answers left: {left}."

    def to_action(self, text: str) -> str | None:
        """The text without surrounding white space. None if it is blank or longer than 1,000
        characters."""
        return text.strip() if text.strip() and len(text) <= MAX_ANSWER else None

    def random_action(self, rng: Any) -> str:
        """A random integer from 1 to 100."""
        return str(1 + int(rng.integers(100)))
