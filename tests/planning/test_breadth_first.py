"""Every action is asked for by name: who knows the world finds the way, wrong states do not, and tokens are the rows'."""

import json

import numpy as np
import pytest
from helpers.families import template
from helpers.runs import small_config

from spa import cli
from spa.envs.frozen_lake import FrozenLake
from spa.errors import ConfigError
from spa.evaluation.outcomes import outcome_of
from spa.formats.plans import plan_sentence
from spa.formats.registry import world_model_response
from spa.planning.breadth_first import BreadthFirstPlanner
from spa.policies.scripted import ScriptedEngine
from spa.recipes import setup
from spa.recipes.imagination import require_dynamics
from spa.types import Prompt, SamplingParams
from spa_games.countdown import Countdown


def knows(prompt: Prompt) -> str:
    """Does nothing but go up, unless a plan is named to it; foresees what plans lead to."""
    _, named, plan = prompt.prefill.partition("I do ")
    actions = plan.split(".")[0].split(", then ") if named else ["Up"]
    twin = prompt.context.clone(0)
    twin.is_slippery = False  # it foresees what is meant to happen
    for name in actions:
        if twin.step(twin.to_action(name))[2]:
            break
    shown = prompt.context.state_text("coords")
    thoughts = f" {plan_sentence(actions)} "
    return world_model_response(
        shown, thoughts, twin.state_text("coords"), " || ".join(actions), order="plan_first"
    )


def played(tmp_path, *changes, dynamics="model", depth=6, response=knows, max_prompt=None):
    """The episodes, what was recorded, and the questions that the engine was asked."""
    chat, lines, asked = template("llama3"), [], []

    def answer(prompt: Prompt) -> str:
        asked.append(prompt)
        return response(prompt)

    cfg = small_config(
        "none", tmp_path, "es_manager.val.env_groups=8", "agent_proxy.response_format=plan_first", *changes
    )  # fmt: skip
    engine = BreadthFirstPlanner(
        ScriptedEngine(answer, chat),
        n=1,
        dynamics=dynamics,
        noise_prob=0.0,
        state_text="coords",
        max_actions=cfg.agent_proxy.max_actions_per_turn,
        depth=depth,
        keep=True,
        max_prompt=max_prompt,
        template=chat,
        record=lines.append,
    )
    player = setup.make_worker(cfg, chat, mode="add_worldmodel")
    specs = setup.episode_specs(cfg.es_manager.val, "val", base_seed=5, step=0)
    return player.rollout(engine, specs, setup.val_sampling(cfg)), lines, asked, chat


TURNS = ("agent_proxy.max_turn=3", "agent_proxy.max_actions_per_turn=2")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """What is played by a model that knows the world."""
    return played(tmp_path_factory.mktemp("usual"), *TURNS)


def test_who_knows_the_world_wins_each_puzzle_that_can_be_won_in_time(usual):
    episodes, lines, asked, chat = usual
    assert all(episode.success for episode in episodes)
    assert all(part["right"] is not False for line in lines for part in line["imagined"])
    for episode in episodes:  # the tokens are those that a row of the same response has
        for number, turn in enumerate(episode.turns):
            expected = chat.response_ids(turn.response_text, "<think>")
            of_turn = np.flatnonzero(episode.turn_index == number)[-len(expected) :]
            assert list(episode.token_ids[of_turn]) == expected
    firsts = [line for line in lines if line["turn"] == 0]
    assert len(firsts) == len(episodes) and all(
        line["named"] and "kept" not in line for line in firsts
    )
    later = [line for line in lines if line["turn"] > 0]
    assert later and all(line["kept"] and len(line["imagined"]) == 1 for line in later)
    dreams = [prompt for prompt in asked if "#" in prompt.episode_id]
    assert len(dreams) == sum(len(line["imagined"]) - 1 for line in lines)
    assert len(asked) == len(dreams) + len(lines)


def test_what_a_response_is_begun_with_is_not_sampled_and_counts_in_no_length(usual):
    episodes, _, asked, chat = usual
    given = {
        prompt.episode_id: len(prompt.token_ids) for prompt in asked if "I do" in prompt.prefill
    }
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            sampled = episode.token_ids[episode.sampled & (episode.turn_index == number)]
            text = chat.decode_response(sampled)
            assert turn.response_text.endswith(f"<prediction>\n{text}") and "I do" not in text
        last = np.flatnonzero(episode.sampled & (episode.turn_index == len(episode.turns) - 1))
        assert last[0] == given[episode.episode_id]
        assert not episode.logprobs[~episode.sampled].any()
        assert outcome_of(episode).tokens == int(episode.sampled.sum())


def test_each_action_is_asked_for_once_in_each_state(usual):
    _, lines, _, _ = usual
    for line in lines:
        dreams = line["imagined"][1:]
        for first in range(0, len(dreams), 4):
            part = dreams[first : first + 4]
            assert {name for each in part for name in each["actions"]} == {
                "Left",
                "Down",
                "Right",
                "Up",
            }
            assert len({each["depth"] for each in part}) == 1


