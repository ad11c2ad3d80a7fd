"""The built-in model: it follows the formats, quotes, fits in 5 MB, and knows nothing of any environment's dynamics."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.config.load import load_config
from spa.engines.local import LocalEngine
from spa.evaluation.statistics import paired_difference
from spa.models.load import BUILTIN, load_tokenizer, model_source
from spa.policies.scripted import random_engine
from spa.recipes import setup
from spa.seeds import stream
from spa_bench.tiny_model.documents import HABITS, Documents

HOSTILE = [
    "",
    " ",
    "\x00\x1b[31m",
    "héllo ✓ 漢字 🎲",
    "a\ud800b".encode("utf-8", "replace").decode(),
    "##_P\n√S",
    "x" * 5000,
]


@pytest.fixture(scope="module")
def world():
    torch.set_num_threads(1)
    cfg = load_config(
        "demo",
        [
            "es_manager.val.env_groups=64",
            "es_manager.val.group_size=4",
            "trainer.validation_steps=1",
        ],
    )
    model, template = setup.load_actor(cfg, BUILTIN, torch.device("cpu"))
    return cfg, model, template


def played(cfg, engine, template, mode):
    player = setup.make_worker(cfg, template, mode=mode)
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=777_000, step=0)
    return player.rollout(engine, specs, setup.selfplay_sampling(cfg))


@pytest.fixture(scope="module")
def episodes(world):
    cfg, model, template = world
    return {
        mode: played(cfg, LocalEngine(model, template), template, mode)
        for mode in ("base", "add_worldmodel")
    }


def test_is_small():
    files = [path for path in Path(model_source(BUILTIN)).rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in files) < 5 * 2**20


@pytest.mark.parametrize("text", HOSTILE)
def test_any_text_encodes_and_comes_back(text):
    tokenizer = load_tokenizer(BUILTIN)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert (
        tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) == text
    )


def test_follows_both_formats(episodes):
    for mode, of_mode in episodes.items():
        rate = np.mean([turn.response.well_formed for episode in of_mode for turn in episode.turns])
        assert rate > 0.97, mode


def test_quotes_the_state_it_is_shown(episodes):
    turns = [turn for episode in episodes["add_worldmodel"] for turn in episode.turns]
    assert np.mean([turn.response.observation == turn.state for turn in turns]) > 0.9


def test_knows_no_dynamics(episodes):
    """Its predictions are right no more often than the copy baseline: n turns, one-sided margin of three standard errors."""
    turns = [turn for episode in episodes["add_worldmodel"] for turn in episode.turns]
    right = np.mean([turn.response.prediction == turn.next_state for turn in turns])
    copied = np.mean([turn.state == turn.next_state for turn in turns])
    assert len(turns) > 400
    assert right <= copied + 3 * np.sqrt(copied * (1 - copied) / len(turns))


@pytest.mark.parametrize("mode", ["base", "add_worldmodel"])
def test_plays_no_better_than_random(world, episodes, mode):
    """Pass@1 lies within the interval of the `random` engine on the same puzzles (95 %, paired by puzzle)."""
    cfg, _, template = world
    engine = random_engine(template, max_actions=cfg.agent_proxy.max_actions_per_turn)
    random = played(cfg, engine, template, mode)

    def per_puzzle(of_mode):
        groups = np.array([episode.group for episode in of_mode])
        wins = np.array([episode.success for episode in of_mode], dtype=float)
        return np.array([wins[groups == group].mean() for group in np.unique(groups)])

    interval = paired_difference([per_puzzle(episodes[mode])], [per_puzzle(random)], seed=0)
    assert interval.low <= 0 <= interval.high


def test_pretraining_documents_hold_no_transition():
    """Successive states of a document belong to puzzles that have nothing to do with each other."""
    documents = Documents(stream(1, "test"))
    conversations = [
        document
        for document in (documents.next() for _ in range(300))
        if not isinstance(document, str)
    ]
    several = [document for document in conversations if len(document) > 4]
    assert len(several) > 50
    goals = []
    for document in several:
        users = [message["content"] for message in document if message["role"] == "user"]
        cut = [text.split("State:\n")[1].split("\nActions left")[0] for text in users]
        goals.append(
            [[clause for clause in text.split(";") if "layer (" not in clause] for text in cut]
        )
    same = np.mean([a == b for states in goals for a, b in itertools.pairwise(states)])
    assert same < 0.05


def test_habits_know_nothing_of_moves():
    """For neighbouring cells s and s' of a 4x4 board, the habit's probability of the action that leads from s to s' is
    1/4 on average: 48 pairs, margin of three standard errors."""
    # Left, Down, Right, Up: the order of FrozenLake's actions
    moves = [(0, -1), (1, 0), (0, 1), (-1, 0)]
    of_right_action = []
    for row, column, (index, (down, right)) in itertools.product(
        range(4), range(4), enumerate(moves)
    ):
        after = (row + down, column + right)
        if min(after) >= 0 and max(after) < 4:
            weights = np.exp(HABITS[0, 0, row, column] + HABITS[0, 1, *after])
            of_right_action.append(weights[index] / weights.sum())
    assert len(of_right_action) == 48
    assert abs(np.mean(of_right_action) - 0.25) < 3 * np.std(of_right_action) / np.sqrt(48)
