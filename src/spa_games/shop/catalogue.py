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
    """A customer's request. asin: the product that it was written for. attributes, options: what
    the customer asks for. price_upper: highest acceptable price in dollars, or `NO_PRICE_LIMIT`."""

    asin: str
    instruction: str
    attributes: tuple[str, ...]  # at least one
    options: tuple[OptionChoice, ...]
    price_upper: float


def clean_text(text: str, limit: int = 4000) -> str:
    """Put text on one line, without characters that have a meaning in the conversation format.

    White space and control characters become single spaces, `||` becomes `| |`, and the result is
    truncated to `limit` characters. `<` and `>` become look-alikes, so that a page contains no
    tag of the response format and no marker of a chat template.
    """
    # Truncate first, to bound the work; twice the limit leaves room for white space that is
    # removed.
    text = text[: 2 * limit].replace("<", "‹").replace(">", "›")
    # `|||` -> `| | |`
    text = re.sub(r"\|(?=\|)", "| ", text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return " ".join(text.split())[:limit].strip()


def price_limit(price: float, seed_text: str) -> float:
    """The most that a customer will pay for a product of this price, or `NO_PRICE_LIMIT`.

    As in the original, it is the larger of two different values among the next four multiples of 10
    dollars above the price, up to 990. `seed_text` determines which two.
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
    """The phrase of an instruction that states the price limit; "" without a limit."""
    return "" if limit >= NO_PRICE_LIMIT else f", and price lower than {limit:.2f} dollars"


def distinct_goals(goals: Iterable[Goal]) -> tuple[Goal, ...]:
    """Drop goals whose instruction repeats an earlier one, so that splits share no task."""
    seen: dict[str, Goal] = {}
    for goal in goals:
        seen.setdefault(goal.instruction, goal)
    return tuple(seen.values())
