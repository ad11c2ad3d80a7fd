"""Do the tables of README and the result pages, and the main figures of their text, follow from benchmarks/results?

    python tools/claims.py

Each claim is a piece of text, made here from committed data, that a page must contain word for word. Prints the claims
that no page makes and exits with 1 if there is one. Times and memory are measurements of a machine and are not checked.
"""

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from results import RESULTS, read, read_lines, records
from search_curves import ARMS, over_distance

from spa.evaluation.passk import pass_at_k
from spa.evaluation.statistics import paired_by_puzzle, seeds_interval
from spa_bench.leaderboard.tables import markdown

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)

PAGE = "docs/does-it-help.md"
Claim = tuple[str, str]
"""A page, and the text that it must contain."""


def load(name: str) -> Any:
    """The content of a JSON file of a question (`search/make-smol.json`)."""
    question, _, file = name.partition("/")
    return read(question, file)


def bracket(interval: Mapping[str, float], digits: int = 0) -> str:
    """The ends of an interval of shares, in percent: `[31, 50]`."""
    return f"[{percent(interval['low'], digits)}, {percent(interval['high'], digits)}]"


def percent(share: float, digits: int = 1) -> str:
    """A share in percent, without a minus before a zero."""
    return f"{round(100 * share, digits) + 0.0:.{digits}f}"


def cell(interval: Mapping[str, float]) -> str:
    """A share and its interval in percent, with a decimal: `14.6 [11.3, 18.0]`."""
    return f"{percent(interval['mean'])} {bracket(interval, 1)}"


def row(difference: Mapping[str, float]) -> str:
    """A difference as a table prints it: `40 [31, 50]`."""
    return f"{percent(difference['mean'], 0)} {bracket(difference)}"


def points(difference: Mapping[str, float]) -> str:
    """A difference of shares: `40 points [31, 50]`."""
    return f"{percent(difference['mean'], 0)} points {bracket(difference)}"


def demo() -> Iterator[Claim]:
    """The demo: the table of seed 0, and the differences over three seeds."""
    one = load("demo/seed0.json")
    for name, moment, tokens in (
        ("vanilla", "after", "after"),
        ("vanilla", "after_total", "longer"),
        ("spa", "after", "after"),
    ):
        moments = one["methods"][name]
        cells = [
            f"{percent(moments['before'][measure])} → {percent(moments[moment][measure])}"
            for measure in ("pass@1", "pass@8")
        ]
        sampled = f"{one['sampled_tokens'][name][tokens]:,}"
        yield "README.md", f"{sampled} │ {cells[0]} │ {cells[1]}"
        yield "experiments/0052-the-demo-after-the-corrections.md", cells[0]
    for gap in one["difference"].values():
        lead = f"{percent(gap['mean'], 0)} points of Pass@1 (95 % CI {bracket(gap)}"
        yield "README.md", f"{lead} over {gap['n']} puzzles)"
    known = one["world_model"]
    seen, foretold = (known[f"{what}_exact"] for what in ("observation", "prediction"))
    yield (
        "README.md",
        f"{seen:.0%} of the model's observations and {foretold:.0%} of the model's predictions",
    )
    exact = load("demo/seed0-float32.json")
    spa, plain = (percent(exact["methods"][name]["after"]["pass@1"]) for name in ("spa", "vanilla"))
    lead = points(exact["difference"]["vanilla"])
    yield "docs/performance.md", f"solves {spa} % and plain PPO {plain} %, {lead} apart"
    three = load("demo/three-seeds.json")
    after = {name: found["after"]["pass@1"] for name, found in three["methods"].items()}
    longer = three["methods"]["vanilla"]["after_total"]["pass@1"]
    episodes = three["episodes"]["vanilla"]["ppo_longer"]
    yield (
        PAGE,
        f"SPA solves {percent(after['spa'])} % of unseen puzzles after {episodes:,} episodes and plain PPO "
        f"{percent(longer)} % after as many",
    )
    gaps = three["difference"]
    yield (
        "README.md",
        f"{percent(after['spa'])} against {percent(after['vanilla'])}: {points(gaps['vanilla'])}",
    )
    yield "README.md", points(gaps["vanilla_same_total_episodes"])
    for name, moment, gap in (
        ("vanilla", "after", "vanilla"),
        ("vanilla", "after_total", "vanilla_same_total_episodes"),
    ):
        spa, other = (
            ", ".join(percent(seed["methods"][method][when]["pass@1"]) for seed in three["seeds"])
            for method, when in (("spa", "after"), (name, moment))
        )
        yield PAGE, f"| {spa} | {other} | {row(gaps[gap])} |"
    page = "experiments/0068-controls-of-the-demo-on-three-seeds.md"
    spa = [seed["methods"]["spa"]["after"]["pass@1"] for seed in three["seeds"]]
    controls = [
        load(f"demo/{name}.json")
        for name in ("seed0-controls", "seed1-controls-float32", "seed2-controls-float32")
    ]
    for name in ("vanilla_format", "spa_shuffled"):
        shares = [fmean(shares_of(found[name]["puzzles"]).values()) for found in controls]
        gap = over_seeds(one - other for one, other in zip(spa, shares, strict=True))
        cells = [", ".join(map(percent, found)) for found in (spa, shares)]
        yield PAGE, f"| {cells[0]} | {cells[1]} | {row(gap)} |"
        yield page, f"| {' | '.join(map(percent, shares))} | {row(gap)} |"
    last = {name: shares_of(found["puzzles"]) for name, found in controls[-1].items()}
    for name in ("vanilla", "vanilla_format", "spa_shuffled"):
        share = percent(fmean(last[name].values()))
        yield page, f"| {share} | {row(difference(last['spa'], last[name]))} |"
    same = load("demo/seed0-same-tokens.json")
    spa, equal, longer = (
        shares_of(same[name]["puzzles"])
        for name in ("spa", "vanilla, same tokens", "vanilla, 11 times the steps")
    )
    means = [percent(fmean(found.values())) for found in (spa, equal, longer)]
    lead = f"{means[0]} against {means[1]}: {points(difference(spa, equal))}"
    for page in ("README.md", "experiments/0054-plain-ppo-with-as-many-tokens.md"):
        yield page, lead
        yield page, f"{means[2]} % with 8 times the episodes"
    yield PAGE, f"| {means[0]} | {means[1]} | {row(difference(spa, equal))} |"
    yield PAGE, f"| {means[0]} | {means[2]} | {row(difference(spa, longer))} |"


