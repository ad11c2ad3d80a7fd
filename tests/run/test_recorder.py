"""The record of a stage: deterministic, legal JSON, resumable byte for byte."""

import importlib
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from spa.config.load import load_config
from spa.errors import TrainingError
from spa.run import console
from spa.run.console import log_file
from spa.run.fingerprint import Fingerprint
from spa.run.recorder import Recorder, read_metrics
from spa.run.signals import stoppable
from spa.run.trackers import headline, trackers_named
from spa.types import Episode, ParsedResponse, StopReason, Turn
from spa_sweeps.grid import Plan, StageJob, run_grid


def episode(name: str = "train/1/0/0", text: str = "<answer>Up</answer>") -> Episode:
    response = ParsedResponse(
        think=None, observation=None, prediction=None, actions=("Up",), well_formed=True
    )
    turn = Turn(
        state="P_", actions_left=5, response_text=text, response=response, executed=("Up",), reward=1.0, penalty=0.0,
        next_state="_P", infos=({"action_is_valid": np.True_, "success": True},),
    )  # fmt: skip
    return Episode(
        episode_id=name, tag="FrozenLake", mode="base", state_text="grid", puzzle_seed=1, noise_seed=2, puzzle_hash="ab",
        group=0, member=0, stop=StopReason.SUCCESS, success=True, turns=(turn,),
        messages=({"role": "user", "content": "go"}, {"role": "assistant", "content": text}),
        token_ids=np.arange(4, dtype=np.int32), sampled=np.array([False, False, True, True]),
        logprobs=np.array([0, 0, -0.5, -np.inf], np.float32), turn_index=np.array([-1, 0, 0, 0], np.int16),
    )  # fmt: skip


def record(directory: Path, first: int, last: int, resume: int | None = None) -> None:
    with Recorder(directory, stage="ppo", resume_step=resume) as recorder:
        for step in range(first, last + 1):
            with recorder.timer("update"):
                pass
            recorder.log(step, {"actor/loss": 0.1 * step, "actor/grad_norm": 1 / (step + 1)})
            recorder.trajectories(step, "train", [episode(f"train/{step}/0/0")])


def test_metrics_lines_are_sorted_and_hold_no_times(tmp_path: Path) -> None:
    with Recorder(tmp_path, stage="ppo") as recorder:
        with recorder.timer("rollout"):
            pass
        recorder.log(
            3, {"b": torch.tensor(2.0), "a": np.float32(0.5), "perf/tokens_per_second": 9.0, "n": 4}
        )
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step":3,"a":0.5,"b":2.0,"n":4}\n'
    timings = json.loads((tmp_path / "timings.jsonl").read_text())
    assert set(timings) == {
        "step",
        "timing_s/rollout",
        "perf/tokens_per_second",
        "perf/load",
        "perf/memory_gb",
        "elapsed_s",
        "unix_time",
    }
    assert 0.01 < timings["perf/memory_gb"] < 1000 and timings["perf/load"] >= 0
    assert timings["perf/tokens_per_second"] == 9.0


def test_tokens_per_second_are_a_timing(tmp_path: Path) -> None:
    with Recorder(tmp_path, stage="ppo") as recorder:
        recorder.log(1, {"a": 1.0}, tokens=1000)
        recorder.log(2, {"a": 1.0})
    assert [set(row) for row in read_metrics(tmp_path / "metrics.jsonl")] == [{"step", "a"}] * 2
    first, second = read_metrics(tmp_path / "timings.jsonl")
    assert first["perf/throughput"] > 0 and "perf/throughput" not in second


def test_non_finite_values_are_legal_json(tmp_path: Path) -> None:
    with Recorder(tmp_path, stage="ppo") as recorder:
        recorder.log(0, {"a": float("nan"), "b": float("inf"), "c": torch.tensor(-torch.inf)})
    line = (tmp_path / "metrics.jsonl").read_text()
    assert line == '{"step":0,"a":null,"b":"Infinity","c":"-Infinity"}\n'


