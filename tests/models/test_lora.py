import json

import pytest
import torch
from helpers.families import small_model
from helpers.model_folders import save_family

from spa.errors import ModelError
from spa.models.forward import Critic, token_logprobs, token_values
from spa.models.load import load_critic, load_policy, load_tokenizer
from spa.models.lora import adapters_off, add_adapters, load_adapters, save_model


def batch():
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 300, (2, 9), generator=made)
    return ids, torch.rand((2, 8), generator=made) < 0.7


def logprobs(model):
    return token_logprobs(model, *batch())[0].detach()


def with_adapters(model, *, seed: int = 0, moved: bool = True, **settings):
    add_adapters(model, **{"rank": 4, "alpha": 8.0, "seed": seed, **settings})
    if moved:  # as training would; fresh adapters have no effect
        made = torch.Generator().manual_seed(seed + 1)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data = torch.randn(parameter.shape, generator=made) * 0.2
    return model


def test_adapters_begin_without_effect_and_only_they_are_trained():
    expected = logprobs(small_model("qwen2"))
    model = with_adapters(small_model("qwen2"), moved=False)
    assert torch.equal(logprobs(model), expected)
    token_logprobs(model, *batch())[0].sum().backward()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained
    assert all("lora_" in name for name in trained)


def test_the_seed_decides_where_adapters_begin():
    state = torch.random.get_rng_state()
    first, same, other = (
        with_adapters(small_model("qwen2"), seed=seed, moved=False) for seed in (1, 1, 2)
    )
    sampled = [
        next(p for name, p in model.named_parameters() if "lora_A" in name)
        for model in (first, same, other)
    ]
    assert torch.equal(sampled[0], sampled[1])
    assert not torch.equal(sampled[0], sampled[2])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_reference_is_the_model_without_its_adapters():
    expected = logprobs(small_model("qwen2"))
    model = with_adapters(small_model("qwen2"))
    changed = logprobs(model)
    assert (changed - expected).abs().max() > 0.01
    with adapters_off(model):
        assert torch.equal(logprobs(model), expected)
    assert torch.equal(logprobs(model), changed)
    token_logprobs(model, *batch())[0].sum().backward()
    assert all((p.grad is not None) == ("lora_" in name) for name, p in model.named_parameters())


@pytest.mark.parametrize("name", ["qwen2", "gemma"])
def test_saved_models_are_merged_and_adapters_stand_apart(name, tmp_path):
    base = save_family(name, tmp_path / "base")
    model = with_adapters(load_policy(str(base)))
    save_model(model, tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} >= {
        "config.json",
        "model.safetensors",
        "adapter",
    }
    merged = load_policy(str(tmp_path / "saved"))
    assert [name for name, _ in merged.named_parameters()] == [
        name for name, _ in load_policy(str(base)).named_parameters()
    ]
    torch.testing.assert_close(logprobs(merged), logprobs(model), atol=1e-5, rtol=1e-5)

    again = with_adapters(load_policy(str(base)), seed=5)
    load_adapters(again, tmp_path / "saved" / "adapter")
    assert torch.equal(logprobs(again), logprobs(model))


