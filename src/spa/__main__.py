"""`python -m spa`, and the command `spa`."""

import os
import sys
import threading
import time
from typing import NoReturn

from spa.cli import main

GRACE_S = 20.0
"""A process that has done its work may take so long to end: for threads, processes and exit handlers of other people's
code, all of which Python would otherwise wait for without end."""


def run() -> NoReturn:
    """Do what the command line says and end the process, whatever environments and libraries have left running."""
    status = 1
    try:
        status = main()
    finally:
        threading.Thread(target=_end, args=(status,), daemon=True, name="spa-end").start()
    sys.exit(status)


def _end(status: int) -> None:
    time.sleep(GRACE_S)
    left = [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]
    what = f"threads that something has left running ({', '.join(left)})" if left else "something that was loaded"
    sys.stderr.write(f"spa: the command has ended, but {what} kept its process for {GRACE_S:g} s; it ends now\n")
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
