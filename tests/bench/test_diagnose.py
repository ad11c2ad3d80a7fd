import json
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from helpers.smollm2 import needs_smollm2
from pyarrow import parquet

from spa.cli import execute
from spa.envs.pool import group_specs
from spa.envs.registry import make_env
from spa.errors import DataError
from spa.models.load import load_tokenizer
from spa.policies.scripted import random_engine
from spa.prompts.render import Prompter
from spa.rollout.loop import collect
from spa.types import SamplingParams
from spa_bench.diagnose.command import game_of
from spa_bench.diagnose.findings import diagnose, masks, retokenized, with_text
from spa_bench.diagnose.rollouts import read_rollouts, read_row
from spa_report.build import template

USER = {"role": "user", "content": "room A"}


def said(text):
    return {"role": "assistant", "content": text}


def read(rows):
    return [read_row(row, f"row {number}") for number, row in enumerate(rows, 1)]


def write(tmp_path, rows):
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_linked_folders_are_read_once(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    write(tmp_path / "elsewhere", [{"messages": [USER, said("go")]}])
    (tmp_path / "run" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "run" / "loop").symlink_to(tmp_path / "run")
    assert len(read_rollouts(tmp_path / "run")) == 1
    write(tmp_path / "run", [{"messages": [USER, said("stop")]}])
    assert {rollout.responses for rollout in read_rollouts(tmp_path / "run")} == {
        ("go",),
        ("stop",),
    }


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    row = {"messages": [USER, said("go")]}
    for name, text in (("a.jsonl", json.dumps(row)), ("b.json", json.dumps([row], indent=1))):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        (rollout,) = read_rollouts(tmp_path / name)
        assert rollout.responses == ("go",)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("builtin:tiny")


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": [USER], "completion": [said("go"), {"role": "user", "content": "room B"}, said("stop")], "reward": 1.0},
        {"messages": [USER, said("go"), {"role": "user", "content": "room B"}, said("stop")], "score": 1},
        [USER, said("go"), {"role": "user", "content": "room B"}, said("stop")],
        {"conversations": [{"from": "human", "value": "room A"}, {"from": "gpt", "value": "go"}, {"from": "gpt", "value": "stop"}]},
        {
            "input": "<|im_start|>user\nroom A<|im_end|>\n<|im_start|>assistant\n",
            "output": "go<|im_end|>\n<|im_start|>user\nroom B<|im_end|>\n<|im_start|>assistant\nstop<|im_end|>",
            "score": 1.0,
        },
        {"input": "room A", "output": "go\nuser\nroom B\nassistant\nstop", "score": 1.0},
    ],
)  # fmt: skip
def test_every_stack_is_read_as_the_same_responses(row):
    rollout = read_row(row, "row 1")
    assert [response for response in rollout.responses if response] == ["go", "stop"]


def test_a_batch_in_columns_becomes_rows(tmp_path):
    batch = {
        "prompt_ids": [[1], [1]],
        "completion_ids": [[4, 5], [6]],
        "env_mask": [[1, 0], [1]],
        "env_reward": [0.5, 1],
    }
    first, second = read_rollouts(write(tmp_path, [batch]))
    assert (first.token_ids, first.mask, first.reward) == ((4, 5), (True, False), 0.5)
    assert (second.token_ids, second.group) == ((6,), first.group)


def test_a_file_may_be_one_list(tmp_path):
    file = tmp_path / "all.json"
    file.write_text(
        json.dumps([{"messages": [USER, said("a")]}, {"messages": [USER, said("b")]}], indent=1)
    )
    assert [rollout.responses for rollout in read_rollouts(file)] == [("a",), ("b",)]


