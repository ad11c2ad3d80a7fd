"""The command `spa data filter`, registered in pyproject.toml. Imports no slow module."""

from spa.commands.table import Command

filter_data = Command(
    summary="keep the examples of world-model data whose responses have all required tags",
    target="spa_original.command_filter:filter_data",
    example="spa data filter --in-train wm_train.parquet --in-val wm_val.parquet --out-dir filtered",
)
