"""The forward pass of sampling: the same numbers as the model's own, in fewer operations."""

import numpy as np
import pytest
import torch
from helpers.families import small_model
from test_local_engine import SAMPLING, ending_template, forward_logprobs, prompts

from spa.engines.fused import FusedModel, can_fuse
from spa.engines.kv_cache import GrowingCache
from spa.engines.local import LocalEngine
from spa.models.lora import add_adapters


def asked_of(model, ids: torch.Tensor, cache, past: int) -> dict:
    """Arguments of a call that reads `ids` after `past` columns."""
    rows, q = ids.shape
    mask = torch.zeros((rows, 1, q, past + q)).masked_fill(
        torch.ones(q, past + q).triu(past + 1).bool(), -1e30
    )
    positions = torch.arange(past, past + q).expand(rows, q)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "position_ids": positions,
        "past_key_values": cache,
    }


@pytest.mark.parametrize("name", ["qwen2", "llama3"])
def test_logits_are_those_of_the_model_while_reading_and_while_writing(name):
    model = small_model(name)
    fused = FusedModel(model, torch.float32)
    ids = torch.arange(3 * 12).view(3, 12) % 50 + 3
    cache = GrowingCache(model.config.num_hidden_layers)
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
        found = [fused(**asked_of(model, ids[:, :9], cache, 0)).logits[:, 0]]
        found += [
            fused(**asked_of(model, ids[:, i : i + 1], cache, i)).logits[:, 0] for i in (9, 10, 11)
        ]
    torch.testing.assert_close(torch.stack(found, 1), expected[:, 8:], atol=1e-4, rtol=1e-4)


def test_attention_in_blocks_of_rows_is_attention(monkeypatch):
    model, ids = small_model("qwen2"), torch.arange(40).view(4, 10) + 3
    fused, layers = FusedModel(model, torch.float32), model.config.num_hidden_layers
    with torch.inference_mode():
        whole = fused(**asked_of(model, ids, GrowingCache(layers), 0)).logits
        monkeypatch.setattr("spa.engines.fused.PREFILL_SCORES", 1)
        torch.testing.assert_close(
            fused(**asked_of(model, ids, GrowingCache(layers), 0)).logits, whole
        )


def test_bfloat16_sampling_computes_what_autocast_computes():
    made, model = ending_template("qwen2"), small_model("qwen2")
    engine = LocalEngine(model, made, autocast=torch.bfloat16)
    assert isinstance(engine.sampler, FusedModel)
    asked = prompts(made, 4)
    found = engine.generate(asked, SAMPLING)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gaps = [
            np.abs(forward_logprobs(model, p.token_ids, c.token_ids) - c.logprobs)
            for p, c in zip(asked, found, strict=True)
        ]
    assert 0 < np.concatenate(gaps).mean() < 0.02


def test_adapters_are_merged_where_they_are_read_at_all():
    model = small_model("qwen2")
    add_adapters(model, rank=2, alpha=4, target_modules="all-linear", seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    ids = torch.arange(24).view(2, 12) + 3
    with torch.inference_mode():
        expected = model(input_ids=ids).logits[:, -1:]
        asked = asked_of(model, ids, GrowingCache(model.config.num_hidden_layers), 0)
        found = FusedModel(model, torch.float32)(**asked).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    without = FusedModel(small_model("qwen2"), torch.float32)
    asked["past_key_values"] = GrowingCache(model.config.num_hidden_layers)
    assert (without(**asked).logits - expected).abs().max() > 0.1


def test_models_with_other_layers_are_read_by_themselves():
    assert can_fuse(small_model("qwen2"), torch.float32)
    assert not can_fuse(small_model("qwen3"), torch.float32)  # norms of queries and keys
    assert not can_fuse(small_model("gemma"), torch.float32)
    adapted = small_model("qwen2")
    add_adapters(adapted, rank=2, alpha=4, target_modules="all-linear", seed=0)
    assert not can_fuse(adapted, torch.float32)


def test_weights_are_copied_in_their_own_dtype_only_if_they_are_small(monkeypatch):
    model = small_model("llama3", hidden_size=288)
    size = sum(parameter.nbytes for parameter in model.parameters())
    monkeypatch.setattr("spa.engines.fused.COPY_BYTES", size)
    assert can_fuse(model, torch.float32)
    monkeypatch.setattr("spa.engines.fused.COPY_BYTES", size - 1)
    assert not can_fuse(model, torch.float32)
    # A copy in another dtype saves a conversion per matrix and step.
    assert can_fuse(model, torch.bfloat16)
