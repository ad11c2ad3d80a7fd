"""The pictures of README and documentation are what their scripts write."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_diagrams_are_those_of_their_script():
    for name, svg in runpy.run_path(str(ROOT / "tools" / "diagrams.py"))["drawings"]():
        assert (ROOT / "docs" / "images" / name).read_text(encoding="utf-8") == svg, name


def test_figure_1_is_drawn_from_the_committed_data(tmp_path: Path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    curves = runpy.run_path(str(ROOT / "tools" / "demo_curves.py"))
    assert curves["main"](["--output", str(tmp_path)]) == 0
    for name in ("demo-curves.svg", "demo-tokens.svg"):
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        assert drawn == (ROOT / "docs" / "images" / name).read_text(encoding="utf-8"), name


def test_written_search_is_drawn_from_the_committed_data(tmp_path: Path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    curves = runpy.run_path(str(ROOT / "tools" / "search_curves.py"))
    assert curves["main"](["--output", str(tmp_path)]) == 0
    for name in ("written-search.svg", "written-search-ppo.svg"):
        drawn = (tmp_path / name).read_text(encoding="utf-8")
        assert drawn == (ROOT / "docs" / "images" / name).read_text(encoding="utf-8"), name
    points = dict(curves["over_distance"]("search_model_1600", (0, 1, 2)))
    assert list(points) == [1, 2, 3, 4, 5, 6]
    # Two attempts at each of the 161 puzzles of one move: all won.
    assert points[1] == 1.0
    # 20 steps of 64 episodes with 39 tokens each.
    assert round(curves["over_tokens"]("random_format_1600", (0, 1, 2))[-1][0]) == 50


def test_success_over_moves_is_drawn_from_the_committed_data(tmp_path: Path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(ROOT)
    curve = runpy.run_path(str(ROOT / "tools" / "knowledge_curve.py"))
    drawn = tmp_path / "knowledge.svg"
    assert curve["main"](["--output", str(drawn)]) == 0
    committed = ROOT / "docs" / "images" / "knowledge.svg"
    assert drawn.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8")
    least, *_, most = curve["checkpoints"]()
    # Of 128 puzzles, 9 and 122.
    assert [sum(one["search"] for one in found["puzzles"]) for found in (least, most)] == [9, 122]
