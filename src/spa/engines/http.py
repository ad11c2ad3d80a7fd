"""An HTTP client whose answers end: within a total time and a total size, however slowly or much a server sends.

The time-outs of HTTP libraries begin anew with every byte, so an answer that drips never ends by them.
"""

import importlib
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

from spa.errors import ModelError

MOST_BYTES = 8 * 2**20
"""Of one answer: a reply of a hundred thousand tokens is half a megabyte."""


def bounded_client(sdk: Any, timeout_s: float, address: str) -> Any:
    """An HTTP client for an SDK's requests to `address`, through the proxy that the system names for it. Connection,
    headers and body of an answer take `timeout_s` seconds in all, at the latest, and at most MOST_BYTES. The look-up
    of the address is the system's, which has a time-out of its own.

    Raises ModelError if that proxy cannot be used."""
    base = next(cls for cls in sdk.DefaultHttpxClient.__mro__ if cls.__name__ == "Client")
    library: Any = importlib.import_module(base.__module__.partition(".")[0])  # the one that the SDK is made with
    request = threading.local()  # a request is sent and its answer read in one thread

    class Sized(library.SyncByteStream):
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __iter__(self) -> Iterator[bytes]:
            size = 0
            for part in self._inner:
                size += len(part)
                if size > MOST_BYTES:
                    raise library.ReadError(f"the answer has more than {MOST_BYTES:,} bytes")
                yield part

        def close(self) -> None:
            self._inner.close()

    class Transport(library.HTTPTransport):
        def __init__(self, proxy: str | None) -> None:
            super().__init__(proxy=proxy)
            self._pool._network_backend = _TimedNetwork(self._pool._network_backend, left)

        def handle_request(self, asked: Any) -> Any:
            request.end = time.monotonic() + timeout_s
            answer = super().handle_request(asked)
            answer.stream = Sized(answer.stream)
            return answer

    def left() -> float:
        seconds = request.end - time.monotonic()
        if seconds <= 0:
            raise library.ReadTimeout("the answer took longer than model_config.timeout_s in all")
        return seconds

    proxy = _proxy(address)
    try:
        transport = Transport(proxy)
    except Exception as error:
        if proxy is None:
            raise
        raise ModelError(
            f"the proxy for {address} ({proxy.rpartition('@')[2]}, from the environment) cannot be used. Name it as "
            "http://host:port, https://host:port or, with the package socksio, socks5://host:port. Or set no_proxy."
        ) from error
    return library.Client(transport=transport, timeout=timeout_s, follow_redirects=False)


def _proxy(address: str) -> str | None:
    """The proxy that the system's settings name for an address, None without one."""
    parts = urlsplit(address)
    if urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    known = urllib.request.getproxies()
    proxy = known.get(parts.scheme) or known.get("all")
    return f"http://{proxy}" if proxy and "://" not in proxy else proxy


PIECE = 2**16
"""Bytes of a request that are sent before the clock is asked again."""


class _TimedNetwork:
    """The network of an HTTP library, in which nothing waits longer than is `left` of a request's time."""

    def __init__(self, inner: Any, left: Any) -> None:
        self._inner, self._left = inner, left

    def connect_tcp(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> "_TimedStream":
        return _TimedStream(self._inner.connect_tcp(*args, timeout=self._left(), **kwargs), self._left)

    def sleep(self, seconds: float) -> None:
        self._inner.sleep(min(seconds, self._left()))


class _TimedStream:
    """A connection of such a network. Closing it and asking about it take no time."""

    def __init__(self, inner: Any, left: Any) -> None:
        self._inner, self._left = inner, left

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, timeout=self._left())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), PIECE):
            self._inner.write(buffer[start : start + PIECE], timeout=self._left())

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_TimedStream":
        return _TimedStream(self._inner.start_tls(ssl_context, server_hostname, self._left()), self._left)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def without_surrogates(text: str) -> str:
    """`text` as UTF-8 can hold it: lone surrogates become U+FFFD, so that it can be sent on and kept."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def readable(text: str, key: str | None) -> str:
    """What a server said, as it may be kept and shown: without the key, which it knows, and as UTF-8."""
    return without_surrogates(text.replace(key, "***") if key else text)


def plain_count(value: Any) -> int:
    """A number of tokens as a server states it; 0 for nonsense."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0


def joined(texts: Iterable[Any], between: str = "") -> str:
    """The texts of an answer's blocks, others left out."""
    return between.join(text for text in texts if isinstance(text, str))
