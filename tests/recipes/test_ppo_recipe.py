"""PPO as a whole: deterministic, resumable, cut as one likes, and stopped where it would go wrong."""

from pathlib import Path

import pytest
import torch
from helpers.families import random_model
from helpers.runs import small_config
from helpers.stages import metrics, weights

from spa.algo.estimators import Estimator
from spa.engines.factory import EngineKind
from spa.engines.local import LocalEngine
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError, TrainingError
from spa.models.load import load_policy
from spa.recipes import ppo, ppo_batch, ppo_rollouts, ppo_run, setup
from spa.recipes.ppo_run import load_models

FOUR = ("trainer.total_training_steps=4", "trainer.save_freq=2", "trainer.test_freq=2")


def assert_same_weights(a: Path, b: Path) -> None:
    left, right = weights(a), weights(b)
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def assert_same_record(a: Path, b: Path) -> None:
    """Metrics and episodes, byte for byte."""
    assert (a / "metrics.jsonl").read_bytes() == (b / "metrics.jsonl").read_bytes()
    episodes = sorted(path.name for path in (a / "trajectories").iterdir())
    assert episodes == sorted(path.name for path in (b / "trajectories").iterdir())
    for name in episodes:
        assert (a / "trajectories" / name).read_bytes() == (b / "trajectories" / name).read_bytes()


@pytest.fixture(scope="module")
def four_steps(base, tmp_path_factory) -> Path:
    """The folder of an undisturbed run of four steps."""
    folder = tmp_path_factory.mktemp("whole")
    assert ppo_run.run_ppo(small_config(base, folder, *FOUR)) == folder / "ppo" / "global_step_4"
    return folder / "ppo"


def test_the_run_trains_and_records_what_it_did(base, four_steps):
    lines = metrics(four_steps)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert [any(key.startswith("val-env/") for key in line) for line in lines] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert any(line.get("actor/grad_norm", 0) > 0 for line in lines)
    before, after = load_policy(str(base)), load_policy(str(four_steps / "global_step_4"))
    changes = [
        (a - b).abs().max() for a, b in zip(before.parameters(), after.parameters(), strict=True)
    ]
    assert min(changes) > 0
    names = sorted(path.name for path in (four_steps / "trajectories").iterdir())
    assert names == sorted(
        [f"train-00000{step}.jsonl" for step in (1, 2, 3, 4)]
        + [f"val-00000{step}.jsonl" for step in (0, 2, 4)]
    )


