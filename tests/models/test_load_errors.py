"""Every way in which a model cannot be used is named, with the way out."""

import io
import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from helpers.families import tokenizer
from helpers.model_folders import save_family
from safetensors.torch import load_file, save_file

from spa.config.load import load_config
from spa.errors import ModelError
from spa.models.build import is_tiny, load_actor, pick_attention
from spa.models.hub import download_model
from spa.models.load import (
    load_critic,
    load_image_reader,
    load_policy,
    load_tokenizer,
    model_config,
    model_source,
    stop_ids,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    return save_family("qwen2", tmp_path_factory.mktemp("models") / "good")


@pytest.fixture
def folder(good, tmp_path):
    return shutil.copytree(good, tmp_path / "model")


class HubHandler(BaseHTTPRequestHandler):
    """Refuses everything with one status and one of the Hub's error codes."""

    status, code = 404, ""

    def log_message(self, format, *args):
        pass

    def do_GET(self):
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("content-length", "0")
        self.end_headers()

    do_HEAD = do_GET


@pytest.fixture
def hub(request, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    status, code = request.param
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), type("Bound", (HubHandler,), {"status": status, "code": code})
    )
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
    ).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("hub", "words"),
    [
        (
            (401, "GatedRepo"),
            "Accept the terms on https://huggingface.co/acme/model.*hf auth login",
        ),
        ((403, "GatedRepo"), "Accept the terms"),
        ((404, "RepoNotFound"), "Check the spelling"),
        ((401, "RepoNotFound"), "Check the spelling.*private"),
        ((500, ""), "cannot be reached.*hf download acme/model"),
    ],
    indirect=["hub"],
)
def test_what_the_hub_refuses(hub, words):
    with pytest.raises(ModelError, match=words):
        download_model("acme/model", endpoint=hub)


def test_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match=r"cannot be reached.*model_path to FOLDER.*builtin:tiny"):
        download_model("acme/model", endpoint="http://127.0.0.1:9")


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "nothing", "a/b/c"])
def test_a_folder_that_is_not_there(name):
    with pytest.raises(ModelError, match="the model folder does not exist"):
        model_source(name)


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json"):
        model_source(str(tmp_path))


def test_pickled_weights_are_not_read(folder):
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match="spa reads no other format"):
        load_policy(str(folder))


@pytest.mark.parametrize(
    ("shard", "command"),
    [
        ("model_world_size_2_rank_0.pt", "verl.model_merger merge --backend fsdp"),
        ("__0_0.distcp", "accelerate merge-weights"),
    ],
)
def test_shards_of_a_training_are_named_with_the_command_that_merges_them(folder, shard, command):
    (folder / "model.safetensors").rename(folder / shard)
    with pytest.raises(ModelError, match=command):
        model_source(str(folder))
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=command):
        model_source(str(folder))


def test_weights_of_a_compiled_model_are_those_of_the_model(folder):
    wanted = load_policy(str(folder)).state_dict()
    path = folder / "model.safetensors"
    weights = {f"_orig_mod.{name}": tensor for name, tensor in load_file(path).items()}
    save_file(weights, path, metadata={"format": "pt"})
    loaded = load_policy(str(folder)).state_dict()
    assert loaded.keys() == wanted.keys()
    assert all(torch.equal(loaded[name], wanted[name]) for name in wanted)


def test_a_checkpoint_one_folder_down_is_found(folder, tmp_path):
    outer = tmp_path / "downloaded"
    shutil.copytree(folder, outer / "global_step_9")
    shutil.copytree(folder, outer / "global_step_1505")
    assert model_source(str(outer)) == outer / "global_step_1505"
    load_policy(str(outer))
    load_critic(str(outer))


def test_cut_off_weights(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="complete"):
        load_policy(str(folder))


@pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
def test_weights_that_are_not_finite(folder, bad):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = sorted(weights)[-1]
    weights[name].view(-1)[3] = bad
    save_file(weights, path, metadata={"format": "pt"})
    for load in (load_policy, load_critic):
        with pytest.raises(
            ModelError,
            match=r"has 1 values of .*NaN or infinite.*use another checkpoint",
        ):
            load(str(folder))


def test_large_finite_weights_whose_sum_overflows_are_loaded(folder):
    path = folder / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in sorted(weights) if weights[name].dim() == 2)
    weights[name] = torch.full_like(weights[name], 3e38)
    save_file(weights, path, metadata={"format": "pt"})
    assert float(load_policy(str(folder)).state_dict()[name].max()) == pytest.approx(3e38)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"intermediate_size": 64}, "cannot load"),
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            r"are missing, for example model\.layers\.2",
        ),
        ({"model_type": "qwen99"}, "pip install -U transformers"),
    ],
)
def test_a_configuration_that_is_not_that_of_the_weights(folder, change, words):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError, match=words):
        load_policy(str(folder))


@pytest.mark.parametrize(
    "load", [model_config, is_tiny, load_image_reader, load_tokenizer, load_policy, load_critic]
)
def test_code_of_the_model_is_not_run_for_a_yes_on_standard_input(
    load, folder, tmp_path, monkeypatch
):
    found = json.loads((folder / "config.json").read_text())
    found |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"},
    }
    (folder / "config.json").write_text(json.dumps(found))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"auto_map": {"AutoImageProcessor": "own.P"}})
    )
    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer_config |= {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": ["own.T", None]}}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 9))
    with pytest.raises(ModelError, match="trust_remote_code=true"):
        load(str(folder))
    assert not (tmp_path / "ran").exists()


def test_the_generation_config_says_where_responses_end_and_a_checkpoint_says_so_too(
    folder, tmp_path
):
    ends = tokenizer("qwen2").convert_tokens_to_ids(["<|im_start|>", "<|im_end|>"])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends[0]}))
    model, template = load_actor(config(folder), str(folder), CPU)
    assert template.stop_ids == frozenset(ends)
    model.save_pretrained(tmp_path / "saved")
    assert stop_ids(str(tmp_path / "saved")) == tuple(ends)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    assert stop_ids(str(folder)) == tuple(ends)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot load the model"):
        stop_ids(str(folder))


