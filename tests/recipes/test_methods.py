"""Methods of the field as settings of PPO: each runs through the recipe, and off is off."""

import re
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers.runs import small_config
from helpers.stages import metrics

from spa.errors import ConfigError, SpaError
from spa.formats.blocks import find_block
from spa.formats.plans import imagined_plans
from spa.formats.registry import world_model_response
from spa.methods.context import Context, annotate_all
from spa.methods.replay import sampled_sequences
from spa.policies.scripted import ScriptedEngine
from spa.recipes import ppo_batch, ppo_rollouts, ppo_run, selfplay, setup
from spa.types import PPOBatch, Prompt

TWO = (
    "trainer.total_training_steps=2",
    "trainer.save_freq=-1",
    "trainer.test_freq=-1",
    "trainer.val_before_train=false",
)
WORLD = "actor_rollout_ref.actor.world_loss"
FOCUS = "actor_rollout_ref.actor.answer_focus"
REPLAY = "actor_rollout_ref.actor.replay"
REWARD = "agent_proxy.world_model_reward"
GROUPS = "algorithm.adv_estimator"


@pytest.fixture(scope="module")
def plain(base, tmp_path_factory) -> list[dict]:
    """The metrics of two plain steps."""
    folder = tmp_path_factory.mktemp("plain")
    ppo_run.run_ppo(small_config(base, folder, *TWO))
    return metrics(folder / "ppo")


def context(cfg, template) -> Context:
    """Of the first step, for methods that need no model."""
    return Context(
        cfg=cfg,
        step=1,
        template=template,
        entropies=lambda batch: torch.zeros_like(batch.old_logprobs),
        state_values=partial(ppo_rollouts.state_values, cfg),
        stored=[],
        metrics={},
    )


def trained(base, folder, *overrides: str) -> list[dict]:
    ppo_run.run_ppo(small_config(base, folder, *TWO, *overrides))
    return metrics(folder / "ppo")


@pytest.mark.parametrize(
    "off",
    [
        (f"{WORLD}.tokens=none", f"{WORLD}.coef=0.5"),
        (f"{WORLD}.tokens=env_observations", f"{WORLD}.coef=0"),
        (f"{FOCUS}.alpha=1", f"{FOCUS}.beta=0"),
        (f"{REPLAY}.examples=0", f"{REPLAY}.coef=0.5"),
        (f"{REWARD}.prediction=0", f"{REWARD}.within=0.2"),
        ("algorithm.imagined_advantage=0",),
    ],
    ids=["no tokens", "no weight", "no focus", "no rows", "no reward", "no imagination"],
)
def test_off_is_off_to_the_bit(base, plain, tmp_path, off):
    assert trained(base, tmp_path, *off) == plain


@pytest.mark.parametrize(
    "on",
    [
        (f"{WORLD}.tokens=env_observations",),
        (
            f"{WORLD}.tokens=env_observations",
            f"{WORLD}.kind=clipped_error",
            f"{WORLD}.most=1",
            f"{WORLD}.turns=0.5",
        ),
        (f"{WORLD}.tokens=correct_predictions",),
    ],
    ids=["echo", "paw", "right beliefs"],
)
def test_a_loss_on_the_world_is_reported_with_its_own_mean(base, plain, tmp_path, on):
    lines = trained(base, tmp_path, *on)
    assert any(
        "actor/world_loss" in line and line["rollout/world_tokens_ratio"] >= 0 for line in lines
    )
    # the same play
    assert lines[0]["train/FrozenLakeNoSlip/success"] == plain[0]["train/FrozenLakeNoSlip/success"]
    if "correct_predictions" not in on[0]:  # the small model is hardly ever right
        assert [line.get("actor/grad_norm") for line in lines] != [
            line.get("actor/grad_norm") for line in plain
        ]


