"""`spa serve`: an environment behind OpenEnv's server, on this machine."""

import argparse
import sys

from spa.errors import ConfigError
from spa.install import install_hint
from spa.run.console import write_out


def main(args: list[str]) -> int:
    """Serve until interrupted; returns the exit status. Raises ConfigError."""
    parser = argparse.ArgumentParser(
        prog="spa serve", description="Let OpenEnv clients on this machine play an environment. Ends with Ctrl-C."
    )
    parser.add_argument("tag", metavar="TAG", help="environment tag of the configuration")
    parser.add_argument("--config", default="base", help="a configuration's name or file (default: base)")
    parser.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (default: 8000)")
    options = parser.parse_args(args)
    try:
        import uvicorn

        from spa.export.openenv import application
    except ImportError as error:
        raise ConfigError(f"spa serve needs OpenEnv: {install_hint('openenv')} ({error})") from error
    app = application(options.tag, options.config)
    write_out(f"{options.tag} for OpenEnv clients: http://127.0.0.1:{options.port}\n")
    sys.stdout.flush()
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")
    return 0
