"""`spa report`: write a report as one self-contained HTML file, as Markdown or as images."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from spa.errors import DataError, SpaError
from spa.run.console import printable
from spa.run.files import write_atomic
from spa.tables import Table
from spa.version import __version__
from spa_report.charts import Chart, number, thin
from spa_report.content import Report, build
from spa_report.facts import ENDINGS
from spa_report.reading import open_run, problem_text
from spa_report.security import page_policy
from spa_report.text import markdown

log = logging.getLogger("spa.report")

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_ROWS = 60
MAX_RESPONSE = 3_000


def write_report(runs: Sequence[Path], path: Path, form: str) -> Report:
    """Write the report on `runs` to `path` in the format "html", "md" or "png", and return its
    content.

    Unreadable runs are skipped with a warning. Raises DataError if all are unreadable.
    """
    report = _build_readable(runs)
    if form == "png":
        from spa_report.figures import save_picture

        save_picture(report, path)
        return report
    write_text(path, html(report) if form == "html" else markdown(report), "--output")
    return report


def _build_readable(paths: Sequence[Path]) -> Report:
    try:
        return build([open_run(path) for path in paths])
    except Exception as error:
        # Any file of a run may be damaged, so build each run alone to find the unreadable ones.
        problems = {path: problem for path in paths if (problem := _problem(path))}
        if not problems:
            raise
        if len(problems) == len(paths):
            path, problem = next(iter(problems.items()))
            raise DataError(f"cannot read the run {path}: {problem}") from error
    notes = [
        f"skipped the run {path}, because a file is unreadable: {problem}"
        for path, problem in problems.items()
    ]
    for note in notes:
        log.warning("%s", note)
    report = build([open_run(path) for path in paths if path not in problems])
    # List the notes with the reasons for the verdict, so that readers see what is missing.
    return replace(report, certainty=(*map(printable, notes), *report.certainty))


def _problem(path: Path) -> str:
    """Return the reason why a run cannot be read, or "" if it can be read. Raises DataError if
    `path` contains no run."""
    run = None
    try:
        run = open_run(path)
        build([run])
    except Exception as error:
        # A path without a run is the caller's mistake, so raise. A damaged run is only skipped.
        if run is None and isinstance(error, DataError):
            raise
        return problem_text(error)
    return ""


def write_text(path: Path, text: str, option: str) -> None:
    """Write a file. If that fails, raises SpaError, whose message suggests another path for the
    command-line option `option`."""
    try:
        write_atomic(path, [text])
    except OSError as error:
        raise SpaError(
            f"cannot write {path}: {error.strerror}. Choose another path with {option}."
        ) from error


def html(report: Report) -> str:
    """Render the report as one self-contained HTML page. Its only scripts draw the charts."""
    return render_page("report.html.j2", report=report, endings=ENDINGS, cut=cut)


def template(name: str) -> str:
    """Read a file of `templates/`."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def render_page(name: str, folder: Path = _TEMPLATES, **content: Any) -> str:
    """Render a template of this package or of another `folder`, with the styles and chart scripts
    of reports. All text in `content` is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _TEMPLATES]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Only the package's own CSS and JavaScript are marked safe. Jinja escapes all text that comes
    # from a run.
    styles = [template("uplot.css"), template("charts.css"), template("report.css")]
    scripts = [template("uplot.js"), template("charts.js")]
    return environment.get_template(name).render(
        **content,
        styles=map(Markup, styles),
        scripts=map(Markup, scripts),
        policy=Markup(page_policy(styles=styles, scripts=scripts)),
        version=__version__,
        number=number,
        table=Table,
        table_of=table_of,
        chart_json=lambda chart: json.dumps(asdict(chart), separators=(",", ":")),
    )


def table_of(chart: Chart) -> Table:
    """The chart's numbers as a table with one column for x and one per series. Long charts are
    thinned to at most 60 rows."""
    columns = [dict(series.points) for series in chart.series]
    # Series may be validated at different steps, so a cell is empty if its series has no value at
    # x.
    xs = sorted({x for column in columns for x in column})
    keep = thin([(x, 0.0) for x in xs], _MAX_ROWS)
    rows = [
        (
            number(x),
            *(number(column[x], chart.percent) if x in column else "" for column in columns),
        )
        for x in (xs[index] for index in keep)
    ]
    names = (chart.x_label, *(series.label for series in chart.series))
    return Table(names, rows, right=range(len(names)))


def cut(text: str, limit: int = MAX_RESPONSE) -> str:
    """Truncate a text that is too long for a report, and append the number of omitted
    characters."""
    return (
        text if len(text) <= limit else f"{text[:limit]} … [{len(text) - limit:,} more characters]"
    )
