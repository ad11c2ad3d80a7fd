"""Log of all evaluations on the shipped evaluation sets, each with its policy and commit.

Such an evaluation is called an opening (as of a sealed envelope), because each commit should use a
set only once.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spa.envs.eval_sets import EvalSet
from spa.run.files import dump_line, read_lines

log = logging.getLogger(__name__)

LOG = Path("benchmarks/results/openings.jsonl")
"""Path of the log in a clone of the repository, relative to its root. It is committed."""


def record_opening(chosen: EvalSet, result: Mapping[str, Any], *, greedy: bool) -> None:
    """Append an evaluation to the log if the working directory is a clone of the repository;
    otherwise do nothing.

    Logs a warning if the log already has another result of the same policy on this set at the same
    commit.
    """
    if not LOG.parent.is_dir():
        return
    found = result["tags"][chosen.tag]
    line = {
        "eval_set": chosen.name,
        "sha256": chosen.digest,
        "commit": result["versions"].get("commit", ""),
        "policy": result["policy"],
        "model": result["model"],
        "config": result["config"],
        "decoding": "greedy" if greedy else "sampled",
        "success": found["pass@1"]["mean"] if "pass@1" in found else None,
    }
    earlier = [row for _, row in read_lines(LOG)] if LOG.is_file() else []
    if line in earlier:
        return
    same = ("eval_set", "commit", "policy", "model", "config", "decoding")
    if any(all(row.get(name) == line[name] for name in same) for row in earlier):
        log.warning(
            "%s: %s was evaluated on the set %s before at this commit, with another result",
            LOG,
            line["policy"],
            chosen.name,
        )
    with LOG.open("a", encoding="utf-8") as file:
        file.write(dump_line(line))
