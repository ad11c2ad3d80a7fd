"""The command line: light to start, and one clear message for whatever is wrong."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.light import HEAVY

from spa.cli import COMMANDS, execute, main, make_parser, parse

NOT_LOADED = (*HEAVY, "jinja2")


@pytest.mark.parametrize("args", [["--help"], ["nonsense"]])
def test_help_loads_no_heavy_module(args):
    code = (
        "import sys\nfrom spa.cli import main\n"
        f"status = main({args!r})\n"
        f"heavy = [name for name in {NOT_LOADED!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {heavy}' if heavy else status)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (2 if args == ["nonsense"] else 0), done.stderr
    assert done.stdout or done.stderr.startswith("spa: there is no command 'nonsense'")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_an_example_that_parses(name: str):
    command = COMMANDS[name]
    assert command.example in make_parser(name).format_help()
    program, *words = command.example.split()
    assert program == "spa" and words[: len(name.split())] == name.split()
    options = parse(name, words[len(name.split()) :])
    assert all("=" in override for override in options.overrides)


def test_the_flags_are_settings():
    from spa.commands.arguments import settings

    words = ["tiny", "--model", "a b", "--steps", "3", "--output-dir", "runs/x y", "seed.val=1"]
    words += ["--sweep", "a=1,2"]
    options = parse("compare", words)
    assert options.overrides == ["seed.val=1"] and options.sweep == ["a=1,2"]
    assert settings(options) == [
        "model_path='a b'",
        "trainer.total_training_steps=3",
        "trainer.run_dir='runs/x y'",
        "seed.val=1",
    ]


def test_the_number_of_a_training_sets_all_its_seeds(tmp_path: Path):
    from spa.api.runs import configuration
    from spa_sweeps.methods import configured

    assert configuration("tiny", None, [], seed=2) == configured("tiny", (), 2)
    with pytest.raises(SystemExit):
        execute(["run", "tiny", "--seed", "-1"])


LONG = [
    ["run"],
    ["run", "--stages", "sft"],
    ["run", "--method", "vanilla"],
    ["compare"],
]


@pytest.mark.parametrize(
    "words",
    [
        ["bench", "methods", "--controls", "-1"],
        ["model", "pretrain-tiny", "--steps", "0"],
        ["run", "demo", "--steps", "0"],
    ],
)
def test_a_number_out_of_range_is_an_argparse_error(capsys, words):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert (
        stop.value.code == 2 and f"argument {words[-2]}: {words[-1]} is" in capsys.readouterr().err
    )


def test_an_option_is_not_abbreviated(capsys):
    with pytest.raises(SystemExit):
        main(["compare", "demo", "--dry-run", "--seed", "1"])
    assert "unrecognized arguments: --seed" in capsys.readouterr().err


@pytest.mark.parametrize("command", LONG, ids=" ".join)
def test_a_dry_run_touches_nothing(capsys, tmp_path, command):
    assert main([*command, "demo", "--dry-run", f"trainer.run_dir={tmp_path / 'run'}"]) == 0
    assert capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_dry_run_prints_the_command_that_was_typed(capsys):
    typed = ["demo", "--steps", "3", "--output-dir", "runs/x y", "seed.val=1", "--stages", "sft"]
    assert main(["run", *typed, "--dry-run"]) == 0
    out = capsys.readouterr().out
    command = "Command: spa run demo --steps 3 --output-dir 'runs/x y' seed.val=1 --stages sft\n"
    assert command in out
    # The memory is that of this stage.
    assert "(fine-tuning; estimate)" in out


def test_the_first_rank_alone_prints_a_dry_run():
    code = """
import os, sys
import spa.distributed.world, spa.recipes.preflight
from spa.cli import main
child = os.fork()
os.environ |= {"RANK": "0" if child else "1", "LOCAL_RANK": "0" if child else "1"}
status = main(["run", "demo", "--steps", "3", "--dry-run"])
if child:
    status += os.waitpid(child, 0)[1]
sys.exit(status)
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = {"TORCHELASTIC_RUN_ID": "ranks", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    environment = os.environ | torchrun | address
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Command: ") == done.stdout.count("is valid") == 1


def test_a_path_with_a_sign_of_equality_is_no_override(capsys, tmp_path):
    folder = tmp_path / "gamma=0.9"
    folder.mkdir()
    (folder / "config.yaml").write_text("defaults: [demo]\n")
    changes = ["~trainer.test_freq", "+trainer.save_freq=3"]
    assert main(["run", str(folder), "--stages", "ppo", "--dry-run", *changes]) == 0
    assert "is valid" in capsys.readouterr().out
    output = ["--output", f"{folder}/a.json"]
    assert main(["eval", "random", "--config", str(folder), "--dry-run", *output]) == 0
    assert f"and write {folder}/a.json" in capsys.readouterr().out


def test_places_that_are_chosen_are_used(capsys):
    places = [
        "generate.output_dir=my/data",
        "sft.trainer.default_local_dir=my/sft",
        "trainer.default_local_dir=my/ppo",
    ]
    assert main(["run", "demo", "--dry-run", *places]) == 0
    assert "spa would run in my/data, my/sft and my/ppo" in capsys.readouterr().out
    assert main(["run", "demo", "--method", "vanilla", "--dry-run", places[-1]]) == 0
    assert "vanilla would run in my/ppo" in capsys.readouterr().out
    assert main(["run", "demo", "--method", "vanilla", "--dry-run", "ctx_manager.mode=base"]) == 0
    assert "vanilla would run in runs/demo/vanilla/ppo" in capsys.readouterr().out


def test_hostile_text_in_an_error_is_only_text(capsys):
    assert main(["run", "\x1b[2Jnowhere\u202e.yaml"]) == 2
    said = capsys.readouterr().err
    assert "\\x1b[2Jnowhere\\u202e.yaml" in said and "\x1b" not in said


@pytest.mark.parametrize(
    ("chosen", "found"), [({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 0")]
)
def test_threads_that_wait_sleep_unless_the_user_says_otherwise(chosen, found):
    code = (
        "import os, sys\nfrom spa.cli import main\nmain(['--version'])\nassert 'torch' not in sys.modules\n"
        "print(os.environ['OMP_WAIT_POLICY'], os.environ['GOMP_SPINCOUNT'])"
    )
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=clean | chosen, check=True
    )
    assert done.stdout.splitlines()[-1] == found
