"""The result of a report: the table of methods, the verdict in one sentence, and notes on its
certainty.

A finished comparison is judged at the same steps as in its summary, and an unfinished one at the
last validation that all its methods have. A method that was trained longer, until total episodes
were equal, has an additional row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from spa.errors import DataError
from spa.evaluation.statistics import MANY_SEEDS, Interval
from spa.run.console import printable
from spa.run.estimate import PLAN
from spa.run.files import UNMEASURED, read_object
from spa_report import facts
from spa_report.charts import number
from spa_report.curves import PASS_1, RunArm, Wanted, ends, pass_k
from spa_report.progress import failures, in_progress, lacks_summary, unfinished
from spa_report.reading import ARM_ORDER, RunFolder, StageFolder, flatten, last_validation

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
        "of the control over vanilla does not come from a correct world model.",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """The result of one method of a run over its training seeds. All tables are made from these.

    `what` describes the method, and `color` is the index of its colour. `before` and `after` are
    Pass@1 before and after PPO, from 0 to 1, and `before_k` and `after_k` are Pass@k.
    `before_interval` and `interval` are Pass@1 with confidence intervals. `ppo_episodes` omits
    self-play, and `all_episodes` includes it. Values are None if not recorded.
    """

    label: str
    arm: str
    what: str = ""
    run: str = ""
    color: int = 0
    state: str = ""
    """Progress of the method, for the list of runs."""
    before: float | None = None
    after: float | None = None
    before_interval: Interval | None = None
    interval: Interval | None = None
    before_k: float | None = None
    after_k: float | None = None
    lead: Interval | None = None
    """Pass@1 of the first method minus Pass@1 of this one. None for the first method itself."""
    lead_seeds: int = 1
    """Number of training seeds that `lead` pairs."""
    ppo_episodes: int | None = None
    all_episodes: int | None = None
    tokens: int | None = None
    seconds: float | None = None


def recorded(
    summary: dict[str, Any], arm: str, k: str = "pass@8", *, longer: bool = False
) -> MethodResult:
    """Read a method's results from `summary.json`. With `longer`, read the results at the end of
    its longer training, beyond the step at which all methods are compared."""
    rates = summary.get("methods", {}).get(arm, {})
    start = rates.get("before", {})
    end = rates.get("after_total" if longer else "after", {})
    episodes = summary.get("episodes", {})
    totals = {
        name: played.get("ppo", 0) + played.get("self_play", 0) for name, played in episodes.items()
    }
    ppo = episodes.get(arm, {}).get("ppo")
    total = totals.get(arm)
    if longer:
        # Older summaries lack `ppo_longer`. They use the largest total of any method instead.
        most = max(totals.values(), default=None)
        ppo = total = episodes.get(arm, {}).get("ppo_longer", most)
    # The keys are `<arm>/<stage>`.
    seconds = [s for name, s in summary.get("seconds", {}).items() if name.startswith(f"{arm}/")]
    gap = summary.get("difference", {}).get(f"{arm}_same_total_episodes" if longer else arm)
    return MethodResult(
        label=f"{arm}, trained longer" if longer else arm,
        arm=arm,
        what=summary.get("descriptions", {}).get(arm, ""),
        before=start.get("pass@1"),
        after=end.get("pass@1"),
        before_k=start.get(k),
        after_k=end.get(k),
        # Older summaries lack `n` and `over`.
        lead=gap and Interval(**{"n": 0, "over": "seeds"} | gap),
        ppo_episodes=ppo,
        all_episodes=total,
        tokens=summary.get("sampled_tokens", {}).get(arm, {}).get("longer" if longer else "after"),
        seconds=sum(seconds) if seconds and not longer else None,
    )


def all_recorded(summary: dict[str, Any]) -> list[MethodResult]:
    """The results of every method of a comparison. If a method was trained longer, the results of
    that training follow."""
    return [
        recorded(summary, arm, longer=longer)
        for arm, rates in summary.get("methods", {}).items()
        for longer in (False, True)
        if not longer or "after_total" in rates
    ]


def measured(method: RunArm, step: int | None) -> MethodResult:
    """Compute a method's Pass@1 with intervals from recorded episodes, before PPO and at its last
    validation up to `step`."""
    ppo = method.of("ppo")
    # Step 0 selects the validation before PPO, even if later ones are recorded.
    before = facts.rate(facts.behaviour_and_wins(ppo, 0)[1])
    return MethodResult(
        label=method.label,
        arm=method.arm,
        run=method.run,
        color=method.color,
        before_interval=before,
        interval=facts.rate(facts.behaviour_and_wins(judged_stages(method, step), step)[1]),
    )


def judged_stages(method: RunArm, step: int | None) -> list[StageFolder]:
    """The stages whose last validation up to `step` is the method's result. These are its PPO
    stages that were validated after step 0, or its evaluations if it has no PPO stage."""
    ppo = method.of("ppo")
    validated = [stage for stage in ppo if (file := last_validation(stage, step)) and file.step > 0]
    return validated if ppo else method.of("eval")


def arm_name(arm: str) -> str:
    """The display name of a method, which is `arm` itself for methods outside `ARMS`."""
    return ARMS.get(arm, (arm, ""))[0]


def list_methods(runs: Sequence[RunFolder], *, with_data_alone: bool = False) -> list[RunArm]:
    """List every method of every run, in the order of a report. With `with_data_alone`, include
    methods that only collected data."""
    methods: list[RunArm] = []
    colors = colors_of(runs)
    for run in runs:
        for arm in run.arms():
            stages = tuple(stage for stage in run.stages if stage.arm == arm)
            recorded = arm in (run.summary or {}).get("methods", {})
            # A method that only collected data (stages `data` and `generate`) has no result to
            # compare.
            if not (recorded or with_data_alone) and not any(
                stage.name.rpartition(" ")[2] in ("ppo", "sft", "eval") for stage in stages
            ):
                continue
            name = arm_name(arm) or run.name
            label = f"{name} ({run.name})" if len(runs) > 1 and arm else name
            folder = run.path.resolve().name
            color = colors[run.name, arm]
            methods.append(RunArm(printable(label), arm, run.name, folder, color, stages))
    return methods


def colors_of(runs: Sequence[RunFolder]) -> dict[tuple[str, str], int]:
    """Map each (run, method) to the index of its colour, which does not change while the run
    progresses. Known methods have fixed colours. Other methods get the following ones, in the order
    of the plan."""
    colors: dict[tuple[str, str], int] = {}
    for run in runs:
        order = read_object(run.path / PLAN).get("order")
        planned = [str(arm) for arm in order] if isinstance(order, list) else []
        for arm in dict.fromkeys([*planned, *run.arms()]):
            color = ARM_ORDER.index(arm) if arm in ARM_ORDER[:-1] else len(ARM_ORDER) - 1
            # A run without methods gets the first colour.
            color = color if arm else 0
            while color in colors.values():
                color += 1
            colors[run.name, arm] = color
    return colors


def judged_steps(
    methods: Sequence[RunArm], summaries: dict[str, dict[str, Any]]
) -> dict[str, int | None]:
    """Map the label of each method to the step whose validation is its result, or to None if it was
    not validated after step 0.

    A method in its run's summary is judged at its own last validation. The other methods of a run
    are judged at the last validation that all of them have. Steps beyond `also_test_at` do not
    count.
    """
    groups = {method.label: _judged_with(method, summaries[method.run]) for method in methods}
    last: dict[tuple[str, str], list[int]] = {group: [] for group in groups.values()}
    for method in methods:
        for stage in method.of("ppo"):
            # A method that was only validated before PPO has no result yet.
            if (file := last_validation(stage)) and file.step > 0:
                last[groups[method.label]].append(
                    # A method that continues until total episodes are equal is compared with the
                    # others at the step `also_test_at`.
                    min(file.step, flatten(stage.config).get("trainer.also_test_at") or file.step)
                )
    return {label: min(last[group], default=None) for label, group in groups.items()}


def _judged_with(method: RunArm, summary: dict[str, Any]) -> tuple[str, str]:
    """The key of the group of methods that are compared at the same step. A method in its run's
    summary is a group of its own. The other methods of a run form one group."""
    return method.run, method.arm if method.arm in summary.get("methods", {}) else ""


def pass_k_chart(methods: Sequence[RunArm], summaries: dict[str, dict[str, Any]]) -> Wanted | None:
    """Choose the chart of Pass@k: Pass@8 if a summary reports it, otherwise the largest recorded
    k."""
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
) -> list[MethodResult]:
    """Build the rows of the table. For a single run, the reference (SPA by default) comes first,
    then vanilla, then the other methods from best to worst. With several runs, all methods are
    sorted from best to worst."""
    results = []
    for method in methods:
        row = _row(method, steps[method.label], summaries[method.run], wanted_k)
        if row.after is not None or row.before is not None:
            results.append(row)
    # In a comparison, the reference comes first and vanilla second. With several runs, the best
    # method comes first.
    rank = {summaries[results[0].run].get("reference", "spa"): 0, "vanilla": 1} if results else {}
    several = len({method.run for method in methods}) > 1
    results.sort(key=lambda row: (0 if several else rank.get(row.arm, 2), -(row.after or 0)))
    if not results:
        return []
    first = results[0]
    table = [replace(first, lead=None)]
    ppo = {method.label: method.of("ppo") for method in methods}
    for row in results[1:]:
        summary = summaries[row.run]
        lines = [(row, outcomes[row.label][1])]
        if summary.get("methods", {}).get(row.arm, {}).get("after_total"):
            lines.append((_longer(row, summary), facts.behaviour_and_wins(ppo[row.label])[1]))
        # The summary's difference pairs puzzles over all seeds, but it is relative to the summary's
        # reference. If another method is first here, compute the difference from recorded episodes.
        same = (first.arm, first.run) == (summary.get("reference", "spa"), row.run)
        for line, wins in lines:
            lead = line.lead if same else None
            seeds = len(summary.get("seeds", ()))
            if lead is None:
                ours = outcomes[first.label][1]
                lead = facts.difference(ours, wins)
                seeds = len(facts.paired(ours, wins))
            table.append(replace(line, lead=lead, lead_seeds=seeds))
    return table


def _row(
    method: RunArm, step: int | None, summary: dict[str, Any], wanted_k: Wanted | None
) -> MethodResult:
    row = recorded(summary, method.arm, wanted_k.title.lower() if wanted_k else "")
    shown = measured(method, step)
    start, end = ends(PASS_1, method, step)
    # Prefer rates from episodes, because metrics are means over tags.
    if shown.before_interval is not None:
        start = shown.before_interval.mean
    if shown.interval is not None:
        end = shown.interval.mean
    start_k, end_k = ends(wanted_k, method, step) if wanted_k else (None, None)
    rates = {"before": start, "after": end, "before_k": start_k, "after_k": end_k}
    return replace(
        shown,
        what=ARMS[method.arm][1] if method.arm in ARMS else row.what,
        lead=row.lead,
        ppo_episodes=row.ppo_episodes,
        all_episodes=row.all_episodes,
        tokens=row.tokens,
        seconds=row.seconds,
        # Values that the summary lacks come from metrics and episodes.
        **{
            name: value if getattr(row, name) is None else getattr(row, name)
            for name, value in rates.items()
        },
    )


def _longer(row: MethodResult, summary: dict[str, Any]) -> MethodResult:
    """The row of a method that continued until its total number of episodes equalled SPA's."""
    return replace(
        recorded(summary, row.arm, longer=True),
        label=f"{row.label}, trained longer",
        what="PPO continues until the method has played as many episodes as SPA in self-play and PPO together.",
        run=row.run,
        color=row.color,
        before=row.before,
        before_k=row.before_k,
        before_interval=row.before_interval,
    )


