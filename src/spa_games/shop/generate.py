"""Generate the products and goals of the shipped shop from its vocabulary and seeded random
streams."""

import math
from collections.abc import Callable
from typing import TypeVar

from spa.envs.options import shuffled, uniforms
from spa.seeds import stream
from spa_games.shop.catalogue import (
    Goal,
    OptionChoice,
    Product,
    distinct_goals,
    price_limit,
    price_phrase,
)
from spa_games.shop.vocabulary import ProductKind, vocabulary

PER_KIND = 32  # 32 kinds of 32 products each: 1,024 products
GOALS_PER_PRODUCT = 6
# Without A, E, I, O and U, random letters hardly ever spell a word.
_ASIN_LETTERS = "0123456789BCDFGHJKLMNPQRSTVWXYZ"

Uniform = Callable[[], float]
T = TypeVar("T")


def generated_products(seed: int = 0) -> tuple[Product, ...]:
    """Generate 1,024 products, 32 of each kind, in random order. The same seed gives the same
    products on every machine."""
    uniform = uniforms(stream(seed, "shop/products"))
    products = [
        _product(kind, number, uniform) for number in range(PER_KIND) for kind in vocabulary().kinds
    ]
    # Search results with equal scores keep the catalogue order, which should not favour one kind.
    return tuple(shuffled(products, uniform))


def generated_goals(products: tuple[Product, ...], seed: int = 0) -> tuple[Goal, ...]:
    """Generate up to six different requests per product, all of which the product fulfils.
    Duplicate requests are dropped."""
    uniform = uniforms(stream(seed, "shop/goals"))
    kind_of = {kind.query: kind for kind in vocabulary().kinds}
    return distinct_goals(
        _goal(product, kind_of[product.query], number, uniform)
        for product in products
        for number in range(GOALS_PER_PRODUCT)
    )


def _pick(items: tuple[T, ...], uniform: Uniform) -> T:
    return items[int(uniform() * len(items))]


def _some(items: tuple[T, ...], low: int, high: int, uniform: Uniform) -> tuple[T, ...]:
    """Pick from `low` to `high` different items at random, keeping their order."""
    count = min(low + int(uniform() * (high - low + 1)), len(items))
    chosen = sorted(shuffled(range(len(items)), uniform)[:count])
    return tuple(items[place] for place in chosen)


def _product(kind: ProductKind, number: int, uniform: Uniform) -> Product:
    asin = "B0" + "".join(_pick(tuple(_ASIN_LETTERS), uniform) for _ in range(8))
    words = vocabulary()
    brand = (_pick(words.brand_starts, uniform) + _pick(words.brand_ends, uniform)).capitalize()
    attributes = _some(kind.attributes, 2, 5, uniform)
    options = tuple((name, _some(values, 2, 6, uniform)) for name, values in kind.options)
    low, high = kind.prices
    # The price has a log-uniform distribution and ends in .99.
    price = round(math.exp(math.log(low) + uniform() * (math.log(high) - math.log(low)))) - 0.01
    shown = _some(attributes, 1, 2, uniform)
    rating = f"{2.5 + 2.5 * uniform():.1f} of 5"
    listed = ", ".join(attribute.title() for attribute in shown)
    # Model numbers make the titles of one kind distinct.
    title = f"{brand} {kind.noun.title()}, {listed}, Model {number + 1:02d}"
    return Product(
        asin=asin,
        title=title,
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        description=_description(kind, brand, attributes, uniform),
        features=tuple(f"{attribute.capitalize()}." for attribute in shuffled(attributes, uniform)),
        reviews=_some(words.praise, 0, 3, uniform),
        rating=rating,
        price=price,
        price_text=f"${price:.2f}",
        options=options,
        attributes=attributes,
    )


def _description(
    kind: ProductKind, brand: str, attributes: tuple[str, ...], uniform: Uniform
) -> str:
    openings = (
        f"{kind.noun.capitalize()} by {brand}",
        f"From {brand}: {kind.noun}",
        f"{brand} makes this {kind.noun} for everyday use",
    )
    return f"{_pick(openings, uniform)}. {', '.join(attributes).capitalize()}."


def _goal(product: Product, kind: ProductKind, number: int, uniform: Uniform) -> Goal:
    attributes = _some(product.attributes, 1, 3, uniform)
    options: tuple[OptionChoice, ...] = tuple(
        (name, _pick(values, uniform)) for name, values in product.options
    )
    limit = price_limit(product.price, f"{product.asin}/{number}")
    openings = ("i am looking for", "i need", "find me", "i would like to buy", "show me", "i want")
    wanted = f"{_pick(openings, uniform)} {', '.join(attributes)} {kind.noun}"
    chosen = ", and ".join(f"{name}: {value}" for name, value in options)
    return Goal(
        asin=product.asin,
        instruction=f"{wanted} with {chosen}{price_phrase(limit)}",
        attributes=attributes,
        options=options,
        price_upper=limit,
    )
