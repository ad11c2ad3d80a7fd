"""Texts about the bundled model: leaderboard, the paper's claims, perplexity, ActObs."""

import json
from collections.abc import Iterator, Mapping
from statistics import fmean

from results import read

from claim_texts.figures import (
    PAGE,
    ROOT,
    SEEDS,
    Claim,
    bracket,
    cell,
    figure,
    fine_points,
    over_seeds,
    passed,
    percent,
    points,
    row,
)
from spa_bench.leaderboard.tables import markdown
from spa_bench.paper.verdicts import MARGIN


def act_obs() -> Iterator[Claim]:
    """ActObs and SFT on the responses alone, after SFT and after PPO: Pass@1 and Pass@8."""
    page = "experiments/methods/0075-actobs-with-the-bundled-model.md"
    for stage, label in (("sft", "SFT"), ("ppo", "PPO")):
        for k in (1, 8):
            arms = [
                [passed(f"act_obs/actobs-{loss}-{seed}-{stage}", k) for seed in SEEDS]
                for loss in ("act_obs", "response")
            ]
            gap = over_seeds(one - other for one, other in zip(*arms, strict=True))
            cells = [", ".join(map(percent, arm)) for arm in arms]
            yield page, f"| {label} | Pass@{k} | {cells[0]} | {cells[1]} | {cell(gap)} |"
            if stage == "ppo":
                yield (
                    "docs/methods.md",
                    f"{fine_points(gap)} of Pass@{k}",
                )


def leaderboard() -> Iterator[Claim]:
    """The whole page of the leaderboard, and what README says of it."""
    page = ROOT / "docs" / "leaderboard.md"
    result = json.loads((ROOT / "docs" / "images" / "leaderboard.json").read_text(encoding="utf-8"))
    command = page.read_text(encoding="utf-8").split("`")[1]
    yield "docs/leaderboard.md", markdown(result, command).strip()
    ours = next(
        one["boards"]
        for one in result["leaderboard"]["environment_steps"]
        if one["method"] == "spa"
    )
    (steps,) = (
        int(change.partition("=")[2])
        for change in result["boards"]["FrozenLake"]["changes"]
        if change.startswith("trainer.total_training_steps=")
    )
    plain = result["differences"]["vanilla"]["reference"]
    lead = {"mean": -plain["mean"], "low": -plain["high"], "high": -plain["low"]}
    control = result["differences"]["spa"]["control"]
    tokens = {
        one["method"]: one["iqm"]["mean"]
        for one in result["leaderboard"]["tokens"]
        if one["method"] in ("spa", "vanilla")
    }
    for text in ("README.md", PAGE):
        for gap in (lead, control):
            yield text, f"{percent(gap['mean'])} points"
            yield text, bracket(gap, 1)
    steps = figure(steps)
    yield "README.md", f"without planning and added losses, {steps} PPO steps"
    yield "README.md", f"SPA ({steps} PPO steps) beats"
    yield PAGE, f"Without planning and added losses ({steps} PPO steps"
    yield PAGE, f"SPA's {steps}-step recipe"
    yield "README.md", f"{percent(tokens['spa'])} against {percent(tokens['vanilla'])} %"
    yield PAGE, f"{percent(tokens['spa'])} % of the optimum against {percent(tokens['vanilla'])} %"
    better = [
        board
        for board, seeds in result["q_learning"].items()
        if fmean(seed["on other puzzles"] for seed in seeds) > ours[board]
    ]
    numbers = {2: "two", 3: "three", 4: "four"}
    yield "README.md", f"Q-learning is better on {numbers[len(better)]}"
    yield PAGE, f"on {numbers[len(better)]} of {numbers[len(ours)]} small boards"
    pairs = {
        board: f"{percent(fmean(seed['on other puzzles'] for seed in seeds))} against {percent(ours[board])} %"
        for board, seeds in result["q_learning"].items()
    }
    yield PAGE, f"{pairs['FrozenLake']} on the 3×3\nlake, {pairs['Sokoban']} in Sokoban"
    yield (
        PAGE,
        f"{pairs['FrozenLake, slippery']} on slippery ice, but {pairs['FrozenLake 4x4']} on the 4×4 lake",
    )


