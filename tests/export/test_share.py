"""Data sets and checkpoints on their way to the Hub and back, against a small Hub of our own."""

import shutil
import socket
from pathlib import Path

import pytest
import yaml
from helpers.fake_hub import FakeHub
from helpers.model_folders import save_family

from spa.cli import main
from spa.errors import DataError, ModelError
from spa.models.hub import download_data, download_model
from spa.models.load import load_policy
from spa.models.lora import add_adapters
from spa.run.checkpoint import save_checkpoint
from spa.run.fingerprint import Fingerprint
from spa.run.manifest import Manifest
from spa.worldmodel.examples import write_parquet
from spa.worldmodel.sft_files import read_examples
from spa_integrations.hub import share

CONFIG = """model_path: Qwen/Qwen2.5-1.5B-Instruct
state_text: coords
generate: {policy: self}
ctx_manager: {mode: add_worldmodel}
es_manager: {train: {env_configs: {tags: [FrozenLake]}}}
agent_proxy: {max_turn: 5}
seed: {train: 7}
trainer: {run_dir: /home/somebody/secret}
"""


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    root = tmp_path_factory.mktemp("run") / "ppo"
    folder = save_family("qwen2", tmp_path_factory.mktemp("models") / "base")
    from transformers import PreTrainedTokenizerFast

    model = load_policy(str(folder))
    add_adapters(model, rank=2, alpha=2, seed=0)
    made = PreTrainedTokenizerFast.from_pretrained(folder)
    saved = save_checkpoint(root, 30, model=model, tokenizer=made, state={"steps": 30})
    (root / "config.yaml").write_text(CONFIG)
    (root / "metrics.jsonl").write_text(
        '{"step":20,"val-env/FrozenLake/pass@1":0.25}\n{"step":30,"val-env/FrozenLake/pass@1":0.5,"actor/loss":1.0}\n'
        '{"step":30,"actor/loss":2.0}\n{"step":40,"val-env/FrozenLake/pass@1":0.75}\n'
    )
    return saved


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    from spa.types import SFTExample

    folder = tmp_path_factory.mktemp("run") / "data"
    example = SFTExample(
        prompt=({"role": "user", "content": "state"},),
        response="<think><observation>a</observation>b<prediction>c</prediction></think><answer>Up</answer>",
        tag="FrozenLake",
        episode_id="e",
        turn=0,
        puzzle_seed=1,
        puzzle_hash="h",
        success=True,
        reward=1.0,
        state="a",
        next_state="c",
    )
    for name in ("wm_train.parquet", "wm_val.parquet"):
        write_parquet(folder / name, [example])
    (folder / "summary.json").write_text(
        '{"examples_train": 1, "examples_val": 1, "puzzles": 2, "dropped": {"malformed": 3}}'
    )
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "log.txt").write_text("private")
    return folder


def front(card: str) -> dict:
    return yaml.safe_load(card.split("---")[1])


