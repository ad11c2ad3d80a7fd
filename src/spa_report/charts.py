"""Charts as data. Pages draw them with uPlot (`templates/charts.js`), files with matplotlib
(`figures.py`).

`templates/uplot.*` is uPlot 1.6.32 (MIT). It is the smallest maintained library with bands, a
cursor and touch that works offline from one file: 51 kB per report, compared with 1 MB for Apache
ECharts and 4.5 MB for Plotly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_POINTS = 300

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """A line of a chart.

    points: (x, y). bands: an interval (low, high) for each point; empty if there are none.
    episodes, tokens: numbers of episodes and tokens that the method has sampled up to each point,
    including self-play; empty if not recorded.
    """

    label: str
    points: tuple[Point, ...]
    bands: tuple[tuple[float, float], ...] = ()
    color: int = 0
    episodes: tuple[float, ...] = ()
    tokens: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart. percent: whether the y axis runs from 0 to 100 %. band: meaning of the bands.
    end: last value of the x axis; with 0, the points determine it."""

    title: str
    help: str
    series: tuple[Series, ...]
    x_label: str = "PPO step"
    percent: bool = False
    band: str = ""
    end: float = 0.0


@dataclass(frozen=True, slots=True)
class Bars:
    """A table of amounts with a bar in each cell. rows: a label and one amount per category."""

    title: str
    help: str
    categories: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    percent: bool = False
    unit: str = ""


def thin(points: Sequence[Point], limit: int = _MAX_POINTS) -> list[int]:
    """Indices of at most about `limit` points, including the first and the last."""
    if len(points) <= limit:
        return list(range(len(points)))
    # The indices are evenly spaced.
    return sorted({round(index * (len(points) - 1) / (limit - 1)) for index in range(limit)})


def number(value: float, percent: bool = False) -> str:
    """Format a number for readers."""
    if percent:
        return f"{100 * value:.3g} %"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2g}"
    return f"{value:,.4g}"
