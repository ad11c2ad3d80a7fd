"""Results: one Parquet file a question keeps every record, and all of them stay small."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import results  # noqa: E402 # pyright: ignore[reportMissingImports]


def test_a_question_keeps_the_records_of_its_files(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    folder = tmp_path / "walks"
    folder.mkdir()
    (folder / "seed0.json").write_text(
        '{\n "wins": [1, 0.5], "board": "4×4"\n}\n', encoding="utf-8"
    )
    (folder / "seed0-sft.jsonl").write_text('{"step": 1}\n{"step": 2}\n', encoding="utf-8")
    assert results.main([str(folder)]) == 0
    (folder / "seed0.json").unlink()
    (folder / "seed1.json").write_text('{"wins": [null]}', encoding="utf-8")
    assert results.main([str(folder), "walks"]) == 0
    assert results.read("walks", "seed0.json") == {"wins": [1, 0.5], "board": "4×4"}
    assert results.read("walks", "seed1.json") == {"wins": [None]}
    assert results.read_lines("walks", "seed0-sft.jsonl") == [{"step": 1}, {"step": 2}]
