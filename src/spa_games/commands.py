"""Record of the command `spa env shop`, which pyproject.toml registers. It has no heavy imports."""

from spa.commands.table import Command

shop = Command(
    summary="open the WebShop environment in a browser",
    target="spa_games.command_shop:shop",
    example="spa env shop",
)
