"""A small Hub on this machine: repositories of files, with the requests that huggingface_hub makes of a real one."""

import base64
import hashlib
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """`repos["model"]["owner/name"]` is a mapping of file names to bytes. A context manager; `address` is its endpoint."""

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, dict[str, bytes]]] = defaultdict(dict)
        self.private: dict[str, bool] = {}
        self.refuse: int | None = None  # a status for every request

    def __enter__(self) -> "FakeHub":
        hub = self

        class Bound(Handler):
            state = hub

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        threading.Thread(
            target=self.http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def find(self, path: str) -> tuple[str, str, list[str]]:
        """Kind, repository and the rest of a path such as /api/datasets/o/n/revision/main or /o/n/resolve/main/f."""
        parts = [unquote(part) for part in path.split("/") if part]
        if parts[0] == "api":
            parts = parts[1:]
        kind = "dataset" if parts[0] == "datasets" else "model"
        if parts[0] in ("datasets", "models"):
            parts = parts[1:]
        return kind, "/".join(parts[:2]), parts[2:]


class Handler(BaseHTTPRequestHandler):
    state: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def answer(self, status: int, body: Any = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_GET(self) -> None:
        if self.state.refuse:
            self.answer(self.state.refuse, {"error": "refused"})
            return
        kind, name, rest = self.state.find(urlsplit(self.path).path)
        files = self.state.repos[kind].get(name)
        if files is None:
            self.answer(404, {"error": "no"}, X_Error_Code="RepoNotFound")
        elif rest[:1] == ["resolve"]:
            data = files.get("/".join(rest[2:]))
            if data is None:
                self.answer(404, {"error": "no"}, X_Error_Code="EntryNotFound")
            else:
                etag = f'"{hashlib.sha1(data).hexdigest()}"'
                self.answer(200, data, ETag=etag, X_Repo_Commit=COMMIT)
        elif rest[:1] == ["tree"]:
            self.answer(
                200,
                [
                    {"type": "file", "path": path, "size": len(data), "oid": "0"}
                    for path, data in files.items()
                ],
            )
        else:
            siblings = [{"rfilename": path} for path in files]
            self.answer(
                200,
                {
                    "id": name,
                    "_id": "0",
                    "sha": COMMIT,
                    "siblings": siblings,
                    "private": False,
                    "tags": [],
                },
            )

    do_HEAD = do_GET

    def do_POST(self) -> None:
        sent = self.body()
        if self.state.refuse:
            self.answer(self.state.refuse, {"error": "refused"})
            return
        path = urlsplit(self.path).path
        if path == "/api/repos/create":
            asked = json.loads(sent)
            kind, name = (
                asked.get("type") or "model",
                f"{asked.get('organization') or 'me'}/{asked['name']}",
            )
            self.state.repos[kind].setdefault(name, {})
            self.state.private[name] = asked.get("visibility") == "private" or bool(
                asked.get("private")
            )
            self.answer(200, {"url": f"{self.state.address}/{name}", "name": name, "id": "0"})
            return
        kind, name, rest = self.state.find(path)
        if rest[:1] == ["preupload"]:
            files = json.loads(sent)["files"]
            modes = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False, "oid": None}
                for f in files
            ]
            self.answer(200, {"files": modes})
        elif rest[:1] == ["commit"]:
            for line in sent.splitlines():
                record = json.loads(line)
                if record["key"] == "file":
                    value = record["value"]
                    self.state.repos[kind][name][value["path"]] = base64.b64decode(value["content"])
            self.answer(
                200,
                {"commitUrl": f"{self.state.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT},
            )
        else:
            self.answer(200, {})
