"""Shared set-up of all recipes: rollout workers, episode specs, held-out puzzles and sampling
parameters."""

import logging
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from spa.config.schema import Config, GroupsConfig
from spa.custom_rewards import load_rewards
from spa.distributed.world import current_world
from spa.envs.eval_sets import eval_set_hashes
from spa.envs.limits import LostEpisodes
from spa.envs.pool import EpisodeSpec, group_specs
from spa.envs.workers import EnvWorkers
from spa.errors import ConfigError
from spa.models.build import (
    engine_autocast,
    is_tiny,
    load_actor,
    make_trainable,
    pick_attention,
    pick_autocast,
    pick_device,
)
from spa.plugins import example_source
from spa.prompts.render import PromptMode
from spa.prompts.template import ChatTemplate
from spa.recipes.prompters import (
    check_puzzles,
    first_puzzle,
    make_prompter,
    require_state_value,
)
from spa.rollout.worker import RolloutWorker, first_group
from spa.seeds import stream_seed
from spa.types import SamplingParams

__all__ = [
    "RolloutWorker",
    "check_puzzles",
    "engine_autocast",
    "episode_specs",
    "first_puzzle",
    "is_tiny",
    "load_actor",
    "make_prompter",
    "make_trainable",
    "make_worker",
    "pick_attention",
    "pick_autocast",
    "pick_device",
    "probe_specs",
    "require_state_value",
    "selfplay_sampling",
    "shift_group",
    "taught_mode",
    "train_sampling",
    "val_sampling",
    "validation_hashes",
]

log = logging.getLogger(__name__)

# If this many consecutive samples are held-out puzzles, the game has too few puzzles for its
# validation set.
MAX_REDRAWS = 100
# A game has enough puzzles for training if at least FRESH of FRESH_OF sampled ones are not held
# out.
FRESH = 8
FRESH_OF = 32


def make_worker(
    cfg: Config,
    template: ChatTemplate | None,
    *,
    mode: PromptMode,
    lost: Path | None = None,
    own_rewards: bool = False,
) -> RolloutWorker:
    """Build the worker that plays all tags of training and validation.

    The file `lost` records failed episodes, which are not played again. With `own_rewards`,
    episodes get the rewards of `custom_envs.TAG.reward`, as in PPO and evaluation.
    """
    # A dictionary keeps the order of the tags. The order of a set would differ between processes.
    tags = dict.fromkeys(
        (*cfg.es_manager.train.env_configs.tags, *cfg.es_manager.val.env_configs.tags)
    )
    specs = {tag: cfg.custom_envs[tag] for tag in tags}
    timeout = cfg.es_manager.env_timeout_s
    workers = cfg.es_manager.env_workers
    return RolloutWorker(
        specs=specs,
        prompters={tag: make_prompter(cfg, spec, mode) for tag, spec in specs.items()},
        template=template,
        format_penalty=cfg.es_manager.format_penalty,
        max_model_len=cfg.actor_rollout_ref.rollout.max_model_len,
        world=current_world(),
        env_timeout_s=timeout,
        workers=EnvWorkers(workers, timeout_s=timeout) if workers else None,
        lost=LostEpisodes(lost),
        rewards={
            tag: load_rewards(f"custom_envs.{tag}.reward", spec.reward)
            for tag, spec in specs.items()
        }
        if own_rewards
        else {},
    )


def taught_mode(cfg: Config) -> PromptMode:
    """The prompt mode of the examples that stage 1 makes and stage 2 trains on."""
    return example_source(cfg).mode


def episode_specs(
    groups: GroupsConfig,
    purpose: str,
    *,
    base_seed: int,
    step: int,
    self_play: Collection[str] = (),
) -> list[EpisodeSpec]:
    """Return the specs of all episodes of one step of training, self-play or validation
    (`purpose`). In the tags of `self_play` the policy plays against itself."""
    configs = groups.env_configs
    counts = configs.n_groups or ()
    return group_specs(
        purpose,
        base_seed=base_seed,
        step=step,
        tags=configs.tags,
        n_groups=counts,
        group_size=groups.group_size,
        self_play=self_play,
    )


