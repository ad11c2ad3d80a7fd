"""The result of a report: the table of methods, the verdict in one sentence, and how sure one can
be of it.

The methods of one comparison are read at the last validation that all of them have, so that no
method has more training than the others. The effect of more training is a line of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spa.errors import DataError
from spa.evaluation.statistics import Interval
from spa.report import facts
from spa.report.charts import number
from spa.report.curves import PASS_1, RunArm, Wanted, ends, pass_k
from spa.report.progress import in_progress, lacks_summary, unfinished
from spa.report.reading import Run, flatten, last_validation
from spa.run.console import printable
from spa.run.files import read_object

ARMS = {
    "spa": ("SPA", "Self-play, SFT on the true states of the played episodes, then PPO."),
    "vanilla": ("vanilla", "PPO from the base model, without self-play and world-model SFT."),
    "vanilla_wm": (
        "vanilla, world-model prompt",
        "PPO from the base model in the world-model format, without SFT.",
    ),
    "spa_shuffled": (
        "SPA, shuffled next states",
        "Control that differs from SPA in its world-model data alone, where next states come from other turns. A gain "
        "of this control over vanilla does not come from a correct world model.",
    ),
    "vanilla_grid": (
        "vanilla, grid only",
        "PPO from the base model, where a state is a grid without coordinates.",
    ),
    "state_estimation": (
        "vanilla, grid and coordinates",
        "PPO from the base model, where a state is a grid with coordinates.",
    ),
}
CONTROL = "spa_shuffled"


@dataclass(frozen=True, slots=True)
class Row:
    """One method in the table of results. Rates are shares; None where nothing was recorded."""

    label: str
    what: str
    arm: str
    run: str
    color: int
    before: float | None
    after: float | None
    interval: Interval | None
    before_k: float | None
    after_k: float | None
    ppo_episodes: int | None
    all_episodes: int | None
    seconds: float | None
    before_interval: Interval | None = None
    lead: Interval | None = None
    """Pass@1 of the first method minus this one; None for the first method itself."""


def arm_name(arm: str) -> str:
    """What a reader calls a method."""
    return ARMS.get(arm, (arm, ""))[0]


def list_methods(runs: Sequence[Run]) -> list[RunArm]:
    """Every method of every run, in the order of a report."""
    methods: list[RunArm] = []
    for run in runs:
        for arm in run.arms():
            stages = tuple(stage for stage in run.stages if stage.arm == arm)
            recorded = arm in (run.summary or {}).get("methods", {})
            # A method with only self-play (data, generate) has no result to
            # compare.
            if not recorded and not any(
                stage.name.rpartition(" ")[2] in ("ppo", "sft", "eval") for stage in stages
            ):
                continue
            name = arm_name(arm) or run.name
            label = f"{name} ({run.name})" if len(runs) > 1 and arm else name
            methods.append(RunArm(printable(label), arm, run.name, len(methods), stages))
    return methods


def common_steps(methods: Sequence[RunArm]) -> dict[str, int | None]:
    """Label -> the step at which the method is judged: the last validation that all methods of its
    run have, without what some train on for."""
    last: dict[str, list[int]] = {}
    for method in methods:
        found = last.setdefault(method.run, [])
        for stage in method.of("ppo"):
            if file := last_validation(stage):
                found.append(
                    # `also_test_at` is where a method with a larger budget is compared at equal PPO
                    # steps.
                    min(file.step, flatten(stage.config).get("trainer.also_test_at") or file.step)
                )
    return {method.label: min(last[method.run], default=None) for method in methods}


def which_k(methods: Sequence[RunArm], summaries: dict[str, dict[str, Any]]) -> Wanted | None:
    """The chart of Pass@k: of Pass@8 if a summary reports it, else of the largest k."""
    reported = any(
        "pass@8" in result.get("after", {})
        for summary in summaries.values()
        for result in summary.get("methods", {}).values()
    )
    return pass_k(methods, 8 if reported else None)


def rows(
    methods: Sequence[RunArm],
    outcomes: dict[str, tuple[facts.Behaviour, facts.Wins]],
    steps: dict[str, int | None],
    summaries: dict[str, dict[str, Any]],
    wanted_k: Wanted | None,
) -> list[Row]:
    """The table. First SPA, or else the best; then the plain baseline; then the others, the better
    ones first."""
    found = []
    for method in methods:
        row = _row(
            method, outcomes[method.label][1], steps[method.label], summaries[method.run], wanted_k
        )
        if row.after is not None:
            found.append(row)
    # Within one comparison the reference comes first, then vanilla; of several runs the best is
    # first.
    rank = {summaries[found[0].run].get("reference", "spa"): 0, "vanilla": 1} if found else {}
    several = len({method.run for method in methods}) > 1
    found.sort(key=lambda row: (0 if several else rank.get(row.arm, 2), -(row.after or 0)))
    if not found:
        return []
    first = found[0]
    table = found[:1]
    ppo = {method.label: method.of("ppo") for method in methods}
    for row in found[1:]:
        summary = summaries[row.run]
        # The summary's difference pairs puzzles over all seeds. It counts only if it is against the
        # same first method; otherwise the difference is computed from recorded episodes.
        recorded = (first.arm, first.run) == (summary.get("reference", "spa"), row.run)
        lead = _recorded_lead(summary, row.arm) if recorded else None
        lead = lead or facts.difference(outcomes[first.label][1], outcomes[row.label][1])
        table.append(replace(row, lead=lead))
        if longer := _longer(row, summary):
            lead = _recorded_lead(summary, f"{row.arm}_same_total_episodes") if recorded else None
            lead = lead or facts.difference(
                outcomes[first.label][1], facts.behaviour_and_wins(ppo[row.label])[1]
            )
            table.append(replace(longer, lead=lead))
    return table


def _row(
    method: RunArm,
    wins: facts.Wins,
    step: int | None,
    summary: dict[str, Any],
    wanted_k: Wanted | None,
) -> Row:
    recorded = summary.get("methods", {}).get(method.arm, {})
    k = wanted_k.title.lower() if wanted_k else ""
    interval = facts.rate(wins)
    found = ends(PASS_1, method, step)
    start = None
    if interval is not None:  # of the episodes themselves: metrics are averaged over tags
        start = facts.rate(facts.behaviour_and_wins(method.of("ppo"), 0)[1]) if step else None
        found = start.mean if start else None, interval.mean
    found_k = ends(wanted_k, method, step) if wanted_k else (None, None)
    start_rates = recorded.get("before", {})
    end_rates = recorded.get("after", {})
    played = summary.get("episodes", {}).get(method.arm, {})
    # Seconds are keyed `<arm>/<stage>`.
    seconds = [
        s for name, s in summary.get("seconds", {}).items() if name.startswith(f"{method.arm}/")
    ]
    return Row(
        label=method.label,
        what=ARMS[method.arm][1]
        if method.arm in ARMS
        else summary.get("descriptions", {}).get(method.arm, ""),
        arm=method.arm,
        run=method.run,
        color=method.color,
        before=start_rates.get("pass@1", found[0]),
        after=end_rates.get("pass@1", found[1]),
        interval=interval,
        before_k=start_rates.get(k, found_k[0]),
        after_k=end_rates.get(k, found_k[1]),
        ppo_episodes=played.get("ppo"),
        all_episodes=played.get("ppo", 0) + played.get("self_play", 0) if played else None,
        seconds=sum(seconds) if seconds else None,
        before_interval=start,
    )


def _recorded_lead(summary: dict[str, Any], name: str) -> Interval | None:
    entry = summary.get("difference", {}).get(name)
    ends = {key: entry[key] for key in ("mean", "low", "high")} if entry else {}
    return Interval(**ends, n=int(entry.get("n", 0))) if entry else None


def _longer(row: Row, summary: dict[str, Any]) -> Row | None:
    """The line of a method that continued until it had played as many episodes as SPA in all."""
    recorded = summary.get("methods", {}).get(row.arm, {}).get("after_total")
    if not recorded:
        return None
    episodes = summary.get("episodes", {})
    # The longer budget is what the method with the most episodes used, self-play included.
    most = max(
        (played.get("ppo", 0) + played.get("self_play", 0) for played in episodes.values()),
        default=None,
    )
    total = episodes.get(row.arm, {}).get("ppo_longer", most)  # which older summaries do not say
    return replace(
        row,
        label=f"{row.label}, trained longer",
        what="PPO continues until the method has played as many episodes as SPA in self-play and PPO together.",
        after=recorded.get("pass@1"),
        after_k=recorded.get("pass@8"),
        interval=None,
        ppo_episodes=total,
        all_episodes=total,
        seconds=None,
    )


def points(interval: Interval) -> str:
    """A difference of shares in percentage points, with its interval."""
    mean, low, high = (100 * value for value in (interval.mean, interval.low, interval.high))
    return f"{mean:+.1f} points (95 % CI [{low:+.1f}, {high:+.1f}])"


def verdict(table: Sequence[Row], runs: Sequence[Run]) -> tuple[str, list[str]]:
    """The result in one sentence, and how sure one can be of it. No result while a method is in
    progress."""
    if text := how_far(runs):
        return text, _gates(runs)
    if not table:
        return _evaluations(runs) or "No result yet: no validation has been recorded.", []
    first = table[0]
    ending = f"{number(first.after or 0, True)} of held-out puzzles at the first try"
    if len(table) == 1:
        start = (
            f", up from {number(first.before, True)} before PPO" if first.before is not None else ""
        )
        spread = first.interval
        ends = (number(spread.low, True), number(spread.high, True)) if spread else ()
        sure = [f"95 % CI over puzzles [{', '.join(ends)}]."] if spread else []
        return f"{first.label} solves {ending}{start}.", [*sure, *_one_seed(runs)]
    rival = table[1]
    text = _versus(first, rival)
    seeds = max(len((run.summary or {}).get("seeds", ())) for run in runs)
    sure = [
        _certainty(first.label, row, seeds, numbers=row is not rival)
        for row in table[1:]
        if row.lead
    ]
    return text, [*sure, *_every_seed(runs), *_one_seed(runs), *_gates(runs)]


def _evaluations(runs: Sequence[Run]) -> str:
    """The Pass@1 of each finished evaluation with its interval; empty without one."""
    results = []
    for stage in (stage for run in runs for stage in run.stages):
        # `spa eval` writes its result next to the folder of its episodes.
        finished = stage.path.with_name(f"{stage.path.name}.json").is_file()
        wins = facts.behaviour_and_wins([stage])[1] if finished else {}
        if interval := facts.rate(wins):
            mean, low, high = (
                number(share, True) for share in (interval.mean, interval.low, interval.high)
            )
            puzzles = sum(map(len, wins.values()))
            results.append(
                f"{printable(stage.path.name)}: Pass@1 {mean} on {puzzles} puzzles "
                f"(95 % CI over puzzles [{low}, {high}])."
            )
    return " ".join(results)


def _versus(first: Row, rival: Row) -> str:
    """Who won, by how much, and how sure one can be, in one sentence."""
    ours = first.after or 0.0
    theirs = rival.after or 0.0
    lead = rival.lead
    if lead is None:
        return (
            f"{first.label} solves {number(ours, True)} of held-out puzzles at the first try, {rival.label} "
            f"{number(theirs, True)}. The two methods were not validated on the same puzzles."
        )
    if not lead.excludes_zero:
        return (
            f"No clear winner: {first.label} solves {number(ours, True)} of held-out puzzles at the first try, "
            f"{rival.label} {number(theirs, True)}. The difference of {points(lead)} may be chance."
        )
    # The interval is of first - rival. If the rival won, it is negated and its ends swap.
    if lead.low < 0:
        lead = Interval(mean=-lead.mean, low=-lead.high, high=-lead.low, n=lead.n)
        first, rival, ours, theirs = rival, first, theirs, ours
    return (
        f"{first.label} wins. {first.label} solves {number(ours, True)} of held-out puzzles at the first try, "
        f"{rival.label} {number(theirs, True)}. The difference is {points(lead)}."
    )


def _certainty(first: str, row: Row, seeds: int, *, numbers: bool) -> str:
    """Whether the difference to a method can be luck; with its numbers unless the verdict has just
    named them."""
    lead = row.lead
    if lead is None:
        return ""
    said = f": {points(lead)}" if numbers else ""
    if not lead.excludes_zero:
        text = f"No difference found between {first} and {row.label}{said}. The CI of the difference includes 0."
        if row.arm == CONTROL:
            text += " So this comparison does not show that training on true next states helps."
        return text
    better, worse = (first, row.label) if lead.low > 0 else (row.label, first)
    # From three seeds on, intervals are over seeds and cover the luck of training (`MANY_SEEDS`).
    luck = "puzzles and training seeds" if seeds >= 3 else "puzzles"
    explained = (
        f"The CI excludes 0, so the choice of {luck} is an unlikely explanation of the difference."
    )
    return f"{better} is better than {worse}{said}. {explained}"


def _every_seed(runs: Sequence[Run]) -> list[str]:
    """How often SPA came out ahead, seed by seed."""
    notes = []
    for run in runs:
        summary = run.summary or {}
        for arm in summary.get("methods", {}):
            rates = [
                [
                    entry.get("methods", {}).get(name, {}).get("after", {}).get("pass@1")
                    for name in ("spa", arm)
                ]
                for entry in summary.get("seeds", ())
            ]
            ahead = [after[0] > after[1] for after in rates if None not in after]
            if ahead and arm != "spa":
                notes.append(
                    f"SPA has a higher Pass@1 than {arm_name(arm)} in {sum(ahead)} of {len(ahead)} training seeds."
                )
    return notes


def _one_seed(runs: Sequence[Run]) -> list[str]:
    if any(len((run.summary or {}).get("seeds", ())) > 1 for run in runs):
        return []
    return [
        "One training seed was run, so the CI covers the choice of puzzles alone. Run with --seeds 3 to cover the "
        "choice of training seeds too."
    ]


def _gates(runs: Sequence[Run]) -> list[str]:
    """The gate's diagnosis of each run in which it failed and PPO ran anyway."""
    notes = []
    for run in runs:
        for stage in run.find("sft"):
            path = stage.path / "gate.json"
            gate = read_object(path)
            if path.exists() and "passed" not in gate:
                raise DataError(
                    f"{path} is damaged. Run the command of this run again to restore the file."
                )
            if gate.get("passed") is False:
                seed = "" if stage.seed is None else f" (seed {stage.seed})"
                where = arm_name(stage.arm) or run.name
                start = (
                    f"{where}{seed}: after fine-tuning, the world model failed the gate before PPO."
                )
                notes.append(printable(f"{start} {gate.get('text', '')}".rstrip()))
    return notes


