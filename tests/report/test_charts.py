"""Charts: round ticks, legal SVG, names in the right places."""

import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spa.report.charts import Bars, Chart, Series, bar_chart, legend_mark, line_chart, number, thin, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.25, 0.5, 0.75, 1]),
        (0, 10, [0, 2.5, 5, 7.5, 10]),
        (-0.3, 0.3, [-0.4, -0.2, 0, 0.2, 0.4]),
        (1000, 1001, [1000, 1000.25, 1000.5, 1000.75, 1001]),
    ],
)
def test_ticks_are_round_and_cover_the_range(low, high, expected):
    assert ticks(low, high) == expected


def test_steps_are_counted_in_whole_numbers():
    assert ticks(0, 12, 6, whole=True) == [0, 3, 6, 9, 12]
    assert ticks(0, 2, 6, whole=True) == [0, 1, 2]


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_cover_any_range(low, size):
    marks = ticks(low, low + size)
    span = marks[-1] - marks[0]
    slack = 1e-6 * max(span, abs(low))
    assert marks[0] <= low + slack and marks[-1] >= low + size - slack
    assert 2 <= len(marks) <= 12


@pytest.mark.parametrize(("low", "high"), [(0.0, 2e-13), (0.6 / 3, 0.6 / 3 + 3e-17), (0.19999999999999998, 0.2)])
def test_ticks_of_next_to_nothing_differ(low, high):
    marks = ticks(low, high)
    assert len(set(marks)) == len(marks) > 1 and marks[0] - 1e-15 <= low <= high <= marks[-1]


def test_sixteen_series_can_be_told_apart_without_colour():
    shapes = [re.sub(r"\bc\d", "", str(legend_mark(color))) for color in range(16)]
    assert len({(color % 4, shape) for color, shape in enumerate(shapes)}) == 16


def test_numbers():
    assert [number(x) for x in (0, 0.25, 1234.5, 0.00012, 3e7)] == ["0", "0.25", "1,234", "0.00012", "3e+07"]
    assert number(0.681, percent=True) == "68.1 %"


def test_a_line_chart_is_legal_svg_and_escapes_names():
    series = Series("<b>&'\"", ((0.0, 0.1), (5.0, 0.9)), ((0.0, 0.2), (0.8, 1.0)))
    tree = ET.fromstring(str(line_chart(Chart("T <x>", "help", (series,), percent=True))))
    title = tree.find(".//{*}title")
    assert title is None or title.text == "<b>&'\": 10 % at 0"
    assert tree.attrib["aria-label"].startswith("T <x>. <b>&'\" from 10 % to 90 %")
    assert len([node for node in tree.iter() if node.attrib.get("class", "").startswith("line")]) == 1


@pytest.mark.parametrize("points", [((3.0, 0.0),), ((0.0, 5.0), (1.0, 5.0)), ((0.0, -1e-9), (1.0, 1e9))])
def test_degenerate_data_is_drawn_inside_the_picture(points):
    tree = ET.fromstring(str(line_chart(Chart("a", "b", (Series("s", points),)))))
    width, height = map(float, tree.attrib["viewBox"].split()[2:])
    dots = [node for node in tree.iter("circle") if node.attrib.get("class") == "dot"]
    assert len(dots) == len(points)
    assert all(0 < float(dot.attrib["cx"]) < width and 0 < float(dot.attrib["cy"]) < height for dot in dots)


def test_long_series_are_thinned_but_keep_their_ends():
    keep = thin([(float(x), 0.0) for x in range(10_000)])
    assert keep[0] == 0 and keep[-1] == 9_999 and len(keep) <= 300


def test_bars_show_their_shares():
    bars = Bars("Ends", "help", ("won", "lost"), (("spa", (0.75, 0.25)), ("vanilla", (0.0, 1.0))), percent=True)
    tree = ET.fromstring(str(bar_chart(bars)))
    widths = [float(node.attrib["width"]) for node in tree.iter() if node.tag.endswith("rect")]
    assert len(widths) == 3
    assert widths[0] == pytest.approx(3 * widths[1], rel=0.02)
