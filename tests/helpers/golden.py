"""Golden files of numbers that a reference gave: written beside its checkout, read by the tests."""

import json
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).parents[1] / "golden"


def write_golden(path: str, *, origin: str, cases: dict[str, Any]) -> None:
    """One line of JSON with floats of eight digits. `origin`: whose code of which version gave the numbers."""
    found = {"origin": origin, "torch": torch.__version__, "cases": _rounded(cases)}
    Path(path).write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


def read_golden(name: str) -> dict[str, Any]:
    """What `write_golden` wrote: origin, torch and cases."""
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))


def _rounded(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_rounded(value) for value in tree]
    return float(f"{tree:.8g}") if isinstance(tree, float) else tree
