"""The command `spa compare`, registered in pyproject.toml. Imports no slow module."""

from spa.commands.table import Command

compare = Command(
    summary="train and compare methods, or values of a setting, on the same puzzles",
    target="spa_sweeps.command:compare",
    example="spa compare tiny --methods spa,vanilla --seeds 3",
    overrides=True,
    resumes=True,
    group="Train",
)