def test_an_adapter_alone_is_loaded_on_the_model_that_it_names(tmp_path):
    base = save_family("qwen2", tmp_path / "base")
    model = with_adapters(load_policy(str(base)))
    save_model(model, tmp_path / "saved")
    alone = tmp_path / "saved" / "adapter"
    config = json.loads((alone / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(base)
    # A set would be written in another order by every process.
    assert config["target_modules"] == sorted(config["target_modules"])
    assert len(config["target_modules"]) > 1
    loaded = load_policy(str(alone))
    torch.testing.assert_close(logprobs(loaded), logprobs(model), atol=1e-5, rtol=1e-5)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    assert load_tokenizer(str(alone)).get_vocab() == load_tokenizer(str(base)).get_vocab()


def test_an_adapter_on_an_adapter_names_it_as_its_base(tmp_path):
    base = save_family("qwen2", tmp_path / "base")
    save_model(with_adapters(load_policy(str(base))), tmp_path / "first")
    model = with_adapters(load_policy(str(tmp_path / "first" / "adapter")), seed=3)
    save_model(model, tmp_path / "second")
    loaded = load_policy(str(tmp_path / "second" / "adapter"))
    torch.testing.assert_close(logprobs(loaded), logprobs(model), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("module", ["lm_head", "embed_tokens"])
def test_tied_embeddings_cannot_have_an_adapter(module):
    with pytest.raises(ModelError, match=rf"changes .*{module}.*tied.*Leave this module out"):
        add_adapters(
            load_policy("builtin:tiny"), rank=2, alpha=2, seed=0, target_modules=["q_proj", module]
        )


def test_peft_itself_reads_our_adapters(tmp_path):
    peft = pytest.importorskip("peft")
    base = save_family("qwen2", tmp_path / "base")
    model = with_adapters(load_policy(str(base)))
    save_model(model, tmp_path / "saved")
    theirs = peft.PeftModel.from_pretrained(
        load_policy(str(base)), tmp_path / "saved" / "adapter"
    ).eval()
    # and our scoring reads theirs
    torch.testing.assert_close(logprobs(theirs), logprobs(model), atol=1e-6, rtol=1e-6)


def test_critics_have_adapters_and_a_head_that_is_trained(tmp_path):
    base = save_family("qwen2", tmp_path / "base")
    critic = load_critic(str(base))
    with_adapters(critic.body)
    torch.nn.init.normal_(critic.value_head.weight, generator=torch.Generator().manual_seed(1))
    token_values(critic, *batch()).sum().backward()
    assert critic.value_head.weight.grad is not None
    assert all(
        ("lora_" in name) == (p.grad is not None) for name, p in critic.body.named_parameters()
    )
    critic.save_pretrained(tmp_path / "critic")
    merged = load_critic(str(tmp_path / "critic"))
    expected = token_values(critic, *batch())
    torch.testing.assert_close(token_values(merged, *batch()), expected, atol=1e-5, rtol=1e-5)
    again = Critic(load_policy(str(base)).base_model)
    with_adapters(again.body, seed=9)
    load_adapters(again.body, tmp_path / "critic" / "adapter")
    again.load_head(tmp_path / "critic")
    assert torch.equal(token_values(again, *batch()), expected)


@pytest.fixture
def adapter(tmp_path):
    base = save_family("qwen2", tmp_path / "base")
    save_model(with_adapters(load_policy(str(base))), tmp_path / "saved")
    return tmp_path / "saved" / "adapter"


def test_missing_adapter_weights(adapter):
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"no \*\.safetensors weights|no adapter_model\.safetensors"
    ):
        load_policy(str(adapter))


def foreign(folder, **settings):
    """An adapter by peft itself on the model in `folder`, beside it; what peft makes of both."""
    peft = pytest.importorskip("peft")
    targets = ["q_proj", "v_proj", "down_proj"]
    config = peft.LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": targets, **settings})
    torch.manual_seed(3)
    model = peft.get_peft_model(load_policy(str(folder)), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder.parent / "foreign")
    return folder.parent / "foreign", logprobs(model.eval())


@pytest.mark.parametrize(
    "settings",
    [
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 32}, "rank_pattern": {"down_proj": 2}},
        {"layers_to_transform": [1]},
        {"init_lora_weights": "gaussian"},
        {"target_modules": r".*\.(q_proj|up_proj)"},
    ],
)
def test_a_foreign_adapter_is_merged_with_its_own_scale(settings, tmp_path):
    folder, expected = foreign(save_family("qwen2", tmp_path / "base"), **settings)
    torch.testing.assert_close(logprobs(load_policy(str(folder))), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
    ],
)
def test_an_adapter_that_is_more_than_plain_lora_is_refused_by_name(settings, named, tmp_path):
    folder, _ = foreign(save_family("qwen2", tmp_path / "base"), **settings)
    with pytest.raises(
        ModelError, match=rf"does not support these settings.*{named}.*merge_and_unload"
    ):
        load_policy(str(folder))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"peft_type": "IA3", "r": None}, "of kind IA3"),
        ({"base_model_name_or_path": "."}, "names the adapter's own folder"),
        ({"base_model_name_or_path": 7}, "base_model_name_or_path is missing"),
        ({"r": "many"}, "does not fit|peft cannot read"),
    ],
)
def test_an_adapter_with_wrong_settings(adapter, change, said, monkeypatch):
    monkeypatch.chdir(adapter)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=said):
        load_policy(str(adapter))


def test_an_adapter_of_another_rank(adapter, tmp_path):
    other = with_adapters(load_policy(str(tmp_path / "base")), rank=8)
    with pytest.raises(ModelError, match="does not fit"):
        load_adapters(other, adapter)


def test_a_module_that_is_not_there_beside_one_that_is(caplog):
    model = small_model("qwen2")
    names = ["self_attn.q_proj", "k_porj", "lm_head"]
    add_adapters(model, rank=4, alpha=8, target_modules=names, seed=0)
    assert "no linear layer named k_porj, so it gets no adapter" in caplog.text
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("q_proj" in name or "lm_head" in name for name in trained)


def test_modules_that_are_not_there():
    with pytest.raises(ModelError, match=r"has no module named.*down_proj.*q_proj"):
        add_adapters(small_model("qwen2"), rank=4, alpha=8, target_modules=["attn_out"], seed=0)
