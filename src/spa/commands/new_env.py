"""`spa new-env`: start an environment of one's own."""

import argparse
from pathlib import Path

from spa.run.console import write_out


def main(args: list[str]) -> int:
    """Write a working environment, its test and its configuration. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="spa new-env", description="Write a working environment to start from.")
    parser.add_argument("name", help="module name, for example my_game")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (default: here)")
    options = parser.parse_args(args)

    from spa.envs.scaffold import write_env

    module, test, config = write_env(options.name, options.folder)
    cls = "".join(part.capitalize() for part in options.name.split("_"))
    write_out(
        f"wrote {module}, {test} and {config}. In that folder:\n"
        f"  spa check-env {options.name}:{cls}      every rule of an environment, explained\n"
        f"  pytest {test.name}\n"
        f"  spa play {cls} --config {config.name}\n"
        f"  spa import-gguf smollm2        once: the model that {config.name} trains, 100 MB\n"
        f"  spa run {config.name}\n"
    )
    return 0
