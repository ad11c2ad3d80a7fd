"""What a report says, before it is HTML, Markdown or a picture."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spa.evaluate.statistics import Interval
from spa.report import facts
from spa.report.charts import Bars, Chart, number
from spa.report.curves import HEALTH, PASS_1, WORLD, Method, chart, first_and_last, pass_k, time_bars
from spa.report.gallery import Picture, choose
from spa.report.reading import ARM_ORDER, Run, Stage, flatten
from spa.tracking.console import printable

ARMS = {
    "spa": ("SPA", "Plays by itself, learns from those episodes to name the next state, then PPO."),
    "vanilla": ("vanilla", "PPO from the same base model, without the world-model stage."),
    "vanilla_wm": (
        "vanilla, world-model prompt",
        "PPO from the base model, asked for observation and prediction like SPA, but never taught them.",
    ),
    "spa_shuffled": (
        "SPA, shuffled next states",
        "A control: as SPA, but the fine-tuning data named wrong next states. Whatever it gains is not knowledge.",
    ),
    "vanilla_grid": ("vanilla, drawing only", "As vanilla, and shown the drawing without coordinates."),
    "vanilla_total": ("vanilla, SPA's episodes", "As vanilla, with as many episodes as SPA used in all."),
}
WHEN = ("before", "after")


@dataclass(frozen=True, slots=True)
class Row:
    """One method in the table of results. Rates are shares; None where nothing was recorded."""

    label: str
    what: str
    color: int
    before: float | None
    after: float | None
    interval: Interval | None
    before_k: float | None
    after_k: float | None
    lead: Interval | None
    """Pass@1 of the first method minus this one; None for the first method itself."""


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under a heading."""

    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """Everything a report shows, in the order in which it is shown."""

    title: str
    verdict: str
    certainty: tuple[str, ...]
    k: int | None
    rows: tuple[Row, ...]
    seeds: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    curves: tuple[Chart, ...]
    endings: Bars | None
    failures: tuple[str, ...]
    sections: tuple[Section, ...]
    time: Bars | None
    gallery: tuple[Picture, ...]
    columns: tuple[str, ...]
    differences: tuple[tuple[str, tuple[str, ...]], ...]
    provenance: tuple[tuple[str, str], ...]
    configs: tuple[tuple[str, str], ...]


def build(runs: Sequence[Run]) -> Report:
    """The report on one run, or on several beside each other."""
    methods = list_methods(runs)
    outcomes = {method.label: facts.behaviour_and_wins(method.of("ppo") or method.of("eval")) for method in methods}
    wanted_k = pass_k(methods)
    k = int(wanted_k.title.removeprefix("Pass@")) if wanted_k else None
    summaries = {run.name: run.summary or {} for run in runs}
    rows = _rows(methods, outcomes, summaries, k)
    bars, failures = _failures(methods, outcomes)
    curves = [found for wanted in (PASS_1, wanted_k) if wanted and (found := chart(wanted, methods))]
    sections = []
    for title, group in (("What it knows of its world", WORLD), ("Training", HEALTH)):
        if charts := [found for wanted in group if (found := chart(wanted, methods))]:
            sections.append(Section(title, tuple(charts)))
    columns, differences = _differences(methods)
    verdict, certainty = _verdict(rows, runs, summaries)
    return Report(
        title=printable(" and ".join(run.name for run in runs)),
        verdict=verdict,
        certainty=(*certainty, *_unfinished(methods)),
        k=k,
        rows=tuple(rows),
        seeds=_seed_table(runs, summaries),
        curves=tuple(curves),
        endings=bars,
        failures=failures,
        sections=tuple(sections),
        time=time_bars(methods),
        gallery=tuple(choose(methods, [row.label for row in rows])),
        columns=columns,
        differences=differences,
        provenance=_provenance(runs, summaries),
        configs=_configs(methods),
    )


def list_methods(runs: Sequence[Run]) -> list[Method]:
    """Every arm of every run, in the order of a report."""
    methods: list[Method] = []
    for run in runs:
        for arm in run.arms():
            stages = tuple(stage for stage in run.stages if stage.arm == arm)
            recorded = arm in (run.summary or {}).get("methods", {})
            if not recorded and not any(stage.name in ("ppo", "sft", "eval") for stage in stages):
                continue
            name = ARMS.get(arm, (arm, ""))[0] or run.name
            label = f"{name} ({run.name})" if len(runs) > 1 and arm else name
            methods.append(Method(printable(label), arm, run.name, len(methods), stages))
    return methods


