"""What ranks do without each other: shares of rows, episodes on the wire, and a world of one."""

import json

import numpy as np
import pytest
import torch
from helpers.families import template
from helpers.play import NoiseEngine, groups, play
from hypothesis import given
from hypothesis import strategies as st

from spa.distributed.replicas import Replica, decoder_layers
from spa.distributed.world import ALONE, World, joined
from spa.errors import ConfigError
from spa.rollout.worker import ARRAYS, pack, unpack
from spa_integrations.ray_train import check_cluster


@given(st.lists(st.integers(1, 50), max_size=30), st.integers(2, 6))
def test_every_row_is_dealt_to_one_rank_and_loads_are_even(lengths, size):
    rows = torch.tensor(lengths, dtype=torch.int64)
    shares = [World(rank, size).deal(rows) for rank in range(size)]
    assert sorted(torch.cat(shares).tolist()) == list(range(len(lengths)))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    loads = [int(rows[share].sum()) for share in shares]
    assert max(loads) - min(loads) <= 2 * max(lengths, default=0)


def test_four_ranks_are_dealt_back_and_forth():
    lengths = torch.tensor([9, 8, 7, 6, 5, 4, 3, 2])
    assert [World(rank, 4).deal(lengths).tolist() for rank in range(4)] == [
        [0, 7],
        [1, 6],
        [2, 5],
        [3, 4],
    ]


def test_alone_everything_is_the_identity():
    value = torch.tensor([1.0, 2.0])
    assert ALONE.deal(torch.tensor([3, 9, 1])).tolist() == [0, 1, 2]
    assert ALONE.parallel_map([3, 1, 2], lambda mine: [10 * n for n in mine]) == [30, 10, 20]
    assert ALONE.all_reduce_sum(value) is value
    assert ALONE.all_reduce_sums({"a": 0.1}) == {"a": 0.1}
    assert ALONE.broadcast(lambda: "x") == "x"
    assert ALONE.any(True) and not ALONE.any(False)
    with joined("cpu", 1.0) as world:
        assert world == ALONE and world.is_main


def test_an_episode_is_the_same_at_the_other_end():
    made = template("qwen2")
    (episode, *_) = play(
        groups(1, 1),
        NoiseEngine(made, np.random.default_rng(3)),
        made,
        max_turn=2,
        instruction="Go.",
    )
    found = unpack(json.loads(json.dumps(pack(episode))))
    assert found.to_json() == episode.to_json()
    for name, dtype in ARRAYS.items():
        assert getattr(found, name).dtype == dtype
        assert np.array_equal(getattr(found, name), getattr(episode, name))


def test_a_rank_without_rows_makes_a_pass_that_does_not_count():
    dummy = torch.tensor([4])
    cut = [torch.tensor([0, 1])]
    assert [
        (rows.tolist(), counts) for rows, counts in Replica(None).passes(cut, dummy, backward=True)
    ] == [([0, 1], True)]
    assert [
        (rows.tolist(), counts) for rows, counts in Replica(None).passes([], dummy, backward=True)
    ] == [([4], False)]
    assert list(Replica(None).passes([], dummy, backward=False)) == []


def test_decoder_layers_are_found():
    from helpers.families import small_model

    model = small_model("qwen2")
    assert decoder_layers(model) == list(model.model.layers)


@pytest.mark.parametrize(
    ("there", "on_gpu", "short"),
    [({"CPU": 3}, False, "{'CPU': 4}"), ({"CPU": 8, "GPU": 1}, True, "{'GPU': 4}")],
)
def test_a_small_cluster_is_refused(there, on_gpu, short):
    from spa.config.load import load_config

    cfg = load_config("base", ["trainer.nnodes=2", "trainer.n_gpus_per_node=2"])
    with pytest.raises(ConfigError, match=f"need {short}, but"):
        check_cluster(cfg, there, on_gpu=on_gpu)
    check_cluster(cfg, {"CPU": 4, "GPU": 4}, on_gpu=on_gpu)
