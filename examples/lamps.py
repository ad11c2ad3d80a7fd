"""A game with a world to learn: pressing a lamp switches it and its neighbours, and all lamps are to go out.

spa check-env lamps:Lamps                          does it follow every rule?
spa play Lamps --config lamps.yaml                 see what the model would see
spa run lamps.yaml                                 self-play, fine-tuning and PPO on it, with the model of make smollm2
"""

# ruff: noqa: D102 (what each method is for is said in TextEnv)

from typing import Any

from spa.envs.base import StateText, TextEnv
from spa.envs.labels import label_space
from spa.envs.spaces import text_space
from spa.seeds import stream


class Lamps(TextEnv):
    """A row of lamps; with 7 of them every pattern can be put out, by at most 7 presses."""

    def __init__(self, *, count: int = 7, max_steps: int = 20) -> None:
        self.count, self.max_steps = count, max_steps
        self.observation_space, self.action_space = text_space(), label_space(count)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        rng = stream(int(self.np_random.integers(2**31)) if seed is None else seed, "lamps/puzzle")
        self.lit, self.steps = (False,) * self.count, 0
        for lamp in rng.permutation(self.count)[: rng.integers(1, 4)]:
            self.lit = self.switched(int(lamp))
        self.start = self.state_text("grid")
        return self.start, {}

    def switched(self, lamp: int) -> tuple[bool, ...]:
        """The lamps after a press."""
        return tuple(on != (abs(place - lamp) <= 1) for place, on in enumerate(self.lit))

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        valid = isinstance(action, int) and not isinstance(action, bool) and 0 <= action < self.count
        if valid:
            self.lit = self.switched(action)
        self.steps += 1
        done = not any(self.lit)
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": done}
        return self.state_text("grid"), float(done), done, self.steps >= self.max_steps, info

    def state_text(self, mode: StateText) -> str:
        return "Lamps: " + ", ".join(f"{i} {'on' if on else 'off'}" for i, on in enumerate(self.lit, start=1)) + "."

    def puzzle_text(self) -> str:
        return self.start

    def to_action(self, text: str) -> int | None:
        word = text.strip().lower().removeprefix("press ").strip()
        return int(word) - 1 if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= self.count else None

    def action_names(self) -> tuple[str, ...]:
        return tuple(f"Press {lamp}" for lamp in range(1, self.count + 1))

    def instruction(self, mode: StateText) -> str:
        return "Lamps stand in a row. Pressing one switches it and the lamps beside it, on or off. Put them all out."
