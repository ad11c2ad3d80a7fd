"""What the comparison with others makes of its rounds."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("bench")


def times(*cpu: float, peak: float) -> list[dict[str, float]]:
    return [{"cpu": seconds, "wall": 2 * seconds, "peak_mb": peak} for seconds in cpu]


def test_a_ratio_is_the_median_of_rounds_that_stood_side_by_side(bench):
    found = bench.summary(
        bench.ROWS[0], {"spa": times(1, 2, 4, peak=300), "hf": times(3, 4, 16, peak=600)}
    )
    assert found["peers"]["hf"]["ratio"] == 3  # of 3, 2 and 4
    assert found["peers"]["hf"]["memory"] == 0.5
    assert found["seconds"] == 2


def test_only_ratios_below_the_noise_count_as_slower(bench):
    def result(ratio: float) -> dict:
        return {"rows": [{"row": "a", "peers": {"hf": {"ratio": ratio}}}]}

    assert bench.lower(result(3.1), result(4)) == []
    assert len(bench.lower(result(2.9), result(4))) == 1
    assert bench.lower(result(1), {"rows": []}) == []


def test_a_side_that_cannot_start_is_seen(bench, tmp_path):
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no module named vllm' >&2\nexit 1\n")
    broken.chmod(0o755)
    row = bench.Row(name="SFT step", kind="sft", size="small", peers=("trl_packed",), asked=2.5)
    options = argparse.Namespace(quick=True, rounds=1, model="random", trl=str(broken), vllm=None)
    found = bench.measured(row, options, str(tmp_path))
    assert (
        bench.table({"rows": [found]})[-1]
        == "| SFT step | trl, packed | failed: no module named vllm | | 2.5 |"
    )
    assert bench.failures([found]) == ["SFT step against trl_packed: failed: no module named vllm"]
    assert found["seconds"] > 0  # our side is measured all the same


def test_the_shares_are_of_what_the_same_run_measured(bench):
    limits = {"bfloat16_gflops": 400.0, "read_gb_s": 30.0}
    forward = {"prefill_gflops": 200.0, "decode_s": 0.02, "weight_gb": 0.3, "parameters": 1e8}
    found = bench.shares(limits, forward, [{"row": "SFT step, 135M", "tokens_s": 200}])
    assert list(found.values()) == [0.5, 2.0, 0.3]


def test_a_side_is_a_process_that_says_why_it_ended(bench):
    with pytest.raises(RuntimeError, match="no module named that"):
        bench.Side([sys.executable, "-c", "raise SystemExit('no module named that')"]).round()
    with pytest.raises(RuntimeError, match="ended by SIGKILL"):
        bench.Side([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]).round()
    said = json.dumps({"cpu": 1})
    side = bench.Side([sys.executable, "-c", f"input(); print({said!r})"])
    assert side.round() == {"cpu": 1}
    side.close()


@pytest.mark.parametrize("row", ["rollout", "sft", "ppo"])
def test_our_sides_do_a_round_with_the_built_in_model(bench, row):
    sides = importlib.import_module("bench_ours")
    work = sides.SIDES[row]["spa"](sides.Setting(size="small", model="random", quick=True))
    assert (work() or {}).get("tokens", 1) > 0
