"""`spa env list`, `show` and `sample`: list environments, show their limits and reference scores,
and print puzzles."""

import argparse
import inspect
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spa.commands.arguments import ENVIRONMENTS, add_environment, say, whole_number
from spa.errors import ConfigError
from spa.run.console import write_out
from spa.tables import Table

if TYPE_CHECKING:  # the configuration is slow to import, and `--help` does not need it
    from spa.config.schema import Config


def list_environments_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env list` to `parser`."""
    parser.add_argument(
        "library",
        nargs="?",
        metavar="LIBRARY",
        help="library whose games are listed (default: list the tags of the configuration)",
    )
    parser.add_argument("--libraries", action="store_true", help="list the libraries")
    parser.add_argument("--config", default="base", metavar="CONFIG", help=ENVIRONMENTS)


def list_environments(options: argparse.Namespace) -> int:
    """Print the environment tags of a configuration, all libraries, or the games of one library.
    Raises ConfigError for an unknown library."""
    from spa.config.load import load_config
    from spa.envs.registry import libraries, library_named, list_tasks
    from spa.errors import nearest
    from spa.install import install_hint

    if options.libraries:
        known = {name: library_named(name) for name in libraries()}
        needs = {
            name: f", with {install_hint(example.extra)}"
            for name, example in known.items()
            if example.extra
        }
        examples = [
            (name, example.summary + needs.get(name, "")) for name, example in known.items()
        ]
        Table(("", ""), examples).print()
        return 0
    library = options.library
    if library is None:
        _table(load_config(options.config))
        return 0
    if library not in libraries():
        raise ConfigError(
            f"there is no library {library!r}; `spa env list --libraries` prints all libraries; "
            f"{nearest(library, libraries())}"
        )
    write_out("".join(f"{library}:{task}\n" for task in list_tasks(library)))
    return 0


def show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env show` to `parser`."""
    add_environment(parser)


def show(options: argparse.Namespace) -> int:
    """Print the type, options, limits, actions, reference scores and rules of an environment, and
    its puzzle with seed 0. Raises ConfigError for an unknown environment."""
    from spa.api.environments import find_spec
    from spa.config.load import load_config
    from spa.envs.cards import card_with, share
    from spa.envs.registry import make_env

    cfg = load_config(options.config)
    spec = find_spec(options.tag, cfg)
    env = make_env(spec.env_type, spec.env_config)
    env.reset(seed=0)
    most = (
        cfg.most_actions(options.tag)
        if options.tag in cfg.custom_envs
        else spec.max_actions_per_traj
    )
    # Reference scores are valid only for the settings with which they were measured.
    card = card_with(options.tag, spec.env_type, spec.env_config, most)
    about = " ".join(
        inspect.cleandoc(type(env).__doc__ or "no docstring").partition("\n\n")[0].split()
    )
    fit = f"; its turns hold {most} actions" if most < spec.max_actions_per_traj else ""
    lines = [
        f"{options.tag}: {about}",
        f"type: {spec.env_type}",
        f"options: {', '.join(f'{name}={value}' for name, value in (spec.env_config or {}).items()) or 'none'}",
        f"actions: {', '.join(env.action_names()) or 'free text'}",
        (
            f"limits: {spec.max_actions_per_traj} actions and {spec.max_turn or cfg.agent_proxy.max_turn} "
            f"turns per episode{fit}"
        ),
    ]
    if card is not None:
        best = "unknown" if card.optimum is None else f"{card.optimum:.1%}"
        lines.append(
            f"success rate on the puzzles with seeds 0 to 999 within {most} actions: "
            f"optimum {best}, random play {card.random_success:.1%}, "
            f"greedy walk {share(card.walk_success)}, one-step look-ahead {share(card.look_ahead_success)}"
        )
    return say(
        [
            *lines,
            "",
            spec.env_instruction or env.instruction(cfg.state_text),
            "",
            "Puzzle with seed 0:",
            env.state_text(cfg.state_text),
        ]
    )


def sample_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env sample` to `parser`."""
    add_environment(parser)
    parser.add_argument(
        "-n",
        type=whole_number,
        default=1,
        metavar="N",
        help="number of puzzles to print (default: 1)",
    )
    parser.add_argument(
        "--seed",
        type=whole_number,
        default=0,
        metavar="N",
        help="seed of the first puzzle; the following puzzles use the next seeds",
    )
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object per line, with the keys seed, state and optimal_steps",
    )
    parser.add_argument(
        "--state-text", choices=["grid", "coords", "grid_and_coords"], default="grid"
    )


def sample(options: argparse.Namespace) -> int:
    """Print puzzles of an environment as text or JSON. Raises ConfigError for an unknown
    environment."""
    from spa.api.environments import make

    env = make(options.tag, config=options.config)
    for seed in range(options.seed, options.seed + options.n):
        env.reset(seed=seed)
        state = env.state_text(options.state_text)
        steps = env.optimal_steps()
        if options.json:
            text = json.dumps({"seed": seed, "state": state, "optimal_steps": steps})
        else:
            best = "" if steps is None else f", shortest solution {steps} steps"
            text = f"{options.tag}, seed {seed}{best}\n{state}\n"
        write_out(text + "\n")
    return 0


def _table(cfg: "Config") -> None:
    from spa.envs.cards import card_with, share
    from spa.plugins import plugins

    columns = (
        *("tag", "type", "cap", "optimum", "random", "walk", "look-ahead", "score", "by"),
        "options",
    )
    rows: list[tuple[str, ...]] = []
    for tag, spec in cfg.custom_envs.items():
        # The turn limits may allow fewer actions per episode than the environment does.
        most = cfg.most_actions(tag)
        scores = card_with(tag, spec.env_type, spec.env_config, most)
        if scores is None:
            figures = ["?", "?", "?", "?", "?", "not measured"]
        else:
            best = "-" if scores.optimum is None else f"{scores.optimum:.1%}"
            figures = [
                best,
                f"{scores.random_success:.1%}",
                share(scores.walk_success),
                share(scores.look_ahead_success),
                f"{scores.random_score:.2f}",
                scores.optimum_by,
            ]
        options = " ".join(
            f"{name}={_short(value)}" for name, value in (spec.env_config or {}).items()
        )
        rows.append((tag, spec.env_type, str(most), *figures, options))
    # Environment types of other packages that no tag uses are listed without reference scores.
    tagged = {spec.env_type for spec in cfg.custom_envs.values()}
    others = [name for name in plugins("envs") if name not in tagged]
    rows += [(name, name, "-", *"?????", "not measured", "") for name in others]
    Table(columns, rows, right=range(2, 8)).print()
    write_out(
        "\n"
        "cap is the largest number of actions per episode: max_actions_per_traj, or fewer if the "
        "turns hold fewer.\n"
        "optimum is the success rate of the best policy within the cap. random and score are the "
        "success rate and the score\n"
        "of uniformly random legal actions within the cap. walk follows the distance to the goal; "
        "look-ahead tries\n"
        "each action once on a copy of the game. All figures are measured on the puzzles with seeds 0 to 999.\n"
        "`spa env show TAG` prints details, and `spa env list --libraries` prints the names of other "
        "libraries.\n"
    )


def _short(value: object) -> str:
    return "{...}" if isinstance(value, Mapping) else str(value)
