"""Log-probs, entropies and values against the plain forward pass of the same model."""

import pytest
import torch
from helpers.families import small_model

from spa.models import attention, forward
from spa.models.forward import (
    Critic,
    common_prefix,
    micro_batches,
    policy_logits,
    share_prefix,
    token_logprobs,
    token_values,
)
from spa.types import SamplingParams


def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows, the second padded from position 7 on."""
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 100, (2, 11), generator=rng)
    mask = torch.rand((2, 10), generator=rng) < 0.6
    ids[1, 7:], mask[1, 6:] = 0, False
    return ids, mask


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "llama3", "gemma"])
def test_logprobs_are_those_of_the_plain_forward_pass(name):
    model, (ids, mask) = small_model(name), batch()
    with torch.no_grad():
        found, entropy = token_logprobs(model, ids, mask, with_entropy=True)
        logprobs = torch.log_softmax(model(input_ids=ids).logits[:, :-1].float(), -1)
    expected = logprobs.gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(found, torch.where(mask, expected, 0.0), atol=1e-5, rtol=1e-5)
    plain = -(logprobs.exp() * logprobs).sum(-1)
    torch.testing.assert_close(entropy, torch.where(mask, plain, 0.0), atol=1e-5, rtol=1e-5)


def test_capped_logits_are_capped():
    model, (ids, mask) = small_model("gemma"), batch()
    before, _ = token_logprobs(model, ids, mask)
    model.config.final_logit_softcapping = 0.5
    after, _ = token_logprobs(model, ids, mask)
    logits = 0.5 * torch.tanh(model(input_ids=ids).logits[:, :-1] / 0.5)
    expected = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(after, torch.where(mask, expected, 0.0), atol=1e-5, rtol=1e-5)
    assert (after - before)[mask].abs().max() > 0.01


@pytest.mark.parametrize("entropy_grad", [False, True])
def test_cutting_the_logits_changes_neither_values_nor_gradients(monkeypatch, entropy_grad):
    ids, mask = batch()

    def run() -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
        model = small_model("qwen2")
        logprobs, entropy = token_logprobs(
            model, ids, mask, with_entropy=True, entropy_grad=entropy_grad
        )
        loss = logprobs.sum() + (entropy.sum() if entropy_grad else 0)
        loss.backward()
        return logprobs.detach(), entropy.detach(), [p.grad for p in model.parameters()]

    whole = run()
    # three tokens at a time
    monkeypatch.setattr(forward, "LOGITS_CHUNK", 3 * small_model("qwen2").config.vocab_size)
    torch.testing.assert_close(run(), whole, atol=1e-5, rtol=1e-4)


def test_entropy_carries_a_gradient_only_on_request():
    ids, mask = batch()
    for wanted in (False, True):
        _, entropy = token_logprobs(
            small_model("qwen2"), ids, mask, with_entropy=True, entropy_grad=wanted
        )
        assert entropy.requires_grad == wanted


def test_a_mask_of_no_token_has_a_gradient_of_zero():
    model, (ids, mask) = small_model("qwen2"), batch()
    logprobs, _ = token_logprobs(model, ids, torch.zeros_like(mask))
    logprobs.sum().backward()
    assert not logprobs.any()
    assert all(part.grad is None or not part.grad.any() for part in model.parameters())


def test_what_stands_in_the_padding_does_not_matter():
    model, (ids, mask) = small_model("qwen2"), batch()
    other = ids.clone()
    other[1, 7:] = 42
    for a, b in zip(
        token_logprobs(model, ids, mask), token_logprobs(model, other, mask), strict=True
    ):
        assert torch.equal(a, b)
    short, _ = token_logprobs(model, ids[1:, :7], mask[1:, :6])
    torch.testing.assert_close(
        token_logprobs(model, ids, mask)[0][1:, :6], short, atol=1e-5, rtol=1e-5
    )


def test_values_are_those_before_the_prediction_and_start_at_zero():
    critic, (ids, mask) = Critic(small_model("qwen2").base_model), batch()
    assert (token_values(critic, ids, mask) == 0).all()
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(1))
    values = token_values(critic, ids, mask)
    hidden = critic.body(input_ids=ids).last_hidden_state
    expected = (hidden @ critic.value_head.weight[0])[:, :-1] * mask
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
    # The value before token 5 has read tokens 0 to 4, and nothing after them.
    changed = ids.clone()
    changed[:, 5:] = 3
    torch.testing.assert_close(
        token_values(critic, changed, mask)[:, :5], values[:, :5], atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("name", "longest"), [("qwen2", 2), ("qwen2", 400), ("gemma", 400)])
def test_plain_attention_agrees_with_the_fused_kernel(monkeypatch, name, longest):
    monkeypatch.setattr(attention, "LONGEST", longest)
    ids, mask = batch()
    fused, plain = small_model(name), small_model(name)
    plain.set_attn_implementation(attention.register())
    results = []
    for model in (fused, plain):
        logprobs, _ = token_logprobs(model, ids, mask)
        logprobs.sum().backward()
        results.append((logprobs.detach(), [p.grad for p in model.parameters()]))
    torch.testing.assert_close(results[1], results[0], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize(
    ("rows", "max_tokens"), [(1, None), (2, None), (None, 12), (None, 3), (None, None)]
)
def test_micro_batches_hold_every_row_once_and_keep_their_limits(rows, max_tokens):
    lengths = torch.tensor([3, 9, 4, 4, 1, 9, 2])
    cut = [part.tolist() for part in micro_batches(lengths, rows=rows, max_tokens=max_tokens)]
    assert sorted(row for part in cut for row in part) == list(range(7))
    for part in cut:
        assert len(part) <= (rows or 7)
        padded = len(part) * max(int(lengths[row]) for row in part)
        assert max_tokens is None or padded <= max_tokens or len(part) == 1


def test_micro_batches_by_hand():
    lengths = torch.tensor([3, 9, 4, 4, 1])
    assert [p.tolist() for p in micro_batches(lengths, rows=None, max_tokens=9)] == [
        [1],
        [2, 3],
        [0, 4],
    ]
    assert [p.tolist() for p in micro_batches(lengths, rows=2, max_tokens=None)] == [
        [1, 2],
        [3, 0],
        [4],
    ]


@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.6}, {"temperature": 2.0, "top_p": 0.9}],
)
def test_logprobs_and_entropy_are_those_of_the_policy_that_samples(settings):
    """Against the distribution written out; with a top-k of 5, only tokens of the set and the one that is there."""
    sampling = SamplingParams(**settings)
    model = small_model("qwen2")
    ids = torch.arange(12)[None] * 5 % 200
    mask = torch.ones((1, 11), dtype=torch.bool)
    found, entropy = token_logprobs(model, ids, mask, with_entropy=True, sampling=sampling)
    logits = policy_logits(model(input_ids=ids).logits[0, :-1].float(), sampling, keep=ids[0, 1:])
    expected = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(found[0], expected.log_prob(ids[0, 1:]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy[0], expected.entropy(), atol=1e-5, rtol=1e-5)
    found.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize(("name", "plain"), [("qwen2", True), ("qwen2", False), ("gemma", False)])
def test_a_prefix_that_rows_share_is_read_once_with_the_same_numbers_and_gradients(
    monkeypatch, name, plain
):
    monkeypatch.setattr(forward, "WORTH_SHARING", 4)
    monkeypatch.setattr(attention, "BLOCK", 3)
    ids, mask = batch()
    ids[1, :4], mask[:, :3] = ids[0, :4], False
    assert common_prefix(ids, mask) in (3, 4)

    def run(share: bool) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor | None]]:
        model = small_model(name)
        if plain and attention.supports_plain_attention(model.config):
            model.set_attn_implementation(attention.register())
        assert not share or share_prefix(model)
        logprobs, entropy = token_logprobs(model, ids, mask, with_entropy=True)
        logprobs.sum().backward()
        return logprobs.detach(), entropy, [p.grad for p in model.parameters()]

    torch.testing.assert_close(run(True), run(False), atol=2e-5, rtol=1e-3)


def test_values_after_a_shared_prefix_are_the_same(monkeypatch):
    monkeypatch.setattr(forward, "WORTH_SHARING", 4)
    ids, mask = batch()
    ids[1, :4], mask[:, :3] = ids[0, :4], False
    critic = Critic(small_model("qwen2").base_model)
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(1))
    expected = token_values(critic, ids, mask)
    assert share_prefix(critic)
    torch.testing.assert_close(token_values(critic, ids, mask), expected, atol=2e-5, rtol=1e-3)


def test_the_common_prefix_ends_before_the_first_wanted_prediction_and_the_first_difference():
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 1, 9]])
    none = torch.zeros(2, 4, dtype=torch.bool)
    assert common_prefix(ids, none) == 3
    assert common_prefix(ids, torch.tensor([[False] * 4, [False, True, False, False]])) == 1
    assert common_prefix(ids[:1], none[:1]) == 0  # nothing to share with
