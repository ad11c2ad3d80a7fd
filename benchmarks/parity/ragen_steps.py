"""Run whole steps of RAGEN's trainer on frozen games, and keep the numbers that ours must give.

    PYTHONPATH=src:tests:RAGEN:RAGEN/verl python benchmarks/parity/ragen_steps.py RAGEN tests/golden/ragen_steps.json

RAGEN is a checkout with its submodule verl. Needs verl's dependencies in an environment of their own. What runs is
RayAgentTrainer.fit as it is, with RAGEN's configuration, masks, scores, normalization, filter, KL in the reward,
advantages, actor and critic. Games, models and tokenizer are ours (tests/helpers/reference_ragen.py); the workers are
in this process, not Ray's, and nothing is generated. tests/recipes/test_reference_ragen.py holds our steps to the file.
"""

import importlib.machinery
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

# A name that verl imports, which newer versions of transformers have dropped.
transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText  # type: ignore[attr-defined]

ABSENT = {  # imported by RAGEN and verl, and not reached here: kernels, engines, environments
    "flash_attn": (),
    "flash_attn.bert_padding": ("index_first_axis", "pad_input", "rearrange", "unpad_input"),
    "vllm": ("LLM", "SamplingParams"),
    "ragen.env": ("REGISTERED_ENV_CONFIGS", "REGISTERED_ENVS"),
    "ragen.env.base": ("EnvStateManager",),
    "ragen.llm_agent.es_manager": ("EnvStateManager",),
    "ragen.llm_agent.base_llm": ("ConcurrentLLM",),
    "verl.workers.rollout.async_server": ("AsyncLLMServerManager",),
}
for module, names in ABSENT.items():
    stub = types.ModuleType(module)
    stub.__spec__ = importlib.machinery.ModuleSpec(module, None)
    stub.__path__ = []
    vars(stub).update(dict.fromkeys(names))
    sys.modules[module] = stub
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment]
torch.cuda.mem_get_info = lambda: (0, 0)  # type: ignore[assignment]

import verl.utils.tracking
from helpers.golden import write_golden
from helpers.reference_ragen import (
    CASES,
    GROUPS,
    KEPT,
    SHARED,
    SIZE,
    STEPS,
    frozen_games,
    qwen_tokenizer,
)
from helpers.reference_updates import change, reference_critic, reference_model, weights
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.trainer.agent_trainer import RayAgentTrainer
from ragen.workers.actor.dp_actor import DataParallelPPOActor
from ragen.workers.critic.dp_critic import DataParallelPPOCritic
from train import DummyRewardManager
from verl import DataProto
from verl.trainer.ppo import core_algos
from verl.utils.torch_functional import get_constant_schedule_with_warmup

ON_CPU = (
    "model_path=qwen",
    "micro_batch_size_per_gpu=${ppo_mini_batch_size}",
    "actor_rollout_ref.actor.use_torch_compile=false",
    "trainer.val_before_train=false",
    "trainer.resume_mode=disable",
    "trainer.balance_batch=false",
    "trainer.save_freq=0",
    "trainer.test_freq=0",
)


class Games:
    """Replacement of self-play: RAGEN's own batch of the frozen games of each step."""

    def __init__(self, config: Any) -> None:
        manager = ContextManager.__new__(ContextManager)
        manager.config, manager.tokenizer, manager.env_nums = config, qwen_tokenizer(), {}
        everyone = range(GROUPS * SIZE)
        manager.prefix_lookup = dict.fromkeys(everyone, "Play.")
        manager.env_config_lookup = {env_id: {"max_tokens": 100} for env_id in everyone}
        self.manager, self.step, self.rollouts = manager, 0, []

    def rollout(self, batch: DataProto, val: bool) -> DataProto:
        outputs = []
        for game in frozen_games(self.step):
            turns = zip(game.states, game.responses, game.rewards, strict=True)
            history = [
                {"state": state, "llm_response": response, "reward": reward, "actions_left": 5}
                for state, response, reward in turns
            ]
            # what the last response led to, which RAGEN leaves out
            history.append({"state": "", "actions_left": 0})
            known = {
                "env_id": game.env_id,
                "group_id": game.group_id,
                "tag": game.tag,
                "penalty": game.penalty,
            }
            outputs.append({**known, "history": history, "metrics": {}})
        self.step += 1
        made = self.manager.formulate_rollouts(outputs)
        rows = zip(
            made.batch["input_ids"],
            made.batch["attention_mask"],
            made.batch["loss_mask"],
            strict=True,
        )
        self.rollouts.append(
            [
                [ids[seen.bool()].tolist(), flags[seen.bool()[:-1]].int().tolist()]
                for ids, seen, flags in rows
            ]
        )
        return made


