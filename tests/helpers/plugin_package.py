"""Puts a package on the path as pip would: its modules, and the metadata of its pyproject.toml."""

import shutil
import tomllib
from pathlib import Path


def install(source: Path, target: Path) -> Path:
    """Install the package in `source` into the folder `target`, which belongs on the path."""
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    )
    project = tomllib.loads((source / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = f"{project['name'].replace('-', '_')}-{project['version']}"
    metadata = target / f"{stem}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n",
        encoding="utf-8",
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return target
