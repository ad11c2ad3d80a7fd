"""Estimate the duration of a configuration's stages before they run."""

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch

from spa.algo.estimators import estimator_named
from spa.config.check import kept_episodes
from spa.config.schema import ActorConfig, Config, CriticConfig
from spa.config.stages import StageName
from spa.errors import SpaError
from spa.examples.source import source_of
from spa.models.build import is_tiny
from spa.models.memory import ModelShape
from spa.models.precision import on_cpu, precision_of
from spa.prompts.render import PromptMode
from spa.recipes.ppo_models import keys_of
from spa.recipes.rounds import rounds_of
from spa.recipes.setup import first_puzzle, make_prompter, taught_mode
from spa.recipes.token_budget import shape_of, shards, with_token_budgets
from spa_estimates.speed import Machine, card_for, gpus, this_cpu

CHARACTERS = 3
"""Characters per token in prompts of coordinates and grids, measured with SmolLM2."""
TINY_CHARACTERS = 16
"""Characters per token for the bundled model, whose tokens are phrases of the shipped games."""
PREFILL_MICRO = 8192
POLICY_S = 0.01
"""Seconds per episode of random play or another policy without a model, including making its
examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """Time estimate of one stage."""

    stage: StageName
    seconds: float | None  # None if the amount of work is not known in advance
    tokens: float  # total over all episodes that the stage plays
    work: str  # description of the work, such as `100 steps`


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A typical episode of a configuration."""

    turns: int  # number of turns
    prompts: float  # tokens of all prompts
    longest: int  # maximum number of tokens in a response
    limit: int  # context length in tokens

    @property
    def tokens(self) -> float:
        """Tokens of prompts and responses, assuming responses of half the maximum length."""
        return min(self.prompts + self.turns * self.longest / 2, self.limit)


def seconds_here(cfg: Config, stage: StageName, *, threads: int | None = None) -> float | None:
    """Estimate the seconds that a stage takes on this machine, on one GPU or on `threads` CPU
    threads. Returns None if the time cannot be estimated."""
    try:
        # A model on the Hub may be unreachable, and a game may be unknown or need a missing
        # package. The stage itself reports such errors.
        shape = shape_of(cfg.model_path, code=cfg.actor_rollout_ref.model.trust_remote_code)
        if on_cpu(cfg):
            bfloat16 = precision_of(cfg)["actor_rollout_ref.model.dtype"] == "bfloat16"
            machine = this_cpu(
                torch.bfloat16 if bfloat16 else torch.float32, threads or torch.get_num_threads()
            )
        else:
            gpu = torch.cuda.get_device_properties(0)
            cfg = with_token_budgets(cfg, gpu.total_memory)
            vllm = cfg.actor_rollout_ref.rollout.name == "vllm"
            machine = gpus(card_for(gpu.total_memory / 1e9, gpu.name), 1, vllm=vllm)
        characters = TINY_CHARACTERS if is_tiny(cfg.model_path) else CHARACTERS
        (time,) = stage_times(cfg, shape, machine, stages=[stage], characters=characters)
    except (SpaError, KeyError):
        return None
    return time.seconds


def conversation(
    cfg: Config, mode: PromptMode, longest: int, *, characters: float = CHARACTERS
) -> Conversation:
    """Estimate a typical conversation of the first training tag, assuming that every episode plays
    all its turns. Prompts are measured on the first puzzle, with `characters` characters per token.
    A response has at most `longest` tokens. Raises ConfigError if the environment cannot be
    created."""
    tag = cfg.es_manager.train.env_configs.tags[0]
    spec = cfg.custom_envs[tag]
    turns = cfg.max_turn(tag)
    with first_puzzle(cfg, spec) as env:
        prompter = make_prompter(cfg, spec, mode, env=env)
        first = sum(len(message["content"]) for message in prompter.first_messages(env))
        later = prompter.next_message(env, turn=2, actions_left=1, reward=0.0)
    return Conversation(
        turns=turns,
        prompts=(first + (turns - 1) * len(later["content"])) / characters,
        longest=longest,
        limit=cfg.actor_rollout_ref.rollout.max_model_len,
    )


def stage_times(
    cfg: Config,
    shape: ModelShape,
    machine: Machine,
    *,
    stages: Collection[StageName] = ("selfplay", "sft", "ppo"),
    characters: float = CHARACTERS,
) -> list[StageTime]:
    """Estimate the time of stages on a machine, with `characters` characters per token in prompts.
    Raises ConfigError if an environment cannot be created."""
    before = {"selfplay", "sft"} & set(stages)
    times = _world_model_times(cfg, shape, machine, characters) if before else []
    if "ppo" in stages:
        times.append(_ppo_time(cfg, shape, machine, characters))
    return [time for time in times if time.stage in stages]


def _rollout(
    cfg: Config, shape: ModelShape, machine: Machine, talk: Conversation, episodes: int
) -> float:
    """Estimate the seconds that `episodes` episodes take if they are played concurrently. `talk` is
    their mean conversation."""
    rollout = cfg.actor_rollout_ref.rollout
    at_a_time = rollout.max_num_seqs if rollout.name == "vllm" else episodes
    # A turn takes as long as its longest response, so every response counts with the maximum
    # length.
    decoded = machine.decode_seconds(
        shape, episodes, talk.tokens / 2, talk.turns * talk.longest, at_a_time
    )
    read = machine.train_seconds(shape, episodes * talk.prompts, PREFILL_MICRO, forward_only=True)
    return decoded + read


