"""The start of an environment of one's own: a small game that works, its test, and its
configuration."""

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

from spa.envs.base import StateText, TextEnv
from spa.envs.labels import action_index, label_space
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
        sentence = f"Player (P) is at {self.player}; door (D) is at {self.door}."
        return {"grid": grid, "coords": sentence}.get(mode, f"{grid}\\n{sentence}")

    def puzzle_text(self) -> str:
        return f"{self.length} {self.start} {self.door}"  # the whole puzzle, in every state

    def action_names(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def instruction(self, mode: StateText) -> str:
        return f"You are in a corridor of {self.length} cells, counted from 0 on the left. Walk to the door."
''')
TEST = Template('''from spa_author.checker import check

from $name import $cls


def test_$name():
    """Every rule of an environment; a failure says what and why."""
    findings = check($cls)
    assert [finding for finding in findings if not finding.ok] == []


def test_the_door_is_reached():
    env = $cls(length=3)
    env.reset(seed=0)
    env.player, env.door = 0, 2
    assert env.step(env.to_action("right"))[1:3] == (0.0, False)
    assert env.step(env.to_action("right"))[1:3] == (1.0, True)
''')
CONFIG = Template("""# spa run $name.yaml trains SmolLM2 on $cls. What is not set here comes from smol.
defaults:
  - smol
  - _self_

custom_envs:
  $cls:
    env_type: $name:$cls
    # An episode ends after this many actions, or after max_turn turns: smol has 3 turns of 2 actions.
    # With 5 turns all 10 actions can be played.
    max_actions_per_traj: 10
    # max_turn: 5
    max_tokens: 100
    env_config: {length: 8}

# agent_proxy:
#   max_actions_per_turn: 2

trainer:
  experiment_name: $name

es_manager:
  train:
    env_configs:
      tags: [$cls]
  val:
    env_groups: 16  # puzzles that training leaves out, so fewer than the game has
    env_configs:
      tags: [$cls]
""")


def write_env(name: str, folder: Path) -> list[Path]:
    """Write `name.py`, `test_name.py` and `name.yaml` into `folder` and return their paths.

    Raises ConfigError if `name` is not a module name, if one of the files exists, or if the name
    is taken, so that the new module could not be imported, played or run.
    """
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise ConfigError(
            f"{name!r} is not a valid module name; use small letters, digits and _, as in 'my_game'"
        )
    cls = "".join(part.capitalize() for part in name.split("_"))
    words = {"name": name, "cls": cls, "title": name.replace("_", " ").capitalize()}
    files = {f"{name}.py": MODULE, f"test_{name}.py": TEST, f"{name}.yaml": CONFIG}
    paths = {folder / file: template for file, template in files.items()}
    # Paths and name are checked before the first write, so a refusal leaves no file behind.
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
    """Describe the existing use of a name; "" if it is free."""
    if name in libraries():
        return (
            f"env_type {name}:… names games of a library of that name (`spa env list --libraries`)"
        )
    if name in sys.stdlib_module_names:
        return "Python has a standard module of that name"
    # `packages_distributions` lists modules; a distribution may have another name than its module.
    if name == "spa" or name in packages_distributions():
        return "an installed package has a module of that name"
    if (CONFIGS / f"{name}.yaml").exists():
        return "a shipped configuration has that name (`spa config list`)"
    return f"{cls} is the tag of a shipped environment (`spa env list`)" if cls in cards() else ""
