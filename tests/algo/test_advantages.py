import json
from pathlib import Path

import pytest
import torch
from helpers.batches import plain_streams
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.algo.advantages import (
    bi_level_gae,
    gae,
    grpo,
    length_weighted,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
)
from spa.algo.estimators import ESTIMATORS, Estimator, estimator_named
from spa.config.check import CRITIC_ESTIMATORS, GROUP_ESTIMATORS
from spa.config.check import ESTIMATORS as CHECKED
from spa.errors import ConfigError
from spa.types import ScoredBatch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "advantages.json").read_text())
NAMES = sorted(ESTIMATORS)
SETTINGS = {
    "gamma": 1.0,
    "lam": 1.0,
    "high_level_gamma": 1.0,
    "bi_level_gae": False,
    "norm_adv_by_std_in_grpo": True,
    "gigpo_step_weight": 1.0,
}


def estimate_advantages(name, batch, rewards, **settings):
    return estimator_named(name, set(SETTINGS)).estimate(batch, rewards, SETTINGS | settings)


def row(key):
    return torch.tensor([GOLDEN[key]], dtype=torch.float32)


def expected(case, key="advantages"):
    return torch.tensor([GOLDEN[case][key]], dtype=torch.float32)


def random_batch(seed, rows=6, width=9):
    """A batch with turns of random length, environment text between them and padding behind; row 0 is empty."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    mask[0] = False
    following = torch.cat([mask[:, 1:], torch.zeros(rows, 1, dtype=torch.bool)], dim=1)
    ends = mask & ~following
    rewards = torch.where(ends, torch.randn(rows, width, generator=generator), 0.0)
    zeros = torch.zeros(rows, width)
    return ScoredBatch(
        input_ids=torch.zeros(rows, width + 1, dtype=torch.int64),
        lengths=torch.full((rows,), width + 1),
        mask=mask,
        turns=torch.where(mask, ends.long().cumsum(1) - ends.long(), -1),
        turn_ends=ends,
        rewards=rewards,
        scores=rewards.sum(1),
        group_ids=torch.randint(0, 3, (rows,), generator=generator),
        tag_ids=torch.zeros(rows, dtype=torch.int64),
        sampler_logprobs=zeros,
        **plain_streams(mask),
        old_logprobs=zeros,
        values=torch.randn(rows, width, generator=generator),
        anchors=torch.randint(0, 3, (rows, width), generator=generator),
    )


def test_gae_golden():
    advantages, returns = gae(
        row("rewards"), row("values"), row("mask").bool(), GOLDEN["gamma"], GOLDEN["lam"]
    )
    torch.testing.assert_close(advantages, expected("gae"))
    torch.testing.assert_close(returns, expected("gae", "returns"))


def test_bi_level_gae_golden():
    ends, factors = (
        row("turn_ends").bool(),
        (GOLDEN["gamma"], GOLDEN["lam"], GOLDEN["high_level_gamma"]),
    )
    advantages, returns = bi_level_gae(
        row("rewards"), row("values"), row("mask").bool(), ends, *factors
    )
    torch.testing.assert_close(advantages, expected("bi_level"))
    torch.testing.assert_close(returns, expected("bi_level", "returns"))


def test_reinforce_plus_plus_counts_rewards_of_later_turns_as_parity_says():
    """A return that starts again at every token without training, as verl's, loses the reward of the
    second turn in the first. On one turn both are equal."""

    def restarted(rewards: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        returns, running = torch.zeros_like(rewards), 0.0
        for token in reversed(range(len(rewards))):
            running = float(rewards[token]) + running
            returns[token] = running
            running *= float(mask[token])
        return returns

    two_turns = torch.tensor([[True, True, False, False, True, True]])
    at_the_end = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 1.0]])
    _, ours = reinforce_plus_plus(at_the_end, two_turns, 1.0)
    assert ours[two_turns].tolist() == [1.0, 1.0, 1.0, 1.0]
    theirs = restarted(at_the_end[0], two_turns[0])
    assert theirs[two_turns[0]].tolist() == [0.0, 0.0, 1.0, 1.0]
    one_turn = torch.tensor([[True, True, True, True, True, True]])
    _, ours = reinforce_plus_plus(at_the_end, one_turn, 1.0)
    assert ours[0].tolist() == restarted(at_the_end[0], one_turn[0]).tolist()


def test_reinforce_plus_plus_golden_skips_environment_text():
    advantages, returns = reinforce_plus_plus(row("rewards"), row("mask").bool(), GOLDEN["gamma"])
    torch.testing.assert_close(advantages, expected("reinforce_plus_plus"))
    torch.testing.assert_close(returns, advantages)


def test_group_estimators_golden():
    groups = GOLDEN["groups"]
    scores, ids = (
        torch.tensor(groups["scores"], dtype=torch.float32),
        torch.tensor(groups["group_ids"]),
    )
    mask = torch.tensor([[True, False, True]]).expand(6, 3)
    results = {
        "grpo": grpo(scores, ids, mask, True),
        "dr_grpo": grpo(scores, ids, mask, False),
        "rloo": rloo(scores, ids, mask),
    }
    for name, (advantages, returns) in results.items():
        torch.testing.assert_close(advantages, torch.tensor(groups[name])[:, None] * mask, msg=name)
        torch.testing.assert_close(returns, advantages)
    baseline, _ = reinforce_plus_plus_baseline(scores, ids, mask)
    torch.testing.assert_close(baseline, results["dr_grpo"][0])


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6))
def test_undiscounted_gae_is_return_minus_value(seed):
    batch = random_batch(seed)
    advantages, returns = gae(batch.rewards, batch.values, batch.mask, 1.0, 1.0)
    to_come = batch.rewards.flip(1).cumsum(1).flip(1)
    torch.testing.assert_close(
        advantages, (to_come - batch.values) * batch.mask, atol=1e-5, rtol=1e-5
    )
    torch.testing.assert_close(returns, to_come * batch.mask, atol=1e-5, rtol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1))
def test_gae_is_the_discounted_sum_of_td_errors(seed, gamma, lam):
    batch = random_batch(seed)
    advantages, _ = gae(batch.rewards, batch.values, batch.mask, gamma, lam)
    for i in range(len(batch)):
        rewards, values = (
            batch.rewards[i][batch.mask[i]].double(),
            batch.values[i][batch.mask[i]].double(),
        )
        following = torch.cat([values[1:], values.new_zeros(1)])[: len(values)]
        deltas = rewards + gamma * following - values
        wanted = [
            sum((gamma * lam) ** k * float(d) for k, d in enumerate(deltas[t:]))
            for t in range(len(deltas))
        ]
        torch.testing.assert_close(
            advantages[i][batch.mask[i]].double(),
            torch.tensor(wanted).double(),
            atol=1e-5,
            rtol=1e-5,
        )


def two_pass_bi_level(rewards, values, ends, gamma, lam, high):
    """The definition read literally, for one compressed row: first over turns, then token by token."""
    rewards, positions, last = rewards.tolist(), ends.nonzero().flatten().tolist(), 0.0
    for i in reversed(range(len(positions))):
        here = positions[i]
        after = float(values[positions[i + 1]]) if i + 1 < len(positions) else 0.0
        last = rewards[here] + high * after - float(values[here]) + high * lam * last
        rewards[here] = last + float(values[here])
    out, last = [0.0] * len(rewards), 0.0
    for t in reversed(range(len(rewards))):
        after, last = (0.0, 0.0) if t in positions else (float(values[t + 1]), last)
        last = rewards[t] + gamma * after - float(values[t]) + gamma * lam * last
        out[t] = last
    return torch.tensor(out)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_bi_level_gae_equals_the_two_pass_definition(seed, gamma, lam, high):
    batch = random_batch(seed)
    advantages, _ = bi_level_gae(
        batch.rewards, batch.values, batch.mask, batch.turn_ends, gamma, lam, high
    )
    for i in range(len(batch)):
        kept = batch.mask[i]
        wanted = two_pass_bi_level(
            batch.rewards[i][kept],
            batch.values[i][kept],
            batch.turn_ends[i][kept],
            gamma,
            lam,
            high,
        )
        torch.testing.assert_close(advantages[i][kept], wanted, atol=1e-4, rtol=1e-4)


def test_bi_level_gae_with_all_zero_rewards():
    batch = random_batch(1)
    zeros = torch.zeros_like(batch.rewards)
    advantages, returns = bi_level_gae(zeros, zeros, batch.mask, batch.turn_ends, 1.0, 1.0, 0.95)
    assert not advantages.any()
    assert not returns.any()


def test_a_turn_without_reward_still_counts_as_a_turn():
    # Three one-token turns, the middle one pays nothing: the first sees the last reward discounted twice.
    mask = torch.ones(1, 3, dtype=torch.bool)
    advantages, _ = bi_level_gae(
        torch.tensor([[0.0, 0.0, 1.0]]), torch.zeros(1, 3), mask, mask, 1.0, 1.0, 0.5
    )
    torch.testing.assert_close(advantages, torch.tensor([[0.25, 0.5, 1.0]]))


def test_values_outside_the_mask_are_never_read():
    batch = random_batch(3)
    poisoned = torch.where(batch.mask, batch.values, float("nan"))
    for bi_level in (False, True):
        factors = {"gamma": 0.9, "lam": 0.8, "high_level_gamma": 0.7, "bi_level_gae": bi_level}
        clean = estimate_advantages("gae", batch, batch.rewards, **factors)
        dirty = estimate_advantages(
            "gae", ScoredBatch(**{**vars(batch), "values": poisoned}), batch.rewards, **factors
        )
        assert torch.equal(clean[0], dirty[0])
        assert torch.equal(clean[1], dirty[1])


def test_rewards_and_turn_ends_outside_the_mask_are_refused():
    mask = torch.tensor([[True, False]])
    zeros = torch.zeros(1, 2)
    with pytest.raises(ValueError, match="token with mask 0"):
        gae(torch.tensor([[0.0, 1.0]]), zeros, mask, 1.0, 1.0)
    with pytest.raises(ValueError, match="turn_ends"):
        bi_level_gae(zeros, zeros, mask, torch.tensor([[False, True]]), 1.0, 1.0, 1.0)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([*NAMES, "bi_level"]), st.permutations(range(6)))
def test_order_of_rows_does_not_matter(seed, name, order):
    batch = random_batch(seed)
    moved = ScoredBatch(
        **{k: v if v is None else v[torch.tensor(order)] for k, v in vars(batch).items()}
    )
    args = {"gamma": 0.9, "lam": 0.95, "high_level_gamma": 0.8, "bi_level_gae": name == "bi_level"}
    name = "gae" if name == "bi_level" else name
    for ours, theirs in zip(
        estimate_advantages(name, batch, batch.rewards, **args),
        estimate_advantages(name, moved, moved.rewards, **args),
        strict=True,
    ):
        assert torch.equal(ours[torch.tensor(order)], theirs)


@pytest.mark.parametrize("name", NAMES)
def test_results_are_zero_outside_the_mask(name):
    batch = random_batch(5)
    advantages, returns = estimate_advantages(name, batch, batch.rewards)
    assert advantages.dtype == returns.dtype == torch.float32
    assert advantages[batch.mask].any()
    assert not advantages[~batch.mask].any()
    assert not returns[~batch.mask].any()


def twice_the_reward(batch, rewards, *, gamma, lam):
    return rewards * 2 * gamma, rewards + lam


def wrong_shape(batch, rewards, *, gamma, lam):
    return rewards[:, :1], rewards


def asks_for_too_much(batch, rewards, *, temperature):
    return rewards, rewards


def values_and_turns(batch, rewards, *, high_level_gamma):
    return batch.values * high_level_gamma, rewards


judged = Estimator(
    function=values_and_turns, settings=("high_level_gamma",), needs_values=True, whitened=True
)


def test_a_record_of_ones_own_has_the_rights_of_a_shipped_one():
    batch, name = random_batch(5), f"{__name__}:judged"
    assert estimator_named(name, set(SETTINGS)) is judged
    advantages, _ = estimate_advantages(name, batch, batch.rewards, high_level_gamma=0.5)
    torch.testing.assert_close(advantages, torch.where(batch.mask, batch.values, 0.0) * 0.5)
    plain = estimator_named(f"{__name__}:twice_the_reward", set(SETTINGS))
    assert (plain.needs_values, plain.whitened, plain.settings) == (False, False, ("gamma", "lam"))


def test_the_check_of_configurations_knows_the_table():
    assert set(CHECKED) == set(ESTIMATORS)
    assert set(CRITIC_ESTIMATORS) == {
        name for name, found in ESTIMATORS.items() if found.needs_values
    }
    assert set(GROUP_ESTIMATORS) == {
        name for name, found in ESTIMATORS.items() if found.needs_groups
    }


def test_a_dotted_path_is_a_custom_estimator():
    batch = random_batch(5)
    advantages, returns = estimate_advantages(
        f"{__name__}:twice_the_reward", batch, batch.rewards, gamma=0.5, lam=1.0
    )
    torch.testing.assert_close(advantages, batch.rewards)
    torch.testing.assert_close(returns, (batch.rewards + 1) * batch.mask)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("remax", "is unknown"),
        ("no_such_package.module:fn", "cannot load"),
        (f"{__name__}:missing", "cannot load"),
        (f"{__name__}:GOLDEN", "must name an Estimator or a function"),
        (f"{__name__}:asks_for_too_much", "has the keyword .*temperature"),
        (f"{__name__}:wrong_shape", "shape"),
    ],
)
def test_unusable_estimators_are_explained(name, message):
    batch = random_batch(5)
    with pytest.raises(ConfigError, match=message):
        estimate_advantages(name, batch, batch.rewards)


def test_gae_without_a_critic_is_explained():
    batch = random_batch(5)
    with pytest.raises(ConfigError, match="needs a critic"):
        estimate_advantages("gae", ScoredBatch(**{**vars(batch), "values": None}), batch.rewards)


def test_shorter_responses_count_more():
    """Rows of 1, 2 and 3 tokens, 2 on average: factors 2, 1 and 2/3."""
    mask = torch.tensor([[True, False, False], [True, True, False], [True, True, True]])
    advantages = mask * torch.tensor([[1.0], [-1.0], [3.0]])
    expected = mask * torch.tensor([[2.0], [-1.0], [2.0]])
    torch.testing.assert_close(length_weighted(advantages, mask), expected)
