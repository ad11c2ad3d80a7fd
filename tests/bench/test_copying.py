"""Copied and changed tokens of predicted states, and what their fall is made of, by hand."""

import json

import pytest

from spa_bench.diagnose.copying import StateToken, fall, state_likelihood, state_tokens
from spa_bench.diagnose.findings import diagnose
from spa_bench.diagnose.rollouts import Rollout, read_rollouts, read_row


class Letters:
    """A tokenizer whose tokens are characters."""

    def decode(self, ids, **_):
        return "".join(map(chr, ids))

    def encode(self, text, **_):
        return ids_of(text)


def ids_of(text):
    return [ord(letter) for letter in text]


def said(response, logprobs, states=(), step=None, lead="?"):
    ids = ids_of(lead + response)
    mask = [letter >= len(lead) for letter in range(len(ids))]
    return Rollout(
        where="row 1", stack="chat", chat=(), group="g", states=states, step=step,
        token_ids=tuple(ids), mask=tuple(mask), logprobs=tuple([0.0] * len(lead) + list(logprobs)),
    )  # fmt: skip


def test_tokens_are_held_against_the_state_before_and_after():
    response = "<prediction>\n_P\n#G\n</prediction>"
    logprobs = [-float(place) for place in range(len(response))]
    found = list(state_tokens(said(response, logprobs, ("P_\n#G", "_P\n#_")), Letters()))
    first = response.index("_")
    assert found == [
        StateToken(nll=first, copied=False, right=True),  # _ where P stood
        StateToken(nll=first + 1, copied=False, right=True),
        StateToken(nll=first + 3, copied=True, right=True),  # #
        StateToken(nll=first + 4, copied=True, right=False),  # G, which is gone
    ]


def test_without_true_states_the_observation_of_the_response_is_the_state_before():
    response = "<observation>P_</observation><prediction>PP</prediction>"
    found = list(state_tokens(said(response, [-1.0] * len(response)), Letters()))
    assert [(token.copied, token.right) for token in found] == [(True, None), (False, None)]


def test_a_token_of_several_cells_is_copied_only_if_all_are():
    class Pairs:
        def decode(self, ids, **_):
            return "".join(
                {0: "<prediction>", 1: "_P", 2: "_G", 3: "</prediction>"}[token] for token in ids
            )

    pair = Rollout(
        where="", stack="chat", chat=(), group="", states=("__ _G", "_P _G"), token_ids=(0, 1, 2, 3), logprobs=(0, -1, -2, 0)
    )  # fmt: skip
    assert [(token.nll, token.copied) for token in state_tokens(pair, Pairs())] == [
        (1, False),
        (2, True),
    ]


def row(copied, changed):
    kinds = zip(("copied", "changed"), (copied, changed), strict=True)
    return {kind: {"tokens": tokens, "nll": nll, "right": None} for kind, (tokens, nll) in kinds}


def test_a_fall_has_three_parts_that_add_up():
    # Means: (6 * 0.5 + 2 * 2) / 8 = 0.875 and (7 * 0.1 + 1 * 2) / 8 = 0.3375.
    found = fall(row((6, 0.5), (2, 2.0)), row((7, 0.1), (1, 2.0)))
    assert found["total"] == pytest.approx(0.875 - 0.3375)
    assert found["copied"] == pytest.approx((0.75 + 0.875) / 2 * 0.4) and found["changed"] == 0
    assert found["mixture"] == pytest.approx(0.3 * (0.75 - 0.875) + 2 * (0.25 - 0.125))


def test_a_kind_that_dies_out_made_nothing_fall_by_itself():
    found = fall(row((1, 1.0), (1, 3.0)), row((2, 1.0), (0, None)))
    assert found == pytest.approx({"total": 1.0, "mixture": 1.0, "copied": 0.0, "changed": 0.0})


def over_steps(*likelihoods):
    """A rollout for each (nats of copied tokens, nats of changed tokens); half of the cells change."""
    response = "<prediction>_P#G</prediction>"
    start = response.index("_")
    rollouts = []
    for step, (copied, changed) in enumerate(likelihoods):
        logprobs = [0.0] * len(response)
        logprobs[start : start + 4] = [-changed, -changed, -copied, -copied]
        rollouts.append(said(response, logprobs, ("P_#G", "_P#G"), step=step))
    return rollouts


