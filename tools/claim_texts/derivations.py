"""Texts about searches of Sokoban and derivations of Sudoku in writing."""

from collections.abc import Iterator

from results import reference_success

from claim_texts.figures import (
    PAGE,
    Claim,
    bracket,
    cell,
    evaluation,
    figure,
    load,
    percent,
    trained_on,
)


def best_first_sokoban() -> Iterator[Claim]:
    """SmolLM2 on Sokoban's best-first searches over a simulator."""
    name = "smol_sokoban_search-best_first_simulator-none-1-1"
    trained = trained_on(name)
    tag = evaluation(f"{name}-sampled", "learned-world")
    won = tag["pass@1"]
    yield (
        PAGE,
        f"{trained} true searches win {percent(won['mean'])} % {bracket(won, 1)} of "
        f"{figure(tag['puzzles'])} development\nrooms, as much as a walk",
    )
    made = load("learned-world/smol_sokoban_search-best_first_model-true-1-1-data.json")
    assert made["search"]["move_right"] == made["search"]["search_right"] == 1.0
    learned = trained_on("look-sokoban-moves-player-cell")
    yield PAGE, f"after {learned} random moves that name the cells which decide them, all of its"
    questions, searches = figure(made["search"]["questions"]), figure(made["puzzles"])
    yield PAGE, f"all of its {questions} predictions for {searches} searches are right"
    again = load("learned-world/smol_sokoban_search-best_first_model-true-float32-1-1-data.json")
    questions, right = (
        figure(again["search"]["questions"]),
        percent(again["search"]["move_right"], 2),
    )
    yield PAGE, f"second training, in float32, {right} % of {questions} are"
    name = "smol_sokoban_search-best_first_model-true-float32-1-1"
    trained = trained_on(name)
    won = evaluation(f"{name}-sampled", "learned-world")["pass@1"]
    yield (
        PAGE,
        f"After {trained} searches from these\npredictions the model wins {percent(won['mean'])} % "
        f"{bracket(won, 1)} of the rooms",
    )


def written_derivation() -> Iterator[Claim]:
    """SmolLM2 on Sudoku, by rules that the program supplies."""
    name = "smol_sudoku_propagation-supplied_rules-none-1-1"
    trained = trained_on(name)
    tag = evaluation(f"{name}-greedy", "learned-world")
    known = reference_success("sudoku-6-to-8-clues")
    look = percent(known["look_ahead"]["mean"])
    yield (
        "docs/results-smollm2.md",
        f"supplies wins {cell(tag['pass@1'])} after {trained} examples ([0095]",
    )
    rules = percent(known["single_candidate"]["mean"])
    yield "docs/results-smollm2.md", f"one-step look-ahead {look}, single candidates {rules} |"
