import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spa.algo.filters import select_groups

CASES = json.loads((Path(__file__).parents[1] / "golden" / "filters.json").read_text())["cases"]


def pairs(stds):
    scores = torch.tensor([x for s in stds for x in (0.0, s * 2**0.5)])
    return scores, torch.arange(len(stds)).repeat_interleave(2)


def kept_groups(keep, group_ids):
    return sorted(set(group_ids[keep].tolist()))


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['strategy']}-{case['ratio']}-{case['stds']}"
)
def test_golden_choices(case):
    options = {key: value for key, value in case.items() if key not in ("stds", "kept")}
    scores, ids = pairs(case["stds"])
    keep, metrics = select_groups(scores, ids, **options)
    assert kept_groups(keep, ids) == case["kept"]
    assert int(keep.sum()) == 2 * len(case["kept"])
    assert metrics["rollout/kept_count"] == len(case["kept"])
    assert metrics["rollout/groups_zero_std"] == case["stds"].count(0)
    assert metrics["rollout/kept_ratio"] == pytest.approx(
        len(case["kept"]) / max(len(case["stds"]), 1)
    )


def test_metrics_by_hand():
    # group 7: 0, 2 (mean 1, std sqrt 2, max 2); group 3: 5, 5
    keep, metrics = select_groups(
        torch.tensor([5.0, 0.0, 5.0, 2.0]), torch.tensor([3, 7, 3, 7]), ratio=0.5
    )
    assert keep.tolist() == [False, True, False, True]
    assert metrics == pytest.approx(
        {
            "rollout/in_group_std": 2**0.5 / 2,
            "rollout/in_group_max": 3.5,
            "rollout/in_group_mean": 3.0,
            "rollout/chosen_in_group_std": 2**0.5,
            "rollout/chosen_in_group_max": 2.0,
            "rollout/chosen_in_group_mean": 1.0,
            "rollout/kept_count": 1.0,
            "rollout/kept_ratio": 0.5,
            "rollout/groups_zero_std": 1.0,
        }
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_order_of_rows_does_not_matter(data):
    rows = data.draw(st.integers(1, 16))
    scores = torch.tensor(
        data.draw(
            st.lists(st.sampled_from([-0.1, 0.0, 0.1, 0.3, 1.0]), min_size=rows, max_size=rows)
        )
    )
    ids = torch.tensor(data.draw(st.lists(st.integers(0, 4), min_size=rows, max_size=rows)))
    order = torch.tensor(data.draw(st.permutations(range(rows))))
    options = {
        "ratio": data.draw(st.sampled_from([0.1, 0.25, 0.5, 0.9, 1.0])),
        "kind": data.draw(st.sampled_from(["std", "std_rev"])),
        "strategy": data.draw(
            st.sampled_from(["top_k", "top_k_abs", "top_p", "top_p_softmax", "min_p"])
        ),
        "include_zero": data.draw(st.booleans()),
    }
    keep, metrics = select_groups(scores, ids, **options)
    moved, same = select_groups(scores[order], ids[order], **options)
    assert torch.equal(keep[order], moved)
    assert metrics == same
    for group in ids.unique():
        assert len(set(keep[ids == group].tolist())) == 1  # whole groups
    if metrics["rollout/groups_zero_std"] < len(ids.unique()):
        assert keep.any()


def test_unusable_options_are_refused():
    scores, ids = pairs([1, 2])
    for options in (
        {"ratio": 0},
        {"ratio": 0.5, "kind": "variance"},
        {"ratio": 0.5, "strategy": "best"},
    ):
        with pytest.raises(ValueError, match="select_groups"):
            select_groups(scores, ids, **options)


def test_groups_without_spread_are_dropped_whatever_the_ratio():
    scores, ids = pairs([2, 0, 1])
    for ratio, strategy in ((1.0, "top_k"), (2.0, "top_k"), (1.0, "top_p"), (1.0, "top_p_softmax")):
        keep, _ = select_groups(scores, ids, ratio=ratio, strategy=strategy)
        assert kept_groups(keep, ids) == [0, 2]
        keep, _ = select_groups(scores, ids, ratio=ratio, strategy=strategy, include_zero=True)
        assert keep.all()
