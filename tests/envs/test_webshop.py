import numpy as np
import pytest
from contract import check_contract
from shop_example import GOAL, HOSTILE, ITEM, NOTES, SHIRT, example_shop, write_files

from spa.config.load import load_config
from spa.errors import ConfigError, DataError
from spa.recipes import setup
from spa_games.shop.files import load_annotations, load_products
from spa_games.shop.pages import View
from spa_games.shop.reward import type_match
from spa_games.webshop import WebShop, parse_action


def visiting(shop=None, goal=GOAL) -> WebShop:
    env = WebShop()
    env.reset(seed=0)
    env.shop, env.goal = shop or example_shop(), goal
    env._go(View())
    return env


def test_contract():
    check_contract(WebShop, steps=15)


def test_a_purchase_by_hand():
    env = visiting()
    state, reward, terminated, _, info = env.step("search[cotton shirt]")
    assert (
        "b000000001: Acme Shirt with Collar, Machine Washable, $25.00" in state and not terminated
    )
    assert (
        state.endswith("Actions: click[back to search], click[b000000001]")
        and info["end_of_page"] is True
    )
    for action in (
        "click[B000000001]",
        "click[navy blue]",
        "click[large]",
        "click[features]",
        "click[< prev]",
    ):
        state, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["action_is_valid"], info["action_is_effective"]) == (
            0.0,
            False,
            True,
            True,
        )
    assert env.step("click[large]")[4]["action_is_effective"] is False
    state, reward, terminated, _, info = env.step("Click[ Buy Now ]")
    assert (reward, terminated, info["success"], info["success_purchase"]) == (
        1.0,
        True,
        True,
        True,
    )
    assert state.endswith("with color: navy blue, size: large.\nYour score: 1")
    assert info["r_type"] == 1.0 and info["r_options"] == 1.0
    again = env.step("click[buy now]")
    assert (
        again[1:3] == (0.0, True)
        and not again[4]["action_is_valid"]
        and not again[4]["success_purchase"]
    )


def test_a_partly_right_purchase_is_no_success():
    env = visiting()
    for action in ("search[shirt]", "click[b000000001]", "click[small]"):
        env.step(action)
    _, reward, terminated, _, info = env.step("click[buy now]")
    assert (reward, terminated, info["success"], info["success_find"]) == (
        pytest.approx(0.6),
        True,
        False,
        False,
    )


@pytest.mark.parametrize(
    "action",
    [
        "click[next]",
        "click[b000000001]",
        "search[]",
        "search",
        "click[buy now",
        "buy[x]",
        "search[" + "x" * 1_000_000 + "]",
        "search[[",
        "]search[",
        "click[search]",
        "",
    ],
)
def test_what_the_page_does_not_offer_leads_nowhere(action):
    env = visiting()
    before = env.state_text("grid")
    state, reward, terminated, _, info = env.step(action)
    env.to_action(action)
    assert (state, reward, terminated) == (before, 0.0, False)
    assert info["action_is_valid"] is False and info["action_is_effective"] is False


def test_search_needs_the_search_page():
    env = visiting()
    env.step("search[lamp]")
    assert env.step("search[shirt]")[4]["action_is_valid"] is False
    env.step("click[back to search]")
    assert env.step("search[shirt]")[4]["action_is_valid"] is True


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("search[red shoes]", ("search", "red shoes")),
        ("  Click[ a]b[c ]  ", ("click", "a]b[c")),
        ("search[x", None),
        ("look[x]", None),
        ("search[ ]", None),
        ("search[x] now", None),
        ("search[" + "x" * 400 + "]", ("search", "x" * 400)),
        ("search[" + "x" * 401 + "]", None),
    ],
)
def test_parse_action(text, parsed):
    assert parse_action(text) == parsed


def test_hostile_products_are_text():
    env = visiting()
    env.step("search[script alert drop table items]")
    state = env.step(f"click[{HOSTILE.asin}]")[0]
    assert "DROP TABLE items" in state
    for action in ("click[size: a]b[c]", "click[description]", "click[prev]", "click[buy now]"):
        assert env.step(action)[4]["action_is_valid"], action
    assert visiting().shop.search("shirt")[0].asin == SHIRT.asin