def test_echo_makes_the_shown_states_likelier(base, tmp_path):
    lines = trained(
        base,
        tmp_path,
        f"{WORLD}.tokens=env_observations",
        f"{WORLD}.coef=2.0",
        "trainer.total_training_steps=4",
    )
    losses = [line["actor/world_loss"] for line in lines if "actor/world_loss" in line]
    assert len(losses) > 1 and losses[-1] < losses[0]


@pytest.mark.parametrize(
    "focus", [(f"{FOCUS}.alpha=0.2",), (f"{FOCUS}.alpha=0.2", f"{FOCUS}.beta=1")]
)
def test_answer_focus_moves_the_update(base, plain, tmp_path, focus):
    lines = trained(base, tmp_path, *focus)
    assert [line.get("actor/grad_norm") for line in lines] != [
        line.get("actor/grad_norm") for line in plain
    ]


@pytest.mark.parametrize("estimator", ["turn_rloo", "turn_gae", "gigpo"])
def test_estimators_per_turn_train(base, tmp_path, estimator):
    lines = trained(base, tmp_path, f"{GROUPS}={estimator}", "agent_proxy.use_turn_scores=true")
    assert any(line.get("actor/grad_norm", 0) > 0 for line in lines)


@pytest.fixture(scope="module")
def rows(base, tmp_path_factory):
    """World-model data of random play."""
    folder = tmp_path_factory.mktemp("rows")
    return selfplay.run_self_play(
        small_config(base, folder, "generate.policy=random", "generate.num_batches=1")
    )


def test_replayed_rows_without_weight_change_no_gradient(base, plain, rows, tmp_path):
    lines = trained(
        base, tmp_path, f"generate.output_dir={rows}", f"{REPLAY}.examples=3", f"{REPLAY}.coef=0"
    )
    for line, before in zip(lines, plain, strict=True):
        assert line["actor/replay_tokens"] > 0 and line["actor/replay_loss"] > 0
        for name in ("actor/grad_norm", "actor/loss", "actor/entropy", "actor/ppo_kl"):
            assert line[name] == pytest.approx(before[name], rel=1e-3, abs=1e-6)


def test_replayed_rows_get_likelier(base, rows, tmp_path):
    on = (
        f"generate.output_dir={rows}",
        f"{REPLAY}.examples=8",
        f"{REPLAY}.coef=2.0",
        "trainer.total_training_steps=4",
    )
    losses = [
        line["actor/replay_loss"]
        for line in trained(base, tmp_path, *on)
        if "actor/replay_loss" in line
    ]
    assert len(losses) > 1 and losses[-1] < losses[0]


def test_replayed_rows_can_be_learnt_in_their_states_alone(base, rows, tmp_path):
    counts = {}
    for loss_on in ("null", "states_only", "no_states"):
        more = (
            f"generate.output_dir={rows}",
            f"{REPLAY}.examples=2",
            f"{REPLAY}.loss_on={loss_on}",
        )
        counts[loss_on] = [
            line["actor/replay_tokens"] for line in trained(base, tmp_path / loss_on, *more)
        ]
    for whole, states, others in zip(
        counts["null"], counts["states_only"], counts["no_states"], strict=True
    ):
        assert 0 < states < whole and whole == states + others


def test_replay_without_rows_is_said_before_anything_is_played(base, tmp_path):
    with pytest.raises(SpaError, match=r"wm_train\.parquet"):
        trained(base, tmp_path, f"{REPLAY}.examples=2")
    assert not (tmp_path / "ppo" / "trajectories").exists()


def played(cfg, base, response):
    """The template, and the episodes of a step by a player who always gives the same response."""
    template = setup.load_actor(cfg, str(base), setup.pick_device(cfg))[1]
    player = setup.make_worker(cfg, template, mode=cfg.ctx_manager.mode)
    specs = setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())
    return template, player.rollout(
        ScriptedEngine(lambda prompt: response, template), specs, setup.train_sampling(cfg)
    )


