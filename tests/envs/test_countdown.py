import json
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contract import check_contract
from hypothesis import given
from hypothesis import strategies as st

from spa.errors import DataError
from spa_games.arithmetic import MAX_DEPTH, MAX_LENGTH, parse_expression
from spa_games.countdown import Countdown, Puzzle
from spa_games.solvers.countdown import sign_solution, solve

MALICIOUS = [
    "9**9**9**9",
    "__import__('os').system('true')",
    "(lambda: 1)()",
    "1 if 1 else 2",
    "10 % 3",
    "7 // 2",
    "1e9",
    "0x10",
    "1_000",
    "2.5 * 2",
    "٣ + 1",
    "²",
    "1 2",
    "091",
    "10 + 01",
    "3 5 +",
    "(1 + 2",
    "1 + 2)",
    "()",
    "+",
    "1 = 1",
    "1 + 2 = 3",
    "9999999999",
    "(" * 140 + "1" + ")" * 140,
    "-" * 200 + "1",
    "+" * 200 + "1",
    "1+" * 500_000 + "1",
    "9" * 1_000_000,
    "\x00",
    "",
    " \n ",
]


def played(puzzle: Puzzle, answer: str, **options):
    env = Countdown(**options)
    env.reset(seed=0)
    env.puzzle = puzzle
    return env.step(answer)


def test_contract():
    check_contract(Countdown, steps=2)


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("1 + 2 * 3", 7, (1, 2, 3)),
        ("(1+2)*3", 9, (1, 2, 3)),
        ("8 / 3 / 2", Fraction(4, 3), (8, 3, 2)),
        ("10 - 4 - 3", 3, (10, 4, 3)),
        ("-(2 - 5) * -1", -3, (2, 5, 1)),
        ("2 × 3 − 8 ÷ 4", 4, (2, 3, 8, 4)),
        ("5 - -5", 10, (5, 5)),
        ("+5 - (+3)", 2, (5, 3)),
        ("-+-5", 5, (5,)),
        ("00 + 10", 10, (0, 10)),
        ("1 / (2 - 2)", None, (1, 2, 2)),
        ("0 * (1 / 0)", None, (0, 1, 0)),
    ],
)
def test_expressions_by_hand(text, value, numbers):
    found = parse_expression(text)
    assert found is not None and (found.value, found.numbers) == (value, numbers)


@pytest.mark.parametrize("text", MALICIOUS, ids=range(len(MALICIOUS)))
def test_anything_else_is_an_invalid_action(text):
    assert parse_expression(text) is None
    env = Countdown()
    before, _ = env.reset(seed=1)
    assert env.to_action(text) is None
    state, reward, terminated, _, info = env.step(text)
    assert (state, reward, terminated, info["action_is_valid"]) == (before, 0.0, False, False)


def joined(parts):
    (left, a), sign, (right, b) = parts
    if sign == "/":
        value = None if a is None or not b else a / b
    else:
        value = None if a is None or b is None else {"+": a + b, "-": a - b, "*": a * b}[sign]
    return f"({left} {sign} {right})", value


def negated(part):
    return f"-{part[0]}", None if part[1] is None else -part[1]


TREES = st.recursive(
    st.integers(0, 99).map(lambda number: (str(number), Fraction(number))),
    lambda part: st.tuples(part, st.sampled_from("+-*/"), part).map(joined) | part.map(negated),
    max_leaves=12,
)


@given(TREES)
def test_parser_gives_the_value_of_generated_expressions(tree):
    text, value = tree
    found = parse_expression(text)
    if found is None:
        assert len(text) > MAX_LENGTH or text.count("(") + text.count("-") > MAX_DEPTH
    else:
        assert found.value == value


@given(st.text(alphabet="0123456789+-*/() .e_xX**", max_size=60) | st.text(max_size=40))
def test_parser_never_raises(text):
    found = parse_expression(text)
    assert found is None or isinstance(found.value, Fraction)


def test_rewards_by_hand():
    puzzle = Puzzle((3, 5, 8), 16)
    assert played(puzzle, "8 + 5 + 3")[1:3] == (1.0, True)
    assert played(puzzle, "8 + 5 - 3")[1:3] == (0.1, True)
    assert played(puzzle, "8 + 8")[1:3] == (0.0, True)
    assert played(puzzle, "3 + 5 + 8 + 0")[1] == 0.0
    assert played(puzzle, "16")[1] == 0.0
    assert played(puzzle, "3 + 5 + 8 + 8 - 8")[1] == 0.0  # each number once
    assert played(Puzzle((3, 3, 8, 8), 24), "8 / (3 - 8 / 3)")[1] == 1.0
    assert played(Puzzle((1, 0), 1), "1 / 0")[1] == 0.1
    assert played(puzzle, "8 + 5 - 3", format_score=0.2)[1] == 0.2
    assert played(puzzle, "8+5+3")[4] == {
        "action_is_valid": True,
        "action_is_effective": True,
        "success": True,
    }
    assert played(puzzle, "8+5-3")[4]["success"] is False
    assert played(puzzle, "8+5+3")[0] == "Target: 16\nNumbers: 3, 5, 8\nYour answer: right"