def shares_of(puzzles: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded, from (attempts, successes)."""
    return {name: won / attempts for name, (attempts, won) in puzzles.items()}


def smollm2() -> Iterator[Claim]:
    """SmolLM2 on the 4×4 lake: its world model, PPO from it, and search with its predictions."""
    last = [read_lines("smol_frozen_lake_states", f"spa-sft-seed{n}.jsonl")[-1] for n in SEEDS]
    exact = sorted(percent(found["val/wm/pred_exact"], 0) for found in last)
    copied = sorted(percent(found["val/wm/copy_exact"], 0) for found in last)
    yield (
        "README.md",
        f"{exact[0]}, {exact[1]} and {exact[2]} % of predictions exact; "
        f"copy baseline {copied[0]} to {copied[-1]} %",
    )
    summary = load("smol_frozen_lake_states/summary.json")
    gaps = [
        seed["methods"]["spa"]["after"]["pass@1"]
        - seed["methods"]["vanilla_format"]["after"]["pass@1"]
        for seed in summary["seeds"]
    ]
    gap = over_seeds(gaps)
    yield "README.md", f"{points(gap)} after PPO"
    spa, vanilla = (
        ", ".join(percent(seed["methods"][name]["after"]["pass@1"]) for seed in summary["seeds"])
        for name in ("spa", "vanilla_format")
    )
    yield PAGE, f"| {spa} | {vanilla} | {row(gap)} |"
    entries = [
        entry
        for entry in load("smol_frozen_lake_states/planning.json")
        if entry["board"] == "FrozenLake 4x4"
    ]
    found = [
        entry
        for entry in entries
        if entry["how"] == "asked for every action" and entry["arm"] == "spa"
    ]
    planned = [entry["pass@1"]["mean"] for entry in sorted(found, key=lambda entry: entry["seed"])]
    won = [percent(share, 0) for share in planned]
    yield "README.md", f"{won[0]}, {won[1]} and {won[2]} %"
    without = [seed["methods"]["vanilla_format"]["before"]["pass@1"] for seed in summary["seeds"]]
    lead = over_seeds(one - other for one, other in zip(planned, without, strict=True))
    cells = [", ".join(map(percent, arm)) for arm in (planned, without)]
    yield PAGE, f"| {cells[0]} | {cells[1]} | {row(lead)} |"
    for entry in entries:
        if "PPO" in entry["how"]:
            continue  # in experiments/0043, not on the page
        shares = entry["pass@1"]
        yield (
            "docs/results-smollm2.md",
            f"{percent(shares['mean'])} {bracket(shares)}",
        )


def search() -> Iterator[Claim]:
    """Written search of SmolLM2, its baseline, and PPO from it."""
    page = "experiments/0053-written-search-its-baseline-and-ppo.md"
    for name in ("random_format-0", "search_model-0", "search_model-0-ppo"):
        cells = [
            cell(shares)
            for how in ("sampled", "greedy")
            for shares in [evaluation(f"{name}-{how}")["pass@1"]]
        ]
        yield page, f"| {cells[0]} | {cells[1]} |"
    model, baseline, ppo = (
        outcomes(f"{name}-sampled")
        for name in ("search_model-0", "random_format-0", "search_model-0-ppo")
    )
    shares = [percent(fmean(found.values())) for found in (model, baseline, ppo)]
    yield PAGE, f"| {shares[0]} | {shares[1]} | {row(difference(model, baseline))} |"
    harm = difference(ppo, model)
    yield PAGE, change_row(shares[0], shares[2], harm)
    control = "experiments/0060-written-search-second-control-and-ppo-on-another-seed.md"
    for seed, page in ((1, control), (2, "experiments/0058-ppo-from-1600-written-searches.md")):
        for name in (f"search_model_1600-{seed}{ppo}" for ppo in ("", "-ppo-5e-6-8")):
            yield page, sampled_and_greedy(name)
    yield from after_ppo()
    yield from ppo_from_few()
    yield from other_boards()
    yield from larger_lake()
    yield from baseline_after_ppo()
    yield from bundled_search()
    yield from arms_by_board()
    yield from simulator()
    yield from tokens_and_transfer()
    yield control, sampled_and_greedy("search_other_puzzle_1600-0")
    page = "experiments/0059-written-search-a-control-and-ppo-of-the-baseline.md"
    for name in ("search_dealt_1600-0", "actions_only_1600-0", "random_format_1600-2-ppo-5e-6-8"):
        found = evaluation(f"{name}-sampled")["pass@1"]
        yield page, cell(found)
    page = "experiments/0056-written-search-three-seeds.md"
    before_ppo = "experiments/0057-written-search-its-baseline-on-three-seeds.md"
    for how in ("sampled", "greedy"):
        found, without = (
            [evaluation(f"{arm}_1600-{seed}-{how}")["pass@1"] for seed in SEEDS]
            for arm in ("search_model", "random_format")
        )
        mean, below = (
            asdict(seeds_interval([[one["mean"]] for one in arm])) for arm in (found, without)
        )
        mean["high"] = min(mean["high"], 1.0)
        for text, some in ((page, (*found, mean)), (before_ppo, (*without, below))):
            for one in some:
                yield text, cell(one)
        if how == "sampled":
            gaps = [
                [one["mean"] - other["mean"]] for one, other in zip(found, without, strict=True)
            ]
            lead = asdict(seeds_interval(gaps))
            cells = [", ".join(percent(one["mean"]) for one in arm) for arm in (found, without)]
            yield PAGE, f"| {cells[0]} | {cells[1]} | {row(lead)} |"
            yield "README.md", f"{percent(below['mean'])} %: {points(lead)}"
            for text in ("README.md", PAGE):
                yield (
                    text,
                    f"{percent(mean['mean'])} % [{percent(mean['low'])}, {percent(mean['high'])}]",
                )
    far = dict(over_distance(*ARMS["written search"]))
    yield PAGE, f"{percent(far[5], 0)} % at five moves and {percent(far[6], 0)} % at six"
    page = "experiments/0055-written-search-from-1600-examples.md"
    for name in ("search_model", "search_model_1600"):
        cells = [
            cell(found)
            for how in ("development", "sampled", "greedy")
            for found in [evaluation(f"{name}-0-{how}")["pass@1"]]
        ]
        yield page, " | ".join(cells)


def arms_by_board() -> Iterator[Claim]:
    """The table of the arms of written search, by seed; `not run` where there is no evaluation."""
    for label, name in (
        ("written search over its own predictions (`search_model`)", "search_model_1600-{}"),
        ("written search over a simulator (`search_simulator`)", "search_simulator_1600-{}"),
        ("right actions alone (`actions_only`)", "actions_only_1600-{}"),
        ("search with permuted outcomes (control, `search_dealt`)", "search_dealt_1600-{}"),
        (
            "right search of another puzzle (control, `search_other_puzzle`)",
            "search_other_puzzle_1600-{}",
        ),
        ("random play (baseline, `random_format`)", "random_format_1600-{}"),
        ("… after PPO", "random_format_1600-{}-ppo-5e-6-8"),
        ("uniform random actions", "random-{}"),
    ):
        boards = list[str]()
        for board in ("", "-5x5"):
            random = f"random{board}-{{}}" if name == "random-{}" else f"{name}{board}-sampled"
            shares = [
                percent(evaluation(random.format(seed))["pass@1"]["mean"])
                if f"{random.format(seed)}.json" in records("search")
                else "not run"
                for seed in SEEDS
            ]
            boards.append(", ".join(shares) if set(shares) != {"not run"} else "not run")
        yield PAGE, f"| {label} | {boards[0]} | {boards[1]} |"


def simulator() -> Iterator[Claim]:
    """Examples of copies of the game beside those of the model's own predictions."""
    changes = list[float]()
    page = "experiments/0070-written-search-over-a-simulator.md"
    for seed in SEEDS:
        ours, theirs = (
            f"{arm}_1600-{seed}-sampled" for arm in ("search_simulator", "search_model")
        )
        change = difference(outcomes(ours), outcomes(theirs))
        shares = [cell(evaluation(name)["pass@1"]) for name in (ours, theirs)]
        yield page, f"| {seed} " + change_row(shares[0], shares[1], change)
        changes.append(change["mean"])
    alone = [evaluation(f"actions_only_1600-{seed}-sampled")["pass@1"] for seed in SEEDS]
    yield page, f"commit: {cell(alone[2])}"
    pair = [f"search_simulator_1600-1{ppo}-sampled" for ppo in ("", "-ppo-5e-6-8")]
    before, after = (outcomes(name) for name in pair)
    gain = difference(after, before)
    yield page, f"{percent(gain['mean'])} points {bracket(gain, 1)}"
    yield page, f"mean is {cell(over_seeds(one['mean'] for one in alone))}"
    yield page, points(lead_over("actions_only"))
    more = over_seeds(changes)
    means = [
        cell(over_seeds(evaluation(f"{arm}_1600-{n}-sampled")["pass@1"]["mean"] for n in SEEDS))
        for arm in ("search_simulator", "search_model")
    ]
    yield page, f"| {means[0]} | {means[1]} | {cell(more)} |"
    yield PAGE, f"{percent(more['mean'])} points {bracket(more, 1)} more"


def tokens_and_transfer() -> Iterator[Claim]:
    """Tokens of the examples, the 4×4 model on 5×5, and the controls on a second seed."""
    page = "experiments/0071-written-search-tokens-transfer-and-controls.md"
    ours, theirs = load("search/sft-tokens.json").values()
    totals = [arm["prompt_tokens"] + arm["response_tokens"] for arm in (ours, theirs)]
    yield page, f"{totals[0]:,} tokens with their prompts, those of the baseline {totals[1]:,}"
    yield page, f"have {percent(totals[0] / 2 / totals[1], 0)} % of the baseline's"
    for arm in (
        "search_simulator",
        "search_dealt",
        "search_other_puzzle",
        "random_format",
        "actions_only",
    ):
        counts = ", ".join(f"{supervised(f'{arm}_1600-{seed}'):,.0f}" for seed in SEEDS)
        yield PAGE, f"| `{arm}` | {counts} |"
    yield from choosing(page)
    moved = "search_model_1600-0-on-5x5-sampled"
    won = evaluation(moved)["pass@1"]
    yield page, f"{cell(won)}"
    yield PAGE, f"wins {percent(won['mean'])} % {bracket(won, 1)} of"
    played, random = outcomes(moved), outcomes("random-5x5-0")
    yield page, f"random actions win {percent(fmean(random[puzzle] for puzzle in played))} %"
    yield page, points(difference(played, random))
    yield from controls(page, seed=1)
    newer = "experiments/0073-written-search-controls-on-a-third-seed.md"
    yield from controls(newer, seed=2)
    large = [f"{arm}_1600-0-5x5-sampled" for arm in ("search_simulator", "search_model")]
    yield newer, f"{cell(evaluation(large[0])['pass@1'])} % of"
    more = difference(*map(outcomes, large))
    yield newer, f"{percent(more['mean'])} points {bracket(more, 1)}"


def supervised(name: str) -> float:
    """The response tokens with loss of an SFT, over its epochs."""
    return sum(step["train/tokens"] for step in read_lines("search", f"{name}-sft.jsonl"))


def controls(page: str, *, seed: int) -> Iterator[Claim]:
    """The controls of a seed beside right actions alone and written search."""
    alone, search = (
        outcomes(f"{arm}_1600-{seed}-sampled") for arm in ("actions_only", "search_model")
    )
    for control in ("search_dealt", "search_other_puzzle"):
        name = f"{control}_1600-{seed}-sampled"
        won, found = outcomes(name), evaluation(name)
        against = " | ".join(map(cell, (difference(won, alone), difference(search, won))))
        shares = f"{cell(found['pass@1'])} | {against} | {percent(found['search/move'], 0)}"
        yield page, f"| `{control}` | {shares} |"


def choosing(page: str) -> Iterator[Claim]:
    """Pass@k of arms without a search, with as many tokens as an episode of search has."""
    search = evaluation("search_model_1600-0-sampled")
    won = outcomes("search_model_1600-0-sampled")
    shares = list[str]()
    amounts = [search["tokens_per_episode"]]
    for arm, samples in (("random_format", 8), ("actions_only", 16)):
        name = f"{arm}_1600-0-{samples}"
        tokens = evaluation(name)["tokens_per_episode"]
        k = math.ceil(search["tokens_per_episode"] / tokens)
        chosen = {
            puzzle: float(pass_at_k(samples, round(share * samples), k))
            for puzzle, share in outcomes(name).items()
        }
        shares.append(percent(fmean(chosen.values())))
        amounts.append(tokens)
        yield (
            page,
            f"| `{arm}` | {tokens:.0f} | {k} | {shares[-1]} | {row(difference(won, chosen))} |",
        )
    yield PAGE, f"At least one try wins in {shares[0]} % and {shares[1]} % of the"
    each = [f"{amount:.0f}" for amount in amounts]
    yield (
        PAGE,
        f"An episode of search has {each[0]} tokens, one of the baseline {each[1]}, and one of right actions alone "
        f"{each[2]}",
    )


def after_ppo() -> Iterator[Claim]:
    """Both written searches before and after PPO: of seeds 0 to 2, and of `make smol`."""
    page = "experiments/0061-make-smol-in-one-piece.md"
    newer = "experiments/0072-ppo-of-both-written-searches-on-three-seeds.md"
    smol = [outcomes(f"make-smol-search_model{ppo}-sampled") for ppo in ("", "-ppo")]
    made = load("search/make-smol.json")
    yield page, f"In all {made['seconds']['total']:,.0f} seconds"
    yield page, f"{made['peak_memory_gb']:.1f} GB together"
    for label, arm in (("(a)", "search_simulator"), ("(b)", "search_model")):
        trainings = [
            [outcomes(f"{name}-sampled") for name in names]
            for names in before_and_after(1600, SEEDS, arm)
        ]
        for seed, pair in zip(SEEDS, trainings, strict=True):
            yield newer, f"| {label} | {seed} {ppo_row(pair)}"
        before, after = (over_seeds(map(share, column)) for column in zip(*trainings, strict=True))
        mean = change_row(cell(before), cell(after), over_seeds(map(change_of, trainings)))
        yield newer, f"| {label} | mean {mean}"
    # The last trainings are those of (b).
    earlier = over_seeds(share(after) for _, after in (smol, *trainings[1:]))
    yield page, f"mean {cell(earlier)}"
    for text in (newer, PAGE):
        yield text, f"{percent(after['mean'])} % {bracket(after, 1)}"
    every = (*trainings, smol)
    for pair in every:
        yield PAGE, ppo_row(pair)
    gain = over_seeds(map(change_of, every))
    shares = [percent(fmean(map(share, column))) for column in zip(*every, strict=True)]
    yield newer, f"{percent(gain['mean'])} points {bracket(gain, 1)}"
    fine = f"{percent(gain['mean'], 2)} {bracket(gain, 2)}"
    yield PAGE, f"| {shares[0]} | {shares[1]} | {fine} |"
    yield "README.md", fine.replace(" [", " points [")


def change_of(pair: Sequence[Mapping[str, float]]) -> float:
    """After minus before, of one training."""
    before, after = pair
    return difference(after, before)["mean"]


def share(won: Mapping[str, float]) -> float:
    """The mean over puzzles."""
    return fmean(won.values())


def ppo_row(pair: Sequence[Mapping[str, float]]) -> str:
    """Before, after and the change of one training."""
    before, after = pair
    return change_row(percent(share(before)), percent(share(after)), difference(after, before))


def ppo_from_few() -> Iterator[Claim]:
    """PPO of written search with room to improve: from 400 and from 800 examples."""
    for examples, seeds, page in (
        (400, (1, 2), "experiments/0062-ppo-from-400-written-searches.md"),
        (800, range(5), "experiments/0063-ppo-from-800-written-searches.md"),
    ):
        for names in before_and_after(examples, seeds):
            yield PAGE, ppo_row([outcomes(f"{name}-sampled") for name in names])
            for name in names:
                yield page, sampled_and_greedy(name)
    page = "experiments/0063-ppo-from-800-written-searches.md"
    trainings = list(before_and_after(800, range(5)))
    changes: dict[str, dict[str, float]] = {}
    for how in ("sampled", "greedy"):
        pairs = [[outcomes(f"{name}-{how}") for name in names] for names in trainings]
        changes[how] = over_seeds(difference(after, before)["mean"] for before, after in pairs)
        yield page, f"{percent(changes[how]['mean'])} points {bracket(changes[how], 1)}"
        if how == "sampled":
            means = [
                over_seeds(fmean(won.values()) for won in column)["mean"]
                for column in zip(*pairs, strict=True)
            ]
            yield PAGE, change_row(percent(means[0]), percent(means[1]), changes[how])
    gain = changes["sampled"]
    yield "README.md", f"800 examples: {percent(gain['mean'])} points {bracket(gain, 1)}"
    tokens = [
        [evaluation(f"{name}-sampled")["tokens_per_episode"] for name in names]
        for names in trainings
    ]
    saved = over_seeds(after / before - 1 for before, after in tokens)
    yield page, f"{percent(saved['mean'])} % {bracket(saved, 1)}"


def other_boards() -> Iterator[Claim]:
    """Written search of seed 0 on slippery ice and on the 5×5 lake."""
    page = "experiments/0064-written-search-on-other-boards.md"
    yield page, sampled_and_greedy("search_model_1600-0-again")
    for name in (
        *(f"search_model_1600-0-{board}-sampled" for board in ("on-slip", "5x5")),
        *(f"random-{board}-0" for board in ("slip", "5x5")),
    ):
        found = evaluation(name)["pass@1"]
        yield page, cell(found)
    slip, large = (
        evaluation(f"search_model_1600-0-{board}-sampled") for board in ("on-slip", "5x5")
    )
    share = f"{slip['percent_of_optimum']:.0f} % of what the best policy wins"
    for text in (page, PAGE):
        yield text, share
    yield PAGE, f"{percent(slip['pass@1']['mean'])} %"
    for place, name in ((slip, "random-slip-0"), (large, "random-5x5-0")):
        found, lucky = place["pass@1"], evaluation(name)["pass@1"]
        yield (
            "docs/results-smollm2.md",
            f"| {cell(found)} | {percent(lucky['mean'])} |",
        )


def baseline_after_ppo() -> Iterator[Claim]:
    """PPO of the baseline of written search; seeds 0 and 1 were trained on a GPU."""
    page = "experiments/0066-written-search-arms-on-an-h100.md"
    shares = list[float]()
    for seed, machine in zip(SEEDS, ("-h100", "-h100", ""), strict=True):
        name = f"random_format_1600-{seed}"
        before, after = f"{name}{machine}-sampled", f"{name}-ppo-5e-6-8-sampled"
        first, then = (
            cell(found) for one in (before, after) for found in [evaluation(one)["pass@1"]]
        )
        change = difference(outcomes(after), outcomes(before))
        yield page, f"| {seed} " + change_row(first, then, change)
        shares.append(evaluation(after)["pass@1"]["mean"])
    mean = over_seeds(shares)
    yield page, f"{percent(mean['mean'])} % on average {bracket(mean, 1)}"
    alone = evaluation("actions_only_1600-1-sampled")["pass@1"]
    yield page, f"{cell(alone)} (seed 0"
    first = outcomes("search_simulator_1600-2-h100-first-128")
    own = outcomes("search_model_1600-2-sampled")
    both = [fmean(found[puzzle] for puzzle in first) for found in (first, own)]
    yield page, f"{percent(both[0])} %, against {percent(both[1])} %"
    yield page, points(difference(first, own))


def bundled_search() -> Iterator[Claim]:
    """Written search of the bundled model, on puzzles that neither training has seen."""
    page = "experiments/0067-written-search-with-the-bundled-model.md"
    plain, informed = (outcomes(f"tiny-3x3-search{start}") for start in ("", "-from-world-model"))
    for found in (plain, informed):
        share = percent(fmean(found.values()))
        yield page, f"{share} % from"
    shares = [percent(fmean(found.values())) for found in (plain, informed)]
    yield PAGE, f"it wins {shares[0]} %, little more than random play"
    yield PAGE, f"{shares[1]} % (one seed, {len(plain)} puzzles"
    yield page, f"{len(plain)} puzzles"
    yield page, points(difference(informed, plain))


def larger_lake() -> Iterator[Claim]:
    """The arms of written search on the 5×5 lake."""
    page = "experiments/0065-written-search-on-5x5-its-baseline.md"
    controls = ("search_dealt", "search_other_puzzle")
    won = {
        arm: outcomes(f"{arm}_1600-0-5x5-sampled")
        for arm in ("search_model", "random_format", "actions_only", *controls)
    }
    for arm in ("random_format", "actions_only"):
        yield page, sampled_and_greedy(f"{arm}_1600-0-5x5")
        yield page, points(difference(won["search_model"], won[arm]))
    for arm in controls:
        found = evaluation(f"{arm}_1600-0-5x5-sampled")["pass@1"]
        yield page, cell(found)
        yield page, points(difference(won[arm], won["actions_only"]))
    older = "experiments/0066-written-search-arms-on-an-h100.md"
    newer = "experiments/0069-written-search-on-5x5-three-seeds.md"
    columns = dict[str, str]()
    for arm, name, pages in (
        ("search_model", "search_model_1600-{}-5x5-sampled", (newer,)),
        ("actions_only", "actions_only_1600-{}-5x5-sampled", (older, newer)),
        ("random_format", "random_format_1600-{}-5x5-sampled", (older, newer)),
        ("random", "random-5x5-{}", (older, newer)),
    ):
        found = [evaluation(name.format(seed))["pass@1"] for seed in SEEDS]
        found.append(over_seeds(one["mean"] for one in found))
        for page in pages:
            yield page, " | ".join(cell(one) for one in found)
        columns[arm] = ", ".join(percent(one["mean"]) for one in found[:3])
        if arm == "search_model":
            yield PAGE, f"On the 5×5 lake, written search wins {percent(found[3]['mean'])} %"
            yield "README.md", f"5×5 lake | {percent(found[3]['mean'])} %"
        elif arm == "random_format":
            yield "README.md", f"baseline {percent(found[3]['mean'])} %; a look-ahead"
    for arm in ("random_format", "actions_only"):
        yield newer, points(lead_over(arm, "-5x5"))
    lead = row(lead_over("random_format", "-5x5"))
    won_and_baseline = f"{columns['search_model']} | {columns['random_format']}"
    yield PAGE, f"| 5×5 lake | 0, 1, 2 | {won_and_baseline} | {lead} |"


def before_and_after(
    examples: int, seeds: Iterable[int], arm: str = "search_model"
) -> Iterator[list[str]]:
    """The names of each seed's evaluations before and after PPO."""
    for seed in seeds:
        yield [f"{arm}_{examples}-{seed}{ppo}" for ppo in ("", "-ppo-5e-6-8")]


def lead_over(arm: str, board: str = "") -> dict[str, float]:
    """Written search minus another arm, in Pass@1 over the seeds."""
    names = (
        (f"{one}_1600-{seed}{board}-sampled" for one in ("search_model", arm)) for seed in SEEDS
    )
    return over_seeds(difference(*map(outcomes, pair))["mean"] for pair in names)


def over_seeds(numbers: Iterable[float]) -> dict[str, float]:
    """The mean of one number per training, with its t interval."""
    return asdict(seeds_interval([[number] for number in numbers]))


def change_row(before: str, after: str, change: Mapping[str, float]) -> str:
    """The end of a row: before, after, and the change in points."""
    return f"| {before} | {after} | {cell(change)} |"


def sampled_and_greedy(name: str) -> str:
    """Pass@1 with its interval, two cells of a table."""
    return " | ".join(
        cell(found)
        for how in ("sampled", "greedy")
        for found in [evaluation(f"{name}-{how}")["pass@1"]]
    )


def evaluation(name: str) -> Any:
    """The one tag of an evaluation of written search."""
    (found,) = load(f"search/{name}.json")["tags"].values()
    return found


def outcomes(name: str) -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded."""
    return {puzzle: fmean(won) for puzzle, won in attempts(f"search/{name}")}


def attempts(name: str) -> list[tuple[str, list[bool]]]:
    """The puzzles of an evaluation in their order, with the success of each attempt."""
    question, _, file = name.partition("/")
    # The first line holds the settings.
    return [
        (group["puzzle_hash"], [attempt["success"] for attempt in group["attempts"]])
        for group in read_lines(question, f"{file}.groups.jsonl")
        if "attempts" in group
    ]


def difference(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The mean difference over the puzzles that both have, with its 95 % bootstrap interval."""
    found = paired_by_puzzle([(first, second)], seed=0)
    assert found is not None, "the two evaluations share no puzzle"
    return asdict(found)


def sokoban() -> Iterator[Claim]:
    """Written search and right actions alone on Sokoban; two imagined plans on the 4×4 lake."""
    page = "experiments/0076-written-search-on-sokoban-and-two-plans.md"
    names = (
        "search_simulator_1600-0-sokoban-sampled64",
        "actions_only_1600-0-sokoban-sampled",
        "random-sokoban-0",
    )
    search, alone, random = map(outcomes, names)
    for name, won in zip(names, (search, alone, random), strict=True):
        shares = evaluation(name)["pass@1"]
        shared = share({puzzle: won[puzzle] for puzzle in search})
        yield page, f"| {shares['n']} | {cell(shares)} | {percent(shared)} |"
    found = evaluation(names[0])
    right = f"{percent(found['search/move'], 0)} %"
    shares_text = f"{percent(found['pass@1']['mean'])} % {bracket(found['pass@1'], 1)}"
    yield page, f"{right} of its written moves are right"
    for text in (page, PAGE):
        yield text, f"{points(difference(search, alone))} more"
    yield page, f"{points(difference(alone, random))} more"
    yield (
        PAGE,
        f"wins {shares_text} of {found['pass@1']['n']} rooms, and {right} of its",
    )
    means = [percent(evaluation(name)["pass@1"]["mean"]) for name in names[1:]]
    yield PAGE, f"Right actions alone win {means[0]} %, and random actions {means[1]} %"


def two_plans() -> Iterator[Claim]:
    """`choose_plan` on the 4×4 lake, with two limits of a response."""
    page = "experiments/0076-written-search-on-sokoban-and-two-plans.md"
    for name in ("sampled", "long"):
        found = evaluation(f"choose_plan_1600-0-{name}")
        shares = [percent(found[key], 0) for key in ("format_rate", "cut_off", "prediction_exact")]
        yield page, f"| {found['puzzles']} | {cell(found['pass@1'])} | {' | '.join(shares)} |"


def act_obs() -> Iterator[Claim]:
    """ActObs beside SFT on the responses alone, after SFT and after PPO: Pass@1 and Pass@8."""
    page = "experiments/0075-actobs-with-the-bundled-model.md"
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
                    f"{percent(gap['mean'])} points {bracket(gap, 1)} of Pass@{k}",
                )


