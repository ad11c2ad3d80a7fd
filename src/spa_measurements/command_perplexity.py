"""`spa eval --state-perplexity`: the perplexity of states under a model, as grids and as
coordinates."""

import argparse
from pathlib import Path
from typing import Any

from spa.commands.arguments import result_file, say
from spa.run.console import write_out
from spa.tables import Table

# Games whose states can be written both as a grid and as coordinates.
DEFAULT_TAGS = ("SimpleSokoban", "FrozenLake", "Sudoku")


def evaluate_states(model: str, options: argparse.Namespace) -> None:
    """Measure the perplexity of states under a model, write the result and print a table. Raises
    SpaError for errors that the user can fix."""
    from spa.config.load import load_config
    from spa.recipes.policies import find_target
    from spa_measurements.measure_perplexity import measure_perplexity

    target = find_target(model)
    # Models without a configuration of their own use `base`, so that all of them are measured on
    # the same prompts.
    cfg = load_config(options.config or target.config or "base", options.overrides)
    states = options.states or 100
    folder = (target.run or Path(cfg.trainer.run_dir)) / "eval"
    output = Path(options.output or folder / f"{target.label}-perplexity.json")
    if options.dry_run:
        write_out(
            f"The command would measure {states} states per environment and write {output}.\n"
        )
        return
    tags = tuple(dict.fromkeys(options.tags or ())) or DEFAULT_TAGS
    result = measure_perplexity(
        cfg, target.model or target.name, tags, output=result_file(output), states=states
    )
    print_result(result)
    write_out(f"result: {output}\n")


def print_result(result: dict[str, Any]) -> None:
    """Print one line per environment and state rendering. Only the result file contains the
    intervals."""
    rows = []
    for tag, texts in result["tags"].items():
        for text, metrics in texts.items():
            alone = metrics["alone"]
            shown = metrics["in the prompt"]
            mark = " *" if shown["worse_than_guessing"] else ""
            cells = [
                f"{item['mean']:.1f}"
                for item in (alone["per_token"], shown["per_token"], shown["per_symbol"])
            ]
            rows.append((tag, text, *cells, f"{shown['distinct_symbols']}{mark}"))
    columns = ("environment", "text", "alone", "in the prompt", "per symbol", "symbols")
    Table(columns, rows, right=range(2, 6)).print(f"State perplexity under {result['model']}")
    say(
        [
            "The columns alone and in the prompt show the perplexity per token, as a mean over "
            f"{result['states']} states.",
            "The column per symbol shows the perplexity in the prompt per grid character, word, number "
            "or cell. The column symbols counts distinct symbols; * marks a model that is worse than "
            "uniform guessing among these symbols.",
        ]
    )
