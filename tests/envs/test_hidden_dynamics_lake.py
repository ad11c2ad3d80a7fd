import numpy as np
import pytest
from contract import check_contract

from spa.formats.search import explore
from spa.planning.moves import readable_modes
from spa.prompts.render import sample_response
from spa.recipes.prompters import make_prompter
from spa_games.hidden_dynamics_lake import HiddenDynamicsLake, world_of

NAMES = ("Left", "Down", "Right", "Up")
STEPS = {"Left": (0, -1), "Down": (1, 0), "Right": (0, 1), "Up": (-1, 0)}
BOARD = "a a a O\na B a a\na a a a\nO a a G"


def start(board: str = BOARD, **options) -> HiddenDynamicsLake:
    env = HiddenDynamicsLake(size=board.count("\n") + 1, **options)
    env.reset(seed=0, options={"board": board})
    return env


def cell_of(env: HiddenDynamicsLake) -> tuple[int, int]:
    return divmod(env.player, env.size)


@pytest.mark.parametrize(
    "options", [{}, {"size": 3, "world": 4}, {"size": 5, "state_text": "coords"}]
)
def test_contract(options):
    check_contract(lambda: HiddenDynamicsLake(**options))


def test_the_worked_example():
    env = start("a O\nG C")
    assert env.state_text("grid") == "a O\nG C" == env.puzzle_text()
    assert env.state_text("coords") == "cells 00a01O 10G11c; goal 10; player 11"
    env.player = 2
    assert env.state_text("grid") == "a O\n√ c"
    assert env.state_text("coords") == "cells 00a01O 10G11c; goal 10; player 10 on the goal"
    env.player = 1
    assert env.state_text("grid_and_coords").split("\n") == [
        "a X",
        "G c",
        "cells 00a01O 10G11c; goal 10; player 01 in a hole",
    ]


def test_a_world_permutes_all_actions_and_has_a_push_of_each_direction():
    worlds = {world_of(seed) for seed in range(60)}
    assert len(worlds) > 40
    for effects, pushes in worlds:
        assert sorted(effects) == [0, 1, 2, 3]
        assert not any(turn == index for index, turn in enumerate(effects))
        assert sorted(push for push in pushes if push is not None) == [0, 1, 2, 3]
        assert len(pushes) == 5


@pytest.mark.parametrize("world", range(4))
def test_every_move_is_that_of_the_rules(world):
    """Against the rules in words, played on the board's text."""
    effects, pushes = world_of(world)
    env = HiddenDynamicsLake(world=world)
    rng = np.random.default_rng(world)
    for seed in range(40):
        env.reset(seed=seed)
        grid = [row.split(" ") for row in env.puzzle_text().split("\n")]
        letters = [[symbol.lower() for symbol in row] for row in grid]
        for _ in range(8):
            row, col = cell_of(env)
            index = int(rng.integers(4))
            down, right = STEPS[NAMES[effects[index]]]
            at = (row + down, col + right)
            inside = 0 <= at[0] < 4 and 0 <= at[1] < 4
            if inside:
                row, col = at
                push = (
                    pushes["abcde".index(letters[row][col])] if grid[row][col] not in "OG" else None
                )
                if push is not None:
                    down, right = STEPS[NAMES[push]]
                    if 0 <= row + down < 4 and 0 <= col + right < 4:
                        row, col = row + down, col + right
            before = cell_of(env)
            _, reward, terminated, _, info = env.step(NAMES[index])
            assert cell_of(env) == (row, col)
            assert terminated == (grid[row][col] in "OG")
            assert info["success"] == (grid[row][col] == "G") == (reward == 1.0)
            assert info["action_is_effective"] == (before != (row, col))
            if terminated:
                break


def test_every_puzzle_can_be_solved_within_its_moves():
    for size, most in ((3, 10), (4, 6)):
        env = HiddenDynamicsLake(size=size)
        for seed in range(100):
            env.reset(seed=seed)
            steps = env.optimal_steps()
            assert steps is not None and 1 <= steps <= most
            for name in env.expert_actions(most):
                *_, info = env.step(name)
            assert info["success"] and env.steps == steps
    env = HiddenDynamicsLake(moves=1)
    env.reset(seed=0)
    assert env.optimal_steps() == 1
    env = HiddenDynamicsLake(min_moves=3)
    lengths = []
    for seed in range(30):
        env.reset(seed=seed)
        lengths.append(env.optimal_steps())
    assert {3, 4} <= {*lengths} <= {3, 4, 5, 6}


def test_no_prompt_tells_the_world():
    """Same board, two worlds: all that is shown is equal, and there is no sample response."""
    from spa.config.load import load_config

    cfg = load_config("smol_frozen_lake_states", ["ctx_manager.example=true"])
    prompter = make_prompter(cfg, cfg.environment("HiddenDynamicsLake"), "add_worldmodel")
    one, other = start(world=1), start(world=2)
    assert world_of(1) != world_of(2)
    assert prompter.first_messages(one) == prompter.first_messages(other)
    assert sample_response(HiddenDynamicsLake(), prompter) == ""


def test_states_are_named_and_read_from_their_text():
    env = HiddenDynamicsLake()
    for seed in range(30):
        env.reset(seed=seed)
        true, copies = explore(env)
        assert "coords" in readable_modes(env, true, copies)
    assert env.key_of_text("cells 00a01O 10G11c; goal 10; player 5") is None
    assert env.text_of_key(start("a O\nG C").state_text("coords"), "99") is None
    assert env.outcome_of_text("a hole") == ""


def test_the_puzzle_text_starts_the_same_puzzle():
    env, again = HiddenDynamicsLake(), HiddenDynamicsLake()
    rng = np.random.default_rng(0)
    for seed in range(30):
        env.reset(seed=seed)
        again.reset(seed=0, options={"board": env.puzzle_text()})
        for _ in range(6):
            name = env.random_action(rng)
            assert env.step(name) == again.step(name)
