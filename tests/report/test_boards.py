"""States as boards, and which cells differ."""

from hypothesis import given
from hypothesis import strategies as st

from spa_report.boards import board_size, compare, read_board

SENTENCE = "Player (P) is at (0,1); goal (G) is at (1,1); no holes (O)."


def symbols(board):
    return ["".join(cell.text for cell in row) for row in board.rows]


def differing(board):
    return [
        (r, c) for r, row in enumerate(board.rows) for c, cell in enumerate(row) if cell.differs
    ]


def test_a_drawing_is_a_board():
    assert symbols(read_board("P_\n_G")) == ["P_", "_G"]
    assert symbols(read_board("P _\n_ G")) == ["P_", "_G"]
    assert symbols(read_board("#\t#\nP\t√")) == ["##", "P√"]


def test_a_sentence_is_placed_on_a_board_of_the_size_that_the_prompt_says():
    size = board_size(["Cells: the bottom right corner is (1,2). Rows grow downwards.", SENTENCE])
    assert size == (2, 3)
    assert symbols(read_board(SENTENCE, size)) == ["·P·", "·G·"]


def test_without_an_instruction_the_largest_coordinates_give_the_size():
    assert board_size([SENTENCE, "Player (P) is at (3,0)"]) == (4, 2)
    assert board_size(["no coordinates"]) is None


def test_two_things_on_one_cell_are_both_shown():
    assert symbols(read_board("Player (P) is at (0,0); goal (G) is at (0,0).", (1, 2))) == ["PG·"]


def test_differing_cells_are_marked():
    board = compare("_P\n_G", "P_\n_G")
    assert differing(board) == [(0, 0), (0, 1)]
    assert not board.same
    assert compare("P_\n_G\n", "P_\n_G").same


def test_missing_and_surplus_cells_differ():
    assert differing(compare("P_", "P_\n_G")) == []  # one line is no drawing: it is shown as words
    assert differing(compare("P_\n_", "P_\n_G")) == [(1, 1)]
    assert differing(compare("P_\n_G\nOO", "P_\n_G")) == [(2, 0), (2, 1)]


def test_words_that_differ_are_marked():
    board = compare("Player (P) is at (0,2).", "Player (P) is at (0,1).")
    assert [cell.text for cell in board.words if cell.differs] == ["(0,2)."]


def test_a_drawing_with_its_sentence_has_both():
    board = read_board("P_\n_G\nPlayer (P) is at (0,0); goal (G) is at (1,1).", (2, 2))
    assert symbols(board) == ["P_", "_G"]
    assert board.words[0].text == "Player"


def test_a_sentence_without_coordinates_is_no_row():
    board = read_board("| 1 2 | 3 4 |\n| 3 4 | 1 2 |\nNo empty cells.")
    assert len(board.rows) == 2 and [cell.text for cell in board.words] == ["No", "empty", "cells."]


def test_a_drawing_that_is_no_grid_keeps_its_lines():
    board = read_board("+---+\n|taxi at (1,2)|\nend")
    assert [cell.text for cell in board.words].count("\n") == 2


def test_prose_is_no_board():
    board = read_board("A shop sells red shoes today.\nWhich of them would you rather buy now?")
    assert board.rows == ()
    assert board.words[0].text == "A"


@given(st.text(max_size=300), st.text(max_size=300))
def test_any_text_gives_a_board_of_printable_cells(text, truth):
    board = compare(text, truth, (3, 3))
    cells = [cell for row in board.rows for cell in row] + list(board.words)
    assert all(cell.text.encode("utf-8") and "\x1b" not in cell.text for cell in cells if cell.text)
    assert board.same == (text.strip() == truth.strip())


def test_a_line_of_a_megabyte_is_cut():
    board = compare("x " * 500_000, "y")
    assert len(board.words) == 401
    assert board.words[-1].text == "…"