def test_rows_may_be_bare_lists_of_messages(tmp_path):
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(json.dumps([USER, said(text)]) + "\n" for text in "ab"))
    assert [rollout.responses for rollout in read_rollouts(file)] == [("a",), ("b",)]
    file.write_text("".join(json.dumps([{"from": "gpt", "value": text}]) + "\n" for text in "ab"))
    assert [rollout.responses for rollout in read_rollouts(file)] == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "row 1 is not valid JSON"),
        ("[" * 100_000, "row 1 is not valid JSON"),
        ('{"messages": ' + "9" * 5000 + "}", "row 1 is not valid JSON"),
        ('{"x": 1}', "the keys x are not those of a rollout"),
        ("3", "not int"),
        (
            '{"messages": [1]}',
            "row 1: the row has the keys of a rollout, but a value has the wrong type or content",
        ),
        ('{"messages": [], "completion_ids": ["a"]}', "wrong type or content.*ValueError"),
        (
            '{"messages": [], "completion_ids": [1], "completion_mask": 5}',
            "wrong type or content.*TypeError",
        ),
        ('{"traces": [{"nodes": [{"parent": 7}]}]}', "wrong type or content.*KeyError"),
    ],
)
def test_what_is_no_rollout_is_said_with_its_row(text, says, tmp_path):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(DataError, match=says):
        read_rollouts(tmp_path / "bad.jsonl")


def test_a_text_may_hold_line_separators_of_unicode(tmp_path):
    file = tmp_path / "lines.jsonl"
    rows = [{"messages": [USER, said("a\u2028b\x85c")]}, {"messages": [USER, said("d")]}]
    file.write_text(
        "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8"
    )
    assert [rollout.responses for rollout in read_rollouts(file)] == [("a\u2028b\x85c",), ("d",)]


def test_masks_that_cannot_be_right_are_named(tokenizer):
    rows = [
        {"prompt": "p", "completion": "a", "completion_ids": [1, 2], "completion_mask": [1]},
        {"prompt": "p", "completion": "a", "completion_ids": [1, 2], "completion_mask": [0, 0]},
        {
            "prompt": [USER],
            "completion": [said("a"), USER, said("b")],
            "completion_ids": [1, 2],
            "completion_mask": [1, 1],
        },
    ]
    found = masks(read(rows))
    assert (found["another_length"], found["nothing_trained"], found["all_trained"]) == (
        ["row 1"],
        ["row 2"],
        ["row 3"],
    )


def test_text_of_another_role_under_the_mask_is_found(tokenizer):
    ids = tokenizer.encode("go<|im_end|>\n<|im_start|>user\nroom B", add_special_tokens=False)
    row = {"completion_ids": ids, "env_mask": [1] * len(ids)}
    assert masks(read([row]), tokenizer)["others_trained"] == ["row 1"]
    row["env_mask"] = [1] + [0] * (len(ids) - 1)
    assert masks(read([row]), tokenizer)["others_trained"] == []


def test_responses_that_tokenize_differently_are_found(tokenizer):
    whole = tokenizer.encode("Right", add_special_tokens=False)
    pieces = [
        token for letter in "Right" for token in tokenizer.encode(letter, add_special_tokens=False)
    ]
    assert whole != pieces and tokenizer.decode(whole) == tokenizer.decode(pieces)
    rows = [{"completion_ids": whole}, {"completion_ids": pieces}]
    assert retokenized(read(rows), tokenizer) == {"responses": 2, "changed": ["row 2"]}


def test_groups_without_a_spread_broken_blocks_and_repetition_are_found():
    rows = [
        {"messages": [USER, said("<answer>Up</answer>")], "reward": 1.0},
        {"messages": [USER, said("<answer>Up")], "reward": 1.0},
        {
            "messages": [{"role": "user", "content": "room C"}, said("go on and on " * 20)],
            "reward": 0.0,
        },
    ]
    report = diagnose(read(rows))
    assert report["rewards"]["groups_without_spread"] == 1 and report["rewards"][
        "mean"
    ] == pytest.approx(2 / 3)
    assert report["format"]["tags"]["answer"] == {"responses": 2, "broken": 1, "lacking": 0}
    assert report["repetition"]["responses_over_half"] == 1 and len(report["findings"]) == 3


def test_responses_that_do_not_depend_on_the_prompt_are_a_collapse():
    def chats(answer):
        return [
            {
                "messages": [
                    {"role": "user", "content": f"room {n}"},
                    said(f"<answer>{answer(n)}</answer>"),
                ]
            }
            for n in range(8)
        ]

    assert diagnose(read(chats(lambda n: "Up")))["collapse"]["information"] == 0
    assert diagnose(read(chats(str)))["collapse"]["information"] == pytest.approx(3)