def points(interval: Interval) -> str:
    """Format a difference of shares in percentage points, with its interval."""
    mean, low, high = (100 * value for value in (interval.mean, interval.low, interval.high))
    return f"{mean:+.1f} points (95 % CI [{low:+.1f}, {high:+.1f}])"


def verdict(table: Sequence[MethodResult], runs: Sequence[RunFolder]) -> tuple[str, list[str]]:
    """Return the result in one sentence, and notes on its certainty. While a method is in progress,
    the sentence describes the progress instead."""
    if text := describe_progress(runs):
        return text, _gates(runs)
    table = [row for row in table if row.after is not None]
    if not table:
        return _evaluations(
            runs
        ) or "There is no result yet, because no validation after PPO has been recorded.", _gates(
            runs
        )
    first = table[0]
    ending = f"{number(first.after or 0, True)} of held-out puzzles at the first try"
    if len(table) == 1:
        start = (
            f" after PPO, and {number(first.before, True)} before PPO"
            if first.before is not None
            else ""
        )
        spread = first.interval
        ends = (number(spread.low, True), number(spread.high, True)) if spread else ()
        # The same rule as in `_significance`.
        seeds = max(map(_seeds, runs))
        several = spread is not None and seeds >= MANY_SEEDS and spread.over == "seeds"
        over = "puzzles and training seeds" if several else "puzzles"
        sure = [f"95 % CI over {over} [{', '.join(ends)}]."] if spread else []
        return f"{first.label} solves {ending}{start}.", [*sure, *_one_seed(runs), *_gates(runs)]
    rival = table[1]
    text = _compare_pair(first, rival)
    sure = [
        _significance(first.label, row, numbers=row is not rival) for row in table[1:] if row.lead
    ]
    return text, [*sure, *_every_seed(runs), *_one_seed(runs), *_gates(runs)]


