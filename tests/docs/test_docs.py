"""The documentation holds: links lead somewhere, pages are in the menu, examples work. Commands: test_commands.py."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from config_reference import PAGES as GENERATED

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
        ("extending.md", "custom_engine.py"),
        ("extending.md", "shaped_reward.py"),
    ],
)
def test_pages_print_the_examples(page: str, name: str):
    example = (ROOT / "examples" / name).read_text(encoding="utf-8")
    code = re.sub(r'\A""".*?"""\n\n(# ruff: noqa[^\n]*\n\n)?', "", example, flags=re.S)
    assert dict(python_blocks(page))[name] == code
