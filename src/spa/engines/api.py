"""Play with a model behind an API: many requests at a time, patience with servers, nothing paid for twice.

What differs between providers is in `spa.engines.openai` and `spa.engines.anthropic`; they tell apart

* `Temporary` trouble (a limit, a broken connection, a server error, an unreadable answer), which is asked again after a
  growing pause, or after the pause that the server names;
* a `Refused` request, which costs its own episode (the conversation is too long, the content filter stopped it);
* `ModelError`: nothing will work before the user changes something (key, model name, quota).

Every reply is written to a file as it arrives. The same command started again takes replies from there.
"""

import hashlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from torch import nn

from spa import heartbeat
from spa.engines.http import without_surrogates
from spa.errors import ModelError
from spa.install import install_hint
from spa.types import Completion, Message, Prompt, SamplingParams

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0


class Temporary(Exception):
    """Worth asking again; `after_s` is the pause that the server asks for, `limited` marks a rate limit."""

    def __init__(self, text: str, *, after_s: float | None = None, limited: bool = False) -> None:
        super().__init__(text)
        self.after_s, self.limited = after_s, limited


class Refused(Exception):
    """This request will never be answered; others may be."""


class BadRequest(ModelError):
    """The server does not take the request: the user's settings are wrong, unless others were answered with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiReply:
    """What a server answered. `reasoning` is what some servers return beside the text."""

    text: str
    finish_reason: Literal["stop", "length"]
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class ApiClient(Protocol):
    """One provider. Used from several threads at a time."""

    name: str  # of the model, as the provider calls it
    address: str

    def ask(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> ApiReply:
        """One request. Raises Temporary, Refused or ModelError."""
        ...

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The sampling fields of a request."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class Pacer:
    """Keeps requests apart: a rate, and a pause for everybody when the server says that it is too much."""

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stopped: threading.Event) -> None:
        """Return when the next request may be sent, or when nobody wants it any more."""
        with self._lock:
            now = time.monotonic()
            slot = max(now, self._next)
            self._next = slot + self._gap
        stopped.wait(max(0.0, slot - now))

    def hold(self, seconds: float) -> None:
        """Nobody sends for so long."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


class ReplyStore:
    """Replies by request, in a JSON-lines file that only grows. A line cut off by a crash is left out."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._lock = path, threading.Lock()
        self._replies: dict[str, ApiReply] = {}
        if path is None or not path.is_file():
            return
        text = path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                record = json.loads(line)
                key = record.pop("key")
                self._replies[key] = _checked(ApiReply(**record))
            except (ValueError, KeyError, TypeError, AttributeError):
                log.warning("%s: left out a line that cannot be read", path)
        if text and not text.endswith("\n"):
            self._append("")  # the next reply begins on a line of its own
        log.info("%d replies come from %s; delete it to ask again", len(self._replies), path)

    def __len__(self) -> int:
        return len(self._replies)

    def get(self, key: str) -> ApiReply | None:
        """The reply to this request, if there is one."""
        return self._replies.get(key)

    def put(self, key: str, reply: ApiReply) -> None:
        """Keep a reply."""
        with self._lock:
            self._replies[key] = reply
            self._append(json.dumps({"key": key, **asdict(reply)}))

    def _append(self, line: str) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


class ApiEngine:
    """An engine over an `ApiClient`. Replies are text: they have no token ids and cannot be trained on.

    max_concurrency: requests at a time; max_retries: how often a request is repeated; first_pause_s: before the first
    repetition, doubled at each; per_minute: requests per minute, all threads together; store: file of the replies.
    """

    template = None

    def __init__(
        self,
        client: ApiClient,
        *,
        max_concurrency: int = 16,
        max_retries: int = 6,
        first_pause_s: float = 1.0,
        per_minute: float | None = None,
        store: Path | None = None,
    ) -> None:
        self.client, self.max_concurrency = client, max_concurrency
        self.store, self.pacer = ReplyStore(store), Pacer(per_minute)
        self.usage = {"requests": 0, "retries": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self._usage_lock = threading.Lock()
        self._retrying = _retrying(max_retries, first_pause_s, self._before_pause)

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """One completion per prompt; those that got no answer have `finish_reason` "error".

        Raises ModelError if nothing can work: the server answers none of several prompts, or never answered any.
        """
        if any(prompt.images for prompt in prompts):
            raise ModelError(f"{self.client.name} is sent text, not pictures: set render_mode: text in custom_envs")
        settings = self.client.settings(sampling)
        stopped = threading.Event()  # an interrupted run sends nothing more
        pool = ThreadPoolExecutor(max_workers=self.max_concurrency, thread_name_prefix="spa-api")
        try:
            futures = [pool.submit(self._complete, prompt, settings, stopped) for prompt in prompts]
            wait(futures, return_when=FIRST_EXCEPTION)
            fatal = next((f.exception() for f in futures if f.done() and f.exception() is not None), None)
            if fatal is not None:
                stopped.set()
                pool.shutdown(wait=True, cancel_futures=True)  # requests on their way are answered and kept
                raise ModelError(f"{fatal}\n{self._kept()}") from fatal
            replies = [future.result() for future in futures]
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
        completions = [completion for completion, _ in replies]
        failed = [c.text for c in completions if c.finish_reason == "error"]
        silent = len(failed) > 1 and all(temporary for _, temporary in replies)
        if failed and len(failed) == len(completions) and (silent or not len(self.store)):
            raise ModelError(
                f"{self.client.address} answered none of {len(failed)} requests: {failed[0]}\n{self._kept()}"
            )
        for text in dict.fromkeys(failed):
            log.warning("no reply for %d of %d prompts: %s", failed.count(text), len(prompts), text)
        return completions

    def load_weights(self, model: nn.Module | Path, *, version: int) -> None:
        """Raises ModelError: there are no weights to load."""
        raise ModelError("a model behind an API cannot be trained; set actor_rollout_ref.rollout.name=local")

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Nothing is cached by episode."""

    def close(self) -> None:
        """Close connections and say what was used."""
        self.client.close()
        log.info("%s: %s", self.client.name, ", ".join(f"{value} {name}" for name, value in self.usage.items()))

    def _kept(self) -> str:
        if self.store.path is None or not len(self.store):
            return "No reply had arrived yet."
        return f"{len(self.store)} replies are kept in {self.store.path}; the same command goes on from them."

    def _complete(
        self, prompt: Prompt, settings: Mapping[str, Any], stopped: threading.Event
    ) -> tuple[Completion, bool]:
        """The completion, and whether trouble that others have too is why there is none."""
        key = request_key(self.client, prompt, settings)
        reply = self.store.get(key)
        if reply is None:
            try:
                retrying = self._retrying.copy(sleep=stopped.wait)
                reply = retrying(self._ask, _sendable(prompt.messages), settings, stopped)
            except (Temporary, Refused) as error:
                return _no_reply(str(error)), isinstance(error, Temporary)
            except BadRequest as error:
                if not len(self.store):
                    raise
                return _no_reply(str(error)), False
            except ModelError:
                raise
            except Exception as error:  # noqa: BLE001 - an answer that nobody has thought of costs its own episode
                return _no_reply(f"{self.client.address}: {type(error).__name__} while the answer was read"), False
            self.store.put(key, reply)
        text = without_opener(reply, prompt.opener)
        return Completion(text=text, token_ids=None, logprobs=None, finish_reason=reply.finish_reason), False

    def _ask(self, messages: Sequence[Message], settings: Mapping[str, Any], stopped: threading.Event) -> ApiReply:
        self.pacer.wait(stopped)
        if stopped.is_set():
            raise Refused("the run was stopped before this was asked")
        self._count(requests=1)
        reply = self.client.ask(messages, settings)
        heartbeat.beat()
        self._count(prompt_tokens=reply.prompt_tokens, completion_tokens=reply.completion_tokens)
        return reply

    def _before_pause(self, error: Temporary, pause_s: float) -> None:
        self._count(retries=1)
        if error.limited:
            self.pacer.hold(pause_s)
        log.info("retrying in %.1f s: %s", pause_s, error)

    def _count(self, **amounts: int) -> None:
        with self._usage_lock:
            for name, amount in amounts.items():
                self.usage[name] += amount


