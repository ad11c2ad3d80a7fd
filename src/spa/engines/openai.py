"""OpenAI and every server that speaks its chat protocol (DeepSeek, Together, vLLM, llama.cpp, Ollama …)."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spa.config.schema import APIModelConfig
from spa.engines.api import ApiReply, BadRequest, Refused, Temporary
from spa.engines.http import bounded_client, plain_count, readable
from spa.errors import ModelError, one_line
from spa.install import install_hint
from spa.types import Message, SamplingParams

ADDRESSES = {
    "openai": "https://api.openai.com/v1",
    "deepseek": "https://api.deepseek.com",
    "together": "https://api.together.xyz/v1",
}
KEYS = {
    "openai": "OPENAI_API_KEY",
    "deepseek": "DEEPSEEK_API_KEY",
    "together": "TOGETHER_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
}
RETRIED = (408, 409, 425, 429)
_FINISHED: dict[Any, Literal["stop", "length"]] = {"stop": "stop", "eos": "stop", "length": "length"}
_LENGTH_LIMITS = ("max_tokens", "max_completion_tokens")


class OpenAIClient:
    """A model behind the chat completions protocol.

    Raises ModelError if the SDK or the key is missing.
    """

    def __init__(self, entry: APIModelConfig, *, timeout_s: float = 120.0) -> None:
        try:
            import openai
        except ImportError as error:
            raise ModelError(f"models behind APIs need the api extra: {install_hint('api')}") from error
        self.entry, self._sdk = entry, openai
        self.name = entry.model_name
        self.address = entry.base_url or ADDRESSES[entry.provider_name]
        self._key = api_key(entry)
        self._client = openai.OpenAI(
            api_key=self._key or "none",
            base_url=self.address,
            timeout=timeout_s,
            max_retries=0,
            http_client=bounded_client(openai, timeout_s, self.address),
        )

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The sampling fields of a request; `generation_kwargs` of the entry win."""
        given = dict(self.entry.generation_kwargs)
        fields: dict[str, Any] = {"temperature": sampling.temperature}
        if sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            fields["top_k"] = sampling.top_k
        if not any(name in given for name in _LENGTH_LIMITS):
            fields["max_tokens"] = sampling.max_tokens
        return fields | given

    def ask(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> ApiReply:
        """One chat completion."""
        try:
            answer = self._client.chat.completions.create(
                model=self.name,
                messages=list(messages),  # type: ignore[arg-type]
                extra_body=dict(settings),
            )
        except self._sdk.APIError as error:
            raise translate(error, self.entry, self._key) from None
        except (ValueError, RecursionError):
            raise Temporary(f"{self.address}: the answer is not JSON") from None
        return self._read(answer)

    def _read(self, answer: Any) -> ApiReply:
        choices = getattr(answer, "choices", None)  # the SDK checks nothing: an answer can be anything
        choice = choices[0] if isinstance(choices, list) and choices else None
        message = getattr(choice, "message", None)
        text = getattr(message, "content", 0)
        if not isinstance(text, str | None):
            raise Temporary(f"{self.address}: the answer has no message")
        reason = getattr(choice, "finish_reason", None)
        if reason == "insufficient_system_resource":  # DeepSeek's, when it is busy
            raise Temporary(f"{self.address}: the server had no room for the reply")
        if reason not in _FINISHED:
            raise Refused(f"{self.name} ended its reply with {readable(str(reason), self._key)[:80]!r}")
        reasoning = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
        return ApiReply(
            text=readable(text or "", self._key),
            finish_reason=_FINISHED[reason],
            reasoning=readable(reasoning, self._key) if isinstance(reasoning, str) else "",
            prompt_tokens=plain_count(getattr(getattr(answer, "usage", None), "prompt_tokens", None)),
            completion_tokens=plain_count(getattr(getattr(answer, "usage", None), "completion_tokens", None)),
        )

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def api_key(entry: APIModelConfig) -> str | None:
    """The key from the environment; None for a server of one's own that asks for none.

    Raises ModelError if the variable is not set or cannot be sent.
    """
    variable = entry.api_key_env or KEYS.get(entry.provider_name)
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ModelError(f"{entry.model_name}: no API key. Set the environment variable {variable}.")
    if not (key.isascii() and key.isprintable()):
        raise ModelError(
            f"{entry.model_name}: the key in the environment variable {variable} has a line break or letters that no "
            "key has. Copy it again."
        )
    return key


def translate(error: Any, entry: APIModelConfig, key: str | None) -> Exception:
    """An SDK's error as Temporary, Refused or ModelError, without the key. OpenAI's and Anthropic's SDKs have the same
    classes of errors, told apart here by their status."""
    text = readable(one_line(error), key)[:400]
    status = getattr(error, "status_code", None)
    where = f"{entry.provider_name} ({entry.model_name})"
    if status is None or status < 400:  # no answer, a broken one, or a timeout
        return Temporary(f"{where}: {text}")
    lower = text.lower()
    if _code(error) == "insufficient_quota" or status == 402 or "credit balance is too low" in lower:
        return ModelError(f"{where}: the account has no credit left. {text}")
    if status in RETRIED or status >= 500:
        return Temporary(f"{where}: status {status}: {text}", after_s=_retry_after(error), limited=status == 429)
    if status in (401, 403):
        variable = entry.api_key_env or KEYS.get(entry.provider_name, "the variable named by api_key_env")
        return ModelError(f"{where}: the key in {variable} is wrong, has expired or may not do this. {text}")
    if status == 404:
        return ModelError(
            f"{where}: there is no such model or address. Check model_name and base_url of its entry in model_info. "
            f"{text}"
        )
    if any(word in lower for word in ("context", "too long", "too large", "content_filter", "content_policy")):
        return Refused(f"{where}: {text}")
    return BadRequest(f"{where}: the server does not take the request; check its generation_kwargs. {text}")


def _code(error: Any) -> str:
    code = getattr(error, "code", None)
    return code if isinstance(code, str) else ""


def _retry_after(error: Any) -> float | None:
    """Seconds that the server asks to wait; None if it does not say, or says it as a date."""
    headers = error.response.headers
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return None
