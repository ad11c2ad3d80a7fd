"""Best of n by imagined states: true ones help, spoilt and shuffled ones do not, and one response is the engine alone."""

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers.families import template
from helpers.runs import small_config

from spa import cli
from spa.envs.frozen_lake import FrozenLake
from spa.envs.pool import EpisodeSpec
from spa.errors import ConfigError
from spa.formats.registry import world_model_response
from spa.planning.best_of_n import BestOfNPlanner
from spa.planning.planner import elsewhere
from spa.policies.scripted import ScriptedEngine, random_engine
from spa.recipes import setup
from spa.recipes.imagination import require_dynamics
from spa.rollout.episode_builder import EpisodeBuilder
from spa.types import Completion, Prompt
from spa_games.countdown import Countdown
from spa_games.sokoban import Sokoban


@pytest.mark.parametrize("symbols", [None, {4: "h", 5: "g"}])
@pytest.mark.parametrize("mode", ["grid", "coords", "grid_and_coords"])
def test_states_are_judged_by_their_text(mode, symbols):
    lake = FrozenLake(size=3, p=0.8, is_slippery=False, grid_lookup=symbols)
    room = Sokoban(dim_x=5, dim_y=5, num_boxes=1)
    for env in (lake, room):
        env.reset(seed=3)
        assert env.state_value(env.state_text(mode)) == 0.0
        for name in env.expert_actions(20):
            env.step(env.to_action(name))
        assert env.state_value(env.state_text(mode)) == 1.0
    lake.reset(seed=3)
    assert lake.state_value("") == 0.0
    lake.player = min(lake.lake.holes)
    assert lake.state_value(lake.state_text(mode)) == -1.0


def success(cfg, engine) -> float:
    player = setup.make_worker(cfg, None, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=5, step=0)
    episodes = player.rollout(engine, specs, setup.val_sampling(cfg))
    return sum(episode.success for episode in episodes) / len(episodes)


def imagining(
    n: int, dynamics="simulator", noise_prob: float = 0.0, engine=None, **more
) -> BestOfNPlanner:
    inner = engine or random_engine(max_actions=3)
    return BestOfNPlanner(
        inner,
        n=n,
        dynamics=dynamics,
        noise_prob=noise_prob,
        state_text="coords",
        max_actions=3,
        **more,
    )


def test_true_states_help_and_spoilt_ones_hardly(tmp_path):
    cfg = small_config("none", tmp_path, "es_manager.val.env_groups=24", "agent_proxy.max_turn=5")
    alone, one = success(cfg, random_engine(max_actions=3)), success(cfg, imagining(1))
    true, spoilt = success(cfg, imagining(8)), success(cfg, imagining(8, noise_prob=1.0))
    assert alone == one and true > alone + 0.3 and true > spoilt + 0.25


def know_all(prompt: Prompt) -> str:
    """Random play that foresees what it causes."""
    rng = np.random.Generator(np.random.PCG64(prompt.seed))
    actions = [prompt.context.random_action(rng) for _ in range(3)][: prompt.actions_left]
    twin = prompt.context.clone(0)
    for name in actions:
        if twin.step(twin.to_action(name))[2]:
            break
    return world_model_response(
        "unknown", "", twin.state_text("coords"), f" {prompt.action_sep} ".join(actions)
    )


def test_learnt_states_are_as_good_as_they_are_right_and_shuffled_ones_are_not(tmp_path):
    cfg, lines = (
        small_config("none", tmp_path, "es_manager.val.env_groups=24", "agent_proxy.max_turn=5"),
        [],
    )
    alone = success(cfg, ScriptedEngine(know_all))
    learnt = success(
        cfg, imagining(8, "model", engine=ScriptedEngine(know_all), record=lines.append)
    )
    shuffled = success(cfg, imagining(8, "shuffled", engine=ScriptedEngine(know_all)))
    assert learnt > alone + 0.2 and learnt > shuffled + 0.2
    assert all(part["right"] for line in lines for part in line["imagined"])
    assert {line["turn"] for line in lines} == set(range(max(line["turn"] for line in lines) + 1))


def test_shuffled_predictions_are_those_of_responses_that_foresee_something_else(tmp_path):
    cfg, lines = (
        small_config("none", tmp_path, "es_manager.val.env_groups=24", "agent_proxy.max_turn=5"),
        [],
    )
    success(cfg, imagining(4, "shuffled", engine=ScriptedEngine(know_all), record=lines.append))
    states = [Counter(part["state"] for part in line["imagined"]) for line in lines]
    own = [sum(part["right"] for part in line["imagined"]) for line in lines]
    assert own == [max(0, 2 * max(each.values()) - each.total()) for each in states] and 0 in own


