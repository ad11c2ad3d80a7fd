"""Build charts from metrics, with one line per method and a band that shows the range over
seeds."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spa_report import facts
from spa_report.charts import Bars, Chart, Point, Series, thin
from spa_report.reading import StageFolder
from spa_report.usage import Budget, of_self_play, so_far


@dataclass(frozen=True, slots=True)
class RunArm:
    """One line of a chart: a method of a run, with its stages for all seeds. `color` is the index
    of the method's colour, which is the same in every chart."""

    label: str
    arm: str
    run: str
    folder: str  # name of the run's folder without its parents, as used by the viewer
    color: int
    stages: tuple[StageFolder, ...]

    def of(self, name: str) -> list[StageFolder]:
        """The method's stages called `name`, one per seed. Stages of earlier self-play rounds have
        other names."""
        return [stage for stage in self.stages if stage.name == name]

    def rounds(self, name: str) -> list[list[StageFolder]]:
        """The stages called `name` in all rounds of self-play, grouped by seed."""
        of_seed: dict[int | None, list[StageFolder]] = {}
        for stage in self.stages:
            if stage.name.rpartition(" ")[2] == name:
                of_seed.setdefault(stage.seed, []).append(stage)
        return list(of_seed.values())


@dataclass(frozen=True, slots=True)
class Wanted:
    """A chart that is shown if a run has its metric. `pattern` is a regular expression that matches
    the metric's full name, and `stage` the stage that records it."""

    title: str
    help: str
    pattern: str
    percent: bool = False
    stage: str = "ppo"
    x_label: str = "PPO step"


PASS_1 = Wanted(
    "Pass@1",
    "Share of held-out puzzles that one attempt solves, at each validation. Higher is better.",
    r"val-env/.+/pass@1",
    percent=True,
)
PREDICTION = Wanted(
    "Exact predictions during PPO",
    "Share of turns whose predicted state is exactly the next state. This share may fall, because PPO rewards success.",
    r"(val-env|train)/.+/wm/prediction_em",
    percent=True,
)
WORLD = (
    Wanted(
        "Exact predictions during self-play",
        "Share of turns whose predicted state is exactly the next state. Later rounds play with a fine-tuned model.",
        r"selfplay/wm/prediction_em",
        percent=True,
        stage="data",
        x_label="self-play batch",
    ),
    Wanted(
        "Exact predictions during fine-tuning",
        "Share of turns on held-out puzzles whose predicted state is exactly the next state.",
        r"(.+/)?wm/prediction_em|(.+/)?prediction_exact",
        percent=True,
        stage="sft",
        x_label="fine-tuning step",
    ),
    Wanted(
        "Exact observations during fine-tuning",
        "Share of turns on held-out puzzles in which the model copies the current state exactly.",
        r"(.+/)?wm/obs_exact|(.+/)?observation_exact",
        percent=True,
        stage="sft",
        x_label="fine-tuning step",
    ),
    Wanted(
        "Correctly predicted changed cells during PPO",
        "Share of the changed cells that the model predicts correctly. A copy of the current state scores 0.",
        r"(val-env|train)/.+/wm/changed_acc",
        percent=True,
    ),
    Wanted(
        "Fine-tuning loss",
        "Negative log-likelihood per response token of the training examples.",
        r"(sft/|train/)?(train_)?(loss|nll)",
        stage="sft",
        x_label="fine-tuning step",
    ),
    Wanted(
        "Validation loss of fine-tuning",
        "Negative log-likelihood per response token of examples of held-out puzzles.",
        r"val/(loss|nll)|val_(loss|nll)",
        stage="sft",
        x_label="fine-tuning step",
    ),
)
HEALTH = (
    Wanted(
        "Success while training",
        "Share of training episodes that reach the goal.",
        r"train/.+/success",
        percent=True,
    ),
    Wanted(
        "Reward per episode",
        "Mean reward of a training episode, penalties included, before normalization.",
        r"train/.+/score|critic/(rewards|score)/mean",
    ),
    Wanted(
        "Well-formed responses",
        "Share of the responses of training episodes that have the requested format.",
        r"train/.+/format_rate",
        percent=True,
    ),
    Wanted(
        "Response length",
        "Mean number of tokens that the model writes per episode.",
        r"(train/.+/)?response_length(/mean)?",
    ),
    Wanted(
        "Entropy",
        "Entropy of the policy in nats per token. Near 0 the policy does not explore.",
        r"actor/entropy(_loss)?",
    ),
    Wanted(
        "KL to the sampling policy",
        "Mean KL between the policy that sampled a batch and the policy that trains on the batch. Large values mean "
        "that the updates are too large.",
        r"actor/ppo_kl",
    ),
    Wanted(
        "Clip fraction",
        "Share of tokens whose probability ratio PPO clips.",
        r"actor/pg_clipfrac",
    ),
    Wanted(
        "KL between trainer and sampler",
        "KL between the sampling engine and the trainer at the same weights. Healthy values are near 0.",
        r"rollout/mismatch_kl",
    ),
)


