"""Rendering of the shop's pages. A page depends only on the shop, the goal and the visitor's view.
Each link of a page contains the view to which it leads."""

from dataclasses import dataclass, replace
from typing import Literal

from spa_games.shop.catalogue import Goal, OptionChoice, Product
from spa_games.shop.shop import Shop

PER_PAGE = 10

Kind = Literal["search", "results", "item", "description", "features", "reviews", "done"]
KINDS: tuple[Kind, ...] = (
    "search",
    "results",
    "item",
    "description",
    "features",
    "reviews",
    "done",
)
SUBPAGES: tuple[Kind, ...] = ("description", "features", "reviews")
ALIASES = {"< prev": "prev", "next >": "next"}
"""Maps WebShop's original labels of two buttons to the labels used here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A visitor's position in the shop. Together with shop and goal, it determines the page."""

    kind: Kind = "search"
    keywords: str = ""
    page: int = 1
    asin: str = ""
    options: tuple[OptionChoice, ...] = ()  # chosen so far, sorted by name


@dataclass(frozen=True, slots=True)
class Link:
    """A clickable label, and the view to which it leads. `chosen` marks an option value that the
    visitor has chosen."""

    label: str  # lower case, unique on its page
    view: View
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A paragraph of a page, with the links that belong to it."""

    text: str
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page as a visitor sees it. `end_of_results` is True only for the last page of search
    results."""

    blocks: tuple[Block, ...]
    has_search_bar: bool = False
    end_of_results: bool = False

    @property
    def links(self) -> tuple[Link, ...]:
        """All links in the order shown."""
        return tuple(link for block in self.blocks for link in block.links)

    def target(self, label: str) -> View | None:
        """The view to which a click on `label` leads, ignoring case. None if the page has no such
        link."""
        wanted = " ".join(label.lower().split())
        wanted = ALIASES.get(wanted, wanted)
        return next((link.view for link in self.links if link.label == wanted), None)


def render(shop: Shop, goal: Goal, view: View) -> Page:
    """Render the page of a view."""
    if view.kind == "search":
        return Page((Block("Search page. Look for products with a search."),), has_search_bar=True)
    if view.kind == "results":
        return _results(shop, view)
    product = shop.products[view.asin]
    if view.kind == "item":
        return _item(product, view)
    if view.kind == "done":
        return _done(shop, goal, product, view)
    return _subpage(product, view)


def _results(shop: Shop, view: View) -> Page:
    products = shop.search(view.keywords)
    # Round the number of pages up. A search without hits has one empty page.
    pages = max(1, -(-len(products) // PER_PAGE))
    links = [Link("back to search", View())]
    if view.page > 1:
        links.append(Link("prev", replace(view, page=view.page - 1)))
    if view.page < pages:
        links.append(Link("next", replace(view, page=view.page + 1)))
    blocks = [
        Block(f"Results, page {view.page} of {pages} ({len(products)} products)", tuple(links))
    ]
    for product in products[(view.page - 1) * PER_PAGE : view.page * PER_PAGE]:
        link = Link(product.asin.lower(), replace(view, kind="item", asin=product.asin))
        blocks.append(Block(f"{link.label}: {product.title}, {product.price_text}", (link,)))
    return Page(tuple(blocks), end_of_results=view.page >= pages)


def _item(product: Product, view: View) -> Page:
    back = Link("back to search", View())
    # Going back to the results drops the chosen options.
    results = Link("prev", replace(view, kind="results", asin="", options=()))
    more = tuple(Link(kind, replace(view, kind=kind)) for kind in SUBPAGES)
    buy = Link("buy now", replace(view, kind="done"))
    fixed = (back, results, *more, buy)
    blocks = [
        Block(product.title),
        Block(f"Price: {product.price_text}. Rating: {product.rating}."),
        *_option_blocks(product, view, {link.label for link in fixed}),
        Block("More about it: " + ", ".join(SUBPAGES), more),
        Block("Leave or buy: back to search, prev, buy now", (back, results, buy)),
    ]
    return Page(tuple(blocks))


def _option_blocks(product: Product, view: View, taken: set[str]) -> list[Block]:
    """Create one block per option. A value's label is prefixed with the option's name if it would
    equal another label on the page."""
    values = [value for _, choices in product.options for value in choices]
    chosen = dict(view.options)
    blocks = []
    for name, choices in product.options:
        links = []
        for value in choices:
            # Labels must be unique, but two options may have the same value (`small`), or a value
            # may have the name of a button (`prev`).
            label = value if value not in taken and values.count(value) == 1 else f"{name}: {value}"
            options = tuple(sorted((chosen | {name: value}).items()))
            links.append(Link(label, replace(view, options=options), chosen.get(name) == value))
        shown = ", ".join(f"{link.label} (chosen)" if link.chosen else link.label for link in links)
        blocks.append(Block(f"{name}: {shown}", tuple(links)))
    return blocks


def _subpage(product: Product, view: View) -> Page:
    texts = {
        "description": product.description or "There is no description.",
        "features": "\n".join(f"- {feature}" for feature in product.features)
        or "No features are listed.",
        "reviews": "\n".join(f"- {review}" for review in product.reviews)
        or "There are no reviews.",
    }
    links = (Link("back to search", View()), Link("prev", replace(view, kind="item")))
    return Page(
        (Block(f"{view.kind.capitalize()} of {product.title}", links), Block(texts[view.kind]))
    )


def _done(shop: Shop, goal: Goal, product: Product, view: View) -> Page:
    options = ", ".join(f"{name}: {value}" for name, value in view.options) or "no options"
    verdict = shop.judge(goal, view.asin, view.options)
    return Page(
        (
            Block(f"You bought {product.title} ({product.asin.lower()}) with {options}."),
            Block(f"Your score: {verdict.reward:.4g}"),
        )
    )
