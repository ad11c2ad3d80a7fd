"""WebShop: find and buy the product that a customer requests, on text pages (Yao et al. 2022, arXiv
2207.01206)."""

import json
import re
from dataclasses import asdict, replace
from typing import Any

from spa.envs.base import Action, StateText, TextEnv
from spa.envs.options import require_bool, require_choice, reset_seeds
from spa.envs.spaces import text_space
from spa_games.shop.catalogue import OptionChoice
from spa_games.shop.pages import PER_PAGE, View, render
from spa_games.shop.reward import meets
from spa_games.shop.search import MAX_QUERY
from spa_games.shop.shop import SPLITS, open_shop

NAME = "webshop"
MAX_ACTION = MAX_QUERY + len("search[]")

HINTS = (
    "the search understands plain words: kind of product, properties, colour",
    "searching works on the search page only; 'back to search' leads there",
    "click a product's number to open it",
    "a result page shows ten products; 'next' and 'prev' turn pages",
    "choose every option that the request names before you buy",
    "description, features and reviews say more about a product; 'prev' leads back from them",
    "the price has to stay within the limit, if the request names one",
    "'buy now' ends the task, so be sure of product and options",
)

# fmt: off
ASKING = frozenset((
    "a", "am", "an", "are", "be", "buy", "can", "find", "for", "get", "give", "i", "i'd", "i'm", "im", "is", "like",
    "looking", "me", "my", "need", "of", "please", "show", "some", "that", "the", "to", "want", "which", "would",
    "you",
))
# fmt: on
"""Words of a request that do not describe a product."""


def parse_action(text: str) -> tuple[str, str] | None:
    """Parse `search[words]` into ("search", words) and `click[label]` into ("click", label). Return
    None for any other text."""
    # A model may write megabytes, so check the length before any other work.
    if not isinstance(text, str) or len(text) > 2 * MAX_ACTION:
        return None
    text = text.strip()
    verb, bracket, rest = text.partition("[")
    verb = verb.strip().lower()
    # Only the first and the last bracket are syntax: `click[a [b]]` clicks the label `a [b]`.
    argument = rest[:-1].strip()
    well_formed = (
        bool(bracket) and rest.endswith("]") and verb in ("search", "click") and bool(argument)
    )
    return (verb, argument) if well_formed and len(text) <= MAX_ACTION else None


