"""Render the results of `spa diagnose` as one HTML page in the style of reports: findings, then
tables and curves."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spa_report.build import render_page
from spa_report.charts import Chart, Series


def diagnosis_page(report: Mapping[str, Any], source: str) -> str:
    """Render the result of `spa_bench.diagnose.findings.diagnose` as one self-contained HTML page.
    All text of rollouts is escaped."""
    count = len(report["findings"])
    what = f"{count} finding{'s' if count > 1 else ''}" if count else "No problems found"
    stacks = ", ".join(f"{name} {number}" for name, number in report["stacks"].items())
    return render_page(
        "diagnosis.html.j2",
        Path(__file__).parent,
        source=source,
        verdict=f"{what} in {report['rollouts']} rollouts ({stacks}).",
        report=report,
        charts=_charts(report),
    )


def _charts(report: Mapping[str, Any]) -> dict[str, list[Chart]]:
    """Build the charts of each section, by its title."""
    charts = defaultdict[str, list[Chart]](list)
    if by_turn := report["rewards"]["by_turn"]:
        line = Series(
            "mean reward",
            tuple((float(turn), float(value)) for turn, value in enumerate(by_turn, 1)),
        )
        help_text = "Mean reward of each turn, over the rollouts that reach the turn."
        charts["Rewards"].append(Chart("Reward by turn", help_text, (line,), x_label="turn"))
    for key, label, title in (
        ("by_actions", "actions ahead", "the actions ahead"),
        ("by_turn", "turn", "the turns"),
    ):
        if rows := report["drift"][key]:
            charts["World model"].append(_drift_chart(f"Drift with {title}", label, rows))
    known = report["state_likelihood"]
    for split, rows in {} if known["why_not"] else known["steps"].items():
        lines = [
            Series(
                kind,
                # A step without tokens of a kind has no mean.
                tuple((float(r["step"]), r[kind]["nll"]) for r in rows if r[kind]["tokens"]),
                color=color,
            )
            for color, kind in enumerate(("copied", "changed"))
        ]
        title = f"State tokens ({split})" if split else "State tokens"
        lines = tuple(line for line in lines if line.points)
        charts["Dynamics or copying"].append(
            Chart(
                title,
                "Mean negative log-likelihood per token of predicted states, in nats.",
                lines,
                x_label="training step",
            )
        )
    return charts


def _drift_chart(title: str, label: str, examples: Sequence[Mapping[str, Any]]) -> Chart:
    lines = [
        Series(
            "predictions",
            tuple(
                (float(example["at"]), example["right"] / example["predictions"])
                for example in examples
            ),
        )
    ]
    known = tuple(
        (float(example["at"]), example["copy_right"] / example["with_states"])
        for example in examples
        if "with_states" in example
    )
    if known:
        lines.append(Series("copy baseline", known, color=1))
    return Chart(
        title,
        "Share of predicted states that are exactly correct.",
        tuple(lines),
        x_label=label,
        percent=True,
    )