def test_resume_continues_byte_for_byte(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    record(whole, 0, 5)
    record(parts, 0, 4)
    with (parts / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "actor/pg_')  # killed in the middle of a line
    record(parts, 3, 5, resume=2)
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    names = sorted(path.name for path in (whole / "trajectories").iterdir())
    assert names == sorted(path.name for path in (parts / "trajectories").iterdir())
    assert names == [f"train-{step:06d}.jsonl" for step in range(6)]
    for name in names:
        assert (parts / "trajectories" / name).read_bytes() == (
            whole / "trajectories" / name
        ).read_bytes()
    assert [row["step"] for row in read_metrics(parts / "timings.jsonl")] == [0, 1, 2, 3, 4, 5]


def test_resume_drops_what_was_recorded_later(tmp_path: Path) -> None:
    record(tmp_path, 0, 4)
    Recorder(tmp_path, stage="ppo", resume_step=1).close()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 1]
    assert sorted(p.name for p in (tmp_path / "trajectories").iterdir()) == [
        "train-000000.jsonl",
        "train-000001.jsonl",
    ]


def test_a_new_record_keeps_the_old_one(tmp_path: Path) -> None:
    record(tmp_path, 0, 1)
    old = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "tensorboard").mkdir()
    record(tmp_path, 7, 7)
    assert (
        not (tmp_path / "tensorboard").exists()
        and (tmp_path / "previous" / "1" / "tensorboard").is_dir()
    )
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [7]
    assert (tmp_path / "previous" / "1" / "metrics.jsonl").read_bytes() == old
    assert [p.name for p in (tmp_path / "trajectories").iterdir()] == ["train-000007.jsonl"]


@pytest.mark.parametrize(
    "text", ["<b>&</b>", "\x1b[31mred", "\u202egnp", "\ud800 lone", "x" * 1_000_000]
)
def test_episodes_survive_the_file(tmp_path: Path, text: str) -> None:
    with Recorder(tmp_path, stage="ppo") as recorder:
        recorder.trajectories(2, "val", [episode("a", text)])
        recorder.trajectories(2, "val", [episode("b", text)])  # a second call appends
        recorder.token_scores(2, "val", {"a": {"advantages": [0.0, float("nan")]}})
    lines = (tmp_path / "trajectories" / "val-000002.jsonl").read_text().splitlines()
    restored = [Episode.from_json(json.loads(line)) for line in lines]
    assert [item.episode_id for item in restored] == ["a", "b"]
    assert restored[0].messages[1]["content"] == text
    assert restored[0].logprobs is not None and restored[0].logprobs.tolist() == [
        0,
        0,
        -0.5,
        -np.inf,
    ]
    assert restored[0].turns[0].infos[0]["action_is_valid"] is True
    scores = json.loads((tmp_path / "token_scores" / "val-000002.jsonl").read_text())
    assert scores == {"episode_id": "a", "advantages": [0.0, None]}


def test_other_ranks_write_nothing(tmp_path: Path) -> None:
    with Recorder(tmp_path / "x", stage="ppo", enabled=False) as recorder:
        with recorder.timer("a"):
            pass
        recorder.log(0, {"a": 1.0})
        recorder.trajectories(0, "train", [episode()])
        recorder.message("hello")
    assert not (tmp_path / "x").exists()


def test_config_is_saved_as_yaml(tmp_path: Path) -> None:
    Recorder(
        tmp_path,
        stage="sft",
        config={"path": Path("a"), "lr": 1e-4, "tags": ("A", "B")},
    ).close()
    assert (tmp_path / "config.yaml").read_text() == "path: a\nlr: 0.0001\ntags:\n- A\n- B\n"