def test_split_of_the_requests():
    env = WebShop(split="val")
    train = WebShop()
    shown = {
        split: {env.reset(seed=seed, options={"split": split})[0] for seed in range(30)}
        for split in ("train", "val", "test")
    }
    assert not shown["train"] & shown["val"] and not shown["val"] & shown["test"]
    assert env.reset(seed=3)[0] in shown["val"] and train.reset(seed=3)[0] in shown["train"]
    assert env.reset(seed=3)[0] == env.reset(seed=1003)[0]  # 1,000 requests for validation
    with pytest.raises(ConfigError, match="split"):
        env.reset(seed=0, options={"split": "dev"})


def test_every_request_of_a_sample_can_be_met_within_nine_actions():
    env = WebShop(split="test")
    for seed in range(0, 500, 10):
        env.reset(seed=seed)
        actions = env.expert_actions(20)
        assert 4 <= len(actions) <= 9 and env.best_success(9) == 1.0 and env.best_success(3) is None
        assert env.expert_actions(2) == actions[:2]
        rewards = [env.step(action)[1] for action in actions]
        assert rewards == [0.0] * (len(actions) - 1) + [1.0]


def test_the_expert_who_is_asked_in_every_turn_buys():
    env = WebShop(split="test")
    for seed in range(0, 500, 50):
        env.reset(seed=seed)
        whole, taken, rewards = env.expert_actions(20), [], []
        while len(rewards) < 9 and env.view.kind != "done":
            assert env.best_success(9) == 1.0
            taken += env.expert_actions(1)
            rewards.append(env.step(taken[-1])[1])
        assert tuple(taken) == whole and rewards[-1] == 1.0


def test_an_option_that_nobody_asked_for_is_left_behind():
    env = WebShop(split="test")
    for seed in range(0, 100, 10):
        env.reset(seed=seed)
        for action in env.expert_actions(20)[:2]:
            env.step(action)
        others = [action for action in env.legal_actions() if action not in env.expert_actions(20)]
        env.step(others[-1] if "buy now" not in others[-1] else others[0])
        if env.view.kind != "done":
            assert [env.step(action)[1] for action in env.expert_actions(20)][-1] == 1.0


def test_the_way_from_any_page():
    env, rng = WebShop(), np.random.default_rng(0)
    env.reset(seed=1)
    for _ in range(6):
        if env.step(env.random_action(rng))[2]:
            break
    if env.view.kind != "done":
        rewards = [env.step(action)[1] for action in env.expert_actions(20)]
        assert rewards[-1] == 1.0
    assert env.expert_actions(20) == ()


def test_published_files(tmp_path):
    items = [
        ITEM,
        {**ITEM, "asin": "B00ABCDE02", "pricing": "$5.00 to $9.00"},
        ITEM,
        {**ITEM, "asin": "toolongasin1"},
    ]
    items += [
        {
            **ITEM,
            "asin": "B00ABCDE03",
            "pricing": None,
            "small_description": "One.",
            "customization_options": "",
        }
    ]
    folder = write_files(tmp_path, items)
    products = {
        product.asin: product
        for product in load_products(folder, load_annotations(folder, small=True), small=True)
    }
    tea = products["B00ABCDE01"]
    assert set(products) == {"B00ABCDE01", "B00ABCDE02", "B00ABCDE03"}
    assert tea.description == "A tea with ‹b›herbs‹/b› | | more." and tea.query == "herbal teas"
    assert tea.options == (("flavor", ("mint | lemon", "rose")),) and (
        tea.price,
        tea.price_text,
    ) == (9.99, "$9.99")
    assert (
        5.0 <= products["B00ABCDE02"].price <= 9.0
        and products["B00ABCDE02"].price_text == "$5.00 to $9.00"
    )
    assert products["B00ABCDE03"].price == 100.0 and products["B00ABCDE03"].features == ("One.",)


