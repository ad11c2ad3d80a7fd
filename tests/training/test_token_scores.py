"""Numbers of predictions, back on the tokens that were predicted."""

from dataclasses import fields, replace

import numpy as np
import torch

from spa.training.batch import batch_episodes, select, split_turns, token_scores
from spa.types import Episode, EpisodeBatch, ParsedResponse, PPOBatch, StopReason, Turn


def episode(name: str, ids: list[int]) -> Episode:
    response = ParsedResponse(
        think=None, observation=None, prediction=None, actions=("Up",), well_formed=True
    )
    turn = Turn(state="a", actions_left=1, response_text="x", response=response, executed=("Up",), reward=1.0, penalty=0.0, next_state="b")  # fmt: skip
    sampled = np.arange(len(ids)) >= 2
    return Episode(
        episode_id=name, tag="T", mode="base", state_text="grid", puzzle_seed=0, noise_seed=0, puzzle_hash="", group=0,
        member=0, stop=StopReason.SUCCESS, success=True, turns=(turn,), messages=(), token_ids=np.array(ids, np.int32),
        sampled=sampled, logprobs=np.zeros(len(ids), np.float32), turn_index=np.where(sampled, 0, -1).astype(np.int16),
    )  # fmt: skip


def scored(batch: EpisodeBatch) -> PPOBatch:
    """The entry a of row b has the advantage 10 (b + 1) + a."""
    columns = {item.name: getattr(batch, item.name) for item in fields(batch)}
    rows, width = batch.mask.shape
    numbers = 10.0 * (1 + torch.arange(rows))[:, None] + torch.arange(float(width))
    return PPOBatch(**columns, old_logprobs=numbers, advantages=numbers, returns=numbers)


def test_episodes_with_equal_tokens_have_their_own_numbers():
    episodes = [episode("a", [5, 6, 7]), episode("b", [5, 6, 7])]
    found = token_scores(scored(batch_episodes(episodes, tags=["T"], pad_id=0)), episodes)
    assert found["a"]["advantages"] == [0.0, 10.0, 11.0]
    assert found["b"]["advantages"] == [0.0, 20.0, 21.0]
    # Only the first episodes are asked for.
    first = token_scores(scored(batch_episodes(episodes, tags=["T"], pad_id=0)), episodes[:1])
    assert list(first) == ["a"]


def test_rows_of_single_turns_are_put_together():
    one = episode("a", [5, 6, 7, 8, 9])
    two_turns = replace(
        one,
        turns=(*one.turns, *one.turns),
        sampled=np.array([False, True, False, True, True]),
        turn_index=np.array([-1, 0, -1, 1, 1], np.int16),
    )
    batch = split_turns(batch_episodes([two_turns], tags=["T"], pad_id=0))
    assert len(batch) == 2 and batch.starts.tolist()[0] == 0
    start = int(batch.starts[1])
    numbers = [0.0] * 5
    for row, (begin, end) in enumerate(((0, start), (start, 5))):
        numbers[begin + 1 : end] = [10.0 * (row + 1) + a for a in range(end - begin - 1)]
    assert token_scores(scored(batch), [two_turns])["a"]["advantages"] == numbers


def test_each_number_stands_at_its_token():
    episodes = [
        episode("a", [5, 6, 7, 8]),
        episode("b", [5, 6, 9]),
        episode("dropped", [1, 2, 3, 4, 5]),
    ]
    batch = select(batch_episodes(episodes, tags=["T"], pad_id=0), torch.tensor([1, 0]))
    columns = {item.name: getattr(batch, item.name) for item in fields(batch)}
    # rows b, a; predictions of tokens 1, 2, 3
    advantages = torch.tensor([[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]])
    ppo = PPOBatch(
        **columns, old_logprobs=advantages, advantages=advantages, returns=advantages + 1
    )
    assert token_scores(ppo, episodes) == {
        "a": {"advantages": [0.0, 20.0, 21.0, 22.0], "returns": [0.0, 21.0, 22.0, 23.0]},
        "b": {"advantages": [0.0, 10.0, 11.0], "returns": [0.0, 11.0, 12.0]},
    }
