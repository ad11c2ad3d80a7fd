"""The credit laboratory: exact numbers, worked by hand or known from theory."""

import math
from pathlib import Path

import pytest
import torch

from spa.algo.turn_credit import gigpo, rewards_to_go, turn_gae, turn_rloo
from spa_bench.estimator_bias.credit import ESTIMATORS, groups_of, judge
from spa_bench.estimator_bias.page import verdicts
from spa_bench.estimator_bias.worlds import (
    KEY_AND_DOOR,
    REVISITS,
    STOP_OR_GO,
    WORLDS,
    World,
    enumerate_episodes,
)

PAGE = Path(__file__).parents[2] / "docs" / "methods.md"


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_listed_episodes_are_all_there_are(world: World):
    episodes = enumerate_episodes(world)
    assert float(episodes.probability.sum()) == pytest.approx(1)
    groups = groups_of(episodes, 3)
    assert float(groups.probability.sum()) == pytest.approx(1)


def test_the_exact_gradient_is_that_of_finite_differences():
    def reward(logits: tuple[float, float]) -> float:
        changed = {**REVISITS.logits, "hall": logits}
        world = World(
            name="",
            text="",
            start=REVISITS.start,
            actions=REVISITS.actions,
            logits=changed,
            max_turns=REVISITS.max_turns,
        )
        episodes = enumerate_episodes(world)
        return float(episodes.probability @ episodes.rewards.sum(dim=1))

    up, down = reward((0.4, 1e-5)), reward((0.4, -1e-5))
    assert float(enumerate_episodes(REVISITS).gradient[1]) == pytest.approx(
        (up - down) / 2e-5, rel=1e-6
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("turn_rloo", (0.075, 0.075, 0.075)),
        ("reward to go minus group mean", (0.0375, 0.05625, 0.065625)),
        ("leave-one-out mean per turn index", (0.0125, -0.034375, -0.0490234375)),
        ("group mean per turn index", (-0.025, -0.0375, -0.04375)),
    ],
)
def test_the_published_bias_is_found_to_the_digit(name: str, expected: tuple[float, ...]):
    episodes = enumerate_episodes(STOP_OR_GO)
    found = [
        float(judge(episodes, groups_of(episodes, size), ESTIMATORS[name]).mean[1])
        for size in (2, 4, 8)
    ]
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_bias_follows_its_closed_form(size: int):
    episodes = enumerate_episodes(STOP_OR_GO)
    found = judge(
        episodes, groups_of(episodes, size), ESTIMATORS["leave-one-out mean per turn index"]
    ).mean[1]
    assert float(found) == pytest.approx(
        0.25 * (0.7 - 0.4 - 0.5 * (1 - 0.5 ** (size - 1))), abs=1e-12
    )


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
@pytest.mark.parametrize(
    "name", ["reinforce (reward to go)", "rloo", "turn_rloo", "gae with exact critic and lam 1"]
)
def test_unbiased_estimators_are_unbiased(world: World, name: str):
    episodes = enumerate_episodes(world)
    assert judge(episodes, groups_of(episodes, 3), ESTIMATORS[name]).error < 1e-9


def test_a_wrong_critic_biases_short_traces_only():
    episodes = enumerate_episodes(KEY_AND_DOOR)
    groups = groups_of(episodes, 2, critic_error=0.5)
    assert judge(episodes, groups, ESTIMATORS["gae with exact critic and lam 1"]).error < 1e-9
    assert judge(episodes, groups, ESTIMATORS["gae with exact critic and lam 0.5"]).error > 0.05


def test_the_page_says_what_the_laboratory_finds():
    text = PAGE.read_text(encoding="utf-8")
    found = verdicts(KEY_AND_DOOR, group_size=4)
    whitened, divided = (found[name].angle for name in ("reinforce_plus_plus (whitened)", "grpo"))
    assert f"{whitened:.0f}° and {divided:.0f}°" in text
    assert f"up to {found['reward to go minus group mean'].angle:.0f}°" in text
    found = verdicts(STOP_OR_GO, group_size=4)
    assert found["group mean per turn index"].angle > 179 and "(180°)" in text
    found = verdicts(REVISITS, group_size=4)
    states = found["gigpo with groups of equal state"].angle
    turns = found["gigpo with groups of equal state and turns left"].angle
    assert f"({states:.1f}°)" in text and f"({turns:.0f}°)" in text


