import pytest

from spa.envs.registry import make_env
from spa_integrations.games.answers import evaluates, is_harmless
from tests.bridges.conformance import failures

real = pytest.mark.skipif(
    "not __import__('importlib').util.find_spec('reasoning_gym')",
    reason="make test-extra NAME=bridges",
)


@real
@pytest.mark.parametrize(
    "task", ["leg_counting", "chain_sum", "mini_sudoku", "simple_equations", "word_ladder"]
)
def test_question_sets_conform(task):
    assert failures(f"reasoning_gym:{task}") == []


@real
def test_the_librarys_answer_wins_and_another_does_not():
    env = make_env("reasoning_gym:leg_counting", {"min_animals": 3, "max_animals": 3})
    env.reset(seed=4)
    assert env.step(env.expert_actions(1)[0])[1:3] == (1.0, True) and env.state_text(
        "grid"
    ).endswith("was right.")
    env.reset(seed=4)
    _, score, over, _, info = env.step("no number")
    assert (score, over, info["success"]) == (0.0, True, False)


@real
def test_retries_go_on_after_a_wrong_answer():
    env = make_env("reasoning_gym:leg_counting", {"retries": 1})
    env.reset(seed=4)
    assert not env.step("no number")[2] and env.state_text("grid").endswith("Answers left: 1.")
    assert env.step(env.expert_actions(1)[0])[4]["success"]


@real
def test_an_answer_is_never_run_as_a_program(tmp_path):
    """The scorers of these sets call eval on the answer, or SymPy's parse_expr, which does."""
    mark = tmp_path / "ran"
    harm = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    for task in (
        "n_queens",
        "spiral_matrix",
        "string_insertion",
        "binary_matrix",
        "countdown",
        "simple_integration",
    ):
        env = make_env(f"reasoning_gym:{task}")
        env.reset(seed=0)
        assert evaluates(type(env.data)), task
        env.step(harm)
        assert not mark.exists(), task


@real
def test_the_scorer_without_the_guard_would_run_it(tmp_path):
    env = make_env("reasoning_gym:spiral_matrix")
    env.reset(seed=0)
    mark = tmp_path / "ran"
    env.data.score_answer(f"[__import__('pathlib').Path({str(mark)!r}).touch()]", env.entry)
    assert mark.exists()


@pytest.mark.parametrize(
    "text", ["12", "-3.5", "[[1, 2], [3, 4]]", "x**2 + 3*x", "(4 + 6) / 2", "exp(x)*sin(2*x) + C"]
)
def test_literals_and_formulas_are_harmless(text):
    assert is_harmless(text)


@pytest.mark.parametrize(
    "text",
    [
        "exit()",
        "a.b",
        "__import__('os')",
        "open('x')",
        "[x for x in (1,)]",
        "().__class__",
        "lambda: 1",
    ],
)
def test_programs_are_not(text):
    assert not is_harmless(text)


@real
@pytest.mark.parametrize("task", ["n_queens", "string_insertion", "intermediate_integration"])
def test_the_librarys_own_answer_wins_where_scorers_evaluate_text(task):
    env = make_env(f"reasoning_gym:{task}")
    for seed in range(10):
        env.reset(seed=seed)
        assert env.score(str(env.entry["answer"])) == 1.0
