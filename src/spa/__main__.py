"""Entry point of the command `spa` and of `python -m spa`."""

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

GRACE_S = 20.0
"""Seconds that a finished command may take to exit. Python would otherwise wait forever for
threads, processes and exit handlers that environments and libraries have left running."""
INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""


def main() -> int:
    """Run the command line and return its exit status.

    The slow import of `spa.cli` happens here, after `run` has handled SIGUSR1. During an earlier
    import, this signal, which requests a stack dump, would end the process.
    """
    from spa.cli import main as command_line

    return command_line()


def run() -> NoReturn:
    """Run the command and end the process, even if environments or libraries have left threads or
    processes running."""
    status = 1
    # SIGUSR1 would end the process by default, so it is ignored until `dump_stacks_on_signal` sets a
    # handler, and again while the interpreter shuts down.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    _open_streams()
    from spa.run.signals import dump_stacks_on_signal

    dump_stacks_on_signal()
    # A shell starts background jobs with SIGINT ignored, which must stay so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        status = main()
    except BrokenPipeError:  # the reader of the output has stopped (`| head`)
        status = 0
    except KeyboardInterrupt:  # a second Ctrl-C, while the command was handling the first
        status = INTERRUPTED
    finally:
        # Ignore Ctrl-C from here on: during interpreter shutdown, it would change the exit status.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # This thread ends the process after GRACE_S if another thread or a library keeps it alive.
        threading.Thread(target=_end, args=(status,), daemon=True, name="spa-end").start()
        _flush_streams()
    sys.exit(status)


def _open_streams() -> None:
    """Open the null device for each standard stream that the process was started without; otherwise
    the next opened files would get their file descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - it stays open


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """Exit at once on Ctrl-C. This handler is active before a command begins and after it has
    ended, when there is nothing to save."""
    os._exit(INTERRUPTED)


def _flush_streams() -> None:
    """Flush stdout and stderr. If the reader has closed the pipe (`| head`), discard the rest;
    otherwise Python would flush again at exit and report an error."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # Redirect the stream to the null device, so that Python's flush at exit raises no
            # error.
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