def pass_k(methods: Sequence[RunArm], k: int | None = None) -> Wanted | None:
    """Describe the chart of Pass@k. By default, k is the largest value that the runs recorded.
    Returns None if it is below 2."""
    names = {
        name
        for method in methods
        for stage in method.of("ppo")
        for row in stage.metrics.values()
        for name in row
    }
    points = [
        int(match[1]) for name in names if (match := re.fullmatch(r"val-env/.+/pass@(\d+)", name))
    ]
    k = k or max(points, default=0)
    if k < 2:
        return None
    return Wanted(
        f"Pass@{k}",
        f"Share of held-out puzzles that at least one of {k} attempts solves.",
        rf"val-env/.+/pass@{k}",
        percent=True,
    )


def chart(wanted: Wanted, methods: Sequence[RunArm]) -> Chart | None:
    """Build a chart. Returns None if no method has recorded its metric."""
    series = []
    shaded = dict[str, None]()
    end = 1
    for method in methods:
        tables = []
        for stages in method.rounds(wanted.stage):
            # The axis ends at the last step that any method has recorded, even for other metrics.
            table, last = _rounds(stages, wanted.pattern)
            end = max(end, last)
            if table:
                tables.append((stages[-1], table))
        if tables:
            points, bands = _average([values for _, values in tables])
            name = "range over seeds"
            # A range over seeds needs several seeds. With one seed, Pass@1 shows its confidence
            # interval over puzzles instead.
            if wanted is PASS_1 and len(tables) == 1:
                bands = _puzzle_bands(tables[0][0], points)
                name = "95 % CI over puzzles"
            shaded |= {name: None} if bands else {}
            episodes, tokens = _budget(method, points) if wanted.stage == "ppo" else ((), ())
            series.append(Series(method.label, points, bands, method.color, episodes, tokens))
    if not series:
        return None
    return Chart(
        wanted.title,
        wanted.help,
        tuple(series),
        wanted.x_label,
        wanted.percent,
        " or ".join(shaded),
        end,
    )


def _rounds(stages: Sequence[StageFolder], pattern: str) -> tuple[dict[int, float], int]:
    """Join the rounds of a stage. Returns the values by step, numbered continuously across rounds,
    and the last step."""
    table: dict[int, float] = {}
    last = 0
    for stage in stages:
        # Self-play numbers its batches across rounds, but SFT starts again at step 1 in each round.
        before = last if min(stage.metrics, default=0) <= last else 0
        table |= {before + step: value for step, value in _values(stage, pattern).items()}
        last = before + max(stage.metrics, default=0)
    return table, last


def _values(stage: StageFolder, pattern: str) -> dict[int, float]:
    """Map each step to the value of the metric that matches `pattern`.

    Over several environments, the value is the mean weighted by episodes. Validation metrics take
    precedence over training metrics.
    """
    matcher = re.compile(pattern)
    names = {name for row in stage.metrics.values() for name in row if matcher.fullmatch(name)}
    # Prefer validation metrics, whose names start with `val`, because their puzzles are held out
    # from training.
    held_out = {name for name in names if name.startswith("val")}
    # Sorted, because a sum of floats depends on the order of its terms, and the order of a set
    # differs between processes.
    names = sorted(held_out or names)
    table: dict[int, float] = {}
    for step, row in stage.metrics.items():
        if known := [name for name in names if name in row]:
            weights = [_episodes(name, row) for name in known]
            weights = weights if all(weights) else [1.0] * len(known)
            total = sum(row[name] * weight for name, weight in zip(known, weights, strict=True))
            table[step] = total / sum(weights)
    return table


def _episodes(name: str, row: dict[str, float]) -> float:
    """The number of episodes of the metric's environment, or 0 if not recorded."""
    # The tag of an environment may contain slashes, so look for a count under the longest prefix
    # first.
    parts = name.split("/")
    counts = (row.get("/".join([*parts[:n], "episodes"])) for n in range(len(parts) - 1, 1, -1))
    return next((count for count in counts if count is not None), 0.0)


def _average(rows: Sequence[dict[int, float]]) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
    at: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        for step, value in row.items():
            at[step].append(value)
    # Show only steps that every seed has, so that the mean does not jump where one seed lags
    # behind. If no step is common to all seeds, average the values available at each step.
    steps = sorted(step for step, values in at.items() if len(values) == len(rows)) or sorted(at)
    points = tuple((float(step), sum(at[step]) / len(at[step])) for step in steps)
    return points, tuple((min(at[step]), max(at[step])) for step in steps) if len(rows) > 1 else ()


