"""A game for written search: on ice the player slides until a rock or the border, and has to stop on the goal.

spa env check slide:Slide                 does it follow every rule, those of written search included?
spa env play Slide --config slide.yaml    see what the model would see
spa run slide.yaml                        SFT on searches over the model's own predictions, then PPO
"""

# ruff: noqa: D102 (TextEnv documents each method)

import re
from typing import Any

from spa.envs.base import StateText, TextEnv, action_index, label_space
from spa.envs.spaces import text_space
from spa.seeds import stream

MOVES = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
CELL = "{}{}".format


class Slide(TextEnv):
    """A square of ice with rocks. Cells are written as row and column, counted from 0."""

    changes = ()  # `step` sets new values only, so that a copy needs no more; searches play in copies
    state_key_format = ("cell", "cells as row and column")

    def __init__(self, *, size: int = 5, rocks: int = 5) -> None:
        self.size, self.rock_count = size, rocks
        self.observation_space, self.action_space = text_space(), label_space(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        rng = stream(int(self.np_random.integers(2**31)) if seed is None else seed, "slide/puzzle")
        stops = list[str]()
        # The goal is the last stop that random slides find, so there is a way.
        while len(stops) < 2:
            cells = [CELL(row, column) for row in range(self.size) for column in range(self.size)]
            self.player, *self.rocks = rng.permutation(cells)[: self.rock_count + 1].tolist()
            stops, here = [self.player], self.player
            for move in rng.integers(len(MOVES), size=30):
                here = self.slid(here, int(move))
                stops += [here] if here not in stops else []
        self.goal = stops[-1]
        self.start = self.state_text("coords")
        return self.start, {}

    def slid(self, cell: str, move: int) -> str:
        """Cell where the player stops."""
        down, right = list(MOVES.values())[move]
        ahead = CELL(int(cell[0]) + down, int(cell[1]) + right)
        free = re.fullmatch(f"[0-{self.size - 1}]{{2}}", ahead) and ahead not in self.rocks
        return self.slid(ahead, move) if free else cell

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before, index = self.player, action_index(action, self.action_names())
        if index is not None and before != self.goal:
            self.player = self.slid(before, index)
        done, moved = self.player == self.goal, self.player != before
        info = {"action_is_valid": index is not None, "action_is_effective": moved, "success": done}
        text = self.state_text("coords")
        return text, float(done and moved), done, False, info

    def state_text(self, mode: StateText) -> str:
        return f"Player at {self.player}. Goal at {self.goal}. Rocks at {', '.join(self.rocks)}."

    def puzzle_text(self) -> str:
        return self.start

    def action_names(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def instruction(self, mode: StateText) -> str:
        return "Each move slides you until a rock or the border stops you. Stop on the goal."

    def state_key(self) -> str:
        return self.player

    def state_outcome(self) -> str:
        return self.outcome_of_text(self.state_text("coords"))

    def key_of_text(self, text: str) -> str | None:
        match = re.match(r"Player at (\d\d)\.", text)
        return match and match[1]

    def text_of_key(self, text: str, key: str) -> str | None:
        on_board = re.fullmatch(f"[0-{self.size - 1}]{{2}}", key) and self.key_of_text(text)
        fits = on_board and key not in text.partition("Rocks")[2]
        return text.replace(text[:12], f"Player at {key}", 1) if fits else None

    def outcome_of_text(self, text: str) -> str:
        return "goal" if f"Goal at {self.key_of_text(text)}." in text else ""