def test_wrong_states_lead_nowhere(usual, tmp_path):
    right, *_ = usual
    wrong, lines, *_ = played(tmp_path, *TURNS, dynamics="shuffled")
    assert sum(episode.success for episode in wrong) < 0.7 * sum(
        episode.success for episode in right
    )
    assert any(part["right"] is False for line in lines for part in line["imagined"])


def test_where_nothing_is_foreseen_the_model_responses_by_itself(tmp_path):
    def blind(prompt: Prompt) -> str:
        return (
            prompt.prefill + "nothing</prediction></think><answer>Up</answer>"
            if "I do" in prompt.prefill
            else "?"
        )

    episodes, lines, asked, _ = played(tmp_path, *TURNS, response=blind)
    assert not any(line["named"] for line in lines)
    own = [prompt for prompt in asked if "#" not in prompt.episode_id]
    assert own and all(prompt.prefill == "<think>" for prompt in own)
    assert not any(episode.success for episode in episodes)


def test_no_response_is_begun_where_the_longest_would_not_fit_behind_it(usual, tmp_path):
    _, _, asked, _ = usual
    lengths = [len(prompt.token_ids) for prompt in asked]
    begun = [len(prompt.token_ids) for prompt in asked if "I do" in prompt.prefill]
    _, _, asked, _ = played(tmp_path, *TURNS, max_prompt=max(lengths))
    assert [len(prompt.token_ids) for prompt in asked] == lengths  # all fit: nothing is another
    middle = sorted(begun)[len(begun) // 2]
    _, lines, asked, _ = played(tmp_path, *TURNS, max_prompt=middle)
    tight = [len(prompt.token_ids) for prompt in asked if "I do" in prompt.prefill]
    assert tight and max(tight) <= middle
    assert any(not line["named"] for line in lines)
    episodes, lines, asked, _ = played(tmp_path, *TURNS, max_prompt=min(begun) - 1)
    assert all(prompt.prefill == "<think>" for prompt in asked) and not any(
        line["named"] for line in lines
    )
    assert all(episode.turns for episode in episodes)


def test_a_way_that_leads_elsewhere_is_looked_for_again(tmp_path):
    slips = [
        f"custom_envs.FrozenLakeNoSlip.env_config.{part}"
        for part in ("is_slippery=True", "success_rate=0.5")
    ]
    _, lines, _, _ = played(tmp_path, *TURNS, *slips)
    assert any(line["turn"] > 0 and line["named"] and "kept" not in line for line in lines)
    assert any(line.get("kept") for line in lines)


def test_no_more_is_imagined_than_the_actions_that_are_left(tmp_path):
    _, lines, _, _ = played(
        tmp_path, "agent_proxy.max_turn=2", "agent_proxy.max_actions_per_turn=1", depth=9
    )
    assert max(part["depth"] for line in lines for part in line["imagined"]) == 2


def test_a_game_that_fails_is_an_error_and_asks_the_model_nothing():
    class Melting(FrozenLake):
        def state_text(self, mode=None) -> str:
            raise ValueError("the ice has melted")

    def nobody(prompt: Prompt) -> str:
        raise AssertionError("asked")

    engine = BreadthFirstPlanner(
        ScriptedEngine(nobody, template("llama3")), n=1, dynamics="model", noise_prob=0.0, state_text="coords", max_actions=1
    )  # fmt: skip
    ids = np.zeros(1, np.int32)
    prompt = Prompt(
        episode_id="a", messages=(), token_ids=ids, prefill="<think>", seed=0, context=Melting()
    )
    (response,) = engine.generate([prompt], SamplingParams())
    assert response.finish_reason == "error" and "the ice has melted" in response.text


def test_games_of_free_text_are_refused():
    class Telling(Countdown):
        def state_value(self, text: str) -> float | None:
            return 0.0

    env = Telling()
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="cannot list them"):
        require_dynamics(env, "Countdown", "model", proposals="exhaustive")


def test_an_evaluation_of_a_model_that_is_asked_for_every_action(
    base, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    args = [
        "eval",
        str(base),
        "--config",
        "demo",
        "--puzzles",
        "4",
        "--samples",
        "1",
        "--output",
        "out.json",
    ]
    args += [
        "agent_proxy.response_format=plan_first",
        "ctx_manager.mode=add_worldmodel",
        "agent_proxy.max_turn=2",
        "actor_rollout_ref.rollout.response_length=8",
    ]
    assert cli.main([*args, "--plan", "search-2"]) == 0
    assert "Search over every action" in capsys.readouterr().out.replace("\n", " ")
    found = json.loads((tmp_path / "out.json").read_text())["imagination"]
    assert (found["proposals"], found["depth"]) == ("exhaustive", 2) and found[
        "tokens_per_episode"
    ] > 0
    lines = [
        json.loads(line)
        for path in tmp_path.glob("*.imagined-*.jsonl")
        for line in path.read_text().splitlines()
    ]
    # the first is the response that was played; a question begins with the state and the plan
    asked = [count for line in lines for count in line["tokens"][1:]]
    assert asked and min(asked) > 8
