"""Episodes to tensors, by hand: the one place where token-aligned becomes prediction-aligned."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.families import template
from helpers.play import NoiseEngine, groups, play

from spa.formats.registry import parse_response
from spa.training.batch import batch_episodes, select, to_device
from spa.types import Episode, EpisodeBatch, ScoredBatch, StopReason, Turn


def turn(reward: float, penalty: float = 0.0) -> Turn:
    return Turn(
        state="s",
        actions_left=3,
        response_text="",
        response=parse_response("", mode="base"),
        executed=(),
        reward=reward,
        penalty=penalty,
        next_state="s",
    )


def episode(ids, sampled, turns, index, *, group=0, tag="A") -> Episode:
    sampled = np.array(sampled, dtype=bool)
    return Episode(
        episode_id="e",
        tag=tag,
        mode="base",
        state_text="coords",
        puzzle_seed=1,
        noise_seed=2,
        puzzle_hash="p",
        group=group,
        member=0,
        stop=StopReason.MAX_TURNS,
        success=False,
        turns=tuple(turns),
        messages=(),
        token_ids=np.array(ids, dtype=np.int32),
        sampled=sampled,
        logprobs=np.where(sampled, -np.arange(len(ids)) / 10, 0).astype(np.float32),
        turn_index=np.array(index, dtype=np.int16),
    )


def two() -> list[Episode]:
    """Prompt of two tokens, response of two, one token of the environment, response of two; and prompt 1, response 2."""
    long = episode(
        [11, 12, 13, 14, 15, 16, 17],
        [0, 0, 1, 1, 0, 1, 1],
        [turn(0.5, -0.1), turn(1.0)],
        [-1, -1, 0, 0, 1, 1, 1],
        group=4,
        tag="B",
    )
    return [long, episode([21, 22, 23], [0, 1, 1], [turn(-2.0)], [-1, 0, 0], group=7)]


def batch(**settings) -> EpisodeBatch:
    return batch_episodes(two(), tags=("A", "B"), pad_id=9, **settings)


def test_the_shift_by_hand():
    made = batch()
    assert made.input_ids.tolist() == [[11, 12, 13, 14, 15, 16, 17], [21, 22, 23, 9, 9, 9, 9]]
    assert made.lengths.tolist() == [7, 3]
    # Entry a is the prediction of token a + 1.
    assert made.mask.int().tolist() == [[0, 1, 1, 0, 1, 1], [1, 1, 0, 0, 0, 0]]
    assert made.turns.tolist() == [[-1, 0, 0, 1, 1, 1], [0, 0, -1, -1, -1, -1]]
    assert made.turn_ends.int().tolist() == [[0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]]
    torch.testing.assert_close(
        made.sampler_logprobs,
        torch.tensor([[0, -0.2, -0.3, 0, -0.5, -0.6], [-0.1, -0.2, 0, 0, 0, 0]]),
    )
    assert made.group_ids.tolist() == [4, 7]
    assert made.tag_ids.tolist() == [1, 0]


def test_the_whole_score_lies_on_the_last_sampled_token():
    torch.testing.assert_close(
        batch().rewards, torch.tensor([[0, 0, 0, 0, 0, 1.4], [0, -2.0, 0, 0, 0, 0]])
    )
    torch.testing.assert_close(batch().scores, torch.tensor([1.4, -2.0]))


def test_with_turn_scores_each_turn_has_its_own():
    torch.testing.assert_close(
        batch(turn_scores=True).rewards,
        torch.tensor([[0, 0, 0.4, 0, 0, 1.0], [0, -2.0, 0, 0, 0, 0]]),
    )


def test_another_mask_replaces_the_sampled_one_and_leaves_the_rewards():
    masks = [np.array([0, 1, 1, 1, 1, 1, 1], dtype=bool), np.array([0, 0, 1], dtype=bool)]
    made = batch(mask_of=masks)
    assert made.mask.int().tolist() == [[1, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert torch.equal(made.rewards, batch().rewards)


def test_played_episodes_are_batched_with_the_logprobs_in_their_places():
    made = template("llama3")
    engine = NoiseEngine(made, np.random.default_rng(0))
    episodes = play(groups(3, 2), engine, made, max_turn=3)
    found = batch_episodes(episodes, tags=("Lake",), pad_id=0)
    for row, played in enumerate(episodes):
        n = len(played.token_ids)
        chosen = found.input_ids[row, 1:][found.mask[row]]
        assert chosen.tolist() == played.token_ids[played.sampled].tolist()
        torch.testing.assert_close(
            found.sampler_logprobs[row][found.mask[row]],
            torch.from_numpy(played.logprobs[played.sampled]),
        )
        assert not found.mask[row, n - 1 :].any()
        assert found.turn_ends[row].sum() == len(played.turns)
        assert found.rewards[row].sum().item() == pytest.approx(played.score, abs=1e-6)
        assert found.rewards[row].nonzero().numel() <= 1


def test_selected_rows_are_cut_to_the_longest_of_them():
    short = select(batch(), torch.tensor([1]))
    assert short.input_ids.tolist() == [[21, 22, 23]]
    assert short.mask.shape == (1, 2)
    both = select(batch(), torch.tensor([1, 0]))
    assert both.input_ids.tolist() == [[21, 22, 23, 9, 9, 9, 9], [11, 12, 13, 14, 15, 16, 17]]
    assert both.scores.tolist() == pytest.approx([-2.0, 1.4])
    by_mask = select(batch(), torch.tensor([False, True]))
    assert torch.equal(by_mask.input_ids, short.input_ids)


def test_selecting_keeps_the_stage_and_what_is_absent():
    known = {name: getattr(batch(), name) for name in EpisodeBatch.__dataclass_fields__}
    scored = ScoredBatch(**known, old_logprobs=torch.ones(2, 6), values=torch.full((2, 6), 2.0))
    picked = select(scored, torch.tensor([1]))
    assert isinstance(picked, ScoredBatch)
    assert picked.old_logprobs.tolist() == [[1, 1]]
    assert picked.ref_logprobs is None
    moved = to_device(picked, "cpu")
    assert isinstance(moved, ScoredBatch)
    assert moved.ref_logprobs is None


def test_an_episode_without_tokens_is_refused():
    bare = replace(two()[0], token_ids=None, sampled=None, logprobs=None, turn_index=None)
    with pytest.raises(ValueError, match="has no tokens"):
        batch_episodes([two()[1], bare], tags=("A", "B"), pad_id=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mask", torch.zeros(2, 7, dtype=torch.bool)),
        ("mask", torch.zeros(2, 6)),
        ("scores", torch.zeros(3)),
    ],
)
def test_a_batch_checks_its_shapes_and_types_once(name, value):
    with pytest.raises(ValueError, match=name):
        replace(batch(), **{name: value})
