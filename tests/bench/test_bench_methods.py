"""The bench of methods: plan, rows, budgets, the page, and one bench that really trains."""

import json
from dataclasses import replace
from typing import Any

import pytest
from helpers.grids import in_this_process
from helpers.runs import SMALL

from spa import cli
from spa.errors import ConfigError
from spa.evaluation.statistics import probability_of_improvement
from spa.evaluation.text import interval_text
from spa_bench.leaderboard import bench, tables
from spa_bench.leaderboard.tables import at_budget, verdicts
from spa_bench.paper.paper import Setting
from spa_report.usage import Budget
from spa_sweeps.methods import METHODS, method
from spa_sweeps.results import SeedResult

TINIEST = (
    *SMALL,
    "trainer.total_training_steps=2",
    "trainer.test_freq=1",
    "sft.trainer.total_training_steps=2",
    "generate.num_batches=1",
)


def result(seed: int, won: int) -> SeedResult:
    """Four puzzles with 8 attempts, of which `won` succeed."""
    puzzles = {f"t/{seed}{puzzle}": (8, won) for puzzle in range(4)}
    return SeedResult(
        seed=seed,
        moments={"before": dict.fromkeys(puzzles, (8, 0)), "after": puzzles},
        curve={0: (0.0, 0.0), 8: (won / 16, 1.0), 16: (won / 8, 1.0)},
        world_model={"prediction_exact": 0.5},
    )


def row(
    name: str, board: str, one: SeedResult, *, first: float = 0.0, per_step: float = 10.0
) -> tables.Row:
    budget = {
        step: Budget(first + per_step * step, 100 * (first + per_step * step)) for step in range(17)
    }
    return tables.row_of(name, board, one, optimum=0.8, budget=budget)


def test_probability_of_improvement_by_hand():
    # First board: 3 of 4 pairs won, one tie; second: all lost.
    assert probability_of_improvement([[3, 2], [0]], [[1, 2], [1]]) == pytest.approx(
        (3.5 / 4 + 0) / 2
    )
    assert probability_of_improvement([[1, 1]], [[0, 0]]) == 1.0
    with pytest.raises(ValueError, match="one run of each method"):
        probability_of_improvement([[1], []], [[1], [1]])


def test_a_curve_is_read_on_the_straight_line_and_nowhere_else():
    curve = [{"tokens": 100, "pass@1": 0.2}, {"tokens": 200, "pass@1": 0.4}]
    assert at_budget(curve, "tokens", 150) == pytest.approx(0.3)
    assert at_budget(curve, "tokens", 99) is None and at_budget(curve, "tokens", 201) is None


def test_the_thriftiest_training_sets_the_budget():
    found = {("lake", "spa"): [result(0, 8)], ("lake", "vanilla"): [result(0, 4)]}
    rows = [row("spa", "lake", result(0, 8), first=80), row("vanilla", "lake", result(0, 4))]
    made = tables.leaderboard(rows, found)
    assert made["budgets"]["environment_steps"] == {"lake": 160}
    # After 160 steps spa, which spent 80 before PPO, is at PPO step 8; vanilla is at its end.
    assert [one["at_environment_steps"] for one in rows] == [0.5, 0.5]
    (best, other) = made["leaderboard"]["environment_steps"]
    assert {best["method"], other["method"]} == {"spa", "vanilla"}
    assert best["iqm"]["mean"] == pytest.approx(0.5 / 0.8)
    assert made["differences"]["vanilla"]["reference"]["mean"] == pytest.approx(-0.5)
    assert made["differences"]["spa"] == {"reference": None, "control": None}


def test_a_method_that_misses_a_board_has_no_interquartile_mean_and_stands_last():
    found = {
        (board, name): [result(0, 8)] for board, name in (("a", "echo"), ("a", "spa"), ("b", "spa"))
    }
    rows = [row(name, board, one) for (board, name), (one,) in found.items()]
    made = tables.leaderboard(rows, found)
    assert made["differences"]["echo"]["reference"] is not None
    # A training that has not finished is no result of its board.
    unfinished = tables.leaderboard(rows, {**found, ("b", "echo"): []})
    assert unfinished["differences"]["echo"] == made["differences"]["echo"]
    last = made["leaderboard"]["tokens"][-1]
    assert (
        last["method"] == "echo" and last["iqm"] is None and last["boards"] == {"a": 1.0, "b": None}
    )


