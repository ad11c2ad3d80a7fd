"""A web server for browsing the shop. It shows the same pages as the environment, and listens on
the loopback interface only.

A page's URL determines its content, so the server keeps no sessions. All text is escaped.
"""

import html
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlencode, urlsplit

from spa_games.shop.pages import KINDS, PER_PAGE, Block, Kind, View, render
from spa_games.shop.search import MAX_HITS, MAX_QUERY
from spa_games.shop.shop import Shop
from spa_games.shop.vocabulary import asset

HOST = "127.0.0.1"
_KINDS: dict[str, Kind] = {kind: kind for kind in KINDS}


class BadAddress(ValueError):
    """A URL that does not belong to a page of the shop."""


def address(goal: int, view: View) -> str:
    """The URL path and query of a page. `goal` is an index into the shop's goals."""
    fields = [("goal", str(goal)), ("kind", view.kind)]
    fields += [("q", view.keywords)] if view.keywords else []
    fields += [("page", str(view.page))] if view.page > 1 else []
    fields += [("asin", view.asin)] if view.asin else []
    for name, value in view.options:
        fields += [("name", name), ("value", value)]
    return "/?" + urlencode(fields)


def read_address(shop: Shop, query: str) -> tuple[int, View]:
    """Parse the query string of a URL into the index of the goal and the view. An empty query means
    the search page of the first goal.

    Raises BadAddress for a page to which no link of the shop leads, such as an option that the
    product does not have.
    """
    try:
        fields = parse_qs(query, keep_blank_values=True, max_num_fields=200)
        names = fields.get("name", [])
        values = fields.get("value", [])
        goal = int(fields.get("goal", ["0"])[0])
        page = int(fields.get("page", ["1"])[0])
        # `strict` raises ValueError for an option without a value.
        options = tuple(zip(names, values, strict=True))
    except ValueError as error:
        raise BadAddress(str(error)) from error
    kind = _KINDS.get(fields.get("kind", ["search"])[0])
    asin = fields.get("asin", [""])[0]
    keywords = fields.get("q", [""])[0][:MAX_QUERY]
    if kind is None or not 0 <= goal < len(shop.goals) or not 1 <= page <= -(-MAX_HITS // PER_PAGE):
        raise BadAddress("no such page")
    if kind in ("search", "results"):
        return goal, View() if kind == "search" else View(
            kind="results", keywords=keywords, page=page
        )
    if asin not in shop.products:
        raise BadAddress("no such product")
    offered = dict(shop.products[asin].options)
    if any(value not in offered.get(name, ()) for name, value in options):
        raise BadAddress("no such option")
    return goal, View(
        kind=kind, keywords=keywords, page=page, asin=asin, options=tuple(sorted(options))
    )


def page_html(shop: Shop, goal: int, view: View) -> str:
    """The complete HTML page of a view."""
    request = html.escape(shop.goals[goal].instruction)
    page = render(shop, shop.goals[goal], view)
    around = [
        ("previous request", (goal - 1) % len(shop.goals)),
        ("next request", (goal + 1) % len(shop.goals)),
    ]
    nav = "".join(
        f'<a href="{html.escape(address(place, View()))}">{text}</a>' for text, place in around
    )
    body = "\n".join(
        [
            _form(goal, view) if page.has_search_bar else "",
            *(_paragraph(goal, block) for block in page.blocks),
        ]
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Shop</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="stylesheet" href="/style.css">'
        f"</head><body><header><p>Request {goal + 1} of {len(shop.goals)}: <strong>{request}</strong></p>"
        f"<nav>{nav}</nav></header><main>\n{body}\n</main></body></html>\n"
    )


def _form(goal: int, view: View) -> str:
    return (
        f'<form action="/" method="get"><input type="hidden" name="goal" value="{goal}">'
        '<input type="hidden" name="kind" value="results"><label>Search '
        f'<input name="q" value="{html.escape(view.keywords)}" maxlength="{MAX_QUERY}" required autofocus></label> '
        "<button>Search</button></form>"
    )


def _paragraph(goal: int, block: Block) -> str:
    links = "".join(
        f'<a class="link{" chosen" if link.chosen else ""}" href="{html.escape(address(goal, link.view))}">'
        f"{html.escape(link.label)}</a>"
        for link in block.links
    )
    return (
        f"<p>{html.escape(block.text).replace(chr(10), '<br>')}{'<br>' if links else ''}{links}</p>"
    )


def make_server(shop: Shop, port: int) -> ThreadingHTTPServer:
    """Create a server for the shop on 127.0.0.1. Port 0 chooses a free port. Raises OSError or
    OverflowError if the port cannot be used."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # seconds that a client may take to send its request

        def do_GET(self) -> None:
            try:
                parts = urlsplit(self.path)
                if parts.path == "/style.css":
                    self._answer(HTTPStatus.OK, "text/css", asset("style.css"))
                    return
                if parts.path != "/":
                    raise BadAddress("no such page")
                goal, view = read_address(shop, parts.query)
            except ValueError as error:  # raised by urlsplit, or a BadAddress
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", f"Not found: {error}\n")
                return
            self._answer(HTTPStatus.OK, "text/html", page_html(shop, goal, view))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            content = text.encode("utf-8", errors="replace")
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing, to keep the terminal free for the user."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    # Without this, a browser's open connection would keep the process from exiting.
    server.daemon_threads = True
    return server
