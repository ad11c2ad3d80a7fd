"""`spa credit-lab`: exact bias and variance of the advantage estimators."""

import argparse

from spa.commands.arguments import say
from spa.errors import ConfigError

MOST_IN_A_GROUP = 5  # the groups of the largest world: 230 of 2, 10,626 of 4, 53,130 of 5


def main(args: list[str]) -> int:
    """`spa credit-lab [--group-size N] [--critic-error X]`."""
    parser = argparse.ArgumentParser(
        prog="spa credit-lab",
        description="Exact bias and variance of every advantage estimator in worlds small enough to list all episodes. "
        "Seconds, no model; docs/credit.md explains the columns.",
    )
    parser.add_argument("--group-size", type=int, default=4, metavar="N", help="episodes per group (default: 4)")
    parser.add_argument("--critic-error", type=float, default=0.0, metavar="X", help="added to the critic's values")
    options = parser.parse_args(args)
    if not 2 <= options.group_size <= MOST_IN_A_GROUP:
        raise ConfigError(f"--group-size is {options.group_size}; it must be from 2 to {MOST_IN_A_GROUP}")
    from spa.lab.page import tables

    return say(tables(group_size=options.group_size, critic_error=options.critic_error))
