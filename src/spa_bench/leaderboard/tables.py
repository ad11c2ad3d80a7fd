"""The leaderboard of a benchmark: one row per training run, tables at equal budgets, and the page
in Markdown and HTML."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np

from spa.evaluation.aggregate import DIGITS, interval_json
from spa.evaluation.statistics import (
    MANY_SEEDS,
    iqm_interval,
    paired_by_puzzle,
    probability_of_improvement,
)
from spa.evaluation.text import interval_text, percent
from spa.tables import Table
from spa_bench.q_learning.validation import OTHER, SAME
from spa_report.security import page_policy
from spa_report.usage import Budget
from spa_sweeps.methods import REFERENCE, SHUFFLED
from spa_sweeps.results import SeedResult, per_puzzle

MEASURES = {"environment_steps": "environment steps", "tokens": "tokens"}
"""Budgets at which methods are compared, and their display names."""
BASELINE = "vanilla"


Row = dict[str, Any]


def row_of(
    name: str,
    board: str,
    result: SeedResult,
    *,
    optimum: float | None,
    budget: Mapping[int, Budget],
) -> Row:
    """Convert one training run to a JSON-ready row. `curve` has the step, environment steps, tokens
    and Pass@1 of each validation."""
    means = {
        moment: round(float(np.mean(list(per_puzzle(puzzles, 1).values()))), 4)
        for moment, puzzles in result.moments.items()
    }
    curve = [
        {
            "step": step,
            **{measure: round(getattr(budget[step], measure)) for measure in MEASURES},
            "pass@1": round(values[0], 4),
        }
        for step, values in sorted(result.curve.items())
        # The cost of a step without a line in metrics.jsonl is unknown.
        if step in budget
    ]
    return {
        "method": name,
        "env": board,
        "seed": result.seed,
        "control_of": name.removesuffix(SHUFFLED) if name.endswith(SHUFFLED) else None,
        "pass@1": means,
        "optimum": optimum,
        "world_model": dict(result.world_model),
        "curve": curve,
    }


def at_budget(curve: Sequence[Mapping[str, float]], measure: str, budget: float) -> float | None:
    """Pass@1 of a training run at the point where it had used `budget`, interpolated linearly
    between validations. None if the run was not in PPO at that point."""
    xs = [point[measure] for point in curve]
    ys = [point["pass@1"] for point in curve]
    if not xs or not xs[0] <= budget <= xs[-1]:
        return None
    return round(float(np.interp(budget, xs, ys)), 4)


def leaderboard(
    rows: Sequence[Row], seeds_of: Mapping[tuple[str, str], Sequence[SeedResult]]
) -> Row:
    """Compare the methods at equal budgets, and add to every row its Pass@1 at each budget.

    * `budgets`: per measure and board, the smallest final usage of any training run.
    * `leaderboard`: per measure, the methods ordered by interquartile mean.
    * `differences`: per method, the differences in Pass@1 from the reference and from its shuffled
      control. They are measured after equally many PPO episodes, and paired by puzzle over all
      boards.
    """
    budgets: dict[str, dict[str, float]] = {}
    played = [row for row in rows if row["curve"]]
    for measure in MEASURES:
        # Every curve reaches the smallest final usage of any training run, so none is extrapolated.
        budgets[measure] = {
            board: min(row["curve"][-1][measure] for row in played if row["env"] == board)
            for board in dict.fromkeys(row["env"] for row in played)
        }
        for row in rows:
            budget = budgets[measure].get(row["env"])
            row[f"at_{measure}"] = (
                None if budget is None else at_budget(row["curve"], measure, budget)
            )
    names = list(dict.fromkeys(name for _, name in seeds_of))
    return {
        "budgets": budgets,
        "leaderboard": {measure: _entries(rows, names, measure) for measure in MEASURES},
        "differences": {name: _differences(seeds_of, name) for name in names},
    }


def _entries(rows: Sequence[Row], names: Sequence[str], measure: str) -> list[Row]:
    """Create one entry per method with any result. A method that lacks a board has no interquartile
    mean and is listed last."""
    boards = list(dict.fromkeys(row["env"] for row in rows))
    scores = {name: _scores(rows, name, boards, measure) for name in names}
    entries = []
    for name in names:
        values = {board: _values(rows, name, board, measure) for board in boards}
        if not any(values.values()):
            continue
        entry: Row = {
            "method": name,
            "boards": {
                board: None if (mean := _mean(part)) is None else round(mean, 4)
                for board, part in values.items()
            },
            "iqm": None,
        }
        # An interquartile mean over fewer boards is not comparable, so require a score on every
        # board.
        if all(scores[name]):
            entry["iqm"] = interval_json(iqm_interval(scores[name]))
            for other in (REFERENCE, BASELINE):
                if other != name and other in scores and all(scores[other]):
                    better = probability_of_improvement(scores[name], scores[other])
                    entry[f"better_than_{other}"] = {"mean": round(better, DIGITS)}
        entries.append(entry)
    # The negative mean is at most 0, so 1.0 puts methods without an interquartile mean last.
    return sorted(entries, key=lambda entry: -entry["iqm"]["mean"] if entry["iqm"] else 1.0)


def _values(rows: Sequence[Row], name: str, board: str, measure: str) -> list[float]:
    values = [row[f"at_{measure}"] for row in rows if (row["method"], row["env"]) == (name, board)]
    return [value for value in values if value is not None]


def _scores(
    rows: Sequence[Row], name: str, boards: Sequence[str], measure: str
) -> list[list[float]]:
    """Return, for each board, the Pass@1 of every training run, divided by the board's optimum if
    that is known."""
    return [
        [
            row[f"at_{measure}"] / (row["optimum"] or 1.0)
            for row in rows
            if (row["method"], row["env"]) == (name, board) and row[f"at_{measure}"] is not None
        ]
        for board in boards
    ]


def _differences(seeds_of: Mapping[tuple[str, str], Sequence[SeedResult]], name: str) -> Row:
    """Compute the difference in Pass@1 between the method and the reference (`reference`), and
    between the method and its shuffled control (`control`). None if there is nothing to compare.

    Each difference pools the puzzles of all boards that both methods have. It uses only seeds that
    both have on all these boards.
    """
    out: Row = {}
    for key, other in (("reference", REFERENCE), ("control", f"{name}{SHUFFLED}")):
        boards = [
            board
            for board, method in seeds_of
            if method == name and seeds_of[board, name] and seeds_of.get((board, other))
        ]
        sides = [
            {board: _after(seeds_of[board, method]) for board in boards} for method in (name, other)
        ]
        # Differences are paired within a seed, so use only seeds that both methods have on every
        # board.
        shared = (
            set.intersection(*(set(side[board]) for side in sides for board in boards))
            if boards
            else set()
        )
        firsts, seconds = (
            [
                {
                    # Boards may share puzzle names, so the board is part of the key.
                    f"{board}/{puzzle}": value
                    for board in boards
                    for puzzle, value in side[board][seed].items()
                }
                for seed in sorted(shared)
            ]
            for side in sides
        )
        # Skip the reference itself, whose difference would be exactly 0.
        gap = (
            paired_by_puzzle(list(zip(firsts, seconds, strict=True)), seed=0)
            if other != name
            else None
        )
        out[key] = None if gap is None else interval_json(gap)
    return out


def _after(results: Sequence[SeedResult]) -> dict[int, dict[str, float]]:
    """Map each seed to its Pass@1 by puzzle, measured after equally many PPO episodes."""
    return {
        one.seed: per_puzzle(one.moments["after"], 1) for one in results if "after" in one.moments
    }


def tables(result: Mapping[str, Any]) -> list[tuple[str, str, Table]]:
    """Build the tables of the page, each as (title, text, table)."""
    rows = result["rows"]
    boards = list(dict.fromkeys(row["env"] for row in rows))
    out: list[tuple[str, str, Table]] = []
    for measure, words in MEASURES.items():
        budgets = result["budgets"][measure]
        text = ", ".join(
            f"{budgets[board]:,.0f} on {board}" for board in boards if board in budgets
        )
        head = [
            "method",
            *boards,
            "interquartile mean",
            f"better than {REFERENCE}",
            f"better than {BASELINE}",
        ]
        body = [
            [
                entry["method"],
                *(percent(entry["boards"][board]) for board in boards),
                interval_text(entry["iqm"]),
                interval_text(entry.get(f"better_than_{REFERENCE}")),
                interval_text(entry.get(f"better_than_{BASELINE}")),
            ]
            for entry in result["leaderboard"][measure]
        ]
        body += _q_rows(result, boards)
        body.append(
            ["optimum", *(percent(_optimum(rows, board)) for board in boards), "100", "–", "–"]
        )
        table = Table(head, body, right=range(1, len(head)))
        out.append((f"At equal {words}", f"The budget is {text}.", table))
    out.append(
        (
            "At equal PPO episodes",
            "Differences of Pass@1 in points at the same number of PPO episodes, paired by puzzle, board and seed. "
            f"Brackets are 95 % t intervals over seeds. With fewer than {MANY_SEEDS} seeds, intervals are over puzzles "
            "and do not cover training seeds. A shuffled control is a method with SFT on next states of other turns. "
            "If a method is no better than the shuffled control, the gain of the method does not "
            "come from a correct world model. The column "
            "of predictions shows the percentage of exact predictions after SFT. Brackets, if any, show how many of "
            "the measured puzzles were seen in training. Predictions and trained tokens are means over the method's "
            "boards.",
            Table(
                (
                    "method",
                    f"minus {REFERENCE}",
                    "minus its shuffled control",
                    "predictions",
                    "trained tokens",
                    "description",
                ),
                [_difference_row(result, name) for name in result["differences"]],
                right=range(1, 5),
            ),
        )
    )
    return out


def _q_rows(result: Mapping[str, Any], boards: Sequence[str]) -> list[list[str]]:
    """Rows of tabular Q-learning with the budget of environment steps. It uses no tokens, so both
    tables have the same rows."""
    q_learning = result.get("q_learning", {})
    rows = []
    for kind in (OTHER, SAME):
        means = [_mean(part[kind] for part in q_learning.get(board, ())) for board in boards]
        if any(mean is not None for mean in means):
            rows.append([f"Q-learning, {kind}", *map(percent, means), "–", "–", "–"])
    return rows


def _difference_row(result: Mapping[str, Any], name: str) -> list[str]:
    gaps = result["differences"][name]
    played = _boards(result, name)
    controlled = _boards(result, f"{name}{SHUFFLED}")
    control = (
        interval_text(gaps["control"], sign="+") + _subset_label(controlled & played, played)
        if gaps["control"]
        else "not run"
    )
    return [
        name + _subset_label(_with_reference(result, name), _every(result)),
        interval_text(gaps["reference"], sign="+"),
        control,
        percent(_known(result["rows"], name)) + _seen(result["rows"], name),
        f"{np.mean([row.get('learnt_tokens', 0) for row in result['rows'] if row['method'] == name] or [0]):,.0f}",
        result["descriptions"].get(name, ""),
    ]


def _every(result: Mapping[str, Any]) -> set[str]:
    return {row["env"] for row in result["rows"]}


def _with_reference(result: Mapping[str, Any], name: str) -> set[str]:
    """The boards that both the method and the reference have, which their difference covers."""
    return _boards(result, name) & _boards(result, REFERENCE)


def _boards(result: Mapping[str, Any], name: str) -> set[str]:
    return {row["env"] for row in result["rows"] if row["method"] == name}


def _subset_label(boards: set[str], of: set[str]) -> str:
    """Name the boards in brackets if they are a proper subset of `of`, else return ""."""
    # For sets, `<` means a proper subset.
    return f" ({', '.join(sorted(boards))} alone)" if boards and boards < of else ""


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the known values, or None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _optimum(rows: Sequence[Row], board: str) -> float | None:
    return _mean(row["optimum"] for row in rows if row["env"] == board)


INTRODUCTION = (
    "Percent of held-out puzzles solved (Pass@1). "
    "The interquartile mean is over boards and seeds, in percent of the board's optimum, with 95 % t intervals "
    "over seeds. "
    "The optimum is the success rate of the best policy with the same limit of actions, on the same puzzles. "
    "“Better than” is the probability that a training of one method beats a training of another method on a random "
    "board, where a tie counts half (arXiv 2108.13264). "
    "Budgets include self-play. Between two validations, a curve is interpolated linearly. "
    "A dash means that the method had not started PPO at this budget, or did not finish. "
    "Tokens are sampled tokens. The last table lists the trained tokens. "
    "Q-learning is tabular, uses no language model, and has the environment steps of the first budget. "
    "On other puzzles, Q-learning acts at random in new states. On the puzzle itself, Q-learning first trains on each "
    "reported puzzle, which no other method does."
)


def verdicts(result: Mapping[str, Any]) -> list[str]:
    """Summarize the tables in sentences: the methods that help, on which boards, and their cost."""
    gaps = result["differences"]
    against = {name: gap["reference"] for name, gap in gaps.items() if gap["reference"]}
    controls = {name: gap["control"] for name, gap in gaps.items() if gap["control"]}
    played = {name: _with_reference(result, name) for name in against}
    lines = _group_by_sign(
        against,
        played,
        tuple(
            f"Methods {side} {REFERENCE} (Pass@1 difference in points, with equal PPO episodes)"
            for side in (
                "that are better than",
                "that are worse than",
                "with no detected difference from",
            )
        ),
        _every(result),
    )
    lines += _group_by_sign(
        controls,
        {name: _boards(result, name) & _boards(result, f"{name}{SHUFFLED}") for name in controls},
        (
            "Methods that are better than their shuffled control, so that the true next states explain the gain",
            "Methods that are worse than their shuffled control",
            "Methods with no detected difference from their shuffled control, so that the gain may have another cause",
        ),
        _every(result),
    )
    for board in dict.fromkeys(row["env"] for row in result["rows"]):
        one, other = (_mean_after(result["rows"], name, board) for name in (REFERENCE, BASELINE))
        known = _known(result["rows"], REFERENCE, board)
        if one is not None and other is not None and known is not None:
            lines.append(
                f"On {board}, {REFERENCE} solves {percent(one)} % of the puzzles, and {BASELINE} "
                f"solves {percent(other)} %. "
                f"After SFT, {percent(known)} % of the predictions are exact."
            )
    # The number of tokens depends on the boards, so methods with different boards get separate
    # sentences.
    cost: dict[str, list[str]] = {}
    for name in gaps:
        if (tokens := _sampled(result["rows"], name)) is not None:
            alone = _subset_label(_boards(result, name), _every(result))
            cost.setdefault(alone, []).append(f"{name} {tokens:,.0f}")
    return [
        *lines,
        *(
            f"Tokens sampled per training, including self-play{alone}: {', '.join(boards)}."
            for alone, boards in sorted(cost.items())
        ),
    ]


def _group_by_sign(
    gaps: Mapping[str, Row], boards: Mapping[str, set[str]], sides: Sequence[str], every: set[str]
) -> list[str]:
    """Sort methods by the interval of their difference: above 0, below 0, or including 0. Returns
    one sentence per case and set of boards."""
    # Methods with the same boards share a line, which names the boards once.
    names: list[dict[str, list[str]]] = [{}, {}, {}]
    for name, gap in sorted(gaps.items(), key=lambda item: -item[1]["mean"]):
        # Judge by the interval instead of the mean, because a difference that may be chance counts
        # as none.
        side = 0 if gap["low"] > 0 else 1 if gap["high"] < 0 else 2
        entry = f"{name} {round(100 * gap['mean']):+d}"
        names[side].setdefault(_subset_label(boards[name], every), []).append(entry)
    return [
        f"{side}{alone}: {', '.join(entries)}."
        for side, listed in zip(sides, names, strict=True)
        for alone, entries in listed.items()
    ]


def _mean_after(rows: Sequence[Row], name: str, board: str) -> float | None:
    return _mean(
        row["pass@1"].get("after") for row in rows if (row["method"], row["env"]) == (name, board)
    )


def _known(rows: Sequence[Row], name: str, board: str | None = None) -> float | None:
    """Share of exactly correct predictions after SFT, as a mean over seeds, and over boards if
    `board` is None."""
    return _mean(
        row["world_model"].get("prediction_exact")
        for row in rows
        if row["method"] == name and board in (None, row["env"])
    )


def _seen(rows: Sequence[Row], name: str) -> str:
    """Describe how many of the predicted puzzles were seen in training, or that this was not
    counted. Empty if none were seen."""
    known = [
        row["world_model"]
        for row in rows
        if row["method"] == name and "prediction_exact" in row["world_model"]
    ]
    if any("puzzles_seen" not in world for world in known):
        return " (not counted)"
    seen, puzzles = (sum(world[key] for world in known) for key in ("puzzles_seen", "puzzles"))
    return f" ({seen:.0f} of {puzzles:.0f} puzzles seen in training)" if seen else ""


def _sampled(rows: Sequence[Row], name: str) -> float | None:
    # The last point of a curve includes all tokens that the training run sampled.
    return _mean(
        row["curve"][-1]["tokens"] for row in rows if row["method"] == name and row["curve"]
    )


def markdown(result: Mapping[str, Any], command: str) -> str:
    """Render the page as Markdown."""
    lines = ["# Leaderboard", "", f"Generated by `{command}`.", ""]
    lines += ["## Findings", "", *(f"* {line}" for line in verdicts(result)), "", INTRODUCTION, ""]
    for title, text, table in tables(result):
        lines += [f"## {title}", "", text, "", table.markdown(), ""]
    return "\n".join([*lines, *(f"* {line}" for line in _remarks(result)), ""])


def html(result: Mapping[str, Any], command: str) -> str:
    """Render the page as one self-contained HTML file in the style of reports, without scripts."""
    style = (resources.files("spa_report") / "templates" / "report.css").read_text(encoding="utf-8")
    parts = [
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{page_policy(styles=[style])}',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>spa leaderboard</title>',
        f'<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n<body>\n<header>\n<h1>Leaderboard</h1>',
        f'<p class="soft">Generated by <code>{escape(command)}</code>.</p>\n</header>\n<main>',
        f"<section><h2>Findings</h2><ul>{_listed(verdicts(result))}</ul><p>{escape(INTRODUCTION)}</p></section>",
    ]
    parts += [
        f'<section>\n<h2>{escape(title)}</h2>\n<p class="help">{escape(text)}</p>\n{table.__html__()}\n</section>'
        for title, text, table in tables(result)
    ]
    return "\n".join(
        [
            *parts,
            f"<section><h2>Setup</h2><ul>{_listed(_remarks(result))}</ul></section>",
            "</main>\n</body>\n</html>\n",
        ]
    )


def _listed(lines: Sequence[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def ranking(result: Mapping[str, Any]) -> list[str]:
    """One line per method at equal environment steps, best first."""
    entries = result["leaderboard"]["environment_steps"]
    return [
        f"{entry['method']} reaches {interval_text(entry['iqm'])} % of the optimum"
        for entry in entries
    ]


def _remarks(result: Mapping[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    unfinished: dict[str, list[str]] = {}
    for place in result["not_run"]:
        board, _, name = place.rpartition("/")
        unfinished.setdefault(board, []).append(name)
    missing = [f"Unfinished on {board}: {', '.join(names)}." for board, names in unfinished.items()]
    return [
        f"Each method has {result['seeds']} training seeds. "
        f"{' '.join(missing) or 'All trainings are finished.'}",
        *(
            f"{board}: `{played['preset']}` with {', '.join(f'`{text}`' for text in played['changes'])}."
            for board, played in result["boards"].items()
        ),
        f"Versions: {versions}.",
    ]
