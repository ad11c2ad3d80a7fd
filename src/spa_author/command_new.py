"""`spa env new`: create files for a custom environment."""

import argparse
from pathlib import Path

from spa.run.console import write_out


def new_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env new`."""
    parser.add_argument("name", metavar="NAME", help="name of the new module, for example my_game")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder for the new files (default: the current folder)",
    )


def new(options: argparse.Namespace) -> int:
    """Write a working environment, its test and its configuration. Raises ConfigError if the name
    cannot be used."""
    from spa_author.scaffold import write_env

    module, test, config = write_env(options.name, options.folder)
    # `my_game` -> `MyGame`, as the scaffold names the class.
    cls = "".join(part.capitalize() for part in options.name.split("_"))
    write_out(
        f"wrote {module}, {test} and {config}. Run these commands in that folder:\n"
        "\n"
        f"    spa env check {options.name}:{cls}      check every rule of an environment\n"
        f"    pytest {test.name}\n"
        f"    spa env play {cls} --config {config.name}\n"
        f"    spa run {config.name}      train the bundled model, about ten minutes on one core\n"
    )
    return 0