def test_without_history_the_planner_looks_ahead_as_far(tmp_path):
    cfg = small_config("none", tmp_path, "agent_proxy.max_turn=4", "es_manager.val.env_groups=4")
    cfg = replace(cfg, ctx_manager=replace(cfg.ctx_manager, mode="base", history=False))
    lines = []
    worker = setup.make_worker(cfg, None, mode="base")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=5, step=0)
    engine = imagining(8, record=lines.append, depth=4)
    worker.rollout(engine, specs, setup.val_sampling(cfg))
    assert max(part["depth"] for line in lines for part in line["imagined"]) > 1
    turns = [(line["episode_id"], line["turn"]) for line in lines]
    assert len(set(turns)) == len(turns) and max(turn for _, turn in turns) > 0


@pytest.mark.parametrize("engine", [None, ScriptedEngine(know_all)])
def test_looking_further_ahead_finds_goals_that_one_turn_does_not_show(tmp_path, engine):
    lake = "custom_envs.FrozenLakeNoSlip.env_config.size=5"
    cfg = small_config(
        "none", tmp_path, "es_manager.val.env_groups=12", "agent_proxy.max_turn=4", lake
    )
    dynamics, lines = ("simulator" if engine is None else "model"), []
    one = success(cfg, imagining(8, dynamics, engine=engine))
    far = success(cfg, imagining(8, dynamics, engine=engine, record=lines.append, depth=4))
    assert far > one + 0.1
    assert all(part["right"] for line in lines for part in line["imagined"])
    for line in lines:
        assert max(part["depth"] for part in line["imagined"]) <= 4 - line["turn"]
        goal = [part["root"] for part in line["imagined"] if part["value"] == 1]
        assert len(line["imagined"]) % 8 == 0 and (not goal or line["chosen"] == min(goal))


@pytest.mark.parametrize("slips", [False, True])
def test_a_way_to_the_goal_is_kept_to_until_it_leads_elsewhere(tmp_path, slips):
    lake = ("size=5", f"is_slippery={slips}", "success_rate=0.8")
    lake = [f"custom_envs.FrozenLakeNoSlip.env_config.{part}" for part in lake]
    cfg = small_config(
        "none", tmp_path, "es_manager.val.env_groups=12", "agent_proxy.max_turn=4", *lake
    )
    again, lines, engine = [], [], ScriptedEngine(know_all)
    kept = success(
        cfg, imagining(8, "model", engine=engine, record=lines.append, depth=4, keep=True)
    )
    if not slips:
        anew = success(cfg, imagining(8, "model", engine=engine, record=again.append, depth=4))
        sampled, sampled_again = (
            sum(len(line["imagined"]) for line in record) for record in (lines, again)
        )
        assert kept >= anew and sampled < sampled_again
    # what is left of the way that each episode is on
    turns_to_goal, followed, left = dict[str, int](), 0, 0
    for line in lines:
        expected = turns_to_goal.pop(line["episode_id"], 0)
        if line.get("kept"):
            (step,) = line["imagined"]
            assert expected and line["tokens"] == [0] and (step["value"] == 1) == (expected == 1)
            turns_to_goal[line["episode_id"]], followed = expected - 1, followed + 1
            continue
        left += expected > 0
        ways = [
            part
            for part in line["imagined"]
            if part["value"] == 1 and part["root"] == line["chosen"]
        ]
        turns_to_goal[line["episode_id"]] = ways[0]["depth"] - 1 if ways else 0
    assert followed > 0 and (left > 0) == slips


@pytest.mark.parametrize("turns", [0, 1])
def test_a_prompt_elsewhere_has_the_tokens_that_it_would_have_there(tmp_path, turns):
    chat = template("llama3")
    player = setup.make_worker(small_config("none", tmp_path), chat, mode="add_worldmodel")
    env, there = (
        FrozenLake(size=3, p=0.8, is_slippery=False),
        FrozenLake(size=3, p=0.8, is_slippery=False),
    )
    env.reset(seed=4)
    there.reset(seed=5)
    assert env.state_text("coords") != there.state_text("coords")

    def asked(now: FrozenLake) -> Prompt:
        spec = EpisodeSpec(
            episode_id="a", tag="", group=0, member=0, puzzle_seed=0, noise_seed=0, sample_seed=0
        )  # fmt: skip
        seat = EpisodeBuilder(spec, player.prompters["FrozenLakeNoSlip"], chat)
        seat.build_prompt(env if turns else now)
        if turns:
            text = "so</think><answer>Up</answer>"
            ids = np.asarray(chat.response_ids("<think>" + text, "<think>"), np.int32)
            response = Completion(
                text=text,
                token_ids=ids,
                logprobs=np.zeros(len(ids), np.float32),
                finish_reason="stop",
            )
            seat.append_completion(response)
            seat.step(env.clone(), response, 0.0)
            seat.build_prompt(now)
        return seat.prompt(now, None)

    moved = elsewhere(asked(env), env.state_text("coords"), there.state_text("coords"), chat)
    assert moved is not None and moved.messages == asked(there).messages
    assert list(moved.token_ids) == list(asked(there).token_ids)
    assert elsewhere(asked(env), "what it does not say", "x", chat) is None


