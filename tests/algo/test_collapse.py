import math

import pytest
import torch

from spa.algo.collapse import prompt_information, running_mean


def test_thoughts_that_name_their_prompt_reach_the_ceiling():
    likelihood = torch.full((4, 4), -100.0).fill_diagonal_(-2.0)
    out = prompt_information(likelihood, torch.arange(4))
    assert out["mi"] == pytest.approx(math.log(4)) == out["mi_ceiling"]
    assert out["conditional_entropy"] == 2.0
    assert out["marginal_entropy"] == pytest.approx(2 + math.log(4))
    assert out["retrieval@1"] == out["retrieval@4"] == 1.0
    assert out["margin"] == 98.0
    assert "retrieval@8" not in out


def test_thoughts_that_ignore_their_prompt_carry_nothing():
    likelihood = torch.tensor([[-3.0], [-5.0]]).expand(2, 4)
    out = prompt_information(likelihood, torch.tensor([0, 3]))
    assert out["mi"] == pytest.approx(0, abs=1e-12)
    assert out["margin"] == 0
    for k in (1, 2, 4):
        assert out[f"retrieval@{k}"] == out[f"chance@{k}"] == k / 4


def test_by_hand():
    # p(z|x) = 0.4, 0.2 and 0.1, 0.3: q = 0.3 and 0.2; the second thought belongs to prompt 0 and prefers prompt 1
    out = prompt_information(torch.tensor([[0.4, 0.2], [0.1, 0.3]]).log(), torch.tensor([0, 0]), ks=(1, 2))
    first, second = math.log(0.4 / 0.3), math.log(0.1 / 0.2)
    spread = (math.log(0.3) - math.log(0.2)) / 2**0.5
    assert out == pytest.approx(
        {
            "mi": (first + second) / 2,
            "mi_ceiling": math.log(2),
            "conditional_entropy": -math.log(0.04) / 2,
            "marginal_entropy": -math.log(0.06) / 2,
            "spread": spread,
            "z": (first + second) / 2 / (spread + 1e-3),
            "margin": (math.log(2) - math.log(3)) / 2,
            "retrieval@1": 0.5,
            "chance@1": 0.5,
            "retrieval@2": 1.0,
            "chance@2": 1.0,
        },
        abs=1e-6,
    )


def test_z_uses_a_given_spread():
    likelihood = torch.tensor([[-1.0, -3.0], [-4.0, -2.0]])
    out = prompt_information(likelihood, torch.arange(2), spread=0.499)
    assert out["z"] == pytest.approx(2 * out["mi"])


def test_one_prompt_is_defined():
    out = prompt_information(torch.tensor([[-1.0]]), torch.tensor([0]))
    assert out["mi"] == 0 == out["spread"]
    assert "margin" not in out


def test_running_mean():
    assert running_mean(None, 3.0) == 3.0
    assert running_mean(1.0, 2.0) == pytest.approx(1.1)