def test_generated_puzzles_can_be_solved_and_differ():
    env, seen = Countdown(), set()
    for seed in range(300):
        env.reset(seed=seed)
        assert env.optimal_steps() == 1 and env.step(env.expert_actions(5)[0])[1] == 1.0
        assert env.optimal_steps() is None and env.expert_actions(5) == ()
        assert 3 <= len(env.puzzle.numbers) <= 4 and 1 <= env.puzzle.target <= 100
        seen.add(env.puzzle_text())
    assert len(seen) == 300


@pytest.mark.parametrize(
    ("numbers", "target", "by_signs"),
    [
        ((3, 5, 8), 10, True),
        ((1, 5, 5, 5), 24, False),
        ((3, 3, 8, 8), 24, False),
        ((5,), 5, True),
        ((4, 9), -5, True),
    ],
)
def test_solver(numbers, target, by_signs):
    assert (sign_solution(numbers, target) is not None) is by_signs
    text = solve(numbers, target)
    assert text is not None
    found = parse_expression(text)
    assert found is not None and found.value == target and sorted(found.numbers) == sorted(numbers)


def test_solver_says_no():
    assert solve((2, 3), 7) is None and solve((1, 1, 1, 1), 13) is None
    with pytest.raises(ValueError, match="at most"):
        solve(range(1, 9), 10**9)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    path = tmp_path / "countdown.jsonl"
    path.write_text('{"nums": [3, 5, 8], "target": 16}\n', encoding="utf-8-sig")
    assert Countdown(data=str(path)).reset(seed=0)[0].startswith("Target: 16")


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_files(tmp_path, suffix):
    rows = [
        {"nums": [3, 5, 8], "target": 16},
        {"nums": [3, 3, 8, 8], "target": 24},
        {"nums": [9, 4], "target": 5},
        {"nums": [1, 1], "target": 2},
    ]
    path = tmp_path / f"countdown.{suffix}"
    write(path, rows)
    env = Countdown(data=str(path))
    shown = [env.reset(seed=seed)[0].splitlines()[0] for seed in range(4)]
    # signs alone do not reach 24
    assert shown == ["Target: 16", "Target: 5", "Target: 2", "Target: 16"]
    every = Countdown(data=str(path), signs_only=False, max_instances=3)
    assert every.puzzles is not None and len(every.puzzles) == 3
    write(path, [{"nums": [1, 2, 3], "target": 6, "more": "x"}] * 2)
    # a changed file is read again
    assert Countdown(data=str(path)).reset(seed=0)[0].startswith("Target: 6")


def write(path, rows):
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"nums": [1, 2]}], r"the column 'target' is missing"),
        ([{"nums": [1, 2], "target": 3}, {"nums": "1 2", "target": 3}], r"row 2, column 'nums'"),
        (
            [{"nums": [1, 2], "target": "3"}],
            r"row 1, column 'target': expected an integer, got '3'",
        ),
        ([{"nums": [1, True], "target": 2}], r"column 'nums'"),
        ([{"nums": [], "target": 2}], r"column 'nums'"),
        ([{"nums": [1] * 7, "target": 2}], r"column 'nums'"),
        ([{"nums": [1, -2], "target": 2}], r"column 'nums'"),
        ([{"nums": [2, 3], "target": 7}], r"no usable puzzle"),
        ([[1, 2]], r"row 1: expected a JSON object"),
    ],
)
def test_bad_rows(tmp_path, rows, message):
    path = tmp_path / "bad.jsonl"
    write(path, rows)
    with pytest.raises(DataError, match=message) as error:
        Countdown(data=str(path))
    assert "bad.jsonl" in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(DataError, match="the data file does not exist"):
        Countdown(data=str(tmp_path / "none.parquet"))
    (tmp_path / "x.parquet").write_bytes(b"PAR1 this is no parquet")
    with pytest.raises(DataError, match="not readable parquet"):
        Countdown(data=str(tmp_path / "x.parquet"))
    pq.write_table(pa.table({"numbers": [[1]], "target": [1]}), tmp_path / "y.parquet")
    with pytest.raises(
        DataError, match=r"the column 'nums' is missing \(columns: numbers, target\)"
    ):
        Countdown(data=str(tmp_path / "y.parquet"))
    (tmp_path / "z.jsonl").write_bytes(b'{"nums": [1], "target": 1}\n\xff\xfe\n')
    with pytest.raises(DataError, match="not valid JSON lines"):
        Countdown(data=str(tmp_path / "z.jsonl"))
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    with pytest.raises(DataError, match="near row 1"):
        Countdown(data=str(tmp_path / "deep.jsonl"))
    (tmp_path / "table.csv").write_text("nums,target\n")
    with pytest.raises(DataError, match="must end in"):
        Countdown(data=str(tmp_path / "table.csv"))


def test_random_actions_are_legal():
    env, rng = Countdown(), np.random.default_rng(0)
    for seed in range(50):
        env.reset(seed=seed)
        assert env.step(env.random_action(rng))[1] in (0.1, 1.0)
