"""Validate combinations of settings across sections; each problem comes with a remedy.

Rules about a single section are in the schema, next to that section.
"""

from collections.abc import Collection

from spa.config.problems import Problems
from spa.config.schema import Config, EnvSpec, GroupsConfig
from spa.config.stages import STAGES, StageName
from spa.envs.registry import env_types
from spa.errors import nearest
from spa.plugins import (
    defined_by_methods,
    example_source,
    example_sources,
    plugins,
    response_formats,
    trackers,
)

# The following names repeat tables of other modules, which this module must not import:
# spa.algo.estimators and spa.algo.losses import torch, and spa.worldmodel.sequences and
# spa.engines.factory belong to higher layers.
GROUP_ESTIMATORS = ("grpo", "rloo", "reinforce_plus_plus_baseline", "turn_rloo", "gigpo")
TURN_ESTIMATORS = ("turn_rloo", "turn_gae", "gigpo")
CRITIC_ESTIMATORS = ("gae", "turn_gae")
ESTIMATORS = ("gae", "reinforce_plus_plus", "turn_gae", *GROUP_ESTIMATORS)
POLICY_LOSSES = ("ppo",)
LOSS_ON = ("response", "states_only", "no_states")
MOST_EPISODES = 1_000_000
"""Largest number of episodes in one step or validation, because all of them are kept in memory."""
PLAYERS = ("self", "random", "expert")
ENGINES = ("auto", "local", "random", "scripted")


def check(cfg: Config, problems: Problems, stages: Collection[StageName] = STAGES) -> None:
    """Add a problem for every combination of settings that cannot work in `stages`. `n_groups` must
    already be expanded (`spread_groups`)."""
    for name, groups in (("train", cfg.es_manager.train), ("val", cfg.es_manager.val)):
        _check_groups(cfg, f"es_manager.{name}", groups, problems)
    played = cfg.es_manager.train.env_configs.tags + cfg.es_manager.val.env_configs.tags
    # Only tags that are played are checked: the types of others may be in packages that are not
    # installed.
    for tag in dict.fromkeys(tag for tag in played if tag in cfg.custom_envs):
        _check_env(f"custom_envs.{tag}", cfg.custom_envs[tag], problems)
    if "ppo" in stages:
        _check_batches(cfg, problems)
        _check_algorithm(cfg, problems)
    if "sft" in stages:
        _check_sft(cfg, problems)
    _check_precision(cfg, problems, stages)
    own = cfg.generate.group_size
    whole = cfg.es_manager.train.group_size
    if "selfplay" in stages and own is not None and whole % own:
        problems.add(
            "generate.group_size",
            f"{own} does not divide es_manager.train.group_size ({whole}); choose a divisor",
        )
    _check_engine(cfg, problems)
    _check_trackers(cfg, problems)
    if cfg.trainer.resume_mode == "resume_path" and not cfg.trainer.resume_from_path:
        problems.add(
            "trainer.resume_from_path",
            "must name a checkpoint when trainer.resume_mode is resume_path",
        )
    _check_ablations(cfg, problems)


def _check_precision(cfg: Config, problems: Problems, stages: Collection[StageName]) -> None:
    trained = {
        "actor_rollout_ref.model.dtype": ("ppo", cfg.actor_rollout_ref.model.dtype),
        "critic.model.dtype": ("ppo", cfg.critic.model.dtype),
        "sft.model.dtype": ("sft", cfg.sft.model.dtype),
    }
    for path, (stage, dtype) in trained.items():
        if stage in stages and dtype == "float16":
            problems.add(
                path,
                "most gradients round to 0 in float16, because spa does not scale the loss; use bfloat16, "
                "or float32 on a GPU without bfloat16. actor_rollout_ref.rollout.dtype may be float16",
            )


