"""The page of a reproduction: tables next to the paper's numbers, verdicts, curves, and the command
behind every row."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.errors import SpaError
from spa.evaluation.statistics import MANY_SEEDS
from spa.evaluation.text import interval_text
from spa.report.charts import Chart, Series
from spa.report.figures import save_chart
from spa.run.files import write_atomic
from spa_bench.paper.paper import NAMES, SCALES
from spa_bench.paper.verdicts import MARGIN


def write_page(
    result: Mapping[str, Any], page: Path, *, notes: Mapping[str, str] | None = None
) -> None:
    """Write the page and its curves (in `images/` next to it). `notes`: text of a finding, perhaps
    with its environment in brackets -> why it may be as it is."""
    images = page.parent / "images"
    names = [*result["tables"], *(["perplexity"] if result["perplexity"] else [])]
    overrides = "".join(f" '{override}'" for override in result["overrides"])
    lines = [
        "# Results",
        "",
        f"Made by `spa bench paper {' '.join(names)} --scale {result['scale']} --page {page.name}{overrides}`; the "
        "last section has the command that makes each row again.",
        "",
        "Numbers are percent of held-out puzzles, after PPO unless a column names another moment. With at least "
        f"{MANY_SEEDS} seeds, brackets are 95 % t intervals over seeds. With fewer, they are a bootstrap over puzzles, "
        "which does not cover training seeds. The paper's numbers (Pass@1 / Pass@8) are those of its own models. World "
        "model: percent of exact observations / predictions after SFT.",
        "",
    ]
    lines += _verdicts(result, notes or {})
    for name, table in result["tables"].items():
        lines += [f"## {NAMES[name]}", "", *_table(table), *_curves(name, table, images, page)]
    if result["perplexity"]:
        lines += _perplexity(result["perplexity"])
    lines += _settings(result)
    lines += ["## Commands", "", "| row | command |", "| --- | --- |"]
    # Only rows with results have a command worth repeating; the others are listed as not run.
    rows = {
        row["id"]: row["command"]
        for table in result["tables"].values()
        for row in table["rows"]
        if row["seeds"]
    }
    lines += [f"| {key} | `{command}` |" for key, command in rows.items()]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines += ["", f"Versions: {versions}.", ""]
    page.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(page, ["\n".join(lines)])


def _verdicts(result: Mapping[str, Any], notes: Mapping[str, str]) -> list[str]:
    lines = [
        "## Claims",
        "",
        "Differences are paired by puzzle within the seeds of both methods. A claim that one method beats another is "
        "reproduced if the interval of the difference is above 0, and contradicted if it is below 0. A claim that "
        f"nothing is gained or lost is reproduced if the interval leaves less than {100 * MARGIN:g} points, else "
        "undecided. Verdicts are not corrected for the number of claims.",
        "",
        *_stand_ins(result),
        "| claim | where | verdict | seeds | here |",
        "| --- | --- | --- | ---: | --- |",
    ]
    for table in result["tables"].values():
        for finding in table["findings"]:
            said = finding.get("sentence", "–")
            # A note for one environment comes before the note for the claim as a whole.
            note = notes.get(f"{finding['text']} ({finding['environment']})") or notes.get(
                finding["text"]
            )
            if note:
                said += f" {note}"
            where = f"{finding['environment']}, {finding['model'].rpartition('/')[2]}"
            seeds = finding.get("seeds", "–")
            lines.append(
                f"| {finding['text']} | {where} | {finding['verdict']} | {seeds} | {said} |"
            )
    return [*lines, ""]


def _stand_ins(result: Mapping[str, Any]) -> list[str]:
    """Which methods stand for those of the paper, where they have other names."""
    estimation = SCALES[result["scale"]].named("state_estimation")
    if estimation == "state_estimation":
        return []
    return [
        f"At this scale `{estimation}` (plain PPO on SPA's state rendering) takes the place of the paper's "
        "state-estimation RL, and `vanilla_grid` (grids only) that of its vanilla RL.",
        "",
    ]


def _table(table: Mapping[str, Any]) -> list[str]:
    lines = [
        "| environment | method | world model | Pass@1 before | Pass@1 | each seed | Pass@8 | paper |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    finished = [row for row in table["rows"] if row["seeds"]]
    for row in finished:
        model = row["model"].rpartition("/")[2]
        before = row["before"].get("pass@1")
        # The paper's numbers are those of its own models: shown, never subtracted.
        paper = "–" if row["paper"] is None else " / ".join(f"{value:g}" for value in row["paper"])
        cells = [
            row["environment"],
            f"{row['method']} ({model})",
            _world_model(row["world_model"]),
            "–" if before is None else f"{100 * before['mean']:.1f}",
            interval_text(row["after"].get("pass@1")),
            # Intervals of each seed would be over puzzles; the list shows the scatter over seeds.
            ", ".join(
                f"{100 * part['pass@1']['mean']:.1f}"
                for part in row["each_seed"]
                if "pass@1" in part
            )
            or "–",
            interval_text(row["after"].get("pass@8")),
            paper,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    missing = [row["id"] for row in table["rows"] if not row["seeds"]]
    if missing:
        lines += ["", f"Not run: {', '.join(missing)}."]
    described = {row["method"]: row["description"] for row in finished}
    lines += ["", *(f"* {method}: {text}" for method, text in described.items())]
    for model, found in table["interquartile_mean"].items():
        if found:
            means = "; ".join(f"{method} {interval_text(value)}" for method, value in found.items())
            places = dict.fromkeys(row["environment"] for row in finished if row["model"] == model)
            lines.append(
                f"* interquartile mean of Pass@1 over {', '.join(places)} and seeds, {model}: {means}"
            )
    return [*lines, ""]


def _world_model(parts: Sequence[Mapping[str, float]]) -> str:
    """Mean over seeds of the exactly right observations and predictions after SFT."""
    # A result may lack one of the two numbers for some seeds.
    found = [
        [part[name] for part in parts if name in part]
        for name in ("observation_exact", "prediction_exact")
    ]
    return " / ".join(f"{100 * sum(values) / len(values):.0f}" for values in found if values) or "–"


def _settings(result: Mapping[str, Any]) -> list[str]:
    """How each environment is played: what is changed in which shipped configuration."""
    rows = [row for table in result["tables"].values() for row in table["rows"]]
    # The configuration of an environment is the same in all tables, so the last row read will do.
    presets = {row["environment"]: row["preset"] for row in rows}
    common = SCALES[result["scale"]].common
    lines = ["## Settings", "", "| environment | configuration | changes |", "| --- | --- | --- |"]
    for environment, (preset, *changes) in presets.items():
        lines.append(
            f"| {environment} | `{preset}` | {', '.join(f'`{change}`' for change in changes) or '–'} |"
        )
    if common:
        lines += ["", f"Everywhere: {', '.join(f'`{change}`' for change in common)}."]
    return [*lines, ""]


def _curves(name: str, table: Mapping[str, Any], images: Path, page: Path) -> list[str]:
    lines = []
    places = dict.fromkeys((row["model"], row["environment"]) for row in table["rows"])
    for model, environment in places:
        found = [
            row
            for row in table["rows"]
            if (row["model"], row["environment"]) == (model, environment)
        ]
        for k in (1, 8):
            rows = [
                row
                for row in found
                if row["curve"] and all(f"pass@{k}" in part for part in row["curve"])
            ]
            # A curve of a single validation is a point, which the table has already.
            if not any(len(row["curve"]) > 1 for row in rows):
                continue
            title = f"Pass@{k} over training, {environment}, {model.rpartition('/')[2]}"
            stem = "".join(
                c if c.isalnum() else "-" for c in f"{name}-{environment}-{model}-pass{k}".lower()
            )
            path = images / f"{stem}.svg"
            try:
                save_chart(curve_chart(title, rows, k), path, "--page")
            except SpaError as error:
                # matplotlib is not installed: the tables are worth having without curves
                return [f"No curves: {error}", ""]
            lines += [f"![{title}]({path.relative_to(page.parent).as_posix()})", ""]
    return lines


def curve_chart(title: str, rows: Sequence[Mapping[str, Any]], k: int) -> Chart:
    """Pass@k of several methods over PPO steps; the bands of Pass@1 are the range over seeds."""
    series = []
    for index, row in enumerate(rows):
        points = tuple((float(part["step"]), float(part[f"pass@{k}"])) for part in row["curve"])
        # Only Pass@1 has a range: `mean_curve` records it for no other k.
        bands = (
            tuple((float(part["low"]), float(part["high"])) for part in row["curve"])
            if k == 1
            else ()
        )
        series.append(Series(label=row["method"], points=points, bands=bands, color=index))
    return Chart(title=title, help="", series=tuple(series), percent=True)


def _perplexity(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    lines = [f"## {NAMES['perplexity']}", ""]
    for model, rows in found.items():
        lines += [
            f"Under {model}; per token, and per symbol in brackets.",
            "",
            "| environment | text | alone | in the prompt | different symbols | paper |",
            "| --- | --- | ---: | ---: | ---: | ---: |",
        ]
        for row in rows:
            # Every state text was measured twice: alone and at the end of its prompt. One row shows
            # both.
            if row["context"] != "alone":
                continue
            shown = next(
                r
                for r in rows
                if (r["tag"], r["text"]) == (row["tag"], row["text"]) and r is not row
            )
            cells = [
                f"{_short(part['per_token']['mean'])} ({_short(part['per_symbol']['mean'])})"
                for part in (row, shown)
            ]
            paper = "–" if row["paper"] is None else f"{row['paper']:g}"
            lines.append(
                f"| {row['tag']} | {row['text']} | {cells[0]} | {cells[1]} | {row['distinct_symbols']} | {paper} |"
            )
        lines.append("")
    return lines


def _short(number: float) -> str:
    # Perplexities above 10,000 say only "far from natural text"; one digit and an exponent are
    # enough.
    return f"{number:.1f}" if number < 10_000 else f"{number:.0e}"


def hours_text(scale: str, hours: float, devices: int) -> str:
    """How long the rest of a grid takes, in words."""
    kinds = ", ".join(f"{name} {value:g} h" for name, value in SCALES[scale].hours.items())
    return f"about {hours / devices:.1f} hours on {devices} device{'s' if devices > 1 else ''} (per stage: {kinds})"