def test_falling_cross_entropy_is_told_apart():
    copies = diagnose(over_steps((1.0, 2.0), (0.5, 2.0), (0.0, 2.0)), Letters())
    assert copies["state_likelihood"]["falls"][""] == pytest.approx(
        {"total": 0.5, "mixture": 0.0, "copied": 0.5, "changed": 0.0}
    )
    assert any("the model learned mostly to copy" in text for text in copies["findings"])
    learns = diagnose(over_steps((1.0, 2.0), (1.0, 0.5)), Letters())
    assert learns["state_likelihood"]["falls"][""]["changed"] == pytest.approx(0.75)
    assert not any("to copy" in text for text in learns["findings"])
    steps = learns["state_likelihood"]["steps"][""]
    assert [(part["step"], part["changed"]["nll"], part["changed"]["right"]) for part in steps] == [(0, 2.0, 1.0), (1, 0.5, 1.0)]  # fmt: skip


@pytest.mark.parametrize(
    ("rollouts", "tokenizer", "why"),
    [
        ([read_row([{"role": "assistant", "content": "hi"}], "row 1")], Letters(), "no log-probs"),
        (over_steps((1, 1)), None, "--model"),
        (over_steps((1, 1)), Letters(), "the same training step"),
        ([said("hello", [-1.0] * 5, step=1)], Letters(), "no predicted state"),
    ],
)
def test_it_is_said_why_nothing_can_be_told(rollouts, tokenizer, why):
    assert why in state_likelihood(rollouts, tokenizer)["why_not"]


def test_log_probs_are_read_where_stacks_write_them(tmp_path):
    ids, mask = [1, 2, 3], [0, 1, 1]
    whole = read_row(
        {"completion_ids": ids, "env_mask": mask, "logprobs": [0.0, -1.0, -2.0], "step": 4}, "row 1"
    )
    short = read_row(
        {"completion_ids": ids, "env_mask": mask, "sampling_per_token_logps": [-1.0, -2.0]}, "row 1"
    )
    assert whole.logprobs == short.logprobs == (0.0, -1.0, -2.0) and whole.step == 4
    node = {"message": {"role": "assistant", "content": "a"}, "sampled": True, "token_ids": ids, "mask": mask, "logprobs": [-1, -2]}  # fmt: skip
    assert read_row({"nodes": [node]}, "row 1").logprobs == (0.0, -1.0, -2.0)
    ours = {
        "episode_id": "e", "turns": [], "messages": [], "token_ids": ids, "sampled": mask, "logprobs": [0.0, -1.0, -2.0],
        "puzzle_seed": 7, "noise_seed": 8,
    }  # fmt: skip
    (tmp_path / "val-000012.jsonl").write_text(json.dumps(ours) + "\n")
    (read,) = read_rollouts(tmp_path)
    assert (read.split, read.step, read.seed, read.noise_seed, read.logprobs) == (
        "val",
        12,
        7,
        8,
        (0.0, -1.0, -2.0),
    )


def repr_short(junk):
    return repr(junk)[:8]


@pytest.mark.parametrize(
    "junk", [float("nan"), float("inf"), 0.5, "7", None, True, [1], {}, 10**400], ids=repr_short
)
def test_seeds_steps_and_log_probs_that_are_none_are_left_out(junk):
    row = {
        "completion_ids": [1, 2],
        "seed": junk,
        "step": junk,
        "info": junk,
        "logprobs": [junk, junk],
    }
    found = read_row({**row, "reward": junk if junk != 0.5 else None}, "row 1")
    assert (found.seed, found.step, found.reward) == (None, None, None)
    assert diagnose([found], Letters())["state_likelihood"]["falls"] == {}
    node = {
        "message": {"role": "assistant", "content": "a"},
        "token_ids": [1],
        "mask": [True],
        "logprobs": [junk],
    }
    assert read_row({"nodes": [node]}, "row 1").responses == ("a",)