def _check_ablations(cfg: Config, problems: Problems) -> None:
    reward = cfg.agent_proxy.world_model_reward
    if (reward.observation or reward.prediction) and cfg.ctx_manager.mode != "add_worldmodel":
        problems.add(
            "agent_proxy.world_model_reward",
            "world-model rewards need ctx_manager.mode=add_worldmodel, because base responses contain no "
            "states",
        )
    sources = example_sources()
    own = [name for source in sources if source.plays for name in source.policies]
    players = (*PLAYERS, *own, *plugins("policies"))
    others = [name for source in sources if not source.plays for name in source.policies]
    for path, named, known in (
        ("generate.policy", (cfg.generate.policy,), (*players, *others)),
        ("generate.mixture", cfg.generate.mixture or (), players),
    ):
        for name in named:
            if name not in known:
                problems.add(
                    path, f"must be one of {', '.join(known)}, got {name!r}; {nearest(name, known)}"
                )
    by_others = cfg.generate.policy != "self" or cfg.generate.mixture or cfg.generate.epsilon > 0
    if cfg.generate.states == "model" and by_others:
        problems.add(
            "generate.states",
            "states=model needs generate.policy=self without generate.mixture and generate.epsilon, "
            "because other policies predict no states",
        )
    if cfg.generate.states == "model" and cfg.generate.shuffle_next_states:
        problems.add(
            "generate.shuffle_next_states",
            "states=model puts the model's own predictions in the place of shuffled states; set one of "
            "the two",
        )
    response_formats()[cfg.agent_proxy.response_format].check(cfg, problems)
    if cfg.imagine.reads_predictions and cfg.ctx_manager.mode != "add_worldmodel":
        problems.add(
            "imagine.n",
            "planning needs ctx_manager.mode=add_worldmodel, because base responses contain no "
            "predictions",
        )
    if cfg.generate.later_batches is not None and cfg.generate.rounds == 1:
        problems.add(
            "generate.later_batches",
            "later rounds need generate.rounds of at least 2; raise generate.rounds, or set "
            "generate.later_batches=null",
        )
    if not cfg.ctx_manager.history and cfg.ctx_manager.mode != "base":
        problems.add("ctx_manager.history", "must be true with ctx_manager.mode=add_worldmodel")
    example_source(cfg).check(cfg, problems)
    if cfg.generate.states == "random_coords" and cfg.state_text == "grid":
        problems.add(
            "generate.states",
            "cannot be random_coords with state_text=grid, which contains no coordinates; use coords or "
            "grid_and_coords",
        )


def _check_groups(cfg: Config, path: str, groups: GroupsConfig, problems: Problems) -> None:
    tags = groups.env_configs.tags
    counts = groups.env_configs.n_groups or ()
    if not tags:
        return problems.add(f"{path}.env_configs.tags", "must name at least one environment tag")
    for tag in tags:
        if tag not in cfg.custom_envs:
            problems.add(
                f"{path}.env_configs.tags",
                f"there is no tag {tag!r} in custom_envs; {nearest(tag, cfg.custom_envs)}",
            )
    if len(counts) != len(tags):
        problems.add(
            f"{path}.env_configs.n_groups",
            f"got {len(counts)} numbers for {len(tags)} tags; give one number per tag, or null for equal "
            "shares",
        )
    elif sum(counts) != groups.env_groups:
        problems.add(
            f"{path}.env_configs.n_groups",
            f"{list(counts)} adds up to {sum(counts)}, but env_groups is {groups.env_groups}; change "
            "either value, or set n_groups=null",
        )
    elif groups.env_groups * groups.group_size > MOST_EPISODES:
        problems.add(
            f"{path}.group_size",
            f"{groups.env_groups} groups x {groups.group_size} episodes exceed the limit of "
            f"{MOST_EPISODES:,} episodes; lower env_groups or group_size",
        )
    elif min(counts) < 1:
        problems.add(
            f"{path}.env_groups",
            f"{groups.env_groups} groups are too few for {len(tags)} tags, because each tag needs at "
            "least one group; raise env_groups",
        )
    # `strict=False`, because different lengths were already reported above.
    for tag, count in zip(tags, counts, strict=False):
        if (
            path.endswith("train")
            and count % 2
            and tag in cfg.custom_envs
            and cfg.custom_envs[tag].self_play
        ):
            problems.add(
                f"{path}.env_groups",
                f"{tag} gets {count} groups, but self_play needs an even number of groups, half for each "
                "player; change env_groups or n_groups",
            )


def _check_env(path: str, spec: EnvSpec, problems: Problems) -> None:
    """Validate the name of the environment type. Its options are validated only when the
    environment is made, because importing its module may be slow."""
    if spec.env_type not in env_types() and ":" not in spec.env_type:
        hint = (
            "use a registered type, or your own class as package.module:Class; "
            f"{nearest(spec.env_type, env_types())}"
        )
        problems.add(f"{path}.env_type", f"there is no environment type {spec.env_type!r}; {hint}")


