"""Print the table of a finished comparison."""

import math
from typing import Any

from spa.evaluation.statistics import MANY_SEEDS, decimals
from spa.evaluation.text import on_puzzles, percent
from spa.run.console import write_out
from spa.tables import Table
from spa_report.results import all_recorded
from spa_sweeps.results import IN_PLAY

MORE_STEPS = 1.25
"""Safety factor for the number of steps of a baseline that should sample as many tokens as SPA.
Responses become shorter during training, so the measured ratio of tokens is too low."""

REFERENCE_LABELS = {
    "random": "random",
    "walk": "greedy walk",
    "look_ahead": "one-step look-ahead",
    "optimum": "optimum",
}
"""Name of a reference policy in `summary.json` -> display name."""


def print_table(summary: dict[str, Any]) -> None:
    """Print a comparison's summary as a table and a few sentences."""
    recorded = all_recorded(summary)
    columns = ["method", "PPO episodes", "episodes", "tokens", "Pass@1"]
    rows = [
        [
            one.label,
            f"{one.ppo_episodes:,}",
            f"{one.all_episodes:,}",
            "–" if one.tokens is None else f"{one.tokens:,}",
            f"{percent(one.before)} → {percent(one.after)}",
        ]
        for one in recorded
    ]
    if any(one.after_k is not None for one in recorded):
        columns.append("Pass@8")
        for cells, one in zip(rows, recorded, strict=True):
            cells.append(f"{percent(one.before_k)} → {percent(one.after_k)}")
    Table(columns, rows, right=range(1, len(columns))).print(
        f"{summary['name']}: success on held-out puzzles, in percent"
    )
    described = (f"  {arm}: {text}" for arm, text in summary["descriptions"].items())
    write_out("\n".join([*described, *sentences(summary)]) + "\n")


def sentences(summary: dict[str, Any]) -> list[str]:
    """Describe the results of the comparison in plain words."""
    out = []
    first = "SPA" if summary["reference"] == "spa" else summary["reference"]
    seeds = len(summary.get("seeds", ()))
    for arm, gap in summary["difference"].items():
        # If all seeds have equal means, the interval is over puzzles.
        if seeds >= MANY_SEEDS and gap.get("over", "seeds") == "seeds":
            over = f"over {seeds} training seeds"
            limit = ""
        else:
            over = f"over {gap['n']} puzzles"
            limit = " The interval does not include the variation between training seeds."
        mean, low, high = (100 * gap[name] for name in ("mean", "low", "high"))
        digits = decimals(mean, low, high)
        against = arm.replace("_same_total_episodes", " at matched total episodes")
        if low > 0:
            claim = f"{first} is better than {against} by {mean:.{digits}f} points of Pass@1"
        elif high < 0:
            claim = f"{against} is better than {first} by {-mean:.{digits}f} points of Pass@1"
            low, high = -high, -low
        else:
            claim = f"No difference found between {first} and {against} ({mean:+.{digits}f} points of Pass@1)"
        out.append(f"{claim} (95 % CI [{low:.{digits}f}, {high:.{digits}f}] {over}).{limit}")
    # Because of self-play and longer responses, SPA may sample many more tokens than a baseline. A
    # fair comparison needs a baseline with the same token budget.
    if (more := equal_tokens(summary)) is not None:
        out.append(more)
    if references := summary.get("reference_policies"):
        scores = (
            f"{label} {'not available' if (score := references.get(name)) is None else percent(score)}"
            for name, label in REFERENCE_LABELS.items()
        )
        out.append(f"Policies without a model, on the same puzzles: {', '.join(scores)}.")
    world = summary.get("world_model") or {}
    if "observation_exact" in world:
        out.append(
            f"After SFT, {world['observation_exact']:.0%} of the model's observations and "
            f"{world['prediction_exact']:.0%} of the model's predictions are exact"
            f"{on_puzzles(world.get('puzzles', 0), world.get('puzzles_seen'))}."
        )
        shares = [
            f"{said} {world[f'{name}_before']:.0%} → {world[f'{name}_after']:.0%}"
            for name, said in IN_PLAY.items()
            if f"{name}_before" in world and f"{name}_after" in world
        ]
        if shares:
            out.append(
                f"Share of correct turns in validation, before → after PPO: {', '.join(shares)}."
            )
        if world.get("gate_passed", 1.0) < 1:
            out.append(
                "In at least one seed the world model failed the world-model gate before PPO, but PPO ran anyway."
            )
    seconds = summary["seconds"]["total"]
    memory = summary["peak_memory_gb"]
    # The time excludes killed commands, which record none, and stages that were already done.
    out.append(
        f"The comparison took {seconds:.0f} s, without interrupted commands and reused stages. "
        f"Peak memory, summed over processes: {memory} GB."
    )
    return out


def equal_tokens(summary: dict[str, Any]) -> str | None:
    """Suggest a baseline that samples as many tokens as SPA, or None if a baseline already does, or
    if the comparison lacks spa or vanilla."""
    tokens = {
        arm: used["after"]
        for arm, used in summary.get("sampled_tokens", {}).items()
        if "after" in used
    }
    # `vanilla_format` is fine-tuned, so it is not a baseline without SFT.
    baselines = [arm for arm in tokens if arm.startswith("vanilla") and not arm.endswith("format")]
    if not baselines or "vanilla" not in tokens or "spa" not in tokens:
        return None
    if tokens["spa"] <= max(tokens[arm] for arm in baselines):
        return None
    times = tokens["spa"] / tokens["vanilla"]
    # Rounded up, so that the baseline samples at least as many tokens.
    name = f"vanilla_x{math.ceil(MORE_STEPS * times)}"
    return (
        f"SPA sampled {times:.1f} times as many tokens as vanilla. Add a baseline that samples as "
        f"many tokens as SPA with --methods vanilla,{name},spa."
    )