def test_predictions_are_held_against_what_the_environment_said():
    response = "<observation>room A</observation><prediction>{}</prediction><answer>go</answer>"
    after = {"role": "user", "content": "You see: room B"}
    right, copied = (
        read([{"messages": [USER, said(response.format(text)), after]}])
        for text in ("room  B", "room A")
    )
    assert diagnose(right)["world_model"] == {"observation": 1, "observation_right": 1, "prediction": 1, "prediction_right": 1, "copied": 0}  # fmt: skip
    report = diagnose(copied)
    assert report["world_model"]["prediction_right"] == 0 and "copying" in report["findings"][-1]
    last = said(response.format("room A"))  # nothing shows what came after it
    unknown = diagnose(read([{"messages": [USER, said(response.format("room  B")), after, last]}]))[
        "world_model"
    ]
    assert (unknown["prediction"], unknown["copied"]) == (1, 0)


def test_the_page_holds_the_findings_and_only_text_of_foreign_text(tmp_path, capsys):
    response = said(
        "<think><observation>a</observation><prediction>b</prediction></think><answer>Up</answer>"
    )
    foreign = tmp_path / "<script>alert(1)<" / "rollouts.jsonl"
    foreign.parent.mkdir()
    row = {
        "messages": [USER, response],
        "completion_ids": [1, 2],
        "completion_mask": [1],
        "step_rewards": [0.5],
    }
    foreign.write_text(json.dumps({**row, "<b>": 1}) + "\n")
    page = tmp_path / "new" / "page.html"
    assert execute(
        ["diagnose", str(foreign), "--html", str(page)]
    ) == 0 and capsys.readouterr().out.endswith(f"{page}\n")
    text = page.read_text()
    assert text.count("<script") == 2 and "&lt;script&gt;alert(1)&lt;" in text
    assert "default-src &#39;none&#39;" not in text
    text = text.replace(template("uplot.js"), "")
    assert "default-src 'none'" in text and "http://" not in text and "https://" not in text
    for part in (
        "1 of 1 rollouts with a mask have a mask whose length differs",
        "Reward by turn",
        "Masks and tokens",
    ):
        assert part in text
    execute(["diagnose", str(foreign), "--json", "--html", str(page)])
    assert json.loads(capsys.readouterr().out)["rollouts"] == 1


def test_episodes_of_this_package_are_read_with_their_true_states():
    specs = group_specs("check", base_seed=0, step=0, tags=["t"], n_groups=[2], group_size=2)
    episodes = collect(
        specs,
        make_env=lambda _: make_env("frozen_lake", {"is_slippery": False}),
        prompters={"t": Prompter(mode="add_worldmodel")},
        template=None,
        engine=random_engine(max_actions=1),
        sampling=SamplingParams(max_tokens=400),
        format_penalty=-0.1,
        max_model_len=4096,
    )
    report = diagnose(read([json.loads(json.dumps(episode.to_json())) for episode in episodes]))
    model = report["world_model"]
    assert report["stacks"] == {"spa": 4} and report["rewards"]["by_turn"]
    # which all say "unknown"
    assert model["observation"] == sum(len(episode.turns) for episode in episodes)
    assert model["observation_right"] == 0 and report["format"]["tags"]["answer"]["broken"] == 0
    game = game_of("FrozenLake", "base", ["custom_envs.FrozenLake.env_config.is_slippery=false"])
    rows = read([json.loads(json.dumps(episode.to_json())) for episode in episodes])
    assert diagnose(rows, game=game)["replay"]["by"] == {"states": 4}
    assert diagnose(rows, game=game)["replay"]["differ"] == []
    other = replace(rows[0], states=(*rows[0].states[:1], "elsewhere", *rows[0].states[2:]))
    assert diagnose([other], game=game)["replay"]["differ"][0]["turn"] == 2