def test_rows_and_controls_of_fewer_boards_say_so():
    wins = {
        ("a", "spa"): 4,
        ("b", "spa"): 4,
        ("a", "echo"): 8,
        ("b", "echo"): 8,
        ("a", "echo_shuffled"): 2,
    }
    found = {place: [result(0, won)] for place, won in wins.items()}
    rows = [row(name, board, one) for (board, name), (one,) in found.items()]
    _, _, (_, _, table) = tables.tables(
        {**tables.leaderboard(rows, found), "rows": rows, "descriptions": {}}
    )
    cells = {line[0]: dict(zip(table.columns, line, strict=True)) for line in table.rows}
    assert cells["spa"]["minus its shuffled control"] == "not run"
    assert (
        cells["echo"]["minus spa"].startswith("+50.0") and "alone" not in cells["echo"]["minus spa"]
    )
    assert cells["echo"]["minus its shuffled control"].startswith("+75.0")
    assert cells["echo"]["minus its shuffled control"].endswith("(a alone)")
    assert "echo_shuffled (a alone)" in cells


def test_a_single_run_has_no_interval():
    one, two = ([row("spa", "a", result(seed, 2)) for seed in range(count)] for count in (1, 2))
    for rows in (one, two):
        found = {("a", "spa"): [result(seed, 2) for seed in range(len(rows))]}
        (entry,) = tables.leaderboard(rows, found)["leaderboard"]["tokens"]
        assert ("low" in entry["iqm"]) == (len(rows) > 1)
        assert interval_text(entry["iqm"]).count("[") == len(rows) - 1


def test_every_fine_tuned_method_has_a_shuffled_control_and_no_other_has_one():
    chosen = method("echo_shuffled")
    assert (
        "generate.shuffle_next_states=true" in chosen.overrides
        and chosen.ppo == METHODS["echo"].ppo
    )
    with pytest.raises(ConfigError, match="no control"):
        method("vanilla_shuffled")
    with pytest.raises(ConfigError, match="nothing_shuffled"):
        method("nothing_shuffled")


def test_every_method_of_the_default_bench_exists_and_shares_its_stages(tmp_path):
    assert len(bench.METHODS) >= 10
    made = bench.make_bench((), "tiny", tmp_path, boards=["FrozenLake"], seeds=1)
    assert {name for _, name in made.trainings} == set(bench.METHODS)
    same = {
        made.grid.links.get(tmp_path / "FrozenLake" / "seed_0" / name / "sft")
        for name in ("echo", "gigpo")
    }
    assert len(same) == 1 and None not in same
    assert made.hours(1) > 0.5
    assert made.hours(1000) < made.hours(4) < made.hours(1)


@pytest.fixture
def smallest(base, monkeypatch):
    """The tiny scale with one board of seconds."""
    boards = {"lake": Setting(preset="base", overrides=(*TINIEST, f"model_path={base}"))}
    monkeypatch.setitem(
        bench.BENCHES, "tiny", replace(bench.BENCHES["tiny"], boards=boards, common=())
    )  # type: ignore[arg-type]


