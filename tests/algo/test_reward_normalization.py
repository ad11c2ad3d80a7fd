import pytest
import torch

from spa.algo.losses import KLController, kl_in_reward
from spa.algo.reward_normalization import normalize_rewards, normalize_scores

SCORES = torch.tensor([1.0, 5.0, 3.0, 5.0])
GROUPS = torch.tensor([4, 1, 4, 1])
TAGS = torch.tensor([0, 0, 0, 1])


def normalized(grouping, method, scores=SCORES, groups=GROUPS):
    return normalize_scores(scores, groups, TAGS[: len(scores)], grouping=grouping, method=method)


def test_within_states_by_hand():
    torch.testing.assert_close(normalized("state", "identity"), SCORES)
    torch.testing.assert_close(normalized("state", "mean"), torch.tensor([-1.0, 0.0, 1.0, 0.0]))
    torch.testing.assert_close(
        normalized("state", "mean_std"), torch.tensor([-1.0, 0.0, 1.0, 0.0]) / (2**0.5 + 1e-6)
    )


def test_within_tags_and_batch_by_hand():
    torch.testing.assert_close(normalized("inductive", "mean"), torch.tensor([-2.0, 2.0, 0.0, 0.0]))
    torch.testing.assert_close(
        normalized("inductive", "mean_std"), torch.tensor([-1.0, 1.0, 0.0, 0.0]), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(normalized("batch", "mean"), SCORES - 3.5)


def test_asym_clip_bounds_both_sides():
    # one success among 17: z = 16 / sqrt(17) = 3.88; one failure among 3: z = -2 / sqrt(3) = -1.15
    scores = torch.tensor([1.0] + [0.0] * 16)
    out = normalize_scores(
        scores, torch.zeros(17).long(), torch.zeros(17).long(), grouping="state", method="asym_clip"
    )
    assert out[0] == 3
    assert out[1] == pytest.approx(-(17**-0.5), abs=1e-4)
    out = normalized("state", "asym_clip", torch.tensor([0.0, 1.0, 1.0]), torch.zeros(3).long())
    torch.testing.assert_close(out, torch.tensor([-1.0, 3**-0.5, 3**-0.5]), atol=1e-5, rtol=0)


def test_groups_of_one_are_left_alone_only_if_all_are():
    alone = torch.arange(4)
    torch.testing.assert_close(normalized("state", "mean_std", groups=alone), SCORES)
    mixed = normalized("state", "mean", groups=torch.tensor([0, 1, 0, 2]))
    torch.testing.assert_close(mixed, torch.tensor([-1.0, 0.0, 1.0, 0.0]))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="grouping"):
        normalized("puzzle", "mean")
    with pytest.raises(ValueError, match="method"):
        normalized("state", "std")


def test_kl_in_reward_reads_only_the_mask():
    mask = torch.tensor([[True, False]])
    new, ref = torch.tensor([[-1.0, float("nan")]]), torch.tensor([[-3.0, -1.0]])
    rewards, kl = kl_in_reward(torch.tensor([[1.0, 0.0]]), new, ref, mask, coef=0.25, kind="kl")
    torch.testing.assert_close(rewards, torch.tensor([[0.5, 0.0]]))
    torch.testing.assert_close(kl, torch.tensor([[2.0, 0.0]]))


def test_controllers_by_hand():
    assert KLController(coef=0.1).update(9.0, 1000).coef == 0.1
    adaptive = KLController(coef=0.1, target=0.1)
    # 10 % above, a tenth of the horizon
    assert adaptive.update(0.11, 1000).coef == pytest.approx(0.1 * 1.01)
    assert adaptive.update(5.0, 1000).coef == pytest.approx(0.1 * 1.02)  # never more than 20 %
    assert adaptive.update(0.0, 1000).coef == pytest.approx(0.1 * 0.98)
    assert adaptive.update(0.1, 1000).coef == pytest.approx(0.1)


@pytest.mark.parametrize("method", ["mean", "mean_std", "asym_clip"])
def test_normalized_turn_rewards_add_up_to_the_normalized_score_and_keep_their_place(method):
    rewards = torch.tensor([[1.0, 0.0, 2.0], [0.0, 0.0, -1.0], [0.5, 0.5, 0.0]])
    last = torch.tensor([[False, False, True], [False, False, True], [False, True, False]])
    scores, group, tag = (
        rewards.sum(dim=1),
        torch.tensor([0, 0, 0]),
        torch.zeros(3, dtype=torch.int64),
    )
    found = normalize_rewards(rewards, last, scores, group, tag, grouping="state", method=method)
    expected = normalize_scores(scores, group, tag, grouping="state", method=method)
    torch.testing.assert_close(found.sum(dim=1), expected)
    scale = 1.0 if method == "mean" else 1 / (float(scores.std()) + 1e-6)
    assert found[0, 0].item() == pytest.approx(scale)
    assert found[2, 0].item() == pytest.approx(0.5 * scale)


def test_turn_rewards_of_equal_episodes_normalize_to_nothing():
    rewards, last = (
        torch.tensor([[1.0, 1.0], [0.0, 2.0]]),
        torch.tensor([[False, True], [False, True]]),
    )
    ids = torch.zeros(2, dtype=torch.int64)
    found = normalize_rewards(
        rewards, last, torch.tensor([2.0, 2.0]), ids, ids, grouping="state", method="mean_std"
    )
    assert not found.any()
