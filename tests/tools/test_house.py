"""Formats and sources of examples are asked, not known by name, and few files pass an example on."""

from collections import Counter
from pathlib import Path

import house
import pytest

from spa.examples.source import Examples
from spa.types import SFTExample

MOST_FILES = 7


def test_formats_and_sources_are_named_in_their_own_files_alone():
    assert house.comparing_names() == []


def test_attributes_of_formats_are_asked_in_their_own_files_alone():
    assert house.asking_attributes() == []


def test_a_place_that_knows_a_format_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "spa/formats").mkdir(parents=True)
    own = "class ResponseFormat:\n    name: str\n    predicts: bool = True\n"
    (tmp_path / "spa/formats/base.py").write_text(own)
    knows = "if cfg.agent_proxy.response_format == 'search' or form.predicts:\n    form.name\n"
    (tmp_path / "spa/recipe.py").write_text(knows)
    monkeypatch.setattr(house, "SOURCE", tmp_path)
    assert house.comparing_names() == ["spa/recipe.py: cfg.agent_proxy.response_format == 'search'"]
    assert house.asking_attributes() == ["spa/recipe.py: form.predicts"]


def test_an_example_of_a_written_search_passes_few_files(tmp_path: Path):
    passed = house.passed_by_example(tmp_path)
    assert {"spa/examples/search.py", "spa/worldmodel/parquet.py"} < set(passed)
    assert len(passed) <= MOST_FILES, passed


def test_an_example_is_found_within_lists_and_records():
    example = SFTExample(
        prompt=(),
        response="",
        tag="",
        episode_id="",
        turn=0,
        puzzle_seed=0,
        puzzle_hash="",
        success=False,
        reward=0.0,
        state="",
        next_state="",
    )
    made = Examples(examples=[example], dropped=Counter())
    assert house.holds_example(made) and house.holds_example({"a": [example]})
    assert not house.holds_example([["text"], {"a": 1}])
