"""The viewer over real HTTP: what it answers, what it refuses, and the page that needs no server."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_report import hostile_run

import spa_report.viewer as viewer_module
from spa_report.viewer import HOST, SCRIPTS, STYLES, Library, Viewer, export, serve

PARTS = {f"/{name}": "text/css" for name in STYLES} | {
    f"/{name}": "text/javascript" for name in SCRIPTS
}
COOKIES: dict[int, str] = {}
"""What opens the server at a port."""


@pytest.fixture(scope="module")
def port(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    library = Library(demo, caches=tmp_path_factory.mktemp("cache"))
    library.update()
    server = serve(library, 0)
    COOKIES[server.server_address[1]] = f"{server.cookie}={server.token}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def get(port: int, path: str, host: str | None = None, method: str = "GET"):
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request(
        method, path, headers={"Host": host or f"{HOST}:{port}", "Cookie": COOKIES[port]}
    )
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_the_page_and_its_files(port: int):
    for path, kind in (("/", "text/html"), *PARTS.items()):
        status, headers, body = get(port, path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and len(body) > 500
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_episodes_can_be_listed_filtered_and_replayed(port: int):
    info = json.loads(get(port, "/api/info")[2])
    assert (
        info["run"] == "demo"
        and info["total"] > 100
        and set(info["choices"]["arm"]) == {"spa", "vanilla"}
    )
    page = json.loads(get(port, "/api/episodes?arm=spa&wrong=1&order=-score&limit=3")[2])
    assert len(page["episodes"]) == 3 and page["total"] < info["total"]
    number = page["episodes"][0]["id"]
    episode = json.loads(get(port, f"/api/episode/{number}")[2])
    assert episode["id"] == page["episodes"][0]["episode"]
    assert any(turn["prediction_wrong"] for turn in episode["turns"])
    # decoded with the checkpoint's tokenizer
    assert not episode["prompt_tokens"]["text"][0].startswith("[")
    status, headers, raw = get(port, f"/api/raw/{number}")
    assert status == 200 and "attachment" in headers["Content-Disposition"]
    assert json.loads(raw)["episode_id"] == episode["id"]


def test_training_episodes_show_advantages(port: int):
    row = json.loads(get(port, "/api/episodes?arm=spa&split=train&limit=1")[2])["episodes"][0]
    episode = json.loads(get(port, f"/api/episode/{row['id']}")[2])
    assert set(episode["turns"][0]["tokens"]["numbers"]) == {"logprob", "advantage"}


@pytest.mark.parametrize("path", ["/../pyproject.toml", "/etc/passwd", "/api/episode/..%2f..", "/api/episode/9999999", "/api/raw/-1", "/api/episode/%D9%A1", "/api/nothing/1", "//evil"])  # fmt: skip
def test_everything_else_is_not_found(port: int, path: str):
    assert get(port, path)[0] == 404


@pytest.mark.parametrize(
    "query",
    [
        "offset=99999999999999999999999",
        "limit=1" + "0" * 5000,
        "offset=%C2%B2",
        "offset=-5",
        "limit=abc",
        "limit=99999999",
        "order=1;--",
        "success=2",
        "q=%00%ff'\"",
    ],
)
def test_odd_queries_are_answered(port: int, query: str):
    status, _, body = get(port, f"/api/episodes?{query}")
    assert status == 200 and len(json.loads(body)["episodes"]) <= 500


def test_more_fields_than_anything_has_are_not_read(port: int):
    assert get(port, "/api/episodes?" + "&".join(f"a{n}=1" for n in range(200)))[0] == 404


def test_a_client_that_says_nothing_is_let_go(monkeypatch, port: int):
    monkeypatch.setattr(viewer_module._Handler, "timeout", 0.2)
    with socket.create_connection((HOST, port), timeout=20) as silent:
        assert silent.recv(1) == b""


def test_nothing_is_printed_of_a_browser_that_has_gone(capsys, demo: Path, tmp_path: Path):
    server = serve(Library(demo, caches=tmp_path), 0)
    try:
        raise BrokenPipeError
    except BrokenPipeError:
        server.handle_error(None, (HOST, 1))
    assert capsys.readouterr().err == ""
    try:
        raise KeyError("a defect")
    except KeyError:
        server.handle_error(None, (HOST, 1))
    assert "a defect" in capsys.readouterr().err
    server.server_close()


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8000", "", "[::1]"])
def test_a_request_for_another_host_is_refused(port: int, host: str):
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.putrequest("GET", "/api/info", skip_host=True)
    connection.putheader("Host", host)
    connection.putheader("Cookie", COOKIES[port])
    connection.endheaders()
    assert connection.getresponse().status == 403


def asked(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


@pytest.mark.parametrize(
    "path",
    ["/", "/api/info", "/api/raw/1", "/viewer.js", "/?token=", "/api/info?token=é", "/nothing"],
)
@pytest.mark.parametrize("cookie", ["", "spa_1=x", "spa_PORT=", "spa_PORT=guess", "\x00;;=,é"])
def test_who_has_no_token_sees_nothing(port: int, path: str, cookie: str):
    answer = asked(
        port,
        path.replace("é", "%C3%A9"),
        Cookie=cookie.replace("PORT", str(port)).encode().decode("latin-1"),
    )
    assert answer.status == 403 and b"token" in answer.read()


def test_the_address_that_was_printed_gives_a_browser_its_cookie(port: int):
    token = COOKIES[port].partition("=")[2]
    answer = asked(port, f"/?token={token}")
    given = answer.headers["Set-Cookie"]
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    assert given.startswith(f"{COOKIES[port]};") and "HttpOnly" in given and "SameSite=Lax" in given
    assert asked(port, "/", Cookie=COOKIES[port]).status == 200
    assert asked(port, f"/api/info?token={token}").status == 200


def test_on_an_address_of_the_network_any_name_will_do_and_the_token_is_needed(
    demo: Path, tmp_path: Path
):
    server = serve(Library(demo, caches=tmp_path), 0, host="0.0.0.0")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    name = {"Host": f"big-machine:{port}"}
    assert asked(port, "/", **name).status == 403
    assert asked(port, f"/api/info?token={server.token}", **name).status == 200
    server.shutdown()
    server.server_close()


def test_the_command_prints_an_address_that_opens(demo: Path, tmp_path: Path):
    run = shutil.copytree(demo, tmp_path / "run")
    code = "import sys; from spa.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", code, "view", str(run), "--port", "0", "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as command_:
        assert command_.stdout is not None
        address = command_.stdout.readline().split()[0]
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        assert b"viewer.js" in browser.open(address, timeout=30).read()
        command_.terminate()


def test_the_token_is_not_in_the_browsers_command_line(demo: Path, tmp_path: Path):
    """Which every user of the machine can read."""
    run = shutil.copytree(demo, tmp_path / "run")
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\ncp "${{1#file://}}" {tmp_path}/page\necho "$@" > {tmp_path}/line\nmv {tmp_path}/line {tmp_path}/words\n'
    )
    browser.chmod(0o755)
    words = [sys.executable, "-m", "spa", "view", str(run), "--port", "0"]
    folder = Path(tempfile.mkdtemp())  # unlike `tmp_path`, its name has no "token"
    environment = {**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(folder)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as command_:
        assert command_.stdout is not None
        address = command_.stdout.readline().split()[0]
        give_up = time.monotonic() + 60
        while not (tmp_path / "words").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        command_.terminate()
    found = re.search('url=([^"]+)', (tmp_path / "page").read_text())
    assert found and found[1] == address and "token=" in address
    assert "token" not in (tmp_path / "words").read_text()
    assert not list(folder.rglob("open.html"))
    shutil.rmtree(folder)


@pytest.mark.parametrize("host", ["::1", "127.0.0.2"])
def test_it_listens_on_other_addresses_of_this_machine(demo: Path, tmp_path: Path, host: str):
    server = serve(Library(demo, caches=tmp_path), 0, host=host)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name = f"[{host}]" if ":" in host else host
    for named, status in (
        (name, 200),
        ("evil.example", 403),
        (f"{name}.evil.example", 403),
        ("[", 403),
    ):
        connection = http.client.HTTPConnection(host, server.server_address[1], timeout=10)
        headers = {"Host": f"{named}:{server.server_address[1]}"}
        connection.request("GET", f"/api/info?token={server.token}", headers=headers)
        assert connection.getresponse().status == status
    server.shutdown()
    server.server_close()


def test_nothing_can_be_posted(port: int):
    assert get(port, "/api/info", method="POST")[0] == 501


def test_the_export_holds_a_spread_of_episodes(demo: Path, tmp_path: Path):
    viewer = Viewer(demo, cache_file=tmp_path / "index.sqlite")
    assert export(viewer, tmp_path / "out.html", limit=20) == 20
    text = (tmp_path / "out.html").read_text()
    block = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert block
    data = json.loads(block[1])
    assert len(data["replays"]) == len(data["episodes"]) == 20
    assert {(row["arm"], row["success"]) for row in data["episodes"]} == {
        ("spa", 0),
        ("spa", 1),
        ("vanilla", 0),
        ("vanilla", 1),
    }
    assert "20 of 224 episodes" in data["info"]["note"]
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', text)


def test_hostile_text_in_an_export(tmp_path: Path):
    run = hostile_run(tmp_path / "run")
    viewer = Viewer(run, cache_file=tmp_path / "index.sqlite")
    export(viewer, tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text(encoding="utf-8")
    assert text.lower().count("<script") == text.lower().count("</script") == 1 + len(SCRIPTS)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", text)


def test_looking_needs_no_torch():
    code = (
        "import sys, spa_report.viewer, spa_report.command_view; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
