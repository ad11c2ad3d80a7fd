import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from worldmodel_examples import response_to

from spa.cli import execute
from spa.errors import ConfigError, DataError
from spa_original.tag_filter import FilterOptions, check_structure, filter_table

GOOD = response_to("S", "N", "Left")
PROMPT = [{"role": "user", "content": "go"}]


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (GOOD, "kept"),
        (GOOD.upper(), "kept"),
        (f"hm {GOOD} {GOOD}", "kept"),
        (response_to("S", "N</prediction><prediction>M", "jump"), "kept"),
        (GOOD.replace("</think>", ""), "no_think_block"),
        (GOOD.replace("</answer>", ""), "no_answer_block"),
        ("<answer>Left</answer>" + GOOD, "answer_before_think"),
        (GOOD.replace("</prediction>", ""), "no_observation_or_prediction_in_think"),
        (
            "<think>a</think><observation>S</observation><prediction>N</prediction><answer>Up</answer>",
            "no_observation_or_prediction_in_think",
        ),
        (
            "<think><prediction>N</prediction><observation>S</observation></think><answer>Up</answer>",
            "prediction_before_observation",
        ),
        ("İ" * 50 + GOOD, "kept"),
    ],
)
def test_structure(response, verdict):
    assert check_structure(response) == verdict


def test_bounds_duplicates_and_empties():
    rows = [
        {"prompt": PROMPT, "response": GOOD, "more": 1},
        {"prompt": PROMPT, "response": GOOD, "more": 2},
        {"prompt": [*PROMPT, *PROMPT], "response": GOOD, "more": 3},
        {"prompt": PROMPT, "response": GOOD + "!", "more": 4},
        {"prompt": PROMPT, "response": None, "more": 5},
        {"prompt": None, "response": GOOD, "more": 6},
        {"prompt": PROMPT, "response": " ", "more": 7},
        {"prompt": [], "response": GOOD, "more": 8},
    ]
    table = pa.Table.from_pylist(rows)
    kept, counts = filter_table(table, FilterOptions(max_len=len(GOOD)))
    assert kept.column("more").to_pylist() == [1, 3] and kept.schema == table.schema
    assert counts == Counter(kept=2, duplicate=1, too_long=1, empty_prompt_or_response=4)
    kept, counts = filter_table(table, FilterOptions(min_len=len(GOOD) + 1, dedup=False))
    assert kept.column("more").to_pylist() == [4] and counts["too_short"] == 3


@pytest.mark.parametrize("bounds", [{"min_len": -1}, {"max_len": -5}, {"min_len": 3, "max_len": 2}])
def test_bounds_that_admit_nothing_are_refused(bounds):
    with pytest.raises(ConfigError, match="No response can satisfy"):
        FilterOptions(**bounds)


@pytest.mark.parametrize("layout", ["list", "json"])
def test_command_keeps_published_columns(tmp_path, capsys, layout):
    prompt = PROMPT if layout == "list" else json.dumps(PROMPT)
    rows = [
        {"data_source": "sokoban", "prompt": prompt, "response": text, "ability": "bfs"}
        for text in (GOOD, GOOD, "no")
    ]
    for name in ("train.parquet", "val.parquet"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / name)
    arguments = [
        "--in-train",
        str(tmp_path / "train.parquet"),
        "--in-val",
        str(tmp_path / "val.parquet"),
    ]
    assert execute(["data", "filter", *arguments, "--out-dir", str(tmp_path / "out")]) == 0
    assert pq.read_table(tmp_path / "out" / "wm_train.parquet").to_pylist() == rows[:1]
    out = capsys.readouterr().out.splitlines()
    assert (
        out[0]
        == f"{tmp_path}/out/wm_train.parquet: kept 1 of 3 examples (dropped: 1 duplicate, 1 no_think_block)"
    )
    assert (
        execute(
            [
                "data",
                "filter",
                *arguments,
                "--out-dir",
                str(tmp_path / "two"),
                "--no-dedup",
                "--min-len",
                "1",
            ]
        )
        == 0
    )
    assert pq.read_table(tmp_path / "two" / "wm_val.parquet").to_pylist() == rows[:2]


def test_nothing_is_written_when_one_input_is_missing(tmp_path):
    pq.write_table(pa.table({"prompt": ["x"], "response": [GOOD]}), tmp_path / "train.parquet")
    arguments = [
        "--in-train",
        str(tmp_path / "train.parquet"),
        "--in-val",
        str(tmp_path / "no.parquet"),
    ]
    with pytest.raises(DataError, match=r"no\.parquet"):
        execute(["data", "filter", *arguments, "--out-dir", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