def own(step: int, split: str, folder: Path, outcomes: list[tuple[str, float, str]]) -> None:
    """A file of a run: (puzzle, reward, how it ended) of each episode."""
    turn = {"state": "s", "next_state": "t", "penalty": 0.0, "executed": []}
    rows = [
        {"episode_id": "e", "messages": [USER, said("a")], "token_ids": [1, 2], "sampled": [0, 1], "puzzle_hash": puzzle,
         "logprobs": [0.0, None if stop == "context" else -1.0], "turns": [{**turn, "reward": reward}], "stop": stop}
        for puzzle, reward, stop in outcomes
    ]  # fmt: skip
    write(folder, rows).rename(folder / f"{split}-{step:06d}.jsonl")


def test_groups_of_a_run_are_those_of_a_training_step(tmp_path):
    """The same puzzle comes again in another step, and in validation, where nothing is learnt; a fault is no attempt."""
    own(1, "train", tmp_path, [("a", 0.0, "turn_cap"), ("a", 0.0, "turn_cap"), ("a", 1.0, "error")])
    own(
        2,
        "train",
        tmp_path,
        [("a", 1.0, "success"), ("a", 0.0, "turn_cap"), ("", 0.0, "error"), ("", 0.0, "error")],
    )
    own(2, "val", tmp_path, [("a", 1.0, "success"), ("a", 1.0, "success")])
    report = diagnose(read_rollouts(tmp_path))["rewards"]
    assert (report["groups"], report["groups_without_spread"]) == (2, 1)
    assert (report["with_reward"], report["mean"]) == (6, 0.5)


def test_log_probs_that_are_no_numbers_are_said_and_not_counted(tokenizer, tmp_path):
    own(1, "train", tmp_path, [("a", 0.0, "turn_cap"), ("a", 1.0, "context")])
    report = diagnose(read_rollouts(tmp_path), tokenizer=tokenizer)
    assert len(report["masks"]["without_logprob"]) == 1
    assert any(
        "train on tokens whose log-prob is not a number" in text for text in report["findings"]
    )


ROLLOUTS = Path(__file__).parents[1] / "golden" / "rollouts"
"""Made by verifiers and by TRL with SmolLM2-135M: benchmarks/rollouts."""


def test_verifiers_own_rollouts_show_which_responses_it_tokenized_again():
    rollouts = read_rollouts(ROLLOUTS / "verifiers_smollm2.jsonl")
    assert [len(rollout.responses) for rollout in rollouts] == [5, 5, 5, 5]
    assert [rollout.replaced for rollout in rollouts] == [0, 0, 1, 2]
    assert all(len(rollout.token_ids) == len(rollout.mask) for rollout in rollouts)  # pyright: ignore[reportArgumentType]
    report = diagnose(rollouts)
    assert "3 of 20 responses were tokenized again before the next turn" in report["findings"][0]
    assert "20 of 20 responses lack the requested <answer> block" in report["findings"]
    assert report["rewards"]["by_turn"] == pytest.approx([-0.1] * 5)


@needs_smollm2
def test_verifiers_own_rollouts_hold_a_response_whose_text_has_other_tokens():
    rollouts = read_rollouts(ROLLOUTS / "verifiers_smollm2.jsonl")
    found = diagnose(rollouts, load_tokenizer("smollm2"))
    assert found["tokens"]["responses"] == 17 and len(found["tokens"]["changed"]) == 1
    assert found["masks"]["others_trained"] == []


def test_a_log_prob_that_a_stack_did_not_record_is_unknown_and_not_zero():
    said_it = {"message": said("go"), "sampled": True, "token_ids": [1, 2], "mask": [True, True]}
    rollout = read_row({"nodes": [{**said_it, "logprobs": [-0.5, None]}]}, "row 1")
    assert diagnose([rollout])["masks"]["without_logprob"] == ["row 1"]
    without = read_row({"nodes": [said_it]}, "row 1")
    assert without.logprobs is None


def test_a_folder_of_verifiers_is_read_without_its_settings(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "eval.json").write_text('{\n  "model": "m"\n}')
    (tmp_path / "traces.jsonl").write_text((ROLLOUTS / "verifiers_smollm2.jsonl").read_text())
    assert len(read_rollouts(tmp_path)) == 4


def test_a_tree_of_messages_that_has_a_loop_is_read_to_its_end():
    node = {"message": said("go"), "sampled": True, "parent": 0}
    assert read_row({"nodes": [node]}, "row 1").responses == ("go",)


