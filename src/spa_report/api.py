"""The functions of `spa.api` that show runs, registered in pyproject.toml."""

from html import escape
from pathlib import Path

from spa.api.runs import Run
from spa.errors import ConfigError
from spa.evaluation.text import percent
from spa.tables import Table
from spa_report import FORMATS
from spa_report.build import write_report
from spa_report.results import all_recorded


def report(run: Path, path: str | Path | None, form: str) -> Path:
    """Write a report on the run as one file and return its path; see `spa.api.runs.Run.report`.

    Raises ConfigError for an unknown format.
    """
    if form not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    file = Path(path) if path else run / f"report.{form}"
    write_report([run], file, form)
    return file


def run_html(run: Run) -> str:
    """Return HTML that shows a run in a notebook: Pass@1 of each method, or, without evaluated
    methods, the last metrics of each stage."""
    rows = [
        (one.label, f"{when} Pass@1", percent(getattr(one, when)))
        for one in all_recorded(run.summary)
        for when in ("before", "after")
    ]
    # Only a comparison has results per method. For other runs, show the last metrics.
    if not rows:
        rows = [
            (stage.name, key, f"{value:.4g}")
            for stage in run.stages
            if stage.metrics
            for key, value in stage.metrics[max(stage.metrics)].items()
        ]
    table = Table(("", "", ""), rows, right=(2,)).__html__()
    return f"<p>Run <code>{escape(str(run.path))}</code></p>{table}"
