"""Numbers of predictions, back on the tokens that were predicted."""

from dataclasses import fields

import numpy as np
import torch

from spa.training.batch import batch_episodes, select
from spa.training.token_scores import token_scores
from spa.types import Episode, ParsedReply, PPOBatch, StopReason, Turn


def episode(name: str, ids: list[int]) -> Episode:
    reply = ParsedReply(
        think=None, observation=None, prediction=None, actions=("Up",), well_formed=True
    )
    turn = Turn(state="a", actions_left=1, reply_text="x", reply=reply, executed=("Up",), reward=1.0, penalty=0.0, next_state="b")  # fmt: skip
    sampled = np.arange(len(ids)) >= 2
    return Episode(
        episode_id=name, tag="T", mode="base", state_text="grid", puzzle_seed=0, noise_seed=0, puzzle_hash="", group=0,
        member=0, stop=StopReason.SUCCESS, success=True, turns=(turn,), messages=(), token_ids=np.array(ids, np.int32),
        sampled=sampled, logprobs=np.zeros(len(ids), np.float32), turn_index=np.where(sampled, 0, -1).astype(np.int16),
    )  # fmt: skip


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
