"""`spa filter`: keep the rows of existing world-model parquet files that have the state blocks."""

import argparse
from pathlib import Path

from spa.run.console import write_out
from spa.worldmodel.rows import by_reason
from spa.worldmodel.tag_filter import KEPT, FilterOptions, filter_files


def main(args: list[str]) -> int:
    """Run the filter with the original script's flags; prints one line per file to stdout and returns 0.

    Raises DataError or ConfigError for files or bounds that cannot be used.
    """
    options = _parser().parse_args(args)
    bounds = FilterOptions(min_len=options.min_len, max_len=options.max_len, dedup=not options.no_dedup)
    for name, counts in filter_files(options.in_train, options.in_val, options.out_dir, bounds).items():
        dropped = {reason: count for reason, count in sorted(counts.items()) if reason != KEPT}
        line = f"{options.out_dir / name}: kept {counts[KEPT]} of {counts.total()} rows"
        write_out(f"{line} (dropped: {by_reason(dropped)})\n" if dropped else f"{line}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spa filter",
        description="Keep the rows whose response has a think block before an answer block, and inside the think "
        "block an observation and then a prediction. Writes wm_train.parquet and wm_val.parquet to --out-dir.",
    )
    parser.add_argument("--in-train", type=Path, required=True, metavar="FILE", help="training rows (parquet)")
    parser.add_argument("--in-val", type=Path, required=True, metavar="FILE", help="validation rows (parquet)")
    parser.add_argument("--out-dir", type=Path, required=True, metavar="DIR", help="where the filtered files go")
    parser.add_argument("--min-len", type=int, metavar="N", help="shortest response kept, in characters")
    parser.add_argument("--max-len", type=int, metavar="N", help="longest response kept, in characters")
    parser.add_argument("--no-dedup", action="store_true", help="keep rows with equal prompt and response")
    return parser
