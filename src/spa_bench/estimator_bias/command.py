"""`spa bench estimators`: exact bias and variance of the advantage estimators."""

import argparse

from spa.commands.arguments import say
from spa.errors import ConfigError

# All groups are enumerated, and their number grows fast with the group size. In the largest world,
# there are 231 groups of 2, 10,626 groups of 4 and 53,130 groups of 5.
MOST_IN_A_GROUP = 5


def estimators_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa bench estimators` to `parser`."""
    parser.add_argument(
        "--group-size", type=int, default=4, metavar="N", help="episodes per group (default: 4)"
    )
    parser.add_argument(
        "--critic-error",
        type=float,
        default=0.0,
        metavar="X",
        help="number that is added to every state value of the critic (default: 0)",
    )


def estimators(options: argparse.Namespace) -> int:
    """Print the tables of the estimators' bias and noise. Enumerating all episodes takes a few
    seconds and needs no model. Raises ConfigError if the group size is out of range."""
    if not 2 <= options.group_size <= MOST_IN_A_GROUP:
        raise ConfigError(
            f"--group-size is {options.group_size}. Give a number from 2 to {MOST_IN_A_GROUP}."
        )
    from spa_bench.estimator_bias.page import tables

    return say(tables(group_size=options.group_size, critic_error=options.critic_error))
