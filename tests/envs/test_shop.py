from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from shop_example import GOAL, HOSTILE, LAMP, SHIRT, example_shop

from spa.errors import ConfigError, DataError
from spa_games.shop.catalogue import NO_PRICE_LIMIT, clean_text, price_limit, price_phrase
from spa_games.shop.generate import generated_goals, generated_products
from spa_games.shop.pages import SUBPAGES, View, render
from spa_games.shop.reward import judge, meets, normalize_colour, similar, title_nouns, type_match
from spa_games.shop.search import MAX_HITS, SearchIndex, match_expression
from spa_games.shop.shop import SPLITS, build_shop, open_shop

SHOP = example_shop()


def test_reward_of_the_perfect_purchase_is_one():
    verdict = judge(GOAL, SHIRT, SHIRT, (("color", "navy blue"), ("size", "large")))
    assert (
        verdict.reward
        == verdict.r_type
        == verdict.r_attributes
        == verdict.r_options
        == verdict.r_price
        == 1.0
    )


@pytest.mark.parametrize(
    ("value", "wish", "fits"),
    [
        ("50 feet", ("length", "40 feet"), False),
        ("40 feet", ("length", "40 feet"), True),
        ("50 feet", ("", "40 feet"), True),  # a person's wish: the words alone are 86 % alike
        ("dark blue", ("color", "navy blue"), True),
        ("dark blue", ("color", "blue"), True),
        ("white", ("color", "blue"), False),
    ],
)
def test_an_option_fits_by_its_name_and_value(value: str, wish: tuple[str, str], fits: bool):
    assert meets(value, wish) is fits


def test_rewards_by_hand():
    # 2 attributes + 2 options + price: five parts.
    assert judge(GOAL, SHIRT, SHIRT, ()).reward == pytest.approx(3 / 5)
    assert judge(
        GOAL, SHIRT, SHIRT, (("color", "white"), ("size", "large"))
    ).reward == pytest.approx(4 / 5)
    dear = replace(SHIRT, price=30.01)
    assert judge(GOAL, SHIRT, dear, (("size", "large"),)).reward == pytest.approx(3 / 5)
    # Only "long sleeve" holds, found in the description; the title shares collar and shirt.
    other = replace(
        SHIRT,
        attributes=(),
        title="Other Shirt, Collar",
        features=(),
        description="Has a LONG SLEEVE.",
    )
    verdict = judge(GOAL, SHIRT, other, (("color", "dark blue"), ("size", "large")))
    assert (verdict.r_attributes, verdict.r_options, verdict.r_type) == (0.5, 1.0, 1.0)
    assert verdict.reward == pytest.approx(4 / 5)
    # Nothing in common: type 0.
    assert judge(GOAL, SHIRT, LAMP, ()).reward == 0.0


@pytest.mark.parametrize(
    ("title", "query", "path", "r_type", "score"),
    [
        ("north shirt", "men's shirts", "x", 1.0, 0.25),
        ("north shirt", "q", "Clothing › Men", 1.0, 0.25),
        ("north shirt", "q", "Clothing › Home", 1.0, 0.25),
        ("lamp", "men's shirts", "Clothing › Men", 0.0, 0.0),
    ],
)
def test_type_by_hand(title, query, path, r_type, score):
    wanted = replace(SHIRT, title="shirt collar cuff sleeve")
    bought = replace(SHIRT, title=title, query=query, product_category=path)
    assert type_match(bought, wanted)[:2] == (r_type, score)


def test_type_between_the_thresholds():
    far = {"query": "q", "product_category": "x"}
    five = replace(SHIRT, title="alpha bravo charlie delta echo")
    assert type_match(replace(SHIRT, title="alpha", **far), five)[:2] == (0.5, 0.2)  # not above 0.2
    assert type_match(replace(SHIRT, title="alpha", product_category="x"), five)[0] == 1.0
    twelve = replace(SHIRT, title=" ".join(f"word{'abcdefghijkl'[n]}" for n in range(12)))
    assert type_match(replace(SHIRT, title="worda", **far), twelve)[0] == 0.1
    # no nouns
    assert type_match(replace(SHIRT, title="x", **far), replace(SHIRT, title="12 34"))[:2] == (
        0.5,
        0.2,
    )


def test_matching_of_words():
    assert similar("essential oil", "essential oils") and similar("powder snow", "Cool Powder Snow")
    assert not similar("tea bag", "tea tree") and not similar("red", "green")
    assert (
        normalize_colour("dark navy blue") == "blue"
        and normalize_colour("pack of 2") == "pack of 2"
    )
    assert title_nouns("New 2-Pack Shirts for Men, 100% Cotton") == {
        "pack",
        "shirts",
        "men",
        "cotton",
    }


def test_search_ranks_by_words():
    assert SHOP.index.search("a cotton shirt")[0] == SHIRT.asin
    assert SHOP.index.search("LAMPS") == (LAMP.asin,)  # stems match
    assert SHOP.index.search("zebra") == () and SHOP.index.search("!?* ") == ()


@pytest.mark.parametrize(
    "query",
    [
        "'; DROP TABLE items;--",
        '" OR 1=1',
        "NEAR(a b)",
        "text:lamp*",
        "a AND NOT b",
        "(((",
        "{x}",
        "^lamp",
        "x" * 1_000_000,
        "\x00 \ud800",
        "la\u0000mp",
    ],
)
def test_hostile_queries_are_words(query):
    SHOP.index.search(query)
    assert SHOP.index.search("lamp") == (LAMP.asin,)


