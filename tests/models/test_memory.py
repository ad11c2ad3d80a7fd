import pytest
import torch
from helpers.families import small_model
from transformers import Qwen2Config

from spa.models import memory
from spa.models.forward import token_logprobs
from spa.models.load import save_activations
from spa.models.lora import add_adapters
from spa.models.shapes import known_config


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.494),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.544),
        ("Qwen/Qwen2.5-3B", 3.086),
        ("meta-llama/Llama-3.2-1B-Instruct", 1.236),
    ],
)
def test_known_shapes_have_the_published_number_of_parameters(name, billions):
    config = known_config(name)
    assert config is not None
    assert memory.model_shape(config).parameters / 1e9 == pytest.approx(billions, abs=5e-4)


def test_other_models_have_no_known_shape():
    assert known_config("Qwen/Qwen2.5-1.5B-Instruct-AWQ") is None
    assert known_config("acme/model") is None


def test_shapes_are_those_of_the_model():
    model = small_model("qwen2")
    shape = memory.model_shape(model.config)
    assert shape.parameters == sum(p.numel() for p in model.parameters())
    assert (shape.layers, shape.hidden, shape.query_width, shape.key_width) == (2, 32, 32, 16)


def test_training_state_is_four_floats_per_trained_number():
    model = small_model("qwen2")
    shape = memory.model_shape(model.config)
    assert memory.training_state(shape) == 16 * shape.parameters
    add_adapters(model, rank=3, alpha=3, seed=0)
    adapters = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
    assert memory.adapter_parameters(shape, 3) == adapters
    assert memory.training_state(shape, lora_rank=3) == 4 * shape.parameters + 16 * adapters


@pytest.mark.parametrize("checkpointing", [False, True])
def test_activations_are_what_autograd_keeps(checkpointing):
    """Within a third of what the backward pass really holds on to, under bfloat16 autocast."""
    config = Qwen2Config(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=640,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()
    if checkpointing:
        save_activations(model)
    tokens = 256
    ids = torch.zeros((1, tokens), dtype=torch.int64)
    mask = torch.zeros((1, tokens - 1), dtype=torch.bool)
    mask[0, -1] = True
    parameters = {p.data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and tensor.numel() >= tokens:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t),
        torch.autocast("cpu", dtype=torch.bfloat16),
    ):
        logprobs, _ = token_logprobs(model, ids, mask)
    assert logprobs.requires_grad
    weights = sum(
        2 * p.numel() for name, p in model.named_parameters() if "proj" in name and "weight" in name
    )
    # autocast's copies of the matrices
    measured = sum(kept.values()) - (0 if checkpointing else weights)
    shape = memory.model_shape(config)
    estimate = memory.activations(shape, tokens, checkpointing=False)
    if checkpointing:
        # inputs of the blocks, and the last norm
        estimate = tokens * (shape.layers + 2) * 4 * shape.hidden
    assert measured == pytest.approx(estimate, rel=0.34)


def test_cached_keys_and_values_by_hand():
    config = known_config("Qwen2.5-1.5B")
    assert config is not None
    shape = memory.model_shape(config)
    # 28 layers x 2 heads of 128 numbers x keys and values x 2 bytes = 28,672 bytes per token
    assert memory.cache(shape, 10, 1000) == 28_672 * 10_000
