"""Texts of the pages, made from the data in benchmarks/results, with their figures marked.

`claims.py` looks for them on the pages.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from knowledge_curve import imitators
from results import RESULTS, read, read_lines, records, reference_success
from search_curves import ARMS, over_distance

from spa.evaluation.passk import pass_at_k
from spa.evaluation.statistics import paired_by_puzzle, rate_interval, seeds_interval
from spa_bench.leaderboard.tables import markdown
from spa_bench.paper.verdicts import MARGIN

ROOT = Path(__file__).parents[1]
SEEDS = (0, 1, 2)
OPEN = "\x02"
CLOSE = "\x03"
"""Marks around a figure that the data give."""

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
    return figure(round(100 * share, digits) + 0.0, f".{digits}f")


def figure(value: float, form: str = ",.0f") -> str:
    """A number of the data, marked."""
    return f"{OPEN}{value:{form}}{CLOSE}"


def cell(interval: Mapping[str, float]) -> str:
    """A share and its interval in percent, with a decimal: `14.6 [11.3, 18.0]`."""
    return f"{percent(interval['mean'])} {bracket(interval, 1)}"


def fine_points(difference: Mapping[str, float]) -> str:
    """A difference of shares, with a decimal: `4.0 points [3.1, 5.0]`."""
    return f"{percent(difference['mean'])} points {bracket(difference, 1)}"


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
        sampled = figure(one["sampled_tokens"][name][tokens])
        episodes = one["episodes"][name]
        trained = episodes["ppo_longer" if moment == "after_total" else "ppo"]
        # Marks take two characters that the terminal does not print.
        counts = f"{figure(trained):>14} │ {figure(trained + episodes['self_play']):>10}"
        yield "README.md", f"│ {counts} │ {sampled:>11} │ {cells[0]} │ {cells[1]}"
        yield "experiments/demo/0080-the-demo-after-the-correction-of-predictions.md", cells[0]
    for gap in one["difference"].values():
        lead = f"{percent(gap['mean'], 0)} points of Pass@1 (95 % CI {bracket(gap)}"
        yield "README.md", f"{lead} over {figure(gap['n'])} puzzles)"
    gap = one["difference"]["vanilla"]
    yield "docs/index.md", f"{percent(gap['mean'], 0)} points of Pass@1 (95 % CI {bracket(gap)}"
    yield "README.md", f"{figure(one['peak_memory_gb'])} GB of memory, otherwise"
    known = one["world_model"]
    seen, foretold = (known[f"{what}_exact"] for what in ("observation", "prediction"))
    yield (
        "README.md",
        f"{percent(seen, 0)}% of the model's observations and {percent(foretold, 0)}% of the model's predictions",
    )
    sampled = one["sampled_tokens"]
    times = figure(sampled["spa"]["after"] / sampled["vanilla"]["longer"])
    yield "README.md", f"SPA samples {times} times as many tokens."
    exact = load("demo/seed0-float32.json")
    spa, plain = (percent(exact["methods"][name]["after"]["pass@1"]) for name in ("spa", "vanilla"))
    lead = points(exact["difference"]["vanilla"])
    yield "docs/scaling.md", f"solves {spa} % and plain PPO {plain} %, {lead} apart"
    three = load("demo/three-seeds.json")
    after = {name: found["after"]["pass@1"] for name, found in three["methods"].items()}
    longer = three["methods"]["vanilla"]["after_total"]["pass@1"]
    episodes = three["episodes"]["vanilla"]["ppo_longer"]
    yield (
        PAGE,
        f"SPA solves {percent(after['spa'])} % of unseen puzzles after {figure(episodes)} episodes and plain PPO "
        f"{percent(longer)} % after as many",
    )
    gaps = three["difference"]
    yield (
        "README.md",
        f"SPA solves {percent(after['spa'])} % of unseen puzzles and plain PPO {percent(longer)} % after as many",
    )
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
        yield PAGE, f"| 3×3 lake | {all_seeds()} | {spa} | {other} | {row(gaps[gap])} |"
    near = load("demo/near-puzzles.json")
    counts = [figure(count) for count in near["reachable"]]
    total = figure(near["puzzles"])
    yield (
        PAGE,
        f"On `demo`, {counts[0]}, {counts[1]} and {counts[2]} of the {total}\nheld-out puzzles",
    )
    page = "experiments/demo/0068-controls-of-the-demo-on-three-seeds.md"
    # The controls have not been run again since the correction of the loss on predictions.
    before = load("demo/before-three-seeds.json")
    spa = [seed["methods"]["spa"]["after"]["pass@1"] for seed in before["seeds"]]
    controls = [
        load(f"demo/{name}.json")
        for name in ("seed0-controls", "seed1-controls-float32", "seed2-controls-float32")
    ]
    for name in ("vanilla_format", "spa_shuffled"):
        shares = [fmean(shares_of(found[name]["puzzles"]).values()) for found in controls]
        gap = over_seeds(one - other for one, other in zip(spa, shares, strict=True))
        cells = [", ".join(map(percent, found)) for found in (spa, shares)]
        yield PAGE, f"| 3×3 lake | {all_seeds()} | {cells[0]} | {cells[1]} | {row(gap)} |"
        yield page, f"| {' | '.join(map(percent, shares))} | {row(gap)} |"
        if name == "spa_shuffled":
            yield "README.md", f"in `demo` {points(gap)} on three seeds"
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
    for page in (
        "README.md",
        "experiments/demo/0080-the-demo-after-the-correction-of-predictions.md",
    ):
        yield page, lead
        yield page, f"{means[2]} % with 8 times the episodes"
    only = f"3×3 lake | {figure(0)} | {means[0]}"
    yield PAGE, f"as many sampled tokens | {only} | {means[1]} | {row(difference(spa, equal))} |"
    long = same["vanilla, 11 times the steps"]
    times = figure(long["episodes"] / same["spa"]["episodes"])
    times_tokens = figure(long["sampled_tokens"] / same["spa"]["sampled_tokens"], ".1f")
    lead = row(difference(spa, longer))
    yield (
        PAGE,
        f"against plain PPO with {times} times the episodes | {only} | {means[2]} | {lead} |",
    )
    yield (
        PAGE,
        f"reaches {means[2]} % with {times} times the episodes and {times_tokens} times the tokens",
    )
    yield "README.md", f"{means[2]} % with {times} times the episodes"
    yield (
        "README.md",
        f"plain PPO with {times} times the episodes solves {means[2]} %, and SPA {means[0]} %",
    )
    million = [
        figure(same[name]["sampled_tokens"] / 1e6, form)
        for name, form in (("spa", ".1f"), ("vanilla, 11 times the steps", ".0f"))
    ]
    shares = [percent(fmean(found.values()), 0) for found in (spa, longer)]
    yield (
        PAGE,
        f"SPA reaches {shares[0]} % at {million[0]} million, plain PPO {shares[1]} % at {million[1]} million",
    )
    first, last = (same["spa curve"][place] for place in (0, -1))
    climb = f"{percent(first['pass@1'], 0)} to {percent(last['pass@1'], 0)} %"
    yield PAGE, f"Then {figure(last['step'])} PPO steps take it from {climb}"
    yield PAGE, f"trained\nbeyond {figure(last['step'])} PPO steps"
    plain = same["vanilla, same tokens"]
    yield (
        PAGE,
        f"Plain PPO\nhas {percent(fmean(equal.values()), 0)} % after {figure(plain['step'])} steps",
    )


def shares_of(puzzles: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded, from (attempts, successes)."""
    return {name: won / attempts for name, (attempts, won) in puzzles.items()}


