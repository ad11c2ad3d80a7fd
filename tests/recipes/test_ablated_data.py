"""Self-play of other players, other states in the responses, other losses: small but whole."""

import json
from dataclasses import replace

import numpy as np
import torch
from helpers.runs import small_config

from spa.engines.local import LocalEngine
from spa.envs.registry import make_env
from spa.formats.registry import parse_response, world_model_response
from spa.launch.job import Job
from spa.launch.start import launch
from spa.models.load import load_tokenizer
from spa.policies.mixed import MixedEngine
from spa.policies.named import FAR, expert_engine
from spa.policies.scripted import ScriptedEngine, formatted
from spa.prompts.template import ChatTemplate
from spa.recipes import ppo_rollouts, ppo_run, selfplay, setup
from spa.run.manifest import SUMMARY
from spa.types import Prompt
from spa.worldmodel.sft_files import read_examples


def data(cfg, folder):
    selfplay.run_self_play(cfg, directory=folder)
    return read_examples(folder / selfplay.TRAIN_FILE)


def test_expert_data_solve_their_puzzles(tmp_path):
    rows = data(small_config("none", tmp_path, "generate.policy=expert"), tmp_path / "data")
    assert all(row.success for row in rows)
    summary = json.loads((tmp_path / "data" / SUMMARY).read_text())
    assert summary["played"]["success"] == 1.0 and summary["states"] == "ground_truth"


def on_ice(env, seed):
    return Prompt(
        episode_id="a",
        messages=(),
        token_ids=np.zeros(0, np.int32),
        prefill="",
        seed=seed,
        context=env,
    )


def test_the_expert_looks_further_ahead_than_one_turn_on_slippery_ice():
    env = make_env("frozen_lake", {"size": 8, "success_rate": 0.8})
    env.reset(seed=3)
    (best,) = env.expert_actions(FAR)
    assert not env.expert_actions(1)  # the goal is further away
    for seed in range(5):
        prompt = on_ice(env, seed)
        assert expert_engine(max_actions=1).response(prompt) == formatted(prompt, best)


def test_the_expert_on_slippery_ice_takes_the_risk_that_few_turns_ask_for():
    env = make_env("frozen_lake", {"size": 4, "success_rate": 0.8})
    differ = 0
    for seed in range(30):
        env.reset(seed=seed)
        best, patient = env.expert_actions(5), env.expert_actions(FAR)
        prompt = replace(on_ice(env, seed), turns_left=5, actions_left=10)
        if best:
            assert expert_engine(max_actions=2).response(prompt) == formatted(prompt, best[0])
            differ += best != patient
    assert differ > 0


def test_states_are_replaced_before_examples_are_drawn(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        "generate.states=random_coords",
        "generate.coverage=true",
        "generate.policy=random",
    )
    plain = data(
        replace(cfg, generate=replace(cfg.generate, states="ground_truth", coverage=False)),
        tmp_path / "plain",
    )
    true = {example.response for example in plain}
    examples = data(cfg, tmp_path / "data")
    quoted = [
        message["content"]
        for example in examples
        for message in example.prompt
        if message["role"] == "assistant"
    ]
    assert quoted and not true & set(quoted)


def test_a_number_of_gpus_without_processes_for_them_is_named(tmp_path, caplog):
    cfg = small_config("none", tmp_path, "generate.policy=random", "trainer.n_gpus_per_node=2")
    launch(cfg, Job(stage="generate"))
    assert "this run has 1 process:" in caplog.text and "--nproc-per-node 2" in caplog.text


def test_epsilon_is_the_share_of_random_turns(tmp_path):
    cfg = small_config("none", tmp_path, "generate.policy=expert", "generate.epsilon=0.5")
    engine = selfplay.selfplay_engine(cfg, setup.pick_device(cfg))
    assert isinstance(engine, MixedEngine)
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.train, "selfplay", base_seed=1, step=0)
    mixed = player.rollout(engine, specs, setup.selfplay_sampling(cfg))
    assert 0 < sum(episode.success for episode in mixed) < len(mixed)
    assert [e.to_json() for e in player.rollout(engine, specs, setup.selfplay_sampling(cfg))] == [
        e.to_json() for e in mixed
    ]