# Two episodes of one group, two tokens a turn: turn rewards (1, 2) and (3,); a third, alone in its group.
TURNS = torch.tensor([[0, 0, -1, 1, 1], [0, 0, -1, -1, -1], [0, 0, -1, 1, 1]])
MASK = TURNS >= 0
REWARDS = torch.tensor([[0.0, 1, 0, 0, 2], [0, 3, 0, 0, 0], [0, 5, 0, 0, 7]])
GROUPS = torch.tensor([4, 4, 9])


def test_rewards_to_go_are_discounted_per_turn():
    assert rewards_to_go(torch.tensor([[1.0, 2.0, 4.0]]), 0.5).tolist() == [[3.0, 4.0, 4.0]]


def test_turn_rloo_by_hand():
    advantages, returns = turn_rloo(REWARDS, TURNS, MASK, GROUPS, gamma=1.0)
    # turn 0: 3 against 3; turn 1 was reached by nobody else: baseline 0; the third episode has no company at all
    assert advantages.tolist() == [[0, 0, 0, 2, 2], [0, 0, 0, 0, 0], [12, 12, 0, 7, 7]]
    assert returns.tolist() == [[3, 3, 0, 2, 2], [3, 3, 0, 0, 0], [12, 12, 0, 7, 7]]


def test_turn_gae_by_hand():
    # read at first tokens alone
    values = torch.tensor([[1.0, 9, 0, 0.5, 9], [2.0, 9, 0, 0, 0], [0.0, 9, 0, 0, 9]])
    advantages, returns = turn_gae(REWARDS, values, TURNS, MASK, gamma=0.5, lam=0.5)
    # turn 1: 2 - .5 = 1.5; turn 0: 1 + .5 * .5 - 1 + .25 * 1.5 = .625
    assert advantages[0].tolist() == [0.625, 0.625, 0, 1.5, 1.5]
    assert returns[0].tolist() == [1.625, 1.625, 0, 2.0, 2.0]
    assert advantages[1].tolist() == [1, 1, 0, 0, 0]


def test_gigpo_by_hand():
    turns = torch.tensor([[0, 1, 2], [0, 1, -1], [0, -1, -1]])
    rewards = torch.tensor([[0.0, 0, 1], [0, 3, 0], [2, 0, 0]])
    # the first episode returns to state 7
    anchors = torch.tensor([[7, 8, 7], [7, 9, 0], [7, 0, 0]])
    group = torch.tensor([0, 0, 0])
    advantages, _ = gigpo(rewards, turns, turns >= 0, group, anchors, gamma=1.0)
    # episode parts: 1, 3, 2 less 2; state 7, first visits to go: 1, 3, 2. Turn 2 of the first episode: 1 - 2.5 again.
    expected = [[-1 - 1.5, -1 + 0, -1 - 1.5], [1 + 1.5, 1 + 0, 0], [0 + 0, 0, 0]]
    assert advantages.tolist() == expected


def test_one_turn_each_makes_turn_rloo_rloo():
    from spa.algo.advantages import rloo

    scores, group = torch.tensor([1.0, 4.0, 2.0, 8.0]), torch.tensor([0, 0, 1, 1])
    turns, mask = torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, 1, dtype=torch.bool)
    per_turn = turn_rloo(scores[:, None], turns, mask, group, 1.0)[0]
    assert torch.equal(per_turn, rloo(scores, group, mask)[0])


def test_where_rewards_lie_inside_a_turn_does_not_matter():
    moved = torch.tensor([[1.0, 0, 0, 2, 0], [3, 0, 0, 0, 0], [5, 0, 0, 7, 0]])
    assert torch.equal(
        turn_rloo(moved, TURNS, MASK, GROUPS, 1.0)[0],
        turn_rloo(REWARDS, TURNS, MASK, GROUPS, 1.0)[0],
    )


def test_a_masked_token_without_a_turn_is_an_error():
    with pytest.raises(ValueError, match="has turn -1"):
        turn_rloo(REWARDS, torch.full_like(TURNS, -1), MASK, GROUPS, 1.0)


def test_noise_is_the_standard_deviation_of_one_group():
    episodes = enumerate_episodes(STOP_OR_GO)
    verdict = judge(episodes, groups_of(episodes, 1), ESTIMATORS["reinforce (reward to go)"])
    # R grad log p of `go`: -.2, .1, .6 with p .5, .25, .25, and the negative for `stop`
    mean = 0.5 * -0.2 + 0.25 * 0.1 + 0.25 * 0.6
    square = 0.5 * 0.04 + 0.25 * 0.01 + 0.25 * 0.36
    assert float(verdict.mean[1]) == pytest.approx(mean)
    assert verdict.noise == pytest.approx(math.sqrt(square - mean**2) / mean)
