import numpy as np
import pytest
from contract import check_contract
from hypothesis import given, settings
from hypothesis import strategies as st

from spa import seeds
from spa.envs.reference import reference_success
from spa.errors import ConfigError
from spa_games.sokoban import Sokoban
from spa_games.sokoban_rooms import generate_room

# The player at (2,2), a box at (3,2) and a target at (4,3), as in the original's sample.
BOARD = "######\n#____#\n#_P__#\n#_X__#\n#__O_#\n######"
TWO = "######\n#PXO_#\n#_XO_#\n#____#\n#____#\n######"


def start(board: str = BOARD, **options) -> Sokoban:
    env = Sokoban(**options)
    env.reset(options={"board": board})
    return env


def play(env: Sokoban, *labels: str) -> tuple:
    out = ()
    for label in labels:
        out = env.step(label)
    return out


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_boxes": 2, "search_depth": 30, "render_mode": "text_with_coordinates"},
        {"dim_x": 8, "dim_y": 7, "state_text": "coords"},
        {"cell_keys": True, "num_boxes": [1, 2]},
    ],
)
def test_contract(options):
    check_contract(lambda: Sokoban(**options))


def test_the_worked_example():
    env = start()
    assert (
        env.state_text("coords")
        == "Player (P) is at (2,2); box (X) is at (3,2); target (O) is at (4,3)."
    )
    assert env.state_text("grid_and_coords") == f"{BOARD}\n{env.state_text('coords')}"
    _, reward, _, _, info = env.step("Down")
    assert reward == -0.1 and info == {
        "action_is_valid": True,
        "action_is_effective": True,
        "success": False,
    }
    # Against the wall nothing moves, then the player walks around the box and pushes it onto the target.
    assert env.step("Down")[4] == {
        "action_is_valid": True,
        "action_is_effective": False,
        "success": False,
    }
    play(env, "Left", "Down")
    assert (
        env.state_text("coords")
        == "Player (P) is at (4,1); box (X) is at (4,2); target (O) is at (4,3)."
    )
    state, reward, terminated, truncated, info = env.step("Right")
    assert reward == pytest.approx(10.9) and (terminated, truncated, info["success"]) == (
        True,
        False,
        True,
    )
    assert state == "######\n#____#\n#____#\n#____#\n#_P√_#\n######"
    assert (
        env.state_text("coords")
        == "Player (P) is at (4,2); box (X) is at (4,3); target (O) is at (4,3); box on target (√) is at (4,3)."
    )


def test_the_readme_trace():
    """Player (2,2), box (3,2): Down, Left, Down leads to player (4,1), box (4,2)."""
    env = start()
    play(env, "Down", "Left", "Down")
    assert env.state_text("coords").startswith("Player (P) is at (4,1); box (X) is at (4,2);")
    env = start("######\n#____#\n#__X_#\n#__P_#\n#__O_#\n######")
    env.step("Up")
    assert env.state_text("coords").startswith("Player (P) is at (2,3); box (X) is at (1,3);")


def test_solving_in_n_actions_pays_eleven_less_a_tenth_each():
    env = start()
    total = sum(env.step(label)[1] for label in ("Down", "Left", "Down", "Right"))
    assert total == pytest.approx(11 - 0.1 * 4)


def test_player_on_a_target():
    env = start()
    play(env, "Right", "Down", "Down")
    assert env.state_text("grid").split("\n")[4] == "#__S_#"
    assert (
        env.state_text("coords")
        == "Player (P) is at (4,3) on a target; box (X) is at (3,2); target (O) is at (4,3)."
    )
    env.step("Up")
    assert env.state_text("grid").split("\n")[4] == "#__O_#"


def test_two_boxes():
    env = start(TWO, num_boxes=2)
    assert (
        env.state_text("coords")
        == "Player (P) is at (1,1); boxes (X) are at (1,2) (2,2); targets (O) are at (1,3) (2,3)."
    )
    _, reward, terminated, _, _ = env.step("Right")
    assert reward == pytest.approx(0.9) and not terminated
    assert env.state_text("coords") == (
        "Player (P) is at (1,2); boxes (X) are at (1,3) (2,2); targets (O) are at (1,3) (2,3); "
        "box on target (√) is at (1,3)."
    )
    _, reward, _, _, _ = env.step("Right")
    assert reward == pytest.approx(-1.1), "a box that leaves its target costs what it had earned"
    env = start(TWO, num_boxes=2)
    _, reward, terminated, _, _ = play(env, "Right", "Left", "Down", "Right")
    assert reward == pytest.approx(10.9) and terminated
    assert env.state_text("coords").endswith("; boxes on targets (√) are at (1,3) (2,3).")