def test_accuracy_in_self_play_is_that_of_turns_that_the_model_wrote(base, tmp_path):
    def names(*overrides):
        cfg = small_config(base, tmp_path, *overrides)
        template = setup.load_actor(cfg, str(base), setup.pick_device(cfg))[1]
        player = setup.make_worker(cfg, template, mode="add_worldmodel")
        specs = setup.episode_specs(cfg.es_manager.train, "selfplay", base_seed=1, step=0)
        engine = ScriptedEngine(
            lambda prompt: world_model_response("a", "b", "c", "Right"), template
        )
        episodes = player.rollout(engine, specs, setup.selfplay_sampling(cfg))
        return {name for name in selfplay.play_metrics(cfg, episodes) if "/wm/" in name}

    assert "selfplay/wm/obs_exact" in names()
    assert names("generate.epsilon=0.5") == names("generate.policy=random") == set()


def test_believed_states_are_the_models_own(base, tmp_path):
    examples = data(small_config(base, tmp_path, "generate.states=model"), tmp_path / "data")
    for example in examples:
        parsed = parse_response(example.response, mode="add_worldmodel")
        assert (parsed.observation, parsed.prediction) == (example.observed, example.predicted)
    assert any(example.predicted != example.next_state for example in examples)


def test_random_coordinates_are_not_the_truth(base, tmp_path):
    examples = data(
        small_config(base, tmp_path, "generate.states=random_coords"), tmp_path / "data"
    )
    parsed = [parse_response(example.response, mode="add_worldmodel") for example in examples]
    wrong = sum(
        response.prediction != example.next_state
        for response, example in zip(parsed, examples, strict=True)
    )
    assert wrong > 0.8 * len(examples) and all(response.well_formed for response in parsed)


def test_ppo_trains_on_the_tokens_that_the_mask_names(base, tmp_path):
    cfg = small_config(
        base,
        tmp_path,
        "actor_rollout_ref.actor.loss_mask=all_after_system",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "actor_rollout_ref.rollout.rollout_filter_include_zero=true",
    )
    ppo_run.run_ppo(cfg)
    line = json.loads((tmp_path / "ppo" / "metrics.jsonl").read_text().splitlines()[0])
    assert line["actor/grad_norm"] > 0
    assert abs(line["rollout/mismatch_kl"]) < 1e-6


def test_masks_differ_in_size(base, tmp_path):
    cfg = small_config(base, tmp_path)
    device = setup.pick_device(cfg)
    model, template = setup.load_actor(cfg, str(base), device)
    player = setup.make_worker(cfg, template, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=1, step=0)
    episodes = player.rollout(LocalEngine(model, template), specs, setup.train_sampling(cfg))
    sizes = []
    for mask in ("answer_only", "sampled", "all_after_system"):
        batch = ppo_rollouts.make_batch(
            small_config(base, tmp_path, f"actor_rollout_ref.actor.loss_mask={mask}"),
            episodes,
            template,
        )
        assert batch is not None
        sizes.append(int(batch.mask.sum()))
    assert sizes == sorted(sizes) and len(set(sizes)) == 3


def test_online_world_modelling_is_paid_for(base, tmp_path):
    def knows_what_it_sees(prompt) -> str:
        return formatted(
            prompt, "Left", observation=prompt.context.state_text("coords"), prediction="?"
        )

    cfg = small_config(base, tmp_path)
    template = ChatTemplate(load_tokenizer(str(base)))
    player = setup.make_worker(cfg, template, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.train, "train", base_seed=1, step=0)
    episodes = player.rollout(
        ScriptedEngine(knows_what_it_sees, template), specs, setup.train_sampling(cfg)
    )
    plain = ppo_rollouts.make_batch(cfg, episodes)
    paid = ppo_rollouts.make_batch(
        small_config(base, tmp_path, "agent_proxy.world_model_reward.observation=0.5"), episodes
    )
    assert plain is not None and paid is not None
    turns = torch.tensor([len(episode.turns) for episode in episodes])
    torch.testing.assert_close(paid.scores, plain.scores + 0.5 * turns)
    torch.testing.assert_close(paid.rewards.sum(1), paid.scores)
