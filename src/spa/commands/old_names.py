"""Old names of commands, read for one version: each becomes the new command, and one line on stderr
names it."""

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from spa.commands.arguments import is_override


def new_words(args: Sequence[str]) -> list[str] | None:
    """The new command that an old one means; None if the command is not an old one."""
    name = args[0]
    if name in RENAMED:
        return [*RENAMED[name].split(), *args[1:]]
    if name in CHANGED:
        return CHANGED[name](list(args[1:]))
    # `eval` is also the name of a new command. Only the arguments tell the two apart.
    if name == "eval":
        return _eval(list(args[1:]))
    return None


def notice(args: Sequence[str], new: Sequence[str]) -> str:
    """The line that is printed."""
    what = (
        "is an old command name"
        if args[0] != new[0]
        else "accepted other arguments in earlier versions"
    )
    return (
        f"`spa {args[0]}` {what}. This version still accepts the old form. Use the new form: "
        f"{shlex.join(['spa', *new])}\n"
    )


def _stage(stage: str) -> Callable[[list[str]], list[str]]:
    return lambda args: ["run", *_after_first(args, ["--stages", stage])]


def _after_first(args: list[str], more: list[str]) -> list[str]:
    """`more` after the first word that is no option: `tiny --dry-run` becomes `tiny --stages ppo
    --dry-run`."""
    words = _positional(args)
    place = words[0] + 1 if words else len(args)
    return [*args[:place], *more, *args[place:]]


def _baseline(args: list[str]) -> list[str]:
    # The second word was the method: `baseline CONFIG vanilla`.
    words = _positional(args)
    method = args[words[1]] if len(words) > 1 else "vanilla"
    rest = [arg for place, arg in enumerate(args) if place not in words[1:2]]
    return ["run", *_after_first(rest, ["--method", method])]


def _try(args: list[str]) -> list[str]:
    from spa.config.load import choices

    new = ["compare"]
    for arg in args:
        # `try CONFIG key=a,b`: an override with several values becomes a sweep. One with a single
        # value remains an override.
        several = is_override(arg) and not arg.startswith("~") and len(choices(arg)[1]) > 1
        new += ["--sweep", arg] if several else ["--output-dir" if arg == "--root" else arg]
    return new


def _ablate(args: list[str]) -> list[str]:
    if "--list" in args:
        return ["config", "list", "methods"]
    words = _positional(args)
    if not words:
        return ["compare", *args]
    # An ablation is a comparison with spa as its reference.
    name = args.pop(words[0])
    return ["compare", *_after_first(args, ["--methods", name if name == "spa" else f"spa,{name}"])]


def _eval(args: list[str]) -> list[str] | None:
    """`eval MODEL CONFIG` without `--config`: the configuration is a YAML file or a shipped name."""
    words = _positional(args)
    if len(words) < 2 or any(arg.partition("=")[0] == "--config" for arg in args):
        return None
    from spa.config.load import config_names

    last = args[words[-1]]
    # A folder is one more policy: the folder of a run has a configuration, too.
    if not last.endswith((".yaml", ".yml")) and (last not in config_names() or Path(last).is_dir()):
        return None
    rest = [arg for place, arg in enumerate(args) if place != words[-1]]
    return ["eval", *_after_first(rest, ["--config", last])]


def _eval_world_model(args: list[str]) -> list[str]:
    renamed = ["--rollout-steps" if arg == "--steps" else arg for arg in args]
    _, *rest = _eval(renamed) or ["eval", *renamed]
    return ["eval", *_after_first(rest, ["--world-model"])]


def _state_perplexity(args: list[str]) -> list[str]:
    words = _positional(args)
    tags = [args[place] for place in words[1:]]
    rest = [arg for place, arg in enumerate(args) if place not in words[1:]]
    return [
        "eval",
        *_after_first(rest, ["--state-perplexity", *(["--tags", ",".join(tags)] if tags else [])]),
    ]


def _envs(args: list[str]) -> list[str]:
    # `envs --config C ACTION`: the old command accepted the option before the action. The new
    # command takes it after the action.
    config = []
    if args[:1] == ["--config"]:
        config = args[:2]
        args = args[2:]
    # `envs` alone printed the table; `envs list` alone listed libraries.
    action, *rest = args or ["table"]
    if action == "table" or action.startswith("-"):
        return ["env", "list", *config, *([action] if action.startswith("-") else []), *rest]
    if action == "list" and not rest:
        return ["env", "list", "--libraries"]
    return ["env", action, *rest, *config]


def _prompt(args: list[str]) -> list[str]:
    words = _positional(args)
    config = ["--config", args[words[1]]] if len(words) > 1 else []
    return [
        "env",
        "prompt",
        *_after_first([arg for place, arg in enumerate(args) if place not in words[1:2]], config),
    ]


TAKE_A_VALUE = (
    "--config", "--gpu-memory", "--groups", "--k", "--method", "--mode", "--output", "--parallel", "--plan", "--prices",
    "--rollout-steps", "--root", "--samples", "--seed", "--seeds", "--states", "--steps", "--transitions",
)  # fmt: skip
"""Options of old commands that are followed by a value."""


def _positional(args: Sequence[str]) -> list[int]:
    """The places of the arguments that are neither options, nor their values, nor overrides."""
    return [
        place
        for place, arg in enumerate(args)
        if not arg.startswith("-")
        and not is_override(arg)
        and (place == 0 or args[place - 1] not in TAKE_A_VALUE)
    ]


RENAMED = {
    "reproduce": "bench paper",
    "bench-methods": "bench methods",
    "credit-lab": "bench estimators",
    "play": "env play",
    "serve": "env serve",
    "shop": "env shop",
    "new-env": "env new",
    "check-env": "env check",
    "filter": "data filter",
    "push": "model push",
    "pull": "model pull",
    "import-gguf": "model import-gguf",
    "pretrain-tiny": "model pretrain-tiny",
}
"""Old names that only moved."""

CHANGED: dict[str, Callable[[list[str]], list[str]]] = {
    "generate": _stage("selfplay"),
    "sft": _stage("sft"),
    "ppo": _stage("ppo"),
    "baseline": _baseline,
    "try": _try,
    "ablate": _ablate,
    "eval-world-model": _eval_world_model,
    "state-perplexity": _state_perplexity,
    "envs": _envs,
    "prompt": _prompt,
}
"""Old names whose arguments changed, too."""