def test_trainer_and_sampler_agree_at_every_step(four_steps):
    lines = [line for line in metrics(four_steps) if "rollout/mismatch_kl" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        assert abs(line["rollout/mismatch_kl"]) < 1e-6
        assert line["rollout/logprob_gap_max"] < 1e-4


def test_the_same_seed_gives_the_same_files(base, four_steps, tmp_path):
    ppo_run.run_ppo(small_config(base, tmp_path, *FOUR))
    assert_same_record(four_steps, tmp_path / "ppo")
    for step in (2, 4):
        assert_same_weights(
            four_steps / f"global_step_{step}", tmp_path / "ppo" / f"global_step_{step}"
        )


def test_another_seed_gives_another_run(base, four_steps, tmp_path):
    ppo_run.run_ppo(small_config(base, tmp_path, "seed.train=77", "trainer.val_before_train=false"))
    assert metrics(tmp_path / "ppo")[0] != metrics(four_steps)[1]


def test_a_run_that_was_killed_goes_on_as_if_nothing_had_happened(
    base, four_steps, tmp_path, monkeypatch
):
    cfg = small_config(base, tmp_path, *FOUR)
    with monkeypatch.context() as patch:
        real, calls = ppo.update, []

        def killed(*args, **settings):
            calls.append(1)
            if len(calls) == 8:  # the policy's update in step 4, after the critic's
                raise KeyboardInterrupt
            return real(*args, **settings)

        patch.setattr(ppo, "update", killed)
        with pytest.raises(KeyboardInterrupt):
            ppo_run.run_ppo(cfg)
    # step 3 was not saved
    assert [line["step"] for line in metrics(tmp_path / "ppo")] == [0, 1, 2, 3]
    ppo_run.run_ppo(cfg)
    assert_same_record(four_steps, tmp_path / "ppo")
    assert_same_weights(four_steps / "global_step_4", tmp_path / "ppo" / "global_step_4")


def test_warm_up_and_cosine_count_ppo_steps_whatever_the_mini_batches(base, tmp_path):
    for count in (1, 3):
        cfg = small_config(
            base,
            tmp_path / str(count),
            "trainer.total_training_steps=4",
            "trainer.val_before_train=false",
            "trainer.test_freq=-1",
            f"actor_rollout_ref.actor.ppo_num_mini_batches={count}",
            "actor_rollout_ref.actor.optim={lr: 1e-3, warmup_style: cosine, lr_warmup_steps: 1}",
            "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
        )
        ppo_run.run_ppo(cfg)
        rates = [line["actor/lr"] for line in metrics(tmp_path / str(count) / "ppo")]
        assert rates == pytest.approx([1e-3, 1e-3, 7.5e-4, 2.5e-4])


ONE = ("trainer.total_training_steps=1", "trainer.val_before_train=false", "trainer.test_freq=-1")


def test_the_policy_that_is_trained_is_the_one_that_sampled(base, tmp_path):
    """Temperature, top-k and top-p: both sides mean the same distribution, and the first ratio is 1."""
    cfg = small_config(
        base,
        tmp_path,
        *ONE,
        "actor_rollout_ref.rollout.temperature=0.7",
        "actor_rollout_ref.rollout.top_p=0.95",
        "actor_rollout_ref.rollout.top_k=20",
        "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
        "actor_rollout_ref.actor.ppo_num_mini_batches=1",
    )
    ppo_run.run_ppo(cfg)
    (line,) = metrics(tmp_path / "ppo")
    assert abs(line["rollout/mismatch_kl"]) < 1e-6
    assert line["rollout/logprob_gap_max"] < 1e-4
    assert abs(line["actor/ppo_kl"]) < 1e-6
    assert line["actor/entropy"] < 1.5
    assert line["rollout/is_ess"] == pytest.approx(1)


def own_engine(request):
    """An engine of one's own that plays with the policy."""
    return LocalEngine(request.model, request.template)


def half_loss(logprobs, old_logprobs, advantages, weights, *, clip_ratio_low):
    """A loss of one's own."""
    live = weights > 0
    ratio = torch.where(live, logprobs - old_logprobs, 0.0).exp().clamp(max=1 + clip_ratio_low)
    return -(weights * ratio * torch.where(live, advantages, 0.0)).sum() / 2, {
        "ratio": ratio[live].sum()
    }


def to_come(batch, rewards, *, gamma):
    """An estimator of one's own that wants a critic and whitening."""
    assert batch.values is not None
    return rewards.flip(1).cumsum(1).flip(1) * gamma - batch.values, rewards.flip(1).cumsum(1).flip(
        1
    )


trainable = EngineKind(make=own_engine, trainable=True)
raw = EngineKind(make=own_engine, trainable=True, raw_logprobs=True)
with_critic = Estimator(
    function=to_come,
    settings=("gamma",),
    needs_values=True,
    whitened=True,
    discounts=lambda settings: (settings["gamma"], settings["gamma"]),
)
in_groups = Estimator(function=to_come, settings=("gamma",), needs_groups=True)
# A name as those of the estimators with credit per turn.
turn_by_token = with_critic


def test_estimator_loss_and_engine_of_ones_own_train(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        *ONE,
        f"algorithm.adv_estimator={__name__}:with_critic",
        f"actor_rollout_ref.actor.policy_loss={__name__}:half_loss",
        f"actor_rollout_ref.rollout.name={__name__}:trainable",
        "algorithm.rollout_correction.level=sequence",
        "algorithm.bootstrap_truncated=true",
    )
    last = ppo_run.run_ppo(cfg)
    (line,) = metrics(tmp_path / "ppo")
    assert line["actor/grad_norm"] > 0 and line["critic/grad_norm"] > 0
    assert line["actor/ratio"] == pytest.approx(1, abs=0.1)
    assert (last / "critic").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.rollout.do_sample=false"], "PPO cannot train on greedy responses"),
        (["es_manager.train.group_size=1"], "a group of one episode has no reward variance"),
        (
            ["algorithm.bootstrap_truncated=true", "algorithm.adv_estimator=grpo"],
            "such as gae or turn_gae",
        ),
        (
            ["trainer.critic_warmup=1", f"algorithm.adv_estimator={__name__}:in_groups"],
            "has no critic: the policy would not be trained for 1 steps",
        ),
        (
            [
                "ctx_manager.mode=base",
                "ctx_manager.history=false",
                "algorithm.gamma=1",
                f"algorithm.adv_estimator={__name__}:in_groups",
            ],
            "compared with its own turns",
        ),
        (
            [f"actor_rollout_ref.rollout.name={__name__}:own_engine"],
            "cannot be trained.*EngineKind",
        ),
        ([f"actor_rollout_ref.rollout.name={__name__}:nothing"], "cannot load"),
        (
            [
                f"actor_rollout_ref.rollout.name={__name__}:raw",
                "actor_rollout_ref.rollout.temperature=0.5",
            ],
            "log-probs of the raw logits",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_played(
    base, tmp_path, overrides, message
):
    with pytest.raises(ConfigError, match=message):
        ppo_run.run_ppo(small_config(base, tmp_path, *overrides))
    assert not (tmp_path / "ppo" / "trajectories").exists()


@pytest.mark.parametrize("estimator", ["gae", f"{__name__}:turn_by_token"])
def test_episodes_that_were_cut_off_go_on_with_the_critics_value(base, tmp_path, estimator):
    cfg = small_config(
        base,
        tmp_path,
        "algorithm.gamma=0.5",
        "algorithm.bootstrap_truncated=true",
        f"algorithm.adv_estimator={estimator}",
    )
    models, template = load_models(cfg)
    player = setup.make_worker(cfg, template, mode=cfg.ctx_manager.mode)
    specs = setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())
    episodes = player.rollout(models.engine, specs, setup.train_sampling(cfg))
    batch = ppo_rollouts.make_batch(cfg, episodes)
    assert batch is not None and batch.truncated is not None
    capped = [episode.stop in ("turn_cap", "context") for episode in episodes]
    assert batch.truncated.tolist() == capped and 0 < sum(capped) < len(capped)
    found = ppo_batch.bootstrapped(cfg, batch, torch.full((len(batch),), 8.0))
    torch.testing.assert_close(
        found.rewards.sum(1) - batch.rewards.sum(1), torch.tensor(capped) * 4.0
    )
    assert torch.equal((found.rewards != batch.rewards).any(1), batch.truncated)
    assert not found.rewards[~batch.mask].any()


def test_turn_scores_survive_normalization(base, tmp_path):
    settings = (
        "agent_proxy.use_turn_scores=true",
        "agent_proxy.reward_normalization.method=mean_std",
    )
    cfg = small_config(base, tmp_path, *settings)
    models, template = load_models(cfg)
    player = setup.make_worker(cfg, template, mode=cfg.ctx_manager.mode)
    specs = setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())
    episodes = player.rollout(models.engine, specs, setup.train_sampling(cfg))
    by_turn = ppo_rollouts.make_batch(cfg, episodes)
    at_the_end = ppo_rollouts.make_batch(small_config(base, tmp_path, settings[1]), episodes)
    assert by_turn is not None and at_the_end is not None
    torch.testing.assert_close(
        by_turn.rewards.sum(1), at_the_end.rewards.sum(1), atol=1e-5, rtol=1e-4
    )
    assert ((by_turn.rewards != 0) & (at_the_end.rewards == 0)).any()


