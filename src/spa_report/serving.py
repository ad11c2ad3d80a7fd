"""Run a local web server until the user interrupts the command."""

import html
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import HTTPServer
from pathlib import Path

from spa.run.console import write_out


def run_server(server: HTTPServer, note: str, *, browser: bool, query: str = "") -> int:
    """Print the server's URL with a note, open it in a browser if requested, and serve until
    interrupted. Returns 0."""
    host, port = server.server_address[:2]
    # IPv6 addresses need brackets in a URL.
    host = f"[{host!s}]" if ":" in str(host) else host
    address = f"http://{host!s}:{port}/{query}"
    write_out(f"{address}  {note}(press Ctrl+C to stop the server)\n")
    # Print the URL before the server blocks.
    sys.stdout.flush()
    with _opened(address) if browser else nullcontext():
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
    return 0


@contextmanager
def _opened(address: str) -> Iterator[None]:
    """Open a URL in a browser through a file that only this user can read. All users can read
    command lines, and the URL may contain a token."""
    with tempfile.TemporaryDirectory(prefix="spa-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={html.escape(address)}">'
        )
        webbrowser.open(page.as_uri())
        # Keep the file while the server runs, because the browser may read it late.
        yield
