"""Print where the source knows a response format or a source of examples: `python tools/house.py`.

* Files outside `spa.formats` and `spa.examples` that compare the name of a format or a source.
* Files outside `spa.formats` that ask an attribute of a format in place of calling one of its methods.
* Files that an example of a written search passes. A traced run makes examples, writes them as Parquet and trains on
  them. A file counts if one of its functions gets an example or returns one, alone or within lists and records.
"""

import ast
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from spa.config.load import load_config
from spa.plugins import example_sources, response_formats
from spa.recipes.pipeline import run_sft_stage
from spa.recipes.selfplay import run_self_play
from spa.types import SFTExample
from spa_sweeps.methods import METHODS

SOURCE = Path(__file__).parents[1] / "src"
SETTINGS = (
    "model_path=builtin:tiny",
    "sft.model.partial_pretrain=builtin:tiny",
    "es_manager.val.env_groups=2",
    "es_manager.val.group_size=1",
    "generate.search.examples=4",
    "generate.sampling.response_length=420",
    "sft.trainer.total_training_steps=1",
    "sft.trainer.eval_episodes=0",
    "trainer.device=cpu",
    "trainer.logger=[]",
)
"""A small run of the configuration `smol_frozen_lake`."""


def outside(*rooms: str) -> Iterator[tuple[str, ast.Module]]:
    """Files of all packages but those in rooms of these names, with their syntax."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        if not name.startswith(
            tuple(f"{top}/{room}/" for top in ("spa", "spa_games") for room in rooms)
        ):
            yield name, ast.parse(path.read_text(encoding="utf-8"))


def comparing_names() -> list[str]:
    """Places that compare the name of a format or a source, as `FILE: code`."""
    names = {*response_formats(), "base", "moves", "world_model"}
    names |= {policy for source in example_sources() for policy in source.policies}
    return [
        f"{file}: {ast.unparse(node)}"
        for file, tree in outside("formats", "examples")
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and re.search(r"\.(response|example)_format|generate\.polic", ast.unparse(node))
        and names & {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
    ]


def asking_attributes() -> list[str]:
    """Places that ask an attribute that the class of formats declares, other than the name."""
    base = ast.parse((SOURCE / "spa/formats/base.py").read_text(encoding="utf-8"))
    declared = {
        item.target.id
        for each in ast.walk(base)
        if isinstance(each, ast.ClassDef) and each.name == "ResponseFormat"
        for item in each.body
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return [
        f"{file}: {ast.unparse(node)}"
        for file, tree in outside("formats")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in declared - {"name"}
    ]


def holds_example(value: Any, depth: int = 2) -> bool:
    """Return whether a value is an example, or holds some: within a list, a mapping or a record."""
    if isinstance(value, SFTExample) or depth == 0:
        return isinstance(value, SFTExample)
    parts: Sequence[Any] = ()
    if isinstance(value, list | tuple):
        parts = value
    elif isinstance(value, dict):
        parts = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, item.name, None) for item in fields(value)]
    return any(holds_example(part, depth - 1) for part in parts[:30])


def passed_by_example(folder: Path) -> dict[str, set[str]]:
    """Files that an example of a written search passes, each with its functions, in a run in `folder`."""
    settings = [*SETTINGS, *METHODS["search_simulator"].overrides, f"trainer.run_dir={folder}"]
    cfg = load_config("smol_frozen_lake", settings)
    passed: dict[str, set[str]] = {}

    def note(frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        if not file.startswith(f"{SOURCE}/") or code.co_qualname in passed.get(file, ()):
            return
        if event == "call":
            count = code.co_argcount + code.co_kwonlyargcount
            values = [frame.f_locals.get(name) for name in code.co_varnames[:count]]
        else:
            values = [value] if event == "return" else []
        if any(map(holds_example, values)):
            passed.setdefault(file, set()).add(code.co_qualname)

    sys.setprofile(note)
    try:
        run_sft_stage(cfg, run_self_play(cfg, directory=folder / "data"), folder / "sft")
    finally:
        sys.setprofile(None)
    return {str(Path(file).relative_to(SOURCE)): names for file, names in sorted(passed.items())}


if __name__ == "__main__":
    for title, places in (
        ("places that compare the name of a format or a source", comparing_names()),
        ("places that ask an attribute of a format", asking_attributes()),
    ):
        print(f"{title}: {len(places)}", *places, sep="\n  ")
    with tempfile.TemporaryDirectory() as folder:
        files = passed_by_example(Path(folder))
    print(f"files that a written-search example passes: {len(files)}")
    for file, names in files.items():
        print(f"  {file}: {', '.join(sorted(names))}")