def smollm2() -> Iterator[Claim]:
    """SmolLM2 on the 4×4 lake: its world model, PPO from it, and search with its predictions."""
    last = [read_lines("smol_frozen_lake_states", f"spa-sft-seed{n}.jsonl")[-1] for n in SEEDS]
    exact = [percent(found["val/wm/pred_exact"], 0) for found in last]
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
    steps = {
        read_lines("smol_frozen_lake_states", f"{name}-ppo-seed{seed}.jsonl")[-1]["step"]
        for name in ("spa", "vanilla_format")
        for seed in SEEDS
    }
    (last_step,) = steps
    yield "README.md", f"{points(gap)} after {figure(last_step)} PPO steps"
    yield PAGE, f"After {figure(last_step)} PPO steps, no difference from"
    yield PAGE, f"found: {points(gap)}. Both"
    yield PAGE, f"found after {figure(last_step)} PPO steps: {points(gap)}, near"
    spa, vanilla = (
        ", ".join(percent(seed["methods"][name]["after"]["pass@1"]) for seed in summary["seeds"])
        for name in ("spa", "vanilla_format")
    )
    yield PAGE, f"| 4×4 lake | {all_seeds()} | {spa} | {vanilla} | {row(gap)} |"
    yield PAGE, f"SmolLM2 predicts {min(exact)} to {max(exact)} % of next states"
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
    yield PAGE, f"| 4×4 lake | {all_seeds()} | {cells[0]} | {cells[1]} | {row(lead)} |"