def training_specs(
    cfg: Config, worker: RolloutWorker, purpose: str, *, step: int, held_out: frozenset[str]
) -> list[EpisodeSpec]:
    """Return the specs of all episodes of one training or self-play step, without held-out puzzles.

    Only in these steps can the policy play against itself (`custom_envs.TAG.self_play`). In
    validation it does not, because such games would not measure how well it plays. Raises
    ConfigError if a game has too few puzzles that are not held out.
    """
    both = {tag for tag, spec in cfg.custom_envs.items() if spec.self_play}
    groups = selfplay_groups(cfg) if purpose == "selfplay" else cfg.es_manager.train
    specs = episode_specs(groups, purpose, base_seed=cfg.seed.train, step=step, self_play=both)
    # All episodes of a group and all players of one game have the same puzzle, so it is checked
    # only once.
    firsts = [spec for spec in specs if spec.member == 0 and first_group(spec) == spec.group]
    # Making puzzles is slow in some games, so the ranks share the work.
    allowed = worker.world.parallel_map(
        firsts, lambda mine: [_allowed_seed(worker, spec, held_out) for spec in mine]
    )
    seeds = {spec.group: seed for spec, seed in zip(firsts, allowed, strict=True)}
    return [replace(spec, puzzle_seed=seeds[first_group(spec)]) for spec in specs]


def selfplay_groups(cfg: Config) -> GroupsConfig:
    """Return the groups of a self-play batch, which has as many episodes as a training step. A
    smaller `generate.group_size` distributes them over more puzzles."""
    train = cfg.es_manager.train
    size = cfg.generate.group_size or train.group_size
    counts = tuple(count * train.group_size // size for count in train.env_configs.n_groups or ())
    configs = replace(train.env_configs, n_groups=counts)
    return GroupsConfig(env_groups=sum(counts), group_size=size, env_configs=configs)


def _allowed_seed(worker: RolloutWorker, spec: EpisodeSpec, held_out: frozenset[str]) -> int:
    if (sampled := _sample_puzzle(worker, spec, held_out)) is not None:
        return sampled[0]
    raise ConfigError(
        f"{spec.tag}: {MAX_REDRAWS} consecutive sampled puzzles were validation puzzles, "
        "because the game has too few puzzles. Lower es_manager.val.env_groups, or set "
        "finite_puzzles in the environment."
    )


def _sample_puzzle(
    worker: RolloutWorker, spec: EpisodeSpec, held_out: frozenset[str]
) -> tuple[int, str] | None:
    """Sample puzzles until one is not held out; return its seed and content hash, or None after
    `MAX_REDRAWS` samples. If the set of puzzles is finite, or if no puzzle can be made (hash ""),
    the first sample is returned."""
    seed = spec.puzzle_seed
    for attempt in range(MAX_REDRAWS):
        look = worker.peek_reset(replace(spec, puzzle_seed=seed))
        # If the puzzle cannot be made, its seed is kept, and its episode reports the reason.
        if look is None or look.finite or look.hash not in held_out:
            return seed, look.hash if look else ""
        # The next seed is derived from the first, so it is the same on every rank and after resuming.
        seed = stream_seed(spec.puzzle_seed, "redraw", attempt) % 2**31
    return None


def most_actions(cfg: Config) -> int:
    """Maximum number of actions in an episode, over all tags of training and validation."""
    tags = (*cfg.es_manager.train.env_configs.tags, *cfg.es_manager.val.env_configs.tags)
    return max(cfg.most_actions(tag) for tag in tags)


def probe_specs(
    cfg: Config, worker: RolloutWorker, trained: frozenset[str]
) -> tuple[list[EpisodeSpec], int]:
    """Return the specs of the `sft.trainer.eval_episodes` episodes that measure a model during SFT,
    and the number of their puzzles that are in `trained`.

    Each episode has its own puzzle. The puzzles are neither in `trained` nor used for validation,
    unless the game has too few.
    """
    count = cfg.sft.trainer.eval_episodes
    configs = cfg.es_manager.train.env_configs
    base, extra = divmod(count, len(configs.tags))
    specs = group_specs(
        "probe",
        base_seed=stream_seed(cfg.seed.train, "probe") % 2**31,
        step=0,
        tags=configs.tags,
        n_groups=[base + (index < extra) for index in range(len(configs.tags))],
        group_size=1,
    )
    held_out = trained | validation_hashes(cfg, worker)
    sampled = worker.world.parallel_map(
        specs, lambda mine: [_sample_puzzle(worker, spec, held_out) for spec in mine]
    )
    seen = sum(puzzle is None or puzzle[1] in trained for puzzle in sampled)
    return [
        replace(s, puzzle_seed=puzzle[0]) if puzzle else s
        for s, puzzle in zip(specs, sampled, strict=True)
    ], seen


def validation_hashes(cfg: Config, worker: RolloutWorker) -> frozenset[str]:
    """Return the content hashes of all puzzles that training must not use, which are the validation
    puzzles and all evaluation sets.

    The result does not include the validation puzzles of environments with a small finite set of
    puzzles, since training and validation share them. The same applies, with a warning, if sampling
    shows that a game has too few puzzles.
    """
    hashes: dict[str, set[str]] = {}
    for part in range(cfg.trainer.validation_steps):
        for spec in episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=part):
            # All episodes of a group play the same puzzle.
            look = worker.peek_reset(spec) if spec.member == 0 else None
            if look is not None and not look.finite:
                hashes.setdefault(spec.tag, set()).add(look.hash)
    # The list is made first, because the loop removes tags from `hashes`.
    for tag in [
        tag for tag, contents in hashes.items() if not leaves_puzzles(cfg, worker, tag, contents)
    ]:
        log.warning(
            "%s: the %d validation puzzles leave too few puzzles for training, so PPO also "
            "trains on validation puzzles. Validation then does not measure unseen puzzles. "
            "If the game has more puzzles, lower es_manager.val.env_groups.",
            tag,
            len(hashes.pop(tag)),
        )
    return eval_set_hashes().union(*hashes.values())


