"""Loss masks over played episodes of every template family."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.families import NAMES, template
from helpers.play import NoiseEngine, groups, one_group, play, says

from spa.training.batch import batch_episodes
from spa.training.loss_masks import (
    answer_mask,
    env_state_mask,
    loss_masks,
    model_state_mask,
    no_states,
    token_at,
)

RESPONSES = (
    "<think>go é</think><answer>Left || Left</answer>",
    "<think>no answer here",
    "<think>two</think><answer>Up</answer><answer>Down</answer>",
)


@pytest.mark.parametrize("name", NAMES)
def test_answer_only_is_the_answer_and_the_end_of_the_turn(name):
    chat = template(name)
    (episode,) = play(one_group(), says(*RESPONSES, template=chat), chat, max_turn=3)
    assert (
        episode.token_ids is not None
        and episode.sampled is not None
        and episode.turn_index is not None
    )
    mask = answer_mask(episode, chat)
    assert not (mask & ~episode.sampled).any()
    first = episode.token_ids[mask & (episode.turn_index == 0)]
    text = chat.decode_response(first)
    assert text.endswith("Left || Left</answer>") and len(text) <= len(">Left || Left</answer>")
    for turn in (1, 2):  # no answer, two answers: the last token alone
        where = np.flatnonzero(episode.sampled & (episode.turn_index == turn))
        assert mask[where].tolist() == [False] * (len(where) - 1) + [True]


def test_a_prediction_after_the_answer_is_no_part_of_it():
    chat = template("qwen2")
    response = "<think>go</think><answer>Left</answer><prediction>P at (0,1)</prediction>"
    (episode,) = play(one_group(), says(response, template=chat), chat, max_turn=1)
    assert episode.token_ids is not None
    text = chat.decode_response(episode.token_ids[answer_mask(episode, chat)])
    assert "Left" in text and "P at" not in text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["answer_only", "all_after_system"])
def test_rewards_and_turn_ends_stay_on_masked_tokens_whatever_is_replied(name, kind):
    chat = template(name)
    episodes = play(groups(4, 3), NoiseEngine(chat, np.random.default_rng(0)), chat, max_turn=4)
    masks = loss_masks(episodes, kind, chat)
    batch = batch_episodes(episodes, tags=["Lake"], pad_id=0, turn_scores=True, mask_of=masks)
    assert (batch.turn_ends <= batch.mask).all()
    assert ((batch.rewards == 0) | batch.mask).all()
    assert batch.turn_ends.sum() == sum(len(episode.turns) for episode in episodes)


@pytest.mark.parametrize("name", NAMES)
def test_all_after_system_leaves_out_only_what_stands_before_the_first_user_message(name):
    chat = template(name)
    episodes = play(groups(2, 1), says(*RESPONSES, template=chat), chat, max_turn=2)
    masks = loss_masks(episodes, "all_after_system", chat)
    assert masks is not None
    for episode, mask in zip(episodes, masks, strict=True):
        assert episode.token_ids is not None and episode.sampled is not None
        start = int(mask.argmax())
        assert mask[start:].all() and mask[episode.sampled].all()
        left_out = chat.tokenizer.decode(episode.token_ids[:start])
        system, user = (message["content"] for message in episode.messages[:2])
        assert user[:20] not in left_out
        if chat.has_system:
            assert system in left_out


def test_sampled_needs_no_mask_and_others_need_a_template():
    assert loss_masks([], "sampled", None) is None
    with pytest.raises(ValueError, match="the model's chat template"):
        loss_masks([], "answer_only", None)


def test_token_at_finds_the_token_of_every_character():
    chat = template("qwen2")
    ids = np.asarray(chat.encode("<think>go é</think> Left"))
    ends = [len(chat.decode_response(ids[: i + 1])) for i in range(len(ids))]
    for character in range(ends[-1]):
        index = token_at(chat, ids, character)
        assert ends[index] > character and (index == 0 or ends[index - 1] <= character)


BELIEFS = "<think><observation>aé b</observation>so<prediction>c d</prediction></think><answer>Left</answer>"


@pytest.mark.parametrize("name", NAMES)
def test_shown_states_are_the_states_of_later_turns_and_little_else(name):
    chat = template(name)
    (episode,) = play(one_group(), says(BELIEFS, BELIEFS, BELIEFS, template=chat), chat, max_turn=3)
    assert (
        episode.token_ids is not None
        and episode.sampled is not None
        and episode.turn_index is not None
    )
    mask = env_state_mask(episode, chat)
    assert not (mask & episode.sampled).any() and not mask[episode.turn_index < 1].any()
    for number, turn in enumerate(episode.turns[1:], start=1):
        text = chat.tokenizer.decode(episode.token_ids[mask & (episode.turn_index == number)])
        # a token may hold a neighbour's characters
        assert turn.state in text and len(text) <= len(turn.state) + 8


@pytest.mark.parametrize("name", NAMES)
def test_beliefs_are_the_contents_of_the_state_blocks(name):
    chat = template(name)
    (episode,) = play(one_group(), says(BELIEFS, "<think>none", template=chat), chat, max_turn=2)
    assert (
        episode.token_ids is not None
        and episode.sampled is not None
        and episode.turn_index is not None
    )
    mask = model_state_mask(episode, chat)
    text = chat.decode_response(episode.token_ids[mask])
    assert "aé b" in text and "c d" in text and len(text) <= len("aé bc d") + 8
    assert not mask[episode.turn_index == 1].any()
    # neither is what the lake looks like
    assert not model_state_mask(episode, chat, right=True).any()
    rest = no_states(episode, chat)
    assert (rest | mask)[episode.sampled].all() and not (rest & ~episode.sampled).any()
    for turn in (0, 1):  # rewards lie on the last sampled token of a turn
        assert rest[np.flatnonzero(episode.sampled & (episode.turn_index == turn))[-1]]


def test_right_beliefs_are_those_that_say_what_was_true():
    chat = template("qwen2")
    (known,) = play(one_group(), says("<answer>Left</answer>", template=chat), chat, max_turn=1)
    true, after = known.turns[0].state, known.turns[0].next_state
    response = f"<think><observation>\n{true}\n</observation><prediction>wrong</prediction></think><answer>Left</answer>"
    (episode,) = play(one_group(), says(response, template=chat), chat, max_turn=1)
    assert episode.token_ids is not None
    text = chat.decode_response(episode.token_ids[model_state_mask(episode, chat, right=True)])
    assert true in text and "wrong" not in text and after is not None


def test_a_copy_of_the_state_is_no_right_prediction_where_no_action_was_executed():
    chat = template("qwen2")
    (known,) = play(one_group(), says("<answer>Left</answer>", template=chat), chat, max_turn=1)
    true = known.turns[0].state
    response = f"<think><observation>{true}</observation><prediction>{true}</prediction></think><answer>Jump</answer>"
    (episode,) = play(one_group(), says(response, template=chat), chat, max_turn=1)
    assert not episode.turns[0].executed and episode.turns[0].next_target == true
    assert episode.token_ids is not None
    text = chat.decode_response(episode.token_ids[model_state_mask(episode, chat, right=True)])
    assert text.count(true) == 1


def test_a_token_of_probability_1_counts_as_sampled_in_a_mask_of_all_tokens():
    chat = template("qwen2")
    (episode,) = play(one_group(), says(*RESPONSES, template=chat), chat, max_turn=3)
    assert episode.sampled is not None and episode.logprobs is not None
    certain = replace(episode, logprobs=np.zeros_like(episode.logprobs))
    batch = batch_episodes(
        [certain], tags=["Lake"], pad_id=0, mask_of=loss_masks([certain], "all_after_system", chat)
    )
    assert batch.sampled is not None
    assert int((batch.mask & batch.sampled).sum()) == int(episode.sampled.sum())
