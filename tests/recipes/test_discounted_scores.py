"""Scores are discounted before they are normalized: what is worth nothing is worth nothing early and late."""

from dataclasses import fields

import pytest
import torch
from helpers.batches import plain_streams
from helpers.runs import small_config

from spa.recipes import ppo_rollouts
from spa.recipes.ppo_models import named_estimator
from spa.types import EpisodeBatch, ScoredBatch

TOKENS = 3  # of each turn; one of the environment follows
PLAYED = ((1, 0.0), (5, 0.0), (1, 1.0), (3, 1.0))
"""Turns and score of the episodes of one puzzle. The first two earn nothing, one at once, one after five turns."""
DISCOUNTED = [
    ("turn_rloo", "algorithm.high_level_gamma=0.9"),
    ("reinforce_plus_plus", "algorithm.gamma=0.97"),
    ("gae", "algorithm.gamma=0.97"),
    (
        "gae",
        "algorithm.gamma=0.97",
        "algorithm.bi_level_gae=true",
        "algorithm.high_level_gamma=0.9",
    ),
    ("turn_gae", "algorithm.high_level_gamma=0.9"),
    ("gigpo", "algorithm.high_level_gamma=0.9"),
]


def episodes() -> EpisodeBatch:
    width = max(turns for turns, _ in PLAYED) * (TOKENS + 1)
    place = torch.arange(width).expand(len(PLAYED), width)
    scores = torch.tensor([score for _, score in PLAYED])
    inside = place < torch.tensor([[turns * (TOKENS + 1)] for turns, _ in PLAYED])
    turns = torch.where(inside, place // (TOKENS + 1), -1)
    ends = inside & (place % (TOKENS + 1) == TOKENS - 1)
    last = ends & (turns == turns.max(dim=1, keepdim=True).values)
    zeros = torch.zeros(len(PLAYED), width)
    mask = inside & (place % (TOKENS + 1) < TOKENS)
    return EpisodeBatch(
        input_ids=torch.zeros(len(PLAYED), width + 1, dtype=torch.int64),
        lengths=inside.sum(dim=1) + 1,
        mask=mask,
        turns=turns,
        turn_ends=ends,
        rewards=torch.where(last, scores[:, None], 0.0),
        scores=scores,
        group_ids=torch.zeros(len(PLAYED), dtype=torch.int64),
        tag_ids=torch.zeros(len(PLAYED), dtype=torch.int64),
        sampler_logprobs=zeros,
        **plain_streams(mask),
        anchors=turns + 1,
    )


def advantages(tmp_path, estimator: str, *changes: str) -> torch.Tensor:
    """Of the normalized rewards, not whitened, with a critic that says 0."""
    cfg = small_config(
        "none", tmp_path, f"algorithm.adv_estimator={estimator}", "algorithm.lam=1", *changes
    )
    batch = ppo_rollouts.normalized(cfg, episodes())
    known = {item.name: getattr(batch, item.name) for item in fields(EpisodeBatch)}
    zeros = torch.zeros_like(batch.rewards)
    scored = ScoredBatch(**known, old_logprobs=zeros, ref_logprobs=None, values=zeros)
    chosen = named_estimator(cfg)
    settings = {key: getattr(cfg.algorithm, key) for key in chosen.settings}
    return chosen.estimate(scored, batch.rewards, settings)[0]


@pytest.mark.parametrize("case", DISCOUNTED, ids=" ".join)
@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
@pytest.mark.parametrize("turn_scores", [True, False])
def test_first_actions_that_are_worth_nothing_are_equal_however_late_the_failure(
    tmp_path, case, method, turn_scores
):
    found = advantages(
        tmp_path,
        *case,
        f"agent_proxy.reward_normalization.method={method}",
        f"agent_proxy.use_turn_scores={turn_scores}",
    )
    at_once, late, won, won_late = found[:, 0].tolist()
    assert at_once == pytest.approx(late, abs=1e-6)
    assert at_once < 0 < won
    assert won > won_late > late or case[0] == "gigpo"


@pytest.mark.parametrize(
    "case",
    [
        ("turn_gae", "algorithm.high_level_gamma=0.9"),
        ("gae", "algorithm.bi_level_gae=true", "algorithm.high_level_gamma=0.9"),
    ],
    ids=" ".join,
)
def test_without_the_history_a_late_failure_is_worth_as_much_as_an_early_one(tmp_path, case):
    estimator, *changes = case
    batch = ppo_rollouts.normalized(
        small_config(
            "none",
            tmp_path,
            f"algorithm.adv_estimator={estimator}",
            *changes,
            "algorithm.gamma=1",
            "ctx_manager.mode=base",
            "ctx_manager.history=false",
            "agent_proxy.reward_normalization.method=mean_std",
        ),
        episodes(),
    )
    at_once, late, won, won_late = batch.rewards.sum(dim=1).tolist()
    assert at_once == pytest.approx(late) and won == pytest.approx(won_late)
    assert at_once < 0 < won


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_the_discounted_scores_are_normalized_by_hand(tmp_path, method):
    normalization = f"agent_proxy.reward_normalization.method={method}"
    found = advantages(tmp_path, "reinforce_plus_plus", "algorithm.gamma=0.9", normalization)
    discounted = torch.tensor([0.0, 0.0, 0.9**2, 0.9**8])
    spread = 1.0 if method == "mean" else float(torch.tensor([0.0, 0.0, 1.0, 1.0]).std())
    expected = (discounted - discounted.mean()) / spread
    torch.testing.assert_close(found[:, 0], expected, atol=1e-5, rtol=0)
    late = found[1][episodes().mask[1]]
    # a failure is the same failure at its every token
    torch.testing.assert_close(late, late[:1].expand_as(late))


def test_bi_level_gae_discounts_from_turn_to_turn(tmp_path):
    found = advantages(
        tmp_path,
        "gae",
        "algorithm.gamma=0.97",
        "algorithm.bi_level_gae=true",
        "algorithm.high_level_gamma=0.9",
        "agent_proxy.reward_normalization.method=mean_std",
    )
    # From the first token: two tokens to the end of its turn, then whole turns.
    discounted = torch.tensor([0.0, 0.0, 0.97**2, 0.97**2 * 0.9**2])
    expected = (discounted - discounted.mean()) / torch.tensor([0.0, 0.0, 1.0, 1.0]).std()
    torch.testing.assert_close(found[:, 0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "estimator", ["reinforce_plus_plus", "turn_rloo", "turn_gae", "gae", "gigpo", "grpo"]
)
def test_without_a_discount_the_normalized_score_is_on_the_last_token(tmp_path, estimator):
    changes = (
        "algorithm.gamma=1",
        "algorithm.high_level_gamma=1",
        "agent_proxy.reward_normalization.method=mean_std",
    )
    found = advantages(tmp_path, estimator, *changes)
    raw = advantages(tmp_path, estimator, *changes[:2])
    batch = episodes()
    if estimator in ("turn_rloo", "gigpo"):  # these subtract a mean themselves
        scores = raw / (batch.scores.std() + 1e-6)
    elif estimator == "grpo":
        scores = raw
    else:
        scores = ((batch.scores - batch.scores.mean()) / (batch.scores.std() + 1e-6))[
            :, None
        ] * batch.mask
    first_turns = slice(0, TOKENS)  # later ones of a single episode have no baseline in turn_rloo
    torch.testing.assert_close(found[:, first_turns], scores[:, first_turns], atol=1e-5, rtol=1e-5)
