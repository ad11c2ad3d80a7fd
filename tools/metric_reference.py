"""Lookup in the reference of metrics, and its page in the site."""

import re

from metric_tables import GROUPS, Group, Metric

from spa.tables import Table


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
    """Every key of `metrics.jsonl` and `timings.jsonl` with its meaning and healthy range."""
    parts = [
        "# Metrics",
        "Each stage writes one JSON line per step to `metrics.jsonl` and `timings.jsonl` in its folder. This page "
        "explains every key. `*` stands for a number, a kind or an environment tag. NaN is written as `null`, an "
        "infinity as text.",
        "Ranges are rules of thumb for the shipped configurations, except where they name a setting. A dash: "
        "not applicable.",
        "Results of `spa eval` have their own keys: see [evaluation results](formats.md#evaluation-results).",
    ]
    for group in GROUPS:
        parts += [f"## {group.title}", group.about, _table(group)]
    return "\n\n".join(parts) + "\n"


def _table(group: Group) -> str:
    rows = [
        (
            f"`{metric.key}`",
            *(cell or "–" for cell in (metric.meaning, metric.unit, metric.healthy, metric.action)),
        )
        for metric in group.metrics
    ]
    return Table(("key", "meaning", "unit", "healthy", "if it is off"), rows).markdown()