def test_replay_looks_for_episodes_in_the_format(base, tmp_path):
    on = (f"{REPLAY}.examples=2", f"{REPLAY}.source=rollouts", "agent_proxy.max_turn=1")
    cfg = small_config(base, tmp_path, *on, "es_manager.train.env_groups=8")
    good = world_model_response("there", "hm", "nowhere", "Right")
    template, episodes = played(cfg, base, good)
    _, others = played(cfg, base, "no format")
    # One good episode among many: whichever is looked at first, it is found.
    mixed = [*others, episodes[0]]
    found = sampled_sequences(context(cfg, template), mixed, count=2)
    assert len(found) == 2
    assert sampled_sequences(context(cfg, template), others, count=2) == []


@pytest.mark.parametrize(
    ("more", "is_true", "is_own"),
    [
        ((), True, False),
        (("generate.states=model",), False, True),
        (("generate.shuffle_next_states=true",), False, False),
    ],
    ids=["truth", "believed", "shuffled"],
)
def test_rollouts_are_replayed_as_stage_1_would_write_them(base, tmp_path, more, is_true, is_own):
    on = (
        f"{REPLAY}.examples=2",
        f"{REPLAY}.source=rollouts",
        "actor_rollout_ref.rollout.max_model_len=1024",
    )
    cfg = small_config(
        base, tmp_path, *on, *more, "es_manager.train.env_groups=8", "agent_proxy.max_turn=1"
    )
    template, episodes = played(cfg, base, world_model_response("there", "hm", "nowhere", "Right"))
    found = sampled_sequences(context(cfg, template), episodes, count=5)
    assert len(found) == 5
    true = {(episode.turns[0].target, episode.turns[0].next_target) for episode in episodes}
    for ids, mask in found:
        text = template.tokenizer.decode(ids[mask])  # what is learnt: the response alone
        seen, foreseen = (find_block(text, name) for name in ("observation", "prediction"))
        assert text.startswith("<observation>") and seen is not None and foreseen is not None
        pair = text[slice(*seen)].strip(), text[slice(*foreseen)].strip()
        assert (pair in true, pair == ("there", "nowhere")) == (is_true, is_own)


def test_replay_of_successes_alone_takes_as_many_as_there_are(base, tmp_path):
    on = (f"{REPLAY}.examples=2", f"{REPLAY}.source=rollouts", "generate.success_only=true")
    cfg = small_config(
        base, tmp_path, *on, "es_manager.train.env_groups=8", "agent_proxy.max_turn=1"
    )
    template, episodes = played(cfg, base, world_model_response("there", "hm", "nowhere", "Right"))
    won = [replace(episode, success=number % 8 == 0) for number, episode in enumerate(episodes)]
    count = sum(episode.success for episode in won)
    found = sampled_sequences(context(cfg, template), won, count=count)
    assert len({tuple(ids) for ids, _ in found}) == count > 1


def test_rollouts_without_states_leave_nothing_to_replay(base, tmp_path):
    on = (f"{REPLAY}.examples=2", f"{REPLAY}.source=rollouts", "ctx_manager.mode=base")
    cfg = small_config(base, tmp_path, *on)
    template, episodes = played(cfg, base, "<think>hm</think><answer>Right</answer>")
    assert all(turn.response.well_formed for episode in episodes for turn in episode.turns)
    assert sampled_sequences(context(cfg, template), episodes, count=5) == []


