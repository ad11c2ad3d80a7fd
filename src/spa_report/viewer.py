"""`spa view`: show runs, curves and episodes on a web page, served locally or exported as one file.

The server answers GET requests for a fixed set of paths, and no part of a request becomes a file
name. Other users of the machine can reach the port, too, so each request needs the token from the
URL that the server printed. On the loopback interface, the server also rejects requests with
another host name. Otherwise another website could read a run through the visitor's browser.
"""

import hmac
import ipaddress
import json
import logging
import re
import secrets
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from spa.errors import DataError, SpaError
from spa.run.estimate import PLAN
from spa_report.build import template, write_text
from spa_report.content import Report, build
from spa_report.index import (
    EpisodeIndex,
    Place,
    mean_advantage,
    read_episode,
    read_imagined,
    read_scores,
)
from spa_report.overview import run_row
from spa_report.progress import live
from spa_report.reading import is_run, open_run, problem_text
from spa_report.replay import find_tokenizer, replay, shown
from spa_report.security import page_policy, script_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HOST = "127.0.0.1"
SECONDS_BETWEEN_LOOKS = 2.0
STYLES = ("uplot.css", "charts.css", "viewer.css")
SCRIPTS = ("uplot.js", "charts.js", "viewer.js")
# Allows only files of this server and `data:` images. Inline scripts are blocked, and other pages
# cannot embed the viewer.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_LOGGER = logging.getLogger("spa.view")

REQUEST_S = 30.0
"""Seconds that a client may take to send its request. Without a limit, idle connections would
occupy threads."""
MOST_FIELDS = 50
_NUMBER = re.compile(r"[0-9]{1,12}")


class Viewer:
    """The data of one run, for the server or an export."""

    def __init__(self, run: Path, *, cache_file: Path | None = None) -> None:
        self.run = open_run(run)
        self.index = EpisodeIndex(run, cache=cache_file)
        # `cache` makes each stage folder load its tokenizer only once.
        self._tokenizer: Callable[[Path], Tokenizer | None] = cache(
            partial(find_tokenizer, root=self.index.root)
        )

    def info(self) -> dict[str, Any]:
        """The run's name, the choices and initial values of the filters, the number of episodes,
        and the progress of indexing."""
        return {
            "run": shown(self.run.name, 200),
            "choices": self.index.choices(),
            "first": self.index.last_validation(),
            "progress": self.index.progress,
            "total": self.index.page({}, limit=1)["total"],
        }

    def page(self, query: dict[str, str]) -> dict[str, Any]:
        """One page of the list of episodes. `query` has the filters, order, offset and limit."""
        return self.index.page(
            query, order=query.get("order", ""), **_numbers(query, "offset", "limit")
        )

    def episode(self, number: int) -> dict[str, Any] | None:
        """The replay of one episode, with its group under `team`. None if the episode does not
        exist."""
        place = self.index.place(number)
        episode = read_episode(place) if place else None
        if place is None or episode is None:
            return None
        group = self.index.group(number)
        scores = read_scores(place, [row["episode"] for row in group])
        own = scores.get(str(episode.get("episode_id")), {})
        # The file is <stage>/trajectories/<split>-<step>.jsonl, so the stage folder is two levels
        # up.
        view = replay(episode, tokenizer=self._tokenizer(place.path.parent.parent), scores=own)
        for row in group:
            row["advantage"] = mean_advantage(scores.get(row["episode"], {}))
        trees = read_imagined(place, str(episode.get("episode_id")))
        for turn, tree in zip(
            view["turns"], map(trees.get, range(len(view["turns"]))), strict=True
        ):
            turn["imagined"] = tree
        return {**view, "team": group}

    def raw(self, number: int) -> dict[str, Any] | None:
        """The episode as recorded, or None if it cannot be read."""
        place: Place | None = self.index.place(number)
        return read_episode(place) if place else None

    def examples(self, query: dict[str, str]) -> dict[str, Any]:
        """A page of the world model's training examples; see `spa_report.examples`."""
        from spa_report.examples import examples

        return examples(open_run(self.index.root), **_numbers(query, "file", "offset"))


