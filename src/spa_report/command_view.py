"""`spa view`: show runs, curves and episodes in a browser."""

import argparse
from pathlib import Path

from spa.commands.arguments import result_file
from spa.errors import ConfigError
from spa.run.console import write_out


def view_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa view` to `parser`."""
    parser.add_argument(
        "folder",
        type=Path,
        nargs="?",
        default=Path("runs"),
        metavar="FOLDER",
        help="folder of one run or of several runs (default: runs)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8265,
        help="port of the viewer (default: 8265); 0 chooses a free port",
    )
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address on which the viewer listens (default: 127.0.0.1); connections from other machines "
        "are not encrypted",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help="write the viewer to one HTML file that needs no server, and exit",
    )
    parser.add_argument(
        "--max-episodes",
        type=int,
        default=200,
        help="largest number of episodes in the exported file (default: 200)",
    )


def view(options: argparse.Namespace) -> int:
    """Serve the viewer until Ctrl-C, or write it to a file. Returns the exit status.

    Raises ConfigError for a port that cannot be used.
    """
    from spa_report.serving import run_server
    from spa_report.viewer import Library, Viewer, export, serve

    if options.export:
        result_file(options.export)
        number = export(Viewer(options.folder), options.export, limit=options.max_episodes)
        write_out(f"{options.export}: {number} episodes\n")
        return 0
    try:
        server = serve(Library(options.folder), options.port, host=options.host)
    # A port above 65535 raises OverflowError.
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {options.host}:{options.port}: {error}. Choose another port with --port, "
            "or a free port with --port 0."
        ) from error
    # The token keeps other users of the machine from reading the runs.
    return run_server(server, "", browser=not options.no_browser, query=f"?token={server.token}")
