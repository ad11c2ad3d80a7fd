"""The reward of buying a product, as published with WebShop (Yao et al. 2022, arXiv 2207.01206).

reward = r_type * (matched attributes + matched options + [price within the limit]) / (attributes +
options + 1)

Matching of attributes and options is fuzzy, with the original's threshold. Two parts differ from
the original. It finds the nouns of a title with a statistical tagger; here they are the title's
words without numbers, function words and common adjectives. The original finds a colour of its list
anywhere in an option value; here a word of the value must be a colour of `vocabulary.json`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rapidfuzz import fuzz, utils

from spa_games.shop.catalogue import Goal, OptionChoice, Product
from spa_games.shop.vocabulary import vocabulary

THRESHOLD = 85

# Matches `t-shirt` and `men's`, but no numbers and no single letters.
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
    """The verdict on buying `bought` with the options `chosen`, for a `goal` that was written for
    `wanted`."""
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
    """Return r_type, the title score, whether the queries are equal, and whether the products share
    two or more category levels.

    The title score is the share of the wanted title's nouns that the bought title has. r_type is 1
    if the queries or the categories match or the score exceeds 0.2, else 0.5. If the score is below
    0.1, r_type is 0.1; if the score is 0, r_type is 0.
    """
    query = bought.query == wanted.query
    category = len(_levels(bought) & _levels(wanted)) >= 2
    nouns = title_nouns(wanted.title)
    # Without nouns to compare, a score of 0.2 neither raises nor lowers r_type.
    score = len(nouns & title_nouns(bought.title)) / len(nouns) if nouns else 0.2
    r_type = 1.0 if query or category or score > 0.2 else 0.5
    # A low title score lowers r_type even if query or category match.
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
    """Return whether a product's list has a similar attribute, or its title, features or
    description contain the attribute."""
    if any(similar(own, attribute) for own in product.attributes):
        return True
    texts = (product.title, " ".join(product.features), product.description)
    return any(attribute.lower() in text.lower() for text in texts)


def meets(value: str, wish: OptionChoice) -> bool:
    """Return whether an option value meets a wish.

    As in the original, the value is compared with name and value of the wish together ("length 40
    feet"). If the wish is a colour, or has no name as in human goals, it is compared only with the
    wish's value.
    """
    name, wanted = wish
    alone = not name or wanted in vocabulary().colour_words
    return similar(
        normalize_colour(value), normalize_colour(wanted) if alone else f"{name} {wanted}"
    )


def similar(one: str, other: str) -> bool:
    """Return whether two short texts have nearly the same words: a token-set ratio above 85 of
    100."""
    return round(fuzz.token_set_ratio(one, other, processor=utils.default_process)) > THRESHOLD


def normalize_colour(value: str) -> str:
    """The first colour (alphabetically) among the words of an option value; the value itself if it
    has no colour."""
    words = set(value.lower().split())
    return next((colour for colour in vocabulary().colour_words if colour in words), value)
