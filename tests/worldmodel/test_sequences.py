"""World-model rows as training sequences: what carries loss, what is cut, what merging changes (nothing)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.families import NAMES, small_model, template, tokenizer
from helpers.template_families import styled_template

from spa.errors import ConfigError
from spa.formats.registry import format_of, world_model_response
from spa.models.forward import token_logprobs
from spa.recipes.sft_updates import teacher_forced_accuracy
from spa.types import SFTExample
from spa.worldmodel.sequences import (
    TrainingSequence,
    batch_order,
    spread_evenly,
    training_sequences,
)

STATES = ("Player is at (0,0)", "Player is at (0,1)", "Player is at (1,1)", "Player is at (2,1)")


def response_to(turn: int) -> str:
    return world_model_response(STATES[turn], f"plan {turn}", STATES[turn + 1], "Down")


def examples_of(turns=(0, 1, 2), *, episode: str = "e0", system: bool = True) -> list[SFTExample]:
    """Examples of one episode; turns that are left out stay in the conversation of later ones."""
    messages = [{"role": "system", "content": "You play."}] if system else []
    out = []
    for turn in range(3):
        messages.append({"role": "user", "content": f"Turn {turn + 1}:\n{STATES[turn]}"})
        if turn in turns:
            out.append(
                SFTExample(
                    prompt=tuple(messages),
                    response=response_to(turn),
                    tag="Lake",
                    episode_id=episode,
                    turn=turn,
                    puzzle_seed=1,
                    puzzle_hash="p",
                    success=False,
                    reward=0.0,
                    state=STATES[turn],
                    next_state=STATES[turn + 1],
                )
            )
        messages.append({"role": "assistant", "content": response_to(turn)})
    return out


def sequences(
    of, name="qwen2", *, max_length=10_000, merge=True, **settings
) -> list[TrainingSequence]:
    return training_sequences(
        of, template(name), max_length=max_length, merge_turns=merge, **settings
    )[0]


def trained_text(sequence: TrainingSequence, name="qwen2") -> str:
    return template(name).tokenizer.decode(sequence.token_ids[sequence.mask])


@pytest.mark.parametrize("name", NAMES)
def test_all_of_a_response_carries_loss_with_its_true_states_and_its_end(name):
    (first, second, third) = sequences(examples_of(), name, merge=False)
    made = template(name)
    for turn, sequence in enumerate((first, second, third)):
        ids = sequence.token_ids[sequence.mask]
        assert made.decode_response(ids) == response_to(turn).removeprefix("<think>")
        assert STATES[turn + 1] in made.decode_response(ids)  # the true next state
        assert ids[-1] == made.end_id
        assert sequence.mask[-1]
        text = made.tokenizer.decode(sequence.token_ids)
        assert text.count("plan") == turn + 1  # earlier responses are there, without loss
    for kind in ("states_only", "no_states"):
        (sequence,) = sequences(examples_of((1,)), name, loss_on=kind)
        text = trained_text(sequence, name)
        assert (STATES[1] in text and STATES[2] in text) == (kind == "states_only")
        assert ("Down" in text and "plan" in text) == (kind == "no_states")


@pytest.mark.parametrize("merge", [False, True])
def test_responses_without_thoughts_begin_with_their_answer(merge):
    """As playing forces them to, with agent_proxy.enable_think=false."""
    bare = [
        replace(
            example,
            prompt=tuple(
                {**said, "content": "<answer>Down</answer>"}
                if said["role"] == "assistant"
                else said
                for said in example.prompt
            ),
            response="<answer>Down</answer>",
        )
        for example in examples_of()
    ]
    last = sequences(bare, merge=merge)[-1]
    text = template("qwen2").tokenizer.decode(last.token_ids)
    assert text.count("<answer>Down</answer>") == 3 and "<think>" not in text
    assert template("qwen2").decode_response(last.token_ids[last.mask]).startswith("Down</answer>")


@pytest.mark.parametrize("name", NAMES)
def test_merged_turns_hold_the_same_tokens_and_the_loss_of_all_rows(name):
    (merged,) = sequences(examples_of(), name)
    separate = sequences(examples_of(), name, merge=False)
    assert merged.examples == 3
    np.testing.assert_array_equal(merged.token_ids, separate[-1].token_ids)
    assert merged.mask.sum() == sum(sequence.mask.sum() for sequence in separate)
    for sequence in separate:
        np.testing.assert_array_equal(
            merged.token_ids[: len(sequence.token_ids)], sequence.token_ids
        )
        assert (merged.mask[: len(sequence.mask)] >= sequence.mask).all()


def test_merged_turns_have_the_loss_and_the_gradient_of_separate_rows():
    def loss_and_gradient(merge: bool) -> tuple[torch.Tensor, list[torch.Tensor]]:
        model, total = small_model("qwen2"), torch.tensor(0.0)
        for sequence in sequences(
            [*examples_of(), *examples_of((0, 2), episode="e1")], merge=merge
        ):
            ids = torch.from_numpy(sequence.token_ids.astype(np.int64))[None]
            mask = torch.from_numpy(sequence.mask)[None, 1:]
            total = total - token_logprobs(model, ids, mask)[0].sum()
        total.backward()
        return total.detach(), [p.grad for p in model.parameters()]

    torch.testing.assert_close(
        loss_and_gradient(True), loss_and_gradient(False), atol=2e-3, rtol=1e-4
    )


def test_a_turn_that_was_dropped_stays_in_the_conversation_without_loss():
    (sequence,) = sequences(examples_of((0, 2)))
    text = trained_text(sequence)
    assert "plan 0" in text
    assert "plan 1" not in text
    assert "plan 2" in text
    assert sequence.examples == 2
    assert "plan 1" in template("qwen2").tokenizer.decode(sequence.token_ids)


def test_examples_that_are_no_prefixes_of_each_other_are_not_merged():
    first, second, _ = examples_of()
    window = (second.prompt[0], second.prompt[-1])  # of the last turn only
    other = SFTExample(**{**fields_of(second), "prompt": window})
    assert [sequence.examples for sequence in sequences([first, other])] == [1, 1]


def test_examples_of_several_episodes_stay_apart_and_in_order():
    found = sequences([*examples_of(episode="b"), *examples_of((1,), episode="a")])
    assert [sequence.examples for sequence in found] == [3, 1]


def test_states_only_puts_the_loss_on_the_states_and_no_states_on_the_rest():
    every, states, rest = (
        sequences(examples_of((1,)), loss_on=kind)[0]
        for kind in ("response", "states_only", "no_states")
    )
    # labels are masked, inputs stay
    np.testing.assert_array_equal(every.token_ids, states.token_ids)
    np.testing.assert_array_equal(every.token_ids, rest.token_ids)
    np.testing.assert_array_equal(states.mask ^ rest.mask, every.mask)
    assert not (states.mask & rest.mask).any()
    assert trained_text(states).split() == [*STATES[1].split(), *STATES[2].split()]
    text = trained_text(rest)
    assert "(" not in text
    assert "plan 1" in text
    assert "Down</answer>" in text


@pytest.mark.parametrize("kind", ["response", "states_only", "no_states"])
def test_an_end_marker_of_two_tokens_carries_loss_as_a_whole_or_not_at_all(kind):
    made = styled_template("llama2")
    (sequence,), _ = training_sequences(
        examples_of((1,)), made, max_length=4000, merge_turns=True, loss_on=kind
    )
    assert sequence.token_ids[-2:].tolist() == made.end_ids
    assert sequence.mask[-2:].tolist() == [kind != "states_only"] * 2


def test_states_outside_ascii_are_masked_whole():
    example = examples_of((0,))[0]
    text = world_model_response("漢字 √é", "plän", "√ 2", "Down")
    (sequence,) = sequences(
        [SFTExample(**{**fields_of(example), "response": text})], loss_on="states_only"
    )
    assert trained_text(sequence).split() == ["漢字", "√é", "√", "2"]


def test_tokenizers_that_tidy_their_text_do_not_move_the_masks(monkeypatch):
    monkeypatch.setattr(tokenizer("llama3"), "clean_up_tokenization_spaces", True)
    board = "| 1 . 3 4 | . . 1 . | . 1 2 3 | 2 3 4 1"
    text = world_model_response(board, "fill it ,", board, "1,2,3")
    (example,) = examples_of((0,))
    (sequence,) = sequences(
        [SFTExample(**{**fields_of(example), "response": text})], "llama3", loss_on="states_only"
    )
    kept = template("llama3").decode_response(sequence.token_ids[sequence.mask])
    assert kept.split() == board.split() * 2


def test_a_row_that_is_too_long_loses_its_oldest_responses():
    short, middle, whole = (
        len(sequence.token_ids) for sequence in sequences(examples_of(), merge=False)
    )
    (cut,) = sequences(examples_of((2,)), max_length=whole - 1)
    text = template("qwen2").tokenizer.decode(cut.token_ids)
    assert len(cut.token_ids) < whole
    assert "plan 0" not in text
    assert text.count("plan 1") == text.count("plan 2") == 1
    assert text.startswith("<|im_start|>system\nYou play.")  # the rules stay
    assert text.index("Turn 1:") < text.index("Turn 2:") < text.index("Turn 3:")
    assert trained_text(cut) == trained_text(sequences(examples_of((2,)))[0])
    (last,) = sequences(examples_of((2,)), max_length=len(cut.token_ids) - 1)
    assert "plan 1" not in template("qwen2").tokenizer.decode(last.token_ids)
    assert trained_text(last) == trained_text(cut)
    assert short < middle < whole


def test_a_example_whose_last_turn_does_not_fit_is_dropped_and_counted():
    found, dropped = training_sequences(
        examples_of(), template("qwen2"), max_length=20, merge_turns=True
    )
    assert (found, dropped) == ([], 3)


@pytest.mark.parametrize("merge", [True, False])
def test_examples_that_fit_alone_are_trained_though_their_episode_is_too_long(merge):
    whole = len(sequences(examples_of())[0].token_ids)
    found, dropped = training_sequences(
        examples_of(), template("qwen2"), max_length=whole - 1, merge_turns=merge
    )
    assert dropped == 0
    assert sum(sequence.examples for sequence in found) == 3
    text = "".join(trained_text(sequence) for sequence in found)
    assert [text.count(f"plan {turn}") for turn in range(3)] == [1, 1, 1]
    assert max(len(sequence.token_ids) for sequence in found) < whole


def test_only_rows_that_are_too_long_lose_responses_when_turns_are_merged():
    separate = sequences(examples_of(), merge=False)
    limit = len(separate[-1].token_ids) - 1
    whole, cut = sequences(examples_of(), max_length=limit)
    assert (whole.examples, cut.examples) == (2, 1)
    np.testing.assert_array_equal(whole.token_ids, separate[1].token_ids)
    (alone,) = sequences(examples_of((2,)), max_length=limit, merge=False)
    np.testing.assert_array_equal(cut.token_ids, alone.token_ids)


def test_examples_that_are_too_long_are_counted_when_nothing_may_be_cut():
    whole = len(sequences(examples_of())[0].token_ids)
    for merge in (True, False):
        found, dropped = training_sequences(
            examples_of(),
            template("qwen2"),
            max_length=whole - 1,
            merge_turns=merge,
            truncate=False,
        )
        assert dropped == 1
        assert sum(sequence.examples for sequence in found) == 2
        assert all("plan 2" not in trained_text(sequence) for sequence in found)


@pytest.mark.parametrize("turns", [(0,), (0, 1, 2)])
def test_conversations_without_a_system_message_are_trained_too(turns):
    found, dropped = training_sequences(
        examples_of(turns, system=False), template("qwen2"), max_length=10_000, merge_turns=True
    )
    assert dropped == 0
    assert sum(sequence.examples for sequence in found) == len(turns)


def fields_of(example: SFTExample) -> dict:
    return {name: getattr(example, name) for name in SFTExample.__slots__}


def held(examples_of: list[int], batches: list[list[int]]) -> list[int]:
    return [sum(examples_of[index] for index in batch) for batch in batches]


def test_a_batch_is_counted_in_examples_however_they_are_merged():
    apart, merged = [1] * 800, [5] * 160
    for examples_of in (apart, merged, [1, 2, 3, 4, 5, 5] * 40):
        batches = spread_evenly(examples_of, 80, range(len(examples_of)))
        assert held(examples_of, batches) == [80] * 10
        assert sorted(index for batch in batches for index in batch) == list(
            range(len(examples_of))
        )


@pytest.mark.parametrize(
    ("examples_of", "size", "expected"),
    [
        ([1] * 10, 4, [3, 3, 4]),  # no rest of two examples
        ([2, 1, 3, 1], 100, [7]),
        ([9, 1, 1, 1], 4, [1, 2, 9]),  # one sequence that is larger than a batch stays whole
        ([3] * 8, 2, [3] * 8),  # 24 examples, but no batch may be empty
        ([3, 3, 3, 3], 5, [3, 3, 3, 3]),  # ceil(12 / 5) = 3 batches would hold 6 examples
    ],
)
def test_batches_hold_nearly_equal_numbers_of_examples_and_never_more_than_asked(
    examples_of, size, expected
):
    assert (
        sorted(held(examples_of, spread_evenly(examples_of, size, range(len(examples_of)))))
        == expected
    )


def test_batches_come_in_a_new_order_every_epoch_and_can_be_skipped():
    def first(count: int, **settings) -> list[list[int]]:
        batches = batch_order([1, 1, 2, 1, 1, 1, 1], 3, seed=1, **settings)
        return [next(batches) for _ in range(count)]

    six = first(6)
    for epoch in (six[:3], six[3:]):
        assert sorted(index for batch in epoch for index in batch) == list(range(7))
    assert six[:3] != six[3:]
    assert first(2, skip=4) == six[4:]


def odd_tokens(message, ids, template) -> list[bool]:
    return [message["role"] == "assistant" and index % 2 == 1 for index in range(len(ids))]


def test_a_mask_of_ones_own_is_a_path():
    every, own = (
        sequences(examples_of((1,)), loss_on=kind)[0]
        for kind in ("response", f"{__name__}:odd_tokens")
    )
    response = np.flatnonzero(every.mask)
    assert np.flatnonzero(own.mask).tolist() == response[1::2].tolist()


def one_token_short(message, ids, template) -> list[bool]:
    return [True] * (len(ids) - 1)


def test_a_mask_of_the_wrong_length_is_refused():
    with pytest.raises(ConfigError, match=r"sft\.data\.loss_on: the mask .* one bool per token"):
        sequences(examples_of((1,)), loss_on=f"{__name__}:one_token_short")


@pytest.mark.parametrize("lead", ["\n", "Sure. "])
def test_text_before_the_thoughts_of_a_published_example_is_left_out(lead):
    (example,) = examples_of((0,))
    (expected,) = sequences([example])
    (found,) = sequences([replace(example, response=lead + example.response)])
    assert found.token_ids.tolist() == expected.token_ids.tolist()


@pytest.mark.parametrize("loss_on", ["response", "states_only", "no_states"])
@pytest.mark.parametrize("merge", [False, True])
def test_every_part_is_scored_whatever_carries_loss(loss_on, merge):
    made = sequences(examples_of(), merge=merge, loss_on=loss_on)
    width = max(len(sequence.token_ids) for sequence in made)
    right = np.ones((len(made), width - 1), bool)
    shares = teacher_forced_accuracy(right, made, format_of("prediction_first"), template("qwen2"))
    assert shares == {
        f"val/teacher_forced/{kind}": 1.0 for kind in ("observation", "prediction", "answer")
    }


def test_the_answer_of_a_response_without_thoughts_is_scored_as_an_answer():
    (example,) = examples_of((1,))
    (sequence,) = sequences([replace(example, response="<answer>Down</answer>")])
    right = np.ones((1, len(sequence.token_ids) - 1), bool)
    shares = teacher_forced_accuracy(right, [sequence], format_of("search"), template("qwen2"))
    assert shares == {"val/teacher_forced/answer": 1.0}
