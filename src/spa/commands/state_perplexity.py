"""`spa state-perplexity`: how strange states are to a model, as drawings and with coordinates."""

import argparse
from pathlib import Path
from typing import Any

from spa.commands.arguments import add_verbosity, apply_verbosity, result_file, split_overrides
from spa.errors import ConfigError
from spa.run.console import write_out

DEFAULT_TAGS = ("SimpleSokoban", "FrozenLake", "Sudoku")


def main(args: list[str]) -> int:
    """Measure, write the result, print a table. Raises SpaError for what the user can solve."""
    words, overrides = split_overrides(args)
    options = _parser().parse_args(words)
    if options.states < 1:
        raise ConfigError(f"--states is {options.states}; it must be at least 1")
    from spa.config.load import load_config
    from spa.recipes import state_perplexity
    from spa.recipes.policies import slug

    apply_verbosity(options)
    cfg = load_config(options.config, overrides)
    output = result_file(Path(options.output or f"runs/eval/{slug(options.model)}-perplexity.json"))
    tags = tuple(dict.fromkeys(options.tags)) or DEFAULT_TAGS
    result = state_perplexity.main(cfg, options.model, tags, output=output, states=options.states)
    print_result(result)
    write_out(f"result: {output}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spa state-perplexity",
        description="Perplexity of states under a model: as drawings, as coordinates, and as both.",
    )
    parser.add_argument("model", metavar="MODEL", help="a Hub name, a folder, or builtin:tiny")
    parser.add_argument("tags", nargs="*", metavar="TAG", help=f"environment tags (default: {' '.join(DEFAULT_TAGS)})")
    parser.add_argument("--states", type=int, default=100, metavar="N", help="states per tag, reached by random play")
    parser.add_argument("--config", default="base", help="the configuration that defines the tags")
    parser.add_argument("--output", metavar="FILE", help="the result as JSON")
    add_verbosity(parser)
    return parser


def print_result(result: dict[str, Any]) -> None:
    """One line per environment and text. The intervals are in the file."""
    from rich.table import Table

    from spa.run.console import results_console

    console = results_console()
    table = Table(title=f"State perplexity under {result['model']}")
    for name in ("environment", "text"):
        table.add_column(name, no_wrap=True)
    for name in ("alone", "in the prompt", "per symbol", "symbols"):
        table.add_column(name, justify="right")
    for tag, texts in result["tags"].items():
        for text, found in texts.items():
            alone, shown = found["alone"], found["in the prompt"]
            mark = " *" if shown["worse_than_guessing"] else ""
            cells = [f"{item['mean']:.1f}" for item in (alone["per_token"], shown["per_token"], shown["per_symbol"])]
            table.add_row(tag, text, *cells, f"{shown['distinct_symbols']}{mark}")
    console.print(table)
    console.print(
        f"Per token, mean over {result['states']} states; per symbol: in the prompt, per character of a drawing,"
    )
    console.print("word, number or cell. symbols: different ones; *: the model is worse than guessing among them.")