def test_files_may_begin_with_a_byte_order_mark(tmp_path):
    folder = write_files(tmp_path, [ITEM])
    for path in tmp_path.iterdir():
        path.write_text(path.read_text(), encoding="utf-8-sig")
    (product,) = load_products(folder, load_annotations(folder, small=True), small=True)
    assert product.asin == ITEM["asin"]


def test_products_without_a_category_are_products(tmp_path):
    """As in the published file, in which some have none; they match by query and title."""
    bare = {**ITEM, "asin": "B00ABCDE02", "category": "", "query": " ", "product_category": ""}
    shop = WebShop(
        data=write_files(tmp_path, [ITEM, bare], {**NOTES, bare["asin"]: NOTES[ITEM["asin"]]})
    ).shop
    assert shop.products["B00ABCDE02"].product_category == shop.products["B00ABCDE02"].query == ""
    assert type_match(shop.products["B00ABCDE02"], shop.products["B00ABCDE01"]) == (
        1.0,
        1.0,
        False,
        False,
    )


def test_goals_from_files(tmp_path):
    notes = {
        **NOTES,
        "B00ABCDE02": {**NOTES["B00ABCDE01"], "instruction": "find more tea"},
        "B00ABCDE09": {"attributes": []},
    }
    human = {
        "B00ABCDE01": [
            {
                "instruction": f"tea number {n}.",
                "instruction_attributes": ["sugar free"],
                "instruction_options": options,
            }
            for n, options in enumerate(({"Flavor": "Rose"}, ["rose"], [], {}))
        ]
    }
    folder = write_files(tmp_path, [ITEM, {**ITEM, "asin": "B00ABCDE02"}], notes, human)
    env = WebShop(data=folder)
    assert len(env.shop.goals) == 4
    assert {goal.instruction.split(", and")[0] for goal in env.shop.goals} == {
        f"find {more}tea with flavor: {taste}"
        for more in ("", "more ")
        for taste in ("mint | lemon", "rose")
    }
    env.reset(seed=0)
    assert [env.step(action)[1] for action in env.expert_actions(20)][-1] == 1.0
    people = WebShop(data=folder, human_goals=True, dataset="full")
    assert len(people.shop.goals) == 4
    goal = next(goal for goal in people.shop.goals if goal.instruction.startswith("tea number 0"))
    assert goal.options == (("flavor", "rose"),) and goal.price_upper <= 50.0


@pytest.mark.parametrize(
    ("options", "attributes", "reward"),
    [
        (["rose"], ["sugar free"], 1.0),
        (["Rose flavor", "large"], ["sugar free"], 1.0),
        ({"size": "large", "taste": "mint/lemon"}, ["sugar free"], 1.0),
        (["vanilla", "small"], ["sugar free"], 0.75),
        ([], ["made of steel"], 0.5),
    ],
)
def test_the_expert_chooses_what_people_ask_for_and_promises_no_more_than_it_earns(
    tmp_path, options, attributes, reward
):
    item = {
        **ITEM,
        "customization_options": {**ITEM["customization_options"], "size": [{"value": "x-large"}]},
    }
    item["customization_options"]["size"] += [{"value": "Large"}, {"value": "small"}]
    wishes = {"instruction_attributes": attributes, "instruction_options": options}
    human = {"B00ABCDE01": [{"instruction": f"tea {n}", **wishes} for n in range(3)]}
    env = WebShop(data=write_files(tmp_path, [item], human=human), human_goals=True)
    env.reset(seed=0)
    promised = env.best_success(20)
    assert [env.step(action)[1] for action in env.expert_actions(20)][-1] == pytest.approx(reward)
    assert promised == (1.0 if reward == 1.0 else None)


