"""The GPU scripts, with a small shape on whatever device there is: that they run, and that what they check holds."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def run(name: str, monkeypatch, capsys, *options: str) -> dict:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    monkeypatch.setattr(sys, "argv", [name, "--tiny", *options])
    importlib.import_module(name).main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("attention", ["packed", "sdpa"])
def test_fine_tuning(attention, monkeypatch, capsys):
    found = run("sft_throughput", monkeypatch, capsys, "--attention", attention)
    assert (found["shape"], found["attention"]) == ("tiny", attention)
    assert found["correctness"]["chunked_against_whole"] < 1e-4
    assert found["correctness"]["packed_against_padded"] < 1e-4
    assert found["kept activations"]["tokens_per_s"] > 0


@pytest.mark.parametrize("graphs", [True, False])
def test_sampling(graphs, monkeypatch, capsys):
    found = run("rollout_throughput", monkeypatch, capsys, *([] if graphs else ["--no-graphs"]))
    assert found["cuda_graphs"] == graphs
    assert found["correctness"]["cached_against_uncached"] < 0.05
    assert 0 < found["share_of_limit"] < 1


def test_sampling_without_vllm(monkeypatch, capsys):
    found = run("rollout_throughput", monkeypatch, capsys, "--engine", "vllm")
    assert found["result"].startswith("not measured")


def test_a_ppo_step(monkeypatch, capsys):
    found = run("ppo_step", monkeypatch, capsys)
    assert found["correctness"]["kl_trainer_sampler"] < 1e-3
    assert (found["episodes"], found["trained_episodes"], found["sampled_tokens"]) == (8, 2, 96)
    assert found["trained_tokens_per_s"] > 0
    assert found["gpu_idle_share"] is None and found["cuda_graphs"] is False
    assert list(found["seconds"].values()) == sorted(found["seconds"].values(), reverse=True)
    assert found["seconds_without_saving"] <= found["seconds_total"]
    assert set(found["seconds"]) == {
        "environments",
        "prompts and tokens",
        "sampling",
        "saving",
        "score policy",
        "score critic",
        "update critic",
        "update actor",
        "new weights",
    }


def test_a_bare_machine_can_run_them():
    """Nothing is imported, however far down, that torch, transformers and numpy do not bring along."""
    scripts = sorted(path.stem for path in SCRIPTS.glob("*.py"))
    code = (
        "import importlib, sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "for script in sys.argv[2:]:\n"
        "    importlib.import_module(script)\n"
        "    bad = {'hydra', 'omegaconf', 'gymnasium', 'pyarrow', 'rich', 'peft', 'pytest'} & set(sys.modules)\n"
        "    if bad:\n"
        "        sys.exit(f'{script} imports {sorted(bad)}')\n"
    )
    words = [sys.executable, "-c", code, str(SCRIPTS), *scripts]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert scripts and done.returncode == 0, done.stderr


def test_predicted_figures_are_those_of_the_script_and_marked(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    predicted = importlib.import_module("predicted")
    kept = json.loads((predicted.RESULTS / "predicted.json").read_text(encoding="utf-8"))
    assert kept["figures"] == predicted.figures()
    assert not any(figure["measured"] for figure in kept["figures"].values())
    page = (SCRIPTS / "README.md").read_text(encoding="utf-8")
    assert "\n".join(predicted.table()) in page and "(estimate)" in predicted.table()[0]
    # The measured inputs are those of the committed results.
    sft = json.loads((predicted.RESULTS / "h200-sft-0.5B.json").read_text(encoding="utf-8"))
    before = sft["kept activations"]["8192 tokens, packed"]
    assert pytest.approx(8192e3 / before["tokens_per_s"], rel=1e-3) == predicted.SFT_BEFORE_MS
    assert before["mfu"] == predicted.SFT_BEFORE_MFU
    rollout = json.loads((predicted.RESULTS / "h200-rollout-0.5B.json").read_text(encoding="utf-8"))
    assert rollout["fused"]["step_ms"] == predicted.STEP_BEFORE_MS
