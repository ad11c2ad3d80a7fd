"""Run whole PPO updates with verl's own actor and critic on frozen batches, and keep the numbers that ours must give.

    PYTHONPATH=src:tests:VERL python benchmarks/parity/verl_updates.py VERL tests/golden/verl_updates.json

VERL is a checkout. Needs verl's dependencies (tensordict, ray, codetiming, torchdata) in an environment of their own.
Advantages, KL terms, losses, aggregation, gradient clipping and schedules are verl's; only the batches and the model
are ours (tests/helpers/reference_updates.py). tests/recipes/test_reference_updates.py holds our updates to the file.
"""

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import transformers

# A name that verl imports, which newer versions of transformers have dropped. Before anything else is imported from
# transformers, which loads itself anew then.
transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText  # type: ignore[attr-defined]
import verl.utils.model  # noqa: F401

from helpers.golden import write_golden
from helpers.reference_updates import (
    BETAS,
    CASES,
    CRITIC_CASES,
    PROMPT,
    STEPS,
    WEIGHT_DECAY,
    Case,
    CriticCase,
    Frozen,
    change,
    frozen,
    reference_critic,
    reference_model,
    weights,
)
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import (
    get_constant_schedule_with_warmup,
    get_cosine_schedule_with_warmup,
)
from verl.workers.actor.dp_actor import DataParallelPPOActor
from verl.workers.config import FSDPActorConfig, FSDPCriticConfig
from verl.workers.critic.dp_critic import DataParallelPPOCritic


def main(checkout: str, output: str) -> None:
    """Every case, one after the other."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29577", RANK="0", WORLD_SIZE="1")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    commit = subprocess.run(
        ["git", "-C", checkout, "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    write_golden(
        output,
        origin=f"verl-project/verl {commit.stdout.strip() or 'unknown commit'}: DataParallelPPOActor.update_policy, "
        "DataParallelPPOCritic.update_critic",
        cases={name: run(case) for name, case in CASES.items()}
        | {name: run_critic(case) for name, case in CRITIC_CASES.items()},
    )
    dist.destroy_process_group()


def run(case: Case) -> list[dict[str, Any]]:
    """The steps of a case."""
    model = reference_model()
    optimizer, schedule = optimizer_of(model, case)
    actor = DataParallelPPOActor(config_of(case), model, optimizer)
    steps = []
    for step in range(STEPS):
        data = frozen(step)
        batch, old = scored(actor, data)
        advantages, returns = estimate(case, data, old)
        batch.batch["advantages"] = advantages
        before = weights(model)
        lr = schedule.get_last_lr()[0]
        metrics = actor.update_policy(batch)
        schedule.step()
        steps.append(
            {
                "lr": lr,
                "advantages": advantages.flatten()[:20].double().tolist(),
                "returns": returns.flatten()[:20].double().tolist(),
                "grad_norm": [float(value) for value in np.atleast_1d(metrics["actor/grad_norm"])],
                "clipfrac": float(np.mean(metrics["actor/pg_clipfrac"])),
                "change": change(model, before),
            }
        )
    return steps


def optimizer_of(
    model: torch.nn.Module, case: Case | CriticCase
) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW and verl's schedule, which moves once per PPO step."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=case.lr, betas=BETAS, weight_decay=WEIGHT_DECAY
    )
    if not case.cosine:
        return optimizer, get_constant_schedule_with_warmup(optimizer, num_warmup_steps=case.warmup)
    return optimizer, get_cosine_schedule_with_warmup(
        optimizer, num_warmup_steps=case.warmup, num_training_steps=STEPS, min_lr_ratio=0.1
    )


def run_critic(case: CriticCase) -> list[dict[str, Any]]:
    """The steps of a case."""
    model = reference_critic()
    optimizer, schedule = optimizer_of(model, case)
    config = FSDPCriticConfig(
        strategy="fsdp",
        ppo_mini_batch_size=case.mini,
        ppo_micro_batch_size_per_gpu=case.mini,
        ppo_epochs=case.epochs,
        loss_agg_mode=case.loss_agg_mode,
        cliprange_value=1e9 if case.clip is None else case.clip,  # verl always clips
        grad_clip=1.0,
        model_config=SimpleNamespace(),  # else one is read from a folder
    )
    critic = DataParallelPPOCritic(config, model, optimizer)
    # where there is none, this switches off bfloat16, which is not a setting
    critic.device_name = "cuda"
    steps = []
    for step in range(STEPS):
        data = frozen(step)
        batch = proto(data)
        mask = batch.batch["response_mask"]
        values = (critic.compute_values(batch) + torch.from_numpy(data.noise[2])) * mask
        _, returns = core_algos.compute_gae_advantage_return(
            torch.from_numpy(data.rewards), values, mask, gamma=case.gamma, lam=case.lam
        )
        batch.batch["values"], batch.batch["returns"] = values, returns
        before, lr = weights(model), schedule.get_last_lr()[0]
        metrics = critic.update_critic(batch)
        schedule.step()
        steps.append(
            {
                "lr": lr,
                "values": values.flatten()[:20].double().tolist(),
                "returns": returns.flatten()[:20].double().tolist(),
                "loss": float(metrics["critic/vf_loss"]) / len(metrics["critic/grad_norm"]),
                "grad_norm": [float(value) for value in metrics["critic/grad_norm"]],
                "change": change(model, before),
            }
        )
    return steps


def config_of(case: Case) -> FSDPActorConfig:
    """verl's configuration of a case; a mini-batch is one micro-batch."""
    return FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_mini_batch_size=case.mini,
        ppo_micro_batch_size_per_gpu=case.mini,
        ppo_epochs=case.epochs,
        loss_agg_mode=case.loss_agg_mode,
        entropy_coeff=case.entropy_coeff,
        use_kl_loss=case.kl_loss_coef > 0,
        kl_loss_coef=case.kl_loss_coef,
        kl_loss_type=case.kl_loss_type,
        clip_ratio_low=case.clip[0],
        clip_ratio_high=case.clip[1],
        clip_ratio_c=case.clip[2],
        grad_clip=1.0,
        use_torch_compile=False,
        fsdp_config={"dtype": "float32"},
    )


