"""`spa envs`: the environments, their ceilings, and samples of their puzzles."""

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from spa.commands.arguments import result_file, whole_number
from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.options import nearest
from spa.errors import ConfigError
from spa.install import install_hint
from spa.run.console import write_out
from spa.run.files import write_atomic


def main(args: list[str]) -> int:
    """Print the table of tags, sample puzzles, or measure cards anew. Raises ConfigError."""
    options = _parser().parse_args(args)
    if options.action == "list":
        _list(options.bridge)
        return 0
    cfg = load_config(options.config)
    if options.action == "sample":
        _sample(options, cfg)
    elif options.action == "measure":
        _measure(options, cfg, shlex.join(["spa", "envs", *args]))
    else:
        _table(cfg)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spa envs", description="The environments and what is known about them.")
    parser.add_argument("--config", default="base", help="the configuration that defines the tags")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    sample = actions.add_parser("sample", help="print puzzles of a tag")
    sample.add_argument("tag")
    sample.add_argument("-n", type=whole_number, default=1, help="how many puzzles")
    sample.add_argument("--seed", type=whole_number, default=0, help="seed of the first one; the others follow")
    sample.add_argument("--json", action="store_true", help="one JSON object per line: seed, state, optimal_steps")
    sample.add_argument("--state-text", choices=["grid", "coords", "grid_and_coords"], default="grid")
    listing = actions.add_parser("list", help="list the tasks of another library, for env_type LIBRARY:TASK")
    listing.add_argument("bridge", nargs="?", metavar="LIBRARY", help="all libraries if none is named")
    measure = actions.add_parser("measure", help="measure cards on the first 1,000 puzzles of each tag")
    measure.add_argument("tags", nargs="*", help="all tags if none is named")
    measure.add_argument("--write", metavar="FILE", help="write the cards to this file instead of printing them")
    return parser


def _list(bridge: str | None) -> None:
    from spa.envs.bridges import BRIDGES, list_tasks

    if bridge is None:
        width = max(map(len, BRIDGES))
        for name, row in BRIDGES.items():
            needs = f", with {install_hint(row.extra)}" if row.extra else ""
            write_out(f"{name:<{width}}  {row.says}{needs}\n")
        return
    if bridge not in BRIDGES:
        raise ConfigError(f"no bridge to {bridge!r}; {nearest(bridge, BRIDGES)}")
    write_out("".join(f"{bridge}:{task}\n" for task in list_tasks(bridge)))


def _table(cfg: Config) -> None:
    from spa.envs.cards import cards

    rows: list[tuple[str, ...]] = [("tag", "type", "cap", "optimum", "random", "score", "by", "options")]
    known = cards()
    for tag, spec in cfg.custom_envs.items():
        found, cap, most = known.get(tag), spec.max_actions_per_traj, cfg.most_actions(tag)
        if found is None or not found.describes(spec.env_type, spec.env_config, cap):
            figures = ["?", "?", "?", "not measured"]
        else:
            best = "-" if found.optimum is None else f"{found.optimum:.1%}"
            figures = [best, f"{found.random_success:.1%}", f"{found.random_score:.2f}", found.optimum_by]
        options = " ".join(f"{name}={_short(value)}" for name, value in (spec.env_config or {}).items())
        rows.append((tag, spec.env_type, str(cap) if most == cap else f"{cap} ({most})", *figures, options))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:  # the last column is as long as it is: a narrow terminal breaks only that one
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        write_out("  ".join(cells).rstrip() + "\n")
    write_out(
        "\ncap: actions that an episode may take (and what its turns hold, if that is less); optimum: success of the "
        "best policy\nwithin the cap; random and score: success and score of uniformly random legal actions. All on "
        "the\npuzzles of seeds 0 to 999. spa envs sample TAG prints puzzles, measure TAG measures them; spa play TAG "
        "plays\none; spa envs list names other libraries' tasks.\n"
    )


def _short(value: object) -> str:
    return "{...}" if isinstance(value, Mapping) else str(value)


def _sample(options: argparse.Namespace, cfg: Config) -> None:
    from spa.envs.registry import make_env

    spec = cfg.environment(options.tag)
    env = make_env(spec.env_type, spec.env_config)
    for seed in range(options.seed, options.seed + options.n):
        env.reset(seed=seed)
        state, steps = env.state_text(options.state_text), env.optimal_steps()
        if options.json:
            text = json.dumps({"seed": seed, "state": state, "optimal_steps": steps})
        else:
            best = "" if steps is None else f", {steps} steps at best"
            text = f"{options.tag}, seed {seed}{best}\n{state}\n"
        write_out(text + "\n")


def _measure(options: argparse.Namespace, cfg: Config, command: str) -> None:
    from spa.envs.cards import measure, to_json

    target, found = result_file(Path(options.write)) if options.write else None, {}
    for tag in options.tags or cfg.custom_envs:
        spec = cfg.environment(tag)
        found[tag] = measure(tag, spec.env_type, spec.env_config, spec.max_actions_per_traj)
        sys.stderr.write(f"{tag}: optimum {found[tag].optimum}, random {found[tag].random_success}\n")
    text = to_json(found, command)
    if target is not None:
        write_atomic(target, [text])
    else:
        write_out(text)
