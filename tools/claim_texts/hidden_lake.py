"""Texts about the hidden lake."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from statistics import fmean

from knowledge_curve import imitators
from results import RESULTS, reference_success

from claim_texts.figures import (
    PAGE,
    Claim,
    bracket,
    cell,
    counted,
    difference,
    evaluation,
    figure,
    fine_points,
    groups,
    load,
    outcomes,
    percent,
    trained_on,
)
from spa.evaluation.statistics import rate_interval


def hidden_lake() -> Iterator[Claim]:
    """Policies and SmolLM2 on the hidden lake."""
    run = "smol_hidden_lake"

    def examples(name: str) -> str:
        return trained_on(f"{run}-{name}")

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
        ("actions_only-none-2-1", f"two epochs (seed 1) | {labels} right actions"),
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
    once, twice = (
        outcomes(f"{run}-actions_only-none-{epochs}-1-sampled", "learned-world")
        for epochs in (1, 2)
    )
    yield PAGE, f"a second epoch of actions wins {fine_points(difference(twice, once))} more"
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


def opened_hidden_lake() -> Iterator[Claim]:
    """Written search on the hidden lake's evaluation set, and the strongest baseline."""
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