class Library:
    """The runs of a folder, or the folder itself if it is a run. Methods may be called from several
    threads."""

    def __init__(self, folder: Path, *, caches: Path | None = None) -> None:
        """Open a folder. `caches` is the folder for index files; by default, each index is stored
        in its run. Raises DataError if `folder` is not a directory."""
        if not folder.is_dir():
            raise DataError(
                f"{folder} is not a directory. Give the folder of a run, or a folder of runs."
            )
        self.folder = folder.resolve()
        self.single = is_run(folder)
        self.wake = threading.Event()
        self._caches = caches
        self._viewers: dict[str, Viewer] = {}
        self._kept: dict[Any, tuple[Any, Any]] = {}
        self._lock = threading.Lock()
        if self.single:
            self.viewer(self.folder.name)

    def places(self) -> dict[str, Path]:
        """The folders that may be runs, by name."""
        # A request selects from these names, and never becomes part of a path.
        folders = [self.folder] if self.single else sorted(self.folder.iterdir())
        return {
            path.name: path for path in folders if path.is_dir() and not path.name.startswith(".")
        }

    def viewer(self, name: str) -> Viewer | None:
        """The viewer of a run, or None if there is no run of this name. Raises DataError if the run
        is unreadable."""
        # Two simultaneous requests for a new run must not build its index twice.
        with self._lock:
            if name not in self._viewers:
                if name not in (places := self.places()):
                    return None
                file = self._caches / f"{len(self._viewers)}.sqlite" if self._caches else None
                self._viewers[name] = Viewer(places[name], cache_file=file)
                self.wake.set()
            return self._viewers[name]

    def update(self) -> None:
        """Update the indices of all opened runs."""
        for viewer in list(self._viewers.values()):
            try:
                viewer.index.update()
            except (SpaError, OSError, ValueError, sqlite3.Error) as error:
                # The run is being moved or is damaged. The next update tries again.
                _LOGGER.debug("cannot update the index of a run, will try again: %s", error)

    def list_runs(self) -> dict[str, Any]:
        """The table of runs as JSON-ready values."""
        lines = [(name, run_row(path, time.time())) for name, path in self.places().items()]
        runs = [{"key": name, **asdict(line)} for name, line in lines if line]
        return {"folder": shown(self.folder.name, 200), "single": self.single, "runs": runs}

    def live(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """The current work of each named run that has a running command."""
        places = self.places()
        runs = [open_run(places[name]) for name in names if name in places]
        return [asdict(now) for run in runs if (now := live(run, time.time()))]

    def report(self, names: Sequence[str]) -> Report | None:
        """Build the report on the named runs, without its gallery of episodes. Return None if no
        run is named or one of them does not exist."""
        places = self.places()
        if not names or not all(name in places for name in names):
            return None
        runs = [open_run(places[name]) for name in names]
        files = [
            path
            for run in runs
            for stage in run.stages
            for path in (*stage.path.glob("*.json*"), stage.path / "config.yaml")
        ]
        files += [stage.evaluation for run in runs for stage in run.stages]
        files += [run.path / name for run in runs for name in ("summary.json", PLAN)]
        # Building a report takes seconds, and pages request it often, so rebuild it only if one of
        # these files has changed.
        stamp = [
            (path, path.stat().st_mtime_ns, path.stat().st_size) for path in files if path.is_file()
        ]
        if self._kept.get(tuple(names), (None,))[0] != stamp:
            self._kept[tuple(names)] = stamp, build(runs, episodes=False)
        return self._kept[tuple(names)][1]


def _numbers(query: Mapping[str, str], *keys: str) -> dict[str, int]:
    return {key: int(query[key]) for key in keys if _NUMBER.fullmatch(query.get(key, ""))}


class ViewerServer(ThreadingHTTPServer):
    """The server of a library. `token` grants access: `/?token=...` sets the cookie that a browser
    sends with later requests."""

    daemon_threads = True

    def __init__(self, library: Library, host: str, port: int) -> None:
        self.token = secrets.token_urlsafe(24)
        self.is_loopback = _is_loopback(host)
        self.names = (f"[{host}]" if ":" in host else host, HOST, "localhost")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), partial(_Handler, library))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an error, but say nothing of a browser that has gone."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def cookie(self) -> str:
        """The cookie's name. It contains the port, because browsers share cookies between the ports
        of a host."""
        return f"spa_{self.server_address[1]}"


