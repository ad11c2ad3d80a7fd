"""A real HTTP server that speaks the chat protocol and misbehaves on request."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[["Handler"], None]


@dataclass
class Server:
    """Answers its n-th request by `acts[n]`, and with `text` when these are used up."""

    acts: list[Act] = field(default_factory=list)
    text: str = "<think>go</think><answer>Up</answer>"
    requests: list[dict[str, Any]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)
    busy: int = 0
    most_busy: int = 0

    def __enter__(self) -> "Server":
        outer = self

        class Bound(Handler):
            server_state = outer

        self.http = QuietServer(("127.0.0.1", 0), Bound)
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.http.shutdown()
        self.http.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that gave up waiting is part of the tests."""


class Handler(BaseHTTPRequestHandler):
    server_state: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        state = self.server_state
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with state.lock:
            number = len(state.requests)
            state.requests.append(
                {
                    "path": self.path,
                    "headers": {name.lower(): value for name, value in self.headers.items()},
                    "body": body,
                }
            )
            state.busy += 1
            state.most_busy = max(state.most_busy, state.busy)
        try:
            (state.acts[number] if number < len(state.acts) else good())(self)
        finally:
            with state.lock:
                state.busy -= 1

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def response(self, text: Any, finish: str | None, **message: str) -> bytes:
        answer = {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": finish,
                    "message": {"role": "assistant", "content": text, **message},
                }
            ],
            "usage": {"prompt_tokens": 11, "completion_tokens": 5, "total_tokens": 16},
        }
        return json.dumps(answer).encode()


def good(text: Any = None, finish: str | None = "stop", **message: str) -> Act:
    return lambda h: h.send(
        200, h.response(h.server_state.text if text is None else text, finish, **message)
    )


def failing(status: int, message: str = "trouble", code: str | None = None, **headers: str) -> Act:
    body = json.dumps({"error": {"message": message, "type": "error", "code": code}}).encode()
    return lambda h: h.send(status, body, **headers)


def slow(seconds: float) -> Act:
    def act(h: Handler) -> None:
        h.server_state.stop.wait(seconds)
        good()(h)

    return act


def cut_off(h: Handler) -> None:
    """Half of the promised bytes, then the connection closes."""
    body = h.response("never seen", "stop")
    h.send_response(200)
    h.send_header("content-type", "application/json")
    h.send_header("content-length", str(len(body)))
    h.end_headers()
    h.wfile.write(body[: len(body) // 2])
    h.close_connection = True


def raw(body: bytes, content_type: str = "application/json") -> Act:
    return lambda h: h.send(200, body, content_type=content_type)
