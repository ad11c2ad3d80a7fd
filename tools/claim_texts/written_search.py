"""Texts about written search on the ordinary lakes and in breadth-first Sokoban."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean

from results import read_lines, records
from search_curves import ARMS, over_distance

from claim_texts.figures import (
    PAGE,
    SEEDS,
    Claim,
    all_seeds,
    bracket,
    cell,
    change_row,
    difference,
    evaluation,
    examples_of,
    figure,
    fine_points,
    lead_over,
    load,
    outcomes,
    over_seeds,
    percent,
    points,
    ppo_setting,
    row,
    sampled_and_greedy,
    share,
)
from claim_texts.search_ppo import after_ppo, baseline_after_ppo, ppo_from_few
from spa.evaluation.passk import pass_at_k
from spa.evaluation.statistics import seeds_interval


def search() -> Iterator[Claim]:
    """Written search of SmolLM2, its baseline, and PPO from it."""
    page = "experiments/written-search/0053-written-search-its-baseline-and-ppo.md"
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
    few = figure(examples_of("search_model-0"))
    lead = row(difference(model, baseline))
    yield (
        PAGE,
        f"| … {few} examples | 4×4 lake | {figure(0)} | {shares[0]} | {shares[1]} | {lead} |",
    )
    harm = difference(ppo, model)
    setting = ppo_setting("search_model-0-ppo")
    yield PAGE, f"| {few}; {setting} a step | {figure(0)} {change_row(shares[0], shares[2], harm)}"
    lists = [
        percent(evaluation(f"{name}-sampled")["search/wrong_open"], 0)
        for name in ("search_model-0-ppo", "search_model-0")
    ]
    rate = setting.split(",")[0]
    yield PAGE, f"A learning rate of {rate} with\nfour puzzles"
    yield PAGE, f"wrong in {lists[0]} % of responses, before it in {lists[1]} %"
    control = (
        "experiments/written-search/0060-written-search-second-control-and-ppo-on-another-seed.md"
    )
    for seed, page in (
        (1, control),
        (2, "experiments/written-search/0058-ppo-from-1600-written-searches.md"),
    ):
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
    page = "experiments/written-search/0059-written-search-a-control-and-ppo-of-the-baseline.md"
    for name in ("search_dealt_1600-0", "actions_only_1600-0", "random_format_1600-2-ppo-5e-6-8"):
        found = evaluation(f"{name}-sampled")["pass@1"]
        yield page, cell(found)
    page = "experiments/written-search/0056-written-search-three-seeds.md"
    before_ppo = "experiments/written-search/0057-written-search-its-baseline-on-three-seeds.md"
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
            many = figure(examples_of("search_model_1600-0"))
            yield (
                PAGE,
                f"play, {many} examples each | 4×4 lake | {all_seeds()} | {cells[0]} | {cells[1]} | {row(lead)} |",
            )
            yield PAGE, f"method fine-tuned on {many} examples"
            amount = figure(evaluation("search_model_1600-0-sampled")["puzzles"])
            yield PAGE, f"Pass@1 on {amount} unseen"
            yield PAGE, f"on its {amount} puzzles"
            yield "README.md", f"before its answer and wins {percent(mean['mean'])} %"
            yield "README.md", f"{percent(below['mean'])} %: {points(lead)}"
            for text in ("README.md", PAGE):
                yield (
                    text,
                    f"{percent(mean['mean'])} % [{percent(mean['low'])}, {percent(mean['high'])}]",
                )
    far = dict(over_distance(*ARMS["written search"]))
    yield PAGE, f"{percent(far[5], 0)} % at five moves and {percent(far[6], 0)} % at six"
    ends = f"{percent(far[1], 0)} to {percent(far[6], 0)} %"
    others = [dict(over_distance(*runs)) for name, runs in ARMS.items() if name != "written search"]
    highest, lowest = (percent(max(arm[place] for arm in others), 0) for place in (1, 6))
    yield "README.md", f"written search {ends}, baseline and controls {highest} to {lowest} %"
    yield PAGE, f"falls from {ends} at six moves; all others from at most {highest} to {lowest} %"
    page = "experiments/written-search/0055-written-search-from-1600-examples.md"
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
    """Examples of copies of the game, and those of the model's own predictions."""
    changes = list[float]()
    page = "experiments/written-search/0070-written-search-over-a-simulator.md"
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
    yield page, f"{fine_points(gain)}"
    yield page, f"mean is {cell(over_seeds(one['mean'] for one in alone))}"
    yield page, points(lead_over("actions_only"))
    more = over_seeds(changes)
    means = [
        cell(over_seeds(evaluation(f"{arm}_1600-{n}-sampled")["pass@1"]["mean"] for n in SEEDS))
        for arm in ("search_simulator", "search_model")
    ]
    yield page, f"| {means[0]} | {means[1]} | {cell(more)} |"
    yield PAGE, f"{fine_points(more)} more"


