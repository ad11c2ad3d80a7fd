"""Grids without processes of their own."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from spa_sweeps.compare import Comparison, run_comparison


def in_this_process(errors: Path | None = None) -> ThreadPoolExecutor:
    """One worker that is a thread."""
    return ThreadPoolExecutor(max_workers=1)


def run_small(made: Comparison) -> dict[str, Any]:
    """A comparison in this process."""
    return run_comparison(made, parallel=1, pool=in_this_process)
