"""Rows read as one sequence without padding: the same numbers and gradients as one by one."""

import pytest
import torch
from helpers.families import small_model

from spa.models import attention
from spa.models.forward import Critic, micro_batches, pack_rows, token_logprobs, token_values
from spa.models.load import save_activations


def batch():
    """Rows of 12, 7, 9 and 5 tokens; the mask ends before the row does, and one row has no wanted prediction."""
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (4, 12), generator=made)
    mask = torch.zeros((4, 11), dtype=torch.bool)
    mask[0, 3:11] = mask[1, 2:4] = mask[2, 5] = True
    return ids, mask


@pytest.mark.parametrize("name", ["qwen2", "gemma"])
def test_packed_rows_give_the_same_numbers_and_gradients(name):
    ids, mask = batch()
    results = []
    for packed in (False, True):
        model = small_model(name)
        assert not packed or pack_rows(model)
        logprobs, entropy = token_logprobs(model, ids, mask, with_entropy=True)
        logprobs.sum().backward()
        results.append((logprobs.detach(), entropy, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], atol=2e-5, rtol=1e-3)


def test_packed_values():
    ids, mask = batch()
    found = []
    for packed in (False, True):
        critic = Critic(small_model("qwen2").base_model)
        torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(1))
        assert not packed or pack_rows(critic)
        values = token_values(critic, ids, mask)
        (values * torch.linspace(-1, 1, 11)).sum().backward()
        found.append((values.detach(), [p.grad for p in critic.parameters()]))
    torch.testing.assert_close(found[1], found[0], atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize(("name", "checkpointing"), [("qwen2", False), ("qwen3", True)])
def test_packed_attention_needs_no_mask(name, checkpointing, monkeypatch):
    ids, mask = batch()
    results = []
    for packed in (False, True):
        model = small_model(name)
        if packed:
            model.set_attn_implementation(attention.register(attention.PACKED))
            assert pack_rows(model)
            # transformers makes no mask either
            monkeypatch.setattr(attention, "sdpa_attention_forward", None)
        if checkpointing:
            save_activations(model)
        model.train()
        logprobs, entropy = token_logprobs(model, ids, mask, with_entropy=True)
        logprobs.sum().backward()
        results.append((logprobs.detach(), entropy, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], atol=2e-5, rtol=1e-3)


def test_packed_attention_in_bfloat16_and_of_rows_that_are_not_packed():
    ids, mask = batch()
    model, packed = small_model("qwen2"), small_model("qwen2")
    packed.set_attn_implementation(attention.register(attention.PACKED))
    expected, _ = token_logprobs(model, ids, mask)
    torch.testing.assert_close(token_logprobs(packed, ids, mask)[0], expected)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert pack_rows(packed)
        found, _ = token_logprobs(packed, ids, mask)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0.0)


@pytest.mark.parametrize(("heads", "key_heads"), [(4, 2), (4, 4)])
def test_the_operator_of_a_gpu_takes_these_arguments_and_has_gradients(heads, key_heads):
    """On the meta device: shapes and types, without numbers."""
    query, key, value = (
        torch.empty(12, count, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
        for count in (heads, key_heads, key_heads)
    )
    starts = torch.empty(4, dtype=torch.int32, device="meta")
    out = attention.varlen_attention(
        query,
        key,
        value,
        query_starts=starts,
        key_starts=starts,
        longest_query=5,
        longest_key=5,
        scale=0.125,
    )
    assert out.shape == query.shape and out.dtype == torch.bfloat16
    out.sum().backward()
    for part in (query, key, value):
        assert part.grad is not None and part.grad.shape == part.shape


def test_attention_that_mixes_packed_rows_is_found_out(caplog):
    model = small_model("qwen2")
    model.set_attn_implementation(attention.register())
    assert not pack_rows(model)
    assert "pads examples instead of packing them" in caplog.text
    ids, mask = batch()
    expected, _ = token_logprobs(small_model("qwen2"), ids, mask)
    torch.testing.assert_close(token_logprobs(model, ids, mask)[0], expected, atol=1e-5, rtol=1e-4)


def test_nothing_wanted_is_nothing_computed():
    model = small_model("qwen2")
    pack_rows(model)
    ids, mask = batch()
    logprobs, _ = token_logprobs(model, ids, torch.zeros_like(mask))
    assert not logprobs.any()


def test_trying_leaves_the_model_as_it_was():
    model = small_model("qwen2").train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pack_rows(model)
    assert model.training
    assert before.keys() == model.state_dict().keys()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_packed_micro_batches_count_real_tokens():
    lengths = torch.tensor([9, 3, 4, 4, 1])
    cut = [part.tolist() for part in micro_batches(lengths, rows=None, max_tokens=12, packed=True)]
    assert cut == [[0], [2, 3, 1, 4]]
    assert [p.tolist() for p in micro_batches(lengths, rows=None, max_tokens=5, packed=True)] == [
        [0],
        [2],
        [3],
        [1, 4],
    ]
