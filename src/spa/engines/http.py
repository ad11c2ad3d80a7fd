"""An HTTP client whose answers end: within a total time and a total size, however slowly or much a server sends.

The time-outs of HTTP libraries begin anew with every byte, so an answer that drips never ends by them.
"""

import importlib
import time
from collections.abc import Iterable, Iterator
from typing import Any

MOST_BYTES = 8 * 2**20
"""Of one answer: a reply of a hundred thousand tokens is half a megabyte."""


def bounded_client(sdk: Any, timeout_s: float) -> Any:
    """An HTTP client for an SDK. The body of an answer ends `timeout_s` seconds after the request was sent, at the
    latest, and after MOST_BYTES; each read has that time as well."""
    base = next(cls for cls in sdk.DefaultHttpxClient.__mro__ if cls.__name__ == "Client")
    library: Any = importlib.import_module(base.__module__.partition(".")[0])  # the one that the SDK is made with

    class Bounded(library.SyncByteStream):
        def __init__(self, inner: Any, end: float) -> None:
            self._inner, self._end = inner, end

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._inner:
                size += len(part)
                if size > MOST_BYTES:
                    raise library.ReadError(f"the answer has more than {MOST_BYTES:,} bytes")
                if time.monotonic() > self._end:
                    raise library.ReadTimeout("the answer took longer than model_config.timeout_s in all")
                yield part

        def close(self) -> None:
            self._inner.close()

    class Transport(library.HTTPTransport):
        def handle_request(self, request: Any) -> Any:
            end = time.monotonic() + timeout_s
            answer = super().handle_request(request)
            answer.stream = Bounded(answer.stream, end)
            return answer

    return library.Client(transport=Transport(), timeout=timeout_s, follow_redirects=False)


def without_surrogates(text: str) -> str:
    """`text` as UTF-8 can hold it: lone surrogates become U+FFFD, so that it can be sent on and kept."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def plain_count(value: Any) -> int:
    """A number of tokens as a server states it; 0 for nonsense."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0


def joined(texts: Iterable[Any], between: str = "") -> str:
    """The texts of an answer's blocks, others left out."""
    return between.join(text for text in texts if isinstance(text, str))
