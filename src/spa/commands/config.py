"""`spa config`: list shipped configurations and methods, and show a configuration with every value
resolved."""

import argparse
import sys

from spa.commands.arguments import CONFIG_HELP, say
from spa.plugins import load_plugin
from spa.tables import Table


def list_names_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa config list` to `parser`."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("configurations", "methods"),
        default="configurations",
        help="what to list: configurations (default), or the methods of `spa compare` with the settings "
        "that each method changes",
    )


def list_names(options: argparse.Namespace) -> int:
    """Print the names of the shipped configurations, or the methods."""
    if options.what == "configurations":
        from spa.config.load import PARTS, config_names

        # PARTS are included by other configurations and are incomplete on their own.
        return say([name for name in config_names() if name not in PARTS])
    rows = []
    for name, entry in load_plugin("api", "methods")().items():
        size = entry.group_size
        groups = () if size is None else (f"es_manager.train.group_size={size}",)
        changes = " ".join((*entry.overrides, *entry.world_model, *entry.ppo, *groups)) or "-"
        rows += [(name, entry.description), ("", changes)]
    Table(("", ""), rows).print()
    # Most methods have these two variants, so name patterns are printed instead of one line each.
    return say(
        [
            "NAME_shuffled: control of the method NAME, whose SFT examples have the next states of other "
            "turns",
            "NAME_xN: the method NAME with N times as many PPO steps, for example vanilla_x11",
        ]
    )


def show_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa config show` to `parser`."""
    parser.add_argument("name", metavar="CONFIG", help=CONFIG_HELP)


def show(options: argparse.Namespace) -> int:
    """Print a configuration as YAML with all values resolved. Raises ConfigError if it is
    invalid."""
    from spa.config.load import load_config
    from spa.config.schema import to_yaml

    sys.stdout.write(to_yaml(load_config(options.name, options.overrides)))
    return 0
