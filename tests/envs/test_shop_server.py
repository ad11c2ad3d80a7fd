import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
from html.parser import HTMLParser

import pytest
from shop_example import GOAL, HOSTILE, SHIRT, example_shop

from spa_games.shop.pages import KINDS, View
from spa_games.shop.server import BadAddress, address, make_server, page_html, read_address

SHOP = example_shop()


class Tags(HTMLParser):
    """Collects tags and their attributes."""

    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def port():
    server = make_server(SHOP, 0)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()
    thread.join()


def get(port, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_a_person_can_buy(port):
    place = SHOP.goals.index(GOAL)
    answer, text = get(port, address(place, View()))
    assert answer.status == 200 and "<form" in text and GOAL.instruction in text
    path = f"/?goal={place}&kind=results&q=cotton+shirt"
    for label in ("b000000001", "navy blue", "large", "reviews", "prev", "buy now"):
        _, text = get(port, path)
        path = href(text, label)
    answer, text = get(port, path)
    assert answer.status == 200 and "Your score: 1<" in text


def href(text, label):
    """The address of the link with this text."""
    before = text[: text.index(f">{label}</a>")]
    return before[before.rindex('href="') + 6 :].split('"')[0].replace("&amp;", "&")


def test_answers_on_loopback_only(port):
    assert get(port, "/style.css")[0].headers["Content-Type"].startswith("text/css")
    with make_server(SHOP, 0) as another:
        assert another.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/../etc/passwd",
        "/?goal=99",
        "/?goal=x",
        "/?goal=-1",
        "/?kind=admin",
        "/?kind=item&asin=B9",
        "/?kind=item",
        "/?page=0&kind=results",
        "/?kind=item&asin=B000000001&name=size&value=huge",
        "/?kind=item&asin=B000000001&name=size",
        "/?" + "a=1&" * 500,
        "/?goal=" + "9" * 5000,
    ],
)
def test_other_addresses_are_not_found(port, path):
    assert get(port, path)[0].status == 404
    assert get(port, "/")[0].status == 200


def test_what_is_no_address_is_not_found(port, capfd):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
        line.sendall(f"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        assert line.recv(100).startswith(b"HTTP/1.0 404")
    assert "Traceback" not in capfd.readouterr().err


def test_only_reading_is_possible(port):
    assert get(port, "/", method="POST")[0].status == 501


@pytest.mark.parametrize(
    "view",
    [
        View(),
        View(kind="results", keywords="script drop"),
        *(View(kind=kind, asin=HOSTILE.asin, keywords="<b>'\"") for kind in KINDS[2:]),
    ],
)
def test_everything_is_escaped(view):
    for place in range(len(SHOP.goals)):
        text = page_html(SHOP, place, view)
        found = Tags()
        found.feed(text)
        names = {tag for tag, _ in found.tags}
        assert not names & {"script", "img", "b", "answer", "observation"}
        assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
        for tag, attributes in found.tags:
            if tag == "a":
                assert attributes["href"].startswith("/?")


def test_addresses_round_trip():
    views = [
        View(),
        View(kind="results", keywords="a & b = c? <x> ü", page=3),
        View(
            kind="item",
            keywords="x",
            page=2,
            asin=SHIRT.asin,
            options=(("color", "white"), ("size", "small")),
        ),
        View(
            kind="done",
            asin=HOSTILE.asin,
            options=(("color", '"><img src=x onerror=alert(1)>'), ("size", "a]b[c")),
        ),
    ]
    for view in views:
        assert read_address(SHOP, address(1, view).removeprefix("/?")) == (1, view)
    with pytest.raises(BadAddress):
        read_address(SHOP, "kind=done&asin=B000000001&name=color&value=red")


def test_command_serves_until_interrupted():
    code = "from spa.cli import main; raise SystemExit(main(['env', 'shop', '--port', '0', '--no-browser']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"http://127\.0\.0\.1:(\d+)/  1024 products, 6089 requests", line)
        assert found is not None, line
        assert "Request 1 of 6089" in get(int(found.group(1)), "/")[1]
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 0
