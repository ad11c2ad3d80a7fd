"""Gymnasium environments whose observations are text or a few values, such as `gymnasium:Taxi-v4`.

Source: https://gymnasium.farama.org/api/env/ . Seeds are passed on unchanged, so seed 5 is
Gymnasium's seed 5.
"""

import importlib
import re
from typing import Any

import gymnasium
from gymnasium import spaces

from spa.envs.base import StateText, TextEnv, action_index, label_space, require_labels
from spa.envs.options import require_choice, reset_seeds
from spa.envs.spaces import text_space
from spa.errors import ConfigError
from spa.plugins import find_modules_beside_user
from spa.seeds import stream, stream_seed
from spa_integrations.games.randomness import OwnRandomness
from spa_integrations.games.shown import NAMES, is_small, rules, uncoloured
from spa_integrations.games.text import clean, content, require_task


class GymnasiumGame(TextEnv):
    """A Gymnasium environment. Its name is its id, or `module:id` if a module has to register it
    (`my_games:Maze-v0`). Further options are passed to `gymnasium.make`.

    The grid text is the rendering with `render_mode="ansi"`, if the environment supports it. The
    coordinate text shows the values of the observation. `action_names` are names for the actions,
    which Gymnasium only numbers. `success` defines a win: the last reward is positive (`reward`),
    or the episode terminates (`end`). `info["is_success"]` takes precedence.
    """

    changes = ("game", "own")

    def __init__(
        self, task: str, *, action_names: Any = None, success: str = "", **options: Any
    ) -> None:
        task = import_task(task)
        require_task("gymnasium", task, gymnasium.registry)
        name = task.rpartition("/")[2].rpartition("-v")[0]
        # A cliff walk is won when it terminates. Every step has a cost, so even the last reward is
        # negative.
        success = success or ("end" if name.startswith("CliffWalking") else "reward")
        self.success_is = require_choice(f"gymnasium:{task}", "success", success, ("reward", "end"))
        try:
            self.game: Any = gymnasium.make(task, disable_env_checker=True, **options)
            # Only an instance lists its render modes. If it can render text, the environment is
            # created a second time with that mode.
            if "ansi" in self.game.metadata.get("render_modes", ()):
                self.game = gymnasium.make(
                    task, disable_env_checker=True, **{"render_mode": "ansi", **options}
                )
        except Exception as error:
            raise ConfigError(
                f"env_type 'gymnasium:{task}' cannot be created ({type(error).__name__}: {error}). "
                "Check the name and the options of the environment."
            ) from error
        if isinstance(self.game.unwrapped, TextEnv):
            own = type(self.game.unwrapped)
            raise ConfigError(
                f"env_type 'gymnasium:{task}' is an environment of `spa` itself; set env_type to "
                f"{own.__module__}:{own.__qualname__}"
            )
        actions = self.game.action_space
        self.values = self.game.observation_space
        if not isinstance(actions, spaces.Discrete) or not is_small(self.values):
            raise ConfigError(
                f"env_type 'gymnasium:{task}' has the spaces {actions} and {self.values}. `spa` needs discrete "
                "actions, and observations that are text or a few integers. Choose another environment."
            )
        numbered = tuple(f"Action {number}" for number in range(int(actions.n)))
        own = f"env_type 'gymnasium:{task}': action_names"
        self.names = (
            NAMES.get(name, numbered) if action_names is None else require_labels(own, action_names)
        )
        if len(self.names) != actions.n:
            raise ConfigError(
                f"{own} has {len(self.names)} names for the action space {actions}. Give one name per action."
            )
        # With text observations, the number of puzzles may be unlimited. With observations of a few
        # numbers, there are only a few start states.
        self.task, self.finite_puzzles = task, not isinstance(self.values, spaces.Text)
        self.observation_space, self.action_space = text_space(), label_space(len(self.names))

    @classmethod
    def tasks(cls) -> list[str]:
        """Return the ids that are registered with Gymnasium, except our own environments."""
        return [name for name in gymnasium.registry if not name.startswith("spa/")]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the puzzle that `seed` generates. Random outcomes in the episode come from the
        noise seed."""
        puzzle, noise = reset_seeds(self, seed, options)
        self.own = OwnRandomness(stream_seed(puzzle, "gymnasium/puzzle"))
        with self.own:
            self.seen, self.info = self.game.reset(seed=puzzle)
            self.grid = self._render_grid()
        # The noise is renewed after the reset, so the board depends on the puzzle seed and later
        # outcomes on the noise seed.
        self.renew_noise(noise)
        self.over, self.start = False, self.state_text("grid_and_coords")
        return self.state_text("grid"), {}

    def renew_noise(self, noise_seed: int) -> None:
        """Sample all later random outcomes from streams of `noise_seed`, including outcomes that
        come from global generators."""
        self.own = OwnRandomness(stream_seed(noise_seed, "gymnasium/global"))
        self.game.unwrapped.np_random = stream(noise_seed, "gymnasium/noise")

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take an action. An unknown action, or one after the end of the episode, changes
        nothing."""
        index = None if self.over else action_index(action, self.names)
        # The comparison includes both the rendering and the values, because either may change
        # without the other.
        before = self.state_text("grid_and_coords")
        reward = 0.0
        ended = self.over
        cut = False
        won = False
        if index is not None:
            with self.own:
                # Discrete spaces may start at a number other than 0.
                number = index + int(self.game.action_space.start)
                self.seen, reward, ended, cut, self.info = self.game.step(number)
                self.grid = self._render_grid()
            self.over = bool(ended or cut)
            # A truncated episode is not won, whatever its last reward.
            won = bool(ended) and bool(
                self.info.get("is_success", self.success_is == "end" or reward > 0)
            )
        changed = self.state_text("grid_and_coords") != before
        info = {
            "action_is_valid": index is not None,
            "action_is_effective": changed,
            "success": won,
        }
        return self.state_text("grid"), float(reward), bool(ended), bool(cut), info

    def _render_grid(self) -> str:
        if self.game.render_mode != "ansi":
            return ""
        # The line with the last action, such as `(Right)`, is not part of the state.
        return re.sub(r"(?m)^ *\(\w+\)\n?", "", uncoloured(str(self.game.render())))

    def state_text(self, mode: StateText) -> str:
        """The rendering (`grid`), the observed values (`coords`), or both. An environment that
        cannot render text always shows the values."""
        values = self.seen if isinstance(self.seen, str) else content(self.seen)
        values = clean(values) if isinstance(self.values, spaces.Text) else f"Observation: {values}"
        if not self.grid or mode == "coords":
            return values
        return clean(self.grid) if mode == "grid" else f"{clean(self.grid)}\n{values}"

    def action_names(self) -> tuple[str, ...]:
        """The names of all actions."""
        return self.names

    def legal_actions(self) -> tuple[str, ...]:
        """The actions that `info["action_mask"]` allows, if the environment has a mask."""
        mask = None if self.over else self.info.get("action_mask")
        return (
            self.names
            if mask is None
            else tuple(n for n, free in zip(self.names, mask, strict=True) if free)
        )

    def instruction(self, mode: StateText) -> str:
        """The introduction from the environment's docstring; see `shown.rules`."""
        return rules(self.game.unwrapped, has_grid=bool(self.grid))

    def puzzle_text(self) -> str:
        """The id and the first visible state. The hidden state is not included, because it cannot
        be read."""
        return f"{self.task}\n{self.start}"


def import_task(task: str) -> str:
    """Return the environment's id from `task`, which is `id` or `module:id`. Imports the module, so
    that it registers the environment. Raises ConfigError if the import fails."""
    module, _, name = task.rpartition(":")
    if module:
        find_modules_beside_user()
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ConfigError(
                f"env_type 'gymnasium:{task}': cannot import {module!r} ({type(error).__name__}: {error})"
            ) from error
    return name
