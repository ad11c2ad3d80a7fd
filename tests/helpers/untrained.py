"""A small model with random weights, for the rooms that train or measure one."""

from pathlib import Path

import pytest

from spa.envs.registry import make_env
from spa.prompts.render import Prompter
from spa_bench.tiny_model.pretrain import RESPONSE_PIECES, WORDS, new_model, save
from spa_bench.tiny_model.tokenizer import build_tokenizer, fixed_phrases


@pytest.fixture(scope="session")
def untrained_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the built-in architecture, a tokenizer that knows the lake's prompts, and random weights."""
    env = make_env("frozen_lake", {"size": 4, "is_slippery": False})
    env.reset(seed=0)
    prompter = Prompter(mode="add_worldmodel", state_text="coords")
    texts = [message["content"] for message in prompter.first_messages(env)]
    phrases = [*fixed_phrases(texts, [env.state_text("coords")]), *RESPONSE_PIECES]
    tokenizer = build_tokenizer([p for p in phrases if p.strip()], WORDS)
    folder = tmp_path_factory.mktemp("models") / "untrained"
    save(new_model(len(tokenizer), 0, tokenizer), tokenizer, folder)
    return folder