def smollm2_page() -> Iterator[Claim]:
    """The tables of the page about SmolLM2 with written states."""
    page = "docs/results-smollm2.md"
    summary = load("smol_frozen_lake_states/summary.json")["seeds"]
    sft, shuffled_sft, ppo, shuffled_ppo, plain_ppo = (
        [read_lines("smol_frozen_lake_states", f"{run}-seed{seed}.jsonl") for seed in SEEDS]
        for run in (
            "spa-sft",
            "spa_shuffled-sft",
            "spa-ppo",
            "spa_shuffled-ppo",
            "vanilla_format-ppo",
        )
    )
    for label, runs, key, digits in (
        ("exact predictions", sft, "val/wm/pred_exact", 0),
        ("… copy baseline", sft, "val/wm/copy_exact", 0),
        ("exact observations", sft, "val/wm/obs_exact", 0),
        ("shuffled next states (control): exact predictions", shuffled_sft, "val/wm/pred_exact", 0),
    ):
        cells = " | ".join(percent(run[-1][key], digits) for run in runs)
        yield page, f"| {label} | {cells} |"
    cells = " | ".join(figure(run[-1]["val/wm/changed_f1"], ".2f") for run in sft)
    yield page, f"| F1 of changed cells (none for a copy) | {cells} |"
    yield page, f"{figure(sft[0][-1]['step'])} SFT steps"

    entries = {
        (one["board"], one["arm"], one["how"], one["seed"]): one
        for one in load("smol_frozen_lake_states/planning.json")
    }
    lake = "FrozenLake 4x4"
    before = {
        method: [seed["methods"][method]["before"]["pass@1"] for seed in summary]
        for method in ("spa", "vanilla_format")
    }
    for method, shares in before.items():
        tokens = entries[lake, method, "one reply", 0]["tokens_per_episode"]
        cells = " | ".join(map(percent, shares))
        yield page, f"| `{method}`, one response a turn | {cells} | {figure(tokens)} |"
    for label, how in (
        ("`spa`, beam search", "looking ahead"),
        ("… with predictions of other responses", "looking ahead, shuffled states"),
        ("**`spa`, breadth-first search**", "asked for every action"),
        ("… with predictions of other actions", "asked for every action, shuffled states"),
    ):
        found = [entries.get((lake, "spa", how, seed)) for seed in SEEDS]
        cells = " | ".join(
            f"{percent(one['pass@1']['mean'])} {bracket(one['pass@1'])}" if one else "not kept"
            for one in found
        )
        tokens = ", ".join(figure(one["tokens_per_episode"]) for one in found if one)
        yield page, f"| {label} | {cells} | {tokens} |"
    searched = [entries[lake, "spa", "asked for every action", seed] for seed in SEEDS]
    wrong = [entries[lake, "spa", "asked for every action, shuffled states", n] for n in SEEDS]
    yield page, f"on {figure(searched[0]['pass@1']['n'])} unseen puzzles"
    yield page, f"other actions, on {figure(wrong[0]['pass@1']['n'])} puzzles"
    gaps = [
        one["pass@1"]["mean"] - other
        for one, other in zip(searched, before["vanilla_format"], strict=True)
    ]
    cells = ", ".join(percent(gap, 0) for gap in gaps)
    lead = over_seeds(gaps)
    yield page, f"| breadth-first search minus `vanilla_format` | {cells} | {row(lead)} |"
    yield page, f"wins {points(lead)} more, without PPO"
    changes = [
        difference(shares_by_puzzle(one), shares_by_puzzle(other))
        for one, other in zip(searched, wrong, strict=True)
    ]
    cells = ", ".join(map(row, changes))
    yield page, f"other actions, on {figure(wrong[0]['pass@1']['n'])} puzzles | {cells} |"
    right = ", ".join(percent(one["states_right"], 0) for one in searched)
    yield page, f"{right} % of the states that breadth-first search asks for are right"

    key = "val-env/FrozenLakeNoSlip/"
    for label, runs in (
        ("`vanilla_format`", plain_ppo),
        ("`spa`", ppo),
        ("`spa_shuffled` (control)", shuffled_ppo),
    ):
        moments = [[run[moment][f"{key}success"] for run in runs] for moment in (0, -1)]
        yield page, f"| {label} | {arrows(moments)} |"
    after = {
        name: [run[-1][f"{key}success"] for run in runs]
        for name, runs in (
            ("spa", ppo),
            ("spa_shuffled", shuffled_ppo),
            ("vanilla_format", plain_ppo),
        )
    }
    for name in ("vanilla_format", "spa_shuffled"):
        gap = over_seeds(one - other for one, other in zip(after["spa"], after[name], strict=True))
        yield page, f"| `spa` minus `{name}` | {row(gap)} |"
        yield page, points(gap) if name == "vanilla_format" else f"after PPO: {row(gap)}"
    exact = [[run[moment][f"{key}wm/pred_exact"] for run in ppo] for moment in (0, -1)]
    yield page, f"| … exact predictions in its own play | {arrows(exact, 0)} |"
    cells = " | ".join(
        ", ".join(percent(run[-1][f"{key}{what}"], 0) for what in ("format_rate", "wm/obs_exact"))
        for run in ppo
    )
    yield page, f"| … format, exact observations after PPO | {cells} | |"
    seed = SEEDS[1]
    steps = plain_ppo[seed][1:]
    idle = sum(step["rollout/kept_count"] == 0 for step in steps)
    yield page, f"On seed {figure(seed)}, {figure(idle)} of the {figure(len(steps))} steps"
    yield (
        page,
        f"{figure(len(steps))} PPO steps of {figure(steps[0]['train/FrozenLakeNoSlip/episodes'])} episodes",
    )
    late = entries[lake, "spa", "asked for every action, after 20 PPO steps", 0]
    first = {name: shares_by_puzzle(searched[0])[name] for name in late["puzzles"]}
    yield (
        page,
        f"wins {percent(late['pass@1']['mean'], 0)} % of {figure(len(first))} puzzles, "
        f"and {percent(fmean(first.values()), 0)} % before",
    )
    slow = read_lines("smol_frozen_lake_states", "spa-ppo-lr1e-5.jsonl")
    moments = [step for step in slow if f"{key}success" in step]
    said = [
        " → ".join(percent(step[f"{key}{what}"]) for step in moments)
        for what in ("success", "wm/pred_exact")
    ]
    rate = f"{moments[-1]['actor/lr']:.0e}".replace("e-0", "e-")
    yield page, f"rate of {OPEN}{rate}{CLOSE}"
    yield (
        page,
        f"{figure(moments[-1]['step'])} steps (one training, success {said[0]}, predictions {said[1]})",
    )
    planned = entries[lake, "spa, fine-tuned on planned play", "one reply", 0]["pass@1"]
    once = entries[lake, "spa", "one reply", 0]["pass@1"]
    yield page, f"from {percent(once['mean'])} to {percent(planned['mean'])} % {bracket(planned)}"

    sokoban = [
        entries["Sokoban 6x6", arm, how, 0]
        for arm, how in (("spa", "looking ahead"), ("spa", "one reply"), ("random", "one reply"))
    ]
    cells = [f"{percent(one['pass@1']['mean'])} {bracket(one['pass@1'])}" for one in sokoban]
    yield page, f"beam search {cells[0]}, one response {cells[1]}, random play {cells[2]}"
    gap = difference(*map(shares_by_puzzle, sokoban[:2]))
    yield page, f"{points(gap)}. Exact"
    known = read_lines("smol_sokoban", "spa-sft.jsonl")[-1]
    shares = [percent(known[f"val/wm/{what}"], 0) for what in ("pred_exact", "copy_exact")]
    f1 = figure(known["val/wm/changed_f1"], ".2f")
    yield page, f"Exact predictions {shares[0]}, copy baseline {shares[1]}, F1 {f1}"
    exact = [percent(run[-1]["val/wm/pred_exact"], 0) for run in sft]
    copied = sorted(percent(run[-1]["val/wm/copy_exact"], 0) for run in sft)
    yield page, f"{exact[0]}, {exact[1]} and {exact[2]} exact"
    yield page, f"copy baseline {copied[0]} to {copied[-1]}"

    search, plain = (
        [evaluation(f"{arm}_1600-{seed}-sampled")["pass@1"]["mean"] for seed in SEEDS]
        for arm in ("search_model", "random_format")
    )
    for label, shares in (("written search", search), ("`random_format`", plain)):
        cells = " | ".join(map(percent, shares))
        yield page, f"| {label} | {cells} | {cell(over_seeds(shares))} |"
    lead = over_seeds(one - other for one, other in zip(search, plain, strict=True))
    yield page, f"The difference is {points(lead)}"
    data = load("search/search_model_1600-0-data.json")
    yield page, f"on {figure(data['rows_train'])} written searches"
    yield page, f"on {figure(data['rows_train'])} examples of random play"
    yield (
        page,
        f"on {figure(evaluation('search_model_1600-0-sampled')['puzzles'])} unseen puzzles per seed",
    )
    slip, large = (f"search_model_1600-0-{board}-sampled" for board in ("on-slip", "5x5"))
    for label, name, random, other in (
        (f"4×4 lake, slip {figure(0.2, '.1f')}", slip, "random-slip-0", None),
        ("5×5 lake", large, "random-5x5-0", "random_format_1600-0-5x5-sampled"),
    ):
        cells = [cell(evaluation(one)["pass@1"]) if one else "not run" for one in (name, other)]
        lucky = percent(evaluation(random)["pass@1"]["mean"])
        yield page, f"| {label} | {cells[0]} | {lucky} | {cells[1]} |"


def shares_by_puzzle(entry: Mapping[str, Any]) -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded, of an evaluation of a planner."""
    return {name: fmean(won) for name, won in entry["puzzles"].items()}


def arrows(moments: Sequence[Sequence[float]], digits: int = 1) -> str:
    """Before → after of each seed, and of their means, as cells of a table."""
    columns = [*zip(*moments, strict=True), tuple(fmean(shares) for shares in moments)]
    return " | ".join(" → ".join(percent(share, digits) for share in pair) for pair in columns)


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
    """Examples of copies of the game beside those of the model's own predictions."""
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


