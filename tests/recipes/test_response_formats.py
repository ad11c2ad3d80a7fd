"""Every order of a world-model response through the stages, with the built-in model and budgets of a few tokens."""

import json
from pathlib import Path

import pytest

from spa.config.load import load_config
from spa.config.schema import Config
from spa.recipes import pipeline, ppo_run, selfplay
from spa.worldmodel.examples import is_counterfactual
from spa.worldmodel.sft_files import read_examples

SETTINGS = (
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.val.env_groups=1",
    "es_manager.val.group_size=1",
    "actor_rollout_ref.rollout.response_length=4",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "gate.enable=false",
    "generate.num_batches=1",
    "generate.policy=counterfactual",
    "generate.val_fraction=0.5",
    "sft.data.train_batch_size=2",
    "sft.data.micro_batch_size_per_gpu=2",
    "sft.trainer.total_training_steps=1",
    "sft.trainer.eval_episodes=1",
    "trainer.total_training_steps=1",
    "trainer.validation_steps=1",
    "trainer.val_before_train=false",
    "trainer.device=cpu",
    "trainer.logger=[]",
)


def config(order: str, run: Path) -> Config:
    return load_config(
        "tiny", [*SETTINGS, f"agent_proxy.response_format={order}", f"trainer.run_dir={run}"]
    )


@pytest.mark.parametrize("order", ["plan_first", "answer_first", "no_prediction", "choose_plan"])
def test_examples_and_fine_tuning(order, tmp_path):
    cfg = config(order, tmp_path)
    data = selfplay.run_self_play(cfg, directory=tmp_path / "data")
    examples = read_examples(data / "wm_train.parquet")
    # there, branches are what is chosen from
    assert any(is_counterfactual(example) for example in examples) == (order != "choose_plan")
    assert all(
        ("<prediction>" in example.response) == (order != "no_prediction") for example in examples
    )
    if order == "plan_first":
        assert all(
            f"I do {', then '.join(example.executed)}. <prediction>" in example.response
            for example in examples
        )
    if order == "choose_plan":
        assert all(example.response.count("I could do ") == 2 for example in examples)
    pipeline.run_sft_stage(cfg, directory=tmp_path / "sft", data=data)
    measured = json.loads((tmp_path / "sft" / "metrics.jsonl").read_text().splitlines()[-1])
    assert ("val/wm/prediction_em" in measured) == (order != "no_prediction")


def test_ppo(tmp_path):
    ppo_run.run_ppo(config("choose_plan", tmp_path))
    last = json.loads((tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["actor/grad_norm"] > 0
