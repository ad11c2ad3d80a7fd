"""Run slow or unreliable environments in separate processes: in parallel, with time-outs that stop
any code.

If a call takes too long, its process is killed and replaced, and its episode fails. Other episodes
of that process are restored by replaying their actions, which gives the same results because
environments are seeded.
"""

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import resource
import signal
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from spa import errors
from spa.envs.base import TextEnv
from spa.envs.limits import EnvCrash, EnvFault, boundary, plain
from spa.envs.registry import make_env
from spa.errors import ConfigError, SpaError
from spa.run.signals import ignore_interrupts

START_S = 120.0
"""Extra seconds for creating an environment, and for the first answer of a new process, which first
imports the environment's module."""

PLAIN = (
    "finite_puzzles",
    "default_state_text",
    "difficulty_unit",
    "players",
    "state_key_format",
)
"""Attributes of an environment that are constants. They are fetched once, when the environment is
created."""

CHANGES = ("reset", "step", "look_as")
"""Methods that change an environment. Their calls are replayed in a new process."""


SENT = (np.ndarray, np.generic, bytes)
"""Types that a worker process returns unchanged, in addition to strings, numbers and
collections."""


class EnvWorkers:
    """Pool of `count` worker processes. Environments are assigned to them round-robin. The
    processes end with `close`, or with this process.

    `timeout_s` is the time limit of a call in seconds; None sets no limit.
    """

    def __init__(self, count: int, *, timeout_s: float | None) -> None:
        self._workers = [_Worker(timeout_s) for _ in range(count)]
        self._next = 0
        self._lock = threading.Lock()
        # `finalize` gets the list: a reference to `self` would keep this object alive.
        self.close = weakref.finalize(self, _close, self._workers)

    def __len__(self) -> int:
        return len(self._workers)

    def make(self, env_type: str, env_config: Mapping[str, Any] | None) -> TextEnv:
        """Create an environment in the next process. Raises the errors of `make_env`, or
        EnvFault."""
        with self._lock:
            worker = self._workers[self._next % len(self._workers)]
            self._next += 1
            number = self._next
        env: Any = RemoteEnv(worker, number, (env_type, dict(env_config or {})))
        return env


class RemoteEnv:
    """An environment in another process: every call is sent there."""

    def __init__(
        self,
        worker: "_Worker",
        number: int,
        recipe: tuple[str, dict[str, Any]],
        plain: dict[str, Any] | None = None,
        past: Sequence[tuple[str, tuple, dict, Any]] = (),
    ) -> None:
        self._worker = worker
        self._number = number
        self._recipe = recipe
        # The last reset and all later calls of CHANGES with their results, for replaying the game
        # in a new process. The past of a clone is the original's past followed by `clone`. For a
        # clone, `plain` is given, because its game already exists in the process.
        self._past = list(past)
        with worker.lock:
            self._plain = worker.request("make", number, recipe) if plain is None else plain
            self._life = worker.life
        # Once this object is collected, the process drops the game with the next request.
        weakref.finalize(self, worker.forget, number)

    def __getattr__(self, name: str) -> Any:
        # Private names are not forwarded: `copy` and `pickle` look for some of them on this object.
        if name.startswith("_"):
            raise AttributeError(name)
        if name in PLAIN:
            return self._plain[name]
        return lambda *args, **kwargs: self._call(name, args, kwargs)

    def _request(self, kind: str, what: Any) -> Any:
        """Send a request to the game's process and return the answer. Restores the game there first
        if necessary."""
        with self._worker.lock:
            # `life` changes when the process is replaced; the new process has none of the games.
            if self._worker.life != self._life:
                self._restore()
            return self._worker.request(kind, self._number, what)

    def _call(self, name: str, args: tuple, kwargs: dict[str, Any]) -> Any:
        with self._worker.lock:
            value = self._request("call", (name, args, kwargs))
            if name == "reset":
                self._past.clear()
            if name in CHANGES:
                self._past.append((name, args, kwargs, value))
        return value

    def random_action(self, rng: Any) -> str:
        """Sample in the worker process, and advance `rng` as if it had been used here."""
        return self._sample("random_action", rng)

    def greedy_action(self, rng: Any) -> str | None:
        """Choose in the worker process, and advance `rng` as if it had been used here."""
        return self._sample("greedy_action", rng)

    def random_plan(self, rng: Any, count: int) -> tuple[str, ...]:
        """Sample in the worker process, where the game can be copied. Advances `rng` as
        `random_action` does."""
        return self._sample("random_plan", rng, count)

    def _sample(self, name: str, rng: Any, *args: int) -> Any:
        sampled, rng.bit_generator.state = self._request("draw", (name, rng, args))
        return sampled

    def clone(self, noise_seed: int | None = None) -> TextEnv:
        """Copy the game within its process. Raises NotImplementedError if the game cannot be
        copied."""
        with self._worker.lock:
            number = next(self._worker.copies)
            if not self._request("clone", (number, noise_seed)):
                raise NotImplementedError
            past = [*self._past, ("clone", (noise_seed,), {}, True)]
            twin: Any = RemoteEnv(self._worker, number, self._recipe, self._plain, past)
        return twin

    def _restore(self) -> None:
        """Recreate the game in a new process by replaying its past. Raises EnvFault if a call
        returns another result than before."""
        copied = sum(name == "clone" for name, *_ in self._past)
        # If this game is a copy, the games that it was copied from are recreated, too, under
        # temporary numbers.
        numbers = iter([*(next(self._worker.copies) for _ in range(copied)), self._number])
        number = next(numbers)
        self._worker.request("make", number, self._recipe)
        for name, args, kwargs, value in self._past:
            if name == "clone":
                twin = next(numbers)
                again = self._worker.request("clone", number, (twin, *args))
                self._worker.forget(number)
                number = twin
            else:
                again = self._worker.request("call", number, (name, args, kwargs))
            # Results are compared by repr, because `==` fails for NaN and compares arrays item by
            # item.
            if repr(again) != repr(value):
                raise EnvFault(
                    f"spa replaced the environment's process, but {name} returned another "
                    "result when the episode was replayed"
                )
        self._life = self._worker.life