def tokens_and_transfer() -> Iterator[Claim]:
    """Tokens of the examples, the 4×4 model on 5×5, and the controls on a second seed."""
    page = "experiments/written-search/0071-written-search-tokens-transfer-and-controls.md"
    ours, theirs = load("search/sft-tokens.json").values()
    totals = [arm["prompt_tokens"] + arm["response_tokens"] for arm in (ours, theirs)]
    yield (
        page,
        f"{figure(totals[0])} tokens with their prompts, those of the baseline {figure(totals[1])}",
    )
    yield page, f"have {percent(totals[0] / 2 / totals[1], 0)} % of the baseline's"
    near = load("search/near-puzzles.json")["near"]
    won = [outcomes(f"search_model_1600-{seed}-sampled") for seed in SEEDS]
    counts = [figure(len(near[str(seed)])) for seed in SEEDS]
    rest = [
        percent(fmean(share for puzzle, share in found.items() if puzzle not in near[str(seed)]))
        for seed, found in zip(SEEDS, won, strict=True)
    ]
    yield (
        PAGE,
        f"On 4×4, {counts[0]}, {counts[1]} and {counts[2]} of the {figure(len(won[0]))} puzzles",
    )
    yield PAGE, f"Pass@1 is {rest[0]}, {rest[1]} and {rest[2]} %"
    singles = ", ".join(figure(supervised(f"search_model_1600-{seed}")) for seed in SEEDS)
    yield PAGE, f"| `search_model`, without SFT on single moves | {singles} |"
    for arm in (
        "search_simulator",
        "search_dealt",
        "search_other_puzzle",
        "random_format",
        "actions_only",
    ):
        counts = ", ".join(f"{figure(supervised(f'{arm}_1600-{seed}'))}" for seed in SEEDS)
        yield PAGE, f"| `{arm}` | {counts} |"
    yield from choosing(page)
    moved = "search_model_1600-0-on-5x5-sampled"
    won = evaluation(moved)["pass@1"]
    yield page, f"{cell(won)}"
    yield PAGE, f"wins {percent(won['mean'])} % {bracket(won, 1)} of\n{figure(won['n'])} puzzles"
    played, random = outcomes(moved), outcomes("random-5x5-0")
    lucky = percent(fmean(random[puzzle] for puzzle in played))
    yield PAGE, f"and random actions {lucky} % ([0071]"
    yield page, f"random actions win {percent(fmean(random[puzzle] for puzzle in played))} %"
    yield page, points(difference(played, random))
    yield from controls(page, seed=1)
    newer = "experiments/written-search/0073-written-search-controls-on-a-third-seed.md"
    yield from controls(newer, seed=2)
    large = [f"{arm}_1600-0-5x5-sampled" for arm in ("search_simulator", "search_model")]
    yield newer, f"{cell(evaluation(large[0])['pass@1'])} % of"
    more = difference(*map(outcomes, large))
    yield newer, f"{fine_points(more)}"


def supervised(name: str) -> float:
    """The response tokens with loss of an SFT, over its epochs."""
    return sum(step["train/tokens"] for step in read_lines("search", f"{name}-sft.jsonl"))


def controls(page: str, *, seed: int) -> Iterator[Claim]:
    """The controls of a seed, right actions alone, and written search."""
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
    tries = list[str]()
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
        tries.append(figure(k))
        yield (
            page,
            f"| `{arm}` | {figure(tokens)} | {figure(k)} | {shares[-1]} | {row(difference(won, chosen))} |",
        )
    yield PAGE, f"the baseline can try {tries[0]} times and right actions alone {tries[1]} times"
    yield PAGE, f"At least one try wins in {shares[0]} % and {shares[1]} % of the"
    each = [figure(amount) for amount in amounts]
    yield (
        PAGE,
        f"An episode of search has {each[0]} tokens, one of the baseline {each[1]}, and one of right actions alone "
        f"{each[2]}",
    )


