"""Chats of any source through SFT: every layout and format, the same tokens, and no gate on a game."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.fake_hub import FakeHub
from helpers.families import NAMES, template
from helpers.runs import small_config

from spa import cli
from spa.config.load import load_config
from spa.errors import DataError
from spa.models import hub
from spa.recipes import gate, pipeline
from spa.run.hashing import file_content
from spa.types import IMAGE
from spa.worldmodel import sft_data
from spa.worldmodel.sft_files import read_examples

SYSTEM = {"role": "system", "content": "You are a clerk."}
CHAT = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "How can I help?"},
    {"role": "user", "content": "Add 2 and 3."},
    {"role": "assistant", "content": "5"},
]
SHAREGPT = {"user": "human", "assistant": "gpt", "system": "system"}
ROWS = {
    "messages": {"messages": CHAT},
    "prompt and response": {"prompt": CHAT[:3], "response": "5"},
    "prompt and completion": {"prompt": CHAT[:3], "completion": "5"},
    "completion as messages": {"prompt": CHAT[:3], "completion": CHAT[3:]},
    "prompt as JSON": {"prompt": json.dumps(CHAT[:3]), "response": "5"},
    "conversations": {
        "conversations": [{"from": SHAREGPT[m["role"]], "value": m["content"]} for m in CHAT]
    },
    "parts": {
        "messages": [
            {"role": m["role"], "content": [{"type": "text", "text": m["content"]}]} for m in CHAT
        ]
    },
}


def write(path: Path, rows: list[dict]) -> Path:
    """Rows in the format that the name of the file asks for."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=1), encoding="utf-8-sig")
    else:
        path.write_text("\r\n".join(map(json.dumps, rows)) + "\r\n\r\n", encoding="utf-8-sig")
    return path


def sequences(path: Path | str, *overrides: str, family: str = "qwen2"):
    cfg = load_config("base", [f"data.train_files={path}", *overrides])
    return sft_data.load_data(cfg, template(family), None)


def trained(sequence, family: str = "qwen2") -> str:
    return template(family).tokenizer.decode(sequence.token_ids[sequence.mask])


@pytest.mark.parametrize(
    ("layout", "suffix"),
    [
        *((layout, ".jsonl") for layout in ROWS),
        ("messages", ".json"),
        ("parts", ".parquet"),
        ("prompt as JSON", ".parquet"),
    ],
)
def test_every_layout_and_format_gives_the_same_tokens(layout, suffix, tmp_path):
    path = write(tmp_path / f"chats{suffix}", [ROWS[layout]] * 2)
    (first, second), val = sequences(path)
    text = template("qwen2").tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert template("qwen2").tokenizer.decode(first.token_ids) == text.removesuffix("\n")
    answers = 2 if len(ROWS[layout]) == 1 else 1
    assert trained(first) == ("How can I help?<|im_end|>" if answers == 2 else "") + "5<|im_end|>"
    assert (first.examples, second.examples, val) == (answers, answers, [])
    (last, _), _ = sequences(path, "sft.data.last_response_only=true")
    assert trained(last) == "5<|im_end|>"
    assert (last.token_ids == first.token_ids).all()


def test_chats_of_several_files_stay_apart(tmp_path):
    (tmp_path / "more").mkdir()
    names = ("1.jsonl", "more/1.jsonl")
    one, two = (write(tmp_path / name, [{"messages": CHAT}] * 2) for name in names)
    found, _ = sequences(f"[{one},{two}]")
    assert [each.examples for each in found] == [2] * 4


@pytest.mark.parametrize("family", NAMES)
def test_the_tokens_are_those_of_the_chat_template(family, tmp_path):
    """Each response follows the prompt that a server would send, with its end marker."""
    path = write(tmp_path / "chats.jsonl", [{"messages": CHAT}, {"messages": [SYSTEM, *CHAT]}])
    own = template(family)
    for sequence, chat in zip(sequences(path, family=family)[0], ([], [SYSTEM]), strict=True):
        prompt = own.start((*chat, CHAT[0]), "")
        ids = list(sequence.token_ids)
        assert ids[: len(prompt)] == prompt and not sequence.mask[: len(prompt)].any()
        response = own.response_ids("How can I help?", "")
        assert ids[len(prompt) :][: len(response)] == response
        assert sequence.mask[len(prompt) :][: len(response)].all()