def _evaluations(runs: Sequence[RunFolder]) -> str:
    """Describe the Pass@1 of each finished evaluation, with its interval. Empty if there is no
    evaluation."""
    results = []
    for stage in (stage for run in runs for stage in run.stages):
        # Read the result file instead of the episodes. There may be more episodes, because an
        # evaluation with other puzzles, samples or models may be in progress.
        tags = read_object(stage.evaluation).get("tags", {})
        for tag, metrics in tags.items():
            if interval := metrics.get("pass@1"):
                of_tag = f", {printable(tag)}" if len(tags) > 1 else ""
                mean, low, high = (number(interval[name], True) for name in ("mean", "low", "high"))
                results.append(
                    f"{printable(stage.path.name)}{of_tag}: Pass@1 {mean} on {interval['n']} "
                    f"puzzles (95 % CI over puzzles [{low}, {high}])."
                )
    return " ".join(results)


def _compare_pair(first: MethodResult, rival: MethodResult) -> str:
    """Compare two methods in up to three sentences: the Pass@1 of each, the difference, and its
    certainty."""
    ours = first.after or 0.0
    theirs = rival.after or 0.0
    lead = rival.lead
    # The methods may have been validated on different puzzles, of which they share only some.
    shared = (
        f" on the {lead.n} puzzles that both played"
        if lead is not None and abs(ours - theirs - lead.mean) > 1e-3
        else ""
    )
    if lead is None:
        return (
            f"{first.label} solves {number(ours, True)} of held-out puzzles at the first try, and {rival.label} "
            f"solves {number(theirs, True)}. The two methods were not validated on the same puzzles."
        )
    if not lead.excludes_zero:
        return (
            f"No clear winner: {first.label} solves {number(ours, True)} of held-out puzzles at the first try, "
            f"and {rival.label} solves {number(theirs, True)}. The difference of {points(lead)}{shared} may be chance."
        )
    # The interval is for first - rival. If the rival won, negate the difference and swap the ends
    # of the interval.
    if lead.low < 0:
        lead = Interval(mean=-lead.mean, low=-lead.high, high=-lead.low, n=lead.n)
        first, rival, ours, theirs = rival, first, theirs, ours
    return (
        f"{first.label} wins. {first.label} solves {number(ours, True)} of held-out puzzles at the first try, "
        f"and {rival.label} solves {number(theirs, True)}. The difference is {points(lead)}{shared}."
    )