@pytest.mark.parametrize("loss_on", ["response", "states_only"])
def test_replayed_rollouts_are_reported_and_move_the_update_alone(base, plain, tmp_path, loss_on):
    on = (f"{REPLAY}.examples=2", f"{REPLAY}.source=rollouts", f"{REPLAY}.loss_on={loss_on}")
    lines = trained(base, tmp_path, *on)
    assert any(line.get("actor/replay_tokens", 0) > 0 for line in lines)
    # the same play
    assert lines[0]["train/FrozenLakeNoSlip/success"] == plain[0]["train/FrozenLakeNoSlip/success"]
    assert [line.get("actor/grad_norm") for line in lines] != [
        line.get("actor/grad_norm") for line in plain
    ]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (("ctx_manager.mode=base",), "no states to correct"),
        (("agent_proxy.response_format=choose_plan",), "did not choose"),
    ],
)
def test_where_no_rollout_can_be_corrected_it_is_said_and_nothing_changes(
    base, tmp_path, more, reason, caplog, capsys
):
    on = (f"{REPLAY}.examples=2", f"{REPLAY}.source=rollouts")
    assert trained(base, tmp_path / "on", *more, *on) == trained(base, tmp_path / "off", *more)
    # The first training of a process prints its warnings, before they reach pytest's handler.
    said = caplog.text + capsys.readouterr().err
    assert re.search(f"PPO replays no episodes, because .*{reason}", said)


def imagines(right: bool):
    """A player that weighs two plans; if it is `right`, by what they lead to, else the other way round."""

    def response(prompt: Prompt) -> str:
        states = {}
        for name in ("Left", "Down", "Right", "Up"):
            twin = prompt.context.clone(0)
            twin.step(twin.to_action(name))
            states[name] = twin.state_text("coords")
        worth = {name: prompt.context.state_value(state) for name, state in states.items()}
        best, worst = (
            max(worth, key=lambda name: worth[name]),
            min(worth, key=lambda name: worth[name]),
        )
        chosen = best if prompt.seed % 2 else worst
        said = states if right else {best: states[worst], worst: states[best]}
        thoughts = imagined_plans([((best,), said[best]), ((worst,), said[worst])])
        return world_model_response(
            "here", f"{thoughts}I do {chosen}. ", said[chosen], chosen, order="choose_plan"
        )

    return response


def test_imagined_advantages_in_a_game_that_cannot_judge_are_refused_before_anything_is_played(
    base, tmp_path
):
    more = ("agent_proxy.response_format=choose_plan", "algorithm.imagined_advantage=0.5")
    cfg = small_config(base, tmp_path, *more, "es_manager.train.env_configs.tags=[Countdown]")
    with pytest.raises(
        ConfigError,
        match=r"Countdown has no state values.*set algorithm.imagined_advantage to 0",
    ):
        ppo_run.run_ppo(cfg, directory=tmp_path / "run")
    assert not list((tmp_path / "run").glob("trajectories/*"))


@pytest.mark.parametrize("right", [True, False])
def test_imagination_adds_to_advantages_as_far_as_it_is_right(base, tmp_path, right):
    more = (
        "agent_proxy.response_format=choose_plan",
        "algorithm.imagined_advantage=0.5",
        "es_manager.train.env_groups=8",
    )
    cfg = small_config(base, tmp_path, *more)
    template = setup.load_actor(cfg, str(base), setup.pick_device(cfg))[1]
    player = setup.make_worker(cfg, template, mode="add_worldmodel")
    specs = setup.training_specs(cfg, player, "train", step=0, held_out=frozenset())
    episodes = player.rollout(
        ScriptedEngine(imagines(right), template), specs, setup.train_sampling(cfg)
    )
    assert all(turn.response.well_formed for episode in episodes for turn in episode.turns)
    batch = ppo_rollouts.make_batch(cfg, episodes)
    assert batch is not None
    zeros = torch.zeros(batch.mask.shape)
    ready = PPOBatch(**vars(batch), old_logprobs=zeros, advantages=zeros, returns=zeros)
    added = annotate_all(ready, episodes, context(cfg, template)).advantages
    if not right:
        assert not added.any()
        return
    last = added[ppo_batch.last_turn_ends(batch)]
    won = [episode.success for episode in episodes]
    assert any(won) and all(
        value > 0 for value, success in zip(last.tolist(), won, strict=True) if success
    )
