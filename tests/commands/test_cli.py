"""The command line: light to start, and one clear message for whatever is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spa.cli import COMMANDS, main, usage

HEAVY = ("torch", "transformers", "numpy", "hydra", "omegaconf", "pyarrow", "rich", "gymnasium", "jinja2")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def failed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """What a failing command says."""
    status = main(list(args))
    said = capsys.readouterr()
    assert status == 2
    assert "Traceback" not in said.err + said.out
    assert said.err.startswith(f"spa {args[0]}: ") or said.err.startswith("spa: ")
    return said.err


@pytest.mark.parametrize("args", [["--help"], [], ["--version"], ["nonsense"]])
def test_help_loads_no_heavy_module(args):
    code = (
        "import sys\nfrom spa.cli import main\n"
        f"status = main({args!r})\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = python(code)
    assert done.returncode == (2 if args == ["nonsense"] else 0), done.stderr
    assert done.stdout if args != ["nonsense"] else done.stderr.startswith("spa: there is no command 'nonsense'")


def test_help_lists_every_command():
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in usage()
        assert text in usage()


def test_an_unknown_command_gets_the_nearest_name(capsys):
    assert "Did you mean `spa generate`?" in failed(capsys, "generte")


@pytest.mark.parametrize("command", ["run", "generate", "sft", "ppo", "baseline", "compare"])
def test_an_unknown_key_is_named_with_its_neighbour(capsys, command):
    said = failed(capsys, command, "demo", "trainer.total_trainig_steps=3")
    assert "trainer.total_trainig_steps" in said
    assert "total_training_steps" in said.replace("total_trainig_steps", "")


def test_all_problems_of_a_configuration_are_reported_together(capsys):
    said = failed(
        capsys, "ppo", "demo", "trainer.total_training_steps=none", "agent_proxy.max_turns=3", "sft.optim.lr=-1"
    )
    assert "3 problems" in said
    for key in ("trainer.total_training_steps", "agent_proxy.max_turns", "sft.optim.lr"):
        assert key in said


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["run", "demo", "last", "maybe"], "GENERATE_DATA is 'maybe'"),
        (["run", "demo", "newest"], "CKPT is 'newest'"),
        (["run", "demo", "²", "False"], "CKPT is '²'"),
        (["run", "demo", "20"], "from that step: spa run demo 20 False"),
        (["run", "demo", "20", "True"], "from that step: spa run demo 20 False"),
        (["run", "nowhere.yaml"], "nowhere.yaml"),
        (["compare", "demo", "--seeds", "0"], "--seeds is 0"),
        (["bench-methods", "--controls", "-1", "--dry-run"], "--controls is -1"),
        (["pretrain-tiny", "--steps", "0"], "--steps is 0"),
        (["doctor", "trainer.threads=4"], "without --fit CONFIG"),
        (["doctor", "--gpu-memory", "80"], "without --fit CONFIG"),
        (["doctor", "--fit", "base", "--gpu-memory", "0"], "--gpu-memory is 0"),
        (["baseline", "demo", "grid"], "no baseline 'grid'; choose from vanilla, vanilla_wm"),
        (["baseline", "demo", "ctx_manager.mode=add_worldmodel"], "take the baseline vanilla_wm"),
        (["baseline", "demo", "vanilla_wm", "ctx_manager.mode=base"], "take the baseline vanilla "),
        (["baseline", "demo", "state_estimation", "state_text=grid"], "which is shown grid_and_coords"),
        (["ppo", "demo", "es_manager.train.env_groups=0"], "env_groups"),
        (["ppo", "demo", "es_manager.train.env_groups=1", "es_manager.train.group_size=2"], "only 2 episodes are kept"),
    ],
)
def test_what_cannot_be_is_said(capsys, args, words):
    assert words in failed(capsys, *args)


@pytest.mark.parametrize("command", ["run", "generate", "sft", "ppo", "baseline", "compare"])
def test_a_dry_run_touches_nothing(capsys, tmp_path, command):
    assert main([command, "demo", "--dry-run", f"trainer.run_dir={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_path_with_a_sign_of_equality_is_no_override(capsys, tmp_path):
    folder = tmp_path / "gamma=0.9"
    folder.mkdir()
    (folder / "config.yaml").write_text("defaults: [demo]\n")
    assert main(["ppo", str(folder), "--dry-run", "~trainer.test_freq", "+trainer.save_freq=3"]) == 0
    assert "is valid" in capsys.readouterr().out
    assert main(["eval", "random", str(folder), "--dry-run", "--output", f"{folder}/a.json"]) == 0
    assert f"the result would be {folder}/a.json" in capsys.readouterr().out


def test_places_that_are_chosen_are_used(capsys):
    places = ["generate.output_dir=my/data", "sft.trainer.default_local_dir=my/sft", "trainer.default_local_dir=my/ppo"]
    assert main(["run", "demo", "--dry-run", *places]) == 0
    assert "it would run in my/data, my/sft and my/ppo" in capsys.readouterr().out
    assert main(["baseline", "demo", "--dry-run", places[-1]]) == 0
    assert "vanilla would run in my/ppo" in capsys.readouterr().out
    assert main(["baseline", "demo", "--dry-run", "ctx_manager.mode=base"]) == 0
    assert "vanilla would run in runs/demo/vanilla/ppo" in capsys.readouterr().out


def test_debug_shows_where_an_error_comes_from(capsys):
    assert main(["run", "nowhere.yaml", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err
    assert main(["run", "nowhere.yaml"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_hostile_text_in_an_error_is_only_text(capsys):
    assert main(["run", "\x1b[2Jnowhere\u202e.yaml"]) == 2
    said = capsys.readouterr().err
    assert "\\x1b[2Jnowhere\\u202e.yaml" in said and "\x1b" not in said


def small(tmp_path: Path, *overrides: str) -> list[str]:
    return ["demo", f"trainer.run_dir={tmp_path / 'run'}", "trainer.logger=[]", "trainer.device=cpu", *overrides]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "no such model folder"),
        (lambda folder: folder.mkdir(), "no config.json"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{}")), "weights"),
        (lambda folder: (folder.mkdir(), (folder / "config.json").write_text("{}"), torn(folder)), "cannot load"),
    ],
)
def test_a_folder_that_holds_no_whole_model_is_named(capsys, tmp_path, make, words):
    folder = tmp_path / "model"
    make(folder)
    capsys.readouterr()  # what making it said
    said = failed(capsys, "ppo", *small(tmp_path, f"model_path={folder}"))
    assert str(folder) in said
    assert words in said


def torn(folder: Path) -> None:
    from helpers.families import small_model, tokenizer

    small_model("qwen2").save_pretrained(folder)
    tokenizer("qwen2").save_pretrained(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


def test_ppo_alone_needs_a_checkpoint(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = failed(capsys, "run", *small(tmp_path), "last", "False")
    assert "no fine-tuned model yet" in said
    assert "model_path=" in said


def test_a_hub_model_without_a_network_fails_at_once_with_advice(tmp_path):
    code = "import sys\nfrom spa.cli import main\nsys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "_2_sokoban", "last", "True", f"trainer.run_dir={tmp_path / 'run'}"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub")},
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "Qwen/Qwen2.5-1.5B-Instruct" in done.stderr
    for advice in ("network", "hf download", "model_path", "builtin:tiny"):
        assert advice in done.stderr


@pytest.mark.parametrize(("chosen", "found"), [({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0")])
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(chosen, found):
    code = (
        "import os, sys\nfrom spa.cli import main\nmain(['--version'])\nassert 'torch' not in sys.modules\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    )
    clean = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=clean | chosen, check=True)
    assert done.stdout.splitlines()[-1] == found
