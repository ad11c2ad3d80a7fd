"""Protection against third-party environment code: an error boundary, a time limit, and checks of
return values.

In the trainer's process, an exception or a time-out fails the episode. Code that crashes its
process, or hangs in a C library, must run in separate processes (`es_manager.env_workers`,
`spa.envs.workers`). `LostEpisodes` records episodes that fail in this way in the stage folder. A
resumed run reads the records, so that exactly the same episodes fail again. Delete an episode's
line in the file to play it again.
"""

import json
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from spa.errors import EnvFault, SpaError
from spa.run.files import end_last_line
from spa.run.signals import raise_if_asked

MOST_CHARACTERS = 200_000
"""Maximum length of a text that an environment returns. No model reads more, and tokenizing
megabytes takes minutes."""

MAKING_S = 120.0
"""Extra seconds for creating an environment, which may load data."""


def making_s(turn_s: float | None) -> float | None:
    """Return the time limit in seconds for creating or solving a puzzle. `turn_s` is the limit of a
    turn (`es_manager.env_timeout_s`). None: no limit."""
    return None if turn_s is None else turn_s + MAKING_S


SLOW = " (raise es_manager.env_timeout_s if the environment is slow)"
"""Advice appended to time-out errors if `es_manager.env_timeout_s` sets the limit."""

MOST_REWARD = 1e6
"""Largest absolute reward. Larger ones would swamp all others in float32 sums and squares."""


class EnvCrash(EnvFault):
    """A call of an environment crashed its process, or hung so that the process was killed.

    `call` names the call, which would fail again if it were repeated.
    """

    def __init__(self, text: str, call: str = "") -> None:
        super().__init__(text)
        self.call = call


class TimedOut(BaseException):
    """A call took too long. Not an Exception, so that an environment's own `except Exception` does
    not swallow it."""


@contextmanager
def boundary(what: str, seconds: float | None = None, *, advice: str = "") -> Iterator[None]:
    """Context for calls of third-party code: errors become EnvFault. `what` names the call in the
    messages of time-outs and of `sys.exit`.

    EnvFault, SpaError (which the user can fix) and stop requests pass through. A stop request is
    raised at the end even if the code swallowed it. For `seconds` and `advice`, see `time_limit`.
    """
    try:
        with time_limit(seconds, what, advice=advice):
            yield
    # GeneratorExit passes: Python raises it to close this generator, as when the process ends.
    except (EnvFault, SpaError, KeyboardInterrupt, GeneratorExit):
        raise
    except TimedOut as error:
        # The message names the line where the code hung; the alarm's own traceback adds nothing.
        raise EnvFault(str(error)) from None
    except SystemExit as error:
        raise EnvFault(f"{what} called sys.exit({error.code!r})") from error
    # Catch BaseException, because a panic in a Rust library does not derive from Exception.
    except BaseException as error:
        raise EnvFault(f"{type(error).__name__}: {error!s:.2000}") from error
    raise_if_asked()