def after_ppo() -> Iterator[Claim]:
    """Both written searches before and after PPO: of seeds 0 to 2, and of `make smol`."""
    page = "experiments/written-search/0061-make-smol-in-one-piece.md"
    newer = "experiments/written-search/0072-ppo-of-both-written-searches-on-three-seeds.md"
    smol = [outcomes(f"make-smol-search_model{ppo}-sampled") for ppo in ("", "-ppo")]
    made = load("search/make-smol.json")
    yield page, f"In all {figure(made['seconds']['total'])} seconds"
    yield page, f"{figure(made['peak_memory_gb'], '.1f')} GB together"
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
    yield newer, f"{percent(after['mean'])} % {bracket(after, 1)}"
    yield PAGE, f"{percent(after['mean'])} %\n{bracket(after, 1)} after PPO"
    every = (*trainings, smol)
    many = figure(examples_of("search_model_1600-0"))
    labels = (*map(figure, SEEDS), "of `make smol`")
    for label, pair in zip(labels, every, strict=True):
        yield PAGE, f"| {many} | {label} {ppo_row(pair)}"
    yield PAGE, f"From {many} searches PPO adds"
    yield PAGE, f"From {many} examples nearly"
    steps = read_lines("search", "search_model_1600-0-ppo-5e-6-8.jsonl")
    rate, puzzles = ppo_setting("search_model_1600-0-ppo-5e-6-8").split(", ")
    yield PAGE, f"{figure(len(steps))} steps, learning rate {rate} and {puzzles} a step"
    change = over_seeds(map(change_of, trainings))
    yield PAGE, f"{fine_points(change)} more"
    minutes, memory = made["seconds"]["total"] / 60, made["peak_memory_gb"]
    yield (
        "README.md",
        f"({figure(minutes, '.0f')} minutes with bfloat16 instructions, {figure(memory)} GB of memory)",
    )
    yield PAGE, f"trains one seed in {figure(minutes, '.0f')} minutes"
    gain = over_seeds(map(change_of, every))
    shares = [percent(fmean(map(share, column))) for column in zip(*every, strict=True)]
    fine = f"{percent(gain['mean'], 2)} {bracket(gain, 2)}"
    yield PAGE, f"| {many} | mean of the four | {shares[0]} | {shares[1]} | {fine} |"
    fine = fine.replace(" [", " points [")
    yield "README.md", f"; {many}, four runs: {fine}"
    yield PAGE, f"all four runs, the change is {fine}"
    yield newer, f"PPO adds {fine}"


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
        (400, (1, 2), "experiments/written-search/0062-ppo-from-400-written-searches.md"),
        (800, range(5), "experiments/written-search/0063-ppo-from-800-written-searches.md"),
    ):
        few = figure(examples_of(f"search_model_{examples}-1"))
        yield PAGE, f"From {few} examples"
        for seed, names in zip(seeds, before_and_after(examples, seeds), strict=True):
            pair = [outcomes(f"{name}-sampled") for name in names]
            yield PAGE, f"| {few} | {figure(seed)} {ppo_row(pair)}"
            for name in names:
                yield page, sampled_and_greedy(name)
    page = "experiments/written-search/0063-ppo-from-800-written-searches.md"
    few = figure(examples_of("search_model_800-0"))
    trainings = list(before_and_after(800, range(5)))
    changes: dict[str, dict[str, float]] = {}
    for how in ("sampled", "greedy"):
        pairs = [[outcomes(f"{name}-{how}") for name in names] for names in trainings]
        changes[how] = over_seeds(difference(after, before)["mean"] for before, after in pairs)
        yield page, f"{fine_points(changes[how])}"
        if how == "sampled":
            means = [
                over_seeds(fmean(won.values()) for won in column)["mean"]
                for column in zip(*pairs, strict=True)
            ]
            mean = change_row(percent(means[0]), percent(means[1]), changes[how])
            yield PAGE, f"| {few} | mean of the five {mean}"
            each = [percent(share(before)) for before, _ in pairs[:3]]
            yield PAGE, f"written search solves {each[0]}, {each[1]}\nand {each[2]} % on 4×4"
            many = figure(examples_of("random_format_1600-0"))
            yield (
                PAGE,
                f"With {few} examples, which have four times the supervised tokens of the baseline's {many}",
            )
    gain = changes["sampled"]
    yield (
        "README.md",
        f"{few} examples, five runs: {fine_points(gain)}",
    )
    tokens = [
        [evaluation(f"{name}-sampled")["tokens_per_episode"] for name in names]
        for names in trainings
    ]
    saved = over_seeds(after / before - 1 for before, after in tokens)
    yield page, f"{percent(saved['mean'])} % {bracket(saved, 1)}"


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


def baseline_after_ppo() -> Iterator[Claim]:
    """PPO of the baseline of written search; seeds 0 and 1 were trained on a GPU."""
    page = "experiments/written-search/0066-written-search-arms-on-an-h100.md"
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


def all_seeds() -> str:
    """The seeds 0, 1, 2, as a cell."""
    return ", ".join(map(figure, SEEDS))


def examples_of(name: str) -> float:
    """The examples that an SFT has seen."""
    steps = read_lines("search", f"{name}-sft.jsonl")
    return round(sum(step["train/rows"] for step in steps), -1)


def ppo_setting(name: str) -> str:
    """Learning rate and puzzles a step of a PPO training: `5e-6, 8 puzzles`."""
    steps = read_lines("search", f"{name}.jsonl")
    step = next(step for step in steps if "actor/lr" in step)
    rate = f"{step['actor/lr']:.0e}".replace("e-0", "e-")
    puzzles = step["train/FrozenLakeNoSlip/episodes"] / 8
    return f"{OPEN}{rate}{CLOSE}, {figure(puzzles)} puzzles"


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


def evaluation(name: str, question: str = "search") -> Any:
    """The one tag of an evaluation of written search."""
    (found,) = load(f"{question}/{name}.json")["tags"].values()
    return found


def outcomes(name: str, question: str = "search") -> dict[str, float]:
    """Puzzle -> share of its attempts that succeeded."""
    return {puzzle: fmean(won) for puzzle, won in attempts(f"{question}/{name}")}


def attempts(name: str) -> list[tuple[str, list[bool]]]:
    """The puzzles of an evaluation in their order, with the success of each attempt."""
    return [
        (group["puzzle_hash"], [attempt["success"] for attempt in group["attempts"]])
        for group in groups(name)
    ]


def groups(name: str) -> list[dict[str, Any]]:
    """The puzzles of an evaluation in their order."""
    question, _, file = name.partition("/")
    # The first line holds the settings.
    return [group for group in read_lines(question, f"{file}.groups.jsonl") if "attempts" in group]