def test_shorter_responses_may_count_more(base, tmp_path):
    """The switch of the original reaches the advantages of grpo."""
    switch = "actor_rollout_ref.actor.grpo_advantage_length_weight=true"
    one = ("trainer.total_training_steps=1", "trainer.val_before_train=false")
    norms = {}
    for name, extra in {"plain": (), "weighted": (switch,)}.items():
        ppo_run.run_ppo(
            small_config(base, tmp_path / name, *one, *extra, "algorithm.adv_estimator=grpo")
        )
        norms[name] = metrics(tmp_path / name / "ppo")[0]["critic/advantages/mean"]
    assert norms["plain"] != norms["weighted"]


def test_how_the_work_is_cut_changes_no_result(base, tmp_path):
    one = (
        "trainer.total_training_steps=1",
        "actor_rollout_ref.actor.ppo_num_mini_batches=1",
        "trainer.test_freq=-1",
    )
    found = {}
    for name, cut in {
        "rows of 1": ["micro_batch_size_per_gpu=1"],
        "rows of 4": ["micro_batch_size_per_gpu=4"],
        "tokens": [
            "actor_rollout_ref.actor.use_dynamic_bsz=true",
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=900",
        ],
    }.items():
        ppo_run.run_ppo(
            small_config(base, tmp_path / name, *one, "trainer.val_before_train=false", *cut)
        )
        found[name] = metrics(tmp_path / name / "ppo")[0]
    assert found["rows of 1"]["actor/grad_norm"] > 0.01
    for other in ("rows of 4", "tokens"):
        assert found[other].keys() == found["rows of 1"].keys()
        for key, value in found["rows of 1"].items():
            assert found[other][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def test_an_engine_that_samples_from_other_weights_stops_the_run(base, tmp_path, monkeypatch):
    class Deaf(LocalEngine):
        """Goes on with the weights that it has."""

        def load_weights(self, model, *, version):
            self.version = version

    def tampered(cfg, resume):
        models, template = load_models(cfg, resume)
        other = random_model(models.actor.model.config, seed=1)
        for ours, theirs in zip(models.actor.model.parameters(), other.parameters(), strict=True):
            theirs.data = ours.data + theirs.data
        models.engine = Deaf(other, template)
        return models, template

    monkeypatch.setattr(ppo_run, "load_models", tampered)
    # All groups are kept, so that the first step has something to train on.
    kept = (
        "actor_rollout_ref.rollout.rollout_filter_ratio=1",
        "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    )
    cfg = small_config(base, tmp_path, *kept)
    with pytest.raises(
        TrainingError,
        match=r"KL\(sampler \|\| trainer\) is .* before the first update.*same precision",
    ):
        ppo_run.run_ppo(cfg)
    assert not list((tmp_path / "ppo").glob("global_step_*"))
    assert [line["step"] for line in metrics(tmp_path / "ppo")] == [0]


def test_training_in_half_precision_stays_close_to_the_sampler(base, tmp_path, monkeypatch):
    cfg = small_config(
        base, tmp_path, "actor_rollout_ref.model.dtype=bfloat16", "trainer.val_before_train=false"
    )
    closed = []
    monkeypatch.setattr(LocalEngine, "close", lambda engine: closed.append(engine))
    ppo_run.run_ppo(cfg)
    assert len(closed) == 1  # vLLM's engine has a process and memory of a GPU
    for line in metrics(tmp_path / "ppo"):
        assert 1e-9 < line["rollout/mismatch_kl"] < cfg.trainer.kl_warn


def test_a_smaller_gap_is_only_reported(base, tmp_path, monkeypatch):
    monkeypatch.setattr(ppo_batch, "kl_penalty", lambda a, b, kind: torch.full_like(a, 0.05))
    ppo_run.run_ppo(
        small_config(
            base, tmp_path, "trainer.total_training_steps=1", "trainer.val_before_train=false"
        )
    )
    assert (
        "KL(sampler || trainer) is 0.05 per token, above the limit trainer.kl_warn=0.01"
        in (tmp_path / "ppo" / "log.txt").read_text()
    )


NOTHING_TO_WIN = (
    "custom_envs.FrozenLakeNoSlip.env_config={size: 30, p: 1.0, is_slippery: false}",
    "agent_proxy.max_turn=1",
    "agent_proxy.max_actions_per_turn=1",
    "es_manager.format_penalty=0",
    "actor_rollout_ref.rollout.rollout_filter_ratio=0.5",
    "actor_rollout_ref.actor.ppo_num_mini_batches=1",
    "trainer.val_before_train=false",
)


def test_when_all_rewards_are_equal_nothing_is_trained(base, tmp_path):
    last = ppo_run.run_ppo(small_config(base, tmp_path, *NOTHING_TO_WIN))
    for line in metrics(tmp_path / "ppo"):
        assert line["rollout/kept_count"] == 0
        assert line["rollout/groups_zero_std"] == 3
        assert "actor/loss" not in line
    before, after = load_policy(str(base)), load_policy(str(last))
    assert all(
        torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)
    )


def test_the_sampler_is_checked_at_the_first_step_that_has_something_to_train(
    base, tmp_path, monkeypatch
):
    real, calls = ppo_batch.filter_groups, []

    def nothing_at_first(cfg, batch, metrics):
        calls.append(1)
        kept = real(cfg, batch, metrics)
        return None if len(calls) == 1 else kept

    monkeypatch.setattr(ppo, "filter_groups", nothing_at_first)
    monkeypatch.setattr(ppo_batch, "kl_penalty", lambda a, b, kind: torch.full_like(a, 5.0))
    with pytest.raises(TrainingError, match="KL"):
        ppo_run.run_ppo(small_config(base, tmp_path, "trainer.val_before_train=false"))
    assert len(calls) == 2


def test_episodes_of_broken_environments_are_left_out(base, tmp_path, monkeypatch):
    real = FrozenLake.step
    steps = []

    def step(self, action):
        steps.append(1)
        if len(steps) % 5 == 0:
            raise RuntimeError("the ice broke")
        return real(self, action)

    monkeypatch.setattr(FrozenLake, "step", step)
    ppo_run.run_ppo(
        small_config(
            base, tmp_path, "trainer.total_training_steps=1", "trainer.val_before_train=false"
        )
    )
    (line,) = metrics(tmp_path / "ppo")
    assert 0 < line["train/FrozenLakeNoSlip/errors"] < 12
    assert line["train/FrozenLakeNoSlip/episodes"] == 12 - line["train/FrozenLakeNoSlip/errors"]
    assert line["actor/grad_norm"] > 0


def test_estimators_without_values_need_no_critic(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        "algorithm.adv_estimator=reinforce_plus_plus",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
    )
    last = ppo_run.run_ppo(cfg)
    (line,) = metrics(tmp_path / "ppo")
    assert line["actor/grad_norm"] > 0
    assert not any(key.startswith("critic/loss") for key in line)
    assert not (last / "critic").exists()


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_kl_to_the_reference_is_zero_at_first_and_grows(base, tmp_path, place):
    if place == "loss":
        term = [
            "actor_rollout_ref.actor.use_kl_loss=true",
            "actor_rollout_ref.actor.kl_loss_coef=0.1",
        ]
        term.append("actor_rollout_ref.actor.kl_loss_type=low_var_kl")
    else:
        term = [
            "algorithm.use_kl_in_reward=true",
            "algorithm.kl_ctrl.kl_coef=0.1",
            "algorithm.kl_penalty=low_var_kl",
        ]
    ppo_run.run_ppo(
        small_config(
            base,
            tmp_path,
            "trainer.val_before_train=false",
            "actor_rollout_ref.actor.ppo_num_mini_batches=1",
            *term,
        )
    )
    name = "actor/kl_loss" if place == "loss" else "actor/reward_kl_penalty"
    first, second = (line[name] for line in metrics(tmp_path / "ppo"))
    assert abs(first) < 1e-6 < second


def test_the_critic_may_train_alone_at_first(base, tmp_path):
    last = ppo_run.run_ppo(
        small_config(base, tmp_path, "trainer.critic_warmup=2", "trainer.val_before_train=false")
    )
    lines = metrics(tmp_path / "ppo")
    assert all(line["critic/grad_norm"] > 0 and "actor/loss" not in line for line in lines)
    before, after = load_policy(str(base)), load_policy(str(last))
    assert all(
        torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)
    )


