"""The content of a shop: products, and goals that describe what a customer wants."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from spa.seeds import stream

OptionChoice = tuple[str, str]
"""Option name and value, such as ("size", "small")."""

NO_PRICE_LIMIT = 1_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product. All texts have passed `clean_text`."""

    asin: str  # upper case, unique in the catalogue
    title: str
    category: str  # coarse, such as "fashion"
    query: str  # the search that the product was filed under
    product_category: str  # levels separated by "›"
    description: str = ""
    features: tuple[str, ...] = ()
    reviews: tuple[str, ...] = ()
    rating: str = "none yet"
    price: float = 100.0  # price of a purchase, in dollars
    price_text: str = "$100.00"
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()  # name -> values, both lower case
    attributes: tuple[str, ...] = ()  # not shown on any page


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A customer's request.

    `asin` is the product for which it was written. `attributes` and `options` are what the customer
    asks for. `price_upper` is the highest acceptable price in dollars, or `NO_PRICE_LIMIT`.
    """

    asin: str
    instruction: str
    attributes: tuple[str, ...]  # at least one
    options: tuple[OptionChoice, ...]
    price_upper: float


def clean_text(text: str, limit: int = 4000) -> str:
    """Put text on one line, without characters that have a meaning in the conversation format.

    White space and control characters become single spaces, `||` becomes `| |`, and the result is
    truncated to `limit` characters. `<` and `>` become the similar characters `‹` and `›`, so that
    a page cannot contain a tag of the response format or a special token of a chat template.
    """
    # Truncate early to limit the work. Twice the limit leaves enough text after white space is
    # merged.
    text = text[: 2 * limit].replace("<", "‹").replace(">", "›")
    # `|||` -> `| | |`
    text = re.sub(r"\|(?=\|)", "| ", text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:limit].strip()


def price_limit(price: float, seed_text: str) -> float:
    """The highest acceptable price of a goal, in dollars, for a product of this price.

    As in the original, two of the next four multiples of 10 dollars above the price are sampled,
    and the larger is the limit. `seed_text` seeds the sampling. Multiples end at 990; if fewer than
    two remain, the result is `NO_PRICE_LIMIT`.
    """
    bands = [10.0 * step for step in range(1, 100) if 10.0 * step > price][:4]
    if len(bands) < 2:
        return NO_PRICE_LIMIT
    rng = stream(0, f"shop/price/{seed_text}")
    first = int(rng.random() * len(bands))
    # Sample the second from the remaining bands, so the two always differ.
    second = int(rng.random() * (len(bands) - 1))
    return max(bands[first], bands[second + (second >= first)])


def price_phrase(limit: float) -> str:
    """The part of an instruction that states the price limit; empty if there is none."""
    return "" if limit >= NO_PRICE_LIMIT else f", and price lower than {limit:.2f} dollars"


def distinct_goals(goals: Iterable[Goal]) -> tuple[Goal, ...]:
    """Drop goals whose instruction repeats an earlier one, so that splits share no task."""
    seen: dict[str, Goal] = {}
    for goal in goals:
        seen.setdefault(goal.instruction, goal)
    return tuple(seen.values())