def _world_model_times(
    cfg: Config, shape: ModelShape, machine: Machine, characters: float
) -> list[StageTime]:
    """Estimate the time of self-play and of SFT over all rounds."""
    played: float | None = 0.0
    learned = 0.0
    tokens_played = 0.0
    episodes = 0
    steps = 0
    total_examples = 0
    for own in rounds_of(cfg, Path(), Path()):
        generate, sft = own.cfg.generate, own.cfg.sft
        groups = own.cfg.es_manager.train
        batch = groups.env_groups * groups.group_size
        talk = conversation(
            own.cfg,
            taught_mode(own.cfg),
            generate.sampling.response_length,
            characters=characters,
        )
        count = generate.num_batches * batch
        examples = ceil(count * talk.turns * (1 - generate.val_fraction))
        plays = source_of(own.cfg).plays
        if not plays:
            # The number of model queries depends on the searches, so it is not known in advance.
            played = None
            examples = generate.search.examples
        elif played is not None:
            if "self" in generate.policies:
                # With planning, the model also predicts the later steps of each plan before the
                # best one is played.
                plans = 1 + generate.imagine.n * (generate.imagine.depth - 1)
                played += (
                    plans * generate.num_batches * _rollout(own.cfg, shape, machine, talk, batch)
                )
            else:
                played += POLICY_S * count
        total_examples += examples
        used = total_examples if generate.train_on == "all_rounds" else examples
        trainer = sft.trainer
        own_steps = trainer.total_training_steps or ceil(
            trainer.total_epochs * used / sft.data.train_batch_size
        )
        # With `merge_turns`, the turns of an episode are examples that share one sequence.
        merged = talk.turns if sft.data.merge_turns and plays else 1
        sequence = min(talk.tokens, sft.data.max_length)
        tokens = own_steps * sft.data.train_batch_size / merged * sequence
        micro = sft.data.max_token_len_per_gpu
        if not isinstance(micro, int):
            micro = ceil(sft.data.micro_batch_size_per_gpu * sequence)
        learned += machine.train_seconds(
            shape,
            tokens,
            micro,
            recomputed=sft.model.enable_gradient_checkpointing,
            shards=shards(sft.model.strategy, sft.model.fsdp_config.fsdp_size, machine.ranks),
        )
        if trainer.eval_episodes:
            # Without `test_freq`, SFT plays held-out puzzles after each epoch.
            every = trainer.test_freq or ceil(used / sft.data.train_batch_size)
            probes = ceil(own_steps / every)
            learned += probes * _rollout(own.cfg, shape, machine, talk, trainer.eval_episodes)
        episodes += count
        tokens_played += count * talk.tokens
        steps += own_steps
    return [
        StageTime(
            stage="selfplay",
            seconds=played,
            tokens=tokens_played,
            work="written searches" if played is None else f"{episodes:,} episodes",
        ),
        StageTime(stage="sft", seconds=learned, tokens=0.0, work=f"{steps:,} steps"),
    ]


def _ppo_time(cfg: Config, shape: ModelShape, machine: Machine, characters: float) -> StageTime:
    rollout, trainer = cfg.actor_rollout_ref.rollout, cfg.trainer
    model, actor = cfg.actor_rollout_ref.model, cfg.actor_rollout_ref.actor
    train, val = cfg.es_manager.train, cfg.es_manager.val
    talk = conversation(cfg, cfg.ctx_manager.mode, rollout.response_length, characters=characters)
    episodes = train.env_groups * train.group_size
    kept = kept_episodes(cfg) * talk.tokens
    critic = estimator_named(cfg.algorithm.adv_estimator, keys_of(cfg.algorithm)).needs_values
    reference = cfg.has_kl_term()
    step = _rollout(cfg, shape, machine, talk, episodes)
    updated: list[tuple[ActorConfig | CriticConfig, bool, str, int]] = [
        (
            actor,
            model.enable_gradient_checkpointing,
            actor.strategy,
            actor.fsdp_config.fsdp_size,
        )
    ]
    if critic:
        own = cfg.critic
        checkpointing = own.model.enable_gradient_checkpointing
        updated.append((own, checkpointing, own.strategy, own.model.fsdp_config.fsdp_size))
    for part, recomputed, strategy, size in updated:
        micro = (
            part.ppo_max_token_len_per_gpu
            if part.use_dynamic_bsz is True
            else ceil(part.ppo_micro_batch_size_per_gpu * talk.tokens)
        )
        cut = shards(strategy, size, machine.ranks)
        # A forward pass computes log-probs or values before the update.
        step += machine.train_seconds(shape, kept, micro, forward_only=True, shards=cut)
        step += part.ppo_epochs * machine.train_seconds(
            shape, kept, micro, recomputed=recomputed, shards=cut
        )
    if reference:
        step += machine.train_seconds(shape, kept, ceil(talk.tokens), forward_only=True)
    steps = trainer.total_training_steps
    # The last step is always validated.
    tests = ceil(steps / trainer.test_freq) if trainer.test_freq > 0 else 1
    tests += trainer.val_before_train
    tested = val.env_groups * val.group_size * trainer.validation_steps
    # Validation plays no more episodes at a time than training does.
    testing = ceil(tested / episodes) * _rollout(cfg, shape, machine, talk, min(tested, episodes))
    return StageTime(
        stage="ppo",
        seconds=steps * step + tests * testing,
        tokens=(steps * episodes + tests * tested) * talk.tokens,
        work=f"{steps:,} steps of {step:,.0f} s, {tests} validations of {testing:,.0f} s",
    )
