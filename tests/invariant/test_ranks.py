"""The number of ranks changes nothing: loss, gradient norm and weights, under DDP and FSDP2, also across a resume."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import rank_worker
import torch
from helpers.runs import make_base, small_config
from helpers.stages import assert_close, metrics, weights

from spa.recipes import selfplay

WORKER = Path(rank_worker.__file__)
KINDS = [(stage, strategy) for stage in ("sft", "ppo") for strategy in ("ddp", "fsdp")]
LORA = ["lora.rank=4"]
REPLAY = [
    "actor_rollout_ref.actor.replay.source=rollouts",
    "actor_rollout_ref.actor.replay.examples=3",
]
OPTIONS = {
    "cut": [
        "actor_rollout_ref.actor.fsdp_config.fsdp_size=1",
        "critic.model.fsdp_config.offload_policy=true",
        "critic.model.fsdp_config.reshard_after_forward=false",
    ],
    "half": ["actor_rollout_ref.model.dtype=bfloat16"],
    "lora": LORA,
    "replay": REPLAY,
}
"""Options of FSDP2, for PPO."""


def run_on_ranks(ranks: int, jobs: list[list[Any]], folder: Path) -> None:
    """Run the jobs on that many ranks of this machine. If a signal ends a rank in the middle, the command is started
    again, as its message says, and goes on from the last checkpoint; where the rank stood becomes a warning."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    source = Path(selfplay.__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(source), str(WORKER.parents[1])]),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONFAULTHANDLER": "1",  # a signal from a library's thread says where it came from
    }
    command = [sys.executable, str(WORKER), str(ranks), str(folder / "jobs.json")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode and (fatal := done.stderr.find("Fatal Python error")) >= 0:
        warnings.warn(done.stderr[fatal : fatal + 4000], stacklevel=2)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]


def job(stage: str, base: Path, folder: Path, strategy: str = "ddp") -> list[Any]:
    return [stage, str(base), str(folder), [f"actor_rollout_ref.actor.strategy={strategy}"]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, with world-model data beside it."""
    root = tmp_path_factory.mktemp("start")
    folder = make_base(root / "base")
    selfplay.run_self_play(
        small_config(folder, root, "generate.policy=random", "generate.num_batches=1"),
        directory=root / "data",
    )
    return folder


@pytest.fixture(scope="module")
def alone(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both stages in this process."""
    root = tmp_path_factory.mktemp("alone")
    rank_worker.run([job(stage, base, root) for stage in ("sft", "ppo")])
    return root


@pytest.fixture(scope="module")
def two(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both stages under both strategies on two ranks, one with a loss that is not finite, and PPO with options of FSDP2."""
    root = tmp_path_factory.mktemp("two")
    jobs = [job(stage, base, root / strategy, strategy) for stage, strategy in KINDS]
    jobs += [["ppo", str(base), str(root / name), overrides] for name, overrides in OPTIONS.items()]
    run_on_ranks(2, [*jobs, job("spoiled", base, root / "spoiled")], root)
    return root


def cut_off(two: Path, stage: str, strategy: str, root: Path) -> Path:
    """What a run on two ranks had left if it had been killed in step 2."""
    shutil.copytree(two / strategy / stage, root / strategy / stage)
    shutil.rmtree(root / strategy / stage / "global_step_2")
    return root


@pytest.mark.parametrize(("stage", "strategy"), KINDS)
def test_two_ranks_train_as_one_does(alone, two, stage, strategy):
    assert_close(two / strategy / stage, alone / stage)
    ours, theirs = alone / stage / "trajectories", two / strategy / stage / "trajectories"
    if stage == "ppo":
        assert [p.read_bytes() for p in sorted(ours.iterdir())] == [
            p.read_bytes() for p in sorted(theirs.iterdir())
        ]


def test_how_a_model_is_cut_changes_nothing(alone, two):
    """Whole copies side by side (hybrid sharding), shards on the CPU, layers kept between forward and backward pass."""
    assert_close(two / "cut" / "ppo", alone / "ppo")


@pytest.mark.parametrize("name", ["lora", "replay"])
def test_two_ranks_train_as_one_does_with_adapters_and_with_replayed_rollouts(
    base, two, tmp_path, name
):
    rank_worker.run([["ppo", str(base), str(tmp_path), OPTIONS[name]]])
    assert_close(two / name / "ppo", tmp_path / "ppo")
    assert ("actor/replay_tokens" in metrics(tmp_path / "ppo")[0]) == (name == "replay")


def test_gathered_parameters_in_bfloat16_train_nearly_as_in_float32(alone, two):
    for half, full in zip(metrics(two / "half" / "ppo"), metrics(alone / "ppo"), strict=True):
        assert half["rollout/old_log_prob"] != pytest.approx(full["rollout/old_log_prob"], rel=1e-5)
        assert half["rollout/old_log_prob"] == pytest.approx(full["rollout/old_log_prob"], rel=0.02)
        assert half["actor/grad_norm"] == pytest.approx(full["actor/grad_norm"], rel=0.1)
    assert {
        tensor.dtype for tensor in weights(two / "half" / "ppo" / "global_step_2").values()
    } == {torch.float32}


def test_a_loss_that_is_not_finite_on_one_rank_is_a_step_that_both_skip(base, two):
    first, second = metrics(two / "spoiled" / "sft")
    assert (
        first["train/nonfinite_steps"] == 1
        and first["train/loss"] is None
        and first["train/grad_norm"] > 1e-3
    )
    assert second["train/nonfinite_steps"] == 0 and second["train/loss"] > 0
    trained = weights(two / "spoiled" / "sft" / "global_step_1")
    assert all(trained[name].equal(tensor) for name, tensor in weights(base).items())


@pytest.mark.parametrize(("stage", "strategy"), KINDS)
def test_what_two_ranks_saved_goes_on_alone(base, alone, two, stage, strategy, tmp_path):
    cut_off(two, stage, strategy, tmp_path)
    rank_worker.run([job(stage, base, tmp_path / strategy)])
    assert_close(tmp_path / strategy / stage, alone / stage)


def test_what_two_ranks_saved_goes_on_on_four(base, alone, two, tmp_path):
    for stage, strategy in KINDS:
        cut_off(two, stage, strategy, tmp_path)
    run_on_ranks(
        4, [job(stage, base, tmp_path / strategy, strategy) for stage, strategy in KINDS], tmp_path
    )
    for stage, strategy in KINDS:
        assert_close(tmp_path / strategy / stage, alone / stage)
