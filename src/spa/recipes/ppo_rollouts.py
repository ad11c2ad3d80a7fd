"""Rollouts for PPO: play episodes, turn them into a batch, and validate on held-out puzzles."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from spa.algo.reward_normalization import normalize_rewards, normalize_scores
from spa.config.schema import Config
from spa.envs.pool import EpisodeSpec
from spa.evaluation.episode_metrics import rollout_metrics
from spa.methods.context import Context, Replayed, annotate_all, stored_sequences
from spa.prompts.template import ChatTemplate
from spa.recipes import setup
from spa.recipes.ppo_batch import last_turn_ends, scoring
from spa.recipes.ppo_models import Models, named_estimator
from spa.run.stage import Stage
from spa.training.batch import batch_episodes, is_trainable
from spa.training.loss_masks import loss_masks
from spa.training.update import score_entropies
from spa.types import Engine, Episode, EpisodeBatch, Metrics, PPOBatch
from spa.worldmodel.accuracy import with_world_model_reward


def validation_episodes(cfg: Config, worker: setup.RolloutWorker, engine: Engine) -> list[Episode]:
    """Play the validation groups, in `validation_steps` passes with different puzzles.

    Puzzles and seeds are the same in every call, so that validations of one run can be compared.
    """
    episodes = []
    groups = sum(cfg.es_manager.val.env_configs.n_groups or ())
    for part in range(cfg.trainer.validation_steps):
        specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=cfg.seed.val, step=part)
        # Each pass gets its own group numbers, so that no two groups share a number.
        shifted = [setup.shift_group(spec, part * groups) for spec in specs]
        for chunk in _parallel_parts(cfg, shifted):
            episodes += worker.rollout(engine, chunk, setup.val_sampling(cfg))
    return episodes


def _parallel_parts(cfg: Config, specs: list[EpisodeSpec]) -> Iterator[list[EpisodeSpec]]:
    """Yield the episodes in parts, each of which is played in parallel.

    On a GPU, a part consists of whole groups. It has no more episodes than a training step (but at
    least one group), so that the KV caches fit into memory. On a CPU, or if a game has several
    players, all episodes are one part.
    """
    size = len(specs)
    if setup.pick_device(cfg).type == "cuda" and not any(spec.table for spec in specs):
        train, samples = cfg.es_manager.train, cfg.es_manager.val.group_size
        size = max(1, train.env_groups * train.group_size // samples) * samples
    for start in range(0, len(specs), size):
        yield specs[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameRollouts:
    """Rollouts in the configured environments, for the PPO loop (`spa.recipes.ppo.Rollouts`).

    `held_out` has the content hashes of the validation puzzles, and `stored` the examples of stage
    2 that can be replayed.
    """

    cfg: Config
    stage: Stage
    models: Models
    template: ChatTemplate
    worker: setup.RolloutWorker
    held_out: frozenset[str]
    stored: Sequence[Replayed]

    def play(self, step: int) -> list[Episode]:
        """Play the episodes of a step with the policy."""
        specs = setup.training_specs(
            self.cfg, self.worker, "train", step=step - 1, held_out=self.held_out
        )
        return self.worker.rollout(self.models.engine, specs, self.models.sampling)

    def metrics(self, episodes: Sequence[Episode]) -> Metrics:
        """Compute rollout metrics, as `train/<tag>/<name>`."""
        return rollout_metrics(episodes, self.worker.make_env, "train")

    def batch(self, episodes: Sequence[Episode]) -> EpisodeBatch | None:
        """Return the episodes as tensors with normalized rewards; None if all of them failed."""
        return make_batch(self.cfg, episodes, self.template)

    def annotate(
        self, batch: PPOBatch, episodes: Sequence[Episode], step: int, metrics: Metrics
    ) -> PPOBatch:
        """Add the weights and replayed examples of the configured methods to the batch."""
        context = method_context(
            self.cfg, self.models, self.template, step, metrics, stored=self.stored
        )
        return annotate_all(batch, episodes, context)

    def validate(self, step: int) -> Metrics:
        """Play and record the validation puzzles; return metrics as `val-env/<tag>/<name>`."""
        episodes = validation_episodes(self.cfg, self.worker, self.models.engine)
        self.stage.recorder.trajectories(step, "val", episodes)
        return rollout_metrics(episodes, self.worker.make_env, "val-env")


def make_rollouts(
    cfg: Config, stage: Stage, models: Models, template: ChatTemplate
) -> GameRollouts:
    """Build the rollouts of a stage, with the environments of training and validation."""
    stored = stored_sequences(cfg, template)
    worker = setup.make_worker(
        cfg, template, mode=cfg.ctx_manager.mode, lost=stage.lost_episodes, own_rewards=True
    )
    return GameRollouts(
        cfg=cfg,
        stage=stage,
        models=models,
        template=template,
        worker=worker,
        # Training skips the validation puzzles, except in games that have too few puzzles. Contents
        # are compared, since two seeds can make the same board.
        held_out=setup.validation_hashes(cfg, worker),
        stored=stored,
    )


def make_batch(
    cfg: Config, episodes: Sequence[Episode], template: ChatTemplate | None = None
) -> EpisodeBatch | None:
    """Make a batch of the episodes that ended without an error, with normalized rewards. Return
    None if there are none.

    `batch.episodes` contains the index of each row's episode in `episodes`. The template is needed
    for images, and for loss masks other than the sampled tokens.
    """
    # Indices among all episodes of the step. They identify a row's episode after rows are filtered
    # and split.
    numbers = [number for number, episode in enumerate(episodes) if is_trainable(episode)]
    if not numbers:
        return None
    proxy = cfg.agent_proxy
    online = proxy.world_model_reward
    good = [episodes[number] for number in numbers]
    # Any valid id works as padding: it follows the real tokens, which do not attend to it.
    batch = batch_episodes(
        with_world_model_reward(
            good, observation=online.observation, prediction=online.prediction, within=online.within
        ),
        tags=cfg.es_manager.train.env_configs.tags,
        pad_id=0 if template is None else template.tokenizer.pad_token_id or 0,
        turn_scores=proxy.use_turn_scores,
        mask_of=loss_masks(good, cfg.actor_rollout_ref.actor.loss_mask, template),
        reader=None if template is None else template.images,
    )
    return normalized(cfg, replace(batch, episodes=torch.tensor(numbers)))


def normalized(cfg: Config, batch: EpisodeBatch) -> EpisodeBatch:
    """Normalize the rewards of a batch, so that the return of an episode under the estimator's
    discounts is its normalized score."""
    proxy = cfg.agent_proxy
    norm = cfg.agent_proxy.reward_normalization
    if norm.method == "identity":
        return batch
    estimator = named_estimator(cfg)
    settings = estimator.settings_from(cfg.algorithm)
    # Without history, each turn becomes a row of its own, and its reward is not discounted.
    within_turn, between_turns = (
        estimator.discounts(settings) if cfg.ctx_manager.history else (1.0, 1.0)
    )
    # Normalization divides all rewards by the standard deviation. Subtracting the mean and clamping
    # also shift an episode's return by a constant. The shift is applied to the reward of the last
    # sampled token and, with a discount, partly to the rewards of earlier sampled tokens.
    last = last_turn_ends(batch)
    given = (batch.scores, batch.group_ids, batch.tag_ids)
    # With one reward at the end and no discount, the return from every token is the normalized
    # score itself.
    if not proxy.use_turn_scores and within_turn == between_turns == 1 and not estimator.centres:
        scores = normalize_scores(*given, grouping=norm.grouping, method=norm.method)
        return replace(batch, rewards=torch.where(last, scores[:, None], 0.0))
    # [B, A]: the discount between the returns of a token and of the next one. It is 1 for text of
    # the environment, so that only sampled tokens are discounted.
    step_discount = torch.where(
        batch.mask, torch.where(batch.turn_ends, between_turns, within_turn), 1.0
    )
    path_discount = None
    if settings.get("bi_level_gae"):
        # Bi-level GAE passes a turn's return directly to the end of the turn before it, without
        # discounts for the tokens of the turn.
        path_discount = torch.where((batch.turns > 0) & ~batch.turn_ends, 1.0, step_discount)
    rewards = normalize_rewards(
        batch.rewards,
        last,
        *given,
        grouping=norm.grouping,
        method=norm.method,
        step_discount=None if within_turn == between_turns == 1 else step_discount,
        path_discount=path_discount,
        centre=not estimator.centres,
    )
    return replace(batch, rewards=rewards)


def method_context(
    cfg: Config,
    models: Models,
    template: ChatTemplate,
    step: int,
    metrics: Metrics,
    *,
    stored: Sequence[Replayed] = (),
) -> Context:
    """Build the context that methods receive at a step. `stored` has the examples of stage 2 that
    methods may sample from."""
    return Context(
        cfg=cfg,
        step=step,
        template=template,
        entropies=lambda batch: score_entropies(
            models.actor, batch, scoring(cfg), models.device, models.sampling
        ),
        state_values=partial(state_values, cfg),
        stored=stored,
        metrics=metrics,
    )


def state_values(cfg: Config, tag: str, texts: Collection[str]) -> dict[str, float]:
    """Return the value of each state in `texts` according to the environment of `tag`, by state
    text. A state without a value gets 0."""
    # Values are read from the text alone, so any puzzle of the tag will do.
    with setup.first_puzzle(cfg, cfg.custom_envs[tag]) as env:
        return {text: env.state_value(text) or 0.0 for text in sorted(texts)}
