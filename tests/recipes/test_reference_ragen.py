"""Whole steps beside RAGEN: the same games through our normalization, filter, KL, estimators, losses and optimizers give
what RAGEN's trainer gave (tests/golden/ragen_steps.json, written by benchmarks/parity/ragen_steps.py)."""

from types import SimpleNamespace

import pytest
import torch
from helpers.batches import plain_streams
from helpers.golden import read_golden
from helpers.reference_ragen import CASES, KEPT, SHARED, STEPS, frozen_games, qwen_tokenizer
from helpers.reference_updates import change, our_critic, reference_model, weights

from spa.algo.losses import KLController
from spa.config.load import load_config
from spa.config.schema import Config
from spa.recipes import setup
from spa.recipes.ppo_batch import add_advantages, filter_groups, micro_batching, score
from spa.recipes.ppo_losses import ActorLoss, CriticLoss
from spa.recipes.ppo_rollouts import normalized
from spa.training.optim import make_optimizer
from spa.training.update import Scorer, Trainable, mini_batch, update
from spa.types import EpisodeBatch, Metrics

GOLDEN = read_golden("ragen_steps.json")
CPU = torch.device("cpu")
OTHERWISE = {"trainer.critic_warmup=2": "trainer.critic_warmup=1"}
"""RAGEN updates the policy from this step on; we do after so many steps."""
INSIDE = ("rollout/in_group_", "rollout/chosen_in_group_")


