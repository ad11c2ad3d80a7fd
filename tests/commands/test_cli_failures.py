"""How the command line ends when the disk or the user does not let it go on."""

import argparse
import errno
import importlib
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from spa import cli
from spa.run.signals import StopRequested


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch):
    """Make `spa config show`, or another command, raise something."""

    def make(error: BaseException, name: str = "config show") -> None:
        def fail(options: argparse.Namespace) -> int:
            raise error

        module, _, function = cli.COMMANDS[name].target.partition(":")
        arguments = getattr(importlib.import_module(module), f"{function}_arguments")
        monkeypatch.setitem(
            sys.modules, "failing_command", SimpleNamespace(fail=fail, fail_arguments=arguments)
        )
        monkeypatch.setitem(
            cli.COMMANDS, name, replace(cli.COMMANDS[name], target="failing_command:fail")
        )

    return make


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_disk_that_does_not_take_more_is_one_message_and_status_2(failing, capsys, number):
    failing(OSError(number, "no", "runs/x"))
    assert cli.main(["config", "show", "demo"]) == 2
    told = capsys.readouterr().err
    assert "runs/x" in told and "keeps finished work" in told and "Traceback" not in told


@pytest.mark.parametrize("number", [errno.EISDIR, errno.ENAMETOOLONG])
def test_what_stands_in_a_place_is_one_message_and_status_2(failing, capsys, number):
    failing(OSError(number, "no", "runs/x"))
    assert cli.main(["config", "show", "demo"]) == 2
    told = capsys.readouterr().err
    assert (
        "runs/x" in told
        and "Move the existing file or folder away" in told
        and "Traceback" not in told
    )


@pytest.mark.parametrize(
    "words",
    [["report"], ["view", "--export", "v"], ["runs"], ["diagnose"], ["eval", "--config", "base"]],
)
def test_a_name_that_is_too_long_for_a_file_is_one_message(capsys, words):
    assert cli.main([words[0], "x" * 300, *words[1:]]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_other_system_errors_are_ours_to_see(failing):
    failing(OSError(errno.EBADF, "no"))
    with pytest.raises(OSError, match="no"):
        cli.main(["config", "show", "demo"])


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_who_stops_a_command_reads_what_was_saved_and_how_to_resume(failing, capsys, name, status):
    failing(StopRequested(name, "runs/x/ppo/global_step_3"), "run")
    assert cli.main(["run", "demo", "a=b c"]) == status
    told = capsys.readouterr().err
    assert f"stopped by {name}. Saved: runs/x/ppo/global_step_3." in told
    assert "spa run demo 'a=b c'" in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "demo", "last", "True", "a=b c"], "spa run demo last 'a=b c'"),
        (["run", "--quiet", "demo", "a=1", "last", "true"], "spa run --quiet demo a=1 last"),
        (["run", "demo", "--from-scratch", "--steps", "3"], "spa run demo --steps 3"),
        (
            ["run", "--steps", "3", "demo", "--stages", "sft", "last"],
            "spa run --steps 3 demo --stages sft last",
        ),
        (
            ["run", "demo", "trainer.resume_mode=disable", "a=1"],
            "spa run demo a=1 trainer.resume_mode=auto",
        ),
        (
            ["compare", "anew.yaml", "--methods", "echo"],
            "spa compare anew.yaml --methods echo trainer.resume_mode=auto",
        ),
        (
            ["run", "anew.yaml", "trainer.resume_mode=auto"],
            "spa run anew.yaml trainer.resume_mode=auto",
        ),
    ],
)
def test_advice_to_resume_leaves_out_what_begins_from_scratch(
    failing, capsys, monkeypatch, tmp_path, words, told
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "anew.yaml").write_text("defaults: [tiny]\ntrainer: {resume_mode: disable}\n")
    name = words[0] if words[0] in cli.COMMANDS else " ".join(words[:2])
    failing(StopRequested("SIGTERM", "runs/x/ppo/global_step_3"), name)
    assert cli.main(words) == 143
    heard = capsys.readouterr().err
    assert heard.splitlines()[-1].strip() == told
    assert ("the same command again" in heard) == (told == f"spa {' '.join(words)}")


def test_code_of_others_that_leaves_with_success_is_a_failure(tmp_path, monkeypatch, capsys):
    (tmp_path / "leaving_game.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["env", "check", "leaving_game:Game"]) == 2
    assert "sys.exit(0)" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["env", "check", "FrozenLake"], ["model", "pretrain-tiny"]])
def test_a_command_that_keeps_nothing_gives_no_advice_to_resume(failing, capsys, words):
    failing(StopRequested("SIGTERM"), " ".join(words[:2]))
    assert cli.main(words) == 143
    assert capsys.readouterr().err == "\nstopped by SIGTERM.\n"


LEFT_BEHIND = {
    "a thread": "threading.Thread(target=time.sleep, args=(1000,), name='forgotten').start()",
    "an exit handler": "atexit.register(time.sleep, 1000)",
    "a process": "multiprocessing.get_context('fork').Process(target=time.sleep, args=(10,)).start()",
}


@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_nothing_that_is_left_running_keeps_the_process(left, tmp_path):
    lines = [
        "import atexit, multiprocessing, threading, time, spa.__main__ as command",
        "command.GRACE_S = 0.3",
        f"command.main = lambda: [{LEFT_BEHIND[left]}, 3][1]",
        "command.run()",
    ]
    words = [sys.executable, "-c", "\n".join(lines)]
    with (tmp_path / "err").open("w") as err:  # a pipe would stay open in what is left
        assert subprocess.run(words, stderr=err, check=False, timeout=60).returncode == 3
    assert (
        "(forgotten) kept the process alive" if left == "a thread" else "kept the process alive"
    ) in (tmp_path / "err").read_text()