def test_nothing_is_imagined_that_the_actions_left_do_not_allow(tmp_path):
    lake = "custom_envs.FrozenLakeNoSlip.max_actions_per_traj=4"
    cfg, lines = (
        small_config(
            "none", tmp_path, "es_manager.val.env_groups=12", "agent_proxy.max_turn=4", lake
        ),
        [],
    )
    success(cfg, imagining(6, record=lines.append, depth=4))
    first = [line for line in lines if line["turn"] == 0]
    assert max(part["depth"] for line in first for part in line["imagined"]) > 1
    used = {line["episode_id"]: len(line["imagined"][line["chosen"]]["actions"]) for line in first}
    for line in lines:
        spent = used[line["episode_id"]] if line["turn"] == 1 else 0
        assert line["turn"] > 1 or all(
            len(part["actions"]) <= 4 - spent for part in line["imagined"]
        )


def test_caches_of_what_was_only_imagined_are_given_back_before_more_is_asked(tmp_path):
    class Counting(ScriptedEngine):
        held, most = 0, 0

        def generate(self, prompts, sampling):
            self.held += sum("#" in prompt.episode_id for prompt in prompts)
            Counting.most = max(Counting.most, self.held)
            return super().generate(prompts, sampling)

        def forget(self, episode_ids):
            self.held -= sum("#" in name for name in episode_ids)
            super().forget(episode_ids)

    cfg = small_config("none", tmp_path, "es_manager.val.env_groups=8", "agent_proxy.max_turn=4")
    few, many = (
        imagining(6, "model", engine=Counting(know_all), depth=3, rows=16),
        imagining(6, "model", depth=3),
    )
    many.engine = ScriptedEngine(know_all)
    assert success(cfg, few) == success(cfg, many)
    assert 0 < Counting.most <= 16


@pytest.mark.parametrize(
    ("env", "why"),
    [
        (
            Sokoban(dim_x=5, dim_y=5, num_boxes=1, render_mode="rgb_array"),
            "differ from the states in its prompts",
        ),
        (Countdown(), "has no state values"),
    ],
)
def test_states_that_no_prompt_can_show_are_not_gone_on_from(env, why):
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=why):
        require_dynamics(env, "it", "model", depth=2)


def test_what_cannot_be_read_is_worth_less_than_anything_read(tmp_path):
    cfg = small_config("none", tmp_path)
    lines = []
    success(
        cfg,
        imagining(
            3, "model", engine=ScriptedEngine(lambda prompt: "no format"), record=lines.append
        ),
    )
    assert all(
        line["chosen"] == 0 and part["value"] == -2 for line in lines for part in line["imagined"]
    )


def test_an_evaluation_says_what_was_imagined_and_goes_on_to_the_same_bytes(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = [
        "eval",
        "random",
        "--config",
        "demo",
        "--puzzles",
        "8",
        "--samples",
        "2",
        "--output",
        "out.json",
    ]
    args += ["--plan", "best-of-4", "imagine.dynamics=simulator", "imagine.noise_prob=0.25"]
    assert cli.main(args) == 0
    assert (
        "Best of 4 responses per turn, with imagine.dynamics=simulator"
        in capsys.readouterr().out.replace("\n", " ")
    )
    before = (tmp_path / "out.json").read_bytes()
    found = json.loads(before)["imagination"]
    assert (found["n"], found["dynamics"], found["noise_prob"]) == (4, "simulator", 0.25)
    assert 0.5 < found["right"] <= 1 and 0 < found["changed"] < 1
    assert cli.main(args) == 0 and (tmp_path / "out.json").read_bytes() == before
    assert cli.main([*args[:-3], "beam-2", *args[-2:]]) == 0
    assert "up to 5 turns ahead" in capsys.readouterr().out.replace("\n", " ")
    assert cli.main([*args[:6], "--plan", "beam-0"]) == 2
    assert "best-of-8" in capsys.readouterr().err


def test_unknown_actions_use_none_of_the_actions_left():
    """As in play, which executes the known ones."""
    lake = FrozenLake(is_slippery=False)
    lake.reset(seed=0)
    prompt = Prompt(
        episode_id="a", messages=(), token_ids=np.zeros(1, np.int32), prefill="<think>", seed=0,
        context=lake, mode="base", actions_left=2,
    )  # fmt: skip
    said = Completion(
        text="</think><answer>jump || Down || Left</answer>",
        token_ids=None,
        logprobs=None,
        finish_reason="stop",
    )
    assert imagining(1)._parse(prompt, said).actions == ("Down", "Left")
