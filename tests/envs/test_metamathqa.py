import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract import check_contract

from spa.errors import ConfigError, DataError
from spa.seeds import stream
from spa_games.metamathqa import MetamathQA, load_problems, normalize
from spa_games.word_problems import Problem, generate_problem


def asked(answer: str, **options) -> MetamathQA:
    env = MetamathQA(**options)
    env.reset(seed=0)
    env.problem = Problem("What is it?", answer)
    return env


@pytest.mark.parametrize("retries", [0, 3])
def test_contract(retries):
    check_contract(lambda: MetamathQA(retries=retries), steps=6)


@pytest.mark.parametrize(
    ("label", "answer", "right"),
    [
        ("7", " 7\n", True),
        ("1 000", "1000", True),
        ("X = 2", "x=2", True),
        ("7", "7.0", False),
        ("7", "7 apples", False),
    ],
)
def test_comparison_by_hand(label, answer, right):
    _, reward, terminated, _, info = asked(label).step(answer)
    assert (reward, terminated, info["success"]) == (float(right), True, right)


def test_retries_halve_the_reward():
    env = asked("7", retries=2)
    state, reward, terminated, _, info = env.step("6")
    assert (reward, terminated, info["success"]) == (0.0, False, False)
    assert state == "What is it?\nWrong answers so far: 1. Answers left: 2."
    assert env.step("5")[1:3] == (0.0, False)
    assert env.step("7")[:3] == ("What is it?\nYour answer was right.", 0.25, True)
    env = asked("7", retries=2)
    assert [env.step(wrong)[2] for wrong in "123"] == [False, False, True]
    assert env.step("7")[4] == {
        "action_is_valid": False,
        "action_is_effective": False,
        "success": False,
    }
    assert "2 more at most" in env.instruction("grid") and "again" not in MetamathQA().instruction(
        "grid"
    )


@pytest.mark.parametrize("text", ["", "   ", "7" * 1_000_000])
def test_no_answer_is_invalid_and_costs_no_attempt(text):
    env = asked("7")
    assert env.to_action(text) is None
    assert env.step(text)[4]["action_is_valid"] is False
    assert env.step("7")[1] == 1.0


def test_generated_problems_have_positive_whole_answers_and_differ():
    problems = [generate_problem(stream(seed, "test")) for seed in range(1000)]
    assert len({problem.question for problem in problems}) > 990
    assert all(int(problem.answer) > 0 for problem in problems)
    assert all(problem.question.endswith("?") for problem in problems)
    env = MetamathQA()
    env.reset(seed=4)
    assert env.step(env.expert_actions(1)[0])[1] == 1.0


def test_a_generated_answer_follows_from_its_text():
    for seed in range(300):
        problem = generate_problem(stream(seed, "test"))
        numbers = [
            int(word) for word in problem.question.replace("?", " ").split() if word.isdigit()
        ]
        if "loose" in problem.question:
            boxes, each, loose = numbers
            assert int(problem.answer) == boxes * each + loose
        if "shares the rest equally" in problem.question:
            kept, total, friends = numbers
            assert int(problem.answer) * friends + kept == total
        if "dollars are left" in problem.question:
            purse, count, price = numbers
            assert int(problem.answer) == purse - count * price


ROWS = [
    {"query": "One and one?", "response": "1 + 1 = 2\n#### 2\nThe answer is: 2", "type": "GSM"},
    {
        "query": "A half?",
        "response": "So.\nThe answer is: 3, no. The answer is: \\frac{1}{2}",
        "type": "MATH",
    },
]


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_files(tmp_path, suffix):
    path = tmp_path / f"math.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in ROWS))
    env = MetamathQA(data=str(path))
    assert {env.reset(seed=seed)[0] for seed in range(20)} == {"One and one?", "A half?"}
    assert load_problems(str(path), "train", None, None)[1].answer == "\\frac{1}{2}"
    assert len(load_problems(str(path), "train", 1, None)) == 1


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "?"}, "the column 'response' is missing"),
        (
            {"query": "?", "response": "It is 2."},
            "none of the 1 responses ends in 'The answer is:'",
        ),
        ({"query": "?", "response": "The answer is: "}, "none of the 1 responses"),
        (
            {"query": 3, "response": "The answer is: 2"},
            "row 1, column 'query': expected a string, got 3",
        ),
        ({"query": None, "response": "The answer is: 2"}, "column 'query'"),
    ],
)
def test_bad_rows(tmp_path, row, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(row))
    with pytest.raises(DataError, match=message) as error:
        MetamathQA(data=str(path))
    assert "bad.jsonl" in str(error.value)


def test_a_row_without_an_answer_is_left_out_and_counted(tmp_path, caplog):
    path = tmp_path / "math.jsonl"
    path.write_text(
        "\n".join(
            json.dumps(row) for row in [ROWS[0], {"query": "?", "response": "Unclear."}, ROWS[1]]
        )
    )
    assert [problem.answer for problem in load_problems(str(path), "train", None, None)] == [
        "2",
        "\\frac{1}{2}",
    ]
    assert (
        "spa skipped 1 examples without an answer; the first skipped example is number 2"
        in caplog.text
    )


def test_empty_file_and_bad_options(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="no usable example"):
        MetamathQA(data=str(tmp_path / "empty.jsonl"))
    with pytest.raises(ConfigError):
        MetamathQA(retries=-1)


def test_a_folder_is_read_by_datasets(tmp_path):
    pytest.importorskip("datasets")
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "train.parquet")
    env = MetamathQA(data=str(tmp_path))
    assert env.problems is not None and len(env.problems) == 2


def test_normalize():
    assert normalize(" 1 0\t0 A\n") == "100a"
