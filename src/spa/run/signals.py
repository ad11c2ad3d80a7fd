"""Stop requests: SIGTERM and Ctrl-C raise an exception, at a point where no work is lost.

Inside `stoppable()`, the first SIGTERM or SIGINT raises StopRequested in the main thread. Work that
can be repeated (rollouts, loading) is interrupted at once. Inside `uninterrupted()` (an update and
its records, a checkpoint), the exception is raised at the end of the outermost such block. A
further SIGINT always interrupts at once. This module imports only the standard library, so that it
loads fast.
"""

import faulthandler
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

ASKING = (signal.SIGTERM, signal.SIGINT)


class StopRequested(KeyboardInterrupt):
    """Raised when the process was asked to stop by the signal `name`. `saved` is the path of the
    checkpoint that was written before stopping, or "" if there is none."""

    def __init__(self, name: str, saved: str = "") -> None:
        super().__init__(name, saved)
        self.name = name
        self.saved = saved


@dataclass(slots=True)
class _State:
    """The stop requests that this process received, and whether it may stop now."""

    installed: bool = False
    asked: str = ""  # the name of the signal
    # True once StopRequested was raised, so that another SIGTERM does not interrupt the clean-up.
    raised: bool = False
    # Depth of the enclosing `uninterrupted()` blocks.
    held: int = 0
    stops_children: bool = False


_STATE = _State()


@contextmanager
def stoppable() -> Iterator[None]:
    """Within the block, SIGTERM and SIGINT raise StopRequested. Nested blocks, and blocks outside
    the main thread, have no effect. A signal that is already ignored stays ignored."""
    if _STATE.installed or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ASKING}
    _STATE.installed = True
    _STATE.asked = ""
    _STATE.raised = False
    _STATE.held = 0
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, _asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None means that C code set the handler, which Python cannot restore.
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        _STATE.installed = False


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Postpone stop requests until the end of the block. If one has arrived by then, StopRequested
    is raised there."""
    _STATE.held += 1
    try:
        yield
    finally:
        _STATE.held -= 1
    # Not in `finally`, where StopRequested would replace the error that ended the block.
    _raise_if_asked()


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, let stop requests take effect at once, even inside `uninterrupted()`. Use
    it for work that can be repeated."""
    held = _STATE.held
    # A depth of 0 suspends all enclosing `uninterrupted()` blocks.
    _STATE.held = 0
    try:
        _raise_if_asked()
        yield
    finally:
        _STATE.held = held


def stoppable_now() -> bool:
    """Return whether the main thread is inside `stoppable()`."""
    return _STATE.installed


def stop_asked() -> bool:
    """Return whether this process has received a stop request. With several ranks, all must agree
    before one of them stops."""
    return _STATE.installed and bool(_STATE.asked)


def raise_if_asked() -> None:
    """Raise StopRequested again if a stop was requested but third-party code has swallowed the
    exception."""
    if (
        _STATE.installed
        and _STATE.asked
        and _STATE.held == 0
        and threading.current_thread() is threading.main_thread()
    ):
        stop_now()


def stop_now() -> NoReturn:
    """Raise StopRequested, because this process or another rank was asked to stop."""
    _STATE.raised = True
    raise StopRequested(_STATE.asked or signal.SIGTERM.name)


@contextmanager
def stopping_children() -> Iterator[None]:
    """Within the block, a stop request also stops child processes of `multiprocessing`."""
    _STATE.stops_children = True
    try:
        yield
    except KeyboardInterrupt:
        _stop_children()
        raise
    finally:
        _STATE.stops_children = False


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Block SIGINT in this thread until the end of the block. Child processes that start within the
    block also block SIGINT, until they call `ignore_interrupts`. Other threads of this process may
    still receive the signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def ignore_interrupts() -> None:
    """Ignore SIGINT in a worker process. Ctrl-C reaches all processes of a terminal, but workers
    should stop only when their parent stops them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def dump_stacks_on_signal() -> None:
    """Make `kill -USR1 PID` write the stacks of all threads to stderr. Without a handler, the
    signal would end the process."""
    # Use descriptor 2, because `sys.stderr` may have been replaced.
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)


def _stop_children() -> None:
    for child in multiprocessing.active_children():
        child.terminate()


def _asked(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGINT and _STATE.asked:  # Ctrl-C was pressed again
        # The exception below may interrupt `stopping_children` before it has stopped all children.
        if _STATE.stops_children:
            _stop_children()
        # KeyboardInterrupt instead of StopRequested, for which a stage would first save a
        # checkpoint.
        raise KeyboardInterrupt
    _STATE.asked = _STATE.asked or signal.Signals(number).name
    _raise_if_asked()


def _raise_if_asked() -> None:
    if _STATE.installed and _STATE.asked and not _STATE.raised and _STATE.held == 0:
        _STATE.raised = True
        raise StopRequested(_STATE.asked)