def kept_episodes(cfg: Config) -> int:
    """Number of episodes per step that remain after filtering if every group has reward variance.
    If the number of kept groups is not known in advance, as with the filters top_p and min_p, all
    groups are counted."""
    train = cfg.es_manager.train
    rollout = cfg.actor_rollout_ref.rollout
    if (
        rollout.rollout_filter_type in ("std", "std_rev", "top_k")
        and rollout.rollout_filter_ratio < 1
    ):
        # Rounded as in `spa.algo.filters`: at least one group.
        return max(1, int(rollout.rollout_filter_ratio * train.env_groups)) * train.group_size
    if rollout.rollout_filter_type == "top_k_abs":
        return min(int(rollout.rollout_filter_ratio), train.env_groups) * train.group_size
    return train.env_groups * train.group_size


def _check_batches(cfg: Config, problems: Problems) -> None:
    rollout = cfg.actor_rollout_ref.rollout
    if cfg.es_manager.train.group_size == 1 and not rollout.rollout_filter_include_zero:
        problems.add(
            "es_manager.train.group_size",
            "a group of one episode has no reward variance, so no group would be trained on; use 2 or "
            "more, or set actor_rollout_ref.rollout.rollout_filter_include_zero=true",
        )
    actor = cfg.actor_rollout_ref.actor
    critic = cfg.critic
    kept = kept_episodes(cfg)
    train = cfg.es_manager.train
    ratio = cfg.actor_rollout_ref.rollout.rollout_filter_ratio
    story = f"{train.env_groups} groups x {train.group_size} episodes x filter ratio {ratio:g}"
    # `ppo_num_mini_batches` replaces both `ppo_mini_batch_size` keys, so the checks below do not
    # apply.
    if actor.ppo_num_mini_batches is not None:
        if actor.ppo_num_mini_batches > kept:
            problems.add(
                "actor_rollout_ref.actor.ppo_num_mini_batches",
                f"{actor.ppo_num_mini_batches} mini-batches are more than the {kept} episodes that a step "
                f"keeps ({story}); use at most {kept}",
            )
        return
    for path, section in (("actor_rollout_ref.actor", actor), ("critic", critic)):
        mini = section.ppo_mini_batch_size
        micro = section.ppo_micro_batch_size_per_gpu
        # Without history, a mini-batch consists of turns, of which an episode may have many.
        if mini > kept and cfg.ctx_manager.history:
            problems.add(
                f"{path}.ppo_mini_batch_size",
                f"a mini-batch of {mini} episodes is larger than a step, which keeps {kept} episodes "
                f"({story}); use at most {kept}, or play more episodes",
            )
        # Each rank gets a share of the mini-batch, and a micro-batch larger than this share would
        # never be full.
        if section.use_dynamic_bsz is not True and micro * cfg.trainer.n_gpus_per_node > mini:
            problems.add(
                f"{path}.ppo_micro_batch_size_per_gpu",
                f"micro-batches of {micro} episodes on {cfg.trainer.n_gpus_per_node} process(es) exceed the "
                f"mini-batch of {mini} episodes; lower the micro-batch size",
            )


def _check_sft(cfg: Config, problems: Problems) -> None:
    data = cfg.sft.data
    _check_loss_on("sft.data.loss_on", data.loss_on, problems)
    if data.micro_batch_size_per_gpu > data.train_batch_size:
        problems.add(
            "sft.data.micro_batch_size_per_gpu",
            f"must be at most sft.data.train_batch_size ({data.train_batch_size}), got "
            f"{data.micro_batch_size_per_gpu}",
        )
    if data.val_files is not None and data.train_files is None:
        problems.add("sft.data.train_files", "must name files, because sft.data.val_files does")


def _check_loss_on(path: str, name: str, problems: Problems) -> None:
    if name not in LOSS_ON and ":" not in name:
        known = (*LOSS_ON, *defined_by_methods("sft_mask"))
        if name not in known:
            problems.add(
                path,
                f"must be one of {', '.join(known)} or an import path package.module:name, got {name!r}; "
                f"{nearest(name, known)}",
            )