def judged_at(steps: dict[str, int | None], methods: Sequence[RunArm]) -> list[str]:
    """A note for methods that continued after the step at which they are compared."""
    longer = [
        method.label
        for method in methods
        if (step := steps[method.label]) is not None
        and max(
            (file.step for stage in method.of("ppo") if (file := last_validation(stage))), default=0
        )
        > step
    ]
    if not longer:
        return []
    step = max(step for step in steps.values() if step is not None)
    return [
        f"Methods are compared at PPO step {step}, the last validation that all of them have. "
        f"{' and '.join(longer)} trained for more steps."
    ]


def current_summary(run: Run) -> dict[str, Any]:
    """The summary of a run, without its results while a method is in progress: they are those of an
    earlier run."""
    results = ("methods", "difference", "seeds") if in_progress(run) else ()
    return {key: value for key, value in (run.summary or {}).items() if key not in results}


def how_far(runs: Sequence[Run]) -> str:
    """The methods that have not finished and how far they are, in one sentence; empty if all have
    finished."""
    parts = []
    for run in runs:
        open_methods = unfinished(run)
        for state in open_methods:
            name = arm_name(state.arm) or run.name
            # A run that is one stage, such as an evaluation, has the name of its stage.
            stage = "" if state.stage in ("ppo", name) else f" {state.stage}"
            stage += "" if state.stage == "ppo" else " step"
            where = f" ({run.name})" if len(runs) > 1 and state.arm else ""
            parts.append(printable(f"{name}{where}{stage} {state.steps}"))
        if not open_methods and lacks_summary(run):
            parts.append(printable(f"{run.name} has no summary.json yet"))
    return f"In progress: {', '.join(parts)}." if parts else ""


def seed_table(runs: Sequence[Run]) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    """Name of each seed -> (method, Pass@1 after PPO)."""
    return tuple(
        (
            printable(
                f"{run.name}, seed {entry.get('seed')}".removeprefix(
                    "" if len(runs) > 1 else f"{run.name}, "
                )
            ),
            tuple(
                (arm_name(arm), float(result["after"]["pass@1"]))
                for arm, result in entry.get("methods", {}).items()
                if "pass@1" in result.get("after", {})
            ),
        )
        for run in runs
        for entry in (run.summary or {}).get("seeds", ())
    )