def _significance(first: str, row: MethodResult, *, numbers: bool) -> str:
    """Describe whether the difference between `first` and the method of `row` may be chance. With
    `numbers`, the text includes the difference, for methods that the verdict does not mention."""
    lead = row.lead
    if lead is None:
        return ""
    said = f": {points(lead)}" if numbers else ""
    if not lead.excludes_zero:
        text = f"No difference found between {first} and {row.label}{said}. The CI of the difference includes 0."
        if row.arm == CONTROL:
            text += " The comparison does not show that training on true next states helps."
        return text
    better, worse = (first, row.label) if lead.low > 0 else (row.label, first)
    # With at least `MANY_SEEDS` seeds, intervals are over seeds. They then include the variance
    # between training runs, unless all seeds have the same mean.
    seeds = row.lead_seeds >= MANY_SEEDS and lead.over == "seeds"
    luck = "puzzles and training seeds" if seeds else "puzzles"
    explained = (
        f"The CI excludes 0, so the choice of {luck} is an unlikely explanation of the difference."
    )
    return f"{better} is better than {worse}{said}. {explained}"


def _every_seed(runs: Sequence[RunFolder]) -> list[str]:
    """Return one note per other method: the number of seeds in which SPA has a higher Pass@1."""
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
                where = f" ({run.name})" if len(runs) > 1 else ""
                notes.append(
                    f"SPA has a higher Pass@1 than {arm_name(arm)} in {sum(ahead)} of {len(ahead)} training "
                    f"seeds{where}."
                )
    return notes


