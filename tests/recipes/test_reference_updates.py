"""Whole updates beside verl: the same batches through our estimators, losses, clipping and schedule give the parameters
that verl's actor and critic gave (tests/golden/verl_updates.json, written by benchmarks/parity/verl_updates.py)."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers.batches import plain_streams
from helpers.golden import read_golden
from helpers.reference_updates import (
    BETAS,
    CASES,
    CRITIC_CASES,
    PROMPT,
    ROWS,
    STEPS,
    WEIGHT_DECAY,
    Case,
    CriticCase,
    Frozen,
    change,
    frozen,
    our_critic,
    reference_model,
    weights,
)

from spa.algo.estimators import ESTIMATORS
from spa.algo.losses import kl_in_reward
from spa.algo.masked import whiten
from spa.config.schema import ActorConfig, CriticConfig
from spa.models.forward import pack_rows
from spa.recipes.ppo_losses import ActorLoss, CriticLoss
from spa.training.optim import make_optimizer, warmup_constant, warmup_cosine
from spa.training.update import (
    LossFn,
    MicroBatching,
    Scorer,
    Trainable,
    mini_batch,
    score_logprobs,
    score_values,
    update,
)
from spa.types import EpisodeBatch, Metrics, PPOBatch, ScoredBatch

GOLDEN = read_golden("verl_updates.json")
CPU = torch.device("cpu")


def aligned(values: np.ndarray, fill: float = 0) -> torch.Tensor:
    """Response-aligned [ROWS, RESPONSE] as prediction-aligned [ROWS, A]: the prompt's predictions come first."""
    front = np.full((ROWS, PROMPT - 1), fill, dtype=values.dtype)
    return torch.from_numpy(np.concatenate([front, values], axis=1))


