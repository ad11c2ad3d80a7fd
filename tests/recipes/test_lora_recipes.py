"""Fine-tuning and PPO with adapters, and of a model with Python code of its own: what is trained, what is saved, and that a
resumed run goes on exactly."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.model_folders import save_family
from safetensors.torch import load_file

from spa.config.load import load_config
from spa.config.schema import Config
from spa.models.load import load_policy
from spa.recipes import pipeline, ppo_run, selfplay
from spa.recipes.preflight import preflight

SETTINGS = (
    "state_text=coords",
    "ctx_manager.example=false",
    "agent_proxy.max_turn=2",
    "es_manager.train.env_groups=2",
    "es_manager.train.group_size=2",
    "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
    "es_manager.val.env_groups=1",
    "es_manager.val.group_size=1",
    "es_manager.val.env_configs.tags=[FrozenLakeNoSlip]",
    "ppo_mini_batch_size=4",
    "lora.rank=4",
    "lora.alpha=4",
    "sft.model.lora_rank=4",
    "actor_rollout_ref.actor.optim.lr=0.01",
    "critic.optim.lr=0.01",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.1",
    "actor_rollout_ref.rollout.response_length=8",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    "generate.num_batches=1",
    "generate.policy=random",
    "generate.val_fraction=0.5",
    "sft.trainer.eval_episodes=0",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=9",
    "sft.trainer.save_freq=1",
    "trainer.val_before_train=false",
    "trainer.test_freq=-1",
    "trainer.validation_steps=1",
    "trainer.device=cpu",
    "trainer.threads=1",
    "trainer.logger=[]",
)


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    return save_family("qwen2", tmp_path_factory.mktemp("models") / "base")


def config(base: Path, run: Path, *overrides: str) -> Config:
    return load_config(
        "base-lora", [*SETTINGS, f"model_path={base}", f"trainer.run_dir={run}", *overrides]
    )


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def last_line(folder: Path) -> dict:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_ppo_trains_adapters_against_the_model_without_them(base, tmp_path):
    cfg = config(base, tmp_path, "trainer.total_training_steps=2")
    checkpoint = ppo_run.run_ppo(cfg, directory=tmp_path / "whole")
    for part in (checkpoint, checkpoint / "critic"):
        weights = adapter(part)
        assert any(value.abs().max() > 0 for name, value in weights.items() if "lora_B" in name)
        merged, original = (
            load_policy(str(part)) if part == checkpoint else None,
            load_policy(str(base)),
        )
        if merged is not None:
            assert torch.equal(
                merged.get_input_embeddings().weight, original.get_input_embeddings().weight
            )
            assert not torch.equal(
                merged.base_model.layers[0].mlp.up_proj.weight,
                original.base_model.layers[0].mlp.up_proj.weight,
            )
    # Exactly 0 if the reference moved with the policy; one sample of KL may have either sign.
    assert last_line(tmp_path / "whole")["actor/kl_loss"] != 0

    half = config(base, tmp_path, "trainer.total_training_steps=1")
    ppo_run.run_ppo(half, directory=tmp_path / "parts")
    resumed = ppo_run.run_ppo(cfg, directory=tmp_path / "parts")
    for sub in (".", "critic"):
        whole, parts = adapter(checkpoint / sub), adapter(resumed / sub)
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)


OWN_CODE = """from transformers import Qwen2Config, Qwen2ForCausalLM
class C(Qwen2Config):
    model_type = "own"
class M(Qwen2ForCausalLM):
    config_class = C
"""


def test_ppo_of_a_model_with_code_of_its_own_goes_on_exactly(base, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(base, own)
    (own / "own.py").write_text(OWN_CODE)
    described = json.loads((own / "config.json").read_text()) | {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},
    }
    (own / "config.json").write_text(json.dumps(described))
    plain = ("lora.rank=0", "actor_rollout_ref.model.trust_remote_code=true")
    cfg = config(own, tmp_path, *plain, "trainer.total_training_steps=2")
    preflight(cfg, ("ppo",), str(own))
    half = config(own, tmp_path, *plain, "trainer.total_training_steps=1")
    begun = ppo_run.run_ppo(half, directory=tmp_path / "parts")
    resumed = ppo_run.run_ppo(cfg, directory=tmp_path / "parts")
    whole = ppo_run.run_ppo(cfg, directory=tmp_path / "whole")
    for sub in (".", "critic"):
        found, wanted, before = (
            load_file(folder / sub / "model.safetensors") for folder in (resumed, whole, begun)
        )
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        assert any(not torch.equal(before[key], wanted[key]) for key in wanted)


def test_fine_tuning_with_adapters_goes_on_exactly(base, tmp_path):
    data = selfplay.run_self_play(config(base, tmp_path), directory=tmp_path / "data")
    cfg = config(base, tmp_path, "sft.trainer.total_training_steps=3")
    whole = pipeline.run_sft_stage(cfg, directory=tmp_path / "whole", data=data)
    schedule = config(
        base, tmp_path, "sft.trainer.total_training_steps=3", "sft.trainer.save_freq=1"
    )
    partial = tmp_path / "partial"
    pipeline.run_sft_stage(schedule, directory=partial, data=data)
    for step in (2, 3):  # as if the run had been killed after step 1
        folder = partial / f"global_step_{step}"
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    resumed = pipeline.run_sft_stage(schedule, directory=partial, data=data)
    assert whole.name == resumed.name == "global_step_3"
    a, b = adapter(whole), adapter(resumed)
    assert all(torch.equal(a[key], b[key]) for key in a)
    merged = load_policy(str(resumed))  # and PPO starts from it like from any model
    assert not any("lora" in name for name, _ in merged.named_parameters())
