"""The command `spa coins odds`. `spa --help` imports this module, so its imports are light."""

import argparse

from spa.commands.arguments import positive_number, say
from spa.commands.table import Command

odds_command = Command(
    summary="compute how likely a row of right guesses is by chance",
    target="spa_coins.commands:odds",
    example="spa coins odds --flips 3",
    group="Games of chance",
)


def odds_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `spa coins odds`."""
    parser.add_argument(
        "--flips",
        type=positive_number,
        default=6,
        metavar="N",
        help="length of the row (default: 6)",
    )


def odds(options: argparse.Namespace) -> int:
    """Print the probability."""
    return say([f"{0.5**options.flips:.4f}"])