FINDINGS = (
    ("SPA beats state-estimation RL", "Sokoban", "spa", "vanilla"),
    ("state-estimation RL beats vanilla RL", "Sokoban", "vanilla", "vanilla_grid"),
    ("SPA beats state-estimation RL", "FrozenLake", "spa", "vanilla"),
    ("state-estimation RL beats vanilla RL", "FrozenLake", "vanilla", "vanilla_grid"),
    ("SPA beats state-estimation RL", "Sudoku", "spa", "vanilla"),
    ("state-estimation RL beats vanilla RL", "Sudoku", "vanilla", "vanilla_grid"),
    ("masking the states in SFT removes the gain", "FrozenLake", "masked_states", "vanilla"),
    ("true states beat masked ones", "FrozenLake", "spa", "masked_states"),
    ("true states beat predicted ones", "FrozenLake", "spa", "predicted_states"),
    ("true states beat random ones", "FrozenLake", "spa", "random_coordinates"),
    ("random coordinates remove the gain", "FrozenLake", "random_coordinates", "vanilla"),
    ("SPA beats online world modelling", "FrozenLake", "spa", "online_world_model"),
    ("more SFT epochs help", "FrozenLake", "sft_epochs_5", "sft_epochs_1"),
    ("self-play data beat random data", "FrozenLake", "spa", "random_data"),
    ("a 3×3 world model lifts 4×4", "FrozenLake 4x4", "from_FrozenLakeNoSlip", "vanilla"),
)
"""The paper's claims: text, board, and the method that should win more than the other. Those that "remove the gain"
claim that it does not."""


def results() -> Iterator[Claim]:
    """The paper's claims at the scale of the bundled model, from Pass@1 of each seed."""
    data = read("paper", "tiny.json")
    page = "docs/results.md"
    won = {(one["environment"], one["method"]): one["pass@1"] for one in data["rows"]}
    for (board, method), shares in won.items():
        mean = over_seeds(shares)
        mean["low"] = max(mean["low"], 0.0)
        seeds = ", ".join(map(percent, shares))
        yield page, f"| {board.replace('4x4', '4×4')} | `{method}` | {seeds} | {cell(mean)} |"
    for text, board, first, second in FINDINGS:
        pairs = zip(won[board, first], won[board, second], strict=True)
        gap = over_seeds(one - other for one, other in pairs)
        verdict = verdict_of(gap, no_gain="the gain" in text)
        names = f"`{first}` minus `{second}`"
        board = board.replace("4x4", "4×4")
        yield page, f"| {text} | {board} | {verdict} | {names}: {row(gap)} |"
    steps = figure(data["ppo_steps"])
    yield page, f"{steps} PPO steps"
    yield page, f"less than {figure(100 * MARGIN)} points"
    sudoku = won["Sudoku", "spa"], won["Sudoku", "vanilla"]
    gap = over_seeds(one - other for one, other in zip(*sudoku, strict=True))
    yield "README.md", points(gap)
    yield PAGE, f"plain PPO was {percent(-gap['mean'], 0)} points better on Sudoku"


def perplexity() -> Iterator[Claim]:
    """Perplexity of state texts under the bundled model."""
    rows = {
        (one["tag"], one["text"], one["context"]): one
        for one in read("paper", "perplexity.json")["rows"]
    }
    for (board, text, context), alone in rows.items():
        if context == "alone":
            prompted = rows[board, text, "in the prompt"]
            means = [one["per_token"]["mean"] for one in (alone, prompted)]
            shown = " | ".join(figure(mean, ".1f" if mean < 10000 else ".0e") for mean in means)
            paper = "–" if alone["paper"] is None else figure(alone["paper"], ".1f")
            yield "docs/results.md", f"| {board} | `{text}` | {shown} | {paper} |"


def verdict_of(gap: Mapping[str, float], *, no_gain: bool) -> str:
    """Verdict of an interval on a claim that one method wins more than another, or that it does
    not."""
    if no_gain:
        if gap["low"] > 0:
            return "contradicted"
        return "reproduced" if gap["high"] < MARGIN else "undecided"
    if gap["low"] > 0:
        return "reproduced"
    return "contradicted" if gap["high"] < 0 else "no difference found"