def _rows(methods: list[Method], outcomes: Any, summaries: dict[str, dict[str, Any]], k: int | None) -> list[Row]:
    """The table: the first method is SPA if there is one, otherwise the best one."""
    wanted_k = pass_k(methods)
    rows = []
    for method in methods:
        recorded = _recorded(summaries[method.run], method.arm)
        ends = first_and_last(PASS_1, method) or (None, None)
        ends_k = (first_and_last(wanted_k, method) if wanted_k else None) or (None, None)
        before, after = (recorded.get((when, "pass@1"), end) for when, end in zip(WHEN, ends, strict=True))
        before_k, after_k = (recorded.get((when, f"pass@{k}"), end) for when, end in zip(WHEN, ends_k, strict=True))
        if after is None:
            continue
        what = ARMS.get(method.arm, ("", ""))[1]
        interval = facts.rate(outcomes[method.label][1])
        rows.append(Row(method.label, what, method.color, before, after, interval, before_k, after_k, None))
    rows.sort(key=lambda row: (ARM_ORDER.index("spa") if _arm(methods, row) == "spa" else 1, -(row.after or 0)))
    return [rows[0], *(_with_lead(row, rows[0], methods, outcomes, summaries) for row in rows[1:])] if rows else []


def _recorded(summary: dict[str, Any], arm: str) -> dict[tuple[str, str], float]:
    """What the summary says of an arm, the mean over its seeds: (when, measure) -> rate."""
    entries = summary.get("seeds") or [summary]
    results = [entry.get("methods", {}).get(arm, {}) for entry in entries]
    table: dict[tuple[str, str], list[float]] = defaultdict(list)
    for result in results:
        for when in WHEN:
            for measure, value in result.get(when, {}).items():
                if isinstance(value, int | float):
                    table[when, measure].append(float(value))
    return {key: sum(values) / len(values) for key, values in table.items() if len(values) == len(results)}


def _arm(methods: list[Method], row: Row) -> str:
    return next(method.arm for method in methods if method.label == row.label)


def _with_lead(row: Row, first: Row, methods: list[Method], outcomes: Any, summaries: dict[str, Any]) -> Row:
    method = next(method for method in methods if method.label == row.label)
    leader = next(method for method in methods if method.label == first.label)
    recorded = summaries[method.run].get("difference", {}).get(method.arm)
    if recorded and leader.arm == "spa" and leader.run == method.run:
        lead = Interval(mean=recorded["mean"], low=recorded["low"], high=recorded["high"], n=int(recorded.get("n", 0)))
    else:
        lead = facts.difference(outcomes[first.label][1], outcomes[row.label][1])
    return Row(row.label, row.what, row.color, row.before, row.after, row.interval, row.before_k, row.after_k, lead)


def points(interval: Interval) -> str:
    """A difference of shares in percentage points, with its interval."""
    mean, low, high = (100 * value for value in (interval.mean, interval.low, interval.high))
    return f"{mean:+.1f} points (95 % interval {low:+.1f} to {high:+.1f})"


def _verdict(rows: list[Row], runs: Sequence[Run], summaries: dict[str, Any]) -> tuple[str, list[str]]:
    """The result in one sentence, and how sure one can be of it."""
    if not rows:
        return "No result yet: no validation has been recorded.", []
    first = rows[0]
    ending = f"{number(first.after or 0, True)} of held-out puzzles at the first try"
    if len(rows) == 1:
        start = f", up from {number(first.before, True)} before PPO" if first.before is not None else ""
        spread = first.interval
        sure = [f"95 % interval over puzzles: {_range(spread)}."] if spread else []
        return f"{first.label} solves {ending}{start}.", [*sure, *_one_seed(runs, summaries)]
    rival = rows[1]
    verb = "solves" if (first.after or 0) >= (rival.after or 0) else "solves only"
    verdict = f"{first.label} {verb} {ending}, {rival.label} {number(rival.after or 0, True)}"
    verdict += f": a difference of {points(rival.lead)}." if rival.lead else "."
    sure = [_certainty(first.label, row, numbers=row is not rival) for row in rows[1:] if row.lead]
    return verdict, [*sure, *_every_seed(runs, summaries), *_one_seed(runs, summaries)]


def _certainty(first: str, row: Row, *, numbers: bool) -> str:
    """Whether the difference to a method can be luck; with its numbers unless the verdict has just named them."""
    lead = row.lead
    if lead is None:
        return ""
    said = f": {points(lead)}" if numbers else ""
    if not lead.excludes_zero:
        return f"{first} and {row.label} cannot be told apart here{said}. The interval of their difference includes 0."
    better, worse = (first, row.label) if lead.low > 0 else (row.label, first)
    return f"{better} is better than {worse}{said}. The interval excludes 0: it is not the luck of the puzzles."


