"""A game of two players: heaps of stones; who takes the last stone wins.

spa env check nim:Nim
spa run nim.yaml
"""

# ruff: noqa: D102 (TextEnv documents each method)

from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.envs.options import reset_seeds
from spa.envs.spaces import text_space
from spa.seeds import stream


class Nim(TextEnv):
    """Actions are texts such as `take 2 from 1`; heaps are counted from 1."""

    players = 2
    changes = ("heaps",)

    def __init__(self, *, heaps: int = 3, most: int = 4) -> None:
        self.count, self.most = heaps, most
        self.observation_space = self.action_space = text_space()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        puzzle, _ = reset_seeds(self, seed, options)
        self.heaps = [
            int(n) for n in stream(puzzle, "nim/puzzle").integers(1, self.most + 1, self.count)
        ]
        self.first, self.mover = list(self.heaps), 0
        return self.state_text("grid"), {}

    def current_player(self) -> int:
        return self.mover

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        valid, won = isinstance(action, str) and action in self.legal_actions(), [False, False]
        if valid:
            words = action.split()
            self.heaps[int(words[3]) - 1] -= int(words[1])
            won[self.mover] = not any(self.heaps)
        rewards = [1.0 if won[p] else -1.0 if any(won) else 0.0 for p in range(2)]
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": won[self.mover]}
        info |= {"rewards": rewards, "successes": won}
        reward, self.mover = rewards[self.mover], 1 - self.mover if valid else self.mover
        return self.state_text("grid"), reward, not any(self.heaps), False, info

    def state_text(self, mode: StateText) -> str:
        return "Stones: " + ", ".join(f"{n} in heap {i}" for i, n in enumerate(self.heaps, 1)) + "."

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(
            f"take {k} from {i}" for i, n in enumerate(self.heaps, 1) for k in range(1, n + 1)
        )

    def to_action(self, text: str) -> str | None:
        return " ".join(text.lower().split()) or None

    def random_action(self, rng: Any) -> str:
        legal = self.legal_actions() or ("take 1 from 1",)
        return legal[int(rng.integers(len(legal)))]

    def example_actions(self) -> tuple[str, ...]:
        return self.legal_actions()[:1]

    def instruction(self, mode: StateText) -> str:
        return "Two players take stones in turn, any number from one heap. Who takes the last stone wins."

    def puzzle_text(self) -> str:
        return f"{self.first}"