def test_reasoning_and_tags_in_own_chats_are_kept_as_they_are(tmp_path):
    for text in ("<think>\n2 + 3\n</think>\n5", "The tag <think> opens a thought.", '[{"a": 1}]'):
        path = write(tmp_path / "chats.jsonl", [{"prompt": "Add.", "response": text}])
        (sequence,), _ = sequences(path)
        assert trained(sequence) == f"{text}<|im_end|>"


def test_a_system_column_is_a_system_message(tmp_path):
    row = {"system": SYSTEM["content"], **ROWS["conversations"]}
    (first, second) = read_examples(write(tmp_path / "chats.jsonl", [row]))
    assert first.prompt == (SYSTEM, CHAT[0]) and second.prompt == (SYSTEM, *CHAT[:3])
    assert (first.turn, second.turn) == (0, 1)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"messages": []}', "line 1, column 'messages': the value is neither a string nor a list"),
        ('{"messages": 5}', "line 1, column 'messages': the value is neither a string nor a list"),
        ("{}\n", "the columns are not those of SFT data (columns: none)"),
        ("[1]", "line 1: a row must be a JSON object"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "line 1, column 'messages': the chat has no assistant message"),
        ('\n{"prompt": "a", "response": "b"}\n{"prompt": "a"', "line 3: the text is not valid JSON"),
        ('{"prompt": "a", "response": " "}', "line 1, column 'response': the value is empty"),
        ('{"messages": [{"role": "tool", "content": "a"}]}', "line 1, column 'messages': message 0 needs a role"),
        ('{"messages": [{"role": "user", "content": [{"type": "audio"}]}]}', "message 0 needs a role"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 1: an assistant message is empty or has no message before it"),
    ],
)  # fmt: skip
def test_a_broken_row_is_named(text, told, tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_examples(path)
    assert told in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(("suffix", "row"), [(".jsonl", "line 2"), (".parquet", "row 1")])
def test_roles_that_do_not_alternate_are_named(suffix, row, tmp_path, capsys):
    chats = [{"messages": CHAT}, {"messages": [CHAT[0], *CHAT]}]
    path = write(tmp_path / f"chats{suffix}", chats)
    told = f"chats{suffix}, {row}: the roles are user, user, assistant"
    with pytest.raises(DataError, match=re.escape(told)):
        sequences(path)
    command = f"run tiny --stages sft --dry-run data.train_files={path}"
    assert cli.main(command.split()) == 2
    assert told in capsys.readouterr().err


def test_a_dry_run_checks_only_what_is_trained_on(tmp_path):
    silent = [CHAT[0], {"role": "assistant", "content": ""}, *CHAT[2:]]
    path = write(tmp_path / "chats.parquet", [{"messages": silent}])
    command = ["run", "tiny", "--stages", "sft", "--dry-run", f"data.train_files={path}"]
    assert cli.main(command) == 2
    assert cli.main([*command, "sft.data.last_response_only=true"]) == 0
    assert len(sequences(path, "sft.data.last_response_only=true")[0]) == 1


def test_metadata_as_pandas_writes_it(tmp_path):
    # pandas writes truth values with gaps as numbers, integers with gaps as floats, gaps as NaN.
    rows = [
        {"success": 1, "turn": 2.0, "puzzle_seed": 7.0, "reward": 1},
        {"success": 0, "turn": float("nan"), "puzzle_seed": None, "reward": 0},
    ]
    rows = [{"prompt": "a", "response": "b", **row} for row in rows]
    write(tmp_path / "f.parquet", rows)
    write(tmp_path / "f.jsonl", rows)
    write(tmp_path / "g.parquet", [{**row, "success": float(row["success"])} for row in rows])
    for name in ("f.parquet", "f.jsonl", "g.parquet"):
        first, second = read_examples(tmp_path / name)
        assert (first.success, first.turn, first.puzzle_seed, first.reward) == (True, 2, 7, 1.0)
        assert (second.success, second.turn, second.puzzle_seed) == (False, 0, -1)
    for column, value in (("success", 2), ("turn", 0.5), ("success", "yes")):
        write(tmp_path / "h.jsonl", [{"prompt": "a", "response": "c", column: value}])
        with pytest.raises(DataError, match=f"column '{column}': the value .* has the wrong type"):
            read_examples(tmp_path / "h.jsonl")


def test_folders_have_both_splits(tmp_path):
    write(tmp_path / "train.jsonl", [ROWS["messages"]] * 3)
    write(tmp_path / "val.jsonl", [ROWS["messages"]])
    train, val = sequences(tmp_path)
    assert (len(train), len(val)) == (3, 1)
    before = file_content(str(tmp_path))
    write(tmp_path / "train.jsonl", [ROWS["messages"]] * 4)
    assert file_content(str(tmp_path)) != before
    (tmp_path / "train.jsonl").rename(tmp_path / "chats.jsonl")
    with pytest.raises(DataError, match=r"no file of the split 'train' \(data files: chats\.jsonl"):
        sequences(tmp_path)


def test_data_sets_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    lines = write(tmp_path / "train.jsonl", [ROWS["messages"]]).read_bytes()
    with FakeHub() as server:
        server.repos["dataset"]["me/chats"] = {"train.jsonl": lines}
        folder = hub.download_data("me/chats", endpoint=server.address)
    assert hub.is_data_name("me/chats") and not hub.is_data_name("chats/train.jsonl")
    (sequence,), _ = sequences(folder)
    assert sequence.examples == 2


def test_own_chats_are_not_gated_on_a_game(base, tmp_path):
    path = write(tmp_path / "chats.jsonl", [ROWS["messages"]] * 8)
    cfg = small_config(base, tmp_path / "run", f"data.train_files={path}", "gate.enable=true")
    pipeline.run_sft_stage(cfg)
    folder = tmp_path / "run" / "sft"
    verdict = json.loads((folder / gate.GATE_FILE).read_text())
    assert verdict["diagnosis"] == "other_data" and "gate: skipped" in verdict["text"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and not any("val/success" in line for line in lines)
    assert lines[-1]["train/loss"] < lines[0]["train/loss"]
    gate.stop_at_gate(cfg, folder)


def test_the_filter_reads_json_lines(tmp_path, capsys):
    good = "<think><observation>a</observation><prediction>b</prediction></think><answer>c</answer>"
    rows = [{"messages": [CHAT[0], {"role": "assistant", "content": text}]} for text in (good, "5")]
    for name in ("train.jsonl", "val.jsonl"):
        write(tmp_path / name, rows)
    words = ["data", "filter", "--in-train", f"{tmp_path}/train.jsonl"]
    assert (
        cli.main([*words, "--in-val", f"{tmp_path}/val.jsonl", "--out-dir", f"{tmp_path}/out"]) == 0
    )
    assert "kept 1 of 2 examples" in capsys.readouterr().out
    (example,) = read_examples(tmp_path / "out" / "wm_train.parquet")
    assert example.response == good


def test_each_answer_of_a_chat_has_the_pictures_before_it(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(name.encode())
    messages = [
        {"role": role, "content": content}
        for role, content in (
            ("user", f"{IMAGE} one"), ("assistant", "1"), ("user", f"{IMAGE} two"), ("assistant", "2"),
        )
    ]  # fmt: skip
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps({"messages": messages, "images": ["a.png", "b.png"]}))
    assert [example.images for example in read_examples(file)] == [(b"a",), (b"a", b"b")]
