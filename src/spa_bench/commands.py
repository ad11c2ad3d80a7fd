"""The records of our commands, which pyproject.toml registers. Imports nothing heavy."""

from spa.commands.table import Command

estimators = Command(
    summary="compute the exact bias and variance of advantage estimators",
    target="spa_bench.estimator_bias.command:estimators",
    example="spa bench estimators --group-size 4",
    group="Bench",
)
