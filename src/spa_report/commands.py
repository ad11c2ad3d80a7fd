"""The commands that show results, registered in pyproject.toml. `spa --help` loads this module, so
it must not import anything heavy."""

from spa.commands.table import Command

view = Command(
    summary="show runs, curves and episodes in a browser",
    target="spa_report.command_view:view",
    example="spa view runs/demo",
    group="Look at results",
)
report = Command(
    summary="write a report page about one or more runs",
    target="spa_report.command_report:report",
    example="spa report runs/demo",
    group="Look at results",
)
runs = Command(
    summary="list the runs of a folder",
    target="spa_report.command_runs:runs",
    example="spa runs runs",
    group="Look at results",
)
