"""Which episodes a report reads for whom: runs of one name, puzzles of one seed, rounds, methods that train on."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from report_fixtures import write_sft, write_stage

from spa.cli import execute
from spa.errors import DataError
from spa.run.lock import run_lock
from spa_report.content import build
from spa_report.facts import Behaviour, behaviour_and_wins, describe_failures, difference, rate
from spa_report.overview import list_runs
from spa_report.reading import open_run


def edit(path: Path, change) -> None:
    """Change every row of a JSON-lines file."""
    rows = [change(json.loads(line)) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def validation(stage: Path) -> Path:
    return max((stage / "trajectories").glob("val-*.jsonl"))


def test_two_runs_of_one_name_are_two_runs(tmp_path: Path):
    for number, skill in enumerate([(0.0, 0.0), (1.0, 1.0)]):
        write_stage(tmp_path / f"k{number}" / "spa" / "ppo", arm="x", seed=1, steps=5, skill=skill)
    report = build([open_run(tmp_path / f"k{number}" / "spa") for number in (0, 1)])
    assert {row.label for row in report.rows} == {"k0/spa", "k1/spa"}
    assert report.rows[1].lead is not None and report.rows[1].lead.mean > 0.5
    with pytest.raises(DataError, match="is given twice"):
        build([open_run(tmp_path / "k0" / "spa")] * 2)


def test_more_training_in_another_comparison_is_held_against_the_best_of_all(
    demo: Path, tmp_path: Path
):
    """Its own summary knows the difference to its own reference alone."""
    for name in ("x1", "x2"):
        run = shutil.copytree(demo, tmp_path / name)
        summary = json.loads((run / "summary.json").read_text())
        summary["methods"]["spa"]["after"]["pass@1"] = 1.0 if name == "x1" else 0.5
        (run / "summary.json").write_text(json.dumps(summary))
    rows = {
        row.label: row for row in build([open_run(tmp_path / name) for name in ("x1", "x2")]).rows
    }
    ours, other = (behaviour_and_wins(open_run(tmp_path / name).find("ppo", arm))[1]
                   for name, arm in (("x1", "spa"), ("x2", "vanilla")))  # fmt: skip
    assert rows["vanilla (x2), trained longer"].lead == difference(ours, other)
    recorded = json.loads((tmp_path / "x1" / "summary.json").read_text())["difference"][
        "vanilla_same_total_episodes"
    ]
    lead = rows["vanilla (x1), trained longer"].lead
    assert lead is not None and lead.mean == recorded["mean"]


def test_methods_that_all_train_on_are_judged_where_they_are_compared(tmp_path: Path):
    for arm in ("vanilla", "vanilla_wm"):
        stage = tmp_path / "run" / arm / "ppo"
        write_stage(stage, arm=arm, seed=1, steps=10, skill=(0.0, 1.0))
        config = yaml.safe_load((stage / "config.yaml").read_text())
        config["trainer"]["also_test_at"] = 5
        (stage / "config.yaml").write_text(yaml.safe_dump(config))
    report = build([open_run(tmp_path / "run")])
    won = [json.loads(line)["success"] for line in
           (tmp_path / "run" / "vanilla" / "ppo" / "trajectories" / "val-000005.jsonl").open()]  # fmt: skip
    row = next(row for row in report.rows if row.arm == "vanilla")
    assert row.after is not None and row.interval is not None
    assert row.after == pytest.approx(sum(won) / len(won))
    assert row.interval.mean == row.after
    line = next(iter(list_runs(tmp_path, 0.0)))
    assert f"vanilla {100 * (row.before or 0):.0f} → {100 * row.after:.0f} %" in line.result


def test_methods_of_a_summary_are_judged_at_its_steps_and_others_where_all_are(tmp_path: Path):
    """As of `spa compare --sweep trainer.total_training_steps=5,10` or with `vanilla_x2`."""
    run = tmp_path / "run"
    rates = {
        arm: write_stage(run / arm / "ppo", arm=arm, seed=1, steps=steps, skill=(0.0, 1.0))
        for arm, steps in (("short", 5), ("long", 10))
    }
    unfinished = {row.arm: row for row in build([open_run(run)]).rows}
    assert unfinished["long"].after != rates["long"]["after"]["pass@1"]
    assert "long trained for more steps" in build([open_run(run)]).certainty[-1]
    (run / "summary.json").write_text(json.dumps({"methods": rates, "reference": "short"}))
    report = build([open_run(run)])
    for row in report.rows:
        assert row.interval is not None and row.after is not None
        assert row.after == row.interval.mean == rates[row.arm]["after"]["pass@1"]
        said = f"{row.arm} {100 * (row.before or 0):.0f} → {100 * row.after:.0f} %"
        assert said in next(list_runs(tmp_path, 0.0)).result
    assert not any("trained for more steps" in text for text in report.certainty)
    # `long` continues after the step at which it is compared, which is not that of `short`.
    config = run / "long" / "ppo" / "config.yaml"
    content = yaml.safe_load(config.read_text())
    content["trainer"]["also_test_at"] = 8
    config.write_text(yaml.safe_dump(content))
    assert build([open_run(run)]).certainty[-1] == (
        "Each method is compared at its own PPO step: long 8, short 5. long trained for more steps."
    )


def test_a_stage_that_an_extended_comparison_links_to_is_read_once(tmp_path: Path):
    """`spa compare X` wrote X/spa, and `spa compare X --seeds 2` links X/seed_0/spa to it."""
    run = tmp_path / "run"
    write_stage(run / "spa" / "ppo", arm="spa", seed=0, steps=5)
    write_stage(run / "seed_1" / "spa" / "ppo", arm="spa", seed=1, steps=5)
    (run / "seed_0" / "spa").mkdir(parents=True)
    (run / "seed_0" / "spa" / "ppo").symlink_to("../../spa/ppo")
    assert [stage.seed for stage in open_run(run).find("ppo", "spa")] == [0, 1]
    assert next(iter(list_runs(tmp_path, 0.0))).seeds == "0, 1"


def test_a_run_that_a_comparison_in_its_folder_links_to_is_no_other_method(tmp_path: Path):
    """`spa run X` wrote X/sft and X/ppo; `spa compare X` links to them. Methods share stages, too."""
    run = tmp_path / "run"
    write_sft(run / "sft", seed=0)
    write_stage(run / "ppo", arm="spa", seed=0, steps=5)
    write_stage(run / "x" / "ppo", arm="x", seed=0, steps=5)
    (run / "spa").mkdir()
    for link, target in (("spa/ppo", "ppo"), ("spa/sft", "sft"), ("x/sft", "sft")):
        (run / link).symlink_to(f"../{target}")
    found = [(stage.arm, stage.name) for stage in open_run(run).stages]
    assert found == [("spa", "sft"), ("spa", "ppo"), ("x", "sft"), ("x", "ppo")]


def test_runs_with_unequal_numbers_of_seeds_are_paired_by_the_seeds_that_both_have(tmp_path: Path):
    for name, seeds, skill in (("three", 3, 1.0), ("two", 2, 0.0), ("alone", 0, 0.0)):
        folders = {f"seed_{seed}/": seed for seed in range(seeds)} or {"": 0}
        for folder, seed in folders.items():
            stage = tmp_path / name / f"{folder}x" / "ppo"
            write_stage(stage, arm="x", seed=seed, steps=5, skill=(skill, skill))
            # Every training seed has puzzles of its own.
            edit(
                validation(stage),
                lambda row, own=seed: row | {"puzzle_seed": f"{own} {row['group']}"},
            )
        rates = [{"seed": seed, "methods": {}} for seed in range(seeds)]
        (tmp_path / name / "summary.json").write_text(json.dumps({"seeds": rates}))
    three, two, alone = (open_run(tmp_path / name) for name in ("three", "two", "alone"))
    report = build([three, two])
    assert report.rows[1].lead is not None and report.rows[1].lead.n == 8
    assert any("so the choice of puzzles is an unlikely" in text for text in report.certainty)
    report = build([three, alone])
    assert report.rows[1].lead is not None and report.rows[1].lead.n == 4
    assert "x (three) wins" in report.verdict
    assert any("One training seed of alone was run" in text for text in report.certainty)


def test_puzzles_are_the_same_if_they_are_and_not_if_their_seeds_are(tmp_path: Path):
    for name in ("a", "b"):
        write_stage(tmp_path / name / "ppo", arm="x", seed=1, steps=5)
    edit(
        validation(tmp_path / "b" / "ppo"),
        lambda row: {**row, "puzzle_hash": f"other {row['puzzle_hash']}"},
    )
    report = build([open_run(tmp_path / name) for name in ("a", "b")])
    assert report.rows[1].lead is None and "not validated on the same puzzles" in report.verdict
    for name in ("a", "b"):
        edit(validation(tmp_path / name / "ppo"), lambda row: {**row, "puzzle_hash": None})
    assert build([open_run(tmp_path / name) for name in ("a", "b")]).rows[1].lead is not None


def test_a_rate_is_that_of_the_puzzles_whatever_their_tags(tmp_path: Path):
    """Eight puzzles of one environment are won, and 24 of another are lost: one in four."""
    stage = tmp_path / "run" / "ppo"
    write_stage(stage, arm="x", seed=1, steps=5, puzzles=32, samples=1)
    edit(
        validation(stage),
        lambda row: row | {"tag": "A" if row["group"] < 8 else "B", "success": row["group"] < 8},
    )
    (row,) = build([open_run(tmp_path / "run")]).rows
    assert row.after == 0.25 and row.interval is not None and row.interval.mean == 0.25


def test_before_is_before_any_step(tmp_path: Path):
    stage = tmp_path / "run" / "ppo"
    write_stage(stage, arm="x", seed=1, steps=5)
    assert "before PPO" in build([open_run(tmp_path / "run")]).verdict
    (stage / "trajectories" / "val-000000.jsonl").unlink()
    lines = (stage / "metrics.jsonl").read_text().splitlines(keepends=True)
    (stage / "metrics.jsonl").write_text("".join(lines[1:]))
    report = build([open_run(tmp_path / "run")])
    assert report.rows[0].before is None and "before PPO" not in report.verdict
    assert "→" not in next(iter(list_runs(tmp_path, 0.0))).result


def test_the_interval_of_a_method_alone_names_the_seeds_that_it_covers(tmp_path: Path):
    for seed in (0, 1, 2):
        stage = tmp_path / "run" / f"seed_{seed}" / "x" / "ppo"
        write_stage(stage, arm="x", seed=seed, steps=5)
    rates = [{"seed": seed, "methods": {}} for seed in (0, 1, 2)]
    (tmp_path / "run" / "summary.json").write_text(json.dumps({"seeds": rates}))
    (text,) = build([open_run(tmp_path / "run")]).certainty
    assert text.startswith("95 % CI over puzzles and training seeds [")


def test_episodes_that_broke_off_are_no_failures():
    behaviour = Behaviour()
    behaviour.endings.update({"success": 2, "turn_cap": 2, "error": 1})
    assert describe_failures("x", behaviour).startswith(
        "x failed in 50 % of its 4 episodes: 50 % ran out of turns. 1 more stopped with a technical error."
    )
    behaviour = Behaviour()
    behaviour.endings["error"] = 3
    assert (
        describe_failures("x", behaviour) == "All 3 episodes of x stopped with a technical error."
    )


def test_three_training_seeds_are_part_of_the_interval():
    wins = {
        seed: {str(puzzle): float(won) for puzzle in range(32)}
        for seed, won in enumerate((0.05, 0.9, 0.95))
    }
    found = rate({**wins})
    assert found is not None and found.high - found.low > 0.5


def test_earlier_rounds_of_self_play_are_stages_of_their_own(tmp_path: Path):
    run = tmp_path / "runs" / "two"
    write_sft(run / "round_1" / "sft", seed=1)
    (line,) = list_runs(tmp_path / "runs", 0.0)
    assert line.name == "two" and line.state.startswith("stopped: round_1 sft step 30")
    write_sft(run / "sft", seed=1)
    write_stage(run / "spa" / "round_1" / "data", arm="x", seed=1, steps=1)
    found = [(stage.arm, stage.name) for stage in open_run(run).stages]
    assert found == [("", "round_1 sft"), ("", "sft"), ("spa", "round_1 data")]
    assert any("round_1 sft to step 30" in value for _, value in build([open_run(run)]).provenance)


def test_a_summary_of_something_else_is_one_line_and_the_other_runs_are_listed(
    demo: Path, tmp_path: Path
):
    shutil.copytree(demo, tmp_path / "runs" / "demo")
    for name, content in (
        ("a", {"seeds": 3}),
        ("b", {"seconds": 12.5}),
        ("c", {"methods": {"spa": 0.5}}),
        ("d", [1]),
    ):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "summary.json").write_text(json.dumps(content))
    lines = {line.name: line for line in list_runs(tmp_path / "runs", 0.0)}
    assert [lines[name].state for name in "abcd"] == ["unreadable"] * 4 and lines[
        "demo"
    ].state == "finished"


def test_the_folder_of_a_run_is_listed_as_one_run(demo: Path, tmp_path: Path):
    assert [(line.name, line.seeds) for line in list_runs(demo, 0.0)] == [("demo", "0")]
    # Self-play's summary is none of a comparison.
    data = shutil.copytree(demo, tmp_path / "demo") / "spa" / "data"
    data.mkdir()
    (data / "metrics.jsonl").write_text('{"step": 1}\n')
    (data / "summary.json").write_text('{"episodes": 2, "played": {"episodes": 2.0}}')
    assert open_run(data).summary is None
    assert [line.name for line in list_runs(tmp_path / "demo", 0.0)] == ["demo"]
    assert "unreadable" not in {line.state for line in list_runs(data, 0.0)}


def test_a_comparison_that_goes_on_is_not_finished_and_lasts_as_long_as_its_longest_arm(
    demo: Path, tmp_path: Path
):
    run = shutil.copytree(demo, tmp_path / "runs" / "demo")
    timings = run / "spa" / "ppo" / "timings.jsonl"
    # Its fine-tuning took what this machine needed to write the record.
    (run / "spa" / "sft" / "timings.jsonl").unlink()
    timings.write_text(json.dumps({"step": 1, "elapsed_s": 5780.0, "unix_time": 1.0}) + "\n")
    assert [(line.state, line.duration) for line in list_runs(tmp_path / "runs", 0.0)] == [
        ("finished", "1:36:20")
    ]
    with run_lock(run):
        assert next(iter(list_runs(tmp_path / "runs", 0.0))).state.startswith("running")


def test_a_report_shows_no_file_from_outside_the_run(tmp_path: Path):
    write_stage(tmp_path / "run" / "ppo", arm="x", seed=1, steps=5)
    (tmp_path / "secret.txt").write_text("trainer: {}\nword: hush\n")
    (tmp_path / "run" / "ppo" / "config.yaml").unlink()
    (tmp_path / "run" / "ppo" / "config.yaml").symlink_to(tmp_path / "secret.txt")
    assert not any("hush" in text for _, text in build([open_run(tmp_path / "run")]).configs)


def test_comparisons_with_different_numbers_of_methods_are_one_report(
    three_seeds: Path, tmp_path: Path
):
    runs = [
        shutil.copytree(three_seeds, tmp_path / name)
        for name in ("with-control", "without-control")
    ]
    path = runs[0] / "summary.json"
    summary = json.loads(path.read_text())
    for table in (summary, *summary["seeds"]):
        table["methods"]["spa_shuffled"] = table["methods"]["vanilla"]
    path.write_text(json.dumps(summary))
    for kind, order in (("html", runs), ("md", runs[::-1])):
        output = tmp_path / f"report.{kind}"
        assert execute(["report", *map(str, order), "--format", kind, "--output", str(output)]) == 0
        assert "SPA, shuffled next states" in output.read_text(encoding="utf-8")


def test_a_run_with_the_name_of_a_method_is_one_of_several_runs(tmp_path: Path):
    for name in ("tiny", "vanilla"):
        write_stage(tmp_path / name / "ppo", arm="", seed=0)
        (tmp_path / name / ".lock").touch()
    assert {line.name for line in list_runs(tmp_path, 0.0)} == {"tiny", "vanilla"}
