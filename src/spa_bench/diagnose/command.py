"""`spa diagnose`: find problems in the rollouts of any training stack."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spa.commands.arguments import ENVIRONMENTS, result_file
from spa.errors import ConfigError
from spa.run.console import write_out

if TYPE_CHECKING:
    from spa_bench.diagnose.replay import Game

# An environment type without a tag has no limits, so all recorded actions are played.
NO_LIMIT = 10**9


def diagnose_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa diagnose` to `parser`."""
    parser.add_argument(
        "rollouts",
        metavar="ROLLOUTS",
        help="file of rollouts (.jsonl, .json or .parquet), or a folder of such files",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="model that sampled the rollouts: `spa` then also checks masks and tokens",
    )
    parser.add_argument(
        "--env",
        metavar="ENV",
        help="environment tag or type (such as gymnasium:FrozenLake-v1): `spa` then replays the rollouts that have a "
        "seed, and checks the predicted states",
    )
    parser.add_argument(
        "--config",
        default="base",
        metavar="CONFIG",
        help=ENVIRONMENTS,
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="also write the findings to this HTML file"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")


def diagnose(options: argparse.Namespace) -> int:
    """Print the findings. Returns 0 even if there are problems.

    Raises DataError for unusable rollouts, ModelError for an unusable `--model`, and ConfigError
    for an unusable `--env` or override.
    """
    overrides = options.overrides
    from spa_bench.diagnose.findings import diagnose as find_problems
    from spa_bench.diagnose.rollouts import read_rollouts

    page = None if options.html is None else result_file(options.html)
    game = None if options.env is None else game_of(options.env, options.config, overrides)
    if game is None and overrides:
        raise ConfigError(
            f"{overrides[0]} changes an environment, but there is no --env. Add --env, or leave out the override."
        )
    rollouts = read_rollouts(options.rollouts)
    tokenizer = None
    if options.model:
        from spa.models.load import load_tokenizer

        tokenizer = load_tokenizer(options.model)
    report = find_problems(rollouts, tokenizer, game)
    if page is not None:
        from spa_bench.diagnose.page import diagnosis_page
        from spa_report.build import write_text

        write_text(page, diagnosis_page(report, options.rollouts), "--html")
    write_out(json.dumps(report, indent=1) + "\n" if options.json else _text(report))
    if page is not None and not options.json:
        write_out(f"{page}\n")
    return 0


def diagnose_run(folder: Path) -> list[str]:
    """Describe why the reward of a run does not rise, as lines for `spa doctor RUN`. Raises
    DataError if the folder has no run."""
    from spa_bench.diagnose.runs import reward_lines

    return reward_lines(folder)


def game_of(name: str, config: str, overrides: list[str]) -> "Game":
    """Return the game of an environment tag with its limits, or of an environment type without
    limits. Raises ConfigError for an unknown name or a game with several players."""
    from spa.config.load import load_config
    from spa.envs.registry import make_env
    from spa_bench.diagnose.replay import Game

    cfg = load_config(config, overrides)
    spec = cfg.custom_envs.get(name)
    env = make_env(name, {}) if spec is None else make_env(spec.env_type, spec.env_config)
    if env.players > 1:
        raise ConfigError(
            f"{name} has {env.players} players, but `spa diagnose` replays games of one player alone. Leave out --env."
        )
    return Game(
        env=env,
        state_text=cfg.state_text,
        action_sep=cfg.action_sep(name),
        max_actions_per_turn=NO_LIMIT if spec is None else cfg.agent_proxy.max_actions_per_turn,
        max_actions_per_traj=NO_LIMIT if spec is None else spec.max_actions_per_traj,
        others=frozenset() if spec is None else frozenset(cfg.custom_envs) - {name},
    )


def _text(report: dict[str, Any]) -> str:
    stacks = ", ".join(f"{name} {count}" for name, count in report["stacks"].items())
    score = report["rewards"]
    model = report["world_model"]
    bits = report["collapse"]
    lines = [f"{report['rollouts']} rollouts ({stacks}), {report['format']['responses']} responses"]
    if score["mean"] is not None:
        lines.append(f"mean reward {score['mean']:.3f}, standard deviation {score['std']:.3f}")
    if score["by_turn"]:
        lines.append(
            "mean reward by turn: " + ", ".join(f"{value:.3f}" for value in score["by_turn"])
        )
    if replay := report["replay"]:
        agree = replay["played"] - len(replay["differ"]) - replay["unchecked"]
        lines.append(
            f"{replay['played']} rollouts were replayed in the environment, and {agree} replays "
            "match the recorded rollout to the end"
        )
    lines += [
        f"{model[f'{name}_right']} of {model[name]} {name}s are correct"
        for name in ("observation", "prediction")
        if model.get(name)
    ]
    lines += [
        f"correct predictions by {label}: " + ", ".join(map(_drift_text, rows))
        for name, label in (("by_actions", "number of actions ahead"), ("by_turn", "turn"))
        if (rows := report["drift"][name])
    ]
    if model.get("prediction"):
        lines += _likelihood_lines(report["state_likelihood"])
    lines.append(
        f"{report['repetition']['mean']:.1%} of the four-word sequences in responses are repetitions"
    )
    if bits:
        lines.append(
            f"the first responses have an entropy of {bits['entropy']:.2f} bits, and mutual information of "
            f"{bits['information']:.2f} bits with the prompt"
        )
    lines += (
        ["", *(f"! {text}" for text in report["findings"])]
        if report["findings"]
        else ["", "No problems found."]
    )
    if report["reward"]:
        lines += ["", "What holds the reward back, causes first:"]
        lines += [f"{number}. {text}" for number, text in enumerate(report["reward"], 1)]
    return "\n".join(lines) + "\n"


def _drift_text(example: dict[str, Any]) -> str:
    # Show the copy baseline only if it was counted for all of these predictions.
    beside = (
        f" (copy baseline {example['copy_right']})"
        if example.get("with_states") == example["predictions"]
        else ""
    )
    return f"{example['at']}: {example['right']} of {example['predictions']}{beside}"


def _likelihood_lines(known: dict[str, Any]) -> list[str]:
    """Describe whether cross-entropy fell through learned dynamics or through copying, or why that
    cannot be determined."""
    if known["why_not"]:
        return [
            f"the cross-entropy is not split into changed and copied tokens, because {known['why_not']}"
        ]
    return [
        f"cross-entropy of predicted states{f' ({split})' if split else ''} fell by {part['total']:.3f} nats per "
        f"token: {part['changed']:.3f} on changed tokens, {part['copied']:.3f} on copied tokens, "
        f"{part['mixture']:.3f} because the share of copied tokens grew"
        for split, part in known["falls"].items()
    ]
