"""`spa env measure`: measure reference scores of environments, and estimate whether training a
model in one could help."""

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spa.commands.arguments import ENVIRONMENTS, result_file
from spa.errors import ConfigError
from spa.run.console import write_out

if TYPE_CHECKING:  # slow to import, and `--help` does not need them
    from spa.config.schema import Config
    from spa_author.verdict import Measured


def measure_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env measure`."""
    parser.add_argument(
        "tags",
        nargs="*",
        metavar="ENV",
        help="environments to measure: tags, or with --model one tag, environment type or your own class as "
        "module:Class (default: all tags of the configuration; with base, also the tags of all presets)",
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="also measure whether training this model could help: a Hub name, a folder, smollm2 or builtin:tiny",
    )
    parser.add_argument(
        "--minutes",
        type=_minutes,
        default=30.0,
        metavar="N",
        help="minutes that the measurement with --model may take (default: 30)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="JSON file for the result (default: print the scores; with --model, a file in runs/measure)",
    )
    parser.add_argument("--config", default="base", metavar="CONFIG", help=ENVIRONMENTS)


def _minutes(text: str) -> float:
    """Parse a positive number of minutes, as a `type` of argparse."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no positive number; give minutes above 0")
    return value


def measure(options: argparse.Namespace) -> int:
    """Measure the reference scores of environments on the puzzles of seeds 0 to 999. With --model,
    measure one environment with a model instead. Returns the exit status. Raises ConfigError for
    unknown environments or an unusable output file."""
    if options.model is not None:
        return _with_model(options)
    from spa.config.load import load_config
    from spa.envs.cards import Card, card_with
    from spa.run.files import write_atomic
    from spa_author import cards

    cfg = load_config(options.config)
    # Checked first, so that no measurement is lost because the file cannot be written.
    target = result_file(Path(options.output)) if options.output else None
    measured: list[Card] = []
    for own, tag in _measured(cfg, options):
        spec = own.environment(tag)
        most = own.most_actions(tag)
        if card_with(tag, spec.env_type, spec.env_config, most, among=measured):
            continue
        found = cards.measure(tag, spec.env_type, spec.env_config, most)
        measured.append(found)
        shown = (
            "unknown (implement optimal_steps or best_success in the environment)"
            if found.optimum is None
            else found.optimum
        )
        # Progress goes to stderr, because stdout may be a JSON file.
        sys.stderr.write(
            f"{tag}: success rate of the optimum {shown}, of random play {found.random_success} "
            f"within {most} actions\n"
        )
    config = [] if options.config == "base" else ["--config", options.config]
    output = ["--output", options.output] if options.output else []
    # The file records the command that recreates it.
    text = cards.to_json(
        measured, shlex.join(["spa", "env", "measure", *options.tags, *output, *config])
    )
    if target is not None:
        write_atomic(target, [text])
    else:
        write_out(text)
    return 0


def _measured(cfg: "Config", options: argparse.Namespace) -> "Iterator[tuple[Config, str]]":
    """Yield (configuration, tag) for each tag to measure."""
    from spa.config.load import PARTS, config_names, load_config

    for tag in options.tags or cfg.custom_envs:
        yield cfg, tag
    # The shipped reference scores also cover tags that a preset uses with other options or turn
    # limits.
    if not options.tags and options.config == "base":
        for name in config_names():
            if name in PARTS:
                continue
            own = load_config(name)
            played = (own.es_manager.train, own.es_manager.val)
            for tag in dict.fromkeys(tag for part in played for tag in part.env_configs.tags):
                yield own, tag


def _with_model(options: argparse.Namespace) -> int:
    """Measure one game with a model, print each part as soon as it is measured, then print and save
    the verdict. If interrupted, the finished parts are saved."""
    import tempfile
    from dataclasses import asdict
    from time import monotonic

    begin = monotonic()

    from spa.api.environments import find_spec
    from spa.config.load import load_config
    from spa.recipes.policies import slug
    from spa.run.console import ensure_logging
    from spa.run.files import write_atomic
    from spa_author.measure import measure as fill
    from spa_author.verdict import Measured, verdict

    if len(options.tags) != 1:
        raise ConfigError(
            f"spa env measure --model measures one environment, and {len(options.tags)} are named; name one"
        )
    (game,) = options.tags
    cfg = load_config(options.config)
    spec = find_spec(game, cfg)
    most = cfg.most_actions(game) if game in cfg.custom_envs else spec.max_actions_per_traj
    name = f"{slug(game)}-{slug(options.model)}.json"
    path = result_file(Path(options.output or Path("runs", "measure", name)))
    ensure_logging()
    found = Measured(game=game, model=options.model, minutes=options.minutes, max_actions=most)
    printed = list[str]()

    def tell() -> None:
        for title, rows in _parts(found):
            if title not in printed:
                printed.append(title)
                _print(title, rows)

    try:
        with tempfile.TemporaryDirectory(prefix="spa-") as folder:
            fill(found, spec, Path(folder), tell, begin=begin)
    finally:
        # The reference policies are measured first. Without them there is nothing to save.
        if found.random is not None:
            tell()
            sentences = verdict(found)
            rows = zip(("known:", "bottleneck:", "train:"), sentences, strict=True)
            write_out("".join(f"{label} {sentence}\n" for label, sentence in rows))
            write_atomic(path, [json.dumps({**asdict(found), "verdict": sentences}, indent=1)])
            write_out(f"\nresult: {path} ({found.seconds:.0f} s)\n")
    return 0


def _print(title: str, rows: list[tuple[str, str]]) -> None:
    from spa.tables import Table

    write_out(f"{title}\n")
    Table(("", ""), [(f"  {name}", value) for name, value in rows], right=[1]).print()
    write_out("\n")
    sys.stdout.flush()


def _parts(found: "Measured") -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the title and table rows of each finished part of the measurement."""
    from spa_author.verdict import percent

    parts = [
        (
            f"Success without a model, on {found.reference_puzzles} puzzles, at most {found.max_actions} actions",
            [
                ("random play", percent(found.random)),
                ("walk", percent(found.walk)),
                ("one-step look-ahead (true game)", percent(found.look_ahead)),
                ("optimum", percent(found.optimum)),
            ],
        )
    ]
    if found.copy is not None:
        kind = "single moves" if not found.full_states else "next states in full"
        parts.append(
            (
                f"Predictions of {found.model} after SFT (steps: {found.sft_steps}; examples: {found.examples:,} "
                f"{kind}), on {found.held_out} held-out moves",
                [
                    ("right next states", percent(found.right)),
                    ("copy baseline", percent(found.copy)),
                    ("right, of moves that change the state", percent(found.right_if_changed)),
                ],
            )
        )
    if found.puzzles:
        parts.append(
            (
                f"Success of planning with these predictions, on {found.puzzles} puzzles",
                [
                    ("breadth-first search", percent(found.search)),
                    ("one-step look-ahead", percent(found.search_ahead)),
                ],
            )
        )
    elif found.no_planning:
        parts.append((f"Planning with these predictions: not available ({found.no_planning})", []))
    return parts
