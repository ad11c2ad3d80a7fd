"""Formats and sources of examples are asked, not known by name, and few files pass an example on."""

from pathlib import Path

import house

MOST_FILES = 7


def test_formats_and_sources_are_named_in_their_own_files_alone():
    assert house.comparing_names() == []


def test_attributes_of_formats_are_asked_in_their_own_files_alone():
    assert house.asking_attributes() == []


def test_an_example_of_a_written_search_passes_few_files(tmp_path: Path):
    passed = house.passed_by_example(tmp_path)
    assert {"spa/examples/search.py", "spa/worldmodel/parquet.py"} < set(passed)
    assert len(passed) <= MOST_FILES, passed
