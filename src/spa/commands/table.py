"""All commands and their groups. Each command has a summary, an example, and the import path of the
function that runs it, so that this module loads fast."""

from collections import UserDict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from spa.plugins import load_plugin, plugins


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command of `spa`.

    Attributes:
        summary: one line for the list of commands.
        target: `module:function` that runs the command. In the same module, `function_arguments`
            adds its arguments to a parser. For `spa diagnose`, `diagnose_run` returns the lines
            that `spa doctor RUN` prints.
        example: a call for the help text.
        overrides: whether the command takes `key=value`.
        resumes: whether repeating the command resumes interrupted work.
        group: heading in `spa --help` for a command of another package.
    """

    summary: str
    target: str
    example: str
    overrides: bool = False
    resumes: bool = False
    group: str = "Other packages"

    def load(self, suffix: str = "") -> Any:
        """Import and return the command's function, or the function with `suffix` appended to that
        name."""
        module, _, function = self.target.partition(":")
        return getattr(import_module(module), function + suffix)


def _registered() -> list[str]:
    """Return the names of other packages' commands, with spaces instead of dots: the entry point
    `env.serve` is the command `env serve`."""
    return [name.replace(".", " ") for name in plugins("commands")]


class _Commands(UserDict[str, Command]):
    """The built-in commands, followed by the commands of other packages. The `Command` of another
    package is imported only when it is looked up."""

    # A package that cannot be imported must not break `spa run`. Its `Command` is therefore
    # imported only to run it or to print a help text.
    def __missing__(self, words: str) -> Command:
        if words not in _registered():
            raise KeyError(words)
        return load_plugin("commands", words.replace(" ", "."))

    def __contains__(self, words: object) -> bool:
        return words in self.data or words in _registered()

    def __iter__(self) -> Iterator[str]:
        # dict.fromkeys lists a command once, even if another package registers a built-in name.
        return iter(dict.fromkeys((*self.data, *_registered())))

    def __len__(self) -> int:
        return len(list(iter(self)))


GROUPS: dict[str, tuple[str, ...]] = {
    "Train": ("run",),
    "Evaluate": ("eval",),
    "Look at results": (),
    "Environments": ("env",),
    "Models and data": ("model", "data"),
    "Setup": ("config", "doctor"),
}
"""The headings of `spa --help`, each with the built-in commands below it."""

_OURS: dict[str, Command] = {
    "run": Command(
        summary="run the training stages: self-play, world-model SFT and PPO",
        target="spa.commands.recipe:run",
        example="spa run demo --steps 20 --output-dir runs/short",
        overrides=True,
        resumes=True,
    ),
    "eval": Command(
        summary="measure Pass@k, or the accuracy of the world model",
        target="spa.commands.evaluate:evaluate",
        example="spa eval runs/demo/spa --samples 8",
        overrides=True,
        resumes=True,
    ),
    "env list": Command(
        summary="list the environments, or the games of another library",
        target="spa.commands.envs:list_environments",
        example="spa env list",
    ),
    "env show": Command(
        summary="show the rules, actions and limits of an environment",
        target="spa.commands.envs:show",
        example="spa env show FrozenLake",
    ),
    "env sample": Command(
        summary="print puzzles of an environment",
        target="spa.commands.envs:sample",
        example="spa env sample FrozenLake -n 3",
    ),
    "env prompt": Command(
        summary="print the prompt that a model receives",
        target="spa.commands.prompt:prompt",
        example="spa env prompt FrozenLake --config tiny --tokens",
        overrides=True,
    ),
    "config list": Command(
        summary="list the shipped configurations, or the methods of `spa compare`",
        target="spa.commands.config:list_names",
        example="spa config list",
    ),
    "config show": Command(
        summary="print a configuration with every value resolved",
        target="spa.commands.config:show",
        example="spa config show demo trainer.total_training_steps=20",
        overrides=True,
    ),
    "doctor": Command(
        summary="check the installation, the memory of a configuration, or what holds a run's reward back",
        target="spa.commands.doctor:doctor",
        example="spa doctor runs/demo",
        overrides=True,
    ),
}

COMMANDS = _Commands(_OURS)
"""All commands by name, such as `run` or `env list`."""


def groups() -> dict[str, tuple[str, ...]]:
    """Return the headings of `spa --help` with the commands below them, including commands of other
    packages. Headings without commands are left out."""
    by_name = dict(GROUPS)
    listed = {name for names in GROUPS.values() for name in names}
    for words in _registered():
        first = words.partition(" ")[0]
        # If the first word, such as `env`, is already listed, the command is one of its actions and
        # needs no group.
        if first not in listed:
            listed.add(first)
            group = COMMANDS[words].group
            by_name[group] = (*by_name.get(group, ()), first)
    return {group: names for group, names in by_name.items() if names}


def actions(name: str) -> list[str]:
    """Return the full names of the actions of a command, such as `env list` for `env`; empty if it
    has no actions."""
    return [words for words in COMMANDS if words.startswith(f"{name} ")]


def overview() -> str:
    """Return the text of `spa --help`."""
    lines = ["usage: spa COMMAND [arguments] [key=value ...]", ""]
    lines += [
        "Train LLM agents that learn a world model from self-play before reinforcement learning.",
        "",
    ]
    for group, names in groups().items():
        lines.append(f"{group}:")
        for name in names:
            inner = [words.partition(" ")[2] for words in actions(name)]
            lines.append(f"  {name:<10}{', '.join(inner) if inner else COMMANDS[name].summary}")
        lines.append("")
    lines += ["examples:"]
    lines += [f"  {COMMANDS[name].example}" for name in ("run", "eval", "env list")]
    lines += [
        "",
        "`spa COMMAND --help` explains a command. `key=value` changes a setting of the configuration.",
    ]
    return "\n".join(lines) + "\n"


def overview_of(name: str) -> str:
    """Return the help text of a command with actions, such as `spa env --help`."""
    subcommands = actions(name)
    width = max(map(len, subcommands))
    lines = [f"usage: spa {name} ACTION [arguments]", ""]
    lines += [f"  {words:<{width}}  {COMMANDS[words].summary}" for words in subcommands]
    lines += ["", "example:", f"  {COMMANDS[subcommands[0]].example}", ""]
    lines += [f"`spa {name} ACTION --help` explains an action."]
    return "\n".join(lines) + "\n"
