"""The original's command lines run as its documents print them, shortened by overrides, with the bundled model."""

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from spa.cli import main

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "original"
sys.path.insert(0, str(SCRIPTS))
try:
    from SPA_agent.generate_sft_data import command as generate_command  # pyright: ignore
finally:
    sys.path.remove(str(SCRIPTS))
NOWHERE = "no_such_config"
SHORT = """
 trainer.device=cpu trainer.logger=[] agent_proxy.max_turn=2 state_text=coords ctx_manager.example=false
 ctx_manager.placeholders=words actor_rollout_ref.rollout.name=local actor_rollout_ref.rollout.response_length=96
 actor_rollout_ref.rollout.max_model_len=2048
"""
PLAY = "es_manager.train.env_groups=4 es_manager.train.group_size=2 generate.num_batches=1 es_manager.val.env_groups=2"
SFT = """
 sft.data.train_batch_size=4 sft.data.micro_batch_size_per_gpu=4 sft.trainer.total_training_steps=1
 sft.trainer.save_freq=1 sft.trainer.test_freq=1 sft.trainer.eval_episodes=2 gate.enable=false
"""
PPO = """
 es_manager.train.env_groups=2 es_manager.train.group_size=2 es_manager.val.env_groups=2 es_manager.val.group_size=2
 ppo_mini_batch_size=2 trainer.total_training_steps=1 trainer.test_freq=1 trainer.save_freq=1
 trainer.val_before_train=false actor_rollout_ref.rollout.rollout_filter_ratio=1 trainer.validation_steps=1
"""
CHECKPOINTS = "./sftckpt/checkpoints_3_frozen_lake-1.5B-text_with_coordinates-qwen/"
DATA = "./sftdata/_3_frozen_lake-1.5B-text_with_coordinates"


def started(folder: Path, line: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a folder."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        shlex.split(line),
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": f"{SCRIPTS}:{ROOT / 'src'}",
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )


def handed(folder: Path, line: str, **variables: str) -> list[str]:
    """The arguments that a script hands to `spa`, whose failure it passes on.

    The script is run with a configuration that does not exist, so that `spa` ends at once."""
    done = started(folder, line.replace(" _", f" {NOWHERE}_", 1), **variables)
    assert done.returncode == 2, done.stderr
    printed, _, error = done.stderr.partition("+ exec spa ")[2].partition("\n")
    assert error.startswith("spa run: ") and NOWHERE in error, done.stderr
    if "'" not in printed:  # other shells than bash print words without quotes
        for value in variables.values():
            printed = printed.replace(value, shlex.quote(value))
    return [word.removeprefix(NOWHERE) for word in shlex.split(printed)]


def spa(folder: Path, words: list[str], *overrides: str) -> None:
    """Run a command of `spa` in a folder, in this process."""
    with contextlib.chdir(folder):
        assert main([*words, *(word for text in overrides for word in text.split())]) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the original's data and SFT checkpoint, made by its first two commands."""
    place = tmp_path_factory.mktemp("original")
    tiny = "model_path=builtin:tiny"
    line = "python -m SPA_agent.generate_sft_data --config-name"
    failed = started(place, f"{line} {NOWHERE}")
    assert failed.returncode == 2 and NOWHERE in failed.stderr
    spa(place, generate_command(["--config-name", "_3_frozen_lake"], {}), SHORT, PLAY, tiny)
    line = f"bash {SCRIPTS}/sft/finetune_ft.sh _3_frozen_lake 4 {CHECKPOINTS} {DATA} 1.5B"
    spa(place, handed(place, line), SHORT, SFT, tiny)
    return place


def test_data_and_checkpoint_are_where_the_original_puts_them(folder: Path):
    assert pq.read_table(folder / DATA / "wm_train.parquet").num_rows > 0
    assert pq.read_table(folder / DATA / "wm_val.parquet").num_rows > 0
    assert (folder / CHECKPOINTS / "global_step_1" / "config.json").is_file()