def difference(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """The mean difference over the puzzles that both have, with its 95 % bootstrap interval."""
    found = paired_by_puzzle([(first, second)], seed=0)
    assert found is not None, "the two evaluations share no puzzle"
    return asdict(found)


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


def two_plans() -> Iterator[Claim]:
    """`choose_plan` on the 4×4 lake, with two limits of a response."""
    page = "experiments/written-search/0076-written-search-on-sokoban-and-two-plans.md"
    for name in ("sampled", "long"):
        found = evaluation(f"choose_plan_1600-0-{name}")
        shares = [percent(found[key], 0) for key in ("format_rate", "cut_off", "prediction_exact")]
        yield (
            page,
            f"| {figure(found['puzzles'])} | {cell(found['pass@1'])} | {' | '.join(shares)} |",
        )


def act_obs() -> Iterator[Claim]:
    """ActObs beside SFT on the responses alone, after SFT and after PPO: Pass@1 and Pass@8."""
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


def reference() -> Iterator[Claim]:
    """The reference policies on the lakes of the tables."""
    boards = [reference_success(f"lake-{size}x{size}") for size in (3, 4, 5)]
    for policy, label in (
        ("random", "| random actions | nothing"),
        ("walk", "holes ignored | the prompt"),
        (
            "nearest_neighbour",
            f"nearest neighbour on {figure(1600)} labelled states | right actions",
        ),
        ("network_1_epoch", "network on the same labels, {} epoch | right actions"),
        ("network_30_epochs", "… {} epochs | right actions"),
        (
            "network_30_epochs_8_symmetries",
            "… {} epochs, {} symmetries of the board | right actions",
        ),
        (
            "network_centred_all_states",
            f"{figure(1600)} puzzles, centred on the player | right actions",
        ),
        (
            "network_centred_all_states_no_repeats",
            "no action twice in a state of an episode | right actions",
        ),
        ("look_ahead", "smallest distance | a simulator"),
        ("counted_table_search", "counted table with breadth-first search | random moves"),
        ("optimum", "| best policy | a simulator"),
    ):
        label = label.format(*(figure(int(part)) for part in policy.split("_") if part.isdigit()))
        yield PAGE, f"{label} | {' | '.join(percent(one[policy]['mean']) for one in boards)} |"
    small, lake, large = (
        {policy: percent(found["mean"]) for policy, found in one.items()} for one in boards
    )
    size = json.loads((RESULTS / "reference" / "lake-4x4.json").read_text("utf-8"))["options"][
        "size"
    ]
    pairs = figure(4 * size**2)
    yield "README.md", f"There is little to learn: {pairs} pairs"
    yield PAGE, f"The world model of the 4×4 lake is {pairs} pairs"
    yield "docs/concepts.md", f"{pairs} pairs (cell, action) → cell on 4×4"
    for said in (f"a world model of {pairs} pairs", f"the {pairs} moves of this lake"):
        yield "docs/results-smollm2.md", said
    pair = f"a walk wins {small['walk']}, a look-ahead {small['look_ahead']}"
    yield "README.md", pair
    yield PAGE, f"The walk solves {small['walk']} %"
    yield "README.md", f"times the episodes; a walk wins {small['walk']} |"
    yield PAGE, f"ignores holes wins {large['walk']}\n  to {small['walk']} %."
    # The policies that need neither a simulator nor counted moves.
    without = [
        policy
        for policy in small
        if policy not in ("look_ahead", "counted_table_search", "optimum")
    ]
    best = [percent(max(one[policy]["mean"] for policy in without)) for one in boards]
    yield PAGE, f"wins {best[0]} % on 3×3, {best[1]} % on 4×4 and {best[2]} % on 5×5"
    yield "README.md", f"(three seeds), random actions {small['random']} %"
    yield "README.md", f"The walk solves {small['walk']} %, the look-ahead {small['look_ahead']} %"
    yield (
        "README.md",
        f"Ten random actions have a Pass@1 of {small['random']}, the walk {small['walk']}.",
    )
    table, network = "counted_table_search", "network_30_epochs_8_symmetries"
    strongest = "network_centred_all_states_no_repeats"
    rooms = reference_success("sokoban-6x6")
    walk, look = (percent(rooms[policy]["mean"]) for policy in ("walk", "look_ahead"))
    yield PAGE, f"wins {walk} % of such rooms, and a one-step look-ahead {look} %"
    yield PAGE, f"no more than random actions ({small['random']} %)"
    for page, said in (
        (
            "README.md",
            f"the walk wins {lake['walk']} % and a small network on right actions {lake[strongest]} %",
        ),
        (
            "README.md",
            f"wins {lake['look_ahead']} %, and a search over a *counted table* of where random moves led "
            f"{lake[table]} %",
        ),
        *(
            (
                "README.md",
                f"wins {one['look_ahead']}, a network on right actions {one[strongest]}, a counted table with search "
                f"{one[table]} |",
            )
            for one in (lake, large)
        ),
        (
            PAGE,
            f"look-ahead {lake['look_ahead']} %, and a counted table with search {lake[table]} %",
        ),
        (
            PAGE,
            f"look-ahead {large['look_ahead']} % and the counted table with search {large[table]} %",
        ),
        (PAGE, f"the counted table with search ({lake[table]} and {large[table]} %)"),
        (PAGE, f"wins {lake['nearest_neighbour']} % and a small network {lake[network]} %"),
        (PAGE, f"of as many puzzles a network wins {lake[strongest]} %"),
        (PAGE, f"far below a walk ({lake['walk']} %)"),
        (PAGE, f"less than a walk ({large['walk']} % on the board)"),
        ("docs/results-smollm2.md", f"and the best policy {lake['optimum']} %"),
    ):
        yield page, said
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
        f"random actions win {small['random']} %, a walk to the goal that ignores holes {small['walk']} % and a "
        f"one-step look-ahead {small['look_ahead']} %",
    )
    yield "README.md", f"a look-ahead wins {large['look_ahead']}"


def sokoban_reference() -> Iterator[Claim]:
    """The reference policies on Sokoban."""
    boards = [reference_success("sokoban-6x6"), reference_success("sokoban-6x6-hard")]
    for policy, text in (
        ("random", "| random actions | nothing"),
        ("walk", "walls ignored | the prompt"),
        (
            "network_centred_all_states",
            f"states of {figure(1600)} rooms, centred on the player | right actions",
        ),
        (
            "network_centred_all_states_8_symmetries",
            f"… {figure(8)} symmetries of the board | right actions",
        ),
        (
            "network_centred_all_states_8_symmetries_no_repeats",
            f"… {figure(8)} symmetries, no action twice in a state | right actions",
        ),
        (
            "room_lookup_8_symmetries",
            f"all states of {figure(1600)} rooms, {figure(8)} symmetries, else look-ahead around walls "
            "| right actions, rules",
        ),
        ("look_ahead", "walls ignored | a simulator"),
        ("look_ahead_around_walls_no_revisits", "not back to a state | rules"),
        ("one_box_at_a_time", "one box at a time | rules"),
        ("counted_rules_search_80_moves", f"{figure(80)} random moves | random moves"),
        ("counted_rules_search_320_moves", f"… {figure(320)} random moves | random moves"),
        ("optimum", "| best policy | a simulator"),
    ):
        yield PAGE, f"{text} | {' | '.join(percent(one[policy]['mean']) for one in boards)} |"
    rooms = load("learned-world/sokoban-recurring-rooms.json")
    single, best = (percent(boards[1][name]["mean"]) for name in ("one_box_at_a_time", "optimum"))
    yield PAGE, f"with the rules wins {single} % (one box at a time) to {best} %"
    shares = [percent(fmean(rooms[name]["recurs"])) for name in rooms]
    known, others = figure(len(rooms["sokoban-6x6"]["recurs"])), figure(1600)
    yield PAGE, f"Success in {known} rooms of 6×6"
    yield (
        PAGE,
        f"{shares[0]} % of the rooms with one box and {shares[1]} % of the hard ones are states of the\n"
        f"{others} other rooms",
    )