class _Worker:
    """One worker process and the pipe to it. Callers must acquire `lock` before they use the
    worker."""

    def __init__(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.lock = threading.RLock()
        self.life = 0  # number of processes that have been stopped
        self.process: Any = None
        self.pipe: Connection | None = None
        self.forgotten: list[int] = []
        # Copies are numbered down from -1, environments from `make` up from 1.
        self.copies = itertools.count(-1, -1)

    def request(self, kind: str, number: int, what: Any) -> Any:
        """Send a request to the process and return its answer.

        Raises EnvCrash if the process ends or does not answer in time. Raises EnvFault if the
        environment raises; errors that the user can fix (SpaError) keep their class.
        """
        first = self.process is None
        pipe = self._start() if self.pipe is None else self.pipe
        label = {"make": "making it", "clone": "clone"}.get(kind) or what[0]
        # A new process first imports the environment's module, and creating an environment may load
        # data.
        limit = (
            None
            if self.timeout_s is None
            else self.timeout_s + (START_S if first or kind == "make" else 0.0)
        )
        answered = False
        try:
            pipe.send((kind, number, what, self.forgotten))
            self.forgotten = []
            if not pipe.poll(limit):
                raise EnvCrash(
                    f"{label} took more than {self.timeout_s:g} s (limit: "
                    "es_manager.env_timeout_s), so spa replaced the environment's process",
                    label,
                )
            outcome, value = pipe.recv()
            answered = True
        except (EOFError, OSError) as error:
            # The exit status is known only after a join.
            self.process.join(5)
            raise EnvCrash(
                f"the environment's process ended in {label} (exit status {self.process.exitcode})",
                label,
            ) from error
        finally:
            # Also stop the process after an interrupt here: its late answer would be taken for the
            # answer to the next request.
            if not answered:
                self.stop()
        # Errors for the user arrive as class name and text. An unknown class is replaced by
        # ConfigError.
        if outcome == "user":
            raise getattr(errors, value[0], ConfigError)(value[1])
        if outcome == "error":
            raise EnvFault(f"{label}: {value}")
        return value

    def forget(self, number: int) -> None:
        """Drop an environment. The process is informed with the next request."""
        self.forgotten.append(number)

    def _start(self) -> Connection:
        # A forked process would inherit the trainer's locks and GPU context, but not its threads.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=_serve, args=(theirs,), daemon=True, name="spa-environments"
        )
        self.process.start()
        # Close this process's copy of the child's end; otherwise reading would not fail when the
        # child ends.
        theirs.close()
        return self.pipe

    def stop(self) -> None:
        """Kill the process; the next request starts another. A process that hangs first writes its
        stack to stderr."""
        if self.process is not None and self.process.is_alive():
            with contextlib.suppress(OSError):
                # `_serve` has set a handler that writes the stack. The handler gets 0.2 s.
                os.kill(self.process.pid, signal.SIGUSR1)
            self.process.join(0.2)
            self.process.kill()
            self.process.join(10)
        if self.pipe is not None:
            self.pipe.close()
        self.process = None
        self.pipe = None
        self.life += 1


def _close(workers: list[_Worker]) -> None:
    for worker in workers:
        if worker.pipe is not None:
            worker.pipe.close()  # the process reads the end of the pipe and exits
        if worker.process is not None:
            worker.process.join(0.5)
        worker.stop()


def _serve(pipe: Connection) -> None:
    """Run the main loop of a worker process."""
    # The process gets its own session, so that an environment that signals its process group does
    # not reach the trainer.
    os.setsid()
    ignore_interrupts()
    _limit_memory()
    # If the parent ignores SIGTERM, its children inherit that, so the default is restored.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.__stderr__ is not None:
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__)
    parent = multiprocessing.parent_process()
    # This thread ends the process when the trainer ends, even while an environment's Python
    # code hangs. C code that holds the interpreter's lock can delay it.
    if parent is not None:
        threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    envs: dict[int, TextEnv] = {}
    while True:
        try:
            kind, number, what, forgotten = pipe.recv()
        except (EOFError, OSError):
            return
        # Drop the games whose RemoteEnv was collected since the last request.
        for old in forgotten:
            envs.pop(old, None)
        try:
            with boundary("the environment"):
                answer = ("value", plain(_answer(envs, kind, number, what), SENT))
        except SpaError as error:
            answer = ("user", (type(error).__name__, str(error)))
        except EnvFault as error:
            answer = ("error", str(error))
        pipe.send(answer)


def _limit_memory() -> None:
    """Limit the process to half of the machine's memory, so that an environment that grows without
    bound gets a MemoryError before the system kills the trainer."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def _answer(envs: dict[int, TextEnv], kind: str, number: int, what: Any) -> Any:
    if kind == "make":
        envs[number] = make_env(*what)
        return {name: getattr(envs[number], name) for name in PLAIN}
    if kind == "draw":
        method, rng, rest = what
        return getattr(envs[number], method)(rng, *rest), rng.bit_generator.state
    if kind == "clone":
        twin, noise_seed = what
        try:
            envs[twin] = envs[number].clone(noise_seed)
        except NotImplementedError:
            return False
        return True
    name, args, kwargs = what
    return getattr(envs[number], name)(*args, **kwargs)
