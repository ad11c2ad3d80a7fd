"""Resources that a training run has used up to a step, read from the records of its stages."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from spa.run.files import read_object


class Budget(NamedTuple):
    """Numbers of environment actions, tokens that the model sampled, and episodes.

    Play by other policies, branches, plans to choose from and tabular Q-learning add actions but no
    tokens. Tokens include the prefilled plans of a planner and the single moves that were queried
    for written searches. Validation is not counted.
    """

    environment_steps: float = 0.0
    tokens: float = 0.0
    episodes: float = 0.0

    def plus(self, other: "Budget") -> "Budget":
        """The sum of both."""
        return Budget(*map(sum, zip(self, other, strict=True)))


def of_self_play(folder: Path, generate: Mapping[str, Any]) -> Budget | None:
    """Resources of the self-play whose dataset is in `folder`, even if another stage played it;
    None if the summary is missing or damaged. generate: section `generate` of the configuration."""
    summary = read_object(folder / "summary.json")
    if "played" not in summary:
        return None
    played = summary["played"]
    shares = generate.get("mixture") or {generate.get("policy", "self"): 1.0}
    # The share of episodes that the model played.
    share = float(shares.get("self", 0.0)) / sum(map(float, shares.values()))
    # With planning, a turn may sample several responses. This count includes all of them.
    planned = summary.get("imagination", {}).get("tokens_per_episode")
    length = planned or played.get("response_length", 0.0)
    tokens = share * played["episodes"] * length
    # `response_length` is a mean over all policies, so `model_tokens` is used if recorded. Older
    # summaries have only the shares.
    if not planned:
        tokens = summary.get("model_tokens", tokens * (1 - generate.get("epsilon", 0.0)))
    tokens += summary.get("search", {}).get("tokens", 0)  # of the moves in searches
    actions = played["episodes"] * played["num_actions"] + summary.get("actions_elsewhere", 0)
    return Budget(actions, tokens, played["episodes"])


def so_far(before: Budget, steps: Iterable[tuple[int, Mapping[str, float]]]) -> dict[int, Budget]:
    """PPO step -> resources used up to this step. before: resources used by self-play. steps: PPO
    steps with their metrics."""
    total = before
    totals = {0: total}
    for step, metrics in steps:
        for name, episodes in metrics.items():
            if tag := re.fullmatch(r"train/(.+)/episodes", name):
                # Metrics are means per episode; the number of episodes turns them into totals.
                actions, tokens = (
                    episodes * metrics.get(f"train/{tag[1]}/{key}", 0.0)
                    for key in ("num_actions", "response_length")
                )
                total = total.plus(Budget(actions, tokens, episodes))
        totals[step] = total
    return totals