def test_a_bench_trains_ranks_adds_controls_and_finds_everything_done(smallest, tmp_path, capsys):
    names = ["vanilla", "spa", "branched_data"]
    made = bench.make_bench(names, "tiny", tmp_path, seeds=1)
    found = bench.run_bench(made, controls=1, parallel=1, pool=in_this_process)
    trained = [one["method"] for one in found["rows"]]
    assert len(trained) == 4 and trained[-1].endswith("_shuffled") and found["not_run"] == []
    by_name = {one["method"]: one for one in found["rows"]}
    assert by_name["vanilla"]["curve"][0]["tokens"] == 0 < by_name["spa"]["curve"][0]["tokens"]
    assert by_name["vanilla"]["learnt_tokens"] == 0 < by_name["spa"]["learnt_tokens"]
    # Nobody pays tokens for branches, but every one of them is a step in the environment.
    first = {name: one["curve"][0]["environment_steps"] for name, one in by_name.items()}
    assert first["branched_data"] > first["spa"] > first["vanilla"] == 0
    assert [point["step"] for point in by_name["vanilla"]["curve"]] == [0, 1, 2, 3]
    assert 0 < by_name["spa"]["optimum"] <= 1
    (table,) = found["q_learning"]["lake"]
    assert table["steps"] == found["budgets"]["environment_steps"]["lake"]

    args = ["bench", "methods", *names, "--seeds", "1", "--root", str(tmp_path), "--controls", "1"]
    assert cli.main([*args, "--no-training"]) == 0
    assert "% of the optimum" in capsys.readouterr().out
    assert json.loads((tmp_path / "leaderboard.json").read_text()) == json.loads(json.dumps(found))
    page, html = (
        (tmp_path / "leaderboard.md").read_text(),
        (tmp_path / "leaderboard.html").read_text(),
    )
    assert "| optimum |" in page and "| Q-learning, on other puzzles |" in page
    assert "<script" not in html and "Content-Security-Policy" in html
    assert cli.main([*args, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert "to do" not in printed and "about 0.0 device hours" in printed


def gap(mean: float, low: float, high: float) -> dict[str, float]:
    return {"mean": mean, "low": low, "high": high, "n": 8}


def test_the_page_says_in_words_what_its_intervals_say():
    def row(method: str, env: str, after: float, **known: float) -> dict[str, Any]:
        curve = [{"environment_steps": 9, "pass@1": after, "step": 3, "tokens": 1000}]
        return {
            "method": method,
            "env": env,
            "pass@1": {"after": after},
            "world_model": known,
            "curve": curve,
        }

    rows = [
        row("spa", "lake", 0.5, prediction_exact=0.4),
        row("vanilla", "lake", 0.3),
        row("vanilla", "lake", 0.2),
    ]
    rows += [
        row("spa", "room", 0.6, prediction_exact=0.2),
        row("planned", "lake", 0.8),
        row("echo", "lake", 0.5),
    ]
    rows += [
        row("spa_shuffled", "lake", 0.3),
        row("spa_shuffled", "room", 0.3),
        row("planned_shuffled", "lake", 0.3),
    ]
    differences = {
        "spa": {"reference": None, "control": gap(0.25, 0.1, 0.4)},
        "planned": {"reference": gap(0.3, 0.2, 0.4), "control": gap(0.1, -0.1, 0.3)},
        "vanilla": {"reference": gap(-0.25, -0.3, -0.1), "control": None},
        "echo": {"reference": gap(-0.004, -0.3, 0.1), "control": None},
    }
    assert verdicts({"rows": rows, "differences": differences}) == [
        "Methods that are better than spa (Pass@1 difference in points, with equal PPO episodes) (lake alone): planned +30.",
        "Methods that are worse than spa (Pass@1 difference in points, with equal PPO episodes) (lake alone): vanilla -25.",
        "Methods with no detected difference from spa (Pass@1 difference in points, with equal PPO episodes) (lake alone): echo +0.",
        "Methods that are better than their shuffled control, so that the true next states explain the gain: spa +25.",
        "Methods with no detected difference from their shuffled control, so that the gain may have another cause (lake alone): planned +10.",
        "On lake, spa solves 50.0 % of the puzzles, and vanilla solves 25.0 %. After SFT, 40.0 % of the predictions are exact.",
        "Tokens sampled per training, including self-play: spa 1,000.",
        "Tokens sampled per training, including self-play (lake alone): planned 1,000, vanilla 1,000, echo 1,000.",
    ]


def test_the_page_of_bench_methods_is_not_the_html_page(tmp_path):
    args = ["bench", "methods", "spa", "--env", "FrozenLake", "--seeds", "1", "--no-training"]
    with pytest.raises(ConfigError, match="name of the Markdown page"):
        cli.execute([*args, "--root", str(tmp_path), "--page", str(tmp_path / "page.html")])
