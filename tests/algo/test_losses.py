import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.algo.losses import (
    entropy_bonus,
    kl_penalty,
    loss_units,
    loss_weights,
    policy_loss,
    value_loss,
)

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "losses.json").read_text())
MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
CLIP = {"clip_low": 0.2, "clip_high": 0.28, "clip_c": 3.0}


def floats(case, key):
    return torch.tensor([GOLDEN[case][key]], dtype=torch.float32)


def as_numbers(info):
    return {key: pytest.approx(float(value), abs=1e-5) for key, value in info.items()}


def test_policy_loss_golden():
    old = torch.full((1, 6), -3.0)
    weights = torch.full((1, 6), 1 / 6)
    loss, info = policy_loss(
        old + floats("policy", "ratios").log(), old, floats("policy", "advantages"), weights, **CLIP
    )
    assert float(loss) == pytest.approx(GOLDEN["policy"]["loss"], abs=1e-6)
    assert GOLDEN["policy"]["sums"] == as_numbers(info)


@pytest.mark.parametrize("token", range(6))
def test_policy_loss_per_token_golden(token):
    old = torch.zeros(1, 6)
    weights = torch.eye(6)[token : token + 1]
    loss, _ = policy_loss(
        floats("policy", "ratios").log(), old, floats("policy", "advantages"), weights, **CLIP
    )
    assert float(loss) == pytest.approx(GOLDEN["policy"]["per_token"][token], abs=1e-6)


def test_dual_clip_can_be_switched_off():
    loss, info = policy_loss(
        torch.tensor([[4.0]]).log(),
        torch.zeros(1, 1),
        -torch.ones(1, 1),
        torch.ones(1, 1),
        clip_low=0.2,
        clip_high=0.28,
        clip_c=None,
    )
    assert float(loss) == pytest.approx(4.0)
    assert int(info["pg_clipfrac_lower"]) == 0


def test_clipped_tokens_have_no_gradient():
    logprobs = floats("policy", "ratios").log().requires_grad_()
    policy_loss(
        logprobs, torch.zeros(1, 6), floats("policy", "advantages"), torch.ones(1, 6), **CLIP
    )[0].backward()
    # d(-A r)/d(log r) = -A r on the tokens that no clip touches
    torch.testing.assert_close(logprobs.grad, torch.tensor([[0.0, 1.5, 0.0, -0.5, 0.0, -2.0]]))


def test_value_loss_golden():
    parts = [floats("value", key) for key in ("values", "old_values", "returns")]
    weights = torch.full((1, 3), 1 / 3)
    loss, info = value_loss(*parts, weights, clip=0.5)
    assert float(loss) == pytest.approx(GOLDEN["value"]["loss"], abs=1e-6)
    assert GOLDEN["value"]["sums"] == as_numbers(info)
    assert float(value_loss(*parts, weights, clip=None)[0]) == pytest.approx(
        GOLDEN["value"]["unclipped"], abs=1e-6
    )


@pytest.mark.parametrize(
    ("kind", "alias"), [("kl", "k1"), ("abs", "abs"), ("mse", "k2"), ("low_var_kl", "k3")]
)
def test_kl_penalty_golden(kind, alias):
    new, ref = floats("kl", "logprobs"), floats("kl", "ref_logprobs")
    torch.testing.assert_close(kl_penalty(new, ref, kind), floats("kl", kind))
    torch.testing.assert_close(kl_penalty(new, ref, alias), floats("kl", kind))


def test_kl_estimates_agree_with_the_divergence():
    policy, reference = (
        torch.tensor([0.5, 0.3, 0.2]).double(),
        torch.tensor([0.4, 0.4, 0.2]).double(),
    )
    true = (policy * (policy.log() - reference.log())).sum()
    for kind in ("kl", "low_var_kl"):
        torch.testing.assert_close(
            (policy * kl_penalty(policy.log(), reference.log(), kind)).sum(), true
        )


@pytest.mark.parametrize("mode", MODES)
def test_loss_weights_golden(mode):
    mask = torch.tensor(GOLDEN["weights"]["mask"]).bool()
    units = loss_units(mask, mode)
    assert int(units) == (3 if mode == "token-mean" else 2)
    weights = loss_weights(mask, mode, units, horizon=GOLDEN["weights"]["horizon"])
    torch.testing.assert_close(weights, torch.tensor(GOLDEN["weights"][mode]))
    assert not loss_weights(torch.zeros_like(mask), mode, 0, horizon=4).any()


def test_unusable_modes_and_kinds_are_refused():
    mask = torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="horizon"):
        loss_weights(mask, "seq-mean-token-sum-norm", 1)
    with pytest.raises(ValueError, match="unknown mode"):
        loss_weights(mask, "mean", 1)
    with pytest.raises(ValueError, match="unknown kind"):
        kl_penalty(torch.zeros(1), torch.zeros(1), "k4")


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(MODES),
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_gradient_does_not_depend_on_micro_batches(seed, mode, cuts):
    generator = torch.Generator().manual_seed(seed)
    rows, width = sum(cuts), 5
    features = torch.randn(rows, width, 3, generator=generator)
    mask = torch.rand(rows, width, generator=generator) < 0.6
    advantages, old = torch.randn(2, rows, width, generator=generator)
    start = torch.randn(3, generator=generator)
    weights = loss_weights(mask, mode, loss_units(mask, mode), horizon=width)

    def gradient(sizes):
        parameter = start.clone().requires_grad_()
        total, infos = 0.0, []
        for x, a, o, w in zip(
            *(part.split(sizes) for part in (features, advantages, old, weights)), strict=True
        ):
            policy, info = policy_loss(x @ parameter, o, a, w, **CLIP)
            value, _ = value_loss(x @ parameter, o, a, w, clip=0.5)
            loss = policy + value - 0.1 * entropy_bonus((x @ parameter).square(), w)
            loss.backward()
            total += float(loss.detach())
            infos.append(info)
        return (
            parameter.grad,
            total,
            {key: sum(float(info[key]) for info in infos) for key in infos[0]},
        )

    whole, parts = gradient([rows]), gradient(cuts)
    torch.testing.assert_close(parts[0], whole[0], atol=1e-5, rtol=1e-4)
    assert parts[1] == pytest.approx(whole[1], abs=1e-4, rel=1e-4)
    assert parts[2] == pytest.approx(whole[2], abs=1e-4, rel=1e-4)


def test_tokens_of_weight_zero_are_never_read():
    weights = torch.tensor([[0.5, 0.0, 0.5]])
    bad = torch.tensor([[0.1, float("nan"), -0.2]])
    worse = torch.tensor([[0.1, float("inf"), -0.2]])
    logprobs = bad.clone().requires_grad_()
    loss, info = policy_loss(logprobs, worse, bad, weights, **CLIP)
    loss = (
        loss
        + value_loss(logprobs, worse, bad, weights, clip=0.5)[0]
        + entropy_bonus(logprobs, weights)
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(logprobs.grad).all()
    assert int(info["tokens"]) == 2


def test_extreme_ratios_stay_finite():
    loss, _ = policy_loss(
        torch.tensor([[500.0]]),
        torch.tensor([[-500.0]]),
        -torch.ones(1, 1),
        torch.ones(1, 1),
        **CLIP,
    )
    assert float(loss) == 3.0
