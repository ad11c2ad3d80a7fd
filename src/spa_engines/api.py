"""Engine for models behind an API: OpenAI, Anthropic, or any server with an OpenAI-compatible chat
API.

The `openai` SDK sends the requests, retries them after rate limits, broken connections and server
errors, and waits as long as the server requests. This module classifies the remaining errors:

* `Unanswered`: the server did not answer this request. If it answers none, the run ends.
* `Refused`: the server will never answer this request (too long, a content filter), but may answer
  others. Only the episode of this request fails.
* `ModelError`: no request can succeed until the user changes something (key, model name, address,
  quota).

The first request is sent alone, so that a `ModelError` costs only one request.

Every response is written to a file as it arrives. If the same command is run again, it reuses these
responses.
"""

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import nn

from spa.config.schema import APIModelConfig
from spa.engines.factory import API, EngineKind, EngineRequest
from spa.errors import ConfigError, ModelError, one_line
from spa.formats.blocks import after_prefill, as_unicode
from spa.install import install_hint
from spa.prompts.template_parts import without_system
from spa.run import watchdog
from spa.run.console import FILE_ONLY
from spa.types import Completion, Message, Prompt, SamplingParams

log = logging.getLogger(__name__)

ADDRESSES = {
    "openai": "https://api.openai.com/v1",
    "deepseek": "https://api.deepseek.com",
    "together": "https://api.together.xyz/v1",
    "anthropic": "https://api.anthropic.com/v1",
}
KEYS = {
    "openai": "OPENAI_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "together": "TOGETHER_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
}
RESPONSES = "api_responses.jsonl"
STOP_REASONS = ("stop", "eos", "eos_token", "end_turn", "stop_sequence")
LENGTH_REASONS = ("length", "max_tokens")
REFUSED_REASONS = ("content_filter", "refusal", "safety", "tool_calls", "function_call")
"""Finish reasons in lower case that mean a refusal. An unknown reason counts as `stop` if the
response has text, because servers use various names for a normal end."""
LENGTH_LIMITS = ("max_tokens", "max_completion_tokens")
TOO_LONG = "context_length_exceeded"
"""Error code for a conversation that is too long."""
STATUS_OF_CODES = {
    TOO_LONG: 400,
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
}
"""Error code -> HTTP status, for servers that return a word instead of a status."""
REFUSALS = (
    "context length",
    "context size",
    "context window",
    "too long",
    "request too large",
    "content_filter",
    "content_policy",
)
"""Phrases that mark an error message as concerning a single conversation. Other errors, such as
`max_tokens is too large`, concern a setting."""


class Unanswered(Exception):
    """The server did not answer a request, even after all retries."""


class Refused(Unanswered):
    """The server will never answer this request, but may answer others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResponse:
    """A server's response. `reasoning` contains the model's thoughts, if the server returns them
    separately."""

    text: str
    finish_reason: Literal["stop", "length"]
    reasoning: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retries: int = 0
    episode: str = ""  # id of the episode that the request belongs to
    settings: str = ""  # `settings_key` of server, model and settings


class Pacer:
    """Spaces the requests of all threads evenly, so that at most `per_minute` are sent per minute.
    None sets no limit."""

    def __init__(self, per_minute: float | None = None) -> None:
        self._gap = 60.0 / per_minute if per_minute else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        """Block until the next request may be sent."""
        with self._lock:
            now = time.monotonic()
            slot = max(now, self._next)
            self._next = slot + self._gap
        # Slots are assigned under the lock, but threads sleep outside it, so they wait
        # concurrently.
        time.sleep(slot - now)


class ResponseStore:
    """Cache of responses by request key, in an append-only JSON-lines file. A line that a crash has
    truncated is skipped."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._responses: dict[str, ApiResponse] = {}
        self.accepted: set[str] = set()  # the `settings_key` of every stored response
        if path is None or not path.is_file():
            return
        text = path.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            try:
                record = json.loads(line)
                key = record.pop("key")
                response = ApiResponse(**record)
                self._responses[key] = response
                self.accepted.add(response.settings)
            except (ValueError, KeyError, TypeError, AttributeError):
                log.warning(
                    "%s: spa skipped a cached response, because its line cannot be read", path
                )
        if text and not text.endswith("\n"):
            # End the truncated line, so that the next response starts on a new line.
            self._append("")
        log.info(
            "spa takes %d responses from the cache %s; delete the file to send their "
            "requests again",
            len(self._responses),
            path,
        )

    def __len__(self) -> int:
        return len(self._responses)

    def get(self, key: str) -> ApiResponse | None:
        """The stored response to this request, or None if there is none."""
        return self._responses.get(key)

    def put(self, key: str, response: ApiResponse) -> None:
        """Store a response, and append it to the file."""
        with self._lock:
            self._responses[key] = response
            self.accepted.add(response.settings)
            self._append(json.dumps({"key": key, **asdict(response)}))

    def _append(self, line: str) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