def config(folder, *overrides):
    return load_config("base", [f"model_path={folder}", *overrides])


def test_no_chat_template_and_a_file_that_gives_one(folder, tmp_path):
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match=r"actor_rollout_ref\.model\.chat_template"):
        load_actor(config(folder), str(folder), CPU)
    given = tmp_path / "mine.jinja"
    given.write_text(tokenizer("qwen2").chat_template)
    _, template = load_actor(
        config(folder, f"actor_rollout_ref.model.chat_template={given}"), str(folder), CPU
    )
    assert template.encode("<|im_end|>")[0] in template.stop_ids
    template.tokenizer.save_pretrained(tmp_path / "saved")  # and the checkpoint has it
    assert load_tokenizer_in(tmp_path / "saved", folder).chat_template == given.read_text()


def test_a_byte_order_mark_of_a_chat_template_is_no_part_of_prompts(folder, tmp_path):
    text = (folder / "chat_template.jinja").read_text()
    given = tmp_path / "mine.jinja"
    given.write_text(text, encoding="utf-8-sig")
    expected = load_tokenizer(str(folder)).chat_template
    assert load_tokenizer(str(folder), chat_template=str(given)).chat_template == expected
    (folder / "chat_template.jinja").write_text(text, encoding="utf-8-sig")
    assert load_tokenizer(str(folder)).chat_template == expected


def load_tokenizer_in(saved, folder):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(folder / name, saved / name)
    return load_tokenizer(str(saved))


def test_the_tokenizer_of_another_model(folder):
    other = tokenizer("qwen2").__class__.from_pretrained(folder)
    other.add_tokens([f"extra-{i}" for i in range(9)])
    other.save_pretrained(folder)
    with pytest.raises(ModelError, match=r"token ids up to \d+, but the model embeds only \d+"):
        load_actor(config(folder), str(folder), CPU)


def test_a_special_token_without_an_embedding_counts_if_the_template_writes_it(folder):
    # Gemma 3 models for text have the tokenizer of those for pictures.
    other = tokenizer("qwen2").__class__.from_pretrained(folder)
    other.add_special_tokens({"additional_special_tokens": ["<image_soft_token>"]})
    other.save_pretrained(folder)
    rows = load_policy(str(folder)).get_input_embeddings().weight.shape[0]
    assert max(load_tokenizer(str(folder)).get_vocab().values()) >= rows
    load_actor(config(folder), str(folder), CPU)
    other.chat_template = other.chat_template.replace("<|im_start|>", "<image_soft_token>")
    other.save_pretrained(folder)
    with pytest.raises(ModelError, match="token ids up to"):
        load_actor(config(folder), str(folder), CPU)


def test_a_model_of_the_hub_has_the_attention_of_its_folder(folder, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    kept = cache / "models--acme--model"
    shutil.copytree(folder, kept / "snapshots" / ("0" * 40))
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("0" * 40)
    found = {pick_attention("auto", name, CPU) for name in ("acme/model", str(folder))}
    assert found == {"plain"}


def test_a_model_that_reads_too_little(folder):
    found = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(found | {"max_position_embeddings": 512}))
    with pytest.raises(ModelError, match=r"at most 512 tokens.*max_model_len=3600"):
        load_actor(config(folder), str(folder), CPU)
    limits = [
        "actor_rollout_ref.rollout.max_model_len=512",
        "actor_rollout_ref.rollout.response_length=64",
    ]
    load_actor(config(folder, *limits), str(folder), CPU)


def test_an_architecture_that_changes_its_logits_is_refused(folder):
    from transformers import GraniteConfig, GraniteForCausalLM

    made = tokenizer("qwen2")
    granite = GraniteConfig(
        vocab_size=len(made),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        logits_scaling=8.0,
        initializer_range=0.5,
        max_position_embeddings=4096,
    )
    GraniteForCausalLM(granite).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"logit transformation.*granite"):
        load_actor(config(folder), str(folder), CPU)


READERS = (load_policy, load_tokenizer, model_config, stop_ids, load_image_reader)


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"model_type": 7, "tokenizer_class": [], "eos_token_id": {}}'],
)
@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_no_damaged_file_of_a_model_folder_ends_in_anything_but_a_message(folder, name, content):
    (folder / name).write_text(content)
    refused = 0
    for reader in READERS:
        try:
            reader(str(folder))
        except ModelError as error:
            assert str(folder) in str(error)
            refused += 1
    assert refused or content not in ("", "{")


@pytest.mark.parametrize("value", ['"much"', "-1", "null", "[]", '{"rope_theta": "x"}'])
@pytest.mark.parametrize("key", ["hidden_size", "num_attention_heads", "rope_parameters"])
def test_no_wrong_value_in_a_models_configuration_ends_in_anything_but_a_message(
    folder, key, value
):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {key: "HERE"}).replace('"HERE"', value))
    try:
        load_policy(str(folder))
    except ModelError as error:
        assert str(folder) in str(error)