def _every_seed(runs: Sequence[Run], summaries: dict[str, Any]) -> list[str]:
    """How often the first two methods of a comparison came in which order, seed by seed."""
    notes = []
    for run in runs:
        for arm in summaries[run.name].get("difference", {}):
            pairs = []
            for entry in summaries[run.name].get("seeds", ()):
                after = [entry.get("methods", {}).get(name, {}).get("after", {}).get("pass@1") for name in ("spa", arm)]
                if None not in after:
                    pairs.append(after[0] > after[1])
            if pairs:
                name = ARMS.get(arm, (arm, ""))[0]
                notes.append(f"SPA came out ahead of {name} in {sum(pairs)} of {len(pairs)} training seeds.")
    return notes


def _range(interval: Interval) -> str:
    return f"{number(interval.low, True)} to {number(interval.high, True)}"


def _one_seed(runs: Sequence[Run], summaries: dict[str, Any]) -> list[str]:
    if any(len(summaries[run.name].get("seeds", ())) > 1 for run in runs):
        return []
    return [
        "One training seed: the interval says how much depends on the choice of puzzles, not how much on the luck of "
        "training. `spa compare … --seeds 3` measures that too."
    ]


def _unfinished(methods: list[Method]) -> list[str]:
    notes = []
    for method in methods:
        for stage in method.of("ppo"):
            total = flatten(stage.config).get("trainer.total_training_steps")
            last = max(stage.metrics, default=0)
            if isinstance(total, int) and last < total:
                notes.append(f"{method.label} has not finished: step {last} of {total}.")
    return notes


def _failures(methods: list[Method], outcomes: Any) -> tuple[Bars | None, tuple[str, ...]]:
    counted = [(method.label, outcomes[method.label][0]) for method in methods if outcomes[method.label][0].episodes]
    if not counted:
        return None, ()
    known = [ending for ending in facts.ENDINGS if any(behaviour.endings[ending] for _, behaviour in counted)]
    rows = tuple(
        (label, tuple(behaviour.endings[ending] / behaviour.episodes for ending in known))
        for label, behaviour in counted
    )
    help_text = "Episodes of the last validation, by how they ended."
    names = tuple(facts.ENDINGS[ending] for ending in known)
    sentences = tuple(facts.what_went_wrong(label, behaviour) for label, behaviour in counted)
    return Bars("How episodes ended", help_text, names, rows, percent=True), sentences


def _seed_table(runs: Sequence[Run], summaries: dict[str, Any]) -> tuple[Any, ...]:
    table = []
    for run in runs:
        for entry in summaries[run.name].get("seeds", ()):
            values = tuple(
                (ARMS.get(arm, (arm, ""))[0], float(result["after"]["pass@1"]))
                for arm, result in entry.get("methods", {}).items()
                if "pass@1" in result.get("after", {})
            )
            prefix = f"{run.name}, " if len(runs) > 1 else ""
            table.append((printable(f"{prefix}seed {entry.get('seed')}"), values))
    return tuple(table)


def _differences(methods: list[Method]) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Keys whose value is not the same for all methods, compared in the stage that all of them have."""
    having = [(method, method.of("ppo")[0]) for method in methods if method.of("ppo")]
    flats = [flatten(stage.config) for _, stage in having]
    if len(flats) < 2:
        return (), ()
    rows = []
    for key in sorted({key for flat in flats for key in flat}):
        values = tuple(_short(flat.get(key, "(not set)")) for flat in flats)
        if len(set(values)) > 1:
            rows.append((printable(key), values))
    return tuple(method.label for method, _ in having), tuple(rows)


def _short(value: Any) -> str:
    text = number(value) if isinstance(value, float) else printable(str(value))
    return text if len(text) <= 120 else text[:119] + "…"


def _provenance(runs: Sequence[Run], summaries: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    rows: list[tuple[str, str]] = []
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        for key, value in flatten(summaries[run.name]).items():
            if not key.startswith(("methods.", "difference.", "seeds")):
                rows.append((printable(prefix + key), _short(value)))
        steps = [f"{_place(stage)} to step {max(stage.metrics, default=0)}" for stage in run.stages]
        rows.append((printable(f"{prefix}stages"), printable("; ".join(steps))))
    return tuple(rows)


def _place(stage: Stage) -> str:
    seed = "" if stage.seed is None else f"seed {stage.seed}, "
    return f"{seed}{stage.arm + ' ' if stage.arm else ''}{stage.name}"


def _configs(methods: list[Method]) -> tuple[tuple[str, str], ...]:
    found = []
    for method in methods:
        for stage in method.stages:
            path = stage.path / "config.yaml"
            if path.exists() and stage.seed in (None, min((s.seed or 0 for s in method.stages), default=0)):
                text = printable(path.read_text(encoding="utf-8", errors="replace"))
                found.append((f"{method.label}, {stage.name}", text[:60_000]))
    return tuple(found)
