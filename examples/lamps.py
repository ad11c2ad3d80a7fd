"""A game with a world to learn: pressing a lamp lights it and puts out those beside it, and a pattern is wanted.

spa env check lamps:Lamps                          does it follow every rule?
spa env play Lamps --config lamps.yaml             see what the model would see
spa run lamps.yaml                                 self-play, fine-tuning and PPO on it, with the model of make smollm2
"""

# ruff: noqa: D102 (TextEnv documents each method)

from typing import Any

from spa.envs.base import StateText, TextEnv, label_space
from spa.envs.spaces import text_space
from spa.seeds import stream


class Lamps(TextEnv):
    """A row of lamps. Every lamp is wanted on, or stands beside one that is: so pressing those makes the pattern."""

    def __init__(self, *, count: int = 7, max_steps: int = 20) -> None:
        self.count, self.max_steps = count, max_steps
        self.observation_space, self.action_space = text_space(), label_space(count)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        rng = stream(int(self.np_random.integers(2**31)) if seed is None else seed, "lamps/puzzle")
        self.lit, self.steps = (False,) * self.count, 0
        for lamp in map(int, rng.permutation(self.count)):
            if not any(self.lit[max(lamp - 1, 0) : lamp + 2]):
                self.lit = self.pressed(lamp)
        self.wanted = self.lit
        for lamp in rng.integers(self.count, size=4):
            self.lit = self.pressed(int(lamp))
        if self.lit == self.wanted:
            self.lit = (False,) * self.count
        self.start = self.state_text("grid")
        return self.start, {}

    def pressed(self, lamp: int) -> tuple[bool, ...]:
        """The lamps after a press."""
        return tuple(
            place == lamp or (on and abs(place - lamp) > 1) for place, on in enumerate(self.lit)
        )

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        valid = (
            isinstance(action, int) and not isinstance(action, bool) and 1 <= action <= self.count
        )
        if valid:
            self.lit = self.pressed(action - 1)
        self.steps += 1
        done = self.lit == self.wanted
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": done}
        return self.state_text("grid"), float(done), done, self.steps >= self.max_steps, info

    def state_text(self, mode: StateText) -> str:
        lamps = ", ".join(f"{i} {'on' if on else 'off'}" for i, on in enumerate(self.lit, start=1))
        return f"Lamps: {lamps}. Wanted on: {', '.join(str(i) for i, on in enumerate(self.wanted, start=1) if on)}."

    def puzzle_text(self) -> str:
        return self.start

    def to_action(self, text: str) -> int | None:
        word = text.strip().lower().removeprefix("press ").strip()
        return (
            int(word)
            if word.isascii() and word.isdecimal() and 1 <= int(word[:9]) <= self.count
            else None
        )

    def action_names(self) -> tuple[str, ...]:
        return tuple(f"Press {lamp}" for lamp in range(1, self.count + 1))

    def instruction(self, mode: StateText) -> str:
        return "Pressing a lamp lights it and puts out the lamps beside it. Light those that are wanted, and no others."
