"""Write charts as PNG and SVG files for papers, with matplotlib."""

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from spa.errors import SpaError
from spa.install import install_hint
from spa_report.charts import Chart
from spa_report.content import Report

# Colours, dashes and markers vary together, so up to four lines also differ in black and white.
_COLORS = ("#0072b2", "#d55e00", "#007a59", "#a8517f", "#8a6d00", "#4d4dbf", "#5b6470", "#9c2f2f")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")


def save_picture(report: Report, path: Path) -> None:
    """Draw the verdict and the first charts of the report as one PNG.

    Raises SpaError if matplotlib is not installed or there is nothing to draw.
    """
    charts = _charts(report)[:6]
    rows = (len(charts) + 1) // 2
    figure = _figure((12, 1.4 + 3.4 * rows))
    figure.suptitle(_plain(textwrap.fill(report.verdict, 100)), fontsize=14, fontweight="bold")
    for index, chart in enumerate(charts):
        _draw(figure.add_subplot(rows, 2, index + 1), chart)
    _save(figure, path, "png", "--output")


def save_figures(report: Report, folder: Path) -> Iterator[Path]:
    """Write each chart of the report as PNG and SVG into `folder`, and yield the paths.

    Raises SpaError if matplotlib is not installed or there is nothing to draw.
    """
    for index, chart in enumerate(_charts(report), 1):
        stem = re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-")
        for form in ("png", "svg"):
            path = folder / f"{index:02d}-{stem}.{form}"
            save_chart(chart, path)
            yield path


def save_chart(chart: Chart, path: Path, option: str = "--figures") -> None:
    """Draw one chart as PNG or SVG, depending on the suffix of `path`. Raises SpaError if
    matplotlib is not installed."""
    figure = _figure((6, 3.8))
    _draw(figure.add_subplot(), chart)
    _save(figure, path, path.suffix[1:], option)


def _charts(report: Report) -> Sequence[Chart]:
    charts = [chart for section in report.sections for chart in section.charts]
    if not charts:
        raise SpaError(
            "the run has no recorded metric, so there is no figure. List the recorded data with --format md."
        )
    return charts


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpaError(
            f"figures need matplotlib: {install_hint('plot')}. --format html needs no extra package."
        ) from error
    # Agg needs no display. pyplot is avoided, because it keeps global state.
    figure = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path, form: str, option: str) -> None:
    from matplotlib import rc_context

    # Without a date and with a fixed salt for ids, equal runs give identical bytes.
    metadata = {"Date": None} if form == "svg" else {"Software": "spa"}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with rc_context({"svg.hashsalt": "spa"}):
            figure.savefig(path, format=form, metadata=metadata)
    except OSError as error:
        raise SpaError(
            f"cannot write {path}: {error.strerror}. Choose another path with {option}."
        ) from error


def _plain(text: str) -> str:
    """Escape text so that matplotlib does not parse it as mathematics. A leading `_` gets a space
    before it, because matplotlib omits labels that start with `_` from the legend."""
    return (" " if text.startswith("_") else "") + text.replace("$", r"\$")


def _draw(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        # The ninth line has the first colour again, but the next dash.
        dash = (series.color + series.color // 8) % 4
        style = {
            "color": _COLORS[series.color % 8],
            "linestyle": _DASHES[dash],
            "marker": _MARKERS[dash],
        }
        xs, ys = zip(*series.points, strict=True)
        # Draw fewer than 40 markers per line, because more would overlap.
        every = max(1, len(xs) // 20)
        axes.plot(
            xs, ys, label=_plain(series.label), linewidth=2, markersize=4, markevery=every, **style
        )
        if series.bands:
            low, high = zip(*series.bands, strict=True)
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    if any(series.bands for series in chart.series):
        axes.plot([], [], color="#999999", linewidth=6, alpha=0.4, label=_plain(chart.band))
    axes.set_title(_plain(textwrap.fill(chart.title, 70)), loc="left", fontsize=11)
    axes.set_xlabel(_plain(chart.x_label))
    axes.grid(axis="y", color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    if chart.end:
        axes.set_xlim(-0.02 * chart.end, 1.02 * chart.end)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if chart.percent:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.legend(frameon=False, fontsize=9)