@contextmanager
def time_limit(seconds: float | None, what: str, *, advice: str = "") -> Iterator[None]:
    """Raise TimedOut if the code in this context runs for more than `seconds`. The message contains
    `what`, `advice` and the lines where the code hung. There is no limit if `seconds` is None, or
    outside the main thread.

    The limit is an alarm (SIGALRM). It interrupts Python code, sleeping and waiting, but not a loop
    inside a C library or code that sets its own alarms.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def expired(number: int, frame: FrameType | None) -> NoReturn:
        stack = "".join(traceback.format_stack(frame, limit=3))
        raise TimedOut(f"{what} took more than {seconds:g} s{advice} and hung at:\n{stack}")

    handler = signal.signal(signal.SIGALRM, expired)
    # An enclosing limit is paused, and later continues with its remaining seconds.
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, outer)
        signal.signal(signal.SIGALRM, handler)


def checked_text(value: Any, what: str) -> str:
    """Return `value` if it is a string of allowed length; raise EnvFault otherwise."""
    if not isinstance(value, str):
        raise EnvFault(f"{what} returned {value!r:.80}; return a string")
    if len(value) > MOST_CHARACTERS:
        raise EnvFault(
            f"{what} returned a string of {len(value):,} characters; return at most "
            f"{MOST_CHARACTERS:,} characters"
        )
    return value


def checked_step(result: Any) -> tuple[float, bool, dict[str, Any]]:
    """Validate the result of `step`. Returns (reward, whether the episode is over, info). Raises
    EnvFault if the result is invalid."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise EnvFault(
            f"step returned {result!r:.80}; return (text, reward, terminated, truncated, info)"
        )
    _, given, terminated, truncated, info = result
    reward = checked_reward(given)
    if not isinstance(info, dict):
        raise EnvFault(f"step returned {info!r:.80} as info; return a dict")
    return (
        reward,
        bool(terminated) or bool(truncated),
        {str(key): plain(item) for key, item in info.items()},
    )


def checked_reward(value: Any) -> float:
    """Return a reward of `step` as a float. Raises EnvFault unless it is a finite number of at most
    `MOST_REWARD` in absolute value."""
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError):
        raise EnvFault(f"step returned {value!r:.80} as the reward; return a number") from None
    # Written as `not ... <=`, so that NaN is refused as well.
    if not abs(reward) <= MOST_REWARD:
        raise EnvFault(
            f"step returned the reward {reward}; return a finite reward between "
            f"-{MOST_REWARD:g} and {MOST_REWARD:g}"
        )
    return reward


def plain(value: Any, kept: tuple[type, ...] = ()) -> Any:
    """Convert `value` to plain types that JSON and other processes understand. Values of the types
    in `kept` are unchanged; any other object is replaced by the name of its class."""
    if isinstance(value, kept):
        return value
    # Scalars of NumPy, torch and JAX.
    if isinstance(value, np.generic) or getattr(value, "shape", None) == ():
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    # Convert an instance of a subclass to the plain base type.
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value)
    # Convert only exact types, because a named tuple cannot be made from a list of its items.
    if type(value) in (list, tuple):
        return type(value)([plain(item, kept) for item in value])
    if type(value) is dict:
        return {str(plain(key)): plain(item, kept) for key, item in value.items()}
    return f"<{type(value).__name__}>"


MAKING = ("making it", "reset", "puzzle_text")
"""Calls that create a puzzle. If an episode failed in one of them, its puzzle cannot be previewed
either."""


class LostEpisodes:
    """Record of the episodes that crashed, each with the reason, in an append-only JSON-lines file.

    `path` is the file. None keeps the records in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._lock = path, threading.Lock()
        self._marks: dict[str, tuple[str, str]] = {}
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                self._read(line)

    def reason(self, episode_id: str) -> str | None:
        """Return the reason why an episode must not be played; None if it may be played."""
        mark = self._marks.get(episode_id)
        return mark[0] if mark else None

    def is_unmakeable(self, episode_id: str) -> bool:
        """Return whether the crash happened while the episode's puzzle was created, so that the
        puzzle cannot be previewed either."""
        return episode_id in self._marks and self._marks[episode_id][1] in MAKING

    def mark(self, episode_id: str, error: EnvCrash) -> None:
        """Record that an episode must never be played again."""
        with self._lock:
            if episode_id in self._marks:
                return
            self._marks[episode_id] = (str(error), error.call)
            if self._path is None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            row = {"episode_id": episode_id, "reason": str(error), "call": error.call}
            end_last_line(self._path)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
                # Write to disk at once: this process may end at any moment, and the next one must
                # skip the episode.
                file.flush()
                os.fsync(file.fileno())

    def _read(self, line: str) -> None:
        try:
            row = json.loads(line)
            self._marks[str(row["episode_id"])] = (
                str(row.get("reason", "declared lost")),
                str(row.get("call", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return  # the line was truncated when the process ended
