"""ActObs: which tokens of a conversation carry loss when the shown states do."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from helpers.families import NAMES, template

from spa.methods.act_obs import sft_mask
from spa.prompts.render import shown_state
from spa.prompts.template import ChatTemplate
from spa.types import IMAGE, SFTExample
from spa.worldmodel.sequences import TrainingSequence, training_sequences

SHOWN = ("P__G", "_P_G", "__PG")


def said(turn: int, legal: str = "") -> str:
    return f"Reward: -0.1\n\nTurn {turn + 1}:\nState:\n{SHOWN[turn]}{legal}\nActions left: {9 - turn}. Reply only."


def examples_of(turns=(0, 1, 2)) -> list[SFTExample]:
    """Three turns to the right. What should be known (`state`) is not what is shown."""
    messages, out = [{"role": "system", "content": "You play."}], []
    for turn in range(3):
        messages.append({"role": "user", "content": said(turn)})
        response = f"<think>go {turn}</think><answer>Right</answer>"
        example = SFTExample(
            prompt=tuple(messages), response=response, tag="Lake", episode_id="e", turn=turn, puzzle_seed=1,
            puzzle_hash="p", success=False, reward=0.0, state="hidden", next_state="hidden",
        )  # fmt: skip
        out += [example] if turn in turns else []
        messages.append({"role": "assistant", "content": response})
    return out


def sequences(
    of, name="qwen2", *, loss_on: str = "act_obs", merge=True, length=4000
) -> list[TrainingSequence]:
    return training_sequences(
        of, template(name), max_length=length, merge_turns=merge, loss_on=loss_on
    )[0]


class OneTokenPerCharacter:
    """A template without marks: every character is a token."""

    images, end_ids = None, [0]

    def start(self, messages, prefill, images=()):
        return [ord(c) for c in "".join(message["content"] for message in messages) + prefill]

    def response_ids(self, text, prefill):
        return [*map(ord, text.removeprefix(prefill)), 0]

    def follow(self, text, prefill, *, response=(), images=()):
        return [ord(c) for c in text + prefill]

    def decode_response(self, ids):
        return "".join(map(chr, ids))

    def token_text(self, token):
        return chr(token)


def test_masks_by_hand():
    """S: system, u: the rules, then what each character is; 1 carries loss."""
    example = replace(
        examples_of((1,))[0],
        prompt=(
            {"role": "system", "content": "S"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "<think>a<answer>"},
            {"role": "user", "content": "R\nState:\nxy\nActions left: 1."},
        ),
        response="<think>b<answer>",
    )
    first = replace(example, prompt=example.prompt[:2], response="<think>a<answer>", turn=0)
    made = cast(ChatTemplate, OneTokenPerCharacter())
    marks: dict[str, str] = {
        #           Su<think> a<answer> end R.State:. xy .Actions left: 1. <think> b<answer> end
        "response": "00" + "0" * 7 + "1" * 10 + "0" * 9 + "00" + "0" * 17 + "0" * 7 + "1" * 10,
        "act_obs":  "00" + "0" * 7 + "1" * 10 + "0" * 9 + "11" + "0" * 17 + "0" * 7 + "1" * 10,
    }  # fmt: skip
    for loss_on, mark in marks.items():
        (sequence,), _ = training_sequences(
            [first, example], made, max_length=99, merge_turns=True, loss_on=loss_on
        )
        assert "".join(str(int(flag)) for flag in sequence.mask) == mark


@pytest.mark.parametrize("name", NAMES)
def test_the_states_between_responses_carry_loss_in_every_family(name):
    (both,), (response,) = (
        sequences(examples_of(), name),
        sequences(examples_of(), name, loss_on="response"),
    )
    np.testing.assert_array_equal(both.token_ids, response.token_ids)
    assert (both.mask >= response.mask).all()
    text = template(name).tokenizer.decode(both.token_ids[both.mask & ~response.mask])
    assert "".join(text.split()) == SHOWN[1] + SHOWN[2]  # the first state is a question, no answer


def test_merged_turns_carry_the_loss_of_separate_rows():
    (merged,), apart = sequences(examples_of()), sequences(examples_of(), merge=False)
    together = np.zeros(len(merged.mask), dtype=int)
    for sequence in apart:
        together[: len(sequence.mask)] += sequence.mask
    np.testing.assert_array_equal(together, merged.mask)


def test_a_state_whose_response_is_cut_away_or_not_trained_carries_none():
    def added(of, length=4000) -> str:
        (both,), (response,) = (
            sequences(of, length=length),
            sequences(of, loss_on="response", length=length),
        )
        return "".join(
            template("qwen2").tokenizer.decode(both.token_ids[both.mask & ~response.mask]).split()
        )

    (whole,) = sequences(examples_of((2,)))
    assert added(examples_of((2,))) == SHOWN[2]
    assert (
        added(examples_of((2,)), len(whole.token_ids) - 1) == SHOWN[2]
    )  # its oldest response is gone
    # its state is in the first message
    assert added(examples_of((1,)), len(sequences(examples_of((1,)))[0].token_ids) - 1) == ""


def test_the_state_is_read_from_a_turn_message():
    assert shown_state(said(1)) == shown_state(said(1, "\nLegal actions: Left, Right")) == SHOWN[1]
    assert shown_state("You see a door.") == ""


def test_other_layouts_count_whole_and_pictures_not():
    made = cast(ChatTemplate, OneTokenPerCharacter())
    ids = [ord(c) for c in "<a door>"]
    assert sft_mask({"role": "user", "content": " a door\n"}, ids, made) == [
        False,
        *[True] * 6,
        False,
    ]
    assert sft_mask({"role": "user", "content": "another text"}, ids, made) == [False] * 8
    picture = said(1).replace(SHOWN[1], IMAGE)
    assert not any(sft_mask({"role": "user", "content": picture}, [ord(c) for c in picture], made))
