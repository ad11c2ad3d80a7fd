"""A time limit for other people's code in this process, which that code does not disarm by alarms of its own.

The main thread notes which calls it is in; a thread sees when one takes too long and sends the main thread a signal,
whose handler raises in the call. It is not SIGALRM: libraries bound their own calls with that, and their
`signal.alarm(0)` afterwards would take back our alarm with theirs. Only time in which the process could work counts, so
a machine that slept costs no episode.
"""

import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from spa.errors import EnvFault

SIGNAL = signal.SIGVTALRM
"""Of no library that is known to us, and of every system that has signals for threads."""

AGAIN_S = 1.0
"""At most so long between two looks. Code that swallows the first signal gets another one after this."""


class Expired(BaseException):
    """A call took too long. No Exception, so that an environment's own `except Exception` does not swallow it."""


@dataclass(slots=True)
class _Call:
    what: str
    seconds: float
    began: float
    left: float


@dataclass(slots=True)
class _Watch:
    """The calls that the main thread is in, innermost last, and who looks after them."""

    calls: list[_Call] = field(default_factory=list)
    thread: threading.Thread | None = None
    sooner: threading.Event = field(default_factory=threading.Event)


_WATCH = _Watch()


def _forget() -> None:
    """A process that was forked has no other threads, and is in no call of its own."""
    _WATCH.calls, _WATCH.thread, _WATCH.sooner = [], None, threading.Event()


os.register_at_fork(after_in_child=_forget)


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Raise EnvFault in `what` after `seconds`, with the place where it hung. None, and other threads than the main
    one, have no limit. Python code, sleeping and waiting are interrupted; a loop inside a C library, and code that
    blocks this signal or takes it for itself, are not, and need `es_manager.env_workers`."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _watching()
    depth = len(watch.calls)
    watch.calls.append(_Call(what, seconds, time.monotonic(), seconds))
    if seconds < AGAIN_S:
        watch.sooner.set()
    try:
        try:
            yield
        finally:
            del watch.calls[depth:]
    except Expired as expired:
        del watch.calls[depth:]
        raise EnvFault(str(expired)) from None


def _watching() -> _Watch:
    """The thread looks and the signal has its handler, whatever other code did to that."""
    if signal.getsignal(SIGNAL) is not _tell:
        signal.signal(SIGNAL, _tell)
    if _WATCH.thread is None:
        _WATCH.thread = threading.Thread(target=_look, args=(_WATCH,), daemon=True, name="spa-time-limit")
        _WATCH.thread.start()
    return _WATCH


def _tell(number: int, frame: FrameType | None) -> None:
    """Raise in the main thread, if it still is in a call that took too long."""
    late = next((call for call in _WATCH.calls if call.left <= 0), None)
    if late is not None:
        place = "".join(traceback.format_stack(frame, limit=3))
        raise Expired(
            f"{late.what} took more than {late.seconds:g} s (es_manager.env_timeout_s); it was here:\n{place}"
        )


def _look(watch: _Watch) -> None:
    """Count the time of calls. Of a gap between two looks, at most two looks' length: the process was suspended."""
    before = time.monotonic()
    while True:
        watch.sooner.wait(min([AGAIN_S, *(call.left for call in list(watch.calls) if call.left > 0)]))
        watch.sooner.clear()
        now, calls = time.monotonic(), list(watch.calls)
        spent, before = min(now - before, 2 * AGAIN_S), now
        for call in calls:
            call.left -= min(spent, now - call.began)
        if any(call.left <= 0 for call in calls) and signal.getsignal(SIGNAL) is _tell:
            signal.pthread_kill(threading.main_thread().ident or 0, SIGNAL)
