"""`spa config`: look at configurations."""

import argparse
import sys

from spa.config.load import PARTS, config_names, load_config, to_yaml


def main(args: list[str]) -> int:
    """`show NAME [overrides]` prints the resolved YAML, `list` the shipped names. Raises ConfigError."""
    options = _parser().parse_args(args)
    if options.action == "list":
        text = "".join(f"{name}\n" for name in config_names() if name not in PARTS)
    else:
        text = to_yaml(load_config(options.name, options.overrides))
    sys.stdout.write(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spa config", description="Look at configurations.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a configuration with everything resolved")
    show.add_argument("name", metavar="NAME", help="a shipped name, a YAML file, or a folder with one")
    show.add_argument("overrides", nargs="*", metavar="key=value", help="overrides, as on any command")
    actions.add_parser("list", help="print the names of the shipped configurations")
    return parser