def _puzzle_bands(stage: StageFolder, points: Sequence[Point]) -> tuple[Point, ...]:
    """Confidence intervals of Pass@1 over puzzles, one per point. Empty if a step has no recorded
    episodes."""
    files = {file.step: file.path for file in stage.trajectory_files() if file.split == "val"}
    wins = [facts.validation(files[int(step)])[1] if step in files else {} for step, _ in points]
    intervals = [facts.rate({None: puzzles}) for puzzles in wins if puzzles]
    # The chart has a band only if every point has an interval.
    return (
        tuple((interval.low, interval.high) for interval in intervals if interval)
        if all(wins)
        else ()
    )


def _budget(method: RunArm, points: Sequence[Point]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The numbers of episodes and tokens that one seed has sampled up to each point, including
    self-play. Empty if unknown."""
    # Self-play runs before PPO, so start from its episodes and tokens.
    before: dict[int | None, Budget] = {}
    for stage in method.stages:
        if played := of_self_play(stage.path, stage.config.get("generate") or {}):
            before[stage.seed] = before.get(stage.seed, Budget()).plus(played)
    # Average over seeds that have played, because one seed may be in PPO while another is still in
    # self-play or SFT.
    start = Budget(*(sum(part) / len(before) for part in zip(*before.values(), strict=True)))
    # Count PPO episodes of one seed only, because all seeds play equally many episodes of similar
    # length.
    used = so_far(start, method.of("ppo")[0].metrics.items())
    if not any(one.episodes for one in used.values()):
        return (), ()
    at = [used.get(int(step), Budget()) for step, _ in points]
    return tuple(one.episodes for one in at), tuple(one.tokens for one in at)


def ends(
    wanted: Wanted, method: RunArm, step: int | None = None
) -> tuple[float | None, float | None]:
    """Return the metric before PPO (step 0), and at its last later step. With `step`, later steps
    are ignored. Both values are means over seeds, or None if not recorded."""
    tables = [_values(stage, wanted.pattern) for stage in method.of(wanted.stage)]
    points = dict(_average([table for table in tables if table])[0])
    last = max((x for x in points if x and (step is None or x <= step)), default=None)
    return points.get(0), None if last is None else points[last]


def system_charts(methods: Sequence[RunArm]) -> Iterator[Chart]:
    """Yield charts of memory and load over the elapsed time of each training, for stages that
    recorded them."""
    # Label, colour and timings of each training.
    trainings = [
        (
            method.label if seed is None else f"{method.label}, seed {seed}",
            method.color,
            [
                row
                for stage in method.stages
                if stage.seed == seed
                for row in stage.timings.values()
                if "unix_time" in row
            ],
        )
        for method in methods
        for seed in dict.fromkeys(stage.seed for stage in method.stages)
    ]
    for title, text, key in (
        ("Memory", "Largest memory so far of the process of each method, in GB.", "perf/memory_gb"),
        ("Load", "Processes of the machine that run or wait, mean of a minute.", "perf/load"),
    ):
        series = []
        for label, color, rows in trainings:
            begin = min((row["unix_time"] for row in rows), default=0.0)
            points = sorted(
                ((row["unix_time"] - begin) / 60, row[key]) for row in rows if key in row
            )
            chosen = tuple(points[index] for index in thin(points))
            if chosen:
                series.append(Series(label, chosen, color=color))
        if series:
            end = max(line.points[-1][0] for line in series)
            yield Chart(title, text, tuple(series), "minutes since the start", end=end)


def time_bars(methods: Sequence[RunArm]) -> Bars | None:
    """Build the table of time in seconds by phase and method, summed over seeds."""
    table = {method.label: _seconds(method) for method in methods}
    phases = dict.fromkeys(phase for row in table.values() for phase in row)
    largest = sorted(phases, key=lambda phase: -sum(row[phase] for row in table.values()))
    if not largest:
        return None
    # Give the six largest phases a column each, because more columns are unreadable.
    groups = {phase: [phase] for phase in largest[:6]}
    groups |= {"other": largest[6:]} if largest[6:] else {}
    rows = tuple(
        (label, tuple(sum(row[phase] for phase in group) for group in groups.values()))
        for label, row in table.items()
        if sum(row.values()) > 0
    )
    return Bars(
        "Time by phase",
        "Seconds by stage and phase, summed over seeds. Phases without a timer are not counted.",
        tuple(groups),
        rows,
        unit=" s",
    )


def _seconds(method: RunArm) -> defaultdict[str, float]:
    totals = defaultdict[str, float](float)
    for stage in method.stages:
        for row in stage.timings.values():
            for name, seconds in row.items():
                phase = name.removeprefix("timing_s/")
                # The timers `step` and `total` include the other phases, so adding them would count
                # time twice.
                if phase != name and phase not in ("step", "total"):
                    totals[f"{stage.name}: {phase}"] += seconds
    return totals