def serve(library: Library, port: int, *, host: str = HOST) -> ViewerServer:
    """Create a server, and start a thread that keeps the indices up to date. The caller must call
    `serve_forever`. Port 0 chooses a free port. Raises OSError or OverflowError if the port cannot
    be used."""
    server = ViewerServer(library, host, port)
    threading.Thread(target=_update_forever, args=(library,), daemon=True).start()
    return server


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a host name, not an IP address
        return host == "localhost"


def _update_forever(library: Library) -> None:
    while True:
        # Clear `wake` before the update, so that a run opened during it is indexed without delay.
        library.wake.clear()
        library.update()
        library.wake.wait(SECONDS_BETWEEN_LOOKS)


class _Handler(BaseHTTPRequestHandler):
    """Handles GET requests for the page, its styles and scripts, and the data."""

    timeout = REQUEST_S
    server_version = "spa"
    sys_version = ""

    def __init__(self, library: Library, *arguments: Any) -> None:
        self._library = library
        super().__init__(*arguments)

    @property
    def _own(self) -> ViewerServer:
        assert isinstance(self.server, ViewerServer)
        return self.server

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        try:
            fields = parse_qs(address.query, max_num_fields=MOST_FIELDS)
        except ValueError:  # more fields than any request of the page has
            return self._say(HTTPStatus.NOT_FOUND, "Not found.")
        query = {key: values[-1] for key, values in fields.items()}
        # In a DNS rebinding attack, another site points its own name at 127.0.0.1. Its requests
        # then have that name in the Host header.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if self._own.is_loopback and host not in self._own.names:
            return self._say(
                HTTPStatus.FORBIDDEN,
                f"This server accepts only the host name {self._own.names[0]}. Open the address "
                "that `spa view` printed.",
            )
        if not self._is_known(query.pop("token", "")):
            return self._say(
                HTTPStatus.FORBIDDEN,
                "The token is missing. Open the whole address that `spa view` printed.",
            )
        # Move the token into a cookie, because it could be copied from the address bar or stay in
        # the browser's history.
        if address.path == "/" and "token=" in address.query:
            # With `Strict`, the browser would withhold the cookie if a link on another page opens
            # the URL.
            cookie = f"{self._own.cookie}={self._own.token}; Path=/; HttpOnly; SameSite=Lax"
            return self._send(
                HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie}
            )
        page = _pages().get(address.path)
        if page:
            return self._send(HTTPStatus.OK, *page)
        names = fields.get("run") or list(self._library.places())[: self._library.single]
        try:
            answer = self._data(address.path, query, names)
        except Exception as error:  # noqa: BLE001 - a file may contain anything, and other runs must be shown
            return self._say(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"Cannot read the run: {problem_text(error)}"
            )
        if answer is None:
            return self._say(
                HTTPStatus.NOT_FOUND,
                "Not found. The run may have changed, so reload the list.",
            )
        saved = (
            {"Content-Disposition": 'attachment; filename="episode.json"'}
            if "/raw/" in address.path
            else {}
        )
        self._send(HTTPStatus.OK, json.dumps(answer).encode(), "application/json", saved)

    def _is_known(self, token: str) -> bool:
        """Return whether the request has the token, in its URL or as a cookie."""
        try:
            shown = SimpleCookie(self.headers.get("Cookie", "")).get(self._own.cookie)
        except CookieError:
            shown = None
        given = (token, shown.value if shown else "")
        # Compare in constant time, so that the delay reveals nothing about the token.
        return any(hmac.compare_digest(text.encode(), self._own.token.encode()) for text in given)

    def _data(self, path: str, query: dict[str, str], names: list[str]) -> Any:
        if path == "/api/runs":
            return self._library.list_runs()
        if path == "/api/live":
            return self._library.live(names)
        if path == "/api/report":
            report = self._library.report(names)
            return asdict(report) if report else None
        viewer = self._library.viewer(names[0]) if len(names) == 1 else None
        if viewer is None:
            return None
        if path == "/api/info":
            return viewer.info()
        if path in ("/api/episodes", "/api/examples"):
            return viewer.page(query) if path == "/api/episodes" else viewer.examples(query)
        kind, _, number = path.removeprefix("/api/").partition("/")
        if kind not in ("episode", "raw") or not _NUMBER.fullmatch(number):
            return None
        return viewer.episode(int(number)) if kind == "episode" else viewer.raw(int(number))

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._send(status, text.encode(), "text/plain; charset=utf-8")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, more: Mapping[str, str] | None = None
    ) -> None:
        self.send_response(status)
        # `no-store` keeps the texts of a run out of the browser's cache.
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
        """Do not log requests."""


