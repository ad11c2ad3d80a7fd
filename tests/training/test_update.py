"""Scoring and updating: how a batch is cut into micro-batches, and how far it is padded, changes nothing."""

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.families import small_model, template
from helpers.play import NoiseEngine, groups, play

from spa.config.schema import ActorConfig, CriticConfig
from spa.engines.local import LocalEngine
from spa.errors import TrainingError
from spa.models.forward import Critic
from spa.recipes.ppo_losses import ActorLoss, CriticLoss
from spa.training.batch import batch_episodes
from spa.training.optim import Optimizer, make_optimizer
from spa.training.update import (
    MAX_BAD_STEPS,
    MicroBatching,
    Scorer,
    Trainable,
    _step_metrics,
    count_mini_batches,
    mini_batch,
    plan_mini_batches,
    score_last_values,
    score_logprobs,
    score_values,
    update,
)
from spa.types import EpisodeBatch, MiniBatch, PPOBatch

CPU = torch.device("cpu")
CUTS = [MicroBatching(rows=1), MicroBatching(rows=4), MicroBatching(max_tokens=700)]
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def episodes() -> EpisodeBatch:
    made = template("qwen2")
    engine = NoiseEngine(made, np.random.default_rng(3))
    played = play(groups(3, 2), engine, made, max_turn=2, instruction="Go.")
    return batch_episodes(played, tags=("Lake",), pad_id=0)


def ready() -> PPOBatch:
    """Six episodes of different lengths, with invented scores: every term of the losses is alive."""
    batch, rng = episodes(), torch.Generator().manual_seed(1)
    known = {item.name: getattr(batch, item.name) for item in fields(EpisodeBatch)}

    def noise(scale: float) -> torch.Tensor:
        return torch.randn(batch.mask.shape, generator=rng) * scale * batch.mask

    old = score_logprobs(Scorer(model=small_model("qwen2")), batch, MicroBatching(), CPU)
    return PPOBatch(
        **known,
        old_logprobs=old + noise(0.3),  # so that some ratios are clipped
        ref_logprobs=old + noise(0.3),
        values=noise(0.5),
        advantages=noise(1.0),
        returns=noise(1.0),
    )


