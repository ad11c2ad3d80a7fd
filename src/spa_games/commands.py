"""Record of `spa env shop`, which pyproject.toml registers. Imports nothing heavy."""

from spa.commands.table import Command

shop = Command(
    summary="open the WebShop environment in a browser",
    target="spa_games.command_shop:shop",
    example="spa env shop",
)
