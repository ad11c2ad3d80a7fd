"""`spa view`: the episodes of a run as a local web page, served on the loopback address, or exported as one file.

The server answers GET requests for a fixed set of addresses; no part of a request becomes a file name. It answers to
whoever has the token of the address that it was started with: other users of the machine reach the port, too. On the
loopback address, requests that name another host are refused, so that a web page elsewhere cannot read a run through
the visitor's browser.
"""

import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache, partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from spa.errors import SpaError
from spa.report.build import write_text
from spa.report.index import EpisodeIndex, Place, read_episode, read_scores
from spa.report.reading import open_run
from spa.report.replay import find_tokenizer, replay, shown
from spa.report.security import page_policy, script_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 2.0
_TEMPLATES = Path(__file__).parent / "templates"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LOGGER = logging.getLogger("spa.view")

REQUEST_S = 30.0
"""How long a client may take to say what it wants; a connection that says nothing holds a thread."""
MOST_FIELDS = 50
_NUMBER = re.compile(r"[0-9]{1,12}")


class Viewer:
    """Answers of the viewer's pages, for a server or an export."""

    def __init__(self, run: Path, *, cache_file: Path | None = None) -> None:
        self.run = open_run(run)
        self.index = EpisodeIndex(run, cache=cache_file)
        self._tokenizer: Callable[[Path], Tokenizer | None] = cache(partial(find_tokenizer, root=self.index.root))

    def info(self) -> dict[str, Any]:
        """The run's name, the values of the filters, and how far the index is."""
        total = self.index.page({}, limit=1)["total"]
        return {
            "run": shown(self.run.name, 200),
            "choices": self.index.choices(),
            "progress": self.index.progress,
            "total": total,
        }

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        """One page of the list."""
        numbers = {key: int(query[key]) for key in ("offset", "limit") if _NUMBER.fullmatch(query.get(key, ""))}
        return self.index.page(query, order=query.get("order", ""), **numbers)

    def episode(self, number: int) -> dict[str, Any] | None:
        """The replay of one episode, or None if it is not (or no longer) there."""
        place = self.index.place(number)
        episode = read_episode(place) if place else None
        if place is None or episode is None:
            return None
        scores = read_scores(place, episode.get("episode_id", ""))
        return replay(episode, tokenizer=self._tokenizer(place.path.parent.parent), scores=scores)

    def raw(self, number: int) -> dict[str, Any] | None:
        """The episode as it was recorded."""
        place: Place | None = self.index.place(number)
        return read_episode(place) if place else None


class ViewerServer(ThreadingHTTPServer):
    """A server of one run. `token` opens it: `/?token=...` gives a browser the cookie that its later requests show."""

    daemon_threads = True

    def __init__(self, viewer: Viewer, host: str, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self.is_loopback = _is_loopback(host)
        self.names = (f"[{host}]" if ":" in host else host, HOST, "localhost")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), partial(_Handler, viewer))

    @property
    def cookie(self) -> str:
        """The cookie's name: browsers keep one for all ports of a host."""
        return f"spa_{self.server_address[1]}"


def serve(viewer: Viewer, port: int, *, host: str = HOST) -> ViewerServer:
    """A server (port 0 takes a free one) that keeps the index up to date; the caller runs it. Raises OSError if the
    port cannot be used."""
    server = ViewerServer(viewer, host, port)
    threading.Thread(target=_keep_up, args=(viewer.index,), daemon=True).start()
    return server


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _keep_up(index: EpisodeIndex) -> None:
    pause = threading.Event()
    while True:
        try:
            index.update()
        except (SpaError, OSError, ValueError, sqlite3.Error) as error:  # being moved or damaged: look again
            _LOGGER.debug("index not updated: %s", error)
        pause.wait(SECONDS_BETWEEN_LOOKS)


