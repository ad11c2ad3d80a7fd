"""Full-text search over a catalogue: SQLite's FTS5 with BM25 ranking."""

import re
import sqlite3
import threading
from collections.abc import Iterable, Sequence

from spa.errors import DataError
from spa_games.shop.catalogue import Product

MAX_HITS = 50
MAX_QUERY = 400
MAX_WORDS = 40
_WORD = re.compile(r"[^\W_]+")


def document(product: Product) -> str:
    """Searchable text of a product: title, description, first feature and options, in lower
    case."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    first = product.features[0] if product.features else ""
    return " ".join([product.title, product.description, first, options]).lower()


def match_expression(query: str) -> str:
    """The FTS5 expression that matches documents with any word of a free-text query. Empty if the
    query has no words."""
    words = dict.fromkeys(_WORD.findall(query[:MAX_QUERY].lower()))
    # The quotes make FTS5 read each word as a search term, never as an operator.
    return " OR ".join(f'"{word}"' for word in list(words)[:MAX_WORDS])


class SearchIndex:
    """An in-memory search index. It is thread-safe and never changes after construction."""

    def __init__(self, products: Iterable[Product]) -> None:
        self._lock = threading.Lock()
        self._asins = []
        # Threads may share the connection, because `self._lock` serializes its use.
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute(
                # `porter` reduces words to their stems, so `shoes` finds `shoe`.
                "CREATE VIRTUAL TABLE items USING fts5(text, tokenize='porter unicode61')"
            )
        except sqlite3.OperationalError as error:
            raise DataError(
                "The shop's search needs SQLite with FTS5, which this Python lacks "
                f"({error}); use a Python whose SQLite has FTS5"
            ) from error
        for number, product in enumerate(products):
            self._asins.append(product.asin)
            self._database.execute(
                "INSERT INTO items(rowid, text) VALUES (?, ?)", (number, document(product))
            )
        # No product is added later, so merge the segments of the index into one.
        self._database.execute("INSERT INTO items(items) VALUES ('optimize')")
        self._database.commit()

    def search(self, query: str) -> Sequence[str]:
        """The asins of up to 50 products that match the query, best match first. Ties keep the
        catalogue order."""
        expression = match_expression(query)
        if not expression:
            return ()
        # SQLite's bm25() is smaller for better matches.
        sql = "SELECT rowid FROM items WHERE items MATCH ? ORDER BY bm25(items), rowid LIMIT ?"
        with self._lock:
            rows = self._database.execute(sql, (expression, MAX_HITS)).fetchall()
        return tuple(self._asins[row] for (row,) in rows)
