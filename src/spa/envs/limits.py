"""Environments are other people's code: time limits, and checks of what they return."""

import math
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

AGAIN_S = 1.0
"""Code that swallows the first alarm gets another one after this."""


class EnvFault(Exception):
    """An environment hung, died or returned nonsense; the text says which call and how. It costs its episode."""


class _Expired(BaseException):
    """The alarm. No Exception, so that an environment's own `except Exception` does not swallow it."""


@contextmanager
def time_limit(seconds: float | None, what: str) -> Iterator[None]:
    """Raise EnvFault in `what` after `seconds`, with the place where it hung. None, and other threads than the main
    one, have no limit. Python code, sleeping and waiting are interrupted; a loop inside a C library is not, and needs
    `es_manager.env_workers`."""
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    place = ""
    running = True

    def expired(number: int, frame: FrameType | None) -> None:
        nonlocal place
        if running:
            place = "".join(traceback.format_stack(frame, limit=3))
            raise _Expired

    before = signal.signal(signal.SIGALRM, expired)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_S)
        try:
            yield
        finally:
            running = False
    except _Expired:
        raise EnvFault(
            f"{what} took more than {seconds:g} s (es_manager.env_timeout_s); it was here:\n{place}"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def checked_text(value: Any, what: str) -> str:
    """`value` if it is text; raises EnvFault otherwise."""
    if not isinstance(value, str):
        raise EnvFault(f"{what} returned {_short(value)} instead of text")
    return value


def checked_step(result: Any) -> tuple[float, bool, dict[str, Any]]:
    """(reward, whether the episode is over, info) of what `step` returned; raises EnvFault for nonsense."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvFault(f"step returned {_short(result)} instead of (text, reward, terminated, truncated, info)")
    _, reward, terminated, truncated, info = result
    try:
        reward = float(reward)
    except (TypeError, ValueError):
        raise EnvFault(f"step returned the reward {_short(reward)} instead of a number") from None
    if not math.isfinite(reward):
        raise EnvFault(f"step returned the reward {reward}")
    if not isinstance(info, dict):
        raise EnvFault(f"step returned the info {_short(info)} instead of a dict")
    return reward, bool(terminated) or bool(truncated), info


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
