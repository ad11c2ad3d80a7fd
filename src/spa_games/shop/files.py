"""Load products and goals from the files that WebShop publishes.

A folder has `items_shuffle.json` and `items_ins_v2.json` (or their `_1000` versions), and, for
goals written by people, `items_human_ins.json`.
"""

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spa.errors import DataError
from spa.seeds import stream
from spa_games.datafiles import Row
from spa_games.shop.catalogue import (
    Goal,
    OptionChoice,
    Product,
    clean_text,
    distinct_goals,
    price_limit,
    price_phrase,
)

SMALL = 1000
MAX_COMBINATIONS = 20
"""Maximum number of goals per product. The original creates one for each combination of option
values, which can be thousands."""

Annotations = Mapping[str, Any]
# Matches `$1,299.00` and `$ 5`.
_PRICE = re.compile(r"\$\s*([0-9][0-9,]*(?:\.[0-9]+)?)")


def find_file(folder: str, names: Sequence[str]) -> Path:
    """The path of the first of `names` that exists in `folder`. Raises DataError if none exists."""
    for name in names:
        path = Path(folder) / name
        if path.is_file():
            return path
    raise DataError(
        f"{folder}: the folder has none of the WebShop product files {', '.join(names)}; set "
        "option 'data' to the folder that has them"
    )


def read_json(path: Path, kind: type) -> Any:
    """Load a JSON file whose top level must be of type `kind` (list or dict). Raises DataError if
    the file cannot be read or has another type."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            content = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"{path}: the file is not valid JSON ({error}); copy or download it again"
        ) from error
    if not isinstance(content, kind):
        wanted = "an array" if kind is list else "an object"
        raise DataError(
            f"{path}: the top level of the JSON file must be {wanted}, got {type(content).__name__}"
        )
    return content


def load_products(folder: str, annotations: Annotations, *, small: bool) -> tuple[Product, ...]:
    """Load the products of a folder of WebShop files, only the first 1,000 rows if `small`.

    As in the original, rows with a repeated or invalid asin are skipped. Raises DataError if a row
    is invalid or no product remains. For a row, the error names the file, the row (counted from 1)
    and the column.
    """
    names = ("items_shuffle_1000.json", "items_shuffle.json") if small else ("items_shuffle.json",)
    path = find_file(folder, names)
    products: dict[str, Product] = {}
    items = read_json(path, list)
    for number, item in enumerate(items[:SMALL] if small else items, start=1):
        if not isinstance(item, dict):
            raise DataError(
                f"{path}, row {number}: expected a JSON object, got {type(item).__name__}"
            )
        row = Row(str(path), number, item)
        asin = _text(row, "asin").upper()
        if asin != "NAN" and len(asin) <= 10 and asin not in products:
            products[asin] = _product(row, asin, annotations)
    if not products:
        raise DataError(f"{path}: the file has no valid product; copy or download it again")
    return tuple(products.values())


def load_annotations(folder: str, *, small: bool) -> Annotations:
    """Load the file of product attributes.

    Returns a dictionary of columns for each asin. In it, `attributes` and `instruction_attributes`
    are tuples of cleaned texts. `instruction` is a string, None or missing.
    """
    names = ("items_ins_v2_1000.json", "items_ins_v2.json") if small else ("items_ins_v2.json",)
    path = find_file(folder, names)
    entries: dict[str, Any] = {}
    for number, (asin, entry) in enumerate(read_json(path, dict).items(), start=1):
        row = Row(str(path), number, entry if isinstance(entry, dict) else {asin: entry})
        if not isinstance(entry, dict):
            raise row.fail(asin, "an object")
        if not isinstance(entry.get("instruction", ""), str | None):
            raise row.fail("instruction", "a string")
        lists = {column: _texts(row, column) for column in ("attributes", "instruction_attributes")}
        entries[asin] = {**entry, **lists}
    return entries


def _text(row: Row, column: str, *, required: bool = True, empty: bool = False) -> str:
    value = row.values.get(column)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not empty and not value.strip()):
        raise row.fail(column, "a string")
    return clean_text(value)


def _texts(row: Row, column: str) -> tuple[str, ...]:
    value = row.values.get(column)
    items = [value] if isinstance(value, str) else value
    if items is None:
        return ()
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise row.fail(column, "a list of strings")
    return tuple(text for text in (clean_text(item, 500) for item in items) if text)


def _product(row: Row, asin: str, annotations: Annotations) -> Product:
    entry = annotations.get(asin) or {}
    price, price_text = _price(row, asin)
    return Product(
        asin=asin,
        title=_text(row, "name"),
        category=_text(row, "category", empty=True),
        query=_text(row, "query", empty=True).lower(),
        product_category=_text(row, "product_category", empty=True),
        description=_text(row, "full_description", required=False),
        features=_texts(row, "small_description"),
        price=price,
        price_text=price_text,
        options=tuple(_options(row)),
        attributes=tuple(clean_text(text, 200) for text in entry.get("attributes") or ()),
    )


def _price(row: Row, asin: str) -> tuple[float, str]:
    """The price in dollars, and the price text that pages show.

    A missing price becomes 100 dollars. A price range becomes a random price from the range, seeded
    by `asin`.
    """
    value = row.values.get("pricing")
    if not value:
        return 100.0, "$100.00"
    if not isinstance(value, str) or not (amounts := _PRICE.findall(value)):
        raise row.fail("pricing", "a price such as '$12.50' or '$5.00 to $9.00'")
    # A range such as `$5.00 to $9.00` has two prices.
    prices = [float(text.replace(",", "")) for text in amounts[:2]]
    if len(prices) == 1:
        return prices[0], f"${prices[0]:.2f}"
    low = min(prices)
    high = max(prices)
    price = low + stream(0, f"shop/range/{asin}").random() * (high - low)
    return round(price, 2), f"${low:.2f} to ${high:.2f}"


def _options(row: Row) -> Iterator[tuple[str, tuple[str, ...]]]:
    table = row.values.get("customization_options") or {}
    if not isinstance(table, dict):
        raise row.fail("customization_options", "an object")
    for name, entries in table.items():
        if entries is None:
            continue
        if not isinstance(entries, list) or not all(
            isinstance(entry, dict) and isinstance(entry.get("value"), str) for entry in entries
        ):
            raise row.fail(
                "customization_options", f"a list of objects with a 'value' under {name!r}"
            )
        values = (option_value(entry["value"]) for entry in entries)
        distinct = tuple(dict.fromkeys(value for value in values if value))
        if distinct:
            yield clean_text(name, 100).lower(), distinct


def option_value(text: str) -> str:
    """An option value in the shop's form: lower case, with ` | ` in place of each slash."""
    # `red/white` -> `red | white`
    return clean_text(text.strip().replace("/", " | ").lower(), 200)


