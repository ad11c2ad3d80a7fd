"""Known boards in the formats of other collections: Sokoban levels of Boxoban and XSB files, lines of digits."""

import pytest

from spa.envs.boards import read_boards
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError, DataError
from spa_games.sokoban import Sokoban
from spa_games.sudoku import Sudoku

BOXOBAN = """; 0
##########
#        #
#   $    #
#  .#*#  #
#   #@   #
#  $ #   #
#  .  $  #
#      . #
#        #
##########

; 1
##########
#        #
#   $    #
#  .#$#  #
#   #+   #
#  $ #   #
#  .  $  #
#      . #
#        #
##########
"""
OURS = """##########
#________#
#___X____#
#__O#√#__#
#___#P___#
#__X_#___#
#__O__X__#
#______O_#
#________#
##########"""
XSB = "  ####\n###  #\n#@$. #\n#  ###\n####"
LINES = (
    "530070000600195000098000060800060003400803001700020006060000280000419005000080079",
    "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79",
)


def test_boxoban_levels_from_a_file(tmp_path):
    for text in (BOXOBAN, BOXOBAN.replace("\n", "\r\n"), "\ufeff" + BOXOBAN):
        (tmp_path / "levels.txt").write_text(text, newline="")
        first, second = read_boards(tmp_path / "levels.txt")
        env = Sokoban(dim_x=10, dim_y=10, num_boxes=4)
        env.reset(options={"board": first})
        assert env.puzzle_text() == OURS and env.on_target == 1
        env.reset(options={"board": second})
        assert env.puzzle_text().count("S") == 1


def test_xsb_levels_have_short_lines_and_space_around_them():
    env = Sokoban(dim_x=5, dim_y=6)
    env.reset(options={"board": XSB})
    assert env.puzzle_text() == "######\n###__#\n#PXO_#\n#__###\n######"
    assert env.expert_actions(3) == ("Right",)
    open_wall = XSB.replace("#  ###", "   ###")
    for board in (open_wall, XSB.replace("@", " "), "#####\n#@$.#\n#####"):
        with pytest.raises(ConfigError, match=r"the board must be 5x6 .* XSB"):
            env.reset(options={"board": board})


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_boards_may_end_with_a_line_break(end):
    for env in (FrozenLake(size=3), Sokoban(), Sudoku()):
        env.reset(seed=1)
        board = env.puzzle_text()
        env.reset(options={"board": board.replace("\n", end) + end})
        assert env.puzzle_text() == board


@pytest.mark.parametrize("line", LINES)
def test_sudokus_of_one_character_per_cell(line, tmp_path):
    env = Sudoku(board_size=9)
    env.reset(options={"board": line})
    expected = env.puzzle_text()
    assert list(env.given[:6]) == [5, 3, 0, 0, 7, 0]
    square = "\n".join(line[row : row + 9] for row in range(0, 81, 9))
    for board in (f"{line}\r\n", square, expected):
        env.reset(options={"board": board})
        assert env.puzzle_text() == expected
    (tmp_path / "sudokus.txt").write_text("\r\n".join(LINES) + "\r\n")
    assert read_boards(tmp_path / "sudokus.txt") == list(LINES)
    with pytest.raises(ConfigError, match="not a 9x9 Sudoku board"):
        env.reset(options={"board": line[:-1]})


def test_a_file_without_boards_is_named(tmp_path):
    (tmp_path / "none.txt").write_text("; nothing\n\n")
    with pytest.raises(DataError, match=r"none\.txt: the file has no board"):
        read_boards(tmp_path / "none.txt")
    with pytest.raises(DataError, match=r"gone\.txt: the file of boards cannot be read"):
        read_boards(tmp_path / "gone.txt")
