"""Table of the stages that read each setting, and the settings that count for a stage's
fingerprint."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from spa.config.fields import Key, flatten
from spa.config.schema import APIModelConfig, Config, EnvSpec, schema_keys, to_plain
from spa.plugins import example_source

StageName = Literal["selfplay", "sft", "ppo", "eval"]
STAGES: tuple[StageName, ...] = get_args(StageName)

SECTIONS: dict[str, tuple[StageName, ...]] = {
    "model_path": ("selfplay", "ppo", "eval"),  # SFT reads sft.model.partial_pretrain
    "state_text": ("selfplay", "ppo", "eval"),
    "micro_batch_size_per_gpu": ("ppo",),
    "ppo_mini_batch_size": ("ppo",),
    "grpo_advantage_length_weight": ("ppo",),
    "launcher": STAGES,
    "ray_init": STAGES,
    # SFT has a seed of its own, `sft.trainer.seed`.
    "seed": ("selfplay", "ppo"),
    "seed.val": ("selfplay", "ppo", "eval"),  # self-play leaves out the puzzles of validation
    "lora": ("sft", "ppo"),
    "agent_proxy": ("selfplay", "ppo", "eval"),
    "agent_proxy.use_turn_scores": ("ppo",),
    "agent_proxy.reward_normalization": ("ppo",),
    "agent_proxy.world_model_reward": ("ppo",),
    "es_manager": ("selfplay", "ppo", "eval"),
    "es_manager.train": ("selfplay", "ppo"),
    "es_manager.val": ("selfplay", "ppo", "eval"),
    # Self-play holds out the validation puzzles, which do not depend on the episodes per puzzle.
    "es_manager.val.group_size": ("ppo", "eval"),
    # Self-play always uses the world-model format, so it does not read most of this section.
    "ctx_manager": ("ppo", "eval"),
    "ctx_manager.example": ("selfplay", "ppo", "eval"),
    # In self-play, this key affects only examples in base format.
    "ctx_manager.history": ("selfplay", "ppo", "eval"),
    "ctx_manager.placeholders": ("selfplay", "ppo", "eval"),
    "custom_envs": ("selfplay", "ppo", "eval"),
    # Only PPO and evaluation add these rewards.
    "custom_envs.*.reward": ("ppo", "eval"),
    "generate": ("selfplay",),
    # PPO reads these three keys to make replayed examples from rollouts, as self-play does.
    "generate.shuffle_next_states": ("selfplay", "ppo"),
    "generate.states": ("selfplay", "ppo"),
    "generate.success_only": ("selfplay", "ppo"),
    "data": ("sft",),
    "sft": ("sft",),
    # PPO may replay examples of stage 2 (`replay.examples`).
    "sft.data.train_files": ("sft", "ppo"),
    "sft.data.max_length": ("sft", "ppo"),
    "sft.data.merge_turns": ("sft", "ppo"),
    "sft.data.loss_on": ("sft", "ppo"),
    "gate": ("sft",),
    # Self-play and evaluation depend on the keys below. The other keys of this section change at
    # most the last digits of their results.
    "actor_rollout_ref": ("ppo",),
    "actor_rollout_ref.model.dtype": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.model.attn_implementation": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.model.chat_template": STAGES,
    "actor_rollout_ref.rollout.name": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.rollout.dtype": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.rollout.max_model_len": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.rollout.max_num_seqs": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.rollout.engine_kwargs": ("selfplay", "ppo", "eval"),
    "actor_rollout_ref.rollout.response_length": ("ppo", "eval"),
    "actor_rollout_ref.rollout.val_kwargs": ("ppo", "eval"),
    "critic": ("ppo",),
    "algorithm": ("ppo",),
    "trainer": ("ppo",),
    "trainer.validation_steps": ("selfplay", "ppo"),  # sets the number of held-out puzzles
    "trainer.n_gpus_per_node": STAGES,
    "trainer.nnodes": STAGES,
    "trainer.device": STAGES,
    "trainer.threads": STAGES,
    # These settings affect `spa compare` itself, but not the stages that it runs.
    "compare": (),
    "imagine": ("eval",),
    "model_config": ("selfplay", "eval"),
    "model_info": ("selfplay", "eval"),
}
"""The stages that read each section or key; for a key, the longest matching prefix counts. A
stage's fingerprint includes the fingerprint of the previous stage, so stage 2 depends on everything
that self-play reads."""

UNRECORDED: dict[StageName, tuple[str, ...]] = {
    "selfplay": ("ctx_manager.placeholders", "ctx_manager.history")
}
"""Settings that older records of a stage lack. A missing value matches every value, because the
value that was used is unknown: presets differ from the schema's defaults."""

_REPLAY = "actor_rollout_ref.actor.replay"
_REPLAYED = tuple(
    name
    for name, stages in SECTIONS.items()
    if "ppo" in stages and name.startswith(("generate.", "sft."))
)
"""Settings that PPO uses to prepare replayed examples: it tokenizes stored examples again, and puts
true states into rollouts."""


ENTRIES = {
    "custom_envs": EnvSpec(env_type=""),
    "model_info": APIModelConfig(provider_name="openai", model_name=""),
}
"""Sections whose entries the user names, with an example entry for their default values."""


