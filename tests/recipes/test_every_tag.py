"""Games that differ in what the stages read of them, through every stage with the built-in model; the one that is shown
as pictures with a tiny vision-language model. Budgets are of a few tokens."""

import json
from pathlib import Path

import pytest
from helpers.vision import save_seeing

from spa.config.load import load_config
from spa.config.schema import Config
from spa.models.load import BUILTIN
from spa.recipes import evaluate, pipeline, ppo_run, selfplay
from spa.recipes.policies import find_target

TAGS = ("Countdown", "2048", "VisualSimpleSokoban")
"""Actions in free words, legal actions that change from turn to turn, and pictures. What else differs between games,
`spa env check` and the reference scores cover."""
SETTINGS = (
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=1",
    "es_manager.val.env_groups=1",
    "es_manager.val.group_size=1",
    "ppo_mini_batch_size=2",
    "micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.max_model_len=4096",
    "actor_rollout_ref.rollout.response_length=4",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "generate.num_batches=1",
    "generate.epsilon=0.7",
    "generate.val_fraction=0.5",
    "sft.data.max_length=4096",
    "sft.data.train_batch_size=2",
    "sft.trainer.total_training_steps=1",
    "sft.trainer.eval_episodes=1",
    "trainer.total_training_steps=1",
    "trainer.validation_steps=1",
    "trainer.val_before_train=false",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.logger=[]",
    "trainer.kl_stop=0.0001",
)


def config(tag: str, model: str, run: Path) -> Config:
    tags = [f"es_manager.{part}.env_configs.tags=[{json.dumps(tag)}]" for part in ("train", "val")]
    return load_config("base", [*SETTINGS, *tags, f"model_path={model}", f"trainer.run_dir={run}"])


def metrics(folder: Path) -> dict:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


@pytest.mark.parametrize("tag", TAGS)
def test_every_stage(tag, tmp_path):
    seeing = tag.startswith("Visual")
    model = save_seeing("qwen2_vl", tmp_path / "model") if seeing else BUILTIN
    cfg = config(tag, str(model), tmp_path)
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    summary = json.loads((data / "summary.json").read_text())
    assert summary["episodes"] == 2 and summary["examples_train"] >= 1
    tuned = pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    assert 0 < metrics(tmp_path / "sft")["train/loss"] < 20
    trained = ppo_run.run_ppo(cfg, model_path=str(tuned), directory=tmp_path / "ppo")
    last = metrics(tmp_path / "ppo")
    assert last["rollout/logprob_gap_max"] < 1e-3 and last["actor/grad_norm"] > 0
    result = evaluate.evaluate_target(
        cfg, find_target(str(trained)), output=tmp_path / "eval.json", ks=[1]
    )
    assert result["tags"][tag]["episodes"] == 1
