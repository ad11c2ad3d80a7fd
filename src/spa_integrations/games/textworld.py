"""Generated games of TextWorld, such as `textworld:tw-simple`. They run on TextWorld's own game
logic, without the Inform interpreter.

Source: https://textworld.readthedocs.io . A state is a set of facts of the simulator. Prompts show
only the facts that the player can see.
"""

import argparse
import copy
from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import require_choice, reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError, nearest
from spa.seeds import stream_seed
from spa_integrations.games import load_package
from spa_integrations.games.rooms import describe_room, fact_lines, made
from spa_integrations.games.text import ANSWER_LIMIT, clean, require_task

DEFAULTS = {"level": 1, "rewards": "dense", "goal": "detailed"}
IDLE = ("examine ", "inventory", "look")
"""Prefixes of commands that change no fact. Their output is already in the state."""


class TextWorldGame(TextEnv):
    """A challenge of TextWorld. Further options are settings of the challenge (`level`, `goal`,
    `recipe` …).

    `know` selects what a world model should predict: the visible part of a state (`shown`), or
    every fact (`facts`).
    """

    def __init__(self, task: str, *, know: str = "shown", **options: Any) -> None:
        require_task("textworld", task, self.tasks())
        self.task = task
        self.know = require_choice(f"textworld:{task}", "know", know, ("shown", "facts"))
        # The library's own command-line parser knows each challenge's settings and their defaults.
        parser = argparse.ArgumentParser()
        load_package("textworld", "textworld.challenges").CHALLENGES[task][2](parser)
        given = {action.dest: action.default for action in parser._actions if action.dest != "help"}
        unknown = [name for name in options if name not in given]
        if unknown:
            raise ConfigError(
                f"env_type 'textworld:{task}': there is no option {unknown[0]!r} ({nearest(unknown[0], given)})"
            )
        given = {name: DEFAULTS.get(name, value) for name, value in given.items()} | options
        # Sorted and hashable, because the settings are part of a game's cache key.
        self.settings = tuple(sorted(given.items()))
        self.observation_space, self.action_space = text_space(), text_space(ANSWER_LIMIT)

    @classmethod
    def tasks(cls) -> list[str]:
        """The challenges that the library has registered."""
        return list(load_package("textworld", "textworld.challenges").CHALLENGES)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the game that `seed` generates. The episode has no random outcomes."""
        puzzle, _ = reset_seeds(self, seed, options)
        try:
            # A shallow copy is enough: `reset` replaces the state, and the generated game is
            # shared.
            self.game = copy.copy(
                made(self.task, self.settings, stream_seed(puzzle, "textworld/puzzle") % 2**31)
            )
        except (ValueError, AssertionError, KeyError, TypeError) as error:
            raise ConfigError(
                f"env_type 'textworld:{self.task}' cannot be created ({type(error).__name__}: {error}). "
                "Check the name and the options of the environment."
            ) from error
        self.now = self.game.reset()
        self.score = 0.0
        self.over = False
        self.start = fact_lines(self.now["facts"])
        return self.state_text("grid"), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Execute a command. An inadmissible command changes nothing. Rewards are fractions of the
        highest possible score."""
        before = fact_lines(self.now["facts"])
        reward = 0.0
        # `to_action` returns lower case, but some commands have capitals ("cook apple with BBQ").
        commands = {command.lower(): command for command in self.legal_actions()}
        command = commands.get(str(action).lower())
        valid = command is not None
        if valid:
            self.now, score, self.over = self.game.step(command)
            # Divided by the highest score, so that every game pays at most 1 in total.
            reward = (score - self.score) / max(1, self.now["max_score"])
            self.score = score
        changed = fact_lines(self.now["facts"]) != before
        info = {
            "action_is_valid": valid,
            "action_is_effective": changed,
            "success": valid and bool(self.now["won"]),
        }
        return self.state_text("grid"), float(reward), bool(self.over), False, info

    def state_text(self, mode: StateText) -> str:
        """The visible state: the room, its contents and exits, and the inventory. The text is the
        same in every mode."""
        ending = (
            "\nYou have won." if self.now["won"] else "\nYou have lost." if self.now["lost"] else ""
        )
        return clean(describe_room(self.now["facts"]) + ending)

    def world_state_text(self, mode: StateText) -> str:
        """The visible state, or every fact (one per line), depending on `know`."""
        return (
            self.state_text(mode)
            if self.know == "shown"
            else "\n".join(fact_lines(self.now["facts"]))
        )

    def to_action(self, text: str) -> Action | None:
        """The command in lower case with single spaces, or None if it is empty, longer than 1,000
        characters, or contains unprintable characters."""
        words = " ".join(text.lower().split()) if len(text) <= ANSWER_LIMIT else ""
        return words if words.isprintable() and words else None

    def legal_actions(self) -> tuple[str, ...]:
        """The admissible commands that can change something."""
        return (
            ()
            if self.over
            else tuple(c for c in self.now["admissible_commands"] if not c.startswith(IDLE))
        )

    def random_action(self, rng: Any) -> str:
        """A random legal action."""
        names = self.legal_actions()
        return names[int(rng.integers(len(names)))] if names else "look"

    def example_actions(self) -> tuple[str, ...]:
        """Up to three commands: the start of the library's solution, or legal actions."""
        return self.expert_actions(3) or self.legal_actions()[:3] or ("look",)

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The library's commands that win from the current state. There may be a shorter
        solution."""
        return () if self.over else tuple(self.now["policy_commands"] or ())[:limit]

    def instruction(self, mode: StateText) -> str:
        """The quest, the text of the cookbook if the game has one, and examples of commands."""
        books = [
            str(info.desc) for info in self.now["game"].infos.values() if info.name == "cookbook"
        ]
        quest = clean("\n".join([str(self.now["objective"]), *books]))
        return f"{quest}\nAct by commands such as: go east, open chest, take key from chest."

    def puzzle_text(self) -> str:
        """The quest and every fact at the start."""
        return "\n".join([self.task, str(self.now["objective"]), *self.start])

    def clone(self, noise_seed: int | None = None) -> TextEnv:
        """Copy the game with TextWorld's own method. `noise_seed` is not used, because the game has
        no random outcomes."""
        twin = copy.copy(self)
        twin.game, twin._np_random = self.game.copy(), copy.deepcopy(self._np_random)
        return twin
