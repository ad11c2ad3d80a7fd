"""Word lists for generating the catalogue and computing the reward, from
`assets/shop/vocabulary.json`."""

import json
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductKind:
    """A kind of product: its name, search query and categories, possible attributes and options,
    and price range in dollars."""

    noun: str
    query: str
    category: str
    path: str  # levels separated by "›"
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    prices: tuple[int, int]  # lowest and highest


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The words from which products are generated, and the words that the reward needs."""

    brand_starts: tuple[str, ...]
    brand_ends: tuple[str, ...]
    praise: tuple[str, ...]
    kinds: tuple[ProductKind, ...]
    not_nouns: frozenset[str]  # words of titles that are not nouns
    colour_words: tuple[str, ...]  # sorted


def asset(name: str) -> str:
    """Read a text file of the shop's assets."""
    return files("spa_games").joinpath("assets", "shop", name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def vocabulary() -> Vocabulary:
    """The vocabulary, loaded once per process."""
    content = json.loads(asset("vocabulary.json"))
    return Vocabulary(
        brand_starts=tuple(content["brand_starts"]),
        brand_ends=tuple(content["brand_ends"]),
        praise=tuple(content["praise"]),
        kinds=tuple(_kind(kind, content) for kind in content["kinds"]),
        not_nouns=frozenset(content["not_nouns"]),
        colour_words=tuple(sorted(content["colour_words"])),
    )


def _kind(kind: dict[str, Any], content: dict[str, Any]) -> ProductKind:
    attributes = kind["attributes"]
    low, high = kind["prices"]
    return ProductKind(
        noun=kind["noun"],
        query=kind["query"],
        category=kind["category"],
        path=kind["path"],
        attributes=tuple(
            content["attributes"][attributes] if isinstance(attributes, str) else attributes
        ),
        options=tuple(
            (name, tuple(content["values"][key])) for name, key in kind["options"].items()
        ),
        prices=(low, high),
    )