class WebShop(TextEnv):
    """Fulfil a customer's request with one purchase in a shop of text pages. The reward of the
    purchase is between 0 and 1 (see `shop.reward`).

    `data` is a folder with WebShop's product files; None generates a shop of 1,024 products.
    `dataset` "small" loads the first 1,000 products of the files, "full" all of them. `human_goals`
    uses requests that people wrote.

    `split` selects the requests: `train`, `val` or `test`. With None, validation episodes
    (`reset(options={"validation": True})`) use `val` and all others `train`.
    `reset(options={"split": ...})` changes the split for one episode. Seed s plays request s modulo
    the number of requests, and episodes are deterministic.
    """

    changes = ()

    def __init__(
        self,
        *,
        dataset: str = "small",
        data: str | None = None,
        split: str | None = None,
        human_goals: bool = False,
    ) -> None:
        dataset = require_choice(NAME, "dataset", dataset, ("small", "full"))
        self.split = None if split is None else require_choice(NAME, "split", split, SPLITS)
        human = require_bool(NAME, "human_goals", human_goals)
        self.shop = open_shop(
            data=None if data is None else str(data), dataset=dataset, human_goals=human
        )
        self.observation_space = text_space()
        self.action_space = text_space(MAX_ACTION)
        self.goal = self.shop.goals[0]
        self._go(View())

    def _go(self, view: View) -> None:
        self.view = view
        self.page = render(self.shop, self.goal, view)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start at the search page with the request of the seed."""
        puzzle_seed, _ = reset_seeds(self, seed, options)
        given = options or {}
        # In the original, validation uses training requests, because its environment manager does
        # not pass the mode to `reset`. Here, validation has requests of its own.
        usual = self.split or ("val" if given.get("validation") else "train")
        split = require_choice(NAME, "split", given.get("split", usual), SPLITS)
        indices = self.shop.goal_indices(split)  # type: ignore[arg-type]
        self.goal = self.shop.goals[indices[puzzle_seed % len(indices)]]
        self._go(View())
        return self.state_text("grid"), {}

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Search or click. An action that the page does not offer is invalid and changes
        nothing."""
        before = self.view
        over = before.kind == "done"
        target = None if over or not isinstance(action, str) else self._target(action)
        reward = 0.0
        parts = {}
        if target is not None:
            self._go(target)
            if target.kind == "done":
                verdict = self.shop.judge(self.goal, target.asin, target.options)
                reward = verdict.reward
                parts = asdict(verdict)
        done = self.view.kind == "done"
        bought = done and not over
        info = {
            "action_is_valid": target is not None,
            "action_is_effective": self.view != before,
            "success": bought and reward == 1.0,
            # The original's metrics read these keys.
            "success_purchase": bought,
            "success_find": bought and reward == 1.0,
            "end_of_page": self.page.end_of_results,
            **parts,
            "reward": reward,
        }
        return self.state_text("grid"), reward, done, False, info

    def _target(self, action: str) -> View | None:
        parsed = parse_action(action)
        if parsed is None:
            return None
        verb, argument = parsed
        if verb == "search":
            return View(kind="results", keywords=argument) if self.page.has_search_bar else None
        return self.page.target(argument)

    def legal_actions(self) -> tuple[str, ...]:
        """The clicks that the page offers. Searches are not listed, although pages with a search
        bar allow them."""
        return tuple(f"click[{link.label}]" for link in self.page.links)

    def state_text(self, mode: StateText) -> str:
        """The request, the page and the legal actions; the same text in every mode."""
        lines = [f"Request: {self.goal.instruction}", *(block.text for block in self.page.blocks)]
        if self.view.kind != "done":
            search = ("search[your words]",) if self.page.has_search_bar else ()
            lines.append("Actions: " + ", ".join(search + self.legal_actions()))
        return "\n".join(lines)

    def to_action(self, text: str) -> Action | None:
        """Convert a text to `search[...]` or `click[...]`, with the verb in lower case and without
        surrounding white space. Return None for any other text and for a text that is too long.

        The actions of one response may lead through several pages, so only `step` checks whether
        the page offers an action.
        """
        parsed = parse_action(text)
        return None if parsed is None else f"{parsed[0]}[{parsed[1]}]"

    def instruction(self, mode: StateText) -> str:
        """The task, the two forms of action, and hints."""
        return (
            "You are shopping on a web shop for a customer. Find a product that fits the request, choose its options "
            "and buy it; the reward says how well it fits. Actions are search[words] and click[label], where the label "
            "is one of those that the page offers. Hints: " + "; ".join(HINTS) + "."
        )

    def random_action(self, rng: Any) -> str:
        """Click a random link of the page. On the search page, search for three random words of the
        request."""
        if self.page.has_search_bar:
            # Random letters would find no product, so use words of the request.
            words = self.goal.instruction.replace("[", " ").replace("]", " ").split()
            return f"search[{' '.join(words[int(place)] for place in rng.integers(len(words), size=3))[:MAX_QUERY]}]"
        actions = self.legal_actions() or ("click[back to search]",)
        return actions[int(rng.integers(len(actions)))]

    def example_actions(self) -> tuple[str, ...]:
        """A search for the product that the request describes. Empty on pages without a search
        bar."""
        # `i need red shoes with size: 7, and price lower than …` -> `i need red shoes`
        asked = re.split(r",| with | and price ", self.goal.instruction, maxsplit=1)[0]
        words = [word for word in re.findall(r"[^\W_][\w'-]*", asked) if word.lower() not in ASKING]
        return (
            (f"search[{' '.join(words)[:MAX_QUERY]}]",)
            if words and self.page.has_search_bar
            else ()
        )

    def puzzle_text(self) -> str:
        """The request and everything that determines the reward, as a JSON object."""
        return json.dumps({NAME: asdict(self.goal)}, sort_keys=True)

    def expert_actions(self, limit: int) -> tuple[str, ...]:
        """The first `limit` actions of a sequence that buys the product for which the request was
        written.

        The purchase earns the full reward if the product matches the whole request. A shorter
        sequence may exist, so `optimal_steps` is not known. Empty after the purchase, or if a
        search for the product's title does not find it.
        """
        return self._way()[0][:limit]

    def best_success(self, limit: int) -> float | None:
        """1 if `expert_actions` earns the full reward within `limit` actions. Otherwise None,
        because the success rate of the best policy is unknown."""
        actions, options = self._way()
        if not 0 < len(actions) <= limit:
            return None
        return 1.0 if self.shop.judge(self.goal, self.goal.asin, options).reward == 1.0 else None

    def _way(self) -> tuple[tuple[str, ...], tuple[OptionChoice, ...]]:
        """Plan the purchase from the current page. Returns the actions, and the options that they
        choose."""
        wishes = self._requested_options()
        view = self.view
        actions: tuple[str, ...] = ()
        # A chosen option cannot be unset. So leave a product page on which an unwanted option is
        # chosen.
        if (
            view.kind != "item"
            or view.asin != self.goal.asin
            or not set(dict(view.options)) <= set(wishes)
        ):
            view, actions = self._to_product()
        if view.kind != "item":
            return (), ()
        for option, value in wishes.items():
            options = dict(view.options)
            if options.get(option) != value:
                wish = replace(view, options=tuple(sorted((options | {option: value}).items())))
                actions += (self._click(view, wish),)
                view = wish
        return (*actions, "click[buy now]"), view.options

    def _to_product(self) -> tuple[View, tuple[str, ...]]:
        """Find the way to the requested product. Returns its page, and the actions that lead there
        from the current page. If the product cannot be reached, returns the search page and no
        actions."""
        title = self.shop.products[self.goal.asin].title[:MAX_QUERY]
        # Only the search page allows a search.
        back = () if self.page.has_search_bar else ("click[back to search]",)
        ways: list[tuple[str, int, tuple[str, ...]]] = [(title, 1, (*back, f"search[{title}]"))]
        if self.view.kind == "results":
            ways.insert(0, (self.view.keywords, self.view.page, ()))
        for query, first, actions in ways if self.view.kind != "done" else ():
            asins = [product.asin for product in self.shop.search(query)]
            if self.goal.asin not in asins:
                continue
            page = 1 + asins.index(self.goal.asin) // PER_PAGE
            if page >= first:
                listed = View(kind="results", keywords=query, page=page)
                item = replace(listed, kind="item", asin=self.goal.asin)
                clicks = (*["click[next]"] * (page - first), self._click(listed, item))
                return item, (*actions, *clicks)
        return View(), ()

    def _click(self, view: View, wish: View) -> str:
        """The click on the page of `view` that leads to `wish`. The page must have such a link."""
        links = render(self.shop, self.goal, view).links
        return next(f"click[{link.label}]" for link in links if link.view == wish)

    def _requested_options(self) -> dict[str, str]:
        """Map each requested option of the product to the value that fits the request. Requests
        written by people may omit an option's name, or spell its value differently from the
        product."""
        product = self.shop.products[self.goal.asin]
        offered = [(name, value) for name, values in product.options for value in values]
        chosen: dict[str, str] = {}
        for name, wish in self.goal.options:
            meant = [pair for pair in offered if pair[1] == wish or meets(pair[1], (name, wish))]
            if meant:
                # Prefer a value that equals the wish, then an option with the name that the wish
                # gives.
                option, value = min(meant, key=lambda pair: (pair[1] != wish, pair[0] != name))
                chosen[option] = value
        return chosen
