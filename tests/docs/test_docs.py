"""The documentation holds: links lead somewhere, pages are in the menu, commands exist with the options that are named."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from spa.cli import COMMANDS
from spa.cli import main as spa

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
READERS = [*PAGES, *(path for path in [ROOT / "README.md"] if path.exists())]
DRY = ("run", "generate", "sft", "ppo", "baseline", "compare")
"""Long commands are checked with --dry-run: the configuration is loaded, nothing is trained."""
SHORT = ("envs", "config", "doctor", "runs", "report", "check-env", "new-env")
"""Short commands are run as printed."""


def code(text: str) -> Iterator[str]:
    """Lines of code blocks, fenced (not Python or output) or indented."""
    inside = None
    for line in text.splitlines():
        if fence := re.match(r"```+(\w*)", line):
            inside = None if inside is not None else fence[1]
        elif inside in ("", "sh", "console", "bash"):
            yield line.removeprefix("$ ").removeprefix(".venv/bin/")
        elif inside is None and line.startswith("    "):
            yield line.strip().removeprefix(".venv/bin/")


def commands() -> list[tuple[str, str]]:
    """(page, command line) of every `spa …` in the documentation, comments cut off."""
    found = []
    for page in READERS:
        for line in code(page.read_text(encoding="utf-8")):
            if re.match(r"spa [a-z]", line):
                found.append((page.name, re.sub(r"\s{2,}#.*$", "", line)))
    return sorted(set(found))


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with what the pages speak of: an environment of one's own, a configuration, a finished run."""
    here = tmp_path_factory.mktemp("docs")
    sys.path.insert(0, str(ROOT / "tests" / "report"))
    from report_fixtures import write_demo

    patch = pytest.MonkeyPatch()
    patch.chdir(here)
    patch.syspath_prepend(str(here))
    write_demo(here / "runs" / "demo")
    assert spa(["new-env", "my_game"]) == 0
    (here / "my_run.yaml").write_text("defaults: [_3_frozen_lake]\nmodel_path: builtin:tiny\n")
    for name, content in python_blocks("extending.md"):
        (here / name).write_text(content)
    yield here
    patch.undo()
    sys.path.remove(str(ROOT / "tests" / "report"))


def python_blocks(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page that begin with a file name."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.S)


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda part: part[:70])
def test_every_command_of_the_documentation_works(page: str, line: str, workplace: Path, capsys):
    name, *args = shlex.split(line)[1:]
    if any(arg.isupper() and len(arg) > 1 for arg in args):  # a placeholder: CONFIG, FOLDER
        assert name in COMMANDS
        return
    if name in DRY:
        assert spa([name, *args, "--dry-run"]) == 0
    elif name == "new-env":
        assert name in COMMANDS  # was run to make this folder
    elif (name == "view" and "--export" in args) or (name in SHORT and "measure" not in args):
        assert spa([name, *args]) == 0
    else:
        with pytest.raises(SystemExit) as stop:
            spa([name, "--help"])
        assert stop.value.code == 0
        help_text = capsys.readouterr().out
        assert all(arg.split("=")[0] in help_text for arg in args if arg.startswith("--"))


def links(text: str) -> Iterator[str]:
    """Targets of links and pictures inside the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
        if not re.match(r"[a-z]+:", target):
            yield target


@pytest.mark.parametrize("page", READERS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    text = page.read_text(encoding="utf-8")
    for target in links(text):
        path, _, anchor = target.partition("#")
        aim = page if not path else (page.parent / path).resolve()
        assert aim.exists(), f"{page.name} links to {target}"
        if anchor and aim.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", aim.read_text(encoding="utf-8"), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {target}"


def test_the_menu_has_every_page():
    def pages(node) -> Iterator[str]:
        for value in node.values() if isinstance(node, dict) else node:
            if isinstance(value, str):
                yield value
            else:
                yield from pages(value)

    menu = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == [page.name for page in PAGES]


def test_the_advantage_of_the_documentation_estimates():
    (_, source), *_ = python_blocks("extending.md")
    module = ModuleType("my_advantage")
    exec(source, module.__dict__)
    batch = type("Batch", (), {"mask": torch.tensor([[True, False, True], [False, True, True]])})
    rewards = torch.tensor([[0.0, 0.0, 3.0], [0.0, 0.0, 1.0]])
    advantages, returns = module.centred(batch, rewards, gamma=1.0, lam=1.0)
    assert advantages.tolist() == [[1.0, 0.0, 1.0], [0.0, -1.0, -1.0]]
    assert returns is advantages


def test_the_engine_of_the_documentation_plays():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    source = next(block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "class Dice" in block)
    module = ModuleType("dice")
    exec(source, module.__dict__)
    from spa.prompts.parse import parse_reply

    prompts = [type("Prompt", (), {"seed": seed}) for seed in range(8)]
    replies = [parse_reply("<think>" + c.text, mode="base") for c in module.Dice().generate(prompts, None)]
    assert all(reply.well_formed for reply in replies)
    assert {reply.actions for reply in replies} == {("Left",), ("Right",)}