def test_what_of_a_checkpoint_is_shared(checkpoint):
    upload = share.pack(checkpoint, "me/agent")
    assert upload.kind == "model"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(upload.files)
    assert not any(
        part in name for name in upload.files for part in ("state", "complete", "adapter")
    )
    assert not any(
        str(checkpoint.parent).encode() in path.read_bytes() for path in upload.files.values()
    )
    assert front(upload.card)["base_model"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert "| val-env/FrozenLake/pass@1 | 0.5 |" in upload.card
    assert "secret" not in upload.card


def test_code_of_a_model_is_shared_with_it(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    (folder / "modeling_own.py").write_text("class Own: ...\n")
    assert "modeling_own.py" in share.pack(folder, "me/agent").files


@pytest.mark.parametrize(
    ("stage", "parent", "told"),
    [
        ("sft", "selfplay", "fine-tuning on self-play episodes, without reinforcement learning."),
        ("ppo", "sft", "fine-tuning on self-play episodes, then multi-turn PPO."),
        ("ppo", None, "): multi-turn PPO."),
    ],
)
def test_the_card_says_how_the_model_was_trained(checkpoint, tmp_path, stage, parent, told):
    own = shutil.copytree(checkpoint.parent, tmp_path / stage)
    before = parent and Fingerprint(stage=parent, settings={}, content={})
    Manifest(fingerprint=Fingerprint(stage=stage, settings={}, content={}, parent=before)).write(
        own
    )
    assert told in share.model_card(own / checkpoint.name, "me/agent")


def test_what_of_a_data_set_is_shared(data):
    upload = share.pack(data, "me/data")
    assert upload.kind == "dataset"
    assert set(upload.files) == {"wm_train.parquet", "wm_val.parquet", "summary.json"}
    assert front(upload.card)["configs"][0]["data_files"][0] == {
        "split": "train",
        "path": "wm_train.parquet",
    }
    assert "| turns left out | 3 malformed |" in upload.card
    assert "| `generate.policy` | self |" in upload.card
    assert "chosen no licence" in upload.card


def test_a_checkpoint_comes_back_as_it_went(checkpoint, tmp_path):
    with FakeHub() as hub:
        share.push(share.pack(checkpoint, "me/agent"), "me/agent", endpoint=hub.address)
        assert hub.private["me/agent"]
        assert b"arXiv 2510.15047" in hub.repos["model"]["me/agent"]["README.md"]
        share.pull("me/agent", tmp_path / "pulled", "model", endpoint=hub.address)
        loaded = download_model("me/agent", endpoint=hub.address)
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == (
        checkpoint / "model.safetensors"
    ).read_bytes()
    load_policy(str(tmp_path / "pulled"))
    load_policy(str(loaded))


def test_a_data_set_comes_back_as_it_went(data, tmp_path):
    with FakeHub() as hub:
        share.push(share.pack(data, "me/data"), "me/data", private=False, endpoint=hub.address)
        assert not hub.private["me/data"]
        share.pull("me/data", tmp_path / "pulled", "dataset", endpoint=hub.address)
        cached = download_data("me/data", endpoint=hub.address)
    for folder in (tmp_path / "pulled", cached):
        assert read_examples(folder / "wm_train.parquet") == read_examples(
            data / "wm_train.parquet"
        )


def test_what_the_hub_refuses(data, tmp_path):
    with FakeHub() as hub:
        hub.refuse = 403
        with pytest.raises(DataError, match="the request to the Hugging Face Hub failed"):
            share.push(share.pack(data, "me/data"), "me/data", endpoint=hub.address)
        hub.refuse = None
        with pytest.raises(DataError, match="data set does not exist on the Hugging Face Hub"):
            share.pull("me/nothing", tmp_path / "pulled", "dataset", endpoint=hub.address)
        with pytest.raises(ModelError, match="model does not exist on the Hugging Face Hub"):
            share.pull("me/nothing", tmp_path / "pulled", "model", endpoint=hub.address)


def test_a_server_that_is_not_there_is_one_message(data, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(DataError, match="the request to the Hugging Face Hub failed"):
        share.push(share.pack(data, "me/data"), "me/data", endpoint=nowhere)


def test_a_model_and_a_data_set_may_have_one_name(checkpoint, data, tmp_path):
    with FakeHub() as hub:
        share.push(share.pack(checkpoint, "me/one"), "me/one", endpoint=hub.address)
        share.push(share.pack(data, "me/one"), "me/one", endpoint=hub.address)
        share.pull("me/one", tmp_path, "dataset", endpoint=hub.address)
    assert (tmp_path / "wm_train.parquet").is_file() and not (tmp_path / "config.json").exists()


def test_the_working_folder_has_the_card_of_its_name(checkpoint, monkeypatch):
    monkeypatch.chdir(checkpoint)
    assert share.pack(Path("."), "me/agent").card == share.pack(checkpoint, "me/agent").card


@pytest.mark.parametrize("name", ["agent", "me/you/agent", "me/a b"])
def test_names_that_the_hub_would_not_take(data, name):
    with pytest.raises(ModelError, match="OWNER/NAME"):
        share.pack(data, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", b'{"examples_train": 1, "ro'),
        ("summary.json", b"[1]"),
        ("summary.json", b'{"a": "\xff"}'),
        ("config.yaml", b"a: [1"),
        ("config.yaml", b"a: \x00"),
        ("config.yaml", b"- a"),
    ],
)
def test_a_torn_record_is_named_in_one_message(data, tmp_path, capsys, name, content):
    torn = shutil.copytree(data, tmp_path / "data")
    (torn / name).write_bytes(content)
    assert main(["data", "push", str(torn), "me/data", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"spa data push: cannot read {torn / name} (")
    assert said.count("\n") == 1


def test_a_damaged_checkpoint_is_not_shared(checkpoint, tmp_path):
    torn = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    weights = bytearray((torn / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (torn / "model.safetensors").write_bytes(weights)
    with pytest.raises(ModelError, match=r"is damaged: model\.safetensors has changed"):
        share.pack(torn, "me/agent")