def test_a_path_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"cannot write .*file"):
        Recorder(tmp_path / "file" / "ppo", stage="ppo")


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    with Recorder(tmp_path, stage="ppo") as recorder:
        (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
        with pytest.raises(TrainingError, match="No space left"):
            recorder.log(0, {"a": 1.0})


def test_log_file_has_messages_and_warnings_without_escapes(tmp_path: Path) -> None:
    with log_file(tmp_path / "log.txt"), Recorder(tmp_path, stage="ppo") as recorder:
        recorder.message("started \x1b[2J\ud800")
        logging.getLogger("spa.worldmodel").warning("dropped %d rows", 3)
    logging.getLogger("spa").warning("after the end")
    text = (tmp_path / "log.txt").read_text()
    assert "INFO started \\x1b[2J\\ud800" in text
    assert "WARNING dropped 3 rows" in text
    assert "after the end" not in text


def test_the_log_file_says_why_the_stage_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(ValueError, match="no such thing"),
        log_file(tmp_path / "log.txt"),
        Recorder(tmp_path, stage="ppo"),
    ):
        raise ValueError("no such thing \x1b[2J")
    text = (tmp_path / "log.txt").read_text()
    assert (
        "ERROR stopped by ValueError" in text
        and "Traceback" in text
        and "no such thing \\x1b[2J" in text
    )
    assert "stopped" not in capsys.readouterr().err


def test_a_stage_and_its_parts_write_each_line_once(tmp_path: Path) -> None:
    with log_file(tmp_path / "log.txt"), Recorder(tmp_path, stage="sft") as recorder:
        recorder.message("in both")
    logging.getLogger("spa").warning("after the end")
    text = (tmp_path / "log.txt").read_text()
    assert text.count("in both") == 1 and "after the end" not in text


@pytest.fixture
def verbosity() -> Iterator[None]:
    """Tests of the verbosity end with the default one."""
    yield
    console.set_verbosity()


@pytest.mark.parametrize(
    ("level", "said"),
    [("debug", ["debug: fine", "big"]), ("", ["big"]), ("INFO", ["big"]), ("WARNING", [])],
)
def test_spa_log_chooses_how_much_is_said(verbosity, capsys, level: str, said: list[str]) -> None:
    console.verbosity_from({"SPA_LOG": level})
    logging.getLogger("spa.x").debug("fine")
    logging.getLogger("spa.x").info("big")
    assert capsys.readouterr().err.splitlines() == said


def test_workers_show_warnings_alone(verbosity, capfd) -> None:
    console.set_verbosity()
    known = Fingerprint(stage="selfplay", settings={}, content={})
    cfg = load_config("tiny")
    task = StageJob(stage="selfplay", folder=Path("nowhere"), config=cfg, fingerprint=known)
    assert run_grid(Plan(tasks=[task]), devices=["cpu"], work=_alternating) == {7: 7}
    said = capfd.readouterr().err
    assert "warning: careful" in said and "by the way" not in said


def _alternating(task: StageJob, device: str) -> tuple[int, int]:
    console.ensure_logging()
    logging.getLogger("spa.x").info("by the way")
    logging.getLogger("spa.x").warning("careful")
    return 7, 7


def test_plain_lines_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console.set_verbosity()
    with Recorder(
        tmp_path, stage="ppo", trackers=trackers_named(["console"]), total_steps=2
    ) as recorder:
        recorder.log(
            1,
            {
                "train/FrozenLake/success": 0.25,
                "val-env/FrozenLake/success": 0.5,
                "actor/loss": 0.1,
            },
        )
        recorder.log(2, {"actor/loss": 0.2})
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("[ppo] step 1/2  success 0.500  loss 0.1000")
    assert last.startswith("[ppo] step 2/2  loss 0.2000")


def test_quiet_says_nothing_but_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console.set_verbosity(quiet=True)
    try:
        with Recorder(
            tmp_path, stage="ppo", trackers=trackers_named(["console"]), total_steps=1
        ) as recorder:
            recorder.message("hidden")
            recorder.log(1, {"a": 1.0})
            logging.getLogger("spa.x").warning("shown")
    finally:
        console.set_verbosity()
    assert capsys.readouterr().err == "warning: shown\n"