def passed(name: str, k: int) -> float:
    """Pass@k of an evaluation, over its puzzles."""
    return fmean(float(pass_at_k(len(won), sum(won), k)) for _, won in attempts(name))


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


def reference() -> Iterator[Claim]:
    """The reference policies on the lakes of the tables."""
    boards = [
        json.loads((RESULTS / "reference" / f"lake-{size}x{size}.json").read_text("utf-8"))[
            "success"
        ]
        for size in (3, 4, 5)
    ]
    for policy, label in (
        ("random", "| random actions | nothing"),
        ("walk", "holes ignored | the prompt"),
        ("look_ahead", "smallest distance | a simulator"),
        ("optimum", "| best policy | a simulator"),
    ):
        yield PAGE, f"{label} | {' | '.join(percent(one[policy]['mean']) for one in boards)} |"
    small, lake, large = (
        {policy: percent(found["mean"]) for policy, found in one.items()} for one in boards
    )
    pair = f"a walk wins {small['walk']}, a look-ahead {small['look_ahead']}"
    yield "README.md", pair
    for page in ("README.md", PAGE):
        yield page, f"solves {small['walk']} %"
    yield "README.md", f"wins {lake['walk']} %, the look-ahead {lake['look_ahead']} %"
    yield PAGE, f"look-ahead {lake['look_ahead']} %"
    yield (
        "docs/concepts.md",
        f"wins {lake['walk']} %, and a one-step look-ahead {lake['look_ahead']} %",
    )
    yield (
        "docs/results-smollm2.md",
        f"wins {lake['walk']} %, a one-step look-ahead {lake['look_ahead']}",
    )
    yield (
        "docs/results.md",
        f"wins {small['walk']} % and a one-step look-ahead {small['look_ahead']} %",
    )
    yield "README.md", f"a look-ahead wins {large['look_ahead']}"