def leaves_puzzles(cfg: Config, worker: RolloutWorker, tag: str, held_out: set[str]) -> bool:
    """Return whether enough puzzles are left for training: of `FRESH_OF` sampled puzzles, at least
    `FRESH` are not held out."""
    if tag not in cfg.es_manager.train.env_configs.tags:
        return True
    base = stream_seed(cfg.seed.train, "fresh") % 2**31
    fresh = 0
    for spec in group_specs(
        "fresh", base_seed=base, step=0, tags=[tag], n_groups=[FRESH_OF], group_size=1
    ):
        look = worker.peek_reset(spec)
        # A puzzle that cannot be made is not held out.
        fresh += look is None or look.hash not in held_out
        if fresh >= FRESH:
            return True
    return False


def shift_group(spec: EpisodeSpec, by: int) -> EpisodeSpec:
    """Return the spec with `by` added to its group number, so that several passes can be
    combined."""
    return replace(spec, group=spec.group + by)


def train_sampling(cfg: Config) -> SamplingParams:
    """Sampling parameters for training rollouts."""
    rollout = cfg.actor_rollout_ref.rollout
    return SamplingParams(
        temperature=rollout.temperature if rollout.do_sample else 0.0,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=rollout.response_length,
    )


def val_sampling(cfg: Config) -> SamplingParams:
    """Sampling parameters for validation."""
    rollout = cfg.actor_rollout_ref.rollout
    val = rollout.val_kwargs
    return SamplingParams(
        temperature=val.temperature if val.do_sample else 0.0,
        top_p=val.top_p,
        top_k=val.top_k,
        max_tokens=rollout.response_length,
    )


def selfplay_sampling(cfg: Config) -> SamplingParams:
    """Sampling parameters for self-play."""
    own = cfg.generate.sampling
    return SamplingParams(
        temperature=own.temperature,
        top_p=own.top_p,
        top_k=own.top_k,
        max_tokens=own.response_length,
    )
