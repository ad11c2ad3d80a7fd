"""The command `spa env shop`, registered in pyproject.toml. `spa --help` loads this module, so it
must not import anything heavy."""

from spa.commands.table import Command

shop = Command(
    summary="open the WebShop environment in a browser",
    target="spa_games.command_shop:shop",
    example="spa env shop",
)