def _seeds(run: RunFolder) -> int:
    """Number of training seeds of a run. Seed folders count, too, because a leaderboard of `spa
    bench` has no summary."""
    played = {stage.seed for stage in run.find("ppo")}
    return max(len((run.summary or {}).get("seeds", ())), len(played))


def _one_seed(runs: Sequence[RunFolder]) -> list[str]:
    single = [run.name for run in runs if _seeds(run) < 2]
    if not single:
        return []
    whose = f" of {' and '.join(single)}" if len(single) < len(runs) else ""
    return [
        printable(
            f"One training seed{whose} was run, so the CI covers the choice of puzzles alone. "
            "Run with --seeds 3 to cover the choice of training seeds too."
        )
    ]


def _gates(runs: Sequence[RunFolder]) -> list[str]:
    """Notes on world models that failed the world-model gate after fine-tuning, with the gate's
    diagnosis. Raises DataError if a gate file is damaged."""
    notes = []
    for run in runs:
        for stage in run.find("sft"):
            path = stage.path / "gate.json"
            gate = read_object(path)
            if path.exists() and "passed" not in gate:
                raise DataError(
                    f"{path} is damaged. Run the command of this run again to restore the file."
                )
            if gate.get("passed") is False and gate.get("diagnosis") not in UNMEASURED:
                seed = "" if stage.seed is None else f" (seed {stage.seed})"
                where = arm_name(stage.arm) or run.name
                start = (
                    f"{where}{seed}: the world model failed the world-model gate after fine-tuning."
                )
                notes.append(printable(f"{start} {gate.get('text', '')}".rstrip()))
    return notes


def step_note(steps: dict[str, int | None], methods: Sequence[RunArm]) -> list[str]:
    """A note that names the methods that were trained beyond the step at which they are compared.
    Empty if there are none."""
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
    judged = {method.label: step for method in methods if (step := steps[method.label]) is not None}
    if len(set(judged.values())) == 1:
        step = judged[longer[0]]
        where = (
            f"Methods are compared at PPO step {step}, the last validation that all of them have."
        )
    else:
        named = ", ".join(f"{label} {step}" for label, step in judged.items())
        where = f"Each method is compared at its own PPO step: {named}."
    return [f"{where} {' and '.join(longer)} trained for more steps."]


def current_summary(run: RunFolder) -> dict[str, Any]:
    """The summary of a run. While a method is in progress, its results are omitted, because they
    belong to an earlier run."""
    results = ("methods", "difference", "seeds") if in_progress(run) else ()
    return {key: value for key, value in (run.summary or {}).items() if key not in results}


def describe_progress(runs: Sequence[RunFolder]) -> str:
    """Describe the progress of unfinished methods in one sentence. Empty if all have finished."""
    parts = []
    failed = []
    for run in runs:
        open_methods = unfinished(run)
        own_failed = failures(run)
        failed += [
            f"Failed: {printable(text.splitlines()[0].removesuffix('.'))}." for text in own_failed
        ]
        for state in open_methods:
            name = arm_name(state.arm) or run.name
            # A run with a single stage, such as an evaluation, has the same name as the stage.
            stage = "" if state.stage in ("ppo", name) else f" {state.stage}"
            stage += "" if state.stage == "ppo" else " step"
            where = f" ({run.name})" if len(runs) > 1 and state.arm else ""
            parts.append(printable(f"{name}{where}{stage} {state.steps}"))
        if not open_methods and lacks_summary(run) and not own_failed:
            parts.append(
                printable(f"{run.name} has finished all stages, but summary.json is missing")
            )
    return " ".join([*failed, *([f"In progress: {', '.join(parts)}."] if parts else [])])


def seed_table(runs: Sequence[RunFolder]) -> tuple[tuple[str, tuple[tuple[str, float], ...]], ...]:
    """List the training seeds in the summaries: the name of each seed, and (method, Pass@1 after
    PPO) for every method."""
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
