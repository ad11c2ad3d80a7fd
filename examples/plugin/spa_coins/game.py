"""The game `coins`: say how the next coin falls. The coins of a puzzle repeat a pattern of three."""

from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.envs.options import reset_seeds
from spa.envs.spaces import text_space
from spa.seeds import stream

SIDES = ("heads", "tails")


class Coins(TextEnv):
    """Actions are `heads` and `tails`; six right in a row win."""

    changes = ("fallen", "right")

    def __init__(self, *, needed: int = 6) -> None:
        self.needed = needed
        self.observation_space = self.action_space = text_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Choose the pattern of a puzzle."""
        super().reset(seed=seed)
        puzzle, _ = reset_seeds(self, seed, options)
        self.pattern = [
            SIDES[int(side)] for side in stream(puzzle, "coins/puzzle").integers(2, size=3)
        ]
        self.fallen: list[str] = []
        self.right = 0
        return self.state_text("grid"), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Let the next coin fall; a wrong word ends the row."""
        valid = action in SIDES
        if valid:
            coin = self.pattern[len(self.fallen) % len(self.pattern)]
            self.fallen = [*self.fallen, coin]
            self.right = self.right + 1 if action == coin else 0
        won = self.right == self.needed
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": won}
        return self.state_text("grid"), float(won), won, False, info

    def puzzle_text(self) -> str:
        """The pattern."""
        return " ".join(self.pattern)

    def state_text(self, mode: StateText) -> str:
        """The coins that have fallen."""
        return f"Coins: {' '.join(self.fallen) or 'none'}. Right in a row: {self.right}."

    def to_action(self, text: str) -> str | None:
        """A side, in any case."""
        side = text.strip().lower()
        return side if side in SIDES else None

    def example_actions(self) -> tuple[str, ...]:
        """Actions in the sample response of the prompt."""
        return SIDES[:1]

    def legal_actions(self) -> tuple[str, ...]:
        """Both sides."""
        return SIDES

    def instruction(self, mode: StateText) -> str:
        """The rules."""
        return (
            "Coins fall in a pattern of three that repeats. Say how the next one falls: heads or tails. "
            f"{self.needed} right in a row win."
        )