def test_the_filter_reads_the_data(folder: Path):
    line = f"python {SCRIPTS}/sft/filter_sft_by_tag.py --in-train {DATA}/wm_train.parquet"
    done = started(folder, f"{line} --in-val {DATA}/wm_val.parquet --out-dir filtered")
    assert done.returncode == 0, done.stderr
    assert "filtered/wm_train.parquet: kept" in done.stdout + done.stderr
    assert (folder / "filtered" / "wm_val.parquet").is_file()


def test_ppo_starts_from_the_checkpoint(folder: Path):
    line = f"bash {SCRIPTS}/train_ppo_sfted.sh _3_frozen_lake {CHECKPOINTS}global_step_1 my/run"
    spa(folder, handed(folder, line, BASE_DIR="checkpoints"), SHORT, PPO)
    assert (folder / "checkpoints" / "global_step_1" / "config.json").is_file()


def test_the_whole_pipeline(tmp_path: Path):
    words = handed(tmp_path, f"bash {ROOT}/run_spa.sh _3_frozen_lake last True", BT_NUM="1")
    spa(tmp_path, words, SHORT, PLAY, SFT, PPO, "trainer.run_dir=run model_path=builtin:tiny")
    assert (tmp_path / "run" / "ppo" / "global_step_1" / "config.json").is_file()


VARIABLES = {
    "MODE": "add_worldmodel", "MODEL": "1.5B", "RENDER_MODE": "text", "BT_NUM": "2",
    "OUTPUT_DIR": "some where", "BASE_DIR": "else where",
}  # fmt: skip


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("run_spa.sh _2_sokoban last True", set(VARIABLES)),
        (
            "run_baseline.sh _2_sokoban vanilla_wm",
            {"MODE", "MODEL", "RENDER_MODE", "BASE_DIR"},
        ),
    ],
)
def test_scripts_hand_over_arguments_and_variables(line: str, ends: set[str], tmp_path: Path):
    """Those in `scripts/original` hand everything to those in the root."""
    words = handed(tmp_path, f"{SCRIPTS}/{line}", **VARIABLES)
    spa(tmp_path, [*words, "--dry-run"])
    settings = {
        "MODE": "ctx_manager.mode=add_worldmodel",
        "MODEL": "model_path=Qwen/Qwen2.5-1.5B-Instruct",
        "RENDER_MODE": "render_mode=text",
        "BT_NUM": "generate.num_batches=2",
        "OUTPUT_DIR": "generate.output_dir=some where",
        "BASE_DIR": "trainer.default_local_dir=else where",
    }
    assert {name for name, override in settings.items() if override in words} == ends


@pytest.mark.parametrize("name", ["train_ppo_sfted.sh", "sft/finetune_ft.sh"])
def test_missing_arguments_print_the_usage(tmp_path: Path, name: str):
    done = subprocess.run(
        ["bash", str(SCRIPTS / name), "x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "usage:" in done.stderr


def test_the_variables_of_the_original_count():
    variables = {
        "MODEL": "3B",
        "RENDER_MODE": "text",
        "BT_NUM": "30",
        "MODE": "add_worldmodel",
        "OUTPUT_DIR": "out",
    }
    words = generate_command(["--config-name", "_2_sokoban", "a=1"], variables)
    assert words[:4] == ["run", "_2_sokoban", "--stages", "selfplay"] and words[-1] == "a=1"
    assert set(words[4:-1]) == {
        "model_path=Qwen/Qwen2.5-3B-Instruct",
        "render_mode=text",
        "generate.output_dir=out",
        "generate.num_batches=30",
        "ctx_manager.mode=add_worldmodel",
    }
    assert "generate.output_dir=sftdata/_2_sokoban-1.5B-text_with_coordinates" in generate_command(
        ["--config-name", "_2_sokoban"], {}
    )
