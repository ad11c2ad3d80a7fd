"""Texts about PPO after written search."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from results import read_lines

from claim_texts.figures import (
    PAGE,
    SEEDS,
    Claim,
    bracket,
    cell,
    change_row,
    difference,
    evaluation,
    examples_of,
    figure,
    fine_points,
    load,
    outcomes,
    over_seeds,
    percent,
    points,
    ppo_setting,
    sampled_and_greedy,
    share,
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


def before_and_after(
    examples: int, seeds: Iterable[int], arm: str = "search_model"
) -> Iterator[list[str]]:
    """The names of each seed's evaluations before and after PPO."""
    for seed in seeds:
        yield [f"{arm}_{examples}-{seed}{ppo}" for ppo in ("", "-ppo-5e-6-8")]


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