def q_learning() -> Iterator[Claim]:
    """Tabular Q-learning on the puzzles of the demo and of other boards."""
    seeds = range(3)
    shares = {
        actions: [
            load(f"demo/q-learning-{actions}-{seed}.json")["on other puzzles"] for seed in seeds
        ]
        for actions in (61440, 122880)
    }
    episodes = load("demo/three-seeds.json")["episodes"]["spa"]
    known = sum(episodes.values())
    for actions, won in shares.items():
        one, two, three = map(percent, won)
        yield PAGE, f"{one}, {two} and {three} %"
        yield PAGE, figure(actions)
    yield PAGE, f"SPA's {figure(known)} episodes. It solves"
    one, two, three = (
        percent(seed["methods"]["spa"]["after"]["pass@1"])
        for seed in load("demo/three-seeds.json")["seeds"]
    )
    yield PAGE, f"SPA solves\n{one}, {two} and {three} %"
    mean = percent(fmean(shares[61440]))
    yield PAGE, f"it wins {mean} % on the 3×3 lake, with ten {percent(fmean(shares[122880]))} %"
    yield "README.md", f"for each of SPA's episodes {mean} %"
    yield "README.md", f"Q-learning {mean} |"
    lake, rooms, hard = (
        load(f"learned-world/q-learning-{preset}.json")
        for preset in ("smol_hidden_lake", "smol_sokoban", "smol_sokoban_hard")
    )
    yield PAGE, f"{figure(lake['steps'])} actions, it solves"
    yield PAGE, f"{percent(lake['on other puzzles'])} % of {figure(256)} hidden lakes"
    yield PAGE, f"{percent(rooms['on other puzzles'])} % of Sokoban rooms"
    yield PAGE, f"{percent(hard['on other puzzles'])} % of hard ones"


def hidden_lake() -> Iterator[Claim]:
    """Policies and SmolLM2 on the hidden lake."""
    run = "smol_hidden_lake"

    def examples(name: str) -> str:
        steps = read_lines("learned-world", f"{run}-{name}.jsonl")
        return figure(sum(step["train/examples"] for step in steps))

    labels = examples("actions_only-none-1-1")
    searches = examples("search_marked_model-true-1-1")
    known = reference_success("hidden-lake-4x4")
    for policy, text in (
        ("random", "random actions | nothing"),
        ("ordinary_plan", "the ordinary lake | nothing"),
        ("elimination", "its episode; it knows which facts there are"),
        ("elimination_no_action_as_named", "no action does what its name says | the same"),
        (
            "elimination_kept_over_16_episodes",
            f"it keeps what it saw over {figure(16)} episodes, their mean | {figure(16)} episodes",
        ),
        ("nearest_neighbour", f"{labels} right actions"),
        ("network_centred_all_states", f"all best actions of all states of {labels} puzzles"),
        (
            "network_centred_all_states_no_repeats",
            "no action twice in a state of an episode | the same",
        ),
        ("look_ahead", "look-ahead in the true world | a simulator"),
        (
            "factored_counts_search_80_moves",
            f"the same | {figure(80)} random moves; they know which facts there are",
        ),
        (
            "factored_counts_search_40_moves",
            f"{figure(40)} random moves; they know which facts there are",
        ),
        (
            "counted_landings_search_320_moves",
            f"cell | {figure(320)} random moves that name the landing",
        ),
        *(
            (f"counted_landings_search_{moves}_moves", f"the same | {figure(moves)} random moves")
            for moves in (640, 1280, 2400)
        ),
        ("counted_neighbours_search_2400_moves", f"action) → cell | {figure(2400)} random moves"),
        ("counted_neighbours_search_8552_moves", f"the same | {figure(8552)} random moves"),
    ):
        yield PAGE, f"{text} | {cell(known[policy])} |"
    network = percent(fmean(imitators("hidden-lake-4x4").values()))
    first = percent(known["network_centred_all_states_no_repeats"]["mean"])
    yield PAGE, f"A network wins {network} % of the development puzzles"
    yield PAGE, f"(three trainings; {first} % is one of them)"
    outside = {
        name: load(f"learned-world/plan-outside-{name}-2.json")
        for name in ("true", "1", "without_way")
    }
    won = {
        name: asdict(rate_interval([[puzzle["search"] for puzzle in found["puzzles"]]], seed=0))
        for name, found in outside.items()
    }
    for name, text in (
        ("true", "search outside | {} random moves"),
        ("1", "another world | {} random moves there"),
        ("without_way", "without the landing cell | {} random moves"),
    ):
        text = text.format(examples(f"moves-{name}-2"))
        yield PAGE, f"{text} | {cell(won[name])} |"
    count = figure(len(outside["true"]["puzzles"]))
    true, other = (percent(won[name]["mean"]) for name in ("true", "1"))
    without = percent(won["without_way"]["mean"])
    yield (
        PAGE,
        f"wins {true} % of {count} development puzzles, with those of another world {other} %.",
    )
    yield PAGE, f"a letter pushes it; without this cell, the program wins {without} %."
    yield (
        "README.md",
        f"the learned moves wins {true} % of development puzzles, without landing cells {without} %",
    )
    yield (
        "README.md",
        f"{true} %; with moves of another world {other} %, without landing cells {without} %",
    )
    counters = percent(known["factored_counts_search_80_moves"]["mean"])
    yield (
        "README.md",
        f"{labels} puzzles wins {network} % (mean of three trainings), nine counters with search {counters} from "
        f"{figure(80)} moves",
    )
    right = percent(outside["without_way"]["state_right"])
    yield PAGE, f"Without it, {right} % of the predicted cells"
    steps = load("learned-world/q-learning-smol_hidden_lake.json")["steps"]
    yield PAGE, f"about {figure(2400)} of {figure(steps)} random moves. A program"
    yield PAGE, f"each action leads in {figure(1600)} puzzles,"
    yield "README.md", f"about {figure(2400)} random moves, then on {figure(1600)} searches"
    reference = json.loads((RESULTS / "reference" / "hidden-lake-4x4.json").read_text("utf-8"))
    policies = figure(reference["puzzles"])
    yield PAGE, f"{policies} for policies without a model and {count}\nwith SmolLM2"
    for name, text in (
        (
            "search_marked_model-true-1-1",
            f"{examples('moves-true-1')} random moves, {searches} searches of its own predictions",
        ),
        *(
            (
                f"search_paths_model-true-1-{seed}",
                f"(seed {seed}) | {examples(f'moves-true-{seed}')} random moves, "
                f"{examples(f'search_paths_model-true-1-{seed}')} searches of its own predictions",
            )
            for seed in (1, 2)
        ),
        *(
            (
                f"search_paths_model-1-1-{seed}",
                f"moves of another world (seed {figure(seed)}) | {examples(f'moves-1-{seed}')} random moves there, "
                f"{examples(f'search_paths_model-1-1-{seed}')} searches of its own predictions",
            )
            for seed in (1, 2, 3)
        ),
        (
            "search_paths_simulator-none-1-1",
            f"without single moves (seed 1) | {examples('search_paths_simulator-none-1-1')} true searches",
        ),
        ("actions_only-none-1-1", f"one epoch (seed 1) | {labels} right actions"),
        (
            "actions_only-true-1-1",
            f"single moves (seed 1) | {examples('moves-true-1')} random moves, {labels} right actions",
        ),
        (
            "path_only-true-1-1",
            f"the actions (seed 1) | {examples('moves-true-1')} random moves, "
            f"{examples('path_only-true-1-1')} shortest paths",
        ),
    ):
        found = evaluation(f"{run}-{name}-sampled", "learned-world")
        yield PAGE, f"{text} | {cell(found['pass@1'])} |"
    trained = {
        (world, seed): outcomes(
            f"{run}-search_paths_model-{world}-1-{seed}-sampled", "learned-world"
        )
        for world, seeds in (("true", (1, 2)), ("1", (1, 2, 3)))
        for seed in seeds
    }
    taught = outcomes(f"{run}-search_paths_simulator-none-1-1-sampled", "learned-world")
    alone = percent(fmean(taught.values()))
    lead = difference(taught, trained["true", 1])
    yield PAGE, f"from true searches alone, SmolLM2 wins {alone} % of the development puzzles"
    yield (
        PAGE,
        f"it wins {fine_points(lead)} more than with them: no difference",
    )
    yield "README.md", f"with true searches and no single moves {alone} % (one seed)"
    after, before = (
        outcomes(f"{run}-actions_only-{moves}-1-1-sampled", "learned-world")
        for moves in ("true", "none")
    )
    gain, search = difference(after, before), difference(trained["true", 1], after)
    yield PAGE, f"right actions win {fine_points(gain)} more"
    yield PAGE, f"{fine_points(search)} more than right actions"
    # The trainings of a row differ less than samples of puzzles do, so the intervals are over puzzles.
    own, control = (
        {
            puzzle: fmean(each[puzzle] for (world, _), each in trained.items() if world == wanted)
            for puzzle in trained[wanted, 1]
        }
        for wanted in ("true", "1")
    )
    lead = difference(own, control)
    one, two, three = (percent(fmean(trained["1", seed].values())) for seed in (1, 2, 3))
    mean = asdict(rate_interval([[*control.values()]], seed=0))
    yield (
        PAGE,
        f"the model wins {one}, {two} and {three} %, {percent(mean['mean'])} % {bracket(mean, 1)} on\n  average, "
        f"{percent(lead['mean'], 0)} points {bracket(lead)} less than two trainings on moves of this one",
    )
    played = [
        evaluation(f"{run}-search_paths_model-1-1-{seed}-sampled", "learned-world")
        for seed in (1, 2, 3)
    ]
    failed = percent(fmean(each["search/wrong_move"] for each in played), 0)
    one, two, three = (percent(each["cut_off"]) for each in played)
    yield (
        PAGE,
        f"{failed} % of its searches first fail at a wrong move, and {one}, {two} and {three} % of the\n  responses",
    )
    lost = percent(mean["mean"])
    one, two = (percent(fmean(trained["true", seed].values())) for seed in (1, 2))
    chance = percent(known["random"]["mean"])
    yield (
        "README.md",
        f"the model wins {one} and {two} %, with moves of another world {lost} %, with true searches",
    )
    yield (
        "README.md",
        f"two trainings win {one} and {two} %, the same training on moves of a world with other directions {lost} %, "
        f"and random actions {chance} %",
    )


