"""Measure the difficulty of boards: the success of reference policies, before anything is trained
on a board.

    python benchmarks/reference.py [BOARD…] [--folder benchmarks/results/reference]

Each board's file has, for every policy, the number of wins of each puzzle. `spa.envs.reference` and
`spa_bench.reference` define the policies. Brackets are 95 % CI over puzzles; of learners, which learn again for
each sample (`LEARNERS`) or keep what they saw, over samples on the same puzzles.
"""

import argparse
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from spa.envs.base import TextEnv
from spa.envs.eval_sets import eval_set
from spa.envs.reference import REFERENCES, NextAction, policy_success
from spa.envs.registry import make_env
from spa.evaluation.statistics import rate_interval
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream, stream_seed
from spa_bench.reference.hidden_lake import (
    CountedLake,
    InferredLake,
    Lead,
    all_worlds,
    believed_plan,
    count_landings,
    count_neighbours,
    elimination_episode,
    learn_world,
)
from spa_bench.reference.labels import (
    CENTRED_EPOCHS,
    CENTRED_HIDDEN,
    Label,
    centred_network,
    label_all_states,
    make_labels,
    nearest_neighbour,
    network,
    player_success,
    with_symmetries,
)
from spa_bench.reference.rules import (
    count_table,
    ordinary_plan,
    plan_without_letters,
    single_candidate,
    table_success,
)
from spa_bench.reference.sokoban import (
    count_rules,
    counted_plan,
    label_all_rooms,
    look_ahead_around_walls,
    one_box_at_a_time,
    room_lookup,
    walk_around_walls,
)
from spa_bench.reference.sudoku import solution_lookup, stored_solutions
from spa_games.hidden_dynamics_lake import HiddenDynamicsLake
from spa_games.sokoban import Sokoban
from spa_games.sudoku import Sudoku

SAMPLES = 8
"""Episodes of each policy on each puzzle; of policies without chance 1."""
LABELS = 1600
"""Right actions, as many as `actions_only` is trained on; `…_all_states` learn from all states of
as many puzzles. No label is of a measured puzzle."""
MOVES = 1600
"""Random moves of the counted table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Puzzles of one environment, by their seeds, and the cap of actions per episode."""

    env_type: str
    options: Mapping[str, Any] = field(default_factory=dict)
    cap: int
    seeds: Sequence[int]


def test_seeds(base: int, step: int, count: int) -> list[int]:
    """The puzzle seeds of three training seeds' validation sets."""
    return [base + step * seed + number for seed in range(3) for number in range(count)]


DEVELOPMENT = range(300_000, 300_256)
LAKE = {"p": 0.8, "is_slippery": False}
BOARDS = {
    # The validation puzzles of `spa compare demo --seeds 3`.
    "lake-3x3": Board(
        env_type="frozen_lake",
        options=LAKE | {"size": 3},
        cap=10,
        seeds=test_seeds(500_000, 100_000, 64),
    ),
    # The test puzzles of written search, which `benchmarks/results/search` names by content.
    "lake-4x4": Board(
        env_type="frozen_lake",
        options=LAKE | {"size": 4},
        cap=6,
        seeds=test_seeds(9_000_000, 100_000, 256),
    ),
    "lake-5x5": Board(
        env_type="frozen_lake",
        options=LAKE | {"size": 5},
        cap=10,
        seeds=test_seeds(9_000_000, 100_000, 256),
    ),
    # Puzzles that no training and no evaluation set has chosen: they are for development.
    "hidden-lake-4x4": Board(
        env_type="hidden_dynamics_lake", options={"min_moves": 3}, cap=6, seeds=DEVELOPMENT
    ),
    # The puzzles of the evaluation set, measured with the first model that opened it.
    "hidden-lake-4x4-eval-set": Board(
        env_type="hidden_dynamics_lake",
        options={"min_moves": 3},
        cap=6,
        seeds=eval_set("hidden-lake-4x4").seeds,
    ),
    # The goal may be one move away.
    "hidden-lake-4x4-near": Board(env_type="hidden_dynamics_lake", cap=6, seeds=DEVELOPMENT),
    "hidden-lake-3x3": Board(
        env_type="hidden_dynamics_lake", options={"size": 3}, cap=10, seeds=DEVELOPMENT
    ),
    "hidden-lake-5x5": Board(
        env_type="hidden_dynamics_lake", options={"size": 5}, cap=10, seeds=DEVELOPMENT
    ),
    # Other worlds of the same lake.
    **{
        f"hidden-lake-4x4-world-{world}": Board(
            env_type="hidden_dynamics_lake",
            options={"min_moves": 3, "world": world},
            cap=6,
            seeds=DEVELOPMENT,
        )
        for world in range(1, 4)
    },
    "sokoban-6x6": Board(env_type="sokoban", cap=10, seeds=DEVELOPMENT),
    "sokoban-6x6-hard": Board(
        env_type="sokoban", options={"num_boxes": [1, 2], "hard": 10}, cap=10, seeds=DEVELOPMENT
    ),
    "sudoku-12-clues": Board(env_type="sudoku", options={"clues": 12}, cap=6, seeds=DEVELOPMENT),
    "sudoku-6-to-8-clues": Board(
        env_type="sudoku",
        options={"clues": [6, 7, 8], "max_steps": None},
        cap=10,
        seeds=DEVELOPMENT,
    ),
}