def main_results() -> Iterator[Claim]:
    """The three boards of the paper's table, whose data are the seeds in the table itself."""
    text = (
        (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition("## Main results")[2]
    )
    gaps = list[dict[str, float]]()
    for board in ("FrozenLake", "Sokoban", "Sudoku"):
        lines = {
            method: next(
                line for line in text.splitlines() if line.startswith(f"| {board} | {method} ")
            )
            for method in ("spa", "vanilla")
        }
        spa, vanilla = (
            [float(cell) / 100 for cell in line.split("|")[6].split(",")] for line in lines.values()
        )
        gaps.append(over_seeds(one - other for one, other in zip(spa, vanilla, strict=True)))
    yield "README.md", points(gaps[-1])


def every_claim() -> list[Claim]:
    """What the pages must say."""
    return [
        *demo(),
        *smollm2(),
        *search(),
        *sokoban(),
        *two_plans(),
        *act_obs(),
        *leaderboard(),
        *main_results(),
        *reference(),
    ]


def main() -> int:
    """Check every claim. Returns the exit status."""
    claims = every_claim()
    texts = {
        page: (ROOT / page).read_text(encoding="utf-8") for page in {page for page, _ in claims}
    }
    missing = [(page, text) for page, text in claims if text not in texts[page]]
    for page, text in missing:
        print(f"{page} does not say what the data say: {text[:300]}")
    print(f"{len(claims) - len(missing)} of {len(claims)} claims follow from the data")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
