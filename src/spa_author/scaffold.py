"""Templates for a custom environment: a small working game, its test, and its configuration."""

import keyword
import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from string import Template

import spa
from spa.envs.cards import cards
from spa.envs.registry import libraries
from spa.errors import ConfigError

CONFIGS = Path(spa.__file__).parent / "config"

MODULE = Template('''"""$title: walk along a corridor to the door. Replace the game by your own."""

from typing import Any

from spa.envs.base import StateText, TextEnv, action_index, label_space
from spa.envs.spaces import text_space
from spa.seeds import stream

MOVES = {"Left": -1, "Right": 1}


class $cls(TextEnv):
    """A corridor with a player P and a door D. Reward 1 at the door."""

    def __init__(self, *, length: int = 8, max_steps: int = 20) -> None:
        self.length, self.max_steps = length, max_steps
        self.observation_space, self.action_space = text_space(), label_space(len(MOVES))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)  # Gymnasium wants this
        rng = stream(int(self.np_random.integers(2**31)) if seed is None else seed, "$name/puzzle")
        self.start, self.door = (int(cell) for cell in rng.permutation(self.length)[:2])
        self.player, self.steps = self.start, 0
        return self.state_text(self.default_state_text), {}

    def step(self, action: Any) -> tuple[str, float, bool, bool, dict[str, Any]]:
        before, index = self.player, action_index(action, self.action_names())
        over = before == self.door  # after the end nothing changes and nothing is paid
        if index is not None and not over:
            move = list(MOVES.values())[index]
            self.player = min(max(before + move, 0), self.length - 1)
        self.steps += 1
        done = self.player == self.door
        moved = self.player != before
        info = {"action_is_valid": index is not None, "action_is_effective": moved, "success": done}
        text = self.state_text(self.default_state_text)
        return text, float(done and not over), done, self.steps >= self.max_steps, info

    def state_text(self, mode: StateText) -> str:
        signs = {self.door: "D", self.player: "P"}
        grid = "".join(signs.get(cell, "_") for cell in range(self.length))
        # The bundled model knows sentences of this form, so it can learn this game.
        sentence = f"door (D) is at (0,{self.door}); player (P) is at (0,{self.player})."
        return {"grid": grid, "coords": sentence}.get(mode, f"{grid}\\n{sentence}")

    def puzzle_text(self) -> str:
        return f"{self.length} {self.start} {self.door}"  # the whole puzzle, in every state

    def action_names(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def instruction(self, mode: StateText) -> str:
        return f"You are in a corridor of {self.length} cells, counted from 0 on the left. Walk to the door."
''')
TEST = Template('''import random

from spa_author.checker import check

from $name import $cls


def test_$name():
    """Every rule of an environment; a failure says what and why."""
    findings = check($cls)
    assert [finding for finding in findings if not finding.ok] == []


def test_random_play_succeeds_sometimes():
    """PPO learns from episodes of one puzzle that end differently."""
    env, rng = $cls(), random.Random(0)
    successes = 0
    for seed in range(200):
        env.reset(seed=seed)
        over, info = False, {}
        for _ in range(10):
            action = env.to_action(rng.choice(env.action_names()))
            _, _, terminated, truncated, info = env.step(action)
            over = terminated or truncated
            if over:
                break
        successes += bool(info["success"])
    assert 0 < successes < 200
''')
CONFIG = Template("""# spa run $name.yaml trains the bundled model on $cls in minutes. The rest comes from tiny.
# For a game with other sentences, replace tiny by smol (SmolLM2) and remove `generate` and what follows.
defaults:
  - tiny
  - _self_

custom_envs:
  $cls:
    env_type: $name:$cls
    # An episode ends after this many actions, or after its turns: 3 turns of 2 actions.
    max_actions_per_traj: 6
    max_tokens: 100
    env_config: {length: 8}

agent_proxy:
  max_turn: 3
  max_actions_per_turn: 2

trainer:
  experiment_name: $name
  total_training_steps: 24
  test_freq: 6
  save_freq: 24

es_manager:
  train:
    env_groups: 16
    env_configs:
      tags: [$cls]
  val:
    env_groups: 16  # puzzles that training leaves out, so fewer than the game has
    group_size: 8
    env_configs:
      tags: [$cls]

generate:
  policy: random  # the model does not write this game's format yet
  num_batches: 4

sft:
  trainer:
    total_training_steps: 100
    test_freq: 50
    save_freq: 100

gate:
  entropy_min: 0.05  # random play has two actions to choose from
""")


def write_env(name: str, folder: Path) -> list[Path]:
    """Write `name.py`, `test_name.py` and `name.yaml` into `folder` and return their paths.

    Raises ConfigError if `name` is not a valid module name, if one of the files exists, or if the
    name is already in use. A module whose name is in use could not be imported, played or run.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is not a valid module name; use small letters, digits and _, as in 'my_game'"
        )
    cls = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}
    files = {f"{name}.py": MODULE, f"test_{name}.py": TEST, f"{name}.yaml": CONFIG}
    paths = {folder / file: template for file, template in files.items()}
    # Paths and name are checked before the first write, so an error leaves no file behind.
    existing = [str(path) for path in paths if path.exists()]
    if existing:
        raise ConfigError(
            f"These files already exist: {', '.join(existing)}. Choose another name or folder"
        )
    taken = _taken(name, cls)
    if taken:
        raise ConfigError(
            f"The name {name!r} is taken, because {taken}; choose another name, as in 'my_{name}'"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for path, template in paths.items():
        path.write_text(template.substitute(words), encoding="utf-8")
    return list(paths)


def _taken(name: str, cls: str) -> str:
    """Describe the existing use of a name, or "" if it is not in use."""
    if name in libraries():
        return (
            f"env_type {name}:… names games of a library of that name (`spa env list --libraries`)"
        )
    if name in sys.stdlib_module_names:
        return "Python has a standard module of that name"
    # `packages_distributions` maps from module names, which may differ from the names of
    # distributions.
    if name == "spa" or name in packages_distributions():
        return "an installed package has a module of that name"
    if (CONFIGS / f"{name}.yaml").exists():
        return "a shipped configuration has that name (`spa config list`)"
    return f"{cls} is the tag of a shipped environment (`spa env list`)" if cls in cards() else ""
