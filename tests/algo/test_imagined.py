"""Advantages from imagined plans: the gate and the lead by hand."""

import pytest

from spa.algo.imagined import agreement, lead


def test_the_gate_by_hand():
    # means .5 and .25; covariance .125, deviations .5 and .433
    assert agreement([0, 1, 0, 1], [0, 1, 0, 0]) == pytest.approx(0.125 / (0.5 * 0.1875**0.5))
    assert agreement([0, 1], [0, 1]) == pytest.approx(1.0)


def test_wrong_or_flat_imagination_closes_the_gate():
    assert agreement([0, 1], [1, 0]) == 0.0
    assert agreement([1, 1, 1], [0, 1, 0]) == 0.0 and agreement([0, 1, 0], [0, 0, 0]) == 0.0
    assert agreement([], []) == 0.0 and agreement([1], [1]) == 0.0


def test_the_lead_over_the_mean_of_all_plans():
    assert lead([1, 0, -1, 0], 0) == 1.0 and lead([1, 0], 1) == -0.5 and lead([1], 0) == 0.0
