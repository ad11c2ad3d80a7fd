"""Collect the content of a report before it is rendered as HTML, Markdown or an image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spa.run.console import printable
from spa_report import facts, results
from spa_report.charts import Bars, Chart, number
from spa_report.curves import (
    HEALTH,
    PASS_1,
    PREDICTION,
    WORLD,
    RunArm,
    Wanted,
    chart,
    system_charts,
    time_bars,
)
from spa_report.gallery import Picture, choose
from spa_report.progress import in_progress, shown_step
from spa_report.reading import RunFolder, flatten, made_with, with_distinct_names
from spa_report.results import MethodResult


@dataclass(frozen=True, slots=True)
class Section:
    """Charts under a heading."""

    anchor: str
    title: str
    charts: tuple[Chart, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report, in the order of the page."""

    title: str
    setting: str
    verdict: str
    certainty: tuple[str, ...]
    k: int | None
    rows: tuple[MethodResult, ...]
    when: str
    """Time of the measurement: `after PPO`, or `at step N` while a method is still training."""
    seeds: tuple[tuple[str, tuple[tuple[str, float], ...]], ...]
    endings: Bars | None
    failures: tuple[str, ...]
    sections: tuple[Section, ...]
    time: Bars | None
    gallery: tuple[Picture, ...]
    columns: tuple[str, ...]
    differences: tuple[tuple[str, tuple[str, ...]], ...]
    provenance: tuple[tuple[str, str], ...]
    configs: tuple[tuple[str, str], ...]


def build(runs: Sequence[RunFolder], *, episodes: bool = True) -> Report:
    """Collect the content of a report on one or several runs. With `episodes` False, the gallery is
    empty."""
    runs = with_distinct_names(runs)
    methods = results.list_methods(runs)
    # While a method trains, the results in summary.json belong to an earlier run and are hidden.
    summaries = {run.name: results.current_summary(run) for run in runs}
    steps = results.judged_steps(methods, summaries)
    outcomes = {
        method.label: facts.behaviour_and_wins(results.judged_stages(method, step), step)
        for method in methods
        for step in [steps[method.label]]
    }
    going = any(map(in_progress, runs))
    wanted_k = results.pass_k_chart(methods, summaries)
    rows = results.rows(methods, outcomes, steps, summaries, wanted_k)
    bars, failures = _failures(methods, outcomes)
    sections = [
        Section(
            "curves", "Learning curves", _charts((PASS_1, wanted_k, PREDICTION, *HEALTH), methods)
        ),
        Section("world-model", "World model", _charts(WORLD, methods)),
        Section("system", "System", tuple(system_charts(methods))),
    ]
    columns, differences = _differences(methods)
    verdict, certainty = results.verdict(rows, runs)
    # Keep only labels of methods, because a `trained longer` row has no episodes of its own.
    order = list(dict.fromkeys(row.label for row in rows if row.label in steps))
    return Report(
        title=printable(" and ".join(run.name for run in runs)),
        setting=_setting(methods, {label: wins for label, (_, wins) in outcomes.items()}),
        verdict=verdict,
        certainty=(*certainty, *results.step_note(steps, methods)),
        k=int(wanted_k.title.removeprefix("Pass@")) if wanted_k else None,
        rows=tuple(rows),
        when=shown_step([*steps.values()]) if going else "after PPO",
        seeds=() if going else results.seed_table(runs),
        endings=bars,
        failures=failures,
        sections=tuple(section for section in sections if section.charts),
        time=time_bars(methods),
        gallery=tuple(choose(methods, order, steps)) if episodes else (),
        columns=columns,
        differences=differences,
        provenance=_provenance(runs, summaries),
        configs=_configs(results.list_methods(runs, with_data_alone=True)),
    )


def _charts(group: Sequence[Wanted | None], methods: list[RunArm]) -> tuple[Chart, ...]:
    return tuple(drawn for wanted in group if wanted and (drawn := chart(wanted, methods)))


