"""`nano_spa.py` and the package do the same with the same episodes."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from spa.config.load import load_config
from spa.config.schema import Config
from spa.methods.context import annotate_all
from spa.models.build import load_template
from spa.models.forward import token_logprobs
from spa.prompts.template import ChatTemplate
from spa.recipes.ppo_batch import add_advantages, filter_groups
from spa.recipes.ppo_losses import ActorLoss
from spa.recipes.ppo_models import Models
from spa.recipes.ppo_rollouts import make_batch, method_context
from spa.recipes.sft_updates import token_batch
from spa.training.update import mini_batch
from spa.types import Episode, PPOBatch, SamplingParams, ScoredBatch
from spa.worldmodel.examples import episode_examples
from spa.worldmodel.sequences import training_sequences

ROOT = Path(__file__).parents[1]
EPISODES = ROOT / "tests" / "golden" / "nano_episodes.json"
"""A batch that the package sampled with the preset `tiny`, 8 episodes of each of 4 puzzles. Responses were cut at 30
tokens, so that some are malformed."""


@pytest.fixture(scope="module")
def nano() -> ModuleType:
    spec = importlib.util.spec_from_file_location("nano_spa", ROOT / "nano_spa.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["nano_spa"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def episodes() -> list[Episode]:
    return [Episode.from_json(line) for line in json.loads(EPISODES.read_text(encoding="utf-8"))]


@pytest.fixture(scope="module")
def cfg() -> Config:
    return load_config("tiny")


@pytest.fixture(scope="module")
def template(cfg: Config) -> ChatTemplate:
    return load_template(cfg, cfg.model_path)


@pytest.fixture(scope="module")
def model(nano: ModuleType) -> torch.nn.Module:
    """The bundled model, moved a little, so that its ratios to the policy that sampled are not all 1."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(nano.MODEL)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


def replayed(nano: ModuleType, episode: Episode) -> object:
    """nano's episode of the same puzzle with the same sampled ids."""
    known = re.fullmatch(
        r"(.*); goal \(G\) is at (.*); player \(P\) is at (\(.,.\))\.", episode.turns[0].state
    )
    assert known is not None
    holes, goal, player = (
        [(int(r), int(c)) for r, c in re.findall(r"\((\d),(\d)\)", text)] for text in known.groups()
    )
    mine = nano.Episode(nano.Lake(player[0], goal[0], frozenset(holes)), player[0])
    for number in range(len(episode.turns)):
        assert not mine.done
        where = episode.sampled & (episode.turn_index == number)
        nano.begin_turn(mine)
        nano.end_turn(mine, episode.token_ids[where].tolist(), episode.logprobs[where].tolist())
    return mine


@pytest.fixture(scope="module")
def mine(nano: ModuleType, episodes: list[Episode]) -> list:
    return [replayed(nano, episode) for episode in episodes]


@pytest.fixture(scope="module")
def policy_batch(cfg: Config, template: ChatTemplate, episodes: list[Episode]) -> PPOBatch:
    """The package's batch of the kept groups, with advantages."""
    kept = filter_groups(cfg, make_batch(cfg, episodes, template), {})
    assert kept is not None
    scored = ScoredBatch(**vars(kept), old_logprobs=kept.sampler_logprobs)
    models = Models(
        actor=None,
        critic=None,
        ref=None,
        engine=None,
        tokenizer=template,
        sampling=SamplingParams(),
        device=torch.device("cpu"),
        kl=None,
    )  # type: ignore[arg-type]
    return annotate_all(
        add_advantages(cfg, models, scored, {}),
        episodes,
        method_context(cfg, models, template, 1, {}),
    )


def test_the_batch_has_wins_losses_and_malformed_turns(episodes: list[Episode]) -> None:
    turns = [turn for episode in episodes for turn in episode.turns]
    assert {episode.success for episode in episodes} == {True, False}
    assert {turn.response.well_formed for turn in turns} == {True, False}
    assert any(turn.response.observation == turn.state for turn in turns)
    assert any(turn.response.prediction == turn.next_state for turn in turns)


