"""Line and bar charts as SVG text, without a plotting library.

Colours come from the page's style sheet (classes c0 … c7), so that one drawing serves light, dark and paper. Up to
sixteen series differ by dash pattern and marker as well, also in the legend: colour is never needed to read.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

WIDTH, HEIGHT = 560, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 14, 40
_MAX_POINTS = 300
_MARKERS = ("circle", "square", "triangle", "diamond")

Point = tuple[float, float]
Placer = Callable[[float, float], Point]


@dataclass(frozen=True, slots=True)
class Series:
    """A line: points (x, y), and, over several seeds, the range of the seeds at each point as (low, high)."""

    label: str
    points: tuple[Point, ...]
    bands: tuple[tuple[float, float], ...] = ()
    color: int = 0


@dataclass(frozen=True, slots=True)
class Chart:
    """A line chart. `percent` fixes the y axis to 0 … 100 %."""

    title: str
    help: str
    series: tuple[Series, ...]
    x_label: str = "PPO step"
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal stacked bars: one row per label, one segment per category (in the order of `categories`)."""

    title: str
    help: str
    categories: tuple[str, ...]
    rows: tuple[tuple[str, tuple[float, ...]], ...]
    percent: bool = False
    unit: str = ""


def thin(points: Sequence[Point], limit: int = _MAX_POINTS) -> list[int]:
    """Indices of at most about `limit` points, the first and the last among them."""
    if len(points) <= limit:
        return list(range(len(points)))
    chosen = {round(index * (len(points) - 1) / (limit - 1)) for index in range(limit)}
    return sorted(chosen)


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`, about `count` of them; only whole ones if `whole`."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):  # rounding, and nothing that could be drawn
        high = low + (abs(low) or 1.0)
    raw = (high - low) / max(count - 1, 1)
    magnitude = 10 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    if whole:
        step = math.ceil(step)
    first = math.floor(low / step + 1e-9)
    last = math.ceil(high / step - 1e-9)
    digits = max(0, 3 - math.floor(math.log10(step)))
    return [round(index * step, digits) for index in range(first, last + 1)]


def number(value: float, percent: bool = False) -> str:
    """A number as a person writes it."""
    if percent:
        return f"{100 * value:.3g} %"
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2g}"
    return f"{value:,.4g}"


def line_chart(chart: Chart) -> Markup:
    """The chart as an SVG element."""
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    ys += [edge for series in chart.series for band in series.bands for edge in band]
    x_ticks = [tick for tick in ticks(min(xs), max(xs), 6, whole=True) if min(xs) <= tick <= max(xs)]
    y_ticks = [0.0, 0.25, 0.5, 0.75, 1.0] if chart.percent else ticks(min(ys), max(ys))
    low, high = y_ticks[0], y_ticks[-1]
    span = (max(xs) - min(xs)) or 1.0

    def place(x: float, y: float) -> Point:
        across = (x - min(xs)) / span if max(xs) > min(xs) else 0.5
        return (
            _LEFT + across * (WIDTH - _LEFT - _RIGHT),
            _TOP + (high - y) / (high - low) * (HEIGHT - _TOP - _BOTTOM),
        )

    parts = [_svg_open(HEIGHT, chart.title, _describe(chart))]
    for tick in y_ticks:
        _, y = place(min(xs), tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(number(tick, chart.percent))}</text>'
        )
    for tick in x_ticks:
        x, _ = place(tick, low)
        parts.append(f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - _BOTTOM + 16}">{number(tick)}</text>')
    middle = (_LEFT + WIDTH - _RIGHT) / 2
    parts.append(f'<text class="tick middle" x="{middle}" y="{HEIGHT - 6}">{escape(chart.x_label)}</text>')
    for series in chart.series:
        parts.extend(_line(series, place, chart.percent))
    parts.append("</svg>")
    return Markup("".join(parts))


def _line(series: Series, place: Placer, percent: bool) -> list[str]:
    keep = thin(series.points)
    points = [series.points[index] for index in keep]
    color = f"c{series.color % 8}"
    parts = []
    if series.bands:
        bands = [series.bands[index] for index in keep]
        upper = [place(x, band[1]) for (x, _), band in zip(points, bands, strict=True)]
        lower = [place(x, band[0]) for (x, _), band in zip(points, bands, strict=True)]
        outline = " ".join(f"{x:.1f},{y:.1f}" for x, y in upper + lower[::-1])
        parts.append(f'<polygon class="band {color}" points="{outline}"/>')
    placed = [place(x, y) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    parts.append(f'<polyline class="line {color}" points="{path}"/>')
    every = max(1, math.ceil(len(points) / 24))
    for index, ((x, y), (px, py)) in enumerate(zip(points, placed, strict=True)):
        if index % every == 0 or index == len(points) - 1:
            title = escape(f"{series.label}: {number(y, percent)} at {number(x)}")
            parts.append(f'<g class="{color}"><title>{title}</title>{marker(series.color, px, py)}</g>')
    return parts


def marker(color: int, x: float, y: float, size: float = 3.6) -> str:
    """The marker of a series, as an SVG shape."""
    kind = _MARKERS[(color + color // 4) % len(_MARKERS)]  # dashes come again after four series, with another marker
    if kind == "circle":
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="{size}"/>'
    if kind == "square":
        return f'<rect class="dot" x="{x - size:.1f}" y="{y - size:.1f}" width="{2 * size}" height="{2 * size}"/>'
    up = 1.3 * size
    corners = [(x, y - up), (x + up, y + size), (x - up, y + size)]
    if kind == "diamond":
        corners = [(x, y - up), (x + up, y), (x, y + up), (x - up, y)]
    return f'<polygon class="dot" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in corners)}"/>'


def legend_mark(color: int) -> Markup:
    """A short piece of a series' line with its marker, for a legend."""
    name = f"c{color % 8}"
    shape = f'<line class="line {name}" x1="1" x2="29" y1="7" y2="7"/><g class="{name}">{marker(color, 15, 7)}</g>'
    return Markup(f'<svg class="key" viewBox="0 0 30 14" width="30" height="14" aria-hidden="true">{shape}</svg>')


def bar_chart(bars: Bars) -> Markup:
    """The chart as an SVG element."""
    left, row_height, top = 150, 34, 6
    height = top + row_height * len(bars.rows) + 24
    widest = 1.0 if bars.percent else max((sum(values) for _, values in bars.rows), default=1.0) or 1.0
    scale = (WIDTH - left - _RIGHT - 44) / widest
    parts = [_svg_open(height, bars.title, _describe_bars(bars))]
    for index, (label, values) in enumerate(bars.rows):
        y = top + index * row_height
        name = label if len(label) <= 22 else label[:21] + "…"
        parts.append(f'<text class="label end" x="{left - 8}" y="{y + 19}">{escape(name)}</text>')
        x = float(left)
        for color, (category, value) in enumerate(zip(bars.categories, values, strict=True)):
            wide = value * scale
            if wide <= 0:
                continue
            text = number(value, bars.percent) + bars.unit
            title = escape(f"{label}, {category}: {text}")
            shape = f'<rect x="{x:.1f}" y="{y + 3}" width="{max(wide - 1, 0.5):.1f}" height="{row_height - 10}"/>'
            parts.append(f'<g class="bar c{color % 8}"><title>{title}</title>{shape}</g>')
            shown = f"{100 * value:.0f} %" if bars.percent else f"{value:,.0f}{bars.unit}"
            if wide > 7 * len(shown) + 6:
                place = f'x="{x + wide / 2:.1f}" y="{y + 19}"'
                parts.append(f'<text class="inside middle c{color % 8}" {place}>{escape(shown)}</text>')
            x += wide
        if not bars.percent:
            parts.append(
                f'<text class="tick" x="{x + 5:.1f}" y="{y + 19}">{number(sum(values))}{escape(bars.unit)}</text>'
            )
    parts.append("</svg>")
    return Markup("".join(parts))


def _svg_open(height: float, title: str, description: str) -> str:
    label = escape(f"{title}. {description}")
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'


def _describe(chart: Chart) -> str:
    ends = (
        f"{s.label} from {number(s.points[0][1], chart.percent)} to {number(s.points[-1][1], chart.percent)}"
        for s in chart.series
    )
    return "; ".join(ends)


def _describe_bars(bars: Bars) -> str:
    rows = []
    for label, values in bars.rows:
        parts = (
            f"{category} {number(value, bars.percent)}{bars.unit}"
            for category, value in zip(bars.categories, values, strict=True)
            if value
        )
        rows.append(f"{label}: " + ", ".join(parts))
    return "; ".join(rows)
