"""An environment of your own: guess a hidden number; actions are free text.

spa env check custom_env:GuessNumber                                   does it follow every rule?
spa env measure GuessNumber --config custom_env.yaml                   what random play gets, and the optimum
spa run custom_env.yaml model_path=builtin:tiny                        self-play, fine-tuning and PPO on it
"""

# ruff: noqa: D102 (TextEnv documents each method)

from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.envs.spaces import text_space
from spa.seeds import stream


class GuessNumber(TextEnv):
    """A number from 1 to `highest` is hidden; each guess is answered by the range that is left."""

    def __init__(self, *, highest: int = 1000) -> None:
        self.highest = highest
        self.observation_space = self.action_space = text_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        seed = int(self.np_random.integers(2**31)) if seed is None else seed
        self.hidden = int(stream(seed, "guess_number/puzzle").integers(1, self.highest + 1))
        self.low, self.high, self.found = 1, self.highest, False
        return self.state_text("grid"), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before = self.state_text("grid")
        valid = (
            isinstance(action, str) and action.isdecimal() and self.low <= int(action) <= self.high
        )
        if valid and not self.found:
            guess = int(action)
            self.found = guess == self.hidden
            self.low = guess if self.found else guess + 1 if guess < self.hidden else self.low
            self.high = guess if self.found else guess - 1 if guess > self.hidden else self.high
        changed = self.state_text("grid") != before
        info = {"action_is_valid": valid, "action_is_effective": changed, "success": self.found}
        return self.state_text("grid"), float(self.found and changed), self.found, False, info

    def state_text(self, mode: StateText) -> str:
        return (
            f"Found: {self.hidden}."
            if self.found
            else f"The number is between {self.low} and {self.high}."
        )

    def puzzle_text(self) -> str:
        return f"{self.highest} {self.hidden}"

    def to_action(self, text: str) -> str | None:
        text = text.strip()
        return str(int(text)) if text.isascii() and text.isdecimal() and len(text) < 10 else None

    def random_action(self, rng: Any) -> str:
        return str(int(rng.integers(self.low, self.high + 1)))

    def example_actions(self) -> tuple[str, ...]:
        return (str((1 + self.highest) // 2), str(self.highest))

    def instruction(self, mode: StateText) -> str:
        return f"I think of a whole number from 1 to {self.highest}. Guess it; I tell you what range is left."

    def best_success(self, limit: int) -> float:
        """Halving finds one of 2^limit - 1 numbers in time."""
        return min(1.0, (2**limit - 1) / (self.high - self.low + 1))
