"""`spa env shop`: browse the WebShop environment."""

import argparse

from spa.errors import ConfigError


def shop_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env shop` to `parser`."""
    parser.add_argument(
        "--data",
        metavar="FOLDER",
        help="folder with the WebShop product files (default: generated products)",
    )
    parser.add_argument(
        "--dataset",
        choices=("small", "full"),
        default="small",
        help="products to load from the files: small (1,000 products) or full (all products)",
    )
    parser.add_argument(
        "--human-goals",
        action="store_true",
        help="use shopping requests that people wrote (needs --data)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8266,
        metavar="PORT",
        help="port on 127.0.0.1 (default: 8266); 0 chooses a free port",
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")


def shop(options: argparse.Namespace) -> int:
    """Serve the shop's pages on 127.0.0.1 until Ctrl-C. Returns the exit status.

    Raises DataError for unusable files, and ConfigError for a port that cannot be used.
    """
    from spa_games.shop.server import make_server
    from spa_games.shop.shop import open_shop
    from spa_report.serving import run_server

    opened = open_shop(data=options.data, dataset=options.dataset, human_goals=options.human_goals)
    try:
        server = make_server(opened, options.port)
    # A port above 65535 raises OverflowError.
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"port {options.port} cannot be used: {error}. Choose another port with --port, or a free "
            "port with --port 0."
        ) from error
    return run_server(
        server,
        f"{len(opened.products)} products, {len(opened.goals)} requests ",
        browser=not options.no_browser,
    )
