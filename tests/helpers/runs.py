"""A base model that knows the response format and nothing else, made in a second, and configurations that play with it."""

from pathlib import Path

import torch
from transformers import Qwen2Config

from spa.config.load import load_config
from spa.config.schema import Config
from spa.envs.pool import group_specs
from spa.policies.scripted import random_engine
from spa.prompts.template import ChatTemplate
from spa.recipes import setup, sft_updates
from spa.seeds import stream
from spa.training.optim import make_optimizer
from spa.training.update import MicroBatching, Trainable
from spa.worldmodel.sequences import TrainingSequence
from spa_bench.tiny_model.tokenizer import build_tokenizer, fixed_phrases

from .families import random_model

SMALL = (
    "state_text=coords",
    "ctx_manager.mode=add_worldmodel",
    "ctx_manager.example=false",
    "agent_proxy.max_actions_per_turn=3",
    "es_manager.train.env_configs.tags=[FrozenLakeNoSlip]",
    "es_manager.val.env_configs.tags=[FrozenLakeNoSlip]",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.rollout.max_model_len=1024",
    "actor_rollout_ref.actor.optim.lr=3e-4",
    "critic.optim.lr=1e-3",
    "sft.optim.name=muon",
    "sft.optim.lr=3e-3",
    "trainer.validation_steps=1",
    "trainer.total_training_steps=2",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.max_actor_ckpt_to_keep=null",
    "trainer.logger=[]",
    "trainer.device=cpu",
    "es_manager.train.env_groups=3",
    "es_manager.train.group_size=4",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=2",
    "agent_proxy.max_turn=3",
    "actor_rollout_ref.model.dtype=float32",
    "actor_rollout_ref.actor.ppo_num_mini_batches=2",
    "actor_rollout_ref.rollout.response_length=24",
    "actor_rollout_ref.rollout.rollout_filter_ratio=1",
    "micro_batch_size_per_gpu=4",
    "generate.num_batches=2",
    "sft.data.train_batch_size=8",
    "sft.data.micro_batch_size_per_gpu=8",
    "sft.trainer.total_training_steps=4",
    "sft.trainer.save_freq=2",
    "sft.trainer.test_freq=2",
    "sft.trainer.keep=null",
    "sft.trainer.eval_episodes=4",
    "gate.enable=false",
)


def small_config(model: Path | str, run: Path, *overrides: str) -> Config:
    """The recipe on FrozenLake without slip, with a budget of seconds and in full precision."""
    return load_config(
        "base", [*SMALL, f"model_path={model}", f"trainer.run_dir={run}", *overrides]
    )


def make_base(folder: Path) -> Path:
    """Train and save a model of 2 layers that writes well-formed world-model responds with random actions."""
    cfg = small_config("none", folder)
    phrases, varying = [], []
    for seed in range(40):
        player = setup.make_worker(cfg, None, mode="add_worldmodel")
        (tag,) = player.specs
        env = player.make_env(tag)
        env.reset(seed=seed)
        varying.append(env.state_text("coords"))
        if seed < 2:
            prompter = player.prompters[tag]
            phrases += [message["content"] for message in prompter.first_messages(env)]
            phrases.append(
                prompter.next_message(env, turn=2, actions_left=3, reward=0.0)["content"]
            )
    pieces = [*fixed_phrases(phrases, varying), *fixed_phrases(varying, ())]
    pieces += [
        "<think>",
        "<observation>\n",
        "\n</observation><prediction>\n",
        "\n</prediction></think><answer>",
    ]
    pieces += [
        "</answer>",
        " || ",
        "unknown",
        "Left",
        "Right",
        "Up",
        "Down",
        "system\n",
        "user\n",
        "assistant\n",
    ]
    tokenizer = build_tokenizer([piece for piece in pieces if piece.strip()], ())
    template = ChatTemplate(tokenizer)
    player = setup.make_worker(cfg, template, mode="add_worldmodel")
    specs = group_specs("warm", base_seed=900_000, step=0, tags=[tag], n_groups=[48], group_size=1)
    played = player.rollout(
        random_engine(template, max_actions=3), specs, setup.train_sampling(cfg)
    )
    rows = [
        TrainingSequence(token_ids=e.token_ids, mask=e.sampled, examples=1)
        for e in played
        if e.sampled is not None
    ]
    model = random_model(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=48,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=96,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        ),
        seed=0,
    )
    part = Trainable(model=model, optimizer=make_optimizer(model, lr=1e-2))
    rng = stream(0, "warm")
    for _ in range(40):
        batch = [rows[i] for i in rng.choice(len(rows), size=8, replace=False)]
        sft_updates.update(part, batch, MicroBatching(), torch.device("cpu"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
