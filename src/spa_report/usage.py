"""Resources that a training run has used up to a step, read from the records of its stages."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spa.run.files import read_object


class Budget(NamedTuple):
    """Numbers of environment actions, sampled tokens and episodes.

    Other policies, counterfactual branches, candidate plans and tabular Q-learning add actions but
    no tokens. Tokens include the prefilled plans of a planner, and the queries for single moves of
    written searches. Validation is not counted.
    """

    environment_steps: float = 0.0
    tokens: float = 0.0
    episodes: float = 0.0

    def plus(self, other: "Budget") -> "Budget":
        """The sum of two budgets."""
        return Budget(*map(sum, zip(self, other, strict=True)))


def of_self_play(folder: Path, generate: Mapping[str, Any]) -> Budget | None:
    """Resources of the self-play whose dataset is in `folder`, even if another stage played the
    episodes. None if the summary is missing or damaged. `generate` is the section `generate` of the
    configuration."""
    summary = read_object(folder / "summary.json")
    if "played" not in summary:
        return None
    played = summary["played"]
    shares = generate.get("mixture") or {generate.get("policy", "self"): 1.0}
    # The share of episodes that the model played.
    share = float(shares.get("self", 0.0)) / sum(map(float, shares.values()))
    # With planning, a turn may sample several responses, and this count includes all of them.
    planned = summary.get("imagination", {}).get("tokens_per_episode")
    length = planned or played.get("response_length", 0.0)
    tokens = share * played["episodes"] * length
    # `response_length` is a mean over all policies, so prefer `model_tokens`. Older summaries lack
    # it, so estimate the model's tokens from its share.
    if not planned:
        tokens = summary.get("model_tokens", tokens * (1 - generate.get("epsilon", 0.0)))
    # Add the tokens of single moves that were queried for written searches.
    tokens += summary.get("search", {}).get("tokens", 0)
    actions = played["episodes"] * played["num_actions"] + summary.get("actions_elsewhere", 0)
    return Budget(actions, tokens, played["episodes"])


def so_far(before: Budget, steps: Iterable[tuple[int, Mapping[str, float]]]) -> dict[int, Budget]:
    """Map each PPO step to the resources used up to it. `before` are the resources of self-play,
    and `steps` the PPO steps with their metrics."""
    total = before
    totals = {0: total}
    for step, metrics in steps:
        for name, episodes in metrics.items():
            if tag := re.fullmatch(r"train/(.+)/episodes", name):
                # Metrics are means per episode, so multiply them by the number of episodes.
                actions, tokens = (
                    episodes * metrics.get(f"train/{tag[1]}/{key}", 0.0)
                    for key in ("num_actions", "response_length")
                )
                total = total.plus(Budget(actions, tokens, episodes))
        totals[step] = total
    return totals
