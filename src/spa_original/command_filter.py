"""`spa data filter`: keep the world-model examples that have all tags."""

import argparse
from pathlib import Path

from spa.run.console import write_out


def filter_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa data filter` to `parser`. They match the arguments of the
    original's script."""
    parser.description = (
        "Keep the examples whose response has a think block before an answer block. The think block "
        "must contain an observation and then a prediction. Write wm_train.parquet and "
        "wm_val.parquet."
    )
    parser.add_argument(
        "--in-train",
        type=Path,
        required=True,
        metavar="FILE",
        help="file with training examples (.parquet, .jsonl or .json)",
    )
    parser.add_argument(
        "--in-val",
        type=Path,
        required=True,
        metavar="FILE",
        help="file with validation examples (.parquet, .jsonl or .json)",
    )
    parser.add_argument(
        "--out-dir",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for the filtered files",
    )
    parser.add_argument(
        "--min-len",
        type=int,
        metavar="N",
        help="length of the shortest response to keep, in characters",
    )
    parser.add_argument(
        "--max-len",
        type=int,
        metavar="N",
        help="length of the longest response to keep, in characters",
    )
    parser.add_argument(
        "--no-dedup",
        action="store_true",
        help="keep duplicate examples (equal prompt and equal response)",
    )


def filter_data(options: argparse.Namespace) -> int:
    """Filter the files, print one line for each, and return 0. Raises DataError or ConfigError for
    invalid files or bounds."""
    from spa.worldmodel.examples import by_reason
    from spa_original.tag_filter import KEPT, FilterOptions, filter_files

    bounds = FilterOptions(
        min_len=options.min_len, max_len=options.max_len, dedup=not options.no_dedup
    )
    for name, counts in filter_files(
        options.in_train, options.in_val, options.out_dir, bounds
    ).items():
        dropped = {reason: count for reason, count in sorted(counts.items()) if reason != KEPT}
        # `counts` includes the kept examples, so its total is the number of all examples in the
        # input.
        line = f"{options.out_dir / name}: kept {counts[KEPT]} of {counts.total()} examples"
        write_out(f"{line} (dropped: {by_reason(dropped)})\n" if dropped else f"{line}\n")
    return 0
