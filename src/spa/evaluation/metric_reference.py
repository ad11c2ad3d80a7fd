"""Lookup in the reference of metrics, and its page: `python -m spa.evaluation.metric_reference
docs`."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from spa.evaluation.metric_tables import GROUPS, Group, Metric

PAGE = "metrics.md"


def find_metric(key: str) -> Metric | None:
    """The record that covers a key; None if none does."""
    for group in GROUPS:
        for metric in group.metrics:
            if any(_matches(pattern, key) for pattern in group.patterns(metric)):
                return metric
    return None


def _matches(pattern: str, key: str) -> bool:
    # Each `*` is one or more characters of a single path segment, as in `train/*/success`.
    return (
        re.fullmatch("[^/]+".join(re.escape(part) for part in pattern.split("*")), key) is not None
    )


def metrics_page() -> str:
    """The text of `docs/metrics.md`."""
    parts = [
        "# Metrics",
        "<!-- Made by `python -m spa.evaluation.metric_reference docs`; edit src/spa/evaluation/metric_tables.py. -->",
        "Each stage writes one JSON line per step to `metrics.jsonl` and `timings.jsonl` in its folder. This page "
        "explains every key. `*` stands for a number or an environment tag. NaN is written as `null`, an "
        "infinity as text.",
        "Ranges are rules of thumb for the shipped configurations, except where they name a setting. A dash: "
        "not applicable.",
        "Results of `spa eval` have their own keys: see [evaluation results](formats.md#evaluation-results).",
    ]
    for group in GROUPS:
        parts += [f"## {group.title}", group.about, _table(group)]
    return "\n\n".join(parts) + "\n"


def _table(group: Group) -> str:
    lines = ["| key | meaning | unit | healthy | if it is off |", "|---|---|---|---|---|"]
    for metric in group.metrics:
        cells = (metric.meaning, metric.unit or "–", metric.healthy or "–", metric.action or "–")
        lines.append(f"| `{metric.key}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(args: Sequence[str]) -> int:
    """Write the page into the folder `args[0]`."""
    (Path(args[0]) / PAGE).write_text(metrics_page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
