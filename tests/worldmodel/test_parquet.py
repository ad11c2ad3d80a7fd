import json
import resource
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worldmodel_examples import response_to

from spa.errors import DataError
from spa.run.files import remove_leftovers
from spa.types import SFTExample
from spa.worldmodel.examples import write_parquet
from spa.worldmodel.sft_files import read_examples

PROMPT = [{"role": "system", "content": "Play."}, {"role": "user", "content": "State:\n#P_"}]
PUBLISHED = {
    "data_source": "sokoban",
    "prompt": PROMPT,
    "response": response_to("#P_", "#_P", "Right || Up"),
    "ability": "bfs",
    "reward_model": "{'style': 'rule'}",
    "extra_info": "{'split': 'train'}",
}

EXAMPLE = SFTExample(
    prompt=tuple(PROMPT),
    response="<think>x</think>",
    tag="SimpleSokoban",
    episode_id="train/3",
    turn=2,
    puzzle_seed=2**62,
    puzzle_hash="abc",
    success=True,
    reward=-0.30000000000000004,
    state="#P_",
    next_state="#_P",
    executed=("Right", "Up"),
    predicted=None,
    observed="",
    extra={"group": 3, "score": 1.5, "state_text": "grid"},
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@given(
    st.lists(
        st.builds(
            lambda prompt, response, state, executed, predicted: replace(
                EXAMPLE,
                prompt=tuple({"role": "user", "content": text} for text in prompt),
                response=f"x{response}",
                state=state,
                executed=tuple(executed),
                predicted=predicted,
            ),
            st.lists(texts, min_size=1, max_size=3),
            texts,
            texts,
            st.lists(texts, max_size=2),
            st.none() | texts,
        ),
        max_size=4,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_examples_come_back_as_they_were(tmp_path, examples):
    path = tmp_path / "a" / "rows.parquet"
    write_parquet(path, examples)
    assert read_examples(path) == examples
    assert [file.name for file in path.parent.iterdir()] == ["rows.parquet"]


def test_the_original_six_columns_come_first(tmp_path):
    write_parquet(tmp_path / "f", [EXAMPLE])
    table = pq.read_table(tmp_path / "f")
    assert table.column_names[:6] == list(PUBLISHED)
    assert table.to_pylist()[0]["prompt"] == PROMPT
    assert table.to_pylist()[0]["data_source"] == "SimpleSokoban"


def test_lone_surrogates_become_replacement_characters(tmp_path):
    write_parquet(
        tmp_path / "f",
        [replace(EXAMPLE, response="a\ud800b", predicted="\udfff", state="\ufeffx\0")],
    )
    example = read_examples(tmp_path / "f")[0]
    assert (example.response, example.predicted, example.state) == (
        "a\ufffdb",
        "\ufffd",
        "\ufeffx\0",
    )


@pytest.mark.parametrize("layout", ["list", "json"])
def test_published_layouts_are_read(tmp_path, layout):
    prompt = PROMPT if layout == "list" else json.dumps(PROMPT)
    later = [
        *PROMPT,
        {"role": "assistant", "content": "r"},
        {"role": "user", "content": "State:\n#_P"},
    ]
    rows = [
        {**PUBLISHED, "prompt": prompt},
        {**PUBLISHED, "prompt": later if layout == "list" else json.dumps(later)},
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "f")
    first, second = read_examples(tmp_path / "f")
    assert first.prompt == tuple(PROMPT) and first.response == PUBLISHED["response"]
    assert (first.tag, first.turn, second.turn) == ("sokoban", 0, 1)
    assert (first.state, first.next_state, first.executed) == ("#P_", "#_P", ("Right", "Up"))
    # both conversations begin with the same state
    assert first.puzzle_hash == second.puzzle_hash != ""
    assert first.extra == {"extra_info": "{'split': 'train'}"}


def test_arrays_are_prompts_too():
    from spa.worldmodel.sft_files import read_messages

    assert read_messages(np.array(PROMPT, dtype=object)) == PROMPT


def test_two_columns_are_enough(tmp_path):
    pq.write_table(pa.table({"prompt": [PROMPT], "response": ["just text"]}), tmp_path / "f")
    example = read_examples(tmp_path / "f")[0]
    assert (example.tag, example.state, example.executed, example.extra) == ("", "", (), {})


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(
        DataError, match=r"nowhere\.parquet: the file does not exist; .*spa run --stages selfplay"
    ):
        read_examples(tmp_path / "nowhere.parquet")
    with pytest.raises(DataError, match="the file does not exist"):
        read_examples(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b"",
        lambda b: b"PAR1",
        lambda b: b[: len(b) // 2],
        lambda b: b[:40] + b"\xff" * 400 + b[440:],
    ],
)
def test_a_corrupt_file_is_one_clear_error(tmp_path, damage):
    path = tmp_path / "broken.parquet"
    write_parquet(path, [EXAMPLE] * 3)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"broken\.parquet"):
        read_examples(path)


def test_a_flipped_bit_in_the_data_is_noticed(tmp_path):
    path = tmp_path / "broken.parquet"
    write_parquet(path, [EXAMPLE] * 3)
    data = bytearray(path.read_bytes())
    data[data.index(b"PAR1", 1) // 3] ^= 4
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"broken\.parquet"):
        read_examples(path)


@pytest.mark.parametrize("column", ["prompt", "response"])
def test_a_missing_column_is_named_with_those_that_serve(tmp_path, column):
    table = pa.Table.from_pylist([PUBLISHED]).drop_columns([column])
    pq.write_table(table, tmp_path / "f.parquet")
    with pytest.raises(DataError) as caught:
        read_examples(tmp_path / "f.parquet")
    told = str(caught.value)
    assert (
        f"f.parquet: the columns are not those of SFT data (columns: {', '.join(table.column_names)})"
        in told
    )
    assert "prompt and response; prompt and completion; messages; conversations" in told
    assert json.loads(told.splitlines()[-1])["messages"]


@pytest.mark.parametrize(
    ("changes", "column"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [{"role": "robot", "content": "x"}]}, "prompt"),
        ({"prompt": [{"role": "user", "content": None}]}, "prompt"),
        ({"response": None}, "response"),
        ({"response": "  "}, "response"),
    ],
)
def test_a_bad_row_is_named(tmp_path, changes, column):
    pq.write_table(
        pa.Table.from_pylist([PUBLISHED, {**PUBLISHED, **changes}]), tmp_path / "f.parquet"
    )
    with pytest.raises(DataError, match=rf"f\.parquet, row 1, column '{column}'"):
        read_examples(tmp_path / "f.parquet")


