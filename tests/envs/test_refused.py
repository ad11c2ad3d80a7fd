"""One table of what environments refuse: options and boards that are none, with the word that the message names."""

import pytest

from spa.envs.registry import make_env
from spa.errors import ConfigError

ROOM = "######\n#____#\n#_P__#\n#_X__#\n#__O_#\n######"
TWO_BOXES = "######\n#PXO_#\n#_XO_#\n#____#\n#____#\n######"
DIGITS = "| . 1 2 4 | 4 2 1 3 | 2 3 4 . | . 4 . 2"

OPTIONS = [
    ("bandit", {"lo_arm_name": "Dragon"}, "arm"),
    ("bandit", {"hi_arm_name": " "}, "hi_arm_name"),
    ("bandit", {"hi_arm_hiscore_prob": 1.5}, "hi_arm_hiscore_prob"),
    ("bandit", {"lo_arm_name": "dragon"}, "arm"),
    ("frozen_lake", {"size": 1}, "size"),
    ("frozen_lake", {"size": [4]}, "size"),
    ("frozen_lake", {"size": True}, "size"),
    ("frozen_lake", {"p": 1.5}, "p"),
    ("frozen_lake", {"p": float("nan")}, "p"),
    ("frozen_lake", {"is_slippery": "yes"}, "is_slippery"),
    ("frozen_lake", {"success_rate": -0.1}, "success_rate"),
    ("frozen_lake", {"render_mode": "texts"}, "did you mean 'text'"),
    ("frozen_lake", {"state_text": "coord"}, "did you mean 'coords'"),
    ("frozen_lake", {"grid_lookup": {9: "Q"}}, "grid_lookup"),
    ("frozen_lake", {"grid_lookup": {0: "_"}}, "grid_lookup"),
    ("frozen_lake", {"grid_lookup": {0: "PP"}}, "grid_lookup"),
    ("frozen_lake", {"grid_lookup": "P_OG"}, "grid_lookup"),
    ("frozen_lake", {"grid_vocab": {"Q": "queen"}}, "grid_vocab"),
    ("frozen_lake", {"action_lookup": {1: "Up"}}, "action_lookup"),
    ("frozen_lake", {"action_lookup": {1: []}}, "action_lookup"),
    ("frozen_lake", {"sice": 4}, "option 'sice' is unknown; did you mean 'size'"),
    ("game_2048", {"target": 100}, "target"),
    ("game_2048", {"size": 1}, "size"),
    ("game_2048", {"reward": "sum"}, "reward"),
    ("game_2048", {"invalid_penalty": 1.0}, "invalid_penalty"),
    ("hidden_dynamics_lake", {"size": 11}, "option 'size'"),
    ("hidden_dynamics_lake", {"world": -1}, "option 'world'"),
    ("hidden_dynamics_lake", {"p": 2}, "option 'p'"),
    ("hidden_dynamics_lake", {"moves": 0}, "option 'moves'"),
    ("hidden_dynamics_lake", {"min_moves": 7}, "option 'min_moves'"),
    ("rubiks_cube", {"scramble_depth": 0}, "scramble_depth"),
    ("rubiks_cube", {"scramble_depth": 99}, "scramble_depth"),
    ("rubiks_cube", {"max_steps": 0}, "max_steps"),
    ("sokoban", {"dim_x": 3, "dim_y": 3}, "dim_x"),
    ("sokoban", {"dim_x": 2}, "dim_x"),
    ("sokoban", {"dim_y": 1000}, "dim_y"),
    ("sokoban", {"num_boxes": 0}, "num_boxes"),
    ("sokoban", {"num_boxes": 15}, "num_boxes"),
    ("sokoban", {"num_boxes": []}, "num_boxes"),
    ("sokoban", {"num_boxes": [1, 0]}, "num_boxes"),
    ("sokoban", {"dim_x": 4, "dim_y": 4, "num_boxes": 2}, "num_boxes"),
    ("sokoban", {"hard": 0}, "hard"),
    ("sokoban", {"search_depth": 1}, "search_depth"),
    ("sokoban", {"max_steps": "100"}, "max_steps"),
    ("sokoban", {"render_mode": "rgb"}, "did you mean 'rgb_array'"),
    ("sokoban", {"action_lookup": {1: "Left", 2: "Right", 3: "Up", 4: "East"}}, "same direction"),
    ("sokoban", {"grid_lookup": {0: "#", 1: "#"}}, "grid_lookup"),
    ("sokoban", {"boxes": 2}, "did you mean 'num_boxes'"),
    ("sudoku", {"board_size": 5}, "board_size"),
    ("sudoku", {"board_size": 25}, "board_size"),
    ("sudoku", {"clues": 3}, "clues"),
    ("sudoku", {"clues": 16}, "clues"),
    ("sudoku", {"difficulty": "eazy"}, "did you mean 'easy'"),
    ("sudoku", {"max_steps": 0}, "max_steps"),
    ("sudoku", {"render_mode": {}}, "render_mode"),
    ("countdown", {"score": -1.0}, "score"),
    ("countdown", {"max_instances": 0}, "max_instances"),
    ("countdown", {"signs_only": "yes"}, "signs_only"),
    ("metamathqa", {"retries": -1}, "retries"),
    ("webshop", {"dataset": "tiny"}, "dataset"),
    ("webshop", {"split": "dev"}, "split"),
    ("webshop", {"human_goals": 1}, "human_goals"),
    ("webshop", {"human_goals": True}, "human goals"),
]  # fmt: skip
"""Type, options, and what the message has."""

BOARDS = {
    "frozen_lake": ("the board must have 4x4 cells", [
        "", "P_\n_G", "PG__\n____\n____", "PPG_\n" + "____\n" * 2 + "____", "P" * 10**5,
    ]),
    "hidden_dynamics_lake": ("the board must have 4 rows", [
        "", "a b\nc d", "A B\nG a", "A a\nG G", "A z\nG a", "A aG a",
    ]),
    "sokoban": ("the board must be 6x6 with walls", [
        "", ROOM.replace("P", "_"), ROOM.replace("X", "_"), ROOM.replace("_", "?"), ROOM.replace("#", "_"),
        ROOM + "\n######", TWO_BOXES,
    ]),
    "sudoku": ("board", [
        "", "| . . . . | . . . . | . . . . | . . . .", "| 1 1 . . | . . . . | . . . . | . . . .", "| x", DIGITS[:-2],
    ]),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "named"), OPTIONS)
def test_impossible_options_are_refused(kind, options, named):
    with pytest.raises(ConfigError, match=named):
        make_env(kind, options).reset(seed=0)


@pytest.mark.parametrize(
    ("kind", "board"), [(kind, board) for kind, (_, boards) in BOARDS.items() for board in boards]
)
def test_boards_that_are_none_are_refused(kind, board):
    with pytest.raises(ConfigError, match=BOARDS[kind][0]):
        make_env(kind, {}).reset(seed=0, options={"board": board})
