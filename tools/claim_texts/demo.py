"""Texts about the demo: SPA against plain PPO on the 3×3 lake."""

from collections.abc import Iterator, Mapping
from statistics import fmean

from claim_texts.figures import (
    PAGE,
    Claim,
    all_seeds,
    bracket,
    difference,
    figure,
    load,
    over_seeds,
    percent,
    points,
    row,
)


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
