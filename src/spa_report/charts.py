"""Charts as data, for drawing by uPlot on pages (`templates/charts.js`) or by matplotlib in files
(`figures.py`).

`templates/uplot.*` is uPlot 1.6.32 (MIT). Among maintained libraries that work offline from one
file and support bands, a cursor and touch, it is the smallest. It adds 51 kB to a report, compared
with 1 MB for Apache ECharts and 4.5 MB for Plotly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_POINTS = 300

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart.

    `points` are (x, y) pairs. `bands` has an interval (low, high) for each point, or is empty.
    `episodes` and `tokens` are the numbers that the method has sampled up to each point, including
    self-play. They are empty if not recorded.
    """

    label: str
    points: tuple[Point, ...]
    bands: tuple[tuple[float, float], ...] = ()
    color: int = 0
    episodes: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart.

    With `percent`, the y axis runs from 0 to 100 %. `band` is the legend of the bands. `end` is the
    last value of the x axis; if it is 0, the points determine the axis.
    """

    title: str
    help: str
    series: tuple[Series, ...]
    x_label: str = "PPO step"
    percent: bool = False
    band: str = ""
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class Bars:
    """A table of amounts with a bar in each cell. Each of `rows` has a label and one amount per
    category."""

    title: str
    help: str
    categories: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    percent: bool = False
    unit: str = ""


def thin(points: Sequence[Point], limit: int = _MAX_POINTS) -> list[int]:
    """Evenly spaced indices of at most `limit` points, including the first and the last."""
    if len(points) <= limit:
        return list(range(len(points)))
    return sorted({round(index * (len(points) - 1) / (limit - 1)) for index in range(limit)})


def number(value: float, percent: bool = False) -> str:
    """Format a number for display with four significant digits, or with two if it is very small or
    very large. A percentage has three."""
    if percent:
        return f"{100 * value:.3g} %"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2g}"
    return f"{value:,.4g}"
