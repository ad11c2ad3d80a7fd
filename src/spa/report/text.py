"""A report as Markdown: the same content in the same order, boards drawn in code blocks."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from spa.report.charts import Bars, Chart, number
from spa.report.content import Report
from spa.report.facts import ENDINGS
from spa.report.results import points


def markdown(report: Report) -> str:
    """The report as Markdown text."""
    parts = [f"# spa report: {_safe(report.title)}", f"**{_safe(report.verdict)}**"]
    parts += [_safe(f"{report.setting}.")] if report.setting else []
    parts += ["\n".join(f"* {_safe(text)}" for text in report.certainty)] if report.certainty else []
    parts += _result(report)
    for section in report.sections:
        parts += [f"## {_safe(section.title)}", _curve_table(section.charts)]
    if report.gallery:
        parts.append("## Episodes")
        for picture in report.gallery:
            parts += _episode(picture)
    if report.endings:
        parts += ["## Failures", *map(_safe, report.failures), _bars(report.endings)]
    parts.append("## Configuration")
    if report.columns:
        rows = ([key, *values] for key, values in report.differences)
        table = _table(["Key", *report.columns], rows) if report.differences else "None."
        parts += ["### Differences between the configurations", table]
    parts += ["### Environment, hardware and versions", _table(["", ""], report.provenance)]
    parts += [_bars(report.time)] if report.time else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _result(report: Report) -> list[str]:
    if not report.rows:
        return []
    several = len(report.rows) > 1
    head = ["Method", "Pass@1 before PPO", f"Pass@1 {report.when}"]
    head += [f"{report.rows[0].label} minus it"] if several else []
    head += [f"Pass@{report.k} before PPO", f"Pass@{report.k} {report.when}"] if report.k else []
    counted = any(row.all_episodes for row in report.rows)
    head += ["PPO episodes", "All episodes"] if counted else []
    rows = []
    for row in report.rows:
        lead = [points(row.lead) if row.lead else ""] if several else []
        rates = [row.before_k, row.after_k] if report.k else []
        played = [f"{n:,}" if n else "–" for n in (row.ppo_episodes, row.all_episodes)] if counted else []
        ends = (_percent(row.before), _percent(row.after))
        rows.append([row.label, *ends, *lead, *map(_percent, rates), *played])
    parts = ["## Result", _table(head, rows)]
    parts += [f"* {_safe(row.label)}: {_safe(row.what)}" for row in report.rows if row.what]
    if report.seeds:
        seeds = ([name, *(f"{label} {_percent(value)}" for label, value in values)] for name, values in report.seeds)
        parts.append(_table(["Seed", *([""] * len(report.seeds[0][1]))], seeds))
    return parts


def _percent(value: float | None) -> str:
    return "–" if value is None else number(value, True)


def _curve_table(charts: Sequence[Chart]) -> str:
    rows = []
    for chart in charts:
        for series in chart.series:
            first, last = series.points[0], series.points[-1]
            ends = [f"{number(y, chart.percent)} ({chart.x_label} {number(x)})" for x, y in (first, last)]
            rows.append([chart.title, series.label, *ends])
    return _table(["Measure", "Method", "First", "Last"], rows) if rows else ""


def _bars(bars: Bars) -> str:
    rows = ([label, *(number(value, bars.percent) + bars.unit for value in values)] for label, values in bars.rows)
    return _table([bars.title, *bars.categories], rows)


def _episode(picture: Any) -> list[str]:
    replay = picture.replay
    ending = "success" if replay["success"] else ENDINGS.get(replay["stop"], replay["stop"])
    head = f"{picture.why} {picture.method}, episode {replay['id']}: {ending}, score {number(replay['score'])}."
    parts = [f"### {_safe(picture.title)}", _safe(head)]
    for index, turn in enumerate(replay["turns"], 1):
        actions = ", ".join(a["text"] + ("" if a["fate"] == "executed" else f" ({a['fate']})") for a in turn["actions"])
        columns = [("state", turn["state"]), ("next state", turn["next_state"])]
        if turn["predicted"]:
            verdict = "differs" if turn["prediction_wrong"] else "exact"
            columns.append((f"predicted: {verdict}", turn["predicted"]))
        parts += [_safe(f"Turn {index}: {actions or 'no action'}"), _fenced(_side_by_side(columns))]
    return parts


def _side_by_side(columns: Sequence[tuple[str, dict[str, Any]]]) -> str:
    """Boards beside each other; a cell that differs stands in [brackets]."""
    blocks = []
    for title, board in columns:
        cells = [[f"[{text}]" if differs else f" {text} " for text, differs in row] for row in board["rows"]]
        lines = ["".join(row) for row in cells] or [" ".join(text for text, _ in board["words"])[:400]]
        width = max(len(title), *map(len, lines))
        blocks.append([text.ljust(width) for text in (title, *lines)])
    height = max(map(len, blocks))
    filled = [block + [" " * len(block[0])] * (height - len(block)) for block in blocks]
    return "\n".join("   ".join(row).rstrip() for row in zip(*filled, strict=True))


def _fenced(text: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(map(_cell, head)) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return _safe(text).replace("|", "\\|")


def _safe(text: str) -> str:
    """Text of a run as Markdown text: nothing in it starts markup or HTML."""
    return re.sub(r"([\\`*_~\[\]<>&#])", r"\\\1", " ".join(text.splitlines()))
