"""`spa env serve`: serve an environment to OpenEnv clients on this machine."""

import argparse
import socket
import sys

from spa.errors import ConfigError
from spa.install import install_hint
from spa.run.console import write_out

HOST = "127.0.0.1"


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
    # The server listens only on 127.0.0.1, because it has no password: anyone who can connect may
    # play.
    try:
        listener = socket.create_server((HOST, options.port))
    # A port above 65535 raises OverflowError.
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"cannot listen on {HOST}:{options.port}: {error}. Choose another port with --port."
        ) from error
    with listener:
        port = listener.getsockname()[1]
        write_out(f"OpenEnv clients reach the environment {options.tag} at http://{HOST}:{port}\n")
        sys.stdout.flush()
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
    return 0
