"""`spa env serve`: serve an environment to OpenEnv clients on this machine."""

import argparse
import sys

from spa.errors import ConfigError
from spa.install import install_hint
from spa.run.console import write_out


def serve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `spa env serve`."""
    parser.add_argument("tag", metavar="TAG", help="environment tag of the configuration")
    parser.add_argument(
        "--config",
        default="base",
        metavar="CONFIG",
        help="configuration that defines the environment tag (default: base)",
    )
    parser.add_argument(
        "--port", type=int, default=8000, metavar="PORT", help="port on 127.0.0.1 (default: 8000)"
    )


def serve(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C, and return the exit status. Raises ConfigError if OpenEnv is not
    installed or the environment cannot be served."""
    try:
        import uvicorn

        from spa_integrations.export.openenv import application
    # Without the extra, OpenEnv or uvicorn is missing.
    except ImportError as error:
        raise ConfigError(
            f"spa env serve needs OpenEnv: {install_hint('openenv')} ({error})"
        ) from error
    app = application(options.tag, options.config)
    write_out(
        f"OpenEnv clients reach the environment {options.tag} at http://127.0.0.1:{options.port}\n"
    )
    sys.stdout.flush()
    # The server listens only on 127.0.0.1, because it has no password: anyone who can connect may
    # play.
    uvicorn.run(app, host="127.0.0.1", port=options.port, log_level="warning")
    return 0
