import pytest
import torch
from helpers.families import small_model, tokenizer

from spa import cli
from spa.cli import execute
from spa.commands import doctor
from spa.models.attention import flash_missing
from spa.run.checkpoint import save_checkpoint
from spa.run.fingerprint import Fingerprint
from spa.run.manifest import Manifest, sizes_of


def test_it_names_every_dependency_and_what_will_be_used(capsys):
    assert execute(["doctor"]) == 0
    out = capsys.readouterr().out
    for name in (
        "torch",
        "transformers",
        "hydra-core",
        "device",
        "precision",
        "attention",
        "engine",
        "threads",
        "memory",
    ):
        assert f"\n  {name} " in out
    assert out.endswith("Everything that spa needs is installed.\n")


@pytest.mark.parametrize(
    ("requirement", "state", "hint"),
    [
        ("surely-not-there-9>=1", "missing", "pip install 'surely-not-there-9>=1'"),
        ("numpy<0.1", doctor.metadata.version("numpy"), "pip install 'numpy<0.1'"),
    ],
)
def test_a_missing_or_unfit_dependency_is_marked(monkeypatch, capsys, requirement, state, hint):
    monkeypatch.setattr(
        doctor.metadata, "requires", lambda name: [requirement, "other>1; extra == 'dev'"]
    )
    (line,) = doctor.required_packages()
    assert (line.state, line.hint, line.ok) == (state, hint, False)
    assert execute(["doctor"]) == 1
    assert f"These entries need attention: {line.name}" in capsys.readouterr().out


def test_it_says_how_a_gpu_samples():
    assert doctor.sampling("").state == "CUDA graphs"
    line = doctor.sampling(flash_missing(torch.device("cuda"), torch.float32))
    assert line.state == "without CUDA graphs" and "the kernel needs bfloat16" in line.hint
    assert flash_missing(torch.device("cpu"), torch.bfloat16) == "there is no CUDA device"


def test_damage_to_a_run_is_found_on_demand(tmp_path, capsys):
    folder = save_checkpoint(
        tmp_path / "ppo", 1, model=small_model("qwen2"), tokenizer=tokenizer("qwen2")
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "wm_train.parquet").write_text("rows")
    known = Fingerprint(stage="selfplay", settings={}, content={})
    Manifest(fingerprint=known, sizes=sizes_of(tmp_path / "data", "*.parquet")).write(
        tmp_path / "data"
    )
    assert cli.main(["doctor", str(tmp_path)]) == 0
    assert (
        "2 checkpoints and data files were checked: no file is damaged." in capsys.readouterr().out
    )
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    (tmp_path / "data" / "wm_train.parquet").unlink()
    assert cli.main(["doctor", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert f"! {folder}: model.safetensors has changed since it was written" in shown
    assert "wm_train.parquet is missing" in shown and "2 damaged" in shown
    # A comparison links to stages of other folders.
    (tmp_path / "comparison").mkdir()
    (tmp_path / "comparison" / "ppo").symlink_to(tmp_path / "ppo")
    assert cli.main(["doctor", str(tmp_path / "comparison")]) == 1
    assert "model.safetensors has changed" in capsys.readouterr().out
    assert cli.main(["doctor", str(tmp_path / "nowhere")]) == 2
