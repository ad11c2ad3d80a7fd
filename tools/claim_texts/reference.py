"""Texts about policies without a language model."""

import json
from collections.abc import Iterator
from statistics import fmean

from results import RESULTS, reference_success

from claim_texts.figures import PAGE, Claim, figure, load, percent


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
