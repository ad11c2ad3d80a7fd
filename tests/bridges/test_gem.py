import importlib.util
import logging
import re
import subprocess
import sys

import numpy as np
import pytest

from spa.envs.registry import make_env
from tests.bridges.conformance import failures

if importlib.util.find_spec("gem") is None:
    pytest.skip("make test-extra NAME=bridges", allow_module_level=True)


@pytest.mark.parametrize(
    "task",
    ["GuessTheNumber-v0-hard", "Mastermind-v0-easy", "Minesweeper-v0-easy", "FifteenPuzzle-v0-easy",
     "TowerofHanoi-v0-easy", "Game2048-v0-easy", "Sudoku-v0-easy", "Sokoban-v0-easy"],
)  # fmt: skip
def test_games_conform(task):
    assert failures(f"gem:game:{task}", steps=15) == []


def test_a_number_is_found_and_that_is_a_success():
    env = make_env("gem:game:GuessTheNumber-v0-easy")
    env.reset(seed=3)
    right = env.game.game_number
    env.step(str(right % 10 + 1))
    assert env.state_text("grid").count("At turn") == 1
    shown, reward, over, _, info = env.step(f"\\boxed{{{right}}}")
    assert (reward, over, info["success"]) == (1.0, True, True) and "Congratulations!" in shown


def test_what_gem_cannot_read_changes_nothing_and_does_not_end_the_game():
    env = make_env("gem:game:TowerofHanoi-v0-easy")
    before, _ = env.reset(seed=0)
    shown, reward, over, _, info = env.step("jump")
    assert (shown, reward, over, info["action_is_valid"]) == (before, 0.0, False, False)
    assert env.step("A C")[4]["action_is_effective"]


def test_the_state_is_the_board_without_the_questions_around_it():
    env = make_env("gem:game:TowerofHanoi-v0-easy")
    assert env.reset(seed=0)[0] == "A: [3, 2, 1]\nB: []\nC: []"
    assert env.step("A C")[0] == "A: [3, 2]\nB: []\nC: [1]"


def test_mines_come_from_the_noise_and_not_from_the_puzzle():
    env = make_env("gem:game:Minesweeper-v0-easy")

    def first(noise):
        env.reset(seed=0, options={"noise_seed": noise})
        return env.step("reveal 2 2")[0]

    assert first(1) == first(1) and len({first(noise) for noise in range(6)}) > 1
    env.reset(seed=0, options={"noise_seed": 1})
    assert len({env.clone(noise).step("reveal 2 2")[0] for noise in range(6)}) > 1


def test_importing_it_leaves_everybodys_logging_alone():
    code = "import logging; from spa.envs.registry import make_env; make_env('gem:game:GuessTheNumber-v0-easy'); "
    code += "print(logging.getLogger().level, logging.getLogger().handlers)"
    done = subprocess.run(
        [sys.executable, "-c", code], text=True, capture_output=True, check=True, timeout=120
    )
    assert done.stdout == f"{logging.WARNING} []\n"


def test_random_play_takes_moves_and_not_placeholders():
    """The prompt of Sudoku shows both `row column number` and `1 1 5`."""
    env = make_env("gem:game:Sudoku-v0-easy")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    assert all(re.fullmatch(r"\d+ \d+ \d+", env.random_action(rng)) for _ in range(20))
