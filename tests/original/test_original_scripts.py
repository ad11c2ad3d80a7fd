"""The original's command lines run as its documents print them, shortened by overrides, with the bundled model."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "original"
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


def run(folder: Path, line: str, *overrides: str, **variables: str) -> str:
    """Run a command line in a folder; what it printed. Fails with its output if the command does."""
    words = [*shlex.split(line), *(word for text in overrides for word in text.split())]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    python_path = f"{SCRIPTS}:{ROOT / 'src'}"
    done = subprocess.run(
        words,
        cwd=folder,
        env={
            **os.environ,
            "PATH": path,
            "PYTHONPATH": python_path,
            "OMP_NUM_THREADS": "1",
            **variables,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the original's data and SFT checkpoint, made by its first two commands."""
    place = tmp_path_factory.mktemp("original")
    tiny = "model_path=builtin:tiny"
    run(
        place,
        "python -m SPA_agent.generate_sft_data --config-name _3_frozen_lake",
        SHORT,
        PLAY,
        tiny,
    )
    line = f"bash {SCRIPTS}/sft/finetune_ft.sh _3_frozen_lake 4 {CHECKPOINTS} {DATA} 1.5B"
    run(place, line, SHORT, SFT, tiny)
    return place


def test_data_and_checkpoint_are_where_the_original_puts_them(folder: Path):
    assert pq.read_table(folder / DATA / "wm_train.parquet").num_rows > 0
    assert pq.read_table(folder / DATA / "wm_val.parquet").num_rows > 0
    assert (folder / CHECKPOINTS / "global_step_1" / "config.json").is_file()


def test_the_filter_reads_the_data(folder: Path):
    printed = run(
        folder,
        f"python {SCRIPTS}/sft/filter_sft_by_tag.py --in-train {DATA}/wm_train.parquet --in-val {DATA}/wm_val.parquet "
        "--out-dir filtered",
    )
    assert (
        "filtered/wm_train.parquet: kept" in printed
        and (folder / "filtered" / "wm_val.parquet").is_file()
    )


def test_ppo_starts_from_the_checkpoint(folder: Path):
    line = f"bash {SCRIPTS}/train_ppo_sfted.sh _3_frozen_lake {CHECKPOINTS}global_step_1 my/run"
    run(folder, line, SHORT, PPO, BASE_DIR="checkpoints")
    assert (folder / "checkpoints" / "global_step_1" / "config.json").is_file()


def test_the_whole_pipeline(tmp_path: Path):
    line = f"bash {ROOT}/run_spa.sh _3_frozen_lake last True"
    run(
        tmp_path,
        line,
        SHORT,
        PLAY,
        SFT,
        PPO,
        "trainer.run_dir=run model_path=builtin:tiny",
        BT_NUM="1",
    )
    assert (tmp_path / "run" / "ppo" / "global_step_1" / "config.json").is_file()


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


def test_a_failed_fine_tuning_ends_with_its_status(folder: Path):
    line = f"bash {SCRIPTS}/sft/finetune_ft.sh _3_frozen_lake 4 ckpt no/such/folder builtin:tiny"
    with pytest.raises(AssertionError, match="does not exist"):
        run(folder, line, SHORT, SFT)


def test_the_variables_of_the_original_count():
    sys.path.insert(0, str(SCRIPTS))
    try:
        from SPA_agent.generate_sft_data import command  # pyright: ignore[reportMissingImports]
    finally:
        sys.path.remove(str(SCRIPTS))
    variables = {
        "MODEL": "3B",
        "RENDER_MODE": "text",
        "BT_NUM": "30",
        "MODE": "add_worldmodel",
        "OUTPUT_DIR": "out",
    }
    words = command(["--config-name", "_2_sokoban", "a=1"], variables)
    assert words[:4] == ["run", "_2_sokoban", "--stages", "selfplay"] and words[-1] == "a=1"
    assert set(words[4:-1]) == {
        "model_path=Qwen/Qwen2.5-3B-Instruct",
        "render_mode=text",
        "generate.output_dir=out",
        "generate.num_batches=30",
        "ctx_manager.mode=add_worldmodel",
    }
    assert "generate.output_dir=sftdata/_2_sokoban-1.5B-text_with_coordinates" in command(
        ["--config-name", "_2_sokoban"], {}
    )