@pytest.mark.parametrize(
    "prompt", ['[{"role": "user"}]', '[{"role": "user", "content": "x"', "null", "[]", " "]
)
def test_a_bad_json_prompt_is_named(tmp_path, prompt):
    pq.write_table(pa.Table.from_pylist([{**PUBLISHED, "prompt": prompt}]), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"row 0, column 'prompt'"):
        read_examples(tmp_path / "f.parquet")


def test_metadata_of_the_wrong_type_is_named(tmp_path):
    pq.write_table(pa.Table.from_pylist([{**PUBLISHED, "turn": "first"}]), tmp_path / "f.parquet")
    with pytest.raises(DataError, match=r"row 0, column 'turn': the value 'first'"):
        read_examples(tmp_path / "f.parquet")


def test_a_full_disk_leaves_the_old_file(tmp_path):
    path = tmp_path / "rows.parquet"
    write_parquet(path, [EXAMPLE])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(DataError, match=r"rows\.parquet: the file cannot be written"):
            write_parquet(path, [EXAMPLE, EXAMPLE])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_examples(path) == [EXAMPLE]
    assert [file.name for file in tmp_path.iterdir()] == ["rows.parquet"]


def test_what_a_killed_process_was_writing_is_removed_later(tmp_path):
    path = tmp_path / "rows.parquet"
    code = (
        "import os, sys, pyarrow.parquet as pq\n"
        "from spa.worldmodel.parquet import write_table\n"
        "pq.write_table = lambda table, file, **_: os._exit(9)\n"
        "write_table(sys.argv[1], None)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 9
    assert len(list(tmp_path.iterdir())) == 1
    remove_leftovers(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_prompt_without_end_is_named_with_its_row():
    from spa.worldmodel.sft_files import read_messages

    with pytest.raises(DataError, match="row 3, column 'prompt': the value is not valid JSON"):
        read_messages('[{"role": ' + "[" * 100_000, "row 3")