@given(st.text(max_size=80))
def test_any_query_can_be_searched(query):
    assert len(SHOP.index.search(query)) <= 3


def test_match_expression():
    assert match_expression('Red "shoes" -men OR red') == '"red" OR "shoes" OR "men" OR "or"'
    assert match_expression("a " * 500).count("OR") == 0
    assert len(match_expression(" ".join(map(str, range(500)))).split(" OR ")) == 40


def test_results_have_pages():
    products = tuple(replace(LAMP, asin=f"B0000{number:05d}") for number in range(60))
    shop = build_shop(
        (SHIRT, *products), (GOAL, replace(GOAL, instruction="x"), replace(GOAL, instruction="y"))
    )
    assert len(SearchIndex(products).search("lamp")) == MAX_HITS
    view = View(kind="results", keywords="lamp")
    first = render(shop, GOAL, view)
    assert [link.label for link in first.links][:3] == ["back to search", "next", "b000000000"]
    assert len(first.links) == 12 and not first.end_of_results
    for number in range(2, 6):
        view = render(shop, GOAL, view).target("NEXT >")
        assert view is not None and view.page == number
    last = render(shop, GOAL, view)
    assert last.end_of_results and last.target("next") is None
    assert last.target("< Prev") == replace(view, page=4)


def test_item_pages_and_the_way_back():
    item = View(kind="item", keywords="shirt", asin=SHIRT.asin)
    page = render(SHOP, GOAL, item)
    chosen = page.target("Navy Blue")
    assert chosen == replace(item, options=(("color", "navy blue"),))
    assert "navy blue (chosen)" in "\n".join(
        block.text for block in render(SHOP, GOAL, chosen).blocks
    )
    for kind in SUBPAGES:
        sub = render(SHOP, GOAL, chosen).target(kind)
        assert sub is not None and render(SHOP, GOAL, sub).target("prev") == chosen
    assert page.target("prev") == View(kind="results", keywords="shirt")
    assert page.target("back to search") == View()
    assert page.target("search") is None and page.target("b000000002") is None
    done = chosen and render(SHOP, GOAL, chosen).target("buy now")
    assert done is not None and render(SHOP, GOAL, done).links == ()


def test_labels_are_unique_when_options_read_like_buttons():
    page = render(SHOP, GOAL, View(kind="item", asin=HOSTILE.asin))
    labels = [link.label for link in page.links]
    assert len(labels) == len(set(labels))
    assert {"reviews", "size: reviews", "prev", "size: prev", "size: a]b[c", "color: a]b[c"} <= set(
        labels
    )
    assert page.target("size: prev") == View(
        kind="item", asin=HOSTILE.asin, options=(("size", "prev"),)
    )


def test_generated_catalogue():
    products = generated_products()
    assert (
        len(products) == 1024
        and products == generated_products()
        and products != generated_products(1)
    )
    goals = generated_goals(products)
    assert len(goals) > 5000 and goals == generated_goals(products)
    by_asin = {product.asin: product for product in products}
    for goal in goals:
        wanted = by_asin[goal.asin]
        assert judge(goal, wanted, wanted, goal.options).reward == 1.0
        assert all(value in dict(wanted.options)[name] for name, value in goal.options)
        assert f"{goal.price_upper:.2f} dollars" in goal.instruction
    assert all(
        clean_text(text) == text
        for product in products
        for text in (product.title, product.description)
    )


def test_splits_are_disjoint_by_content():
    shop = open_shop()
    sizes = {split: len(shop.goal_indices(split)) for split in SPLITS}
    assert sizes["test"] == 500 and sizes["val"] == 1000 and sum(sizes.values()) == len(shop.goals)
    texts = {
        split: {shop.goals[place].instruction for place in shop.goal_indices(split)}
        for split in SPLITS
    }
    assert sum(map(len, texts.values())) == len(set.union(*texts.values())) == len(shop.goals)
    assert [len(SHOP.goal_indices(split)) for split in SPLITS] == [1, 1, 1]
    with pytest.raises(DataError, match="at least three"):
        build_shop((SHIRT,), (GOAL,))


def test_the_shop_is_opened_once():
    assert open_shop() is open_shop()
    with pytest.raises(ConfigError, match="items_shuffle"):
        open_shop(dataset="full")


@pytest.mark.parametrize(
    ("price", "allowed"),
    [
        (25.0, {40.0, 50.0, 60.0}),
        (9.99, {20.0, 30.0, 40.0}),
        (10.0, {30.0, 40.0, 50.0}),
        (975.0, {990.0}),
        (985.0, {NO_PRICE_LIMIT}),
        (5000.0, {NO_PRICE_LIMIT}),
    ],
)
def test_price_limits(price, allowed):
    # 975 leaves the bands 980 and 990 only; 985 leaves one, which is too few for a limit.
    assert {price_limit(price, str(number)) for number in range(60)} == allowed
    assert (
        price_phrase(40.0) == ", and price lower than 40.00 dollars"
        and price_phrase(NO_PRICE_LIMIT) == ""
    )


@given(st.text(max_size=200))
@example("|||")
def test_clean_text_leaves_no_markers_and_is_stable(text):
    cleaned = clean_text(text)
    assert (
        not any(mark in cleaned for mark in ("<", ">", "||", "\n", "\x00"))
        and cleaned == cleaned.strip()
    )
    assert clean_text(cleaned) == cleaned