@needs_smollm2
def test_trls_own_rollouts_hold_responses_whose_text_has_other_tokens():
    report = diagnose(read_rollouts(ROLLOUTS / "trl_smollm2.jsonl"), load_tokenizer("smollm2"))
    assert report["tokens"]["responses"] == 20 and len(report["tokens"]["changed"]) == 2
    assert report["format"]["responses"] == 20 and report["masks"]["others_trained"] == []


def test_trls_own_rollouts_learn_nothing_from_groups_of_one_reward():
    report = diagnose(read_rollouts(ROLLOUTS / "trl_smollm2.jsonl"))
    assert report["rewards"]["groups"] == 2 == report["rewards"]["groups_without_spread"]
    assert report["masks"]["with_mask"] == 4 and report["rewards"]["by_turn"] == pytest.approx(
        [-0.1] * 5
    )


def test_trls_table_of_an_episode_is_taken_apart_into_its_turns():
    rollouts = read_rollouts(ROLLOUTS / "trl_table.parquet")
    assert [len(rollout.responses) for rollout in rollouts] == [5] * 4
    assert {rollout.reward for rollout in rollouts} == {-0.5} and rollouts[0].chat[2][1].startswith(
        "Reward: 0"
    )


def test_tokens_alone_get_their_text_from_the_tokenizer(tokenizer):
    ids = tokenizer.encode("Up") + tokenizer.encode("Left")
    row = {
        "completion_ids": ids,
        "env_mask": [1] * len(tokenizer.encode("Up")) + [0] * len(tokenizer.encode("Left")),
    }
    assert with_text(read_row(row, "row 1"), tokenizer).responses == ("Up",)


def test_a_forced_tag_belongs_to_the_response_and_the_prompt_to_the_messages(tokenizer):
    sampled = tokenizer.encode("go</think><answer>Up</answer>")
    row = {
        "prompt_ids": tokenizer.encode("State: here\n<think>"),
        "completion_ids": sampled,
        "env_mask": [1] * len(sampled),
    }
    assert with_text(read_row(row, "row 1"), tokenizer).chat == (
        ("user", "State: here\n"),
        ("assistant", "<think>go</think><answer>Up</answer>"),
    )


def test_responses_of_repeated_tags_are_read_in_linear_time(tmp_path):
    """Quadratic time would be hours for these 300,000 tags."""
    rows = [
        {"prompt": "Write <prediction> and <answer>.", "completion": unit * 300_000}
        for unit in ("<prediction>", "</prediction>", "<think><answer>", "<|im_start|>user\n")
    ]
    words = [sys.executable, "-m", "spa", "diagnose", str(write(tmp_path, rows))]
    assert subprocess.run(words, capture_output=True, timeout=240, check=True).stdout


def test_a_table_that_repeats_itself_is_read_in_batches(tmp_path):
    """A file of a few kilobytes with 64 MB of text in a column that nobody reads."""
    rows = 640
    table = {"prompt": ["x"] * rows, "completion": ["y"] * rows, "log": ["z" * 100_000] * rows}
    file = tmp_path / "rollouts.parquet"
    parquet.write_table(pyarrow.table(table), file)
    tracemalloc.start()
    rollouts = read_rollouts(file)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(rollouts) == rows and rollouts[-1].where.endswith(f"row {rows}")
    assert file.stat().st_size < 100_000 and peak < 20_000_000


def test_groups_of_one_step_may_have_one_puzzle(tmp_path):
    own(1, "train", tmp_path, [("a", 1.0, "success")] * 2 + [("a", 0.0, "failure")] * 2)
    (path,) = tmp_path.glob("train-*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(
            json.dumps(row | {"tag": "T", "group": i // 2}) + "\n" for i, row in enumerate(rows)
        )
    )
    report = diagnose(read_rollouts(tmp_path))["rewards"]
    assert (report["groups"], report["groups_without_spread"]) == (2, 2)


def test_an_empty_file_has_no_rollouts(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match=r"empty\.jsonl has no rollouts"):
        execute(["diagnose", str(tmp_path / "empty.jsonl")])