class Recording(Optimizer):
    """Keeps the gradients that it is asked to step with, and does not step."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__([torch.optim.SGD(model.parameters(), lr=0.0)], lambda step: 1.0)
        self.model, self.seen = model, []

    def step(self) -> None:
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        self.seen.append(torch.cat([grad.flatten() for grad in grads]).clone())


def actor() -> tuple[Any, Any]:
    cfg = ActorConfig(
        entropy_coeff=0.05, use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="low_var_kl"
    )
    return small_model("qwen2"), ActorLoss(cfg)


def critic() -> tuple[Any, Any]:
    model = Critic(small_model("qwen2").base_model)
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(2))
    return model, CriticLoss(CriticConfig(cliprange_value=0.2))


def cut(
    batch: PPOBatch, rows: list[torch.Tensor] | None = None, mode="token-mean"
) -> list[MiniBatch]:
    return [
        mini_batch(batch, picked, mode, horizon=30) for picked in rows or [torch.arange(len(batch))]
    ]


def run(
    kind, batch: PPOBatch, micro: MicroBatching, *, mode="token-mean", plan=None
) -> tuple[dict, torch.Tensor]:
    model, loss_fn = kind()
    optimizer = Recording(model)
    part = Trainable(model=model, optimizer=optimizer, grad_clip=1e9)
    metrics = update(part, cut(batch, plan, mode), loss_fn, micro, CPU)
    return metrics, torch.cat(optimizer.seen)


@pytest.mark.parametrize("kind", [actor, critic])
@pytest.mark.parametrize("mode", MODES)
def test_micro_batches_change_neither_loss_nor_gradient(kind, mode):
    batch = ready()
    expected, gradient = run(kind, batch, MicroBatching(), mode=mode)
    assert gradient.norm() > 1e-3
    for micro in CUTS:
        metrics, found = run(kind, batch, micro, mode=mode)
        torch.testing.assert_close(
            found, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-3
        )
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", [actor, critic])
def test_mini_batches_are_means_of_their_own(kind):
    batch = ready()
    plan = [torch.tensor([0, 3, 1, 2]), torch.tensor([5, 4])]
    expected = run(kind, batch, MicroBatching(), plan=plan)
    for micro in CUTS:
        metrics, found = run(kind, batch, micro, plan=plan)
        torch.testing.assert_close(found, expected[1], atol=1e-5, rtol=1e-3)
        assert metrics == pytest.approx(expected[0], rel=1e-4, abs=1e-6)


def padded(batch: PPOBatch, columns: int) -> PPOBatch:
    """The batch with more padding at the right, which no row needs."""
    wider = {}
    for item in fields(batch):
        value = getattr(batch, item.name)
        if value is not None and value.ndim == 2:
            fill = -1 if item.name == "turns" else 0
            value = torch.nn.functional.pad(value, (0, columns), value=fill)
        wider[item.name] = value
    return PPOBatch(**wider)


@pytest.mark.parametrize("kind", [actor, critic])
def test_padding_changes_neither_loss_nor_gradient(kind):
    batch = ready()
    expected = run(kind, batch, MicroBatching())
    wide = padded(batch, 13)
    object.__setattr__(wide, "lengths", wide.lengths + 13)  # so that it is not cut away again
    found = run(kind, wide, MicroBatching())
    torch.testing.assert_close(found[1], expected[1], atol=1e-5, rtol=1e-3)
    assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-6)


def test_only_sampled_tokens_have_a_gradient():
    batch = ready()
    noisy = replace(
        batch,
        **{
            name: torch.where(batch.mask, getattr(batch, name), 7.0)
            for name in ("advantages", "old_logprobs")
        },
    )
    _, expected = run(actor, batch, MicroBatching())
    _, found = run(actor, noisy, MicroBatching())
    assert torch.equal(found, expected)


def test_the_pad_token_does_not_matter():
    batch = ready()
    columns = torch.arange(batch.input_ids.shape[1])
    other = replace(
        batch, input_ids=torch.where(columns < batch.lengths[:, None], batch.input_ids, 77)
    )
    for kind in (actor, critic):
        assert torch.equal(
            run(kind, batch, MicroBatching())[1], run(kind, other, MicroBatching())[1]
        )


@pytest.mark.parametrize("micro", CUTS)
def test_scores_do_not_depend_on_the_micro_batch(micro):
    batch, policy, judge = episodes(), small_model("qwen2"), critic()[0]
    for score, model in ((score_logprobs, policy), (score_values, judge)):
        expected = score(Scorer(model=model), batch, MicroBatching(), CPU)
        found = score(Scorer(model=model), batch, micro, CPU)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        assert not found[~batch.mask].any()
        assert found.dtype == torch.float32
        assert not found.requires_grad


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama3", "gemma", "mistral"])
def test_the_trainer_computes_what_the_sampler_computed(name):
    made, model = template(name), small_model(name)
    played = play(groups(2, 2), LocalEngine(model, made), made, max_turn=2, max_tokens=8)
    batch = batch_episodes(played, tags=("Lake",), pad_id=0)
    found = score_logprobs(Scorer(model=model), batch, MicroBatching(rows=2), CPU)
    torch.testing.assert_close(found, batch.sampler_logprobs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_step_whose_loss_is_not_finite_is_skipped_though_its_gradient_is(wrong):
    model, loss_fn = actor()
    part = Trainable(model=model, optimizer=make_optimizer(model, lr=0.1))
    before = [p.clone() for p in model.parameters()]

    def spoiled(model: Any, batch: MiniBatch) -> tuple[torch.Tensor, Any]:
        loss, info = loss_fn(model, batch)
        return loss + wrong, info

    metrics = update(
        part, cut(ready(), list(torch.arange(6).split(3))), spoiled, MicroBatching(rows=3), CPU
    )
    assert (
        metrics["nonfinite_steps"] == 2
        and metrics["grad_norm"] > 1e-3
        and part.optimizer.steps == 0
    )
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_the_mean_gradient_norm_leaves_out_steps_without_one():
    good, bad = (
        {"grad_norm": 4.0, "nonfinite_steps": 0.0},
        {"grad_norm": -1.0, "nonfinite_steps": 1.0},
    )
    assert _step_metrics([good, bad]) == {"grad_norm": 4.0, "nonfinite_steps": 1.0}
    assert _step_metrics([bad])["grad_norm"] == -1


def test_a_gradient_that_is_not_finite_is_skipped_and_then_stops_the_run():
    model = small_model("qwen2")
    part = Trainable(model=model, optimizer=make_optimizer(model, lr=0.1))
    before = [p.clone() for p in model.parameters()]

    def step(factor: float) -> dict[str, float]:
        loss = factor * model(input_ids=torch.tensor([[5, 6, 7]])).logits.square().mean()
        loss.backward()
        return part.step(loss.item())

    assert step(math.nan) == {"grad_norm": -1.0, "nonfinite_steps": 1.0}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert part.optimizer.steps == 0
    assert step(1.0)["nonfinite_steps"] == 0.0  # a good step in between: counting begins anew
    assert part.optimizer.steps == 1
    for _ in range(MAX_BAD_STEPS - 1):
        step(math.inf)
    with pytest.raises(
        TrainingError, match=r"NaN or infinite in 3 consecutive steps.*learning rate"
    ):
        step(math.nan)
    assert all(p.isfinite().all() for p in model.parameters())


def test_large_gradients_are_clipped_and_reported_as_they_were():
    model = small_model("qwen2")
    optimizer = Recording(model)
    part = Trainable(model=model, optimizer=optimizer, grad_clip=0.5)
    (1000 * model(input_ids=torch.tensor([[5, 6, 7]])).logits.square().mean()).backward()
    norm = part.step(0.0)["grad_norm"]
    assert norm > 100
    assert optimizer.seen[0].norm().item() == pytest.approx(0.5, rel=1e-3)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("size", "count", "lengths"),
    [
        (4, None, [4, 3, 3]),
        (8, None, [5, 5]),
        (None, 4, [3, 3, 2, 2]),
        (None, 99, [1] * 10),
        (99, None, [10]),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_epoch_sees_every_row_once(size, count, lengths, shuffle):
    plan = plan_mini_batches(
        10, size=size, count=count, epochs=3, shuffle=shuffle, generator=generator()
    )
    epochs = [plan[start : start + len(lengths)] for start in range(0, len(plan), len(lengths))]
    assert len(epochs) == 3
    assert len(epochs[0]) == count_mini_batches(10, size=size, count=count)
    for epoch in epochs:
        assert [len(rows) for rows in epoch] == lengths
        assert sorted(torch.cat(epoch).tolist()) == list(range(10))
    orders = [torch.cat(epoch).tolist() for epoch in epochs]
    assert orders[0] != list(range(10))
    assert (orders[0] != orders[1]) == shuffle


def test_ratios_are_taken_without_dropout_and_activations_are_still_recomputed():
    batch, losses = ready(), []
    model = small_model("qwen2", attention_dropout=0.5)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    scored = score_logprobs(Scorer(model=model), batch, MicroBatching(), CPU)
    part = Trainable(model=model, optimizer=Recording(model))

    def loss_fn(model, rows):
        losses.append((model.training, model.is_gradient_checkpointing))
        return ActorLoss(ActorConfig())(model, rows)

    metrics = update(part, cut(replace(batch, old_logprobs=scored)), loss_fn, MicroBatching(), CPU)
    assert abs(metrics["ppo_kl"]) < 1e-6
    assert losses == [(True, True)]
    assert model.config.attention_dropout == 0.5


def test_the_value_after_the_last_token_is_the_critics():
    batch, (judge, _) = episodes(), critic()
    with torch.no_grad():
        everywhere = judge(batch.input_ids)
    expected = everywhere.gather(1, batch.lengths[:, None] - 1)[:, 0]
    found = score_last_values(Scorer(model=judge), batch, MicroBatching(rows=2), CPU)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert len(set(batch.lengths.tolist())) > 1


def test_weights_of_a_correction_scale_the_policy_loss_and_nothing_else():
    batch = ready()
    model, _ = actor()
    grads = {}
    for name, scale in {"none": None, "one": 1.0, "half": 0.5}.items():
        weights = batch.rl_weights if scale is None else batch.rl_weights * scale
        cfg = ActorConfig(entropy_coeff=0.0)
        optimizer = Recording(model)
        metrics = update(
            Trainable(model=model, optimizer=optimizer, grad_clip=1e9),
            cut(replace(batch, rl_weights=weights)),
            ActorLoss(cfg),
            MicroBatching(rows=2),
            CPU,
        )
        grads[name] = (optimizer.seen[0], metrics["entropy"])
    assert torch.equal(grads["none"][0], grads["one"][0])
    torch.testing.assert_close(grads["half"][0], grads["one"][0] / 2, atol=1e-6, rtol=1e-4)
    assert grads["none"][1] == grads["half"][1]


def test_entropy_and_kl_are_means_over_sampled_tokens_with_and_without_weights_of_zero():
    batch = ready()
    half = (torch.arange(batch.mask.shape[1]) % 2).float().expand(batch.mask.shape)
    found = []
    for weights in (batch.rl_weights, batch.rl_weights * half):
        model, _ = actor()
        metrics = update(
            Trainable(model=model, optimizer=Recording(model), grad_clip=1e9),
            cut(replace(batch, rl_weights=weights)),
            ActorLoss(ActorConfig(use_kl_loss=True, kl_loss_coef=1e-9)),
            MicroBatching(rows=2),
            CPU,
        )
        found.append({name: metrics[name] for name in ("entropy", "kl_loss")})
    assert found[0]["entropy"] > 1
    assert found[0] == pytest.approx(found[1])
