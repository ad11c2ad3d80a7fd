"""Decoding on fixed buffers, without a GPU: the step that would be recorded, run as it is."""

import numpy as np
import pytest
import torch
from helpers.families import small_model
from helpers.play import groups, play
from test_local_engine import (
    SAMPLING,
    check_against_forward,
    ending_template,
    forward_logprobs,
    prompts,
    texts,
)

from spa.engines import local
from spa.engines.local import LocalEngine
from spa.models.low_precision import low_precision_copy, refresh_copy


@pytest.mark.parametrize("name", ["qwen2", "llama3", "gemma"])
def test_fixed_buffers_change_nothing(name):
    made, model = ending_template(name), small_model(name)
    growing = play(groups(2, 3), LocalEngine(model, made), made, max_turn=3, max_tokens=10)
    static = play(groups(2, 3), LocalEngine(model, made, static=True), made, max_turn=3, max_tokens=10)
    for a, b in zip(growing, static, strict=True):
        np.testing.assert_array_equal(a.token_ids, b.token_ids)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


def test_rows_that_end_early_leave_the_fixed_buffers_too(monkeypatch):
    made, model = ending_template("qwen2", share=4), small_model("qwen2")
    steps = []
    monkeypatch.setattr(local, "StaticStep", lambda *args: steps.append(local_step(*args)) or steps[-1])
    asked = prompts(made, 8)
    LocalEngine(model, made, static=True).generate(asked, SAMPLING)
    assert len(steps) == 1  # so few are not worth a new recording
    steps.clear()
    monkeypatch.setattr(local, "_STATIC_ROWS", 1)
    found = LocalEngine(model, made, static=True).generate(asked, SAMPLING)
    assert len(steps) >= 2  # a new one whenever rows are moved together
    assert len({len(completion.token_ids) for completion in found}) > 2
    check_against_forward(model, asked, found)


local_step = local.StaticStep


def test_the_twin_computes_what_autocast_computes():
    made, model = ending_template("qwen2"), small_model("qwen2")
    asked = prompts(made, 4)
    found = LocalEngine(model, made, autocast=torch.bfloat16, static=True).generate(asked, SAMPLING)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gaps = [
            np.abs(forward_logprobs(model, p.token_ids, c.token_ids) - c.logprobs)
            for p, c in zip(asked, found, strict=True)
        ]
    exact = [
        np.abs(forward_logprobs(model, p.token_ids, c.token_ids) - c.logprobs)
        for p, c in zip(asked, found, strict=True)
    ]
    assert 0 < np.concatenate(gaps).mean() < 0.02
    assert np.concatenate(exact).mean() < 0.05


def test_the_twin_shares_what_is_not_a_matrix_and_follows_the_rest():
    model = small_model("qwen2")
    twin = low_precision_copy(model, torch.bfloat16)
    layer, own = model.model.layers[0], twin.model.layers[0]
    assert own.input_layernorm.weight is layer.input_layernorm.weight
    assert twin.model.embed_tokens.weight is model.model.embed_tokens.weight
    assert own.mlp.up_proj.weight.dtype == torch.bfloat16
    assert layer.mlp.up_proj.weight.dtype == torch.float32
    address = own.mlp.up_proj.weight.data_ptr()
    with torch.no_grad():
        layer.mlp.up_proj.weight.add_(1)
        layer.self_attn.q_proj.bias.add_(1)
    refresh_copy(twin, model)
    assert own.mlp.up_proj.weight.data_ptr() == address
    assert torch.equal(own.mlp.up_proj.weight, layer.mlp.up_proj.weight.bfloat16())
    assert torch.equal(own.self_attn.q_proj.bias, layer.self_attn.q_proj.bias.bfloat16())


def test_new_weights_reach_the_sampler():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, autocast=torch.bfloat16, static=True)
    before = texts(engine.generate(prompts(made, 3), SAMPLING))
    engine.load_weights(small_model("qwen2", seed=1), version=1)
    after = texts(engine.generate(prompts(made, 3), SAMPLING))
    expected = LocalEngine(small_model("qwen2", seed=1), made, autocast=torch.bfloat16, static=True).generate(
        prompts(made, 3), SAMPLING
    )
    assert before != after == texts(expected)
