"""Add the pages of experiments/ and the generated references to the documentation site: a hook of mkdocs.

The links between docs/ and experiments/ are those of the repository, where the two folders are
neighbours. In the site, experiments/ is a folder of the pages.
"""

from pathlib import Path
from typing import Any

from config_reference import PAGES
from mkdocs.structure.files import File, Files

from spa_bench.estimator_bias.page import tables

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
ESTIMATORS = "<!-- tables of spa bench estimators -->"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the references and the experiments to the files of the site."""
    for name, make in PAGES.items():
        files.append(File.generated(config, name, content=make()))
    for path in sorted(EXPERIMENTS.rglob("*.md")):
        name = path.relative_to(EXPERIMENTS.parent).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Turn the links of the repository into those of the site, and add the tables of estimators."""
    if page.file.src_uri.startswith(f"{EXPERIMENTS.name}/"):
        # Notes of single days would crowd the pages out of the search.
        page.meta["search"] = {"exclude": True}
        return markdown.replace("../docs/", "../")
    if ESTIMATORS in markdown:
        markdown = markdown.replace(ESTIMATORS, "\n".join(tables()))
    return markdown.replace(f"](../{EXPERIMENTS.name}/", f"]({EXPERIMENTS.name}/")
