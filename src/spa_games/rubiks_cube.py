"""The 2x2 Rubik's cube: quarter turns until every face has one colour."""

from typing import Any

from spa.envs.base import Action, StateText, TextEnv, action_index, label_space
from spa.envs.options import require_int, reset_seeds, uniforms
from spa.envs.spaces import text_space
from spa.seeds import stream
from spa_games.cube import ACTIONS, COLOURS, FACES, SOLVED, is_solved, turn
from spa_games.solvers import rubiks_cube as solver

NAME = "rubiks_cube"
NAMES = {"U": "Up", "L": "Left", "F": "Front", "R": "Right", "B": "Back", "D": "Down"}


class RubiksCube(TextEnv):
    """Solve a 2x2 cube by quarter turns of its faces. The reward is 1 when each face has one
    colour, else 0.

    The solver verifies that each scramble needs exactly `scramble_depth` quarter turns, so turns
    that undo each other or rotate the whole cube do not count. The episode is truncated after
    `max_steps` actions.
    """

    # At depth 1 there are only twelve scrambles, so puzzles repeat.
    finite_puzzles = True

    # A clone needs no deep copy: `cube` is a string that `step` replaces.
    changes = ()

    def __init__(self, *, scramble_depth: int = 3, max_steps: int = 20) -> None:
        self.scramble_depth = require_int(NAME, "scramble_depth", scramble_depth, 1, 9)
        self.max_steps = require_int(NAME, "max_steps", max_steps, 1, 1_000_000)
        self.observation_space = text_space()
        self.action_space = label_space(len(ACTIONS))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start from the scramble that the seed determines. Episodes are deterministic."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        uniform = uniforms(stream(puzzle_seed, f"{NAME}/puzzle"))
        self.cube = SOLVED
        # Random turns may undo each other or turn the whole cube, so sample until the solver
        # confirms the depth.
        while solver.distance(self.cube, limit=self.scramble_depth) != self.scramble_depth:
            self.cube = SOLVED
            for _ in range(self.scramble_depth):
                self.cube = turn(self.cube, ACTIONS[int(uniform() * len(ACTIONS))])
        self._start = self.cube
        self.steps = 0
        return self.state_text("grid"), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make one quarter turn. An unknown action, or any action after the end, is invalid and
        leaves the cube as it is."""
        index = action_index(action, ACTIONS)
        over = is_solved(self.cube)
        before = self.cube
        self.steps += 1
        if index is not None and not over:
            self.cube = turn(before, ACTIONS[index])
        terminated = is_solved(self.cube)
        success = terminated and not over
        info = {
            "action_is_valid": index is not None and not over,
            "action_is_effective": self.cube != before,
            "success": success,
        }
        truncated = self.steps >= self.max_steps and not terminated
        return self.state_text("grid"), float(success), terminated, truncated, info

    def state_text(self, mode: StateText) -> str:
        """One line per face, with its upper row and its lower row; the same text in every mode."""
        lines = []
        for index, face in enumerate(FACES):
            four = self.cube[4 * index : 4 * index + 4]
            lines.append(f"{NAMES[face]} ({face}): {four[:2]} {four[2:]}")
        return "\n".join(lines)

    def action_names(self) -> tuple[str, ...]:
        """The labels of the quarter turns: U, U', L, L', F, F', R, R', B, B', D, D'."""
        return ACTIONS

    def legend(self) -> dict[str, str]:
        """Map each sticker's letter to its colour."""
        return dict(COLOURS)

    def instruction(self, mode: StateText) -> str:
        """The rules and how the faces are written."""
        text = (
            "You are solving a 2x2 Rubik's cube: it is solved when each of the six faces has one colour. An action "
            "turns one face by a quarter: a letter (U up, L left, F front, R right, B back, D down) turns that face "
            "clockwise as seen from its own side, a letter with ' turns it counter-clockwise. Each face is written as "
            "its upper row and its lower row, seen from outside on the cube unfolded around its front: the lower row "
            "of the up face and the upper row of the down face touch the front face; left, front, right and back "
            "follow each other from left to right."
        )
        # `instruction` must explain the letters, because prompts with coordinates alone have no
        # legend.
        if mode == "coords":
            text += f" Stickers: {', '.join(f'{key} {name}' for key, name in COLOURS.items())}."
        return text

    def puzzle_text(self) -> str:
        """The 24 stickers of the scrambled cube."""
        return self._start

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The first `limit` turns of a shortest solution; empty if the cube is solved."""
        return solver.solve(self.cube)[:limit]

    def optimal_steps(self) -> int | None:
        """The fewest quarter turns that solve the current cube."""
        return solver.distance(self.cube)
