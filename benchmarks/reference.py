"""Measure the difficulty of boards: the success of reference policies, before anything is trained
on a board.

    python benchmarks/reference.py [BOARD…] [--folder benchmarks/results/reference]

Each board's file has, for every policy, the number of wins of each puzzle. `spa.envs.reference` defines the
policies. Brackets are 95 % CI over puzzles.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from spa.envs.base import TextEnv
from spa.envs.reference import REFERENCES, NextAction, policy_success
from spa.envs.registry import make_env
from spa.evaluation.statistics import rate_interval
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream, stream_seed
from spa_bench.reference.labels import (
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

SAMPLES = 8
"""Episodes of each policy on each puzzle; of policies without chance 1."""
LABELS = 1600
"""Right actions, as many as `actions_only` is trained on. No label is of a measured puzzle."""
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
    "sudoku": {"single_candidate": single_candidate},
}
"""Policies of one type beyond those that every game may have."""


def measure(board: Board) -> dict[str, Any]:
    """The wins of every policy on every puzzle, and their rates."""
    policies = REFERENCES | POLICIES.get(board.env_type, {})
    env = make_env(board.env_type, board.options)
    hashes = []
    optimum = []
    wins: dict[str, list[int] | None] = {name: [] for name in policies}
    for seed in board.seeds:
        env.reset(seed=seed)
        text = env.puzzle_text()
        hashes.append(puzzle_hash(env))
        optimum.append(env.best_success(board.cap))
        for name, policy in policies.items():
            counts = wins[name]
            if counts is None:
                continue
            won = []
            for sample in range(SAMPLES):
                noise = stream_seed(seed, "reference", sample)
                # Given as a board, the puzzle is not made again.
                env.reset(seed=seed, options={"board": text, "noise_seed": noise})
                rng = stream(seed, f"reference/{name}", sample)
                won.append(policy_success(env, policy, board.cap, rng))
            # The single-candidate solver has no action where every cell has several digits.
            missing = None in won and name != "single_candidate"
            wins[name] = None if missing else [*counts, sum(map(bool, won))]
    rates = {
        name: [count / SAMPLES for count in counts]
        for name, counts in wins.items()
        if counts is not None
    }
    learned = learned_wins(board, env, hashes) if "lake" in board.env_type else {}
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
        "success": {name: rate(values) for name, values in rates.items()},
        "wins": wins,
        "wins_without_chance": learned,
        "seeds": list(board.seeds),
        "puzzle_hashes": hashes,
    }


def learned_wins(board: Board, env: TextEnv, held_out: Sequence[str]) -> dict[str, list[int]]:
    """Wins on each puzzle, 0 or 1, of baselines that learn from labels or from counts."""

    def wins(plays: Callable[[], bool]) -> list[int]:
        found = []
        for seed in board.seeds:
            env.reset(seed=seed)
            found.append(int(plays()))
        return found

    labels = make_labels(env, LABELS, cap=board.cap, seed=0, held_out=held_out)
    hidden = board.env_type == "hidden_dynamics_lake"
    players = {
        "nearest_neighbour": nearest_neighbour(labels, "ABCDE" if hidden else "P"),
        "network_1_epoch": network(labels, epochs=1, seed=0),
        "network_30_epochs": network(labels, epochs=30, seed=0),
    }
    # The letters' pushes have directions of their own, so that a turned board is another puzzle.
    if not hidden:
        turned = network(with_symmetries(labels), epochs=30, seed=0)
        players["network_30_epochs_8_symmetries"] = turned
    found = {
        name: wins(partial(player_success, env, play, board.cap)) for name, play in players.items()
    }
    table = count_table(env, MOVES, seed=0)
    return found | {"counted_table_search": wins(partial(table_success, env, table, board.cap))}


def rate(values: Sequence[float]) -> dict[str, float]:
    """Mean and 95 % CI over puzzles."""
    found = rate_interval([values], seed=0)
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