def config(name: str) -> Config:
    overrides = [
        *SHARED,
        *CASES[name],
        "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    ]
    return load_config("base", [OTHERWISE.get(one, one) for one in overrides])


def padded(rows: list[list[int]], dtype: torch.dtype) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(
        [torch.tensor(row, dtype=dtype) for row in rows], batch_first=True
    )


def batch_of(cfg: Config, step: int) -> EpisodeBatch:
    """RAGEN's rows of a step, padded on the other side, with the scores of the games."""
    games, rows = frozen_games(step), GOLDEN["cases"]["rollouts"][step]
    ids, mask = (
        padded([ids for ids, _ in rows], torch.int64),
        padded([flags for _, flags in rows], torch.bool),
    )
    end = qwen_tokenizer().convert_tokens_to_ids("<|im_end|>")
    ends = mask & (ids[:, :-1] == end)
    turn = ends.cumsum(1) - ends.long()
    per_turn = cfg.agent_proxy.use_turn_scores
    rewards = torch.zeros(mask.shape)
    for row, game in enumerate(games):
        # Without turn scores all is paid at the end, the penalty too; with them, RAGEN leaves the penalty out.
        paid = (
            torch.tensor(game.rewards)
            if per_turn
            else torch.tensor([sum(game.rewards) + game.penalty])
        )
        rewards[row, ends[row].nonzero()[-len(paid) :, 0]] = paid
    return EpisodeBatch(
        input_ids=ids,
        lengths=torch.tensor([len(ids) for ids, _ in rows]),
        mask=mask,
        turns=torch.where(mask & (turn < ends.sum(1, keepdim=True)), turn, -1),
        # RAGEN's turns end where a reward stands that is not 0.
        turn_ends=rewards != 0,
        rewards=rewards,
        scores=rewards.sum(1),
        group_ids=torch.tensor([game.group_id for game in games]),
        tag_ids=torch.tensor([int(game.tag == "FrozenLake") for game in games]),
        sampler_logprobs=torch.zeros(mask.shape),
        **plain_streams(mask),
    )


def rests_at_first(finished: int) -> float:
    """RAGEN's constant rate: 0 at a model's first update."""
    return min(1.0, finished)


def models_of(cfg: Config) -> SimpleNamespace:
    words = len(qwen_tokenizer())

    def trainable(model, optim) -> Trainable:
        optimizer = make_optimizer(
            model,
            lr=optim.lr,
            betas=optim.betas,
            weight_decay=optim.weight_decay,
            schedule=rests_at_first,
        )
        return Trainable(model=model, optimizer=optimizer, grad_clip=1.0)

    ctrl = cfg.algorithm.kl_ctrl
    target = ctrl.target_kl if ctrl.type == "adaptive" else None
    return SimpleNamespace(
        sampling=setup.train_sampling(cfg),
        device=CPU,
        actor=trainable(reference_model(words), cfg.actor_rollout_ref.actor.optim),
        critic=trainable(our_critic(words), cfg.critic.optim)
        if cfg.algorithm.adv_estimator == "gae"
        else None,
        ref=Scorer(model=reference_model(words, seed=9)),
        kl=KLController(coef=ctrl.kl_coef, target=target, horizon=ctrl.horizon),
    )


@pytest.mark.parametrize("name", CASES)
def test_whole_steps_are_those_of_ragen(name: str):
    cfg, expected = config(name), GOLDEN["cases"][name]
    models = models_of(cfg)
    made = {"actor": 0, "critic": 0}
    for step in range(1, STEPS + 1):
        wanted = expected[step - 1]
        metrics: Metrics = {}
        batch = filter_groups(cfg, normalized(cfg, batch_of(cfg, step - 1)), metrics)
        assert batch is not None
        scored = score(cfg, models, batch, metrics)  # pyright: ignore[reportArgumentType]
        ready = add_advantages(cfg, models, scored, metrics)  # pyright: ignore[reportArgumentType]
        # RAGEN normalizes in place, and so measures groups by what is left.
        skipped = INSIDE if cfg.agent_proxy.reward_normalization.method != "identity" else ()
        measured = {key: value for key, value in wanted.items() if isinstance(value, float)}
        for key, value in measured.items():
            if not key.startswith(skipped):
                ours = metrics[key.replace("kl_penalty_coeff", "kl_coef")]
                assert ours == pytest.approx(value, rel=2e-5, abs=1e-6), (step, key)
        parts = [("critic", models.critic, CriticLoss(cfg.critic))] if models.critic else []
        if step > cfg.trainer.critic_warmup:
            actor = cfg.actor_rollout_ref.actor
            parts.append(("actor", models.actor, ActorLoss(actor, setup.train_sampling(cfg))))
        assert {part for part, *_ in parts} == wanted.keys() - measured.keys()
        for part, trained, loss_fn in parts:
            section = cfg.critic if part == "critic" else cfg.actor_rollout_ref.actor
            numbers = wanted[part]
            assert sorted(set(ready.group_ids.tolist())) == sorted(
                {row // 4 for row in numbers["rows"]}
            )
            kept = ready.mask[:2]
            for key, values in (("advantages", ready.advantages), ("returns", ready.returns)):
                ours = values[:2][kept][:KEPT].tolist()
                assert ours == pytest.approx(numbers[key], rel=2e-4, abs=2e-5), (step, key)
            # RAGEN's rates count a model's updates, ours the steps
            trained.optimizer.at(made[part])
            made[part] += 1
            before = weights(trained.model)
            rows = (
                list(torch.arange(len(ready)).split(section.ppo_mini_batch_size))
                * section.ppo_epochs
            )
            minis = [mini_batch(ready, picked, section.loss_agg_mode, horizon=1) for picked in rows]
            done = update(trained, minis, loss_fn, micro_batching(section, 3), CPU)
            assert trained.optimizer.lr == pytest.approx(numbers["lr"])
            norms = numbers["grad_norm"]
            assert done["grad_norm"] == pytest.approx(sum(norms) / len(norms), rel=1e-4)
            for parameter, moved in change(trained.model, before).items():
                theirs = parameter.replace("body.", "model.").replace("value_head.", "score.")
                assert moved == pytest.approx(numbers["change"][theirs], rel=2e-3, abs=5e-6), (
                    step,
                    part,
                    parameter,
                )