def test_two_boxes_in_a_row_do_not_move():
    env = start("######\n#PXX_#\n#_OO_#\n#____#\n#____#\n######", num_boxes=2)
    before = env.state_text("grid")
    assert env.step("Right")[4]["action_is_effective"] is False
    assert env.state_text("grid") == before


def test_own_symbols():
    lookup = {0: "W", 1: ".", 2: "G", 3: "C", 4: "B", 5: "A", 6: "@"}
    vocab = {
        "W": "wall",
        ".": "free",
        "G": "target",
        "C": "box on target",
        "B": "box",
        "A": "you",
        "@": "you on target",
    }
    env = start(grid_lookup=lookup, grid_vocab=vocab)
    assert env.state_text("grid") == "WWWWWW\nW....W\nW.A..W\nW.B..W\nW..G.W\nWWWWWW"
    assert (
        env.state_text("coords")
        == "Player (A) is at (2,2); box (B) is at (3,2); target (G) is at (4,3)."
    )
    assert env.legend() == vocab
    assert env.puzzle_text() == BOARD


def test_labels_mean_what_they_say():
    """The variant whose ids are labelled Left, Right, Up, Down moves where the label points."""
    env = start(action_lookup={1: "Left", 2: "Right", 3: "Up", 4: "Down"})
    assert env.action_names() == ("Left", "Right", "Up", "Down")
    for label, cell in (("Left", (2, 1)), ("Right", (2, 2)), ("Up", (1, 2)), ("Down", (2, 2))):
        env.step(env.to_action(label))
        assert divmod(env.player, 7) == cell


def test_coordinate_range_follows_the_size():
    assert "(9,7)" in Sokoban(dim_x=10, dim_y=8).instruction("grid_and_coords")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 3), st.lists(st.integers(1, 4), max_size=60))
def test_physics_against_a_plain_model(seed, boxes, actions):
    """The drawing, cell by cell, is what a simulation on rows and columns gives."""
    env = Sokoban(dim_x=7, dim_y=6, num_boxes=boxes, search_depth=20)
    state, _ = env.reset(seed=seed)
    floor = {
        (r, c)
        for r, row in enumerate(state.split("\n"))
        for c, symbol in enumerate(row)
        if symbol != "#"
    }
    player = divmod(env.room.player, 7)
    crates, targets = (
        {divmod(cell, 7) for cell in cells} for cells in (env.room.boxes, env.room.targets)
    )
    for action in actions:
        dr, dc = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}[action]
        ahead, beyond = (player[0] + dr, player[1] + dc), (player[0] + 2 * dr, player[1] + 2 * dc)
        if crates == targets:
            pass  # the game is over
        elif ahead in crates and beyond in floor - crates:
            crates = crates - {ahead} | {beyond}
            player = ahead
        elif ahead in floor - crates:
            player = ahead
        state, _, terminated, _, info = env.step(action)
        symbols = {(r, c): ("#", "_")[(r, c) in floor] for r in range(7) for c in range(6)}
        symbols |= dict.fromkeys(targets, "O") | {
            cell: "√" if cell in targets else "X" for cell in crates
        }
        symbols[player] = "S" if player in targets else "P"
        assert state == "\n".join("".join(symbols[r, c] for c in range(6)) for r in range(7))
        assert terminated == info["success"] == (crates == targets)
        assert env.state_text("grid").count("#") == 42 - len(floor)


@pytest.mark.parametrize("rows, cols, boxes", [(6, 6, 1), (6, 6, 2), (8, 5, 2), (10, 10, 3)])
def test_rooms_are_walled_with_every_box_off_target(rows, cols, boxes):
    for seed in range(30):
        room = generate_room(seeds.stream(seed, "t"), rows, cols, boxes, search_depth=30)
        cells = [divmod(cell, cols + 1) for cell in room.floor]
        assert all(0 < row < rows - 1 and 0 < col < cols - 1 for row, col in cells)
        assert len(set(room.targets)) == len(set(room.boxes)) == boxes and not set(
            room.targets
        ) & set(room.boxes)
        assert {
            room.player,
            *room.boxes,
            *room.targets,
        } <= room.floor and room.player not in room.boxes


def test_boards_round_trip():
    env, copy = Sokoban(num_boxes=2, search_depth=30), Sokoban(num_boxes=2)
    for seed in range(50):
        env.reset(seed=seed)
        copy.reset(options={"board": env.puzzle_text()})
        assert sorted(copy.room.boxes) == sorted(env.room.boxes)
        assert copy.state_text("grid_and_coords") == env.state_text("grid_and_coords")


def test_truncation_after_max_steps():
    env = start(max_steps=3)
    assert [env.step("Up")[2:4] for _ in range(3)] == [
        (False, False),
        (False, False),
        (False, True),
    ]


