"""The page prints what the time model gives."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_table_of_the_page_is_the_models():
    spec = importlib.util.spec_from_file_location("scaling_model", ROOT / "benchmarks" / "scaling_model.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    assert "\n".join(module.table()) in page
