"""The renderer of Markdown tables."""

from spa.markdown import markdown_table


def test_cells_are_escaped_and_numbers_are_aligned_right():
    assert markdown_table(("key", "n"), [("a | b", "1")], right=[1]) == (
        "| key | n |\n|---|---:|\n| a \\| b | 1 |"
    )
    assert markdown_table(("", ""), []) == "|  |  |\n|---|---|"
