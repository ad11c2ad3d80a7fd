"""A game whose legal actions change with its state."""

from typing import Any

from spa.envs.base import TextEnv
from spa.envs.spaces import text_space

DIGITS = tuple(map(str, range(6)))


class EachOnce(TextEnv):
    """Six digits, each of which may be named once; the game ends when all are."""

    changes: tuple[str, ...] | None = ("named",)

    def __init__(self) -> None:
        self.observation_space = self.action_space = text_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.seed, self.named = seed, list[str]()
        return self.state_text("grid"), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        valid = action in self.legal_actions()
        if valid:
            self.named.append(action)
        done = len(self.named) == len(DIGITS)
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": done}
        return self.state_text("grid"), float(done), done, False, info

    def state_text(self, mode: str) -> str:
        return f"named: {' '.join(self.named)}."

    def puzzle_text(self) -> str:
        return str(self.seed)

    def to_action(self, text: str) -> str | None:
        return text.strip() if text.strip() in DIGITS else None

    def action_names(self) -> tuple[str, ...]:
        return DIGITS

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(digit for digit in DIGITS if digit not in self.named)

    def instruction(self, mode: str) -> str:
        return "Name each digit once."