def proto(data: Frozen) -> DataProto:
    """The batch as verl takes it."""
    ids = torch.from_numpy(data.ids)
    attention = torch.arange(ids.shape[1])[None] < torch.from_numpy(data.lengths)[:, None]
    tensors = {
        "prompts": ids[:, :PROMPT],
        "responses": ids[:, PROMPT:],
        "response_mask": torch.from_numpy(data.mask).float(),
        "input_ids": ids,
        "attention_mask": attention.long(),
        "position_ids": torch.arange(ids.shape[1])[None].expand_as(ids).contiguous(),
    }
    meta = {
        "temperature": 1.0,
        "micro_batch_size": len(ids),
        "use_dynamic_bsz": False,
        "pad_token_id": 0,
    }
    return DataProto.from_dict(tensors=tensors, meta_info=meta)


def scored(actor: DataParallelPPOActor, data: Frozen) -> tuple[DataProto, torch.Tensor]:
    """The batch with its log-probs, and the old ones of these: the policy's own with noise."""
    batch = proto(data)
    own = actor.compute_log_prob(batch)
    own = own["log_probs"] if isinstance(own, dict) else own[0]
    mask = batch.batch["response_mask"]
    old = (own + torch.from_numpy(data.noise[0])) * mask
    batch.batch["old_log_probs"] = old
    batch.batch["ref_log_prob"] = (own + torch.from_numpy(data.noise[1])) * mask
    return batch, old


def estimate(case: Case, data: Frozen, old: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """verl's advantages and returns, KL in the reward included."""
    mask, rewards = torch.from_numpy(data.mask).float(), torch.from_numpy(data.rewards)
    if case.kl_in_reward > 0:
        reference = (old - torch.from_numpy(data.noise[0]) + torch.from_numpy(data.noise[1])) * mask
        penalty = core_algos.kl_penalty(old, reference, kl_penalty="kl") * mask
        rewards = rewards - case.kl_in_reward * penalty
    if case.estimator == "gae":
        return core_algos.compute_gae_advantage_return(
            rewards, torch.from_numpy(data.values), mask, gamma=case.gamma, lam=case.lam
        )
    return core_algos.compute_grpo_outcome_advantage(
        rewards, mask, index=data.groups, norm_adv_by_std_in_grpo=case.estimator == "grpo"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
