"""The pages about environments: the table is that of the cards, pictures exist, commands work as printed."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from spa.cli import main

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str) -> list[str]:
    """The command lines of a page, without blocks that are marked as not run."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(
        r"(?<!-->\n)^```sh\n(.*?)^```|^<!-- commands: dry run -->\n```sh\n(.*?)^```",
        text,
        re.M | re.S,
    )
    return re.findall(
        r"(?m)^((?:spa|pytest|mkdir|cd) [^#\n]*?)\s*(?:#.*)?$", "".join(map("".join, blocks))
    )


def test_the_table_is_that_of_the_cards():
    spec = importlib.util.spec_from_file_location(
        "environment_pictures", DOCS / "environment_pictures.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.table() in (DOCS / "environments.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", ["environments.md", "add-an-environment.md"])
def test_links_and_pictures_exist(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (DOCS / target).is_file(), target


def test_the_commands_about_environments(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115 - an empty input ends the play
    found = commands("environments.md")
    assert len(found) == 4
    for command in found:
        assert main(shlex.split(command)[1:]) == 0, command


def test_the_page_followed_literally(tmp_path, capsys, monkeypatch):
    """From an empty folder, every command as printed; training is left to the tests of the recipe."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open("/dev/null"))  # noqa: SIM115
    done = []
    for command in commands("add-an-environment.md"):
        program, *args = shlex.split(command)
        if program == "mkdir":
            (Path.cwd() / args[0]).mkdir()
        elif program == "cd":
            monkeypatch.chdir(Path.cwd() / args[0])
        elif program == "pytest":
            assert (Path.cwd() / args[0]).is_file()
        elif args[0] != "run":
            assert main(args) == 0, command
        done.append(" ".join([program, *args[: 2 if args[0] == "env" else 1]]))
    assert done == [
        "mkdir corridor",
        "cd corridor",
        "spa env new",
        "spa env check",
        "pytest test_my_game.py",
        "spa env play",
        "spa env measure",
        "spa run",
        "spa run",
    ]
    assert "all checks passed" in capsys.readouterr().out
