"""The boards of fixed seeds. They are the same on every machine and Python version; a change here changes every card."""

import json
import sys
from pathlib import Path

import pytest

from spa.envs.registry import make_env

GOLDEN = Path(__file__).parents[1] / "golden" / "boards.json"
CASES = [
    ("frozen_lake", {}),
    ("frozen_lake", {"size": 6, "p": 0.7}),
    ("sokoban", {}),
    ("sokoban", {"num_boxes": 2, "search_depth": 30}),
    ("sokoban", {"dim_x": 10, "dim_y": 10, "num_boxes": 2}),
    ("sokoban", {"num_boxes": [1, 2], "hard": 10}),
    ("hidden_dynamics_lake", {}),
    ("hidden_dynamics_lake", {"size": 5, "world": 3}),
    ("sudoku", {}),
    ("sudoku", {"clues": [6, 7, 8]}),
    ("sudoku", {"board_size": 9}),
]


def boards(env_type: str, options: dict) -> list[str]:
    env = make_env(env_type, options)
    found = []
    for seed in (0, 1, 2, 10_000, 2**40):
        env.reset(seed=seed)
        found.append(env.puzzle_text())
    return found


@pytest.mark.parametrize("case", range(len(CASES)))
def test_boards_of_fixed_seeds(case):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["boards"][case]
    env_type, options = CASES[case]
    assert (golden["env_type"], golden["options"]) == (env_type, options)
    assert boards(env_type, options) == golden["boards"]


def write() -> None:
    rows = [
        {"env_type": kind, "options": options, "boards": boards(kind, options)}
        for kind, options in CASES
    ]
    made = "python tests/envs/test_golden_boards.py write: puzzle_text() of seeds 0, 1, 2, 10000 and 2**40"
    GOLDEN.write_text(
        json.dumps({"made_by": made, "boards": rows}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    write()
