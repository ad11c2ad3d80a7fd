"""A bandit with two named arms. The player pulls once, and the names are the only hint."""

from typing import Any

from spa.envs.base import Action, StateText, TextEnv, action_index, label_space, require_labels
from spa.envs.options import require_rate, reset_seeds
from spa.envs.spaces import text_space
from spa.seeds import stream

NAME = "bandit"


class Bandit(TextEnv):
    """Pull one of two arms, once.

    The low arm always pays `lo_arm_score`. The high arm pays `hi_arm_hiscore` with probability
    `hi_arm_hiscore_prob`, else `hi_arm_loscore`. The puzzle seed determines the order in which the
    arms are shown, and the noise seed the payout. So the episodes of a group share the order, but
    their payouts are independent. Success means pulling the high arm, whatever it paid.

    Raises ConfigError if an arm's name is empty, the names are equal, or the probability is outside
    [0, 1].
    """

    finite_puzzles = True
    changes = ("_noise",)

    def __init__(
        self,
        *,
        lo_arm_name: str = "Phoenix",
        hi_arm_name: str = "Dragon",
        # As in the original, the low arm always pays 0.1, and the high arm pays 1 with probability
        # 0.25.
        lo_arm_score: float = 0.1,
        hi_arm_loscore: float = 0.0,
        hi_arm_hiscore: float = 1.0,
        hi_arm_hiscore_prob: float = 0.25,
    ) -> None:
        arms = f"{NAME}: the options lo_arm_name and hi_arm_name"
        self.low, self.high = require_labels(arms, [lo_arm_name, hi_arm_name])
        self.low_pay = require_rate(NAME, "lo_arm_score", lo_arm_score, -1e6, 1e6)
        self.high_pays = (
            require_rate(NAME, "hi_arm_loscore", hi_arm_loscore, -1e6, 1e6),
            require_rate(NAME, "hi_arm_hiscore", hi_arm_hiscore, -1e6, 1e6),
        )
        self.high_chance = require_rate(NAME, "hi_arm_hiscore_prob", hi_arm_hiscore_prob)
        self.observation_space = text_space()
        self.action_space = label_space(2)
        self._arms = (self.low, self.high)
        self._noise = stream(0, "bandit/noise")
        self._pulled: tuple[str, float] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Show the arms in the order that the puzzle seed determines."""
        puzzle_seed, noise_seed = reset_seeds(self, seed, options)
        flip = stream(puzzle_seed, "bandit/puzzle").random() < 0.5
        self._arms = (self.high, self.low) if flip else (self.low, self.high)
        self._noise = stream(noise_seed, "bandit/noise")
        self._pulled = None
        return self.state_text("grid"), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pull an arm, given by its number in the order shown or its name. Any other action is
        invalid and pulls nothing."""
        index = action_index(action, self._arms)
        valid = index is not None and self._pulled is None
        pay = 0.0
        success = False
        if index is not None and self._pulled is None:
            success = self._arms[index] == self.high
            pay = (
                self.high_pays[int(self._noise.random() < self.high_chance)]
                if success
                else self.low_pay
            )
            self._pulled = (self._arms[index], pay)
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": success}
        return self.state_text("grid"), pay, self._pulled is not None, False, info

    def renew_noise(self, noise_seed: int) -> None:
        """Sample later payouts from the stream of `noise_seed`."""
        self._noise = stream(noise_seed, "bandit/noise")

    def state_text(self, mode: StateText) -> str:
        """The arms in the order shown and, after the pull, the payout; the same text in every
        mode."""
        text = f"Arms: {self._arms[0]}, {self._arms[1]}"
        if self._pulled is not None:
            text += f"\nYou pulled {self._pulled[0]} and were paid {self._pulled[1]:g}."
        return text

    def instruction(self, mode: StateText) -> str:
        """The rules; only the names hint at which arm is better."""
        return (
            "You face a slot machine with two arms and may pull one of them, once. Each arm pays by its own rule, and "
            "the only hint is its name: think about what each name stands for, and which arm pays more on average. "
            "Answer with the name of the arm."
        )

    def action_names(self) -> tuple[str, ...]:
        """The arms in the order shown."""
        return self._arms

    def example_actions(self) -> tuple[str, ...]:
        """One pull: the arm shown first."""
        return self._arms[:1]

    def puzzle_text(self) -> str:
        """The arms' order, names and payouts. A pair of names has two puzzles, one per order."""
        low, (bad, good) = self.low_pay, self.high_pays
        return f"{self._arms} low {self.low} {low:g} high {self.high} {bad:g} {good:g} {self.high_chance:g}"

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The name of the high arm; empty once an arm has been pulled."""
        return (self.high,)[:limit] if self._pulled is None else ()

    def optimal_steps(self) -> int | None:
        """1 before the pull, None after it."""
        return 1 if self._pulled is None else None
