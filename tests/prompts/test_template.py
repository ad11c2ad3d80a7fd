"""Tokens in, tokens out, for six template families: what is sampled is marked, and nothing else."""

import numpy as np
import pytest
from helpers.families import FAMILIES, NAMES, template, tokenizer
from helpers.play import NoiseEngine, answer, groups, play, says
from hypothesis import given
from hypothesis import strategies as st

from spa.errors import ModelError
from spa.prompts.template import ChatTemplate, TokenBuffer, joined_borders, served_ids

SYSTEM = {"role": "system", "content": "You play."}
RESPONSES = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30)
USERS = st.text(
    alphabet=st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20
)


@pytest.mark.parametrize("name", NAMES)
def test_the_sampled_mask_covers_the_sampled_ids_and_nothing_else(name):
    made = template(name)
    engine = NoiseEngine(made, np.random.default_rng(0))
    for episode in play(groups(3, 2), engine, made, max_turn=4):
        asked, said = engine.asked[episode.episode_id], engine.said[episode.episode_id]
        assert len(asked) == len(episode.turns) >= 1
        expected = np.zeros(len(episode.token_ids), dtype=bool)
        for turn, (prompt, response) in enumerate(zip(asked, said, strict=True)):
            place = slice(len(prompt), len(prompt) + len(response))
            np.testing.assert_array_equal(episode.token_ids[: len(prompt)], prompt)
            np.testing.assert_array_equal(episode.token_ids[place], response)
            assert (episode.turn_index[place] == turn).all()
            expected[place] = True
            text = episode.turns[turn].response_text
            assert text == "<think>" + made.decode_response(response)
        np.testing.assert_array_equal(episode.sampled, expected)
        assert (episode.turn_index[: len(asked[0])] == -1).all()
        assert (episode.logprobs[~episode.sampled] == 0).all()
        spoken = [
            message["content"] for message in episode.messages if message["role"] == "assistant"
        ]
        assert spoken == [turn.response_text for turn in episode.turns]


@pytest.mark.parametrize("name", [name for name in NAMES if FAMILIES[name].keeps_history])
@given(response=RESPONSES, user=USERS)
def test_a_later_turn_is_what_rendering_everything_again_would_write(name, response, user):
    made, user = template(name), user.strip() or "x"
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": f"REPLY{response}YLPER"},
        {"role": "user", "content": user},
    ]
    text = made.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    whole = made.encode(text[text.index("YLPER") + len("YLPER") :] + "<think>")
    assert made.follow(user, "<think>", response=()) == whole


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_episode_reads_like_the_rendered_conversation(name):
    made = template(name)
    engine = says(answer("Jump"), answer("Hop || Stay"), template=made)
    (episode,) = play(groups(1, 1), engine, made, max_turn=3)
    messages = list(episode.messages[:-1])
    end = np.flatnonzero(episode.turn_index == 2)[0]
    end += np.flatnonzero(episode.sampled[end:])[0]
    ids = episode.token_ids[:end].tolist()
    served = served_ids(made, messages)
    assert made.tokenizer.decode(ids) == made.tokenizer.decode(served)
    borders = np.flatnonzero(np.diff(episode.sampled[:end].astype(int))) + 1
    assert joined_borders(ids, served, [*borders, *(borders - len(made.end_ids))]) <= 2


def test_thoughts_of_earlier_turns_stay_though_the_template_would_cut_them():
    made = template("qwen3")
    (episode,) = play(
        groups(1, 1),
        says("<think>my plan</think><answer>Jump</answer>", template=made),
        made,
        max_turn=3,
    )
    text = made.tokenizer.decode(episode.token_ids)
    assert text.count("<think>my plan</think>") == 3
    assert "<think>\n\n</think>" not in text


@pytest.mark.parametrize("name", ["qwen2", "mistral"])
@given(response=RESPONSES)
def test_a_response_that_was_cut_off_gets_its_end_marker_unsampled(name, response):
    made = template(name)
    messages = (SYSTEM, {"role": "user", "content": "go"})
    cut, ended = (TokenBuffer(made, messages, "<think>") for _ in range(2))
    body = made.response_ids("<think>" + response, "<think>")[:-1]
    cut.append_sampled(np.array(body, dtype=np.int32), np.zeros(len(body)))
    ended.append_sampled(np.array([*body, made.end_id], dtype=np.int32), np.zeros(len(body) + 1))
    for buffer in (cut, ended):
        buffer.append_user("on")
    assert cut.ids().tolist() == ended.ids().tolist()
    marker = len(made.start(messages, "<think>")) + len(body)
    assert cut.ids()[marker] == made.end_id
    assert not cut.arrays()["sampled"][marker]
    assert ended.arrays()["sampled"][marker]


def test_another_end_token_keeps_its_place_before_the_marker():
    made = template("llama3")
    other = next(i for i in made.stop_ids if i != made.end_id)
    assert made.follow("on", "<think>", response=[other])[0] == made.end_id
    assert made.follow("on", "<think>", response=[made.end_id])[0] != made.end_id


@pytest.mark.parametrize("name", ["qwen2", "gemma", "mistral", "unmarked"])
@given(response=RESPONSES)
def test_given_responses_survive_their_tokens(name, response):
    made = template(name)
    ids = made.response_ids("<think>" + response, "<think>")
    assert ids[-1] == made.end_id in made.stop_ids
    # Text that spells a special token becomes that token, as in every tokenizer of the families.
    if not any(text in response for text in tokenizer(name).all_special_tokens):
        assert made.decode_response(ids) == response.replace(
            "▁", " " if FAMILIES[name].pieces == "sentencepiece" else "▁"
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_system_text_is_never_lost(name):
    made = template(name)
    ids = made.start((SYSTEM, {"role": "user", "content": "the rules"}), "<answer>")
    text = made.tokenizer.decode(ids)
    assert text.index("You play.") < text.index("the rules") < text.index("<answer>")
    assert (made.pinned == "the template refuses a system message") == (name == "gemma")


def test_the_length_of_the_next_message_is_known_before_it_is_written():
    made = template("qwen2")
    buffer = TokenBuffer(made, (SYSTEM, {"role": "user", "content": "go"}), "<think>")
    buffer.append_sampled(np.array([5, 6], dtype=np.int32), np.array([-1.0, -2.0]))
    before, delta = len(buffer), buffer.user_delta("on")
    buffer.append_user("on")
    assert buffer.ids()[before:].tolist() == delta
    assert buffer.arrays()["turn_index"].tolist() == [-1] * (before - 2) + [0, 0] + [1] * len(delta)


def test_a_template_that_loses_responses_is_refused(monkeypatch):
    made = tokenizer("qwen2")
    monkeypatch.setattr(
        made,
        "chat_template",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
    )
    with pytest.raises(ModelError, match="drops or reorders"):
        ChatTemplate(made)
