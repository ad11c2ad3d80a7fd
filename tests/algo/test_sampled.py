"""The distribution that is sampled from, and the weights of what another one drew."""

import math

import pytest
import torch

from spa.algo.losses import rollout_weights
from spa.models.forward import policy_logits
from spa.types import SamplingParams

LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))


def probabilities(keep: int | None = None, **settings) -> list[float]:
    kept = None if keep is None else torch.tensor([keep])
    return [
        round(p, 4)
        for p in policy_logits(LOGITS, SamplingParams(**settings), kept).softmax(-1)[0].tolist()
    ]


def test_temperature_comes_before_what_is_left_out():
    assert probabilities(temperature=0.5, top_k=2) == [0.64, 0.36, 0, 0]
    assert probabilities(top_k=3, top_p=0.5) == [0.5714, 0.4286, 0, 0]


def test_the_sampled_token_stays_even_if_it_would_be_left_out_now():
    assert probabilities(keep=3, top_k=1) == [0.8, 0, 0, 0.2]
    assert probabilities(keep=0, top_k=1) == [1, 0, 0, 0]
    assert probabilities(keep=3, temperature=0.5) == probabilities(temperature=0.5)


OLD = torch.tensor([[math.log(0.5), math.log(0.2), -9.0], [math.log(0.1), 0.0, -9.0]])
SAMPLER = torch.tensor([[math.log(0.25), math.log(0.4), 0.0], [math.log(0.5), 0.0, 0.0]])
MASK = torch.tensor([[True, True, False], [True, False, False]])


@pytest.mark.parametrize(
    ("level", "mode", "expected"),
    [
        ("token", "truncate", [[1.5, 0.5, 1.0], [0.2, 1.0, 1.0]]),
        ("token", "mask", [[0.0, 0.5, 1.0], [0.0, 1.0, 1.0]]),
        ("sequence", "truncate", [[1.0, 1.0, 1.0], [0.2, 1.0, 1.0]]),  # 2 times 0.5
        ("sequence", "mask", [[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]),
    ],
)
def test_weights_by_hand(level, mode, expected):
    weights, metrics = rollout_weights(
        OLD, SAMPLER, MASK, level=level, mode=mode, cap=1.5, floor=0.4
    )
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert metrics["rollout/is_mean"] == pytest.approx(
        (2 + 0.5 + 0.2 if level == "token" else 1 + 1 + 0.2) / 3
    )


def test_without_a_correction_the_weights_are_only_measured():
    weights, metrics = rollout_weights(
        OLD, SAMPLER, MASK, level="off", mode="truncate", cap=1.5, floor=0.4
    )
    assert weights is None
    assert metrics["rollout/is_max"] == pytest.approx(2)
    assert metrics["rollout/is_outside"] == pytest.approx(1 / 3)
    assert metrics["rollout/is_ess"] == pytest.approx(2.7**2 / (3 * (4 + 0.25 + 0.04)))


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("mode", ["truncate", "mask"])
def test_equal_policies_have_weight_one(level, mode):
    weights, metrics = rollout_weights(OLD, OLD, MASK, level=level, mode=mode, cap=2.0, floor=0.5)
    assert torch.equal(weights, torch.ones_like(OLD))
    assert metrics["rollout/is_ess"] == pytest.approx(1)
