"""`python -m spa`, and the command `spa`."""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

GRACE_S = 20.0
"""A process that has done its work may take so long to end: for threads, processes and exit
handlers of other people's code, all of which Python would otherwise wait for without end."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""


def main() -> int:
    """The command line, imported when signals are set: until then, a request for stacks would end
    the process."""
    from spa.cli import main as command_line

    return command_line()


def run() -> NoReturn:
    """Do what the command line says and end the process, whatever environments and libraries have
    left running."""
    status = 1
    # Ignored until `stacks_on_request` sets a handler, and again while the interpreter ends: by
    # default SIGUSR1 ends the process.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _open_streams()
    from spa.run.signals import stacks_on_request

    stacks_on_request()
    # A shell starts background jobs with SIGINT ignored, which must stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        status = main()
    except BrokenPipeError:  # the reader of the output has stopped (`| head`)
        status = 0
    except KeyboardInterrupt:  # Ctrl-C once more, while the command was handling the first
        status = INTERRUPTED
    finally:
        # Ignored from here on: while the interpreter ends, one more Ctrl-C would otherwise change
        # the exit status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Ends the process after GRACE_S if a thread or a library still keeps it alive.
        threading.Thread(target=_end, args=(status,), daemon=True, name="spa-end").start()
        _flush_streams()
    sys.exit(status)


def _open_streams() -> None:
    """Replace standard streams that the process was started without: files would otherwise take
    their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C before a command has begun, or once more after it was stopped: there is nothing left
    to save."""
    os._exit(INTERRUPTED)


def _flush_streams() -> None:
    """Flush stdout and stderr. If the reader has closed the pipe (`| head`), discard the rest;
    otherwise Python would flush again at exit and report an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The stream then discards what Python flushes at its end, without an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _end(status: int) -> None:
    time.sleep(GRACE_S)
    left = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    what = (
        f"threads that are still running ({', '.join(left)})"
        if left
        else "a library that the command loaded"
    )
    sys.stderr.write(
        f"spa: the command has finished, but {what} kept the process alive for {GRACE_S:g} s. spa "
        "ends the process.\n"
    )
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    run()