def _setting(methods: list[RunArm], wins: dict[str, facts.Wins]) -> str:
    """Describe the setting: games, model and number of puzzles."""
    flats = [
        flatten(stage.config)
        for method in methods
        for stage in method.of("ppo") or method.of("eval")
    ]
    tags = dict.fromkeys(
        str(tag) for flat in flats for tag in flat.get("es_manager.val.env_configs.tags") or ()
    )
    models = dict.fromkeys(str(flat["model_path"]) for flat in flats if flat.get("model_path"))
    # A puzzle counts once per seed, as in `Interval.n`.
    counts = sorted({sum(map(len, counts_of.values())) for counts_of in wins.values()} - {0})
    puzzles = " to ".join(f"{count:,}" for count in dict.fromkeys(counts[:1] + counts[-1:]))
    parts = (
        f"Environment {', '.join(tags)}" if tags else "",
        f"base model {', '.join(models)}" if models else "",
        f"{puzzles} held-out puzzles per method" if puzzles else "",
    )
    text = ", ".join(filter(None, parts))
    return printable(text[:1].upper() + text[1:])


def _failures(methods: list[RunArm], outcomes: Any) -> tuple[Bars | None, tuple[str, ...]]:
    counted = [
        (method.label, outcomes[method.label][0])
        for method in methods
        if outcomes[method.label][0].episodes
    ]
    if not counted:
        return None, ()
    known = [
        ending
        for ending in facts.ENDINGS
        if any(behaviour.endings[ending] for _, behaviour in counted)
    ]
    rows = tuple(
        (label, tuple(behaviour.endings[ending] / behaviour.episodes for ending in known))
        for label, behaviour in counted
    )
    bars = Bars(
        "How episodes ended",
        "Share of the episodes of the last validation by the way they ended.",
        tuple(facts.ENDINGS[ending] for ending in known),
        rows,
        percent=True,
    )
    return bars, tuple(facts.describe_failures(label, behaviour) for label, behaviour in counted)


PLACES = {
    "trainer.run_dir",
    "trainer.default_local_dir",
    "trainer.experiment_name",
    "sft.trainer.default_local_dir",
    "generate.output_dir",
}
"""Keys that set the paths of a method's files. They always differ, so they are not compared."""


def _differences(
    methods: list[RunArm],
) -> tuple[tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]:
    """Compare the PPO configurations of the methods. Returns the methods' labels, and each key that
    differs with its value per method. Both are empty for fewer than two methods."""
    # One seed represents its method, because the seeds of a method share all other settings.
    having = [(method, method.of("ppo")[0]) for method in methods if method.of("ppo")]
    flats = [flatten(stage.config) for _, stage in having]
    if len(flats) < 2:
        return (), ()
    rows = []
    for key in sorted({key for flat in flats for key in flat} - PLACES):
        values = tuple(_short(flat.get(key, "(not set)")) for flat in flats)
        if len(set(values)) > 1:
            rows.append((printable(key), values))
    return tuple(method.label for method, _ in having), tuple(rows)


def _short(value: Any) -> str:
    text = number(value) if isinstance(value, float) else printable(str(value))
    return text if len(text) <= 120 else text[:119] + "…"


def _provenance(
    runs: Sequence[RunFolder], summaries: dict[str, Any]
) -> tuple[tuple[str, str], ...]:
    """List the origin of each run: versions, hardware, commit, time, and the progress of each
    stage."""
    rows: list[tuple[str, str]] = []
    for run in runs:
        prefix = f"{run.name}: " if len(runs) > 1 else ""
        facts_of = {**made_with(run), **flatten(summaries[run.name])}
        # The report shows these keys of the summary elsewhere.
        results_only = ("methods.", "difference.", "episodes.", "seeds", "descriptions.")
        rows += [
            (printable(prefix + key), _short(value))
            for key, value in facts_of.items()
            if not key.startswith(results_only)
        ]
        steps = [f"{stage.label} to step {max(stage.metrics, default=0)}" for stage in run.stages]
        rows.append((printable(f"{prefix}stages"), printable("; ".join(steps))))
    return tuple(rows)


def _configs(methods: list[RunArm]) -> tuple[tuple[str, str], ...]:
    configs = []
    for method in methods:
        for stage in method.stages:
            path = stage.path / "config.yaml"
            # A symbolic link must not bring a file from outside the stage's folder into a shared
            # report.
            inside = path.resolve().is_relative_to(stage.path.resolve())
            if (
                inside
                and path.exists()
                and stage.seed in (None, min((s.seed or 0 for s in method.stages), default=0))
            ):
                text = printable(path.read_text(encoding="utf-8", errors="replace"))
                configs.append((f"{method.label}, {stage.name}", text[:60_000]))
    return tuple(configs)