class ApiEngine:
    """An engine for one entry of `model_info`. Its responses have no token ids and cannot be used
    for training.

    Raises ModelError if the SDK or the key is missing, or if the proxy in the environment variables
    cannot be used.
    """

    template = None

    def __init__(
        self,
        entry: APIModelConfig,
        *,
        timeout_s: float = 120.0,  # seconds for connecting, and for each read
        max_concurrency: int = 16,  # concurrent requests
        max_retries: int = 6,  # retries per request, sent by the SDK
        per_minute: float | None = None,  # requests per minute over all threads; None: no limit
        store: Path | None = None,  # file for responses; None: they are not saved
    ) -> None:
        try:
            import openai
        except ImportError as error:
            raise ModelError(
                f"API models need the api extra of spa: {install_hint('api')}"
            ) from error
        self.entry = entry
        self.name = entry.model_name
        self.address = entry.base_url or ADDRESSES[entry.provider_name]
        self.max_concurrency = max_concurrency
        self.store = ResponseStore(store)
        self.usage = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self._usage_lock = threading.Lock()
        self._reached = False  # whether a request was sent; the first one is sent alone
        self._sent = threading.local()  # `count`: requests that a thread has sent for one response
        self._pacer = Pacer(per_minute)
        self._key = api_key(entry)
        self._sdk_error = openai.APIError
        try:
            # The SDK requires a key, even if the server does not.
            self._client = openai.OpenAI(
                api_key=self._key or "none",
                base_url=self.address,
                timeout=timeout_s,
                max_retries=max_retries,
                # The SDK retries inside a call, so only its HTTP client sees every request.
                http_client=openai.DefaultHttpxClient(
                    event_hooks={"request": [self._pace], "response": [show_error]}
                ),
            )
        except OSError as error:  # the client reads no files except certificates
            raise ModelError(
                f"spa cannot read the certificates of {certificates()}. {one_line(error)}"
            ) from None
        except Exception:  # noqa: BLE001 - the error's text would show a proxy's password
            raise ModelError(
                f"The environment variables name a proxy for {self.address} that cannot be "
                "used. Write the proxy as http://host:port, https://host:port or, with the "
                "package socksio, socks5://host:port. To use no proxy, set no_proxy."
            ) from None

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[Completion]:
        """Return one completion per prompt; `finish_reason` is "error" for prompts without a
        response.

        Raises ModelError for prompts with images, and for an error that would fail every request,
        such as a wrong key. Also raises ModelError if no prompt gets a response, with one
        exception: the server has answered these settings before, and now refuses a prompt or gets
        only one.
        """
        if any(prompt.images for prompt in prompts):
            raise ModelError(
                f"The API model {self.name} gets only text, but the prompt has pictures: set "
                "render_mode: text in custom_envs"
            )
        settings = self._settings(sampling)
        pool = ThreadPoolExecutor(max_workers=self.max_concurrency, thread_name_prefix="spa-api")
        try:
            futures: list[Future[tuple[Completion, bool]]] = []
            for prompt in prompts:
                first = not self._reached
                futures.append(pool.submit(self._complete, prompt, settings))
                # The first request is sent alone, so that a wrong key, model or address costs one
                # request.
                if first:
                    wait(futures)
                    if futures[-1].exception() is not None:
                        break
            wait(futures, return_when=FIRST_EXCEPTION)
            fatal = next(
                (f.exception() for f in futures if f.done() and f.exception() is not None), None
            )
            if fatal is not None:
                # Requests in flight still finish, and their responses are stored.
                pool.shutdown(wait=True, cancel_futures=True)
                raise ModelError(f"{fatal}\n{self._kept()}") from fatal
            answers = [future.result() for future in futures]
        except BaseException:
            self._client.close()  # an interrupted run sends nothing more, retries included
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        completions = [completion for completion, _ in answers]
        failed = [c.text for c in completions if c.finish_reason == "error"]
        silent = len(failed) > 1 and not any(refused for _, refused in answers)
        # No request was answered. This is an error if several requests failed without any refusal,
        # or if no stored response shows that the server accepts these settings.
        if failed and len(failed) == len(completions) and (silent or not self._accepts(settings)):
            raise ModelError(
                f"The server {self.address} answered none of {len(failed)} requests. The "
                f"first error: {failed[0]}\n{self._kept()}"
            )
        for text in dict.fromkeys(failed):
            log.warning(
                "The API returned no response to %d of %d prompts: %s",
                failed.count(text),
                len(prompts),
                text,
            )
        return completions

    def load_weights(self, model: nn.Module, *, version: int) -> None:
        """Always raise ModelError, because an API model has no weights to load."""
        raise ModelError("An API model cannot be trained; set actor_rollout_ref.rollout.name=local")

    def forget(self, episode_ids: Sequence[str]) -> None:
        """Do nothing, because this engine keeps no state of episodes."""

    def close(self) -> None:
        """Close connections and log the usage."""
        self._client.close()
        used = ", ".join(f"{value} {name}" for name, value in self.usage.items())
        # Logged only to the file, because the result already shows the usage of all responses.
        log.info("%s: %s", self.name, used, extra=FILE_ONLY)

    def _settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """Return the sampling fields of a request. The entry's `generation_kwargs` take precedence
        over `sampling`."""
        given = dict(self.entry.generation_kwargs)
        fields: dict[str, Any] = {"temperature": sampling.temperature}
        if sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            fields["top_k"] = sampling.top_k
        if not any(name in given for name in LENGTH_LIMITS):
            fields["max_tokens"] = sampling.max_tokens
        # A null removes a field, for models that reject it.
        return {name: value for name, value in (fields | given).items() if value is not None}

    def _accepts(self, settings: Mapping[str, Any]) -> bool:
        """Return whether a stored response shows that the server accepts these settings for this
        model."""
        return settings_key(self.address, self.name, settings) in self.store.accepted

    def _kept(self) -> str:
        if self.store.path is None or not len(self.store):
            return "The server had sent no response yet."
        return (
            f"{len(self.store)} responses are saved in {self.store.path}; repeat the same "
            "command to resume from them."
        )

    def _complete(self, prompt: Prompt, settings: Mapping[str, Any]) -> tuple[Completion, bool]:
        """Return the completion for a prompt, and whether the server refused this request."""
        if self.entry.fold_system:
            prompt = replace(prompt, messages=tuple(without_system(prompt.messages)))
        key = request_key(self.address, self.name, prompt, settings)
        response = self.store.get(key)
        if response is None:
            try:
                response = self._ask(prompt.messages, settings)
            except Unanswered as error:
                failed = Completion(
                    text=str(error), token_ids=None, logprobs=None, finish_reason="error"
                )
                return failed, isinstance(error, Refused)
            known = settings_key(self.address, self.name, settings)
            self.store.put(key, replace(response, episode=prompt.episode_id, settings=known))
        text = without_prefill(response, prompt.prefill)
        return Completion(
            text=text, token_ids=None, logprobs=None, finish_reason=response.finish_reason
        ), False

    def _pace(self, _: Any) -> None:
        """Wait until the next request or retry may be sent, and count it."""
        self._pacer.wait()
        self._sent.count = getattr(self._sent, "count", 0) + 1
        # An interrupt may have closed the client during the wait.
        if self._client.is_closed():
            raise Unanswered(f"{self.address}: the connection was closed")

    def _ask(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> ApiResponse:
        """Request one chat completion. Raises Unanswered, Refused or ModelError."""
        self._count(requests=1)
        sendable: Any = [
            {**message, "content": as_unicode(message["content"])} for message in messages
        ]
        # `extra_body` passes on fields that the SDK does not know, such as top_k.
        request = {"model": self.name, "messages": sendable, "extra_body": dict(settings)}
        self._sent.count = 0
        try:
            response = self._read(self._send(request))
        except self._sdk_error as error:
            raise self._failure(error, settings) from None
        except (Unanswered, ModelError):
            raise
        except Exception as error:  # noqa: BLE001 - the SDK does not validate the answer
            raise Unanswered(
                f"{self.address}: reading the server's response failed with {type(error).__name__}"
            ) from None
        response = replace(response, retries=max(0, self._sent.count - 1))
        watchdog.beat()
        self._count(
            prompt_tokens=response.prompt_tokens, completion_tokens=response.completion_tokens
        )
        return response

    def _send(self, request: dict[str, Any]) -> Any:
        """Send a request and return the SDK's result. The engine's first request is tried once
        without retries, because retries do not help if no server listens at the address. Raises the
        SDK's errors or ModelError."""
        if not self._reached:
            self._reached = True
            try:
                once = self._client.with_options(max_retries=0)
                return once.chat.completions.create(**request)
            except self._sdk_error as error:
                if "CERTIFICATE_VERIFY_FAILED" in str(error.__cause__):
                    raise ModelError(
                        f"{self.address}: the certificate of this server is signed by none of the "
                        f"certificates of {certificates()}. {one_line(error.__cause__)[:400]}"
                    ) from None
                if type(error.__cause__).__name__ == "ConnectError":
                    raise ModelError(
                        f"{self.address}: no server answers at this address. Check base_url "
                        f"of {self.name} in model_info. "
                        f"{self._readable(one_line(error))[:400]}"
                    ) from None
                if type(self._failure(error, request["extra_body"])) is not Unanswered:
                    raise
        return self._client.chat.completions.create(**request)

    def _read(self, answer: Any) -> ApiResponse:
        """Extract the response to store from the SDK's result. Raises Unanswered or Refused."""
        choices = getattr(answer, "choices", None)
        if not isinstance(choices, list) or not choices:
            raise Unanswered(
                f"{self.address}: the server's response is no chat completion: "
                f"{self._readable(one_line(answer))[:200]}"
            )
        choice = choices[0]
        text, thoughts = text_parts(choice.message.content)
        if text is None:
            raise Unanswered(f"{self.address}: the server's response has no message text")
        given = choice.finish_reason
        reason = "" if given is None else given.lower() if isinstance(given, str) else str(given)
        known = reason in STOP_REASONS + LENGTH_REASONS
        if reason in REFUSED_REASONS or not (known or (text and isinstance(given, str | None))):
            raise Refused(
                f"The API model {self.name} ended its response with the finish reason "
                f"{self._readable(str(given))[:80]!r}"
            )
        reasoning = (
            getattr(choice.message, "reasoning_content", None)
            or getattr(choice.message, "reasoning", None)
            or thoughts
        )
        return ApiResponse(
            text=self._readable(text),
            finish_reason="length" if reason in LENGTH_REASONS else "stop",
            reasoning=self._readable(reasoning) if isinstance(reasoning, str) else "",
            prompt_tokens=int(getattr(answer.usage, "prompt_tokens", None) or 0),
            completion_tokens=int(getattr(answer.usage, "completion_tokens", None) or 0),
        )

    def _failure(self, error: Any, settings: Mapping[str, Any]) -> Exception:
        """Convert an error of the SDK to Unanswered, Refused or ModelError. The message does not
        contain the API key."""
        text = self._readable(error_words(error))[:400]
        status = getattr(error, "status_code", None)
        where = f"{self.entry.provider_name} ({self.name})"
        lower = text.lower()
        if (
            getattr(error, "code", None) == "insufficient_quota"
            or status == 402
            or "credit balance is too low" in lower
        ):
            return ModelError(
                f"{where}: your account has no credit left; buy credit, then repeat the command. "
                f"{text}"
            )
        # After other responses, a 403 concerns this conversation, for example from moderation.
        if status == 401 or (status == 403 and not self._accepts(settings)):
            variable = self.entry.api_key_env or KEYS.get(
                self.entry.provider_name, "the environment variable that api_key_env names"
            )
            return ModelError(
                f"{where}: the API key in {variable} is wrong, has expired or lacks the "
                f"permission. {text}"
            )
        if status == 404 or (status == 501 and not self._accepts(settings)):
            return ModelError(
                f"{where}: the model does not exist, or {self.address} does not offer the "
                "chat completions API. Check model_name and base_url of the model in "
                f"model_info. {text}"
            )
        # These errors may be temporary: connection, server, time-out, conflict, rate limit.
        if status is None or status < 400 or status >= 500 or status in (408, 409, 425, 429):
            return Unanswered(
                f"{where}: {text}"
                if status is None
                else f"{where}: the server returned error {status}: {text}"
            )
        # The cause is this one request if the error concerns its conversation, or if a stored
        # response shows that the server accepts the settings.
        refused = getattr(error, "code", None) == TOO_LONG or any(
            words in lower for words in REFUSALS
        )
        if refused or self._accepts(settings):
            return Refused(f"{where}: {text}")
        return ModelError(
            f"{where}: the server rejected the request; check generation_kwargs of the model "
            "in model_info (null leaves a field out), and set fold_system=true there if the model "
            f"accepts no system message. {text}"
        )

    def _readable(self, text: str) -> str:
        """Prepare a server's message for logs and files: mask the API key, and make the text valid
        Unicode."""
        return as_unicode(text.replace(self._key, "***") if self._key else text)

    def _count(self, **amounts: int) -> None:
        with self._usage_lock:
            for name, amount in amounts.items():
                self.usage[name] += amount


def show_error(response: Any) -> None:
    """If the body of a response with status 200 contains an error, set the response's status to
    that of the error. The SDK then retries or raises it like any other error."""
    if response.status_code != 200:
        return
    try:
        status = error_status(json.loads(response.read()))
    except (ValueError, RecursionError):  # not JSON, which `_read` reports
        return
    if status is not None:
        response.status_code = status


def error_status(body: Any) -> int | None:
    """Return the HTTP status of the error in a response's body, or None if the body has no
    error."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    if not isinstance(body, dict):
        return None
    choices = body.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    # Some API routers report an error of the model in `choices[0]`.
    error = body.get("error") or (choice.get("error") if isinstance(choice, dict) else None)
    if not error and choices:
        return None
    fields = body | error if isinstance(error, dict) else body
    for name in ("code", "status", "status_code", "type"):
        code = str(fields.get(name))
        if code in STATUS_OF_CODES:
            return STATUS_OF_CODES[code]
        if code.isdecimal() and 400 <= int(code) < 600:
            return int(code)
    return 500 if error else None


def error_words(error: Any) -> str:
    """Return the message of an SDK error, including the server's own message. The SDK includes the
    server's message only if the body has the structure of OpenAI's errors."""
    text = one_line(error)
    body = getattr(error, "body", None)
    if isinstance(body, dict) and isinstance(body.get("message"), str) and body["message"] in text:
        return text
    return f"{text} - {one_line(body)}" if body and one_line(body) not in text else text


def text_parts(content: Any) -> tuple[str | None, str]:
    """Return the text and the thoughts of a message's content, which is a string, a list of parts,
    or None (empty). The text is None if the content has another type, or is a list with neither
    text nor thoughts."""
    if isinstance(content, str | None):
        return content or "", ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None, ""
    texts = [part["text"] for part in content if isinstance(part.get("text"), str)]
    thoughts = []
    for part in content:
        thought = part.get("thinking") or part.get("reasoning")
        # Mistral's thoughts are themselves a list of parts.
        thoughts.append(text_parts(thought)[0] or "")
    return "".join(texts) if texts or any(thoughts) else None, "".join(thoughts)


def certificates() -> str:
    """Describe the source of the certificates that the HTTP client trusts, for an error message."""
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # the client reads the first that is set
        if path := os.environ.get(name):
            return f"{path}, which the environment variable {name} names: correct or unset it"
    return "this system; to use others, set the environment variable SSL_CERT_FILE"


def api_key(entry: APIModelConfig) -> str | None:
    """Return the API key from the environment; None for a custom server without a key.

    Raises ModelError if the variable is not set, or if its value cannot be sent as a key.
    """
    variable = entry.api_key_env or KEYS.get(entry.provider_name)
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ModelError(
            f"{entry.model_name}: the environment variable {variable} with the API key is "
            "not set. Set it to your key."
        )
    if not (key.isascii() and key.isprintable()):
        raise ModelError(
            f"{entry.model_name}: the API key in the environment variable {variable} has a "
            "line break or another character that is not printable ASCII. Copy the key again."
        )
    return key


def request_key(address: str, name: str, prompt: Prompt, settings: Mapping[str, Any]) -> str:
    """Return a hash that identifies a request by server, model, settings, messages, and the
    prompt's seed."""
    parts = [address, name, dict(settings), list(prompt.messages), prompt.seed]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def settings_key(address: str, name: str, settings: Mapping[str, Any]) -> str:
    """Return a hash of server, model and settings, which is the same for all requests with these
    settings."""
    parts = [address, name, dict(settings)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def without_prefill(response: ApiResponse, prefill: str) -> str:
    """Return the part of the response after `prefill`. The prefill is never sent to an API; the
    rollout writes it before every response.

    If the response contains the prefill, the prefill and everything before it (such as the model's
    own think block) are removed. Otherwise, separately returned reasoning becomes the think block,
    with square brackets in place of the angle brackets of tags that it quotes. Without either, the
    response is unchanged.
    """
    after = after_prefill(response.text, prefill)
    if after is not None:
        return after
    if response.reasoning and prefill == "<think>":
        reasoning = re.sub(r"<(/?(?:think|answer))>", r"[\1]", response.reasoning)
        return f"{reasoning}</think>{response.text}"
    return response.text


def _make(request: EngineRequest) -> ApiEngine:
    """Create the engine of a `model_info` entry, by default `model_config.model_name`. Raises
    ConfigError if there is no such entry."""
    cfg = request.cfg
    choice = cfg.model_config
    name = request.model_name if request.model_name in cfg.model_info else choice.model_name
    entry = cfg.model_info.get(name)
    if entry is None:
        known = ", ".join(cfg.model_info) or "none; start from the configuration evaluate_api_llm"
        raise ConfigError(f"model_info has no model named {name!r}; the models there: {known}")
    return ApiEngine(
        entry,
        timeout_s=choice.timeout_s,
        max_concurrency=choice.max_concurrency,
        max_retries=choice.max_retries,
        per_minute=choice.requests_per_minute,
        store=request.store or Path(cfg.trainer.run_dir) / RESPONSES,
    )


KIND = EngineKind(name=API, make=_make)
