"""A shop: its products, search index and goals, with the split of the goals into training,
validation and test."""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from spa.envs.options import shuffled, uniforms
from spa.errors import ConfigError, DataError
from spa.seeds import stream
from spa_games.datafiles import file_stamp
from spa_games.shop import files
from spa_games.shop.catalogue import Goal, Product
from spa_games.shop.generate import generated_goals, generated_products
from spa_games.shop.reward import Verdict, judge
from spa_games.shop.search import SearchIndex

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
# Sizes of WebShop's test and validation splits.
TEST_GOALS = 500
VAL_GOALS = 1000


@dataclass(frozen=True, eq=False)
class Shop:
    """The products and goals of a shop, and its search index. A shop is immutable, so environments
    can share it."""

    products: dict[str, Product]  # by asin
    goals: tuple[Goal, ...]  # in permuted order
    index: SearchIndex = field(repr=False)

    def goal_indices(self, split: Split) -> range:
        """The indices into `goals` that belong to a split.

        The first 500 goals are for tests, the next 1,000 for validation, and the rest for training.
        With fewer than 3,000 goals, a twelfth is for tests and a sixth for validation.
        """
        total = len(self.goals)
        small = total < 2 * (TEST_GOALS + VAL_GOALS)
        test = max(1, total // 12) if small else TEST_GOALS
        val = max(1, total // 6) if small else VAL_GOALS
        bounds = {"test": (0, test), "val": (test, test + val), "train": (test + val, total)}
        return range(*bounds[split])

    def search(self, query: str) -> tuple[Product, ...]:
        """Up to 50 products that match a query, best match first."""
        return tuple(self.products[asin] for asin in self.index.search(query))

    def judge(self, goal: Goal, asin: str, options: tuple[tuple[str, str], ...]) -> Verdict:
        """Judge the purchase of the product `asin` with the given options."""
        return judge(goal, self.products[goal.asin], self.products[asin], options)


def build_shop(products: tuple[Product, ...], goals: tuple[Goal, ...]) -> Shop:
    """Build a shop with its goals in a fixed random order. Raises DataError if there are fewer than
    three goals."""
    if len(goals) < 3:
        raise DataError(
            "A shop needs at least three different goals, one per split, but the data have "
            f"{len(goals)}"
        )
    # Goals are listed product by product. Shuffle them, so that no split covers only a few
    # products.
    mixed = shuffled(goals, uniforms(stream(0, "shop/goal-order")))
    return Shop(
        {product.asin: product for product in products}, tuple(mixed), SearchIndex(products)
    )


def open_shop(
    *, data: str | None = None, dataset: str = "small", human_goals: bool = False
) -> Shop:
    """Open the generated shop, or build one from a folder of WebShop files. The two most recent
    shops are cached until their files change.

    `dataset` "small" loads the first 1,000 products of the files, "full" all of them. Raises
    ConfigError for "full" or human goals without files, and DataError for files that cannot be
    used.
    """
    if data is None and (dataset == "full" or human_goals):
        raise ConfigError(
            "webshop: dataset 'full' and human goals need the WebShop product files; set "
            "option 'data' to the folder with items_shuffle.json and items_ins_v2.json"
        )
    # The stamps are part of the cache key, so a changed file opens a new shop.
    stamps = (
        ()
        if data is None
        else tuple(file_stamp(str(path)) for path in sorted(Path(data).glob("items_*.json")))
    )
    return _opened(data, dataset == "small", human_goals, stamps)


@lru_cache(maxsize=2)
def _opened(data: str | None, small: bool, human: bool, stamps: tuple[object, ...]) -> Shop:
    if data is None:
        products = generated_products()
        return build_shop(products, generated_goals(products))
    annotations = files.load_annotations(data, small=small)
    products = files.load_products(data, annotations, small=small)
    goals = (
        files.human_goals(data, products) if human else files.annotated_goals(annotations, products)
    )
    return build_shop(products, goals)
