"""Content of a shop: products, and goals that say which product a customer wants."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spa.seeds import stream

OptionChoice = tuple[str, str]
"""Option name and value, such as ("size", "small")."""

NO_PRICE_LIMIT = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product. All texts are clean (`clean_text`)."""

    asin: str  # upper case, unique in the catalogue
    title: str
    category: str  # coarse, such as "fashion"
    query: str  # the search that the product was filed under
    product_category: str  # levels separated by "›"
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    rating: str = "none yet"
    price: float = 100.0  # what buying costs, in dollars
    price_text: str = "$100.00"
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name -> values, both lower case
    attributes: tuple[str, ...] = ()  # not shown on any page


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A customer's request, and the product that it was written about."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]  # at least one
    options: tuple[OptionChoice, ...]
    price_upper: float


def clean_text(text: str, limit: int = 4000) -> str:
    """Text on one line without characters that mean something in a conversation's format.

    White space becomes single spaces, control characters go, `||` is broken up, and long texts are
    cut. `<` and `>` become look-alikes, so that a page has no tag of the response format and no
    marker of a chat template.
    """
    # Cut first, to bound the work; twice the limit leaves room for white space that is removed.
    text = text[: 2 * limit].replace("<", "‹").replace(">", "›")
    # `|||` -> `| | |`
    text = re.sub(r"\|(?=\|)", "| ", text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:limit].strip()


def price_limit(price: float, seed_text: str) -> float:
    """The most that a customer will pay for a product of this price, or `NO_PRICE_LIMIT`.

    The larger of two different ones of the next four multiples of 10 dollars above the price, up to
    990, as in the original; which two is fixed by `seed_text`.
    """
    bands = [10.0 * step for step in range(1, 100) if 10.0 * step > price][:4]
    if len(bands) < 2:
        return NO_PRICE_LIMIT
    rng = stream(0, f"shop/price/{seed_text}")
    first = int(rng.random() * len(bands))
    # The second band is sampled from the others, so the two bands always differ.
    second = int(rng.random() * (len(bands) - 1))
    return max(bands[first], bands[second + (second >= first)])


def price_phrase(limit: float) -> str:
    """Phrase of an instruction that states the price limit."""
    return "" if limit >= NO_PRICE_LIMIT else f", and price lower than {limit:.2f} dollars"


def distinct_goals(goals: Iterable[Goal]) -> tuple[Goal, ...]:
    """The goals without those whose instruction was there before, so that no split sees another
    one's task."""
    seen: dict[str, Goal] = {}
    for goal in goals:
        seen.setdefault(goal.instruction, goal)
    return tuple(seen.values())
