"""How hard the boards are: the success of reference policies, measured before anything is trained on a board.

    python benchmarks/reference.py [BOARD…] [--folder benchmarks/results/reference]

Each board's file has, for every policy, the number of wins of each puzzle. `spa.policies.reference` defines the
policies. Brackets are 95 % CI over puzzles.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spa.envs.registry import make_env
from spa.evaluation.statistics import rate_interval
from spa.policies.reference import REFERENCES, reference_success
from spa.rollout.loop import puzzle_hash
from spa.seeds import stream_seed

SAMPLES = 8
"""Episodes of each policy on each puzzle."""


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
}


def measure(board: Board) -> dict[str, Any]:
    """The wins of every policy on every puzzle, and their rates."""
    env = make_env(board.env_type, board.options)
    hashes = []
    optimum = []
    wins: dict[str, list[int] | None] = {name: [] for name in REFERENCES}
    for seed in board.seeds:
        env.reset(seed=seed)
        hashes.append(puzzle_hash(env))
        optimum.append(env.best_success(board.cap))
        for name, counts in wins.items():
            if counts is None:
                continue
            won = []
            for sample in range(SAMPLES):
                env.reset(seed=seed, options={"noise_seed": stream_seed(seed, "reference", sample)})
                won.append(reference_success(env, name, board.cap, seed=seed, sample=sample))
            wins[name] = None if None in won else [*counts, sum(map(bool, won))]
    rates = {name: [count / SAMPLES for count in counts] for name, counts in wins.items() if counts}
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
        "seeds": list(board.seeds),
        "puzzle_hashes": hashes,
    }


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