def written_derivation() -> Iterator[Claim]:
    """SmolLM2 on Sudoku, by rules that the program supplies."""
    name = "smol_sudoku_propagation-supplied_rules-none-1-1"
    steps = read_lines("learned-world", f"{name}.jsonl")
    trained = figure(sum(step["train/examples"] for step in steps))
    tag = evaluation(f"{name}-greedy", "learned-world")
    known = reference_success("sudoku-6-to-8-clues")
    look = percent(known["look_ahead"]["mean"])
    yield (
        "docs/results-smollm2.md",
        f"supplies wins {cell(tag['pass@1'])} after {trained} examples ([0095]",
    )
    rules = percent(known["single_candidate"]["mean"])
    yield "docs/results-smollm2.md", f"one-step look-ahead {look}, single candidates {rules} |"


def best_first_sokoban() -> Iterator[Claim]:
    """SmolLM2 on Sokoban's best-first searches over a simulator."""
    name = "smol_sokoban_search-best_first_simulator-none-1-1"
    steps = read_lines("learned-world", f"{name}.jsonl")
    trained = figure(sum(step["train/examples"] for step in steps))
    tag = evaluation(f"{name}-sampled", "learned-world")
    won = tag["pass@1"]
    yield (
        PAGE,
        f"{trained} true searches win {percent(won['mean'])} % {bracket(won, 1)} of "
        f"{figure(tag['puzzles'])} development\nrooms, as much as a walk",
    )
    moves = read_lines("learned-world", "look-sokoban-moves-player-cell.jsonl")
    made = load("learned-world/smol_sokoban_search-best_first_model-true-1-1-data.json")
    assert made["search"]["move_right"] == made["search"]["search_right"] == 1.0
    learned = figure(sum(step["train/examples"] for step in moves))
    yield PAGE, f"after {learned} random moves that name the cells which decide them, all of its"
    questions, searches = figure(made["search"]["questions"]), figure(made["puzzles"])
    yield PAGE, f"all of its {questions} predictions for {searches} searches are right"
    again = load("learned-world/smol_sokoban_search-best_first_model-true-float32-1-1-data.json")
    questions, right = (
        figure(again["search"]["questions"]),
        percent(again["search"]["move_right"], 2),
    )
    yield PAGE, f"second training, in float32, {right} % of {questions} are"


def knowledge() -> Iterator[Claim]:
    """Planning outside over the accuracy of single moves, on the hidden lake."""
    found = {
        step: load(f"learned-world/plan-outside-true-1-{step}.json")
        for step in (30, 40, 60, 80, 100)
    }
    right = {step: percent(each["move_right"]) for step, each in found.items()}
    search = {step: percent(each["search"]) for step, each in found.items()}
    look = {step: percent(each["look_ahead"]) for step, each in found.items()}
    imitated = imitators("hidden-lake-4x4")
    network = percent(fmean(imitated.values()))
    yield PAGE, f"the same {figure(len(found[30]['puzzles']))} development puzzles\n([0093]"
    yield PAGE, f"it wins {search[30]} % with {right[30]} % of\nthe moves right,"
    yield PAGE, f"{search[60]} % with {right[60]} %, and {search[100]} % with {right[100]} %."
    yield (
        PAGE,
        f"({network} % of {figure(len(imitated))} development puzzles, three trainings) only at {right[80]} %, "
        f"where it wins {search[80]} %.",
    )
    yield PAGE, f"{look[40]} % at {right[40]} %, and {look[100]} % where {right[100]} % are."
    rises = f"search rises from {percent(found[30]['search'], 0)} to {percent(found[100]['search'], 0)} %"
    falls = f"look-ahead from {percent(found[30]['look_ahead'], 0)} to {percent(found[100]['look_ahead'], 0)} %"
    yield PAGE, f"{rises}, {falls}"


