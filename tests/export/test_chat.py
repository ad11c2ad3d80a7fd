"""A game as a chat is told and played as an episode of training is."""

from pathlib import Path

import numpy as np
import pytest

from spa.config.load import load_config
from spa.envs.pool import EpisodeSpec
from spa.envs.registry import make_env
from spa.errors import ConfigError
from spa.models.load import load_tokenizer
from spa.policies.scripted import random_engine
from spa.prompts.template import ChatTemplate
from spa.rollout.loop import collect
from spa.types import SamplingParams, StopReason
from spa_integrations.export.chat import make_chat, token_episode


def played(chat, responses, seed=0, noise_seed=3):
    """The messages of an episode, responses included."""
    messages = list(chat.begin(seed, noise_seed))
    for response in responses:
        told = chat.answer(response)
        messages.append({"role": "assistant", "content": response})
        if told is None:
            break
        messages.append({"role": "user", "content": told})
    return messages


@pytest.mark.parametrize("tag", ["FrozenLake", "SimpleSokoban", "Countdown"])
def test_it_says_and_pays_what_an_episode_of_training_does(tag):
    chat, known = make_chat(tag), load_config("base").custom_envs[tag]
    spec = EpisodeSpec(
        episode_id="e", tag=tag, group=0, member=0, puzzle_seed=5, noise_seed=3, sample_seed=1
    )
    [episode] = collect(
        [spec],
        make_env=lambda _: make_env(known.env_type, known.env_config),
        prompters={tag: chat.prompter},
        template=None,
        engine=random_engine(None, max_actions=2),
        sampling=SamplingParams(),
        format_penalty=chat.format_penalty,
        max_model_len=10**6,
    )
    responses = [turn.response_text for turn in episode.turns]
    assert played(chat, responses, seed=5) == list(episode.messages)
    assert (tuple(chat.turns), chat.stop, chat.score) == (
        episode.turns,
        episode.stop,
        episode.score,
    )


def test_a_response_without_the_prefill_gets_it():
    chat = make_chat("FrozenLake")
    chat.begin(0)
    chat.answer("I go</think><answer>Up</answer>")
    assert chat.turns[0].response.well_formed and chat.turns[0].executed == ("Up",)


def test_what_stands_before_the_prefill_is_dropped():
    chat = make_chat("FrozenLake")
    chat.begin(0)
    chat.answer("Sure.\n<think>I go</think><answer>Up</answer>")
    assert chat.turns[0].response.well_formed and chat.turns[0].executed == ("Up",)


def test_after_the_end_it_says_so():
    chat = make_chat("FrozenLake")
    chat.begin(0)
    while chat.answer("<think>no</think><answer>Up</answer>") is not None:
        pass
    assert chat.stop is not None
    with pytest.raises(ValueError, match="is over"):
        chat.answer("<think>no</think><answer>Up</answer>")


def test_an_environment_that_breaks_costs_its_episode():
    chat = make_chat("FrozenLake")
    chat.begin(0)
    chat.env.step = lambda action: 1 / 0
    assert chat.answer("<think>no</think><answer>Up</answer>") is None
    assert chat.stop is StopReason.ERROR and not chat.success and "division by zero" in chat.fault


def test_an_unknown_tag_is_one_message():
    with pytest.raises(ConfigError, match="did you mean 'FrozenLake'"):
        make_chat("FrozenLak")


def test_a_game_of_several_players_is_refused(monkeypatch):
    examples = Path(__file__).parents[2] / "examples"
    monkeypatch.syspath_prepend(examples)
    with pytest.raises(ConfigError, match="Nim is a game of 2 players; only games of one player"):
        make_chat("Nim", str(examples / "nim.yaml"))


def test_pictures_are_refused():
    chat = make_chat("VisualSimpleSokoban")
    with pytest.raises(ConfigError, match=r"only send text\. Set render_mode: text"):
        chat.begin(0)


def test_an_episode_in_tokens_is_that_of_training():
    chat, known = make_chat("FrozenLake"), load_config("base").custom_envs["FrozenLake"]
    template = ChatTemplate(load_tokenizer("builtin:tiny"))
    spec = EpisodeSpec(
        episode_id="e", tag="t", group=0, member=0, puzzle_seed=5, noise_seed=3, sample_seed=1
    )
    [episode] = collect(
        [spec],
        make_env=lambda _: make_env(known.env_type, known.env_config),
        prompters={"t": chat.prompter},
        template=template,
        engine=random_engine(template, max_actions=2),
        sampling=SamplingParams(),
        format_penalty=chat.format_penalty,
        max_model_len=10**6,
    )
    edges = np.flatnonzero(np.diff(np.concatenate([[0], episode.sampled, [0]])))
    responses = iter([episode.token_ids[a:b].tolist() for a, b in edges.reshape(-1, 2)])

    def generate(ids):
        response = next(responses)
        return response, [-1.0] * len(response)

    found = token_episode(chat, template, generate, seed=5, noise_seed=3)
    assert found["prompt_ids"] + found["completion_ids"] == episode.token_ids.tolist()
    assert [0] * len(found["prompt_ids"]) + found["env_mask"] == episode.sampled.astype(
        int
    ).tolist()
    assert sum(found["logprobs"]) == -sum(found["env_mask"]) and found["score"] == episode.score
    assert (found["seed"], found["noise_seed"], found["stop"]) == (5, 3, str(episode.stop))


def test_a_second_prefill_in_tokens_counts_as_in_training():
    chat, template = make_chat("FrozenLake"), ChatTemplate(load_tokenizer("builtin:tiny"))
    sampled = template.encode("I go <think>I go</think><answer>Up</answer>")
    token_episode(chat, template, lambda ids: (sampled, [0.0] * len(sampled)), seed=5)
    assert chat.turns[0].response.think == "I go I go"


def test_an_episode_that_its_environment_broke_is_not_trained_on():
    chat, template = make_chat("FrozenLake"), ChatTemplate(load_tokenizer("builtin:tiny"))
    chat.env.step = lambda action: 1 / 0
    response = template.response_ids("<think>no</think><answer>Up</answer>", chat.prompter.prefill)
    found = token_episode(chat, template, lambda ids: (response, [-1.0] * len(response)), seed=0)
    assert (
        found["completion_ids"] == response
        and not any(found["env_mask"])
        and found["stop"] == "error"
    )


asked = []


def bonus(turn) -> float:
    """A reward of one's own, which says something else each time."""
    asked.append(turn)
    return 100.0 * len(asked)


def test_the_score_has_the_rewards_of_the_configuration(tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "defaults: [base]\ncustom_envs:\n  FrozenLake:\n"
        f"    reward: {{game: 1.0, '{__name__}:bonus': 1.0}}\n"
    )
    chat, plain = make_chat("FrozenLake", str(path)), make_chat("FrozenLake")
    responses = ["<think>I go</think><answer>Up</answer>"]
    assert played(chat, responses) == played(plain, responses)
    asked.clear()
    assert chat.turn_rewards == [100.0 + plain.score]
    assert chat.score == 100.0 + plain.score


def test_a_configuration_without_history_is_refused():
    with pytest.raises(ConfigError, match=r"ctx_manager\.history=false"):
        make_chat("FrozenLakeNoSlip", "smol_frozen_lake")
