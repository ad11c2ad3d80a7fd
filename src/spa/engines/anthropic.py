"""Anthropic's messages protocol."""

from collections.abc import Mapping, Sequence
from typing import Any

from spa.config.schema import APIModelConfig
from spa.engines.api import ApiReply, Refused, Temporary
from spa.engines.http import bounded_client, joined, plain_count, readable
from spa.engines.openai import api_key, translate
from spa.errors import ModelError
from spa.install import install_hint
from spa.types import Message, SamplingParams

ADDRESS = "https://api.anthropic.com"
_FINISHED = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}


class AnthropicClient:
    """A model behind the messages protocol. Raises ModelError if the SDK or the key is missing."""

    def __init__(self, entry: APIModelConfig, *, timeout_s: float = 120.0) -> None:
        try:
            import anthropic
        except ImportError as error:
            raise ModelError(f"Anthropic's models need the api extra: {install_hint('api')}") from error
        self.entry, self._sdk = entry, anthropic
        self.name, self.address = entry.model_name, entry.base_url or ADDRESS
        self._key = api_key(entry)
        self._client = anthropic.Anthropic(
            api_key=self._key,
            base_url=self.address,
            timeout=timeout_s,
            max_retries=0,
            http_client=bounded_client(anthropic, timeout_s, self.address),
        )

    def settings(self, sampling: SamplingParams) -> dict[str, Any]:
        """The sampling fields of a request. What equals the server's default is not sent, because some models accept
        nothing else."""
        fields: dict[str, Any] = {"max_tokens": sampling.max_tokens}
        if sampling.temperature != 1:
            fields["temperature"] = sampling.temperature
        if sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if sampling.top_k > 0:
            fields["top_k"] = sampling.top_k
        return fields | dict(self.entry.generation_kwargs)

    def ask(self, messages: Sequence[Message], settings: Mapping[str, Any]) -> ApiReply:
        """One message. System messages go into their own field."""
        body = dict(settings)
        system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
        if system:
            body["system"] = system
        try:
            answer = self._client.messages.create(
                model=self.name,
                max_tokens=int(body.pop("max_tokens")),
                messages=[m for m in messages if m["role"] != "system"],  # type: ignore[arg-type]
                extra_body=body,
            )
        except self._sdk.APIError as error:
            raise translate(error, self.entry, self._key) from None
        except (ValueError, RecursionError):
            raise Temporary(f"{self.address}: the answer is not JSON") from None
        return self._read(answer)

    def _read(self, answer: Any) -> ApiReply:
        blocks = getattr(answer, "content", None)
        if not isinstance(blocks, list):
            raise Temporary(f"{self.address}: the answer has no content")
        said = getattr(answer, "stop_reason", None)
        reason = _FINISHED.get(said) if isinstance(said, str) else None
        if reason is None:
            raise Refused(f"{self.name} ended its reply with {readable(str(said), self._key)[:80]!r}")
        thoughts = joined((getattr(block, "thinking", None) for block in blocks if _is(block, "thinking")), "\n")
        return ApiReply(
            text=readable(joined(getattr(block, "text", None) for block in blocks if _is(block, "text")), self._key),
            finish_reason=reason,  # type: ignore[arg-type]
            reasoning=readable(thoughts, self._key),
            prompt_tokens=plain_count(getattr(getattr(answer, "usage", None), "input_tokens", None)),
            completion_tokens=plain_count(getattr(getattr(answer, "usage", None), "output_tokens", None)),
        )

    def close(self) -> None:
        """Close connections."""
        self._client.close()


def _is(block: Any, kind: str) -> bool:
    return getattr(block, "type", None) == kind
