"""The decoder that samples on a GPU, without CUDA graphs: tokens and log-probs of the engine's other path."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.families import small_model, template
from helpers.play import groups, play
from test_local_engine import (
    SAMPLING,
    check_against_forward,
    check_episodes,
    ending_template,
    prompts,
    texts,
)
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import AutoModelForCausalLM

from spa.engines import decoder as decoder_module
from spa.engines import fused
from spa.engines.decoder import Decoder, _batch_sizes
from spa.engines.fused import FusedModel
from spa.engines.local import LocalEngine
from spa.engines.sampling import row_uniforms
from spa.types import Completion, SamplingParams


def decoder_of(engine: LocalEngine) -> Decoder:
    assert engine.decoder is not None
    return engine.decoder


def ids_of(completion: Completion) -> np.ndarray:
    assert completion.token_ids is not None
    return completion.token_ids


@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_episodes_are_those_of_the_other_path(name):
    made, model = ending_template(name), small_model(name)
    usual, found = (
        play(groups(2, 3), LocalEngine(model, made, graphs=graphs), made, max_turn=3, max_tokens=10)
        for graphs in (False, True)
    )
    for a, b in zip(usual, found, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
    check_episodes(model, found)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(max_tokens=8, temperature=0.0),
        SamplingParams(max_tokens=8, temperature=0.7, top_k=20),
        SamplingParams(max_tokens=8, top_p=0.8),
    ],
)
def test_every_kind_of_sampling_gives_the_same_tokens(sampling):
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 5)
    usual, found = (
        LocalEngine(model, made, graphs=graphs).generate(asked, sampling)
        for graphs in (False, True)
    )
    assert texts(found) == texts(usual)
    for a, b in zip(found, usual, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_bfloat16_differs_by_no_more_than_the_other_path():
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 6)
    exact = LocalEngine(model, made).generate(asked, SAMPLING)
    usual, found = (
        LocalEngine(model, made, autocast=torch.bfloat16, graphs=graphs).generate(asked, SAMPLING)
        for graphs in (False, True)
    )
    same = [a == b == c for a, b, c in zip(*map(texts, (exact, usual, found)), strict=True)]
    assert sum(same) >= 3
    for a, b, ok in zip(found, usual, same, strict=True):
        if ok:
            np.testing.assert_allclose(a.logprobs, b.logprobs, atol=0.02)


def test_samples_belong_to_the_row_and_not_to_the_batch():
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 10)
    together = LocalEngine(model, made, graphs=True).generate(asked, SAMPLING)
    by_threes = LocalEngine(model, made, graphs=True, max_rows=3).generate(asked[::-1], SAMPLING)
    assert texts(together) == texts(by_threes[::-1])
    check_against_forward(model, asked, together)
    assert LocalEngine(model, made, graphs=True).generate([], SAMPLING) == []


def test_what_rows_begin_with_is_read_once(monkeypatch):
    made, model = template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, graphs=True)
    read = []
    usual = Decoder._hidden

    def counted(self, ids, *args, **how):
        read.append(len(ids))
        return usual(self, ids, *args, **how)

    monkeypatch.setattr(Decoder, "_hidden", counted)
    asked = prompts(made, 5, same=True)
    responses = engine.generate(asked, SAMPLING)
    # the prompt without its last token, then the last token of every row
    assert read[:2] == [len(asked[0].token_ids) - 1, 5]
    check_against_forward(model, asked, responses)
    read.clear()
    longer = [
        replace(p, token_ids=np.concatenate([p.token_ids, ids_of(r), p.token_ids[:4]]))
        for p, r in zip(asked, responses, strict=True)
    ]
    check_against_forward(model, longer, engine.generate(longer, SAMPLING))
    assert read[0] == 5 * 5  # the four new ones and the last of the response


def test_long_prompts_are_read_in_several_passes(monkeypatch):
    made, model = ending_template("qwen2"), small_model("qwen2")
    monkeypatch.setattr(decoder_module, "READ_TOKENS", 50)
    asked = prompts(made, 7)
    check_against_forward(
        model, asked, LocalEngine(model, made, graphs=True).generate(asked, SAMPLING)
    )


def test_rows_that_have_ended_leave_for_a_smaller_graph(monkeypatch):
    made, model = ending_template("qwen2", share=4), small_model("qwen2")
    sizes = []
    usual = Decoder._step

    def counted(self, size, sampling):
        sizes.append(size)
        usual(self, size, sampling)

    engine, asked = LocalEngine(model, made, graphs=True), prompts(made, 20)
    monkeypatch.setattr(Decoder, "_step", counted)
    found = engine.generate(asked, SAMPLING)
    assert sizes == sorted(sizes, reverse=True) and {16, 8} == set(sizes)
    check_against_forward(model, asked, found)


def test_more_and_longer_episodes_get_more_memory_and_keep_what_they_have(monkeypatch):
    monkeypatch.setattr(decoder_module, "COLUMNS", 16)
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, graphs=True)
    asked = prompts(made, 3)
    responses = engine.generate(asked, SAMPLING)
    first = decoder_of(engine).buffers[0].shape
    engine.generate([replace(p, episode_id=f"o{p.seed}") for p in prompts(made, 9)], SAMPLING)
    longer = [
        replace(p, token_ids=np.concatenate([p.token_ids, ids_of(r), p.token_ids]))
        for p, r in zip(asked, responses, strict=True)
    ]
    found = engine.generate(longer, SAMPLING)
    check_against_forward(model, longer, found)
    last = decoder_of(engine).buffers[0].shape
    assert last[1] == 13 and first[1] == 4 and last[2] > first[2]
    # the cache of another conversation is used only as far as it is the same
    other = [replace(p, episode_id=f"e{i}") for i, p in enumerate(prompts(made, 3, seed=5)[::-1])]
    check_against_forward(model, other, engine.generate(other, SAMPLING))


def test_memory_is_released_when_no_episode_is_left():
    made, model = template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, graphs=True)
    asked = prompts(made, 3)
    engine.generate(asked, SAMPLING)
    decoder = decoder_of(engine)
    assert set(decoder.slots) == {"e0", "e1", "e2"} and decoder.buffers
    engine.forget(["e1", "never seen"])
    assert set(decoder.slots) == {"e0", "e2"} and decoder.buffers
    engine.forget(["e0", "e2"])
    assert not decoder.slots and not decoder.buffers and decoder.state is None
    engine.generate([replace(prompt, continued=False) for prompt in asked], SAMPLING)
    assert not decoder.slots
    engine.close()
    assert not decoder.buffers


def test_a_second_rollout_uses_the_steps_and_the_memory_of_the_first():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, graphs=True)
    decoder = decoder_of(engine)
    asked = prompts(made, 9)
    engine.generate(asked, SAMPLING)
    engine.forget([prompt.episode_id for prompt in asked])
    assert not decoder.buffers and not decoder.steps
    decoder.kept_bytes = 2**30  # a GPU of 16 GiB
    responses = engine.generate(asked, SAMPLING)
    steps, buffers, state = dict(decoder.steps), list(decoder.buffers), decoder.state
    assert [size for size, _ in steps] == [16, 8]
    engine.forget([prompt.episode_id for prompt in asked])
    engine.load_weights(model, version=1)
    # validation: fewer rows, and steps of another temperature
    greedy = SamplingParams(max_tokens=8, temperature=0.0)
    check_against_forward(model, asked[:2], engine.generate(asked[:2], SAMPLING))
    engine.generate(asked[:2], greedy)
    engine.forget([prompt.episode_id for prompt in asked])
    assert texts(engine.generate(asked, replace(SAMPLING, max_tokens=7))) == [
        ids[:7] for ids in texts(responses)
    ]
    assert len(decoder.steps) == 3 and all(decoder.steps[key] is steps[key] for key in steps)
    assert decoder.state is state
    assert all(a is b for a, b in zip(decoder.buffers, buffers, strict=True))
    # Larger buffers have other addresses, and PyTorch refuses the pool of graphs that are gone.
    decoder.pool = object()
    engine.generate([replace(p, episode_id=f"o{p.seed}") for p in prompts(made, 20)], SAMPLING)
    assert decoder.pool is None and not set(decoder.steps.values()) & set(steps.values())
    engine.close()
    assert not decoder.buffers and not decoder.steps


def test_a_step_neither_waits_for_the_gpu_nor_depends_on_numbers_there():
    """Tensors on the meta device have no numbers: reading one, or a shape that follows from one, is
    an error, as in a CUDA graph. Attention is the operator of a GPU."""
    model = small_model("qwen2").to("meta")
    matrices = FusedModel(model, torch.bfloat16)
    decoder = Decoder(matrices, [1, 2], torch.device("meta"))
    with torch.no_grad():
        decoder._reserve(slots=10, rows=16, columns=300)
        for sampling in (
            SamplingParams(),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
        ):
            state = dict(vars(decoder.state))
            for size in _batch_sizes(10):
                decoder._step(size, sampling)
            # A graph reads and writes these tensors; a new one would not be seen.
            assert all(vars(decoder.state)[name] is part for name, part in state.items())
        with pytest.raises((RuntimeError, NotImplementedError)):
            decoder.state.results.cpu().numpy()


def test_new_weights_are_copied_to_where_the_graphs_read_them(monkeypatch):
    monkeypatch.setattr(fused, "_packable", lambda: ())  # as on a GPU
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, graphs=True)
    matrices = engine.sampler

    def addresses():
        parts = [x for layer in matrices.layers for x in vars(layer).values() if x is not layer.act]
        parts += [matrices.head, matrices.embed, matrices.norm]
        read = [x for part in parts for x in (part.weight, getattr(part, "bias", None))]
        return [None if x is None else x.data_ptr() for x in read]

    places = addresses()
    engine.generate(prompts(made, 2), SAMPLING)
    changed = AutoModelForCausalLM.from_config(model.config)
    changed.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})
    engine.load_weights(changed, version=1)
    assert addresses() == places
    asked = prompts(made, 2)
    check_against_forward(changed, asked, engine.generate(asked, SAMPLING))


def test_a_decoder_that_is_wrong_or_fails_is_not_used(monkeypatch, caplog):
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 3)
    usual = LocalEngine(model, made).generate(asked, SAMPLING)

    def unscaled(x, norm):
        return x * norm.weight

    def broken(*args, **kwargs):
        raise RuntimeError("operation not permitted when stream is capturing")

    for wrong, reason in ((unscaled, "log-probs differ by"), (broken, "not permitted")):
        monkeypatch.setattr(decoder_module, "_normed", wrong)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            engine = LocalEngine(model, made, graphs=True)
        assert engine.decoder is None and reason in caplog.text
        assert texts(engine.generate(asked, SAMPLING)) == texts(usual)


def test_models_that_are_not_fused_keep_the_other_path(caplog):
    with caplog.at_level(logging.WARNING):
        engine = LocalEngine(small_model("qwen3"), ending_template("qwen3"), graphs=True)
    assert engine.decoder is None and "no forward pass of its own" in caplog.text


def test_a_recorded_step_can_be_replayed(monkeypatch):
    """A trace fixes shapes, addresses and numbers of Python, as a CUDA graph does."""

    def fixed_shape(query, keys, values, *, key_starts, longest_key, lengths, scale, **unused):
        columns = torch.arange(longest_key)
        slots = key_starts[:-1, None].long() + columns
        seen = columns < lengths[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            query[:, :, None],
            keys[slots].transpose(1, 2),
            values[slots].transpose(1, 2),
            attn_mask=seen[:, None, None],
            scale=scale,
            enable_gqa=True,
        )[:, :, 0]

    made, model = ending_template("qwen2"), small_model("qwen2")
    asked, sampling = prompts(made, 6), SamplingParams(max_tokens=9)
    expected = LocalEngine(model, made).generate(asked, sampling)
    monkeypatch.setattr(decoder_module, "varlen_attention", fixed_shape)
    decoder = Decoder(FusedModel(model, torch.float32), sorted(made.stop_ids), torch.device("cpu"))
    with torch.no_grad():
        slots = decoder._take_slots(asked, 9)
        recorded = make_fx(lambda: decoder._step(8, sampling))()
        monkeypatch.undo()
        hidden = decoder._read_prompts(asked, slots)
        decoder.state.begin(
            torch.tensor([slot.number for slot in slots]),
            torch.tensor([len(prompt.token_ids) for prompt in asked]),
            row_uniforms(asked, 9),
        )
        decoder._sample(hidden, sampling)
        found = decoder._decode(6, {8: recorded}, 9)
    assert [ids.tolist() for ids, _ in found] == texts(expected)


def test_a_few_batch_sizes_have_a_graph():
    assert _batch_sizes(1) == _batch_sizes(8) == [8]
    assert _batch_sizes(100) == [128, 64, 32, 16, 8]
    assert _batch_sizes(300) == [512, 256, 128, 64, 32, 16, 8]