@cache
def _pages() -> dict[str, tuple[bytes, str]]:
    styles = "".join(f'<link rel="stylesheet" href="/{name}">' for name in STYLES)
    scripts = "".join(f'<script src="/{name}"></script>' for name in SCRIPTS)
    page = template("viewer.html").replace("<!--STYLE-->", styles).replace("<!--SCRIPT-->", scripts)
    return {
        "/": (page.encode(), "text/html; charset=utf-8"),
        **{f"/{name}": (template(name).encode(), "text/css; charset=utf-8") for name in STYLES},
        **{
            f"/{name}": (template(name).encode(), "text/javascript; charset=utf-8")
            for name in SCRIPTS
        },
    }


def export(viewer: Viewer, path: Path, *, limit: int = 200) -> int:
    """Write a page that needs no server, with at most `limit` episodes. Return their number.

    The episodes are taken evenly from methods, stages, successes and failures, with the latest
    steps first.
    """
    viewer.index.update()
    total = viewer.index.page({}, limit=1)["total"]
    replays = {
        row["id"]: (row, episode)
        for row in viewer.index.spread(limit)
        if (episode := viewer.episode(row["id"])) is not None
    }
    rows = [row for row, _ in replays.values()]
    note = f"This page shows {len(rows)} of {total:,} episodes" if len(rows) < total else ""
    line = run_row(viewer.index.root, time.time())
    report = None
    examples = None
    try:
        report = asdict(build([open_run(viewer.index.root)], episodes=False))
        examples = viewer.examples({})
        # The exported page contains only these examples, so it must not offer others.
        examples["files"] = examples["files"][:1]
        examples["total"] = len(examples["examples"])
    except Exception as error:  # noqa: BLE001 - a file may contain anything, and the episodes must be shown
        _LOGGER.warning(
            "the page of %s has no curves, because a file is unreadable: %s",
            viewer.index.root,
            problem_text(error),
        )
    data = {
        "runs": {
            "folder": "",
            "single": True,
            "runs": [{"key": viewer.run.name, **asdict(line)}] if line else [],
        },
        "report": report,
        "examples": examples,
        "info": {**viewer.info(), "total": len(rows), "note": note},
        "episodes": rows,
        "replays": {k: v for k, (_, v) in replays.items()},
    }
    # The export is one file, so inline the styles and scripts. The script reads the data from a
    # JSON element instead of the server's API.
    styles = [template(name) for name in STYLES]
    scripts = [template(name) for name in SCRIPTS]
    head = [
        page_policy(styles=styles, scripts=scripts),
        *(f"<style>{style}</style>" for style in styles),
    ]
    body = [f'<script type="application/json" id="data">{script_json(data)}</script>']
    body += [f"<script>{script}</script>" for script in scripts]
    page = template("viewer.html").replace("<!--STYLE-->", "\n".join(head))
    write_text(path, page.replace("<!--SCRIPT-->", "\n".join(body)), "--export")
    return len(rows)