def test_a_plain_text_is_a_list_of_one_wherever_files_list_texts(tmp_path):
    notes = {
        asin: {
            "attributes": "sugar free",
            "instruction": f"tea {asin}",
            "instruction_attributes": "sugar free",
        }
        for asin in ("B00ABCDE01", "B00ABCDE02", "B00ABCDE03")
    }
    wishes = {"instruction_attributes": "sugar free", "instruction_options": "rose"}
    human = {asin: {"instruction": f"tea {asin}", **wishes} for asin in notes}
    folder = write_files(tmp_path, [{**ITEM, "asin": asin} for asin in notes], notes, human)
    shop, people = WebShop(data=folder).shop, WebShop(data=folder, human_goals=True).shop
    assert {product.attributes for product in shop.products.values()} == {("sugar free",)}
    assert {goal.attributes for goal in (*shop.goals, *people.goals)} == {("sugar free",)}
    assert {goal.options for goal in people.goals} == {(("", "rose"),)}


def test_options_of_people_that_are_no_texts_are_named(tmp_path):
    for options in (3, [3], {"size": 3}):
        human = {
            ITEM["asin"]: [
                {
                    "instruction": "tea",
                    "instruction_attributes": ["x"],
                    "instruction_options": options,
                }
            ]
        }
        with pytest.raises(DataError, match=r"B00ABCDE01, row 1, column 'instruction_options'"):
            WebShop(data=write_files(tmp_path, [ITEM], NOTES, human), human_goals=True)


@pytest.mark.parametrize(
    ("items", "notes", "message"),
    [
        (
            [{**ITEM, "name": None}],
            NOTES,
            r"items_shuffle.json, row 1, column 'name': expected a string, got None",
        ),
        ([ITEM, {"asin": "B1"}], NOTES, r"row 2, column 'name'"),
        ([{**ITEM, "product_category": None}], NOTES, r"row 1, column 'product_category'"),
        ([{**ITEM, "pricing": "free"}], NOTES, r"row 1, column 'pricing'"),
        (
            [{**ITEM, "customization_options": {"size": ["s"]}}],
            NOTES,
            r"column 'customization_options'",
        ),
        ([{**ITEM, "small_description": 3}], NOTES, r"column 'small_description'"),
        (["tea"], NOTES, r"row 1: expected a JSON object"),
        ([], NOTES, r"the file has no valid product"),
        ({"a": 1}, NOTES, r"must be an array"),
        ([ITEM], [1], r"items_ins_v2.json: the top level of the JSON file must be an object"),
        ([ITEM], {"B1": 3}, r"items_ins_v2.json, row 1, column 'B1': expected an object"),
        ([ITEM], {"B1": {"attributes": "x", "instruction": 3}}, r"column 'instruction'"),
        ([ITEM], {"B1": {"attributes": [3]}}, r"column 'attributes'"),
        ([ITEM], {}, r"at least three different goals"),
    ],
)
def test_bad_files(tmp_path, items, notes, message):
    with pytest.raises(DataError, match=message):
        WebShop(data=write_files(tmp_path, items, notes))


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(
        DataError,
        match=r"the folder has none of the WebShop product files items_ins_v2_1000\.json, items_ins_v2\.json",
    ):
        WebShop(data=str(tmp_path))
    folder = write_files(tmp_path, [ITEM])
    (tmp_path / "items_shuffle.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="not valid JSON"):
        WebShop(data=folder)


def test_validation_plays_the_requests_that_are_set_aside_for_it():
    """Through the stages' own seeds: other requests than training, of the validation split, unless one is named."""
    cfg = load_config("_6_webshop", ["es_manager.val.env_groups=20"])
    player = setup.make_worker(cfg, None, mode="base")
    env = player.make_env("WebShop")

    def requests(specs):
        for spec in specs:
            env.reset(seed=spec.puzzle_seed, options=spec.reset_options())
            yield env.goal

    set_aside = {env.shop.goals[place] for place in env.shop.goal_indices("val")}
    val = set(
        requests(setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=0))
    )
    train = set(requests(setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())))
    assert len(val) == 20 and val <= set_aside and not train & set_aside
    named = WebShop(split="test")
    named.reset(seed=0, options={"validation": True})
    assert named.goal in {named.shop.goals[place] for place in named.shop.goal_indices("test")}