class Worker:
    """A model and its optimizer as the workers of RAGEN hold them. Notes what every update changes."""

    def __init__(self, part: Any, schedule: Any, config: Any) -> None:
        self.part, self.schedule, self.config = part, schedule, config
        self.model = getattr(part, "actor_module", None) or part.critic_module
        self.found: list[dict[str, Any]] = []
        self.norms: list[float] = []
        stepped = part._optimizer_step

        def noted() -> torch.Tensor:
            self.norms.append(float(norm := stepped()))
            return norm

        part._optimizer_step = noted

    def score(self, data: DataProto, **wanted: Any) -> Any:
        data.meta_info |= {
            "micro_batch_size": len(data),
            "use_dynamic_bsz": False,
            "temperature": 1.0,
        }
        return (
            self.part.compute_values
            if hasattr(self.part, "critic_module")
            else self.part.compute_log_prob
        )(data=data, **wanted)

    def compute_log_prob(self, data: DataProto) -> DataProto:
        logprobs, entropies = self.score(data, calculate_entropy=True)
        return DataProto.from_dict(
            tensors={"old_log_probs": logprobs, "entropys": entropies},
            meta_info={"temperature": 1.0},
        )

    def compute_ref_log_prob(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"ref_log_prob": self.score(data)[0]})

    def compute_values(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"values": self.score(data)})

    def update(self, step: Any, data: DataProto) -> DataProto:
        before, lr = weights(self.model), self.schedule.get_last_lr()[0]
        self.norms.clear()
        metrics = step(data=data)
        self.schedule.step()
        numbers = {name: data.batch[name][:2].flatten() for name in ("advantages", "returns")}
        mask = data.batch["response_mask"][:2].flatten().bool()
        self.found.append(
            {
                "lr": lr,
                "rows": data.non_tensor_batch["env_ids"].tolist(),
                **{name: values[mask][:KEPT].tolist() for name, values in numbers.items()},
                "grad_norm": list(self.norms),
                "change": change(self.model, before),
            }
        )
        return DataProto(meta_info={"metrics": metrics})

    def update_actor(self, data: DataProto) -> DataProto:
        return self.update(self.part.update_policy, data)

    def update_critic(self, data: DataProto) -> DataProto:
        return self.update(self.part.update_critic, data)


class Lines:
    """Replacement of the trackers: keeps the metrics of every step."""

    def __init__(self, **_: Any) -> None:
        LINES.clear()

    def log(self, data: dict[str, Any], step: int) -> None:
        LINES.append(data)


LINES: list[dict[str, Any]] = []
WANTED = (
    "rollout/in_group_std",
    "rollout/in_group_max",
    "rollout/in_group_mean",
    "rollout/chosen_in_group_std",
    "rollout/chosen_in_group_max",
    "rollout/chosen_in_group_mean",
    "rollout/old_log_prob",
    "actor/reward_kl_penalty",
    "actor/reward_kl_penalty_coeff",
)


def run(overrides: tuple[str, ...]) -> tuple[list[dict[str, Any]], Any]:
    """The steps of a case, and the rollouts they were made from."""
    config = compose("base", overrides=[*ON_CPU, *SHARED, *overrides])
    OmegaConf.set_struct(config, False)
    words = len(qwen_tokenizer())
    trainer = RayAgentTrainer.__new__(RayAgentTrainer)
    games = Games(config)
    actor, critic = worker("actor", config, words), worker("critic", config, words)
    trainer.config, trainer.tokenizer, trainer.agent_proxy = config, qwen_tokenizer(), games
    trainer.actor_rollout_wg, trainer.critic_wg = actor, critic
    trainer.ref_policy_wg, trainer.ref_in_actor = worker("reference", config, words), False
    trainer.use_critic = config.algorithm.adv_estimator == "gae"
    trainer.use_reference_policy, trainer.use_rm = True, False
    trainer.reward_fn, trainer.val_reward_fn = DummyRewardManager(qwen_tokenizer(), 0), None
    trainer.kl_ctrl_in_reward = core_algos.get_kl_controller(config.algorithm.kl_ctrl)
    trainer.total_training_steps = STEPS
    trainer.resource_pool_manager = types.SimpleNamespace(get_n_gpus=lambda: 1)
    trainer.fit()
    steps = []
    for line in LINES:
        steps.append({name: float(line[name]) for name in WANTED if name in line})
    skipped = config.trainer.critic_warmup - 1 if config.trainer.critic_warmup > 1 else 0
    for number, step in enumerate(steps):
        if number >= skipped:
            step["actor"] = actor.found[number - skipped]
        if trainer.use_critic:
            step["critic"] = critic.found[number]
    return steps, games.rollouts


def worker(role: str, config: Any, words: int) -> Worker:
    """A worker with a model of its own; the reference is another model than the policy."""
    if role == "critic":
        model: Any = reference_critic(words)
        section = config.critic
    else:
        model = reference_model(words, seed=7 if role == "actor" else 9)
        section = config.actor_rollout_ref.actor
    model._fsdp_wrapped_module = None  # where RAGEN looks for adapters
    optim = section.optim
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=optim.lr,
        betas=tuple(optim.betas),
        weight_decay=optim.get("weight_decay", 1e-2),
    )
    part = (DataParallelPPOCritic if role == "critic" else DataParallelPPOActor)(
        section, model, optimizer
    )
    return Worker(part, get_constant_schedule_with_warmup(optimizer, num_warmup_steps=0), section)


def commit_of(checkout: str) -> str:
    """The commit that is checked out."""
    asked = ["git", "-C", checkout, "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


def main(checkout: str, output: str) -> None:
    """Every case, one after the other."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # pyright: ignore
    verl.utils.tracking.Tracking = Lines
    commits = [commit_of(place) for place in (checkout, f"{checkout}/verl")]
    with initialize_config_dir(str(Path(checkout).resolve() / "config"), version_base=None):
        made = {name: run(overrides) for name, overrides in CASES.items()}
    rollouts = [rollout for _, rollout in made.values()]
    assert all(rollout == rollouts[0] for rollout in rollouts)
    write_golden(
        output,
        origin=f"RAGEN-AI/RAGEN {commits[0]} with verl {commits[1]}: RayAgentTrainer.fit",
        cases={name: steps for name, (steps, _) in made.items()} | {"rollouts": rollouts[0]},
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3])