def test_the_game_the_prompts_and_the_tokens_are_the_packages(
    episodes: list[Episode], mine: list
) -> None:
    for theirs, own in zip(episodes, mine, strict=True):
        assert own.done
        assert own.ids == theirs.token_ids.tolist()
        assert own.sampled == theirs.sampled.tolist()
        assert own.score == pytest.approx(theirs.score)
        for turn, known in zip(own.turns, theirs.turns, strict=True):
            assert (turn.response, turn.state, turn.next_state) == (
                known.response_text,
                known.state,
                known.next_state,
            )
            assert (tuple(turn.actions), turn.well_formed) == (
                known.executed,
                known.response.well_formed,
            )


def test_sft_masks_and_loss_are_the_packages(
    nano: ModuleType,
    cfg: Config,
    template: ChatTemplate,
    episodes: list[Episode],
    mine: list,
    model: torch.nn.Module,
) -> None:
    sft_examples = [
        sft_example
        for episode in episodes
        for sft_example in episode_examples(episode, action_sep="||")[0]
    ]
    sequences, dropped = training_sequences(
        sft_examples, template, max_length=cfg.sft.data.max_length, merge_turns=True
    )
    examples = [example for example in map(nano.relabel, mine) if any(example[1])]
    assert dropped == 0
    assert len(sequences) == len(examples)
    for sequence, (ids, mask) in zip(sequences, examples, strict=True):
        # The package leaves out malformed turns at an episode's end, where they change nothing.
        count = len(sequence.token_ids)
        assert ids[:count] == sequence.token_ids.tolist()
        assert mask == [*sequence.mask.tolist(), *[False] * (len(mask) - count)]

    batch = token_batch(sequences)
    theirs = -token_logprobs(model, batch.input_ids, batch.mask)[0].sum() / batch.mask.sum()
    assert nano.sft_loss(model, examples).item() == pytest.approx(theirs.item(), abs=1e-5)


def test_ppo_masks_and_advantages_are_the_packages(
    nano: ModuleType, mine: list, policy_batch: PPOBatch
) -> None:
    ids, mask, old_logprobs, advantages, correct = nano.make_batch(mine)
    assert 0 < len(ids) < len(mine)
    assert torch.equal(ids, policy_batch.input_ids)
    assert torch.equal(mask, policy_batch.mask)
    assert torch.equal(correct, policy_batch.ce_weights > 0)
    assert torch.equal(old_logprobs, policy_batch.sampler_logprobs)
    assert torch.allclose(advantages * mask, policy_batch.advantages, atol=1e-5)
    assert len(np.unique(advantages[mask].numpy().round(4))) > 10


def test_the_ppo_loss_is_the_packages(
    nano: ModuleType, cfg: Config, mine: list, policy_batch: PPOBatch, model: torch.nn.Module
) -> None:
    batch = mini_batch(policy_batch, torch.arange(len(policy_batch)), "token-mean")
    theirs, info = ActorLoss(cfg.actor_rollout_ref.actor)(model, batch)
    assert info["pg_clipfrac"] > 0
    assert nano.ppo_loss(model, nano.make_batch(mine)).item() == pytest.approx(
        theirs.item(), abs=1e-5
    )


def test_a_short_run_prints_its_table() -> None:
    small = ["--puzzles", "1", "--sft-steps", "1", "--ppo-steps", "1"]
    run = subprocess.run(
        [sys.executable, ROOT / "nano_spa.py", *small],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    table = run.stdout.splitlines()[-6:]
    assert table[0].split() == [
        "method",
        "ppo",
        "step",
        "pass@1",
        "pass@8",
        "format",
        "observation",
        "prediction",
    ]
    assert [line.split()[:2] for line in table[1:5]] == [
        ["ppo", "0"],
        ["ppo", "1"],
        ["spa", "0"],
        ["spa", "1"],
    ]
    assert all(0 <= float(value) <= 100 for line in table[1:5] for value in line.split()[2:])
    assert table[5].startswith("spa - ppo, pass@1:")