def annotated_goals(annotations: Annotations, products: Sequence[Product]) -> tuple[Goal, ...]:
    """Create goals from the attribute file: one per combination of option values, at most 20 per
    product."""
    goals = []
    for product in products:
        entry = annotations.get(product.asin) or {}
        attributes = tuple(
            clean_text(text, 200).lower() for text in entry.get("instruction_attributes") or ()
        )
        if not entry.get("instruction") or not attributes:
            continue
        for number, options in enumerate(_combinations(product)):
            chosen = ", and ".join(f"{name}: {value}" for name, value in options)
            text = clean_text(entry["instruction"], 1000) + (f" with {chosen}" if chosen else "")
            goals.append(_goal(product, text, attributes, options, number))
    return distinct_goals(goals)


def human_goals(folder: str, products: Sequence[Product]) -> tuple[Goal, ...]:
    """Load goals written by people. `items_human_ins.json` maps each asin to a list of requests
    with attributes and options."""
    path = find_file(folder, ("items_human_ins.json",))
    content = read_json(path, dict)
    goals = []
    for product in products:
        entries = content.get(product.asin) or []
        for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
            row = Row(
                f"{path}, {product.asin}", number + 1, entry if isinstance(entry, dict) else {}
            )
            text = _text(row, "instruction").strip(". ")
            attributes = _texts(row, "instruction_attributes")
            options = _human_options(row)
            if attributes:
                goals.append(
                    _goal(product, text, tuple(map(str.lower, attributes)), options, number)
                )
    return distinct_goals(goals)


def _human_options(row: Row) -> tuple[OptionChoice, ...]:
    value = row.values.get("instruction_options")
    # Some requests name their options, others list values only.
    pairs = (
        value.items()
        if isinstance(value, dict)
        else [("", item) for item in _texts(row, "instruction_options")]
    )
    if not all(isinstance(item, str) for _, item in pairs):
        raise row.fail("instruction_options", "texts")
    return tuple((str(name).lower(), option_value(item)) for name, item in pairs)


def _combinations(product: Product) -> Iterator[tuple[OptionChoice, ...]]:
    """Yield the combinations of option values: all of them if there are at most `MAX_COMBINATIONS`,
    else that many random ones, seeded by the product's asin."""
    names = [name for name, _ in product.options]
    values = [choices for _, choices in product.options]
    total = 1
    for choices in values:
        total *= len(choices)
    if total <= MAX_COMBINATIONS:
        for combination in itertools.product(*values):
            yield tuple(zip(names, combination, strict=True))
        return
    # The stream depends only on the product, so its goals do not change with the rest of the
    # catalogue.
    rng = stream(0, f"shop/options/{product.asin}")
    for _ in range(MAX_COMBINATIONS):
        yield tuple(
            (name, choices[int(rng.random() * len(choices))]) for name, choices in product.options
        )


def _goal(
    product: Product,
    text: str,
    attributes: tuple[str, ...],
    options: tuple[OptionChoice, ...],
    number: int,
) -> Goal:
    limit = price_limit(product.price, f"{product.asin}/{number}")
    return Goal(
        asin=product.asin,
        instruction=text + price_phrase(limit),
        attributes=attributes,
        options=options,
        price_upper=limit,
    )
