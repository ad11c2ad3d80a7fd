import warnings

import numpy as np
import pytest
from contract import check_contract
from gymnasium.utils.env_checker import check_env

from spa.envs.frozen_lake import FrozenLake
from spa.envs.sprites import TILE, picture, tile
from spa_games.sokoban import SPRITES, Sokoban


def test_visual_sokoban_passes_the_checkers():
    check_contract(lambda: Sokoban(render_mode="rgb_array"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(Sokoban(render_mode="rgb_array"))
        check_env(FrozenLake(render_mode="rgb_array"))


def test_a_frame_shows_every_cell():
    env = Sokoban(render_mode="rgb_array")
    env.reset(seed=4)
    for action in (1, 2, 3, 4, 4, 3):
        frame = env.render()
        assert (
            isinstance(frame, np.ndarray)
            and frame.shape == (6 * TILE, 6 * TILE, 3)
            and frame.dtype == np.uint8
        )
        by_symbol = {symbol: tile(*SPRITES[identity]) for identity, symbol in enumerate("#_O√XPS")}
        for row, line in enumerate(env.state_text("grid").split("\n")):
            for col, symbol in enumerate(line):
                cell = frame[row * TILE : (row + 1) * TILE, col * TILE : (col + 1) * TILE]
                assert (cell == by_symbol[symbol]).all()
        env.step(action)


def test_states_look_different():
    assert len({tile(*layers).tobytes() for layers in SPRITES.values()}) == 7


def test_symbols_do_not_change_the_picture():
    plain, renamed = (
        Sokoban(render_mode="rgb_array"),
        Sokoban(render_mode="rgb_array", grid_lookup={0: "W", 5: "A"}),
    )
    plain.reset(seed=1)
    renamed.reset(seed=1)
    assert (np.asarray(plain.render()) == np.asarray(renamed.render())).all()


@pytest.mark.parametrize("board", ["P_\nOG", "PO\n_G"])
def test_frozen_lake_terminal_frames(board):
    env = FrozenLake(size=2, is_slippery=False, render_mode="rgb_array")
    env.reset(options={"board": board})
    before = np.asarray(env.render())
    env.step("Down")
    assert (np.asarray(env.render()) != before).any()


def test_tiles_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="read-only"):
        tile("floor")[0, 0] = 0
    image = picture([[("floor",)]])
    image[0, 0] = 0
    assert tile("floor")[0, 0].any()