POLICIES: dict[str, dict[str, NextAction]] = {
    "hidden_dynamics_lake": {
        "ordinary_plan": ordinary_plan,
        "plan_without_letters": plan_without_letters,
    },
    "sokoban": {
        "walk_around_walls": walk_around_walls,
        "look_ahead_around_walls": look_ahead_around_walls(1, remember=False),
        "look_ahead_around_walls_no_revisits": look_ahead_around_walls(1, remember=True),
        "look_ahead_3_around_walls_no_revisits": look_ahead_around_walls(3, remember=True),
        "one_box_at_a_time": one_box_at_a_time,
    },
    "sudoku": {"single_candidate": single_candidate},
}
"""Policies of one type beyond those that every game may have."""


def factored_counts_search(
    moves: int, env: TextEnv, held_out: Collection[str], sample: int
) -> NextAction:
    """Learn a HiddenDynamicsLake from random moves and plan with what was learned."""
    assert isinstance(env, HiddenDynamicsLake)
    return believed_plan(InferredLake(env.size, learn_world(env, moves, seed=sample)))


def counted_search(
    learn: Callable[..., Lead], moves: int, env: TextEnv, held_out: Collection[str], sample: int
) -> NextAction:
    """Count the moves of a HiddenDynamicsLake without knowing its structure, and plan with them."""
    assert isinstance(env, HiddenDynamicsLake)
    return believed_plan(CountedLake(env.size, learn(env, moves, seed=sample)))


def counted_rules_search(
    moves: int, env: TextEnv, held_out: Collection[str], sample: int
) -> NextAction:
    """Count what moves do in Sokoban and plan with that."""
    assert isinstance(env, Sokoban)
    return counted_plan(count_rules(env, moves, cap=BOARDS["sokoban-6x6"].cap, seed=sample))


def lookup(puzzles: int, env: TextEnv, held_out: Collection[str], sample: int) -> NextAction:
    """Store the solutions of training puzzles and look them up."""
    assert isinstance(env, Sudoku)
    return solution_lookup(stored_solutions(env, puzzles, seed=sample, held_out=held_out))