@functools.cache
def stages_of(key: str) -> tuple[StageName, ...]:
    """The stages that read a dotted key."""
    parts = key.split(".")
    if parts[0] in ENTRIES and len(parts) > 1:
        parts[1] = "*"
    # Names are tried from the longest to the shortest, so that `seed.val` takes precedence over
    # `seed`.
    names = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((SECTIONS[name] for name in names if name in SECTIONS), ())


@functools.cache
def _keys() -> dict[str, Key]:
    return {name: key for name, _, key in schema_keys() if key is not None}


@functools.cache
def key_of(path: str) -> Key:
    """Return the schema entry of a dotted key; for a key inside a mapping, such as an environment's
    options, the entry of the mapping."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        name = ".".join(parts[:count])
        # `custom_envs.MyTag.env_type` -> `custom_envs.*.env_type`
        starred = ".".join([parts[0], "*", *parts[2:count]])
        for candidate in (name, starred):
            if candidate in _keys():
                return _keys()[candidate]
    raise KeyError(path)


def values_of(cfg: Config, stage: StageName) -> dict[str, Any]:
    """Return the plain values of all settings that a stage reads, by dotted key.

    Settings without effect are left out: environments that the stage does not play, API models that
    it does not call, and settings of replay if replay is off. Checkpoints of the same run to resume
    from are also left out. So is the number of PPO steps, unless a learning-rate schedule depends
    on it.
    """
    settings = {
        key: value for key, value in flatten(to_plain(cfg)).items() if stage in stages_of(key)
    }
    # Evaluation plays only the validation tags.
    tags = {
        *cfg.es_manager.val.env_configs.tags,
        *(cfg.es_manager.train.env_configs.tags if stage != "eval" else ()),
    }
    models = {cfg.model_path, cfg.model_config.model_name}
    switched_off = (
        *(f"custom_envs.{tag}" for tag in cfg.custom_envs if tag not in tags),
        *(f"model_info.{name}" for name in cfg.model_info if name not in models),
        *(() if _has_an_end(cfg) else ("trainer.total_training_steps",)),
        *(name for name in _REPLAYED if stage == "ppo" and not _replays(cfg, name)),
        *_not_of_others(cfg),
        *(
            ("ctx_manager.history",)
            if stage == "selfplay" and example_source(cfg).mode != "base"
            else ()
        ),
    )
    # The dot at the end keeps `custom_envs.Sudoku` from matching `custom_envs.Sudoku9x9`.
    off = tuple(f"{name}." for name in switched_off)
    return without_idle_replay(
        {key: value for key, value in settings.items() if not f"{key}.".startswith(off)}
    )


def _replays(cfg: Config, name: str) -> bool:
    """Return whether PPO's replayed examples depend on this key."""
    replay = cfg.actor_rollout_ref.actor.replay
    return replay.corrects_rollouts or (replay.examples > 0 and name.startswith("sft."))


def _not_of_others(cfg: Config) -> Iterator[str]:
    """Yield the keys for resuming that fingerprints leave out, because they are unset or name a
    checkpoint of the run itself."""
    named = cfg.sft.trainer.resume_path
    own = cfg.sft.trainer.default_local_dir
    if named is None or _lies_in(named, own, f"{cfg.trainer.run_dir}/round_1/sft"):
        yield "sft.trainer.resume_path"
    named = cfg.trainer.resume_from_path
    own = cfg.trainer.default_local_dir
    if named is None or cfg.trainer.resume_mode != "resume_path" or _lies_in(named, own):
        yield "trainer.resume_from_path"


def _lies_in(named: str, *folders: str) -> bool:
    return Path(named).expanduser().resolve().parent in [
        Path(folder).resolve() for folder in folders
    ]


def without_idle_replay(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stage's values without the settings of the gate, and without the settings of replay
    if replay is off. They do not affect results, but older records contain them."""
    idle = ("gate.",) if values.get(f"{_REPLAY}.examples") else ("gate.", f"{_REPLAY}.")
    return {key: value for key, value in values.items() if not key.startswith(idle)}


def _has_an_end(cfg: Config) -> bool:
    """Return whether PPO's learning-rate schedules depend on the total number of training steps."""
    optims = (cfg.actor_rollout_ref.actor.optim, cfg.critic.optim)
    return any(
        optim.warmup_style == "cosine"
        # The length of such a warm-up is a share of the total number of steps.
        or (optim.lr_warmup_steps < 0 and optim.lr_warmup_steps_ratio > 0)
        for optim in optims
    )


def default_of(key: str) -> Any:
    """Return the schema's default of a dotted key, for records that are older than the key; None if
    it has no default. All environment tags have the same defaults, and so do all API models."""
    section, _, field = key.partition(".")
    return _defaults().get(f"{section}.*.{field.partition('.')[2]}" if section in ENTRIES else key)


@functools.cache
def _defaults() -> Mapping[str, Any]:
    entries = {name: {"*": to_plain(entry)} for name, entry in ENTRIES.items()}
    return flatten({**to_plain(Config()), **entries})
