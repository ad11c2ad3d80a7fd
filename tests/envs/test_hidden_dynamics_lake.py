import numpy as np
import pytest
from contract import check_contract

from spa.errors import ConfigError
from spa.formats.search import FORMAT, breadth_first, explore, score_search, write_search
from spa.planning.moves import move_examples, readable_modes
from spa.prompts.render import sample_response
from spa.recipes.prompters import make_prompter
from spa.types import SFTExample
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
            way = ""
            if inside:
                row, col = at
                push = (
                    pushes["abcde".index(letters[row][col])] if grid[row][col] not in "OG" else None
                )
                if push is not None:
                    way = f"{row}{col}{letters[row][col]}"
                    down, right = STEPS[NAMES[push]]
                    if 0 <= row + down < 4 and 0 <= col + right < 4:
                        row, col = row + down, col + right
            before = cell_of(env)
            assert env.way("{}{}".format(*before), NAMES[index]) == way
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


WRITTEN = """\
21: Left31 Down20a>30 Right11e>12 Up22e>23 ; 31 30 12 23
31 Left: Left31 seen Down30 seen Right21c>11 Up32 ; 30 12 23 11 32
30 Down: Left30 seen Down30 seen Right20a>30 seen Up31 seen ; 12 23 11 32
12 Right: Left22e>23 seen Down11e>12 seen Right02 hole Up13e>13 ; 23 11 32 13
23 Up: Left33e>33 Down22e>23 seen Right13e>13 seen Up23 seen ; 11 32 13 33
11 Left Right: Left21c>11 seen Down10c>00 goal
Left Right Down"""
"""In world 0 Left moves down, Down left, Right up and Up right; a pushes down, c up, e right, and b nowhere."""


def test_a_search_shows_from_where_a_letter_pushes():
    """The cell at which the letter is looked up is written before what follows from it. Whether a state is `seen`
    depends on the state alone."""
    env = HiddenDynamicsLake(min_moves=3)
    env.reset(seed=3)
    assert (
        env.state_text("coords")
        == "cells 00G01b02O03O 10c11e12b13e 20a21c22e23b 30b31b32b33e; goal 00; player 21"
    )
    true, _ = explore(env)
    assert write_search(breadth_first("21", lambda key: true[key])) == WRITTEN
    score = score_search(WRITTEN, true, actions=NAMES)
    assert score is not None and score.failure == "" and score.moves_right == score.moves == 22
    line = WRITTEN.split("\n")[1]
    parts = [(kind, line[begin:end]) for kind, begin, end in FORMAT.line_parts(line)]
    assert parts[4:7] == [("move", "Down30"), ("status", "seen"), ("way", "Right21c>")]
    assert parts[7:9] == [("move", "11"), ("move", "Up32")]
    # The same state by another way is a wrong move.
    false = score_search(WRITTEN.replace("20a>30 seen", "20c>30 seen"), true, actions=NAMES)
    assert false is not None and false.failure == "wrong_move" and false.moves_right == 21


def test_single_moves_show_the_way_and_are_searched_by_their_states():
    env = HiddenDynamicsLake(min_moves=3)
    env.reset(seed=3)
    text = env.state_text("coords")
    after = env.clone()
    after.step("Right")
    turn = SFTExample(
        prompt=(),
        response="",
        tag="Lake",
        episode_id="",
        turn=1,
        puzzle_seed=3,
        puzzle_hash="",
        success=False,
        reward=0.0,
        state=text,
        next_state=after.state_text("coords"),
        executed=("Right",),
    )
    assert move_examples([turn], env)[0].response == "<think>Right11e>12"


def test_states_are_named_and_read_from_their_text():
    env = HiddenDynamicsLake()
    for seed in range(30):
        env.reset(seed=seed)
        true, copies = explore(env)
        assert "coords" in readable_modes(env, true, copies)
    assert env.key_of_text("cells 00a01O 10G11c; goal 10; player 5") is None
    assert env.text_of_key(start("a O\nG C").state_text("coords"), "99") is None
    assert env.outcome_of_text("a hole") == ""


def test_a_lake_that_hardly_exists_is_refused():
    with pytest.raises(ConfigError, match="none of 10000 lakes had a shortest solution of 5 to 6"):
        HiddenDynamicsLake(size=2, moves=6, min_moves=5).reset(seed=1)


def test_the_puzzle_text_starts_the_same_puzzle():
    env, again = HiddenDynamicsLake(), HiddenDynamicsLake()
    rng = np.random.default_rng(0)
    for seed in range(30):
        env.reset(seed=seed)
        again.reset(seed=0, options={"board": env.puzzle_text()})
        for _ in range(6):
            name = env.random_action(rng)
            assert env.step(name) == again.step(name)
