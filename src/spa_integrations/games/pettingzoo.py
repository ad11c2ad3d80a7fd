"""PettingZoo's board games for two players: `pettingzoo:connect_four_v3`.

Source: https://pettingzoo.farama.org/api/aec/ . A board is an array [rows, columns, 2] with one
plane of pieces per player.
"""

import importlib
import pkgutil
from typing import Any

from spa.envs.base import StateText, TextEnv, action_index, label_space
from spa.envs.options import reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.seeds import stream_seed
from spa_integrations.games import load_package
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.text import require_task

# X and O in the order of the agents; a dot is a free cell.
MARKS = "XO."
LABELS = {
    "connect_four": tuple(f"Column {number}" for number in range(1, 8)),
    "tictactoe": tuple(
        f"Row {row} Column {column}" for row in range(1, 4) for column in range(1, 4)
    ),
}


class PettingZooGame(TextEnv):
    """A classic game of two players, X and O. Further options are passed to PettingZoo. Illegal
    moves never reach the game."""

    players = 2
    finite_puzzles = True  # each game has a single start state

    def __init__(self, task: str, **options: Any) -> None:
        load_package("pettingzoo")
        require_task("pettingzoo", task, self.tasks())
        try:
            # `.unwrapped`: PettingZoo's own wrappers end the game at an illegal move.
            self.game: Any = (
                importlib.import_module(f"pettingzoo.classic.{task}").env(**options).unwrapped
            )
            self.game.reset(seed=0)
            shape = self.game.observe(self.game.possible_agents[0])["observation"].shape
        except Exception as error:
            raise ConfigError(
                f"env_type 'pettingzoo:{task}' cannot be created ({type(error).__name__}: {error}). "
                "Check the name and the options of the environment."
            ) from error
        if len(self.game.possible_agents) != 2 or len(shape) != 3 or shape[2] != 2:
            raise ConfigError(
                f"env_type 'pettingzoo:{task}' has observations of shape {shape}. `spa` needs a board game of two "
                "players, with observations of shape (rows, columns, 2)."
            )
        count = int(self.game.action_space(self.game.possible_agents[0]).n)
        numbered = tuple(f"Action {number}" for number in range(count))
        # `connect_four_v3` -> `connect_four`: all versions of a game have the same action names.
        self.task, self.names = task, LABELS.get(task.rpartition("_v")[0], numbered)
        self.observation_space, self.action_space = text_space(), label_space(count)

    @classmethod
    def tasks(cls) -> list[str]:
        """PettingZoo's classic games."""
        classic = load_package("pettingzoo", "pettingzoo.classic")
        return [
            module.name for module in pkgutil.iter_modules(classic.__path__) if "_v" in module.name
        ]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Reset the game to its start state, which is the same for every seed."""
        puzzle, noise = reset_seeds(self, seed, options)
        self.own = OwnRandomness(stream_seed(noise, "pettingzoo/global"))
        with self.own:
            self.game.reset(seed=puzzle % 2**31)
        self.over = False
        self.ending = ""
        return self.state_text("grid"), {}

    def current_player(self) -> int:
        """Index of the player to move, in PettingZoo's order of agents."""
        return self.game.possible_agents.index(self.game.agent_selection)

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Make a move of the current player. A move that the action mask forbids changes
        nothing."""
        index = action_index(action, self.names)
        mover = self.current_player()
        # Illegal moves never reach the game, which does not handle them without its wrappers.
        valid = index is not None and self.names[index] in self.legal_actions()
        rewards = [0.0, 0.0]
        if valid:
            with self.own:
                self.game.step(index)
            rewards = [float(self.game.rewards[agent]) for agent in self.game.possible_agents]
            self.over = all(self.game.terminations.values()) or all(self.game.truncations.values())
            winners = [mark for mark, reward in zip(MARKS, rewards, strict=False) if reward > 0]
            self.ending = f"{winners[0]} has won." if winners else "A draw." if self.over else ""
        successes = [self.over and reward > 0 for reward in rewards]
        info = {"action_is_valid": valid, "action_is_effective": valid, "success": successes[mover]}
        # The returned reward is the mover's. `rewards` also has the other player's.
        info |= {"rewards": rewards, "successes": successes}
        return self.state_text("grid"), rewards[mover], self.over, False, info

    def state_text(self, mode: StateText) -> str:
        """The board, followed by the player who is to move or has won. The text is the same for
        both players and in every mode."""
        # [rows, columns, 2]: one plane for each player's pieces, as the first agent sees them.
        board = self.game.observe(self.game.possible_agents[0])["observation"]
        rows = ["".join(MARKS[0 if a else 1 if b else 2] for a, b in row) for row in board]
        return "\n".join([*rows, self.ending or f"{MARKS[self.current_player()]} is to move."])

    def action_names(self) -> tuple[str, ...]:
        """The names of all actions."""
        return self.names

    def legal_actions(self) -> tuple[str, ...]:
        """The actions that the action mask allows."""
        mask = (
            [0] * len(self.names)
            if self.over
            else self.game.observe(self.game.agent_selection)["action_mask"]
        )
        return tuple(name for name, free in zip(self.names, mask, strict=True) if free)

    def instruction(self, mode: StateText) -> str:
        """The name of the game, and the mark of each player."""
        name = self.task.rpartition("_v")[0].replace("_", " ")
        return f"You play {name} against another player. X begins, then O; a free place is a dot."

    def puzzle_text(self) -> str:
        """Name of the game, which has a single start state."""
        return self.task
