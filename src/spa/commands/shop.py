"""`spa shop`: visit the WebShop environment's shop in a browser."""

import argparse

from spa.commands.arguments import run_server


def main(args: list[str]) -> int:
    """Serve the shop on 127.0.0.1 until interrupted. Returns the exit status. Raises DataError for unusable files."""
    parser = argparse.ArgumentParser(
        prog="spa shop",
        description="Visit the shop of the WebShop environment in a browser: the same pages and rewards.",
    )
    parser.add_argument(
        "--data", metavar="FOLDER", help="folder of WebShop product files (default: the generated shop)"
    )
    parser.add_argument("--dataset", choices=("small", "full"), default="small", help="how many products of the files")
    parser.add_argument("--human-goals", action="store_true", help="requests that people wrote (needs --data)")
    parser.add_argument("--port", type=int, default=8266, help="port on 127.0.0.1; 0 takes a free one (default: 8266)")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser window")
    options = parser.parse_args(args)

    from spa.envs.shop.server import make_server
    from spa.envs.shop.shop import open_shop

    shop = open_shop(data=options.data, dataset=options.dataset, human_goals=options.human_goals)
    try:
        server = make_server(shop, options.port)
    except (OSError, OverflowError) as error:
        parser.error(f"port {options.port} cannot be used: {error}. Choose another one with --port, or 0.")
    return run_server(
        server, f"{len(shop.products)} products, {len(shop.goals)} requests ", browser=not options.no_browser
    )
