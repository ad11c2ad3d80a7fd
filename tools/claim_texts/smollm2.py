"""Texts about SmolLM2 with states, and the page of its results."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from results import read_lines

from claim_texts.figures import (
    CLOSE,
    OPEN,
    PAGE,
    SEEDS,
    Claim,
    all_seeds,
    bracket,
    cell,
    difference,
    evaluation,
    figure,
    load,
    over_seeds,
    percent,
    points,
    row,
    shares_by_puzzle,
)


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


def arrows(moments: Sequence[Sequence[float]], digits: int = 1) -> str:
    """Before → after of each seed, and of their means, as cells of a table."""
    columns = [*zip(*moments, strict=True), tuple(fmean(shares) for shares in moments)]
    return " | ".join(" → ".join(percent(share, digits) for share in pair) for pair in columns)
