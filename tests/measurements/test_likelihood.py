"""Teacher-forced likelihood: which tokens count, what they cost, calibration by hand."""

import numpy as np
import pytest
import torch

from spa.formats.registry import world_model_response
from spa.models.forward import token_logprobs
from spa.prompts.template import ChatTemplate
from spa.prompts.text_tokens import encode_with_ends
from spa_bench.tiny_model.pretrain import new_model
from spa_bench.tiny_model.tokenizer import build_tokenizer
from spa_measurements.likelihood import (
    BLOCKS,
    Scored,
    calibration,
    likelihood_report,
    nll_per_token,
    response_sequence,
    score_sequences,
)


@pytest.fixture(scope="module")
def template() -> ChatTemplate:
    return ChatTemplate(
        build_tokenizer(["<think>", "<observation>", "</observation>"], ["Up", "Left"])
    )


@pytest.fixture(scope="module")
def model(template):
    return new_model(len(template.tokenizer), 0, template.tokenizer)


def scored(logprobs, blocks, top=0.5, hit=True) -> Scored:
    n = len(logprobs)
    return Scored(
        logprob=np.array(logprobs, dtype=np.float32),
        top=np.full(n, top, dtype=np.float32),
        hit=np.full(n, hit),
        block=np.array([BLOCKS.index(block) for block in blocks], dtype=np.int8),
    )


def test_blocks_hold_exactly_their_content(template):
    response = world_model_response("P_ é\n_G", "thoughts", "_P √\n_G", "Up || Left")
    prompt = template.start(({"role": "user", "content": "hi"},), "<think>")
    found = response_sequence(template, prompt, response, "<think>")
    for index, text in enumerate(("P_ é\n_G", "_P √\n_G", "Up || Left")):
        assert template.tokenizer.decode(found.ids[found.block == index]).strip() == text
    assert found.ids[-1] == template.end_id and found.block[-1] == -1
    assert (found.block[: len(prompt)] == -1).all()
    assert found.ids.tolist() == [*prompt, *template.response_ids(response, "<think>")]


def test_ends_of_a_slow_tokenizer_are_those_of_a_fast_one(template):
    class Slow:
        is_fast = False

        def __call__(self, text, **options):
            options.pop("return_offsets_mapping", None)
            return template.tokenizer(text, **options)

        def decode(self, ids, **options):
            return template.tokenizer.decode(ids, **options)

    text = "<observation> Up || (1,2) Left"
    for fast, slow in zip(
        encode_with_ends(template.tokenizer, text), encode_with_ends(Slow(), text), strict=True
    ):
        assert fast.tolist() == slow.tolist()


def test_scores_are_the_models_logprobs_whatever_the_batch(template, model):
    prompt = template.start(({"role": "user", "content": "hi"},), "<think>")
    responses = [world_model_response("P_", "", "_P" * n, "Up") for n in (1, 5, 2)]
    sequences = [response_sequence(template, prompt, response, "<think>") for response in responses]
    together, alone = (
        score_sequences(model, sequences, rows=8),
        score_sequences(model, sequences, rows=1),
    )
    for sequence, one, other in zip(sequences, together, alone, strict=True):
        ids = torch.from_numpy(sequence.ids.astype(np.int64))[None]
        mask = torch.from_numpy(sequence.block >= 0)[None, 1:]
        with torch.no_grad():
            expected = token_logprobs(model, ids, mask)[0][mask].numpy()
        np.testing.assert_allclose(one.logprob, expected, atol=1e-5)
        np.testing.assert_allclose(one.logprob, other.logprob, atol=1e-5)
        assert ((one.top >= np.exp(one.logprob) - 1e-6) | one.hit).all()


def test_report_by_hand():
    truth = [
        scored([-1, -3, -2, -1], ["observation", "prediction", "prediction", "answer"]),
        scored([-1, -1, -4], ["observation", "prediction", "answer"]),
    ]
    copied = {
        0: scored([-1, -0.5, -0.5, -4.5], ["observation", "prediction", "prediction", "answer"])
    }
    report = likelihood_report(truth, copied, vocabulary=10)
    assert report["nll_per_token"] == {"observation": 1.0, "prediction": 2.0, "answer": 2.5}
    assert report["nll_per_state"] == 3.0
    assert report["copied_state_nll_per_token"] == 0.5
    assert report["changed_state_nll_per_token"] == 2.5
    assert report["prefers_truth"] == {"mean": 0.0, "n": 1}  # -6 against -5.5
    assert report["uniform_nll_per_token"] == pytest.approx(np.log(10), abs=1e-6)
    assert report["calibration"]["tokens"] == 3
    assert report["calibration"]["ece"] == 0.5
    assert nll_per_token([], "answer") is None


def test_calibration_by_hand():
    found = calibration(np.array([0.95, 0.95, 0.15, 1.0]), np.array([True, False, True, True]))
    # bins: [0.1, 0.2) holds one (gap 0.85); [0.9, 1] holds three, accuracy 2/3 against 2.9/3 (gap 0.3)
    assert found["ece"] == pytest.approx((0.85 + 3 * 0.3) / 4)
    assert [part["n"] for part in found["bins"]] == [1, 3]
    assert calibration(np.zeros(0), np.zeros(0, dtype=bool)) == {"tokens": 0}
