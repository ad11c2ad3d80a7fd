"""The reward of a purchase, as published with WebShop (Yao et al. 2022, arXiv 2207.01206).

reward = r_type * (matched attributes + matched options + [price within the limit]) / (attributes +
options + 1)

Attributes and options are matched approximately, with the original's threshold. Two parts differ
from the original:

* The original finds the nouns of a title with a statistical tagger. Here, all words of the title
  count, except numbers, function words and common adjectives.
* The original finds a colour anywhere in an option value. Here, a whole word of the value must be a
  colour of `vocabulary.json`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz import fuzz, utils

from spa_games.shop.catalogue import Goal, OptionChoice, Product
from spa_games.shop.vocabulary import vocabulary

THRESHOLD = 85

# Matches words such as `t-shirt` and `men's`, but no numbers and no single letters.
_WORD = re.compile(r"[a-z][a-z'&-]*[a-z]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reward of a purchase and its parts, all from 0 to 1. `r_options` is None if the goal has
    no options."""

    reward: float
    r_type: float
    r_attributes: float
    r_options: float | None
    r_price: float
    title_score: float
    query_match: bool
    category_match: bool


def judge(goal: Goal, wanted: Product, bought: Product, chosen: Iterable[OptionChoice]) -> Verdict:
    """Judge the purchase of `bought` with the options `chosen`. `wanted` is the product for which
    `goal` was written."""
    r_type, title, query, category = type_match(bought, wanted)
    attributes = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    values = [value for _, value in chosen]
    options = sum(any(meets(value, wish) for value in values) for wish in goal.options)
    affordable = bought.price <= goal.price_upper
    parts = len(goal.attributes) + len(goal.options) + 1
    return Verdict(
        reward=r_type * (attributes + options + affordable) / parts,
        r_type=r_type,
        r_attributes=attributes / len(goal.attributes) if goal.attributes else 1.0,
        r_options=options / len(goal.options) if goal.options else None,
        r_price=float(affordable),
        title_score=title,
        query_match=query,
        category_match=category,
    )


def type_match(bought: Product, wanted: Product) -> tuple[float, float, bool, bool]:
    """Compare the type of two products. Returns r_type, the title score, whether the queries are
    equal, and whether the products share two or more category levels.

    The title score is the fraction of nouns in the wanted title that the bought title also has.
    r_type is 1 if the queries or the categories match or the score exceeds 0.2, else 0.5. A score
    below 0.1 reduces it to 0.1, and a score of 0 to 0.
    """
    query = bought.query == wanted.query
    category = len(_levels(bought) & _levels(wanted)) >= 2
    nouns = title_nouns(wanted.title)
    # Without nouns to compare, a score of 0.2 neither raises nor lowers r_type.
    score = len(nouns & title_nouns(bought.title)) / len(nouns) if nouns else 0.2
    r_type = 1.0 if query or category or score > 0.2 else 0.5
    # A low title score reduces r_type even if the query or the category matches.
    if score < 0.1:
        r_type = 0.1
    if score == 0.0:
        r_type = 0.0
    return r_type, score, query, category


def _levels(product: Product) -> set[str]:
    return {level.strip() for level in product.product_category.split("›")} - {""}


def title_nouns(title: str) -> set[str]:
    """The words of a title that may be nouns, in lower case."""
    return set(_WORD.findall(title.lower())) - vocabulary().not_nouns


def has_attribute(product: Product, attribute: str) -> bool:
    """Return whether a product has an attribute: a similar one in its list, or the same text in its
    title, features or description."""
    if any(similar(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(attribute.lower() in text.lower() for text in texts)


def meets(value: str, wish: OptionChoice) -> bool:
    """Return whether an option value fulfils a wish.

    As in the original, the value is compared with the wish's name and value together ("length 40
    feet"). If the wish is for a colour, or has no option name (as in human goals), only its value is
    compared.
    """
    name, wanted = wish
    alone = not name or wanted in vocabulary().colour_words
    return similar(
        normalize_colour(value), normalize_colour(wanted) if alone else f"{name} {wanted}"
    )


def similar(one: str, other: str) -> bool:
    """Return whether two short texts have nearly the same words: a rounded token-set ratio above 85
    of 100."""
    return round(fuzz.token_set_ratio(one, other, processor=utils.default_process)) > THRESHOLD


def normalize_colour(value: str) -> str:
    """The alphabetically first colour among the words of an option value. If there is none, the
    value itself."""
    words = set(value.lower().split())
    return next((colour for colour in vocabulary().colour_words if colour in words), value)