Learner = Callable[[TextEnv, Collection[str], int], NextAction]
"""(game, content hashes of the measured puzzles, sample) -> the learned policy."""
LEARNERS: dict[str, dict[str, Learner]] = {
    "hidden_dynamics_lake": {
        f"factored_counts_search_{moves}_moves": partial(factored_counts_search, moves)
        for moves in (20, 40, 80, 160, 2400)
    }
    | {
        f"counted_landings_search_{moves}_moves": partial(counted_search, count_landings, moves)
        for moves in (320, 640, 1280, 2400)
    }
    # 8,552 is the number of actions of a training's random play.
    | {
        f"counted_neighbours_search_{moves}_moves": partial(counted_search, count_neighbours, moves)
        for moves in (2400, 8552)
    },
    "sokoban": {
        f"counted_rules_search_{moves}_moves": partial(counted_rules_search, moves)
        for moves in (20, 80, 320, 1280)
    },
    "sudoku": {
        f"solution_lookup_{puzzles}_puzzles": partial(lookup, puzzles) for puzzles in (200, 800)
    },
}
"""Policies that learn before they play, again for each of the `SAMPLES` samples."""
ELIMINATION = {
    "elimination": (1, False),
    "elimination_no_action_as_named": (1, True),
    "elimination_kept_over_16_episodes": (16, False),
}
"""Learners inside the episodes of a HiddenDynamicsLake: the number of episodes after which they
forget, and whether they know that no action does what its name says."""


def measure(board: Board) -> dict[str, Any]:
    """The wins of every policy on every puzzle, and their rates."""
    env = make_env(board.env_type, board.options)
    hashes = []
    texts = []
    optimum = []
    for seed in board.seeds:
        env.reset(seed=seed)
        hashes.append(puzzle_hash(env))
        texts.append(env.puzzle_text())
        optimum.append(env.best_success(board.cap))
    fixed = REFERENCES | POLICIES.get(board.env_type, {})
    states = list[Label]()
    if isinstance(env, Sokoban):
        states = label_all_rooms(env, LABELS, seed=0, held_out=hashes)
        fixed |= {"room_lookup_8_symmetries": room_lookup(states)}
    elif board.env_type != "sudoku":
        states = label_all_states(env, LABELS, seed=0, held_out=hashes)
    learners = LEARNERS.get(board.env_type, {})
    policies = {name: [policy] * SAMPLES for name, policy in fixed.items()} | {
        name: [learn(env, hashes, sample) for sample in range(SAMPLES)]
        for name, learn in learners.items()
    }
    wins: dict[str, list[int] | None] = {name: [] for name in policies}
    by_sample = {name: [list[bool]() for _ in range(SAMPLES)] for name in learners}
    for seed, text in zip(board.seeds, texts, strict=True):
        for name, players in policies.items():
            counts = wins[name]
            if counts is None:
                continue
            won = []
            for sample, policy in enumerate(players):
                noise = stream_seed(seed, "reference", sample)
                # Given as a board, the puzzle is not made again.
                env.reset(seed=seed, options={"board": text, "noise_seed": noise})
                rng = stream(seed, f"reference/{name}", sample)
                won.append(policy_success(env, policy, board.cap, rng))
            # The single-candidate solver has no action where every cell has several digits.
            missing = None in won and name != "single_candidate"
            wins[name] = None if missing else [*counts, sum(map(bool, won))]
            if name in learners:
                for sample, result in enumerate(won):
                    by_sample[name][sample].append(bool(result))
    by_episode = dict[str, list[float]]()
    if isinstance(env, HiddenDynamicsLake):
        for name, (episodes, renamed) in ELIMINATION.items():
            by_sample[name], by_episode[name] = eliminate(env, board.cap, texts, episodes, renamed)
            wins[name] = [sum(won) for won in zip(*by_sample[name], strict=True)]
    rates = {
        name: [count / SAMPLES for count in counts]
        for name, counts in wins.items()
        if counts is not None
    }
    # A learner that forgets after each episode differs by puzzle, like a policy.
    over_samples = by_sample.keys() - {
        name for name, (episodes, _) in ELIMINATION.items() if episodes == 1
    }
    learned = learned_wins(board, env, hashes, states) if states else {}
    rates |= learned
    known = [share for share in optimum if share is not None]
    if len(known) == len(optimum):
        rates["optimum"] = known
    return {
        "env_type": board.env_type,
        "options": board.options,
        "cap": board.cap,
        "puzzles": len(board.seeds),
        "samples": SAMPLES,
        "success": {
            name: rate(*by_sample[name]) if name in over_samples else rate(values)
            for name, values in rates.items()
        },
        "success_by_sample": {
            name: [round(float(np.mean(one)), 4) for one in found]
            for name, found in by_sample.items()
        },
        "success_by_episode": by_episode,
        "wins": wins,
        "wins_without_chance": learned,
        "seeds": list(board.seeds),
        "puzzle_hashes": hashes,
    }


