"""The commands for authors of games, registered in pyproject.toml. Imports no slow module."""

from spa.commands.table import Command

play = Command(
    summary="play an environment in the terminal",
    target="spa_author.command_play:play",
    example="spa env play FrozenLake --hint",
)
new = Command(
    summary="create a new environment from a working example",
    target="spa_author.command_new:new",
    example="spa env new my_game",
)
check = Command(
    summary="check your environment against every rule",
    target="spa_author.command_check:check",
    example="spa env check my_game:MyGame",
)
measure = Command(
    summary="measure reference scores, and with --model whether training could help",
    target="spa_author.command_measure:measure",
    example="spa env measure FrozenLake",
)