def test_trackers_get_as_many_episodes_as_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text(
        "tables = []\n"
        "class Table(list):\n"
        "    def __init__(self, dataframe): super().__init__(dataframe['episode'])\n"
        "class Run:\n"
        "    def log(self, values, step): tables.append((step, values))\n"
        "def init(**k): return Run()\n"
        "def finish(): pass\n"
    )
    (tmp_path / "pandas.py").write_text(
        "def DataFrame(rows, columns): return {name: [row[i] for row in rows] for i, name in enumerate(columns)}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("trackio", "pandas"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    played = [episode(f"e{number}") for number in range(12)]
    samples = {"train": 0, "val": 2}
    with Recorder(
        tmp_path / "run", stage="ppo", trackers=trackers_named(["trackio"], samples=samples)
    ) as recorder:
        for split in ("train", "val", "sft_eval"):
            recorder.trajectories(3, split, played)
    tables = importlib.import_module("trackio").tables
    for name in ("trackio", "pandas"):
        sys.modules.pop(name, None)
    assert tables == [
        (3, {"episodes/val": ["e0", "e1"]}),
        (3, {"episodes/sft_eval": [f"e{number}" for number in range(8)]}),
    ]


def test_a_resumed_stage_continues_its_curves_and_a_new_one_in_its_place_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text(
        "names = []\n"
        "class Run:\n"
        "    def finish(self): pass\n"
        "def init(name, **k): names.append(name); return Run()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    folder = tmp_path / "run"
    for _ in range(2):
        Recorder(folder, stage="ppo", trackers=trackers_named(["trackio"])).close()
    shutil.rmtree(folder)
    Recorder(folder, stage="ppo", trackers=trackers_named(["trackio"])).close()
    one, same, other = importlib.import_module("trackio").names
    sys.modules.pop("trackio", None)
    assert one == same != other


def test_a_failing_tracker_is_one_warning_and_never_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text(
        "class Run:\n"
        "    def log(self, *a, **k): raise RuntimeError('the server is gone')\n"
        "def init(**k): return Run()\n"
        "def finish(): raise RuntimeError('never called')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with Recorder(tmp_path / "run", stage="ppo", trackers=trackers_named(["trackio"])) as recorder:
        for step in range(3):
            recorder.log(step, {"a": 1.0})
    assert capsys.readouterr().err.count("the server is gone") == 1
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 3


@pytest.mark.parametrize(
    ("where", "what"),
    [
        *((where, "sys.exit(0)") for where in ("init", "log", "finish")),
        ("log", "raise Panic('a panic in Rust')"),
    ],
)
def test_a_tracker_that_ends_the_process_is_one_warning(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    what: str,
) -> None:
    lines = {name: what if name == where else "pass" for name in ("init", "log", "finish")}
    (tmp_path / "trackio.py").write_text(
        "import sys\n"
        "class Panic(BaseException): pass\n"
        "class Run:\n"
        f"    def log(self, *a, **k): {lines['log']}\n"
        "def init(**k):\n"
        f"    {lines['init']}\n"
        "    return Run()\n"
        f"def finish(): {lines['finish']}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trackio", raising=False)
    with (
        stoppable(),
        Recorder(tmp_path / "run", stage="ppo", trackers=trackers_named(["trackio"])) as recorder,
    ):
        recorder.log(1, {"a": 1.0})
        recorder.log(2, {"a": 1.0})
    sys.modules.pop("trackio", None)
    assert capsys.readouterr().err.count("The tracker trackio is turned off") == 1
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 2


def test_lines_are_on_the_disk_when_log_returns(tmp_path, monkeypatch):
    """A checkpoint is written after them: after a power cut it must not know more than they do."""
    synced = []
    really = os.fsync

    def fsync(descriptor):
        synced.append((os.fstat(descriptor).st_ino, os.fstat(descriptor).st_size))
        really(descriptor)

    with Recorder(tmp_path, stage="ppo") as rec:
        rec.log(1, {"a": 1.0})
        monkeypatch.setattr(os, "fsync", fsync)
        rec.log(2, {"a": 2.0})
        for name in ("metrics.jsonl", "timings.jsonl"):
            stat = (tmp_path / name).stat()
            assert (stat.st_ino, stat.st_size) in synced


def test_the_validation_loss_is_not_called_the_loss_of_training():
    shown = headline({"train/loss": 0.1, "val/loss": 0.9})
    assert shown == {"loss": "0.1000", "validation loss": "0.9000"}