def other_boards() -> Iterator[Claim]:
    """Written search of seed 0 on slippery ice and on the 5×5 lake."""
    page = "experiments/written-search/0064-written-search-on-other-boards.md"
    yield page, sampled_and_greedy("search_model_1600-0-again")
    for name in (
        *(f"search_model_1600-0-{board}-sampled" for board in ("on-slip", "5x5")),
        *(f"random-{board}-0" for board in ("slip", "5x5")),
    ):
        found = evaluation(name)["pass@1"]
        yield page, cell(found)
    slip = evaluation("search_model_1600-0-on-slip-sampled")
    share = f"{figure(slip['percent_of_optimum'])} % of what the best policy wins"
    for text in (page, PAGE):
        yield text, share
    yield PAGE, f"model of seed 0 wins {percent(slip['pass@1']['mean'])} %"
    settings = load("search/search_model_1600-0-on-slip-sampled.json")["identity"]["settings"]
    chance = figure(1 - settings["custom_envs.FrozenLake.env_config.success_rate"], ".1f")
    yield PAGE, f"With slip {chance}, which"
    random = percent(evaluation("random-slip-0")["pass@1"]["mean"])
    yield PAGE, f"Random actions win {random} %\n([0064]"


def bundled_search() -> Iterator[Claim]:
    """Written search of the bundled model, on puzzles that neither training has seen."""
    page = "experiments/written-search/0067-written-search-with-the-bundled-model.md"
    plain, informed = (outcomes(f"tiny-3x3-search{start}") for start in ("", "-from-world-model"))
    for found in (plain, informed):
        share = percent(fmean(found.values()))
        yield page, f"{share} % from"
    shares = [percent(fmean(found.values())) for found in (plain, informed)]
    yield PAGE, f"it wins {shares[0]} %, no more than random actions"
    yield PAGE, f"{shares[1]} % (one seed, {figure(len(plain))} puzzles"
    yield page, f"{figure(len(plain))} puzzles"
    yield page, points(difference(informed, plain))


def larger_lake() -> Iterator[Claim]:
    """The arms of written search on the 5×5 lake."""
    page = "experiments/written-search/0065-written-search-on-5x5-its-baseline.md"
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
    older = "experiments/written-search/0066-written-search-arms-on-an-h100.md"
    newer = "experiments/written-search/0069-written-search-on-5x5-three-seeds.md"
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
            shown = found[3] | {"high": min(found[3]["high"], 1.0)}
            yield (
                "README.md",
                f"5×5 lake | {percent(shown['mean'])} % {bracket(shown, 1)}; baseline",
            )
        elif arm == "random_format":
            yield "README.md", f"baseline {percent(found[3]['mean'])} %; a look-ahead"
    for arm in ("random_format", "actions_only"):
        yield newer, points(lead_over(arm, "-5x5"))
    lead = row(lead_over("random_format", "-5x5"))
    won_and_baseline = f"{columns['search_model']} | {columns['random_format']}"
    many = figure(examples_of("search_model_1600-0-5x5"))
    yield PAGE, f"| … {many} examples | 5×5 lake | {all_seeds()} | {won_and_baseline} | {lead} |"


def sokoban() -> Iterator[Claim]:
    """Written search and right actions alone on Sokoban; two imagined plans on the 4×4 lake."""
    page = "experiments/written-search/0076-written-search-on-sokoban-and-two-plans.md"
    names = (
        "search_simulator_1600-0-sokoban-sampled64",
        "actions_only_1600-0-sokoban-sampled",
        "random-sokoban-0",
    )
    search, alone, random = map(outcomes, names)
    for name, won in zip(names, (search, alone, random), strict=True):
        shares = evaluation(name)["pass@1"]
        shared = share({puzzle: won[puzzle] for puzzle in search})
        yield page, f"| {figure(shares['n'])} | {cell(shares)} | {percent(shared)} |"
    found = evaluation(names[0])
    right = f"{percent(found['search/move'], 0)} %"
    shares_text = f"{percent(found['pass@1']['mean'])} % {bracket(found['pass@1'], 1)}"
    yield page, f"{right} of its written moves are right"
    for text in (page, PAGE):
        yield text, f"{points(difference(search, alone))} more"
    both = figure(len({*search} & {*alone}))
    yield PAGE, f"On the same {both} rooms"
    yield page, f"{points(difference(alone, random))} more"
    yield (
        PAGE,
        f"wins {shares_text} of {figure(found['pass@1']['n'])} rooms, and {right} of its",
    )
    means = [percent(evaluation(name)["pass@1"]["mean"]) for name in names[1:]]
    yield PAGE, f"Right actions alone win {means[0]} %, and random actions {means[1]} %"
