import subprocess
import sys

import gymnasium
import pytest

from spa.envs.frozen_lake import FrozenLake
from spa.envs.ids import IDS
from spa.envs.registry import env_types


def test_every_environment_has_an_id():
    assert len(IDS) == len(env_types()) and set(IDS) <= set(gymnasium.registry)
    assert {"spa/FrozenLake-v0", "spa/Sokoban-v0", "spa/HiddenDynamicsLake-v0"} <= set(IDS)


@pytest.mark.filterwarnings("ignore")
def test_a_game_made_by_its_id_is_the_same_game():
    env = gymnasium.make("spa/FrozenLake-v0", is_slippery=False)
    ours = FrozenLake(is_slippery=False)
    assert env.reset(seed=4)[0] == ours.reset(seed=4)[0]
    for label in ("Right", "Down", "Down"):
        action = ours.to_action(label)
        assert env.step(action)[:4] == ours.step(action)[:4]


def test_the_id_can_name_the_module_that_registers_it():
    code = "import gymnasium; print(gymnasium.make('spa.envs.ids:spa/Sudoku-v0').unwrapped.__class__.__name__)"
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "Sudoku"
