"""A report as one PNG: the verdict and the curves. Needs matplotlib."""

import textwrap
from pathlib import Path
from typing import Any

from spa.errors import SpaError
from spa.report.charts import Chart
from spa.report.content import Report

_COLORS = ("#0072b2", "#d55e00", "#007a59", "#a8517f", "#8a6d00", "#4d4dbf", "#5b6470", "#9c2f2f")
_DASHES = ("-", "--", ":", "-.")
_MARKERS = ("o", "s", "^", "D")
_MAX_CHARTS = 6


def save_picture(report: Report, path: Path) -> None:
    """Draw the first charts of the report. Raises SpaError if matplotlib is not there or nothing can be drawn."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SpaError("--format png needs matplotlib: pip install matplotlib. --format html needs nothing.") from error
    charts = [*report.curves, *(chart for section in report.sections for chart in section.charts)][:_MAX_CHARTS]
    if not charts:
        raise SpaError("there is nothing to draw yet: no metric has been recorded. --format md says what there is.")
    rows = (len(charts) + 1) // 2
    figure = Figure(figsize=(12, 1.4 + 3.4 * rows), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(_plain(textwrap.fill(report.verdict, 100)), fontsize=14, fontweight="bold")
    for index, chart in enumerate(charts):
        _draw(figure.add_subplot(rows, 2, index + 1), chart)
    try:
        figure.savefig(path, format="png", metadata={"Software": "spa"})
    except OSError as error:
        raise SpaError(f"cannot write {path}: {error.strerror}. Choose another place with --output.") from error


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def _draw(axes: Any, chart: Chart) -> None:
    for series in chart.series:
        style = {
            "color": _COLORS[series.color % 8],
            "linestyle": _DASHES[series.color % 4],
            "marker": _MARKERS[series.color % 4],
        }
        xs, ys = zip(*series.points, strict=True)
        every = max(1, len(xs) // 20)
        axes.plot(xs, ys, label=_plain(series.label), linewidth=2, markersize=4, markevery=every, **style)
        if series.bands:
            low, high = zip(*series.bands, strict=True)
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.15, linewidth=0)
    axes.set_title(_plain(chart.title), loc="left", fontsize=11)
    axes.set_xlabel(_plain(chart.x_label))
    axes.grid(axis="y", color="#dddddd")
    axes.spines[["top", "right"]].set_visible(False)
    if chart.percent:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.legend(frameon=False, fontsize=9)
