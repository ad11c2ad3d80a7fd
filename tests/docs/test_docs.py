"""The documentation holds: links lead somewhere, pages are in the menu, examples work. Commands: test_commands.py."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from config_reference import PAGES as GENERATED
from config_reference import configuration_page

from spa.config.load import load_config

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
READERS = [
    *PAGES,
    *(
        ROOT / f"{name}.md"
        for name in ("README", "CONTRIBUTING", "AGENTS", "SECURITY", "CODE_OF_CONDUCT")
    ),
]


def python_blocks(page: str) -> list[tuple[str, str]]:
    """The Python blocks of a page that begin with a file name."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.S)


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
        if aim.parent == ROOT / "docs" and aim.name in GENERATED:
            continue
        assert aim.exists(), f"{page.name} links to {target}"
        if anchor and aim.suffix == ".md":
            headings = re.findall(r"^#+ (.+)$", aim.read_text(encoding="utf-8"), re.M)
            slugs = {
                re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
                for heading in headings
            }
            assert anchor in slugs, f"{page.name} links to {target}"


def test_the_menu_has_every_page():
    def pages(node) -> Iterator[str]:
        for value in node.values() if isinstance(node, dict) else node:
            if isinstance(value, str):
                yield value
            else:
                yield from pages(value)

    menu = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(menu) == sorted([*(page.name for page in PAGES), *GENERATED])


@pytest.mark.parametrize(
    ("page", "name"),
    [
        ("extending.md", "custom_advantage.py"),
        ("extending.md", "custom_method.py"),
        ("extending.md", "shaped_reward.py"),
    ],
)
def test_pages_print_the_examples(page: str, name: str):
    example = (ROOT / "examples" / name).read_text(encoding="utf-8")
    code = re.sub(r'\A""".*?"""\n\n(# ruff: noqa[^\n]*\n\n)?', "", example, flags=re.S)
    assert dict(python_blocks(page))[name] == code


def test_the_table_of_environments_is_that_of_the_cards():
    table = runpy.run_path(str(ROOT / "docs" / "environment_pictures.py"))["table"]
    assert table() in (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def test_the_example_of_the_configuration_page_loads(tmp_path):
    page = configuration_page()
    (tmp_path / "my_run.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    cfg = load_config(
        tmp_path / "my_run.yaml",
        ["es_manager.train.env_configs.tags=[FrozenLake,Sudoku]", "~custom_envs.Bandit"],
    )
    assert (cfg.model_path, cfg.agent_proxy.max_turn) == ("builtin:tiny", 3)
    assert cfg.es_manager.train.env_configs.n_groups == (16, 16)
