"""What pyproject.toml promises: dependencies that are imported, files that are shipped, versions that are pinned."""

import ast
import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = PROJECT["project"]["name"]
NAMES = {"PIL": "pillow", "hydra": "hydra-core", "yaml": "pyyaml"}
"""Imported name -> distribution, where they differ."""
COME_ALONG = {"uvicorn"}
"""Imported lazily beside the optional package that depends on it."""
GUESTS = {
    "spa_integrations/export/openenv.py",
    "spa_integrations/export/verifiers.py",
    "spa_verifiers/__init__.py",
}
"""Modules that are only imported where the stack is installed that they are written for."""
HOMES = sorted(file.parent for file in (ROOT / "src").glob("*/__init__.py"))
"""The folders of the packages of this distribution."""


def third_party(*, top_level: bool) -> set[str]:
    """Distributions imported by the source: at the top of a module, or inside functions."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        if top_level and path.relative_to(ROOT / "src").as_posix() in GUESTS:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body if top_level else ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            else:
                continue
            found |= {name.split(".")[0] for name in names}
    outside = found - set(sys.stdlib_module_names) - {home.name for home in HOMES}
    return {canonicalize_name(NAMES.get(name, name)) for name in outside}


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in requirements}


def test_imports_at_the_top_of_modules_are_dependencies():
    assert third_party(top_level=True) <= names(PROJECT["project"]["dependencies"])


def test_imports_inside_functions_are_dependencies_or_extras():
    extras = PROJECT["project"]["optional-dependencies"].values()
    known = names(PROJECT["project"]["dependencies"]).union(*map(names, extras))
    assert third_party(top_level=False) - known <= COME_ALONG


def test_every_file_beside_the_modules_is_shipped():
    shipped = PROJECT["tool"]["setuptools"]["package-data"]
    counts = {}
    for home in HOMES:
        files = [PurePosixPath(p.relative_to(home)) for p in home.rglob("*") if p.is_file()]
        data = [file for file in files if file.suffix not in (".py", ".pyc")]
        patterns = shipped.get(home.name, [])
        assert [
            str(file) for file in data if not any(matches(file, pattern) for pattern in patterns)
        ] == []
        counts[home.name] = len(data)
    assert counts["spa"] > 10 and set(shipped) <= set(counts)


def matches(file: PurePosixPath, pattern: str) -> bool:
    """Whether a pattern of package-data covers a file; ** stands for any number of folders."""
    return (
        re.fullmatch(
            re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*"), str(file)
        )
        is not None
    )


def pins() -> dict[str, str]:
    """Versions of constraints-cpu.txt by canonical name."""
    lines = (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def needed(package: str, extras: set[str]) -> set[str]:
    """Names of everything that an installed package with these extras needs, itself left out."""
    found: set[str] = set()
    todo = [(package, frozenset(extras))]
    done = set(todo)
    while todo:
        name, wanted = todo.pop()
        for line in metadata.requires(name) or ():
            asked = Requirement(line)
            if asked.marker is None or any(
                asked.marker.evaluate({"extra": extra}) for extra in ("", *wanted)
            ):
                found.add(canonicalize_name(asked.name))
                new = {(asked.name, frozenset(asked.extras))} - done
                done |= new
                todo += new
    return found - {package}


def test_the_tested_versions_lie_in_the_promised_ranges():
    tested = pins()
    extras = PROJECT["project"]["optional-dependencies"]
    required = [
        *PROJECT["project"]["dependencies"],
        *extras["dev"],
        *extras["api"],
        *extras["plot"],
    ]
    for requirement in map(Requirement, required):
        if requirement.name != NAME:
            assert requirement.specifier.contains(tested[canonicalize_name(requirement.name)]), (
                requirement
            )
    # an exact public version: an index with CPU builds then gives the CPU build
    assert tested["torch"] == "2.13.0"


def test_every_package_that_is_needed_has_hashes_of_the_tested_version():
    blocks = [
        block
        for block in re.split(
            r"\n(?=\S)", (ROOT / "requirements-hashed.txt").read_text(encoding="utf-8")
        )
        if not block.startswith("#")
    ]
    hashed = {}
    for block in blocks:
        name, version = block.split(" ")[0].split("==")
        assert re.findall(r"--hash=sha256:[0-9a-f]{64}", block), name
        hashed[name] = version
    known = pins()
    assert hashed.items() <= known.items()
    assert (needed(NAME, {"dev"}) & known.keys()) - {"torch"} <= hashed.keys()
    assert not re.search(r"--(?!hash)|https?:|file:", "\n".join(blocks))