def counted(reference: Mapping[str, Any], policy: str) -> dict[str, float]:
    """Puzzle of a board -> success of a reference policy."""
    shares = [won / reference["samples"] for won in reference["wins"][policy]]
    return dict(zip(reference["puzzle_hashes"], shares, strict=True))


def opened_hidden_lake() -> Iterator[Claim]:
    """Written search on the hidden lake's evaluation set, beside the strongest baseline."""
    names = [f"eval-set-search_paths_model-true-1-{seed}" for seed in (1, 2, 3)]
    won = {
        how: [outcomes(f"{name}-{how}", "learned-world") for name in names]
        for how in ("sampled", "greedy")
    }
    # The three trainings differ less than samples of puzzles do, so the intervals are over puzzles.
    means = {
        how: {puzzle: fmean(each[puzzle] for each in found) for puzzle in found[0]}
        for how, found in won.items()
    }
    shares = {how: asdict(rate_interval([[*each.values()]], seed=0)) for how, each in means.items()}
    one, two, three = (percent(fmean(each.values())) for each in won["sampled"])
    mean, greedy = (f"{percent(each['mean'])} % {bracket(each, 1)}" for each in shares.values())
    yield PAGE, f"{figure(len(means['sampled']))} puzzles that each training opened once"
    yield PAGE, f"wins {one}, {two} and {three} %, {mean} on average, greedily {greedy}"
    path = RESULTS / "reference" / "hidden-lake-4x4-eval-set.json"
    reference = json.loads(path.read_text("utf-8"))
    network = imitators("hidden-lake-4x4-eval-set")
    success = fmean(network.values())
    more = {puzzles: imitators("hidden-lake-4x4-eval-set", puzzles) for puzzles in (6400, 25600)}
    few, many = (percent(fmean(each.values())) for each in more.values())
    lead, less, none = (
        fine_points(difference(means["sampled"], each)) for each in (network, *more.values())
    )
    assert difference(means["sampled"], more[25600])["low"] < 0
    yield (
        PAGE,
        f"The network wins {percent(success)} % of them (mean of three trainings on other puzzles), {lead} less",
    )
    yield (
        PAGE,
        f"From {figure(6400)} puzzles it wins {few} %, {less} less, and\n"
        f"  from {figure(25600)} puzzles {many} %: {none}, no difference",
    )
    yield (
        PAGE,
        f"From {figure(25600)} puzzles, the network wins {many} %, and no difference was found: {none}",
    )
    yield "README.md", f"% after as many puzzles, {lead} less."
    yield (
        "README.md",
        f"After {figure(25600)} puzzles it wins {many} %, and no difference was found: {none}",
    )
    yield "README.md", f"of {figure(25600)} puzzles {many} %,"
    count = figure(len(network))
    yield (
        PAGE,
        f"On the {count} puzzles of the\n  evaluation set, SmolLM2 wins {percent(shares['sampled']['mean'])} % "
        f"with a search that it writes itself (three trainings), a network on right actions of {figure(1600)}\n"
        f"  puzzles {percent(success)} %.",
    )
    yield (
        "README.md",
        f"{percent(shares['sampled']['mean'])} % {bracket(shares['sampled'], 1)} of the evaluation set (",
    )
    yield "README.md", f"right actions of {figure(1600)} puzzles wins {percent(success)} %,"
    yield (
        "README.md",
        f"search in every turn and wins {percent(shares['sampled']['mean'])} % of the evaluation set (",
    )
    yield "README.md", f"that imitates a solver wins {percent(success)} % after as many"
    yield (
        PAGE,
        f"right actions of {figure(1600)} puzzles | two tables counted from {figure(2400)} moves |",
    )
    lengths = {
        group["puzzle_hash"]: group["difficulty"]
        for group in groups(f"learned-world/{names[0]}-sampled")
    }
    counting = counted(reference, "counted_landings_search_2400_moves")
    for length in sorted({*lengths.values()}):
        puzzles = [puzzle for puzzle, steps in lengths.items() if steps == length]
        shares = [
            percent(fmean(each[puzzle] for puzzle in puzzles))
            for each in (means["sampled"], network, counting)
        ]
        yield PAGE, f"| {figure(length)} | {figure(len(puzzles))} | {' | '.join(shares)} |"
    known = {name: rate["mean"] for name, rate in reference["success"].items()}
    tables = percent(known["counted_landings_search_2400_moves"])
    counters = percent(known["factored_counts_search_80_moves"])
    ahead, early = (
        fine_points(
            difference(
                counted(reference, f"counted_landings_search_{moves}_moves"), means["sampled"]
            )
        )
        for moves in (2400, 1280)
    )
    yield PAGE, f"win {tables} % of the evaluation set, {ahead} more\n"
    yield PAGE, f"there are win {counters} % from {figure(80)} moves."
    before = percent(known["counted_landings_search_1280_moves"])
    yield PAGE, f"{before} % of the evaluation set from {figure(1280)} moves, {early} more"
    yield "README.md", f"win {tables} %, {ahead} more"
    yield PAGE, f"Two tables counted from {figure(2400)} moves win {tables} %."
    policy = "elimination_kept_over_16_episodes"
    episodes = reference["success_by_episode"][policy]
    later = percent(fmean(episodes[4:]))
    yield (
        PAGE,
        f"over {figure(len(episodes))} episodes wins {percent(episodes[0])} % of them in its first episode, "
        f"{percent(episodes[3])} % in its fourth and {later} % from its fifth on",
    )
    yield (
        "README.md",
        f"counted tables with search {tables} %, a program that "
        f"knows the possible worlds and rules them out as it plays {later} % from its fifth episode",
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


def every_claim() -> list[Claim]:
    """Texts that the pages must contain."""
    return [
        *demo(),
        *smollm2(),
        *search(),
        *sokoban(),
        *sokoban_reference(),
        *q_learning(),
        *two_plans(),
        *act_obs(),
        *leaderboard(),
        *results(),
        *perplexity(),
        *smollm2_page(),
        *reference(),
        *hidden_lake(),
        *opened_hidden_lake(),
        *best_first_sokoban(),
        *knowledge(),
        *written_derivation(),
    ]