def test_prompts_that_cannot_fit_stop_the_run_at_once(base, tmp_path):
    with pytest.raises(ConfigError, match="No first prompt fits"):
        ppo_run.run_ppo(small_config(base, tmp_path, "actor_rollout_ref.rollout.max_model_len=40"))


def test_rewards_are_normalized_and_stay_on_the_last_token(base, tmp_path):
    norm = [
        "agent_proxy.reward_normalization.method=mean_std",
        "agent_proxy.reward_normalization.grouping=state",
    ]
    cfg = small_config(base, tmp_path, *norm)
    models, template = load_models(cfg)
    player = setup.make_worker(cfg, template, mode=cfg.ctx_manager.mode)
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=cfg.seed.train, step=0)
    episodes = player.rollout(models.engine, specs, setup.train_sampling(cfg))
    batch = ppo_rollouts.make_batch(cfg, episodes)
    plain = ppo_rollouts.make_batch(small_config(base, tmp_path), episodes)
    assert torch.equal(batch.scores, plain.scores)  # the filter sees what was really reached
    totals = batch.rewards.sum(1)
    for group in range(3):
        rows = batch.group_ids == group
        assert totals[rows].mean().abs() < 1e-5
    assert (batch.rewards != 0).sum(1).max() <= 1
    ends = batch.turn_ends & (batch.turns == batch.turns.max(1, keepdim=True).values)
    assert torch.equal(batch.rewards != 0, ends & (totals != 0)[:, None])