def _checked(reply: ApiReply) -> ApiReply:
    """A stored reply as it may be used. Raises TypeError for one with other kinds of values."""
    if not isinstance(reply.text, str) or reply.finish_reason not in ("stop", "length"):
        raise TypeError
    return replace(reply, text=without_surrogates(reply.text))


def _sendable(messages: Sequence[Message]) -> list[Message]:
    return [{**message, "content": without_surrogates(message["content"])} for message in messages]


def _no_reply(reason: str) -> Completion:
    return Completion(text=reason, token_ids=None, logprobs=None, finish_reason="error")


def request_key(client: ApiClient, prompt: Prompt, settings: Mapping[str, Any]) -> str:
    """Identifies a request: server, model, settings, messages, and the row's own seed."""
    parts = [client.address, client.name, dict(settings), list(prompt.messages), prompt.seed]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def without_opener(reply: ApiReply, opener: str) -> str:
    """The reply as it follows `opener`, which is never sent to an API and which the rollout writes before every reply.

    A reply that has the opener loses it, with anything before it; one that has not stays as it is. Reasoning that the
    server returns beside the text becomes the think block of a text that has none; where it quotes the blocks that the
    reply consists of, their markers are written with square brackets.
    """
    _, found, after = reply.text.partition(opener)
    if found:
        return after
    if reply.reasoning and opener == "<think>":
        reasoning = re.sub(r"<(/?(?:think|answer))>", r"[\1]", reply.reasoning)
        return f"{reasoning}</think>{reply.text}"
    return reply.text


def _retrying(max_retries: int, first_pause_s: float, before_pause: Callable[[Temporary, float], None]) -> Any:
    """Calls a function again while it raises Temporary: after the server's pause, or after a doubling, jittered one."""
    try:
        import tenacity
    except ImportError as error:
        raise ModelError(f"models behind APIs need the api extra: {install_hint('api')}") from error
    doubling = tenacity.wait_exponential(multiplier=first_pause_s, max=LONGEST_PAUSE_S)
    jittered = doubling + tenacity.wait_random(0, min(1.0, first_pause_s))

    def pause(state: Any) -> float:
        asked = getattr(state.outcome.exception(), "after_s", None)
        return min(jittered(state) if asked is None else asked, LONGEST_PAUSE_S)

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Temporary),
        stop=tenacity.stop_after_attempt(max_retries + 1),
        wait=pause,
        before_sleep=lambda state: before_pause(state.outcome.exception(), state.next_action.sleep),  # type: ignore[union-attr, arg-type]
        reraise=True,
    )