def eliminate(
    env: HiddenDynamicsLake, cap: int, texts: Sequence[str], episodes: int, renamed: bool
) -> tuple[list[list[bool]], list[float]]:
    """Play the puzzles in random order by elimination of worlds, which begins again after every
    `episodes` puzzles. Returns success per sample and puzzle, and the success of each episode's number
    since the beginning."""
    found = []
    by_number = [list[bool]() for _ in range(episodes)]
    for sample in range(SAMPLES):
        rng = stream(episodes, "reference/elimination", sample)
        won = [False] * len(texts)
        beliefs = all_worlds(renamed=renamed)
        for number, puzzle in enumerate(rng.permutation(len(texts))):
            if number % episodes == 0:
                beliefs = all_worlds(renamed=renamed)
            env.reset(seed=0, options={"board": texts[puzzle]})
            won[puzzle], beliefs = elimination_episode(env, beliefs, cap, rng)
            by_number[number % episodes].append(won[puzzle])
        found.append(won)
    return found, [round(float(np.mean(results)), 4) for results in by_number]


def learned_wins(
    board: Board, env: TextEnv, held_out: Sequence[str], states: Sequence[Label]
) -> dict[str, list[int]]:
    """Wins on each puzzle, 0 or 1, of baselines that learn from labels or from counts. `states` has all
    states of other puzzles."""

    def wins(plays: Callable[[], bool]) -> list[int]:
        found = []
        for seed in board.seeds:
            env.reset(seed=seed)
            found.append(int(plays()))
        return found

    labels = make_labels(env, LABELS, cap=board.cap, seed=0, held_out=held_out)
    symbols = {"hidden_dynamics_lake": "ABCDE", "frozen_lake": "P", "sokoban": "PS"}[board.env_type]
    players = {
        "network_1_epoch": network(labels, epochs=1, seed=0),
        "network_30_epochs": network(labels, epochs=30, seed=0),
    }
    if not isinstance(env, Sokoban):
        # It compares boards by their single goal.
        players = {"nearest_neighbour": nearest_neighbour(labels, symbols)} | players
    centred = partial(centred_network, seed=0, players=symbols)
    players |= {
        "linear_centred_all_states": centred(states, hidden=0),
        "network_centred_all_states": centred(states, hidden=CENTRED_HIDDEN),
    }
    # The letters' pushes have directions of their own, so that a turned board is another puzzle.
    if not isinstance(env, HiddenDynamicsLake):
        turned = network(with_symmetries(labels), epochs=30, seed=0)
        players["network_30_epochs_8_symmetries"] = turned
    strongest = "network_centred_all_states"
    if isinstance(env, Sokoban):
        strongest += "_8_symmetries"
        # An eighth of the epochs takes as many steps.
        players[strongest] = centred(
            with_symmetries(states), hidden=CENTRED_HIDDEN, epochs=-(-CENTRED_EPOCHS // 8)
        )
    found = {
        name: wins(partial(player_success, env, play, board.cap)) for name, play in players.items()
    }
    once = partial(player_success, env, players[strongest], board.cap, repeat=False)
    found[f"{strongest}_no_repeats"] = wins(once)
    if isinstance(env, Sokoban):
        return found
    table = count_table(env, MOVES, seed=0)
    return found | {"counted_table_search": wins(partial(table_success, env, table, board.cap))}


def rate(*values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % CI over puzzles, or over samples if there are several."""
    found = rate_interval(values, seed=0)
    return {name: round(getattr(found, name), 4) for name in ("mean", "low", "high")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("boards", nargs="*", default=[*BOARDS])
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/results/reference"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.boards:
        found = measure(BOARDS[name])
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in found.items()]
        (options.folder / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
        for policy, share in found["success"].items():
            print(
                f"{name} {policy}: {share['mean']:.1%} [{share['low']:.1%}, {share['high']:.1%}]",
                flush=True,
            )


if __name__ == "__main__":
    main()