def episodes(data: Frozen) -> EpisodeBatch:
    mask, rewards = aligned(data.mask), aligned(data.rewards)
    turn = aligned(np.broadcast_to(np.arange(data.mask.shape[1]) // 6, data.mask.shape).copy())
    following = torch.cat([mask[:, 1:], torch.zeros(ROWS, 1, dtype=torch.bool)], dim=1)
    return EpisodeBatch(
        input_ids=torch.from_numpy(data.ids),
        lengths=torch.from_numpy(data.lengths),
        mask=mask,
        turns=torch.where(mask, turn, -1),
        turn_ends=mask & ~following,
        rewards=rewards,
        scores=rewards.sum(dim=1),
        group_ids=torch.from_numpy(data.groups),
        tag_ids=torch.zeros(ROWS, dtype=torch.int64),
        sampler_logprobs=torch.zeros(mask.shape),
        **plain_streams(mask),
    )


def scored(case: Case, model, data: Frozen) -> ScoredBatch:
    batch = episodes(data)
    own = score_logprobs(Scorer(model=model), batch, MicroBatching(), CPU)
    noise = [aligned(noise) for noise in data.noise[:2]]
    old = own if case.on_policy else torch.where(batch.mask, own + noise[0], 0.0)
    reference = torch.where(batch.mask, own + noise[1], 0.0)
    return ScoredBatch(
        **vars(batch), old_logprobs=old, ref_logprobs=reference, values=aligned(data.values)
    )


def gae_settings(case: Case | CriticCase) -> dict[str, float]:
    return {"gamma": case.gamma, "lam": case.lam, "bi_level_gae": False, "high_level_gamma": 1.0}


def ready(case: Case, batch: ScoredBatch) -> PPOBatch:
    rewards = batch.rewards
    if case.kl_in_reward:
        assert batch.ref_logprobs is not None
        rewards, _ = kl_in_reward(
            rewards,
            batch.old_logprobs,
            batch.ref_logprobs,
            batch.mask,
            coef=case.kl_in_reward,
            kind="kl",
        )
    name = "gae" if case.estimator == "gae" else "grpo"
    settings = gae_settings(case) | {"norm_adv_by_std_in_grpo": case.estimator == "grpo"}
    estimator = ESTIMATORS[name]
    advantages, returns = estimator.estimate(batch, rewards, settings)
    if estimator.whitened:
        advantages = whiten(advantages, batch.mask)
    return PPOBatch(**vars(batch), advantages=advantages, returns=returns)


def trainable(case: Case | CriticCase, model) -> Trainable:
    schedule = warmup_cosine(STEPS, 0, floor=0.1) if case.cosine else warmup_constant(case.warmup)
    optimizer = make_optimizer(
        model, lr=case.lr, betas=BETAS, weight_decay=WEIGHT_DECAY, schedule=schedule
    )
    return Trainable(model=model, optimizer=optimizer, grad_clip=1.0)


def updated(
    case: Case | CriticCase, part: Trainable, batch: PPOBatch, loss: LossFn, step: int
) -> Metrics:
    # During warm-up verl is one step behind: its first step has rate 0.
    part.optimizer.at(step - 1 if step < case.warmup else step)
    mode: Any = case.loss_agg_mode
    rows = torch.arange(ROWS).split(case.mini)
    minis = [mini_batch(batch, picked, mode, horizon=1) for picked in list(rows) * case.epochs]
    # verl reads a mini-batch at once: the cut must not matter
    return update(part, minis, loss, MicroBatching(rows=3), CPU)


@pytest.mark.parametrize("name", CASES)
def test_whole_updates_are_those_of_verl(name: str):
    case, expected = CASES[name], GOLDEN["cases"][name]
    model = reference_model()
    part = trainable(case, model)
    cfg = ActorConfig(
        loss_agg_mode=case.loss_agg_mode,  # pyright: ignore[reportArgumentType]
        entropy_coeff=case.entropy_coeff,
        use_kl_loss=case.kl_loss_coef > 0,
        kl_loss_coef=case.kl_loss_coef,
        kl_loss_type=case.kl_loss_type,  # pyright: ignore[reportArgumentType]
        clip_ratio_low=case.clip[0],
        clip_ratio_high=case.clip[1],
        clip_ratio_c=case.clip[2],
    )
    for step in range(STEPS):
        batch = ready(case, scored(case, model, frozen(step)))
        before = weights(model)
        metrics = updated(case, part, batch, ActorLoss(cfg), step)
        wanted = expected[step]
        assert part.optimizer.lr == pytest.approx(wanted["lr"], rel=1e-7)
        ours = batch.advantages[:, PROMPT - 1 :].flatten()
        kept = batch.mask[:, PROMPT - 1 :].flatten()[:20]
        assert ours[:20][kept].tolist() == pytest.approx(
            np.asarray(wanted["advantages"])[kept].tolist(), abs=1e-5
        )
        assert metrics["grad_norm"] == pytest.approx(np.mean(wanted["grad_norm"]), rel=1e-4)
        for parameter, numbers in change(model, before).items():
            assert numbers == pytest.approx(wanted["change"][parameter], rel=2e-3, abs=2e-5), (
                step,
                parameter,
            )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", CRITIC_CASES)
def test_whole_critic_updates_are_those_of_verl(name: str, packed: bool):
    case, expected = CRITIC_CASES[name], GOLDEN["cases"][name]
    critic = our_critic()
    if packed:
        assert pack_rows(critic)
    part = trainable(case, critic)
    cfg = CriticConfig(cliprange_value=case.clip)
    for step in range(STEPS):
        data, wanted = frozen(step), expected[step]
        batch = episodes(data)
        own = score_values(part, batch, MicroBatching(rows=3), CPU)
        values = torch.where(batch.mask, own + aligned(data.noise[2]), 0.0)
        known = {
            **vars(batch),
            "old_logprobs": torch.zeros_like(values),
            "ref_logprobs": None,
            "values": values,
        }
        advantages, returns = ESTIMATORS["gae"].estimate(
            ScoredBatch(**known), batch.rewards, gae_settings(case)
        )
        before = weights(critic)
        ready = PPOBatch(**known, advantages=advantages, returns=returns)
        metrics = updated(case, part, ready, CriticLoss(cfg), step)
        assert part.optimizer.lr == pytest.approx(wanted["lr"], rel=1e-7)
        kept = batch.mask[:, PROMPT - 1 :].flatten()[:20]
        for mine, theirs in ((values, wanted["values"]), (returns, wanted["returns"])):
            found = mine[:, PROMPT - 1 :].flatten()[:20][kept].tolist()
            assert found == pytest.approx(np.asarray(theirs)[kept].tolist(), rel=1e-4, abs=1e-5)
        assert metrics["loss"] == pytest.approx(wanted["loss"], rel=2e-6)
        assert metrics["grad_norm"] == pytest.approx(np.mean(wanted["grad_norm"]), rel=1e-4)
        for parameter, numbers in change(critic, before).items():
            theirs = parameter.replace("body.", "model.").replace("value_head.", "score.")
            assert numbers == pytest.approx(wanted["change"][theirs], rel=2e-3, abs=2e-5), (
                step,
                parameter,
            )