def test_hard_rooms_can_be_solved_but_not_by_reference_policies():
    env = Sokoban(num_boxes=[1, 2], hard=10)
    counts = []
    for seed in range(12):
        env.reset(seed=seed)
        board = env.puzzle_text()
        counts.append(env.num_boxes)
        assert board.count("X") == board.count("O") + board.count("S") == env.num_boxes
        assert env.optimal_steps() <= 10
        env.reset(seed=seed)
        assert env.puzzle_text() == board
        for name in env.expert_actions(10):
            *_, info = env.step(name)
        assert info["success"]
    assert set(counts) == {1, 2}
    # With chance that the choice of rooms has not seen, they win now and then.
    wins = []
    for seed in range(12):
        for name in ("walk", "look_ahead"):
            env.reset(seed=seed)
            wins.append(reference_success(env, name, 10, seed=seed))
    assert sum(wins) <= 4


def test_the_walk_ignores_walls_and_prefers_the_nearest_pushing_cell():
    env = Sokoban()
    env.reset(seed=0, options={"board": "######\n#P___#\n#_X_O#\n#____#\n#____#\n######"})
    assert env.goal_distance() == 2 * 2 + 1
    assert env.greedy_action(np.random.default_rng(0)) == "Down"
    for name in ("Down", "Right", "Right"):
        env.step(name)
    assert env.goal_distance() == 0.0
    # The box lies between the player and the cell to push from: two steps more.
    env.reset(seed=0, options={"board": "######\n#____#\n#O_XP#\n#____#\n#____#\n######"})
    assert env.goal_distance() == 2 * 2 + 0
    env.reset(seed=0, options={"board": "######\n#____#\n#_PX_#\n#O___#\n#____#\n######"})
    assert env.goal_distance() == 2 * 3 + 2


def test_a_board_may_have_each_of_several_numbers_of_boxes():
    env = Sokoban(num_boxes=[1, 2])
    one = "######\n#____#\n#PX_O#\n#____#\n#____#\n######"
    two = "######\n#____#\n#PX_O#\n#_X_O#\n#____#\n######"
    for board, boxes in ((one, 1), (two, 2), (one, 1)):
        env.reset(seed=0, options={"board": board})
        assert env.num_boxes == boxes and env.puzzle_text() == board
        key = env.state_key()
        assert env.text_of_key(env.state_text("grid"), key) == board
    with pytest.raises(ConfigError, match="1 or 2 boxes"):
        env.reset(
            seed=0,
            options={"board": two.replace("_____", "_____").replace("#____#\n#PX", "#_X_O#\n#PX")},
        )


KEYED = (
    "00#01#02#03#04#05#\n10#11_12_13_14_15#\n20#21_22P23_24_25#\n"
    "30#31_32X33_34_35#\n40#41_42_43O44_45#\n50#51#52#53#54#55#"
)


def test_grids_with_keys():
    env = start(cell_keys=True)
    assert env.state_text("grid") == KEYED and env.puzzle_text() == BOARD
    assert env.state_text("grid_and_coords") == f"{KEYED}\n{env.state_text('coords')}"
    assert "the row and the column of each cell precede its symbol" in env.instruction("grid")
    assert env.key_of_text(KEYED) == "2232"
    moved = env.text_of_key(KEYED, "3242")
    assert moved is not None and "32P" in moved and "42X" in moved
    for changed in (BOARD, KEYED.replace("22P", "23P"), KEYED.replace("\n10#", "\n1#")):
        assert env.key_of_text(changed) is None and env.outcome_of_text(changed) == ""
    assert env.state_value(KEYED.replace("O", "√")) == 1.0


@pytest.mark.parametrize(
    ("key", "action", "way"),
    [
        ("2232", "Left", "22P21_"),
        ("2132", "Left", "21P20#"),
        ("2232", "Down", "22P32X42_"),
        ("3141", "Down", "31P41X51#"),
        ("3343", "Down", "33P43√53#"),
        ("2243", "Up", "22P12_"),
        ("2222", "Left", ""),
        ("2232", "Jump", ""),
    ],
)
def test_the_way_of_a_move_names_the_cells_that_decide_it(key: str, action: str, way: str):
    assert start(cell_keys=True).way(key, action) == way
    assert start().way(key, action) == ""


def test_a_state_has_one_key():
    env = start(TWO, num_boxes=2)
    assert env.state_key() == "111222"
    assert env.text_of_key(TWO, "111222") == TWO
    assert env.text_of_key(TWO, "112212") is None


def test_keys_of_cells_need_a_small_board():
    with pytest.raises(ConfigError, match=r"'cell_keys' .* lower 'dim_x' and 'dim_y' to 10"):
        Sokoban(dim_x=11, cell_keys=True)
