import numpy as np
import pytest
from contract import check_contract
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

from spa import seeds
from spa.envs.frozen_lake import FrozenLake, generate_lake, moves

BOARD = "_O__\nO___\nG___\n__P_"


def start(board: str = BOARD, **options) -> FrozenLake:
    env = FrozenLake(size=board.count("\n") + 1, is_slippery=False, **options)
    env.reset(seed=0, options={"board": board})
    return env


def play(env: FrozenLake, *labels: str) -> tuple:
    out = ()
    for label in labels:
        out = env.step(label)
    return out


@pytest.mark.parametrize(
    "options", [{}, {"is_slippery": False}, {"size": 6, "state_text": "coords"}, {"p": 1.0}]
)
def test_contract(options):
    check_contract(lambda: FrozenLake(**options))


def test_the_worked_example():
    env = start()
    assert (
        env.state_text("coords")
        == "holes (O) are at (0,1) (1,0); goal (G) is at (2,0); player (P) is at (3,2)."
    )
    assert env.state_text("grid") == BOARD
    assert env.state_text("grid_and_coords") == f"{BOARD}\n{env.state_text('coords')}"
    state, reward, terminated, truncated, info = play(env, "Up", "Left", "Left")
    assert (reward, terminated, truncated) == (1.0, True, False)
    assert info == {"action_is_valid": True, "action_is_effective": True, "success": True}
    assert state == "_O__\nO___\n√___\n____"
    assert (
        env.state_text("coords")
        == "holes (O) are at (0,1) (1,0); goal (G) is at (2,0); player (P) is at (2,0) on the goal."
    )
    assert env.step("Up")[1:3] == (0.0, True), "the goal pays once"


def test_in_a_hole():
    env = start()
    state, reward, terminated, _, info = play(env, "Up", "Up", "Up", "Left")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert state == "_X__\nO___\nG___\n____"
    assert (
        env.state_text("coords")
        == "holes (O) are at (0,1) (1,0); goal (G) is at (2,0); player (P) is at (0,1) in a hole."
    )
    assert env.step("Down")[4] == {
        "action_is_valid": True,
        "action_is_effective": False,
        "success": False,
    }


def test_no_hole_and_one_hole():
    assert (
        start("P_\n_G").state_text("coords")
        == "no holes (O); goal (G) is at (1,1); player (P) is at (0,0)."
    )
    assert start("PO\n_G").state_text("coords").startswith("hole (O) is at (0,1); ")


def test_own_symbols_and_labels():
    env = start(
        grid_lookup={"0": "A", 2: "H"}, action_lookup={1: "Right", 2: "Down", 3: "Left", 4: "North"}
    )
    assert env.state_text("grid") == "_H__\nH___\nG___\n__A_"
    assert (
        env.state_text("coords")
        == "holes (H) are at (0,1) (1,0); goal (G) is at (2,0); player (A) is at (3,2)."
    )
    assert env.legend()["A"] == "player" and env.legend()["H"] == "hole" and "P" not in env.legend()
    assert env.puzzle_text() == BOARD
    assert env.action_names() == ("Right", "Down", "Left", "North")
    env.step("right")
    assert env.player == 15
    env.step(" NORTH ")
    assert env.player == 11
    assert env.step("Up")[4]["action_is_valid"] is False


def test_coordinate_range_follows_the_size():
    assert "(5,5)" in FrozenLake(size=6).instruction("coords")
    assert "(" not in FrozenLake(size=6).instruction("grid")


@pytest.mark.parametrize("slippery", [False, True])
def test_every_transition_is_gymnasiums(slippery):
    """From every cell, each action and each slip leads where Gymnasium's transition table says, as often."""
    for seed in range(20):
        env = FrozenLake(size=5, p=0.75, is_slippery=slippery, success_rate=0.5)
        env.reset(seed=seed)
        desc = env.puzzle_text().translate(str.maketrans("P_O", "SFH")).split("\n")
        table = FrozenLakeEnv(desc=desc, is_slippery=slippery, success_rate=0.5).P
        for cell in range(25):
            for action in range(1, 5):
                ours: dict[tuple, float] = {}
                for slip, weight in ((0, 0.5), (-1, 0.25), (1, 0.25)) if slippery else ((0, 1.0),):
                    env.player, env._slip = cell, lambda slip=slip: slip  # type: ignore[method-assign]
                    _, reward, terminated, _, _ = env.step(action)
                    key = (env.player, reward, terminated)
                    ours[key] = ours.get(key, 0.0) + weight
                theirs: dict[tuple, float] = {}
                for chance, cell_after, reward, terminated in table[cell][action - 1]:
                    key = (cell_after, float(reward), terminated)
                    theirs[key] = theirs.get(key, 0.0) + chance
                assert ours == pytest.approx(theirs), (seed, cell, action)


def test_slips_come_as_often_as_stated():
    env = FrozenLake(size=3, success_rate=0.7)
    counts = np.zeros(3)
    for noise in range(3000):
        env.reset(options={"board": "___\n_P_\nG__", "noise_seed": noise})
        env.step("Up")
        counts[[1, 3, 5].index(env.player)] += 1
    up, left, right = counts[0], counts[1], counts[2]
    # Three standard deviations of a binomial count of 3,000.
    assert abs(up - 2100) < 76 and abs(left - 450) < 59 and abs(right - 450) < 59


def test_a_group_shares_the_lake_and_not_the_slips():
    envs = [FrozenLake() for _ in range(8)]
    for member, env in enumerate(envs):
        env.reset(seed=5, options={"noise_seed": member})
    assert len({env.puzzle_text() for env in envs}) == 1
    paths = set()
    for env in envs:
        paths.add(tuple((env.step(1 + step % 4), env.player)[1] for step in range(12)))
    assert len(paths) > 1


def test_lakes_follow_the_stated_distribution():
    """Start and goal are uniform pairs of different cells, and other cells frozen with `p`, given a way to the goal."""
    lakes = [generate_lake(seeds.stream(seed, "t"), 3, 0.8) for seed in range(4000)]
    starts = np.bincount([lake.start for lake in lakes], minlength=9)
    # By symmetry corners, edges and centre are equally likely among themselves: 4 corners within four deviations.
    for cells in ((0, 2, 6, 8), (1, 3, 5, 7)):
        expected = starts[list(cells)].mean()
        assert all(abs(starts[cell] - expected) < 4 * expected**0.5 for cell in cells)
    tables = [moves(3, direction) for direction in ("left", "down", "right", "up")]
    for lake in lakes:
        reached = {lake.start}
        for _ in range(9):
            reached |= {table[cell] for cell in reached for table in tables} - lake.holes
        assert lake.goal in reached and lake.start not in lake.holes and lake.goal not in lake.holes


def test_boards_round_trip():
    env, copy = FrozenLake(), FrozenLake()
    for seed in range(50):
        env.reset(seed=seed)
        copy.reset(options={"board": env.puzzle_text()})
        assert copy.lake == env.lake and copy.state_text("coords") == env.state_text("coords")


def test_truncation():
    env = FrozenLake(max_steps=2, is_slippery=False)
    env.reset(options={"board": BOARD})
    assert [env.step("Down")[2:4] for _ in range(2)] == [(False, False), (False, True)]


def test_without_ice_the_goal_is_next_to_the_start():
    env = FrozenLake(size=6, p=0.0)
    env.reset(seed=0)
    assert env.lake.goal in {table[env.lake.start] for table in env._tables}