class _Handler(BaseHTTPRequestHandler):
    """GET requests for the page, its two files and the data."""

    timeout = REQUEST_S
    server_version = "spa"
    sys_version = ""

    def __init__(self, viewer: Viewer, *arguments: Any) -> None:
        self._viewer = viewer
        super().__init__(*arguments)

    @property
    def _own(self) -> ViewerServer:
        assert isinstance(self.server, ViewerServer)
        return self.server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        try:
            query = dict(parse_qsl(address.query, max_num_fields=MOST_FIELDS))
        except ValueError:  # more fields than anything has
            return self._say(HTTPStatus.NOT_FOUND, "Not found.")
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if self._own.is_loopback and host not in self._own.names:
            return self._say(HTTPStatus.FORBIDDEN, f"This server answers to {self._own.names[0]} only.")
        if not self._is_known(query.pop("token", "")):
            return self._say(HTTPStatus.FORBIDDEN, "Open the address that `spa view` printed: it ends with a token.")
        if address.path == "/" and "token=" in address.query:  # out of the address bar, into a cookie
            cookie = f"{self._own.cookie}={self._own.token}; Path=/; HttpOnly; SameSite=Lax"  # opened from a file, too
            return self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})
        page = _pages().get(address.path)
        if page:
            return self._send(HTTPStatus.OK, *page)
        answer = self._data(address.path, query)
        if answer is None:
            return self._say(HTTPStatus.NOT_FOUND, "Not found. If the run has changed, look it up in the list again.")
        saved = {"Content-Disposition": 'attachment; filename="episode.json"'} if "/raw/" in address.path else {}
        self._send(HTTPStatus.OK, json.dumps(answer).encode(), "application/json", saved)

    def _is_known(self, token: str) -> bool:
        """Whether the request shows the token, in its address or as a cookie."""
        try:
            shown = SimpleCookie(self.headers.get("Cookie", "")).get(self._own.cookie)
        except CookieError:
            shown = None
        given = (token, shown.value if shown else "")
        return any(hmac.compare_digest(text.encode(), self._own.token.encode()) for text in given)

    def _data(self, path: str, query: dict[str, str]) -> dict[str, Any] | None:
        if path == "/api/info":
            return self._viewer.info()
        if path == "/api/episodes":
            return self._viewer.page(query)
        kind, _, number = path.removeprefix("/api/").partition("/")
        if not (number.isascii() and number.isdigit() and len(number) < 18):
            return None
        if kind == "episode":
            return self._viewer.episode(int(number))
        return self._viewer.raw(int(number)) if kind == "raw" else None

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(), "text/plain; charset=utf-8")

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cache-Control": "no-store",
            **(more or {}),
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


@cache
def _pages() -> dict[str, tuple[bytes, str]]:
    html = _template("viewer.html")
    html = html.replace("<!--STYLE-->", '<link rel="stylesheet" href="/viewer.css">')
    html = html.replace("<!--SCRIPT-->", '<script src="/viewer.js"></script>')
    return {
        "/": (html.encode(), "text/html; charset=utf-8"),
        "/viewer.css": (_template("viewer.css").encode(), "text/css; charset=utf-8"),
        "/viewer.js": (_template("viewer.js").encode(), "text/javascript; charset=utf-8"),
    }


def _template(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def export(viewer: Viewer, path: Path, *, limit: int = 200) -> int:
    """Write a page that needs no server, with at most `limit` episodes; returns how many it holds.

    The episodes are spread over methods, stages, successes and failures, the latest steps first.
    """
    viewer.index.update()
    total = viewer.index.page({}, limit=1)["total"]
    replays = {row["id"]: (row, viewer.episode(row["id"])) for row in _spread(viewer, limit)}
    replays = {number: (row, found) for number, (row, found) in replays.items() if found is not None}
    rows = [row for row, _ in replays.values()]
    note = f"This page holds {len(rows)} of {total:,} episodes" if len(rows) < total else ""
    data = {
        "info": {**viewer.info(), "total": len(rows), "note": note},
        "episodes": rows,
        "replays": {k: v for k, (_, v) in replays.items()},
    }
    style, script = _template("viewer.css"), _template("viewer.js")
    policy = page_policy(styles=[style], scripts=[script])
    html = _template("viewer.html").replace("<!--STYLE-->", f"{policy}\n<style>{style}</style>")
    block = f'<script type="application/json" id="data">{script_json(data)}</script>\n<script>{script}</script>'
    write_text(path, html.replace("<!--SCRIPT-->", block), "--export")
    return len(rows)


def _spread(viewer: Viewer, limit: int) -> list[dict[str, Any]]:
    """Rows of the list, taken in turn from each kind of episode, newest first within a kind."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in viewer.index.newest(50 * limit):
        kinds[
            row["arm"], row["seed"], row["stage"], row["split"], row["success"], row["wrong"], row["malformed"]
        ].append(row)
    picked: list[dict[str, Any]] = []
    while kinds and len(picked) < limit:
        for kind in list(kinds):
            picked.append(kinds[kind].pop(0))
            if not kinds[kind]:
                del kinds[kind]
    return sorted(picked[:limit], key=lambda row: row["id"])