def _check_algorithm(cfg: Config, problems: Problems) -> None:
    algorithm = cfg.algorithm
    actor = cfg.actor_rollout_ref.actor
    name = algorithm.adv_estimator
    # A name with a colon is an import path, which is imported only where it is used.
    if name not in ESTIMATORS and ":" not in name:
        problems.add(
            "algorithm.adv_estimator",
            f"must be one of {', '.join(ESTIMATORS)} or an import path package.module:name, got {name!r}",
        )
    if name in GROUP_ESTIMATORS and cfg.es_manager.train.group_size == 1:
        problems.add(
            "es_manager.train.group_size",
            f"{name} compares the episodes of a group, so a group needs at least 2 episodes, got 1",
        )
    if cfg.trainer.critic_warmup and name in ESTIMATORS and name not in CRITIC_ESTIMATORS:
        problems.add(
            "trainer.critic_warmup",
            f"must be 0 with adv_estimator={name}, which has no critic: the policy would not be trained "
            f"for {cfg.trainer.critic_warmup} steps",
        )
    if not cfg.ctx_manager.history:
        _check_single_turns(cfg, problems)
    if name in TURN_ESTIMATORS and actor.loss_mask == "all_after_system":
        problems.add(
            "actor_rollout_ref.actor.loss_mask",
            f"cannot be all_after_system with adv_estimator={name}, because the first tokens of this mask "
            "belong to no turn; use another mask",
        )
    if actor.policy_loss not in POLICY_LOSSES and ":" not in actor.policy_loss:
        problems.add(
            "actor_rollout_ref.actor.policy_loss",
            f"must be {', '.join(POLICY_LOSSES)} or an import path package.module:name, got "
            f"{actor.policy_loss!r}",
        )
    if actor.replay.loss_on is not None:
        _check_loss_on("actor_rollout_ref.actor.replay.loss_on", actor.replay.loss_on, problems)
    sampled = cfg.actor_rollout_ref.rollout
    for key, wanted in (
        ("world_loss", actor.world_loss.tokens != "none"),
        ("replay", actor.replay.examples > 0),
    ):
        if wanted and (sampled.top_p < 1 or sampled.top_k > 0 or sampled.temperature != 1):
            problems.add(
                f"actor_rollout_ref.actor.{key}",
                "losses on states need rollouts with temperature=1, top_p=1 and top_k=-1, because log-probs "
                "follow these settings, and other values can give a token of a state probability 0",
            )
    if actor.world_loss.tokens == "correct_predictions" and actor.world_loss.turns < 1:
        problems.add(
            "actor_rollout_ref.actor.world_loss.turns",
            "must be 1 with world_loss.tokens=correct_predictions: a smaller share selects the states that "
            f"follow uncertain answers, got {actor.world_loss.turns:g}",
        )
    if algorithm.use_kl_in_reward and not actor.use_ref:
        problems.add(
            "actor_rollout_ref.actor.use_ref",
            "must be true, because a KL term needs the reference model",
        )


def _check_single_turns(cfg: Config, problems: Problems) -> None:
    """Validate settings for `ctx_manager.history=false`, where every turn is a training
    sequence."""
    algorithm = cfg.algorithm
    if algorithm.adv_estimator in GROUP_ESTIMATORS:
        problems.add(
            "algorithm.adv_estimator",
            f"{algorithm.adv_estimator} needs ctx_manager.history=true: without it, an episode would be "
            "compared with its own turns; use gae or reinforce_plus_plus",
        )
    if algorithm.gamma != 1:
        problems.add(
            "algorithm.gamma",
            f"must be 1 with ctx_manager.history=false, which does not discount between turns, got "
            f"{algorithm.gamma:g}",
        )
    if algorithm.bootstrap_truncated:
        problems.add(
            "algorithm.bootstrap_truncated",
            "must be false with ctx_manager.history=false, which passes no value from turn to turn",
        )
    if cfg.actor_rollout_ref.actor.loss_mask == "all_after_system":
        problems.add(
            "actor_rollout_ref.actor.loss_mask",
            "all_after_system needs ctx_manager.history=true: without it, every turn has a system message",
        )
    if cfg.actor_rollout_ref.actor.world_loss.tokens == "env_observations":
        problems.add(
            "actor_rollout_ref.actor.world_loss.tokens",
            "env_observations needs ctx_manager.history=true: without it, no state follows from what the "
            "model reads",
        )


def _check_trackers(cfg: Config, problems: Problems) -> None:
    for name in cfg.trainer.logger:
        if name not in trackers():
            problems.add(
                "trainer.logger",
                f"must be a list of {', '.join(trackers())}, got {name!r}; {nearest(name, trackers())}",
            )


def _check_engine(cfg: Config, problems: Problems) -> None:
    rollout = cfg.actor_rollout_ref.rollout
    engines = (*ENGINES, *plugins("engines"))
    if rollout.name not in engines and ":" not in rollout.name:
        problems.add(
            "actor_rollout_ref.rollout.name",
            f"must be one of {', '.join(engines)} or an import path package.module:name, got "
            f"{rollout.name!r}; {nearest(rollout.name, engines)}",
        )
    if cfg.model_info and cfg.model_config.model_name not in cfg.model_info:
        problems.add(
            "model_config.model_name",
            f"there is no model {cfg.model_config.model_name!r} in model_info; use one of "
            f"{', '.join(cfg.model_info)}",
        )
