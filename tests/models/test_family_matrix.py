"""Families of models that are read otherwise than the built-in one, through fine-tuning and PPO."""

from pathlib import Path

import pytest
import torch
from helpers.model_folders import save_family
from helpers.stages import metrics

from spa.config.load import load_config
from spa.config.schema import Config
from spa.models.build import load_actor, load_template
from spa.recipes import pipeline, ppo_run, selfplay
from spa.run.checkpoint import latest_checkpoint

SETTINGS = (
    "state_text=coords",
    "ctx_manager.example=false",
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
    "es_manager.train.env_configs.n_groups=null",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=1",
    "es_manager.val.env_configs.tags=[FrozenLakeNoSlip]",
    "es_manager.val.env_configs.n_groups=null",
    "ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.response_length=12",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "generate.num_batches=1",
    "generate.policy=random",
    "generate.val_fraction=0.5",
    "sft.trainer.total_training_steps=2",
    "sft.trainer.eval_episodes=2",
    "trainer.total_training_steps=1",
    "trainer.validation_steps=1",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.logger=[]",
    "trainer.kl_stop=0.0001",
)


FAMILIES = ("gemma", "gemma2", "gemma3", "gpt_oss")
"""Not fused, and a pinned template; soft caps; a window; experts and channels. Other tests train Qwen 2."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory) -> tuple[str, Path]:
    return request.param, save_family(
        request.param, tmp_path_factory.mktemp("families") / request.param
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """World-model data by the random policy, which needs no model."""
    folder = tmp_path_factory.mktemp("data")
    return selfplay.run_self_play(config(Path("random"), folder), directory=folder / "data")


def config(model: Path, run: Path, *overrides: str) -> Config:
    return load_config(
        "base", [*SETTINGS, f"model_path={model}", f"trainer.run_dir={run}", *overrides]
    )


def test_fine_tuning(family, data, tmp_path):
    name, folder = family
    cfg = config(folder, tmp_path)
    checkpoint = pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    losses = [line["train/loss"] for line in metrics(tmp_path / "sft")]
    assert all(0 < loss < 20 for loss in losses)
    model, template = load_actor(cfg, str(checkpoint), torch.device("cpu"))
    assert type(model).__name__.lower().startswith(name.replace("_", "").removesuffix("3"))
    ids, original = (
        made.start(({"role": "user", "content": "go"},), "<think>")
        for made in (template, load_template(cfg, str(folder)))
    )
    assert ids == original


def test_ppo_samples_from_the_numbers_that_it_trains(family, tmp_path):
    _, folder = family
    checkpoint = ppo_run.run_ppo(config(folder, tmp_path), directory=tmp_path / "ppo")
    before, step = metrics(tmp_path / "ppo")
    assert before["step"] == 0
    assert step["rollout/logprob_gap_max"] < 1e-3
    assert step["actor/grad_norm"] > 0
    assert step["critic/grad_norm"] > 0
    assert latest_checkpoint(tmp_path / "ppo") == checkpoint
