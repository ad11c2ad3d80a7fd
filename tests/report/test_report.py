"""The report says what the runs say, to a person who has not seen them, and shows hostile text as text."""

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_fixtures import TAG, write_sft, write_stage

from spa.cli import execute
from spa.errors import ConfigError, DataError
from spa.run.lock import run_lock
from spa_report.build import html, template, write_report
from spa_report.content import build
from spa_report.facts import Wins, behaviour_and_wins, difference
from spa_report.overview import list_runs
from spa_report.reading import open_run


class Page(HTMLParser):
    """Every element and attribute of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_verdict_names_winner_difference_and_interval(three_seeds: Path):
    report = build([open_run(three_seeds)])
    summary = json.loads((three_seeds / "summary.json").read_text())
    after = [
        np.mean([seed["methods"][arm]["after"]["pass@1"] for seed in summary["seeds"]])
        for arm in ("spa", "vanilla")
    ]
    lead = summary["difference"]["vanilla"]
    assert report.verdict == (
        f"SPA wins. SPA solves {100 * after[0]:.3g} % of held-out puzzles at the first try, and vanilla "
        f"solves {100 * after[1]:.3g} %. The difference is {100 * lead['mean']:+.1f} points "
        f"(95 % CI [{100 * lead['low']:+.1f}, {100 * lead['high']:+.1f}])."
    )
    assert "SPA has a higher Pass@1 than vanilla in 3 of 3 training seeds." in report.certainty
    assert not any("One training seed was" in text for text in report.certainty)
    assert len(report.seeds) == 3


def test_a_difference_that_can_be_luck_is_not_called_a_win(tmp_path: Path):
    for arm in ("spa", "vanilla"):
        write_stage(tmp_path / "run" / arm / "ppo", arm="same", seed=1, steps=5, puzzles=4)
    report = build([open_run(tmp_path / "run")])
    assert report.verdict.startswith("No clear winner: SPA solves") and report.verdict.endswith(
        "may be chance."
    )
    assert any("No difference found" in text for text in report.certainty)
    assert not any("is better than" in text for text in report.certainty)


def test_a_win_of_the_baseline_is_reported_as_such(tmp_path: Path):
    write_stage(
        tmp_path / "run" / "spa" / "ppo", arm="spa", seed=1, steps=5, skill=(0.0, 0.0), samples=4
    )
    write_stage(
        tmp_path / "run" / "vanilla" / "ppo",
        arm="vanilla",
        seed=1,
        steps=5,
        skill=(1.0, 1.0),
        samples=4,
    )
    report = build([open_run(tmp_path / "run")])
    assert report.verdict.startswith("vanilla wins. vanilla solves ")
    lead = report.rows[1].lead
    assert lead is not None and lead.high < 0
    assert (
        f"The difference is {-100 * lead.mean:+.1f} points (95 % CI [{-100 * lead.high:+.1f}, "
        in report.verdict
    )
    assert any(text.startswith("vanilla is better than SPA") for text in report.certainty)


def test_a_method_that_trained_longer_is_judged_at_the_common_step(tmp_path: Path):
    write_stage(tmp_path / "run" / "spa" / "ppo", arm="spa", seed=1, steps=5, puzzles=3)
    write_stage(
        tmp_path / "run" / "vanilla" / "ppo",
        arm="vanilla",
        seed=1,
        steps=10,
        skill=(0.0, 1.0),
        puzzles=3,
    )
    episodes = (
        (tmp_path / "run" / "vanilla" / "ppo" / "trajectories" / "val-000005.jsonl")
        .read_text()
        .splitlines()
    )
    expected = np.mean([json.loads(line)["success"] for line in episodes])
    report = build([open_run(tmp_path / "run")])
    vanilla = report.rows[1]
    assert any(text.startswith("Methods are compared at PPO step 5") for text in report.certainty)
    assert any(text.endswith("vanilla trained for more steps.") for text in report.certainty)
    assert vanilla.label == "vanilla" and vanilla.after == pytest.approx(expected)
    assert vanilla.interval is not None and vanilla.interval.mean == pytest.approx(expected)


def test_more_training_is_a_line_of_its_own(demo: Path):
    rows = build([open_run(demo)]).rows
    assert [row.label for row in rows] == ["SPA", "vanilla", "vanilla, trained longer"]
    assert [row.all_episodes for row in rows] == [56, 40, 56] and [
        row.ppo_episodes for row in rows
    ] == [40, 40, 56]
    assert rows[2].after == 0.3 and rows[0].seconds == 395


def test_more_training_has_the_episodes_that_it_played(demo: Path, tmp_path: Path):
    run = shutil.copytree(demo, tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text())
    summary["episodes"]["vanilla"]["ppo_longer"] = 48
    summary["episodes"]["spa"]["self_play"] = 32
    (run / "summary.json").write_text(json.dumps(summary))
    rows = build([open_run(run)]).rows
    assert [(row.ppo_episodes, row.all_episodes) for row in rows] == [(40, 72), (40, 40), (48, 48)]


@pytest.mark.parametrize("content", ["", '{"passed": fal', "[]", "{}"])
def test_a_gate_that_is_damaged_is_said_and_not_left_out(tmp_path: Path, content: str):
    write_stage(tmp_path / "run" / "ppo", arm="spa", seed=1, steps=1, puzzles=2)
    write_stage(tmp_path / "run" / "other" / "ppo", arm="spa", seed=1, steps=1, puzzles=2)
    write_sft(tmp_path / "run" / "sft", seed=1)
    (tmp_path / "run" / "sft" / "gate.json").write_text(content)
    with pytest.raises(DataError, match=r"gate\.json is damaged"):
        build([open_run(tmp_path / "run")])


@pytest.mark.parametrize(
    ("diagnosis", "said"), [("not_measured", False), ("other_data", False), ("bad_format", True)]
)
def test_a_gate_that_measured_nothing_is_no_failure(tmp_path: Path, diagnosis: str, said: bool):
    write_stage(tmp_path / "run" / "ppo", arm="spa", seed=1, steps=1, puzzles=2)
    write_stage(tmp_path / "run" / "other" / "ppo", arm="spa", seed=1, steps=1, puzzles=2)
    write_sft(tmp_path / "run" / "sft", seed=1)
    gate = json.dumps({"passed": False, "diagnosis": diagnosis, "text": "Gate."})
    (tmp_path / "run" / "sft" / "gate.json").write_text(gate)
    notes = build([open_run(tmp_path / "run")]).certainty
    assert any("failed the world-model gate" in note for note in notes) == said


@pytest.mark.parametrize("words", [("report", "--output", "."), ("view", "--export", ".")])
def test_a_result_file_may_not_be_a_folder(demo: Path, words: tuple[str, str, str]):
    command, option, path = words
    with pytest.raises(ConfigError, match="the path is a folder"):
        execute([command, str(demo), option, path])


def test_failures_are_counted_from_the_episodes(demo: Path):
    run = open_run(demo)
    behaviour, wins = behaviour_and_wins(run.find("ppo", "vanilla"))
    path = max((demo / "vanilla" / "ppo" / "trajectories").glob("val-*.jsonl"))
    episodes = [json.loads(line) for line in path.read_text().splitlines()]
    assert behaviour.episodes == len(episodes)
    assert behaviour.endings["success"] == sum(episode["success"] for episode in episodes)
    turns = [turn for episode in episodes for turn in episode["turns"]]
    assert behaviour.malformed == sum(not turn["response"]["well_formed"] for turn in turns)
    idle = [info for turn in turns for info in turn["infos"] if not info["action_is_effective"]]
    assert behaviour.idle + behaviour.refused == len(idle)
    rate = np.mean([episode["success"] for episode in episodes])
    assert np.mean(list(wins[None].values())) == pytest.approx(rate)


def test_predictions_that_nobody_asked_for_do_not_count(tmp_path: Path):
    write_stage(tmp_path / "run" / "ppo", arm="spa", seed=1, steps=1, puzzles=2)
    path = max((tmp_path / "run" / "ppo" / "trajectories").glob("val-*.jsonl"))
    (stage,) = open_run(tmp_path / "run").stages
    assert behaviour_and_wins([stage])[0].predicted > 0
    path.write_text(path.read_text().replace('"mode":"add_worldmodel"', '"mode":"base"'))
    assert behaviour_and_wins([stage])[0].predicted == 0


def test_differences_are_paired_by_puzzle():
    first: Wins = {None: {"a": 1.0, "b": 0.5, "only here": 0.0}}
    second: Wins = {None: {"b": 0.5, "a": 0.0}}
    found = difference(first, second)
    assert found is not None and found.mean == 0.5 and found.n == 2
    assert difference({1: {"a": 1.0}}, {2: {"b": 1.0}}) is None


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(demo: Path):
    text = html(build([open_run(demo)]))
    page = Page(text)
    assert not [
        tag for tag, _ in page.tags if tag in ("iframe", "object", "embed", "img", "base", "form")
    ]
    scripts = re.findall("<script>(.*?)</script>", text, re.S)
    assert scripts == [template("uplot.js"), template("charts.js")]
    hashes = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts
    ]
    assert f"script-src 'sha256-{hashes[0]}' 'sha256-{hashes[1]}';" in text
    addresses = [
        v
        for _, attrs in page.tags
        for k, v in attrs.items()
        if k in ("src", "href", "action", "srcset")
    ]
    viewer = "http://127.0.0.1:8265/#run=demo&tab=episodes&"
    assert all(
        address == "data:," or (address or "").startswith(("#", viewer)) for address in addresses
    )
    assert sum((address or "").startswith(viewer) for address in addresses) == text.count(
        "<article"
    )
    assert not [
        attrs
        for _, attrs in page.tags
        if any(name == "style" or name.startswith("on") for name in attrs)
    ]
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'; style-src 'sha256-")
    anchors = {attrs.get("id") for _, attrs in page.tags}
    assert all(
        address[1:] in anchors for address in addresses if address and address.startswith("#")
    )


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\u202eevil\ud800|`*_"


def hostile_run(path: Path) -> Path:
    """A run whose every text is hostile, lines of a megabyte among them."""
    write_stage(path / "ppo", arm="x", seed=1, steps=1, puzzles=2)
    for file in (path / "ppo" / "trajectories").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for number, row in enumerate(rows):
            text = HOSTILE + ("y" * 100_000 if number == 0 else "")
            row |= {"episode_id": text, "tag": text, "error": text, "puzzle_hash": HOSTILE}
            for turn in row["turns"]:
                turn |= {
                    "state": text,
                    "next_state": text,
                    "response_text": text,
                    "executed": [text],
                }
                turn["response"] |= {
                    "think": text,
                    "observation": text,
                    "prediction": text + "!",
                    "actions": [text],
                }
            row["messages"] = [{"role": HOSTILE, "content": text}]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (path / "ppo" / "config.yaml").write_text(json.dumps({"name": HOSTILE, HOSTILE: 1}))
    (path / "summary.json").write_text(json.dumps({"versions": {HOSTILE: HOSTILE}}))
    return path


def test_two_runs_beside_each_other(demo: Path, three_seeds: Path):
    report = build([open_run(demo), open_run(three_seeds)])
    labels = {row.label for row in report.rows if "longer" not in row.label}
    assert labels == {"SPA (demo)", "vanilla (demo)", "SPA (three)", "vanilla (three)"}
    assert "ctx_manager.mode" in dict(
        report.differences
    ) and "trainer.total_training_steps" not in dict(report.differences)


def test_the_command_writes_the_file_and_says_the_result(demo: Path, tmp_path: Path, capsys):
    path = tmp_path / "out.html"
    assert execute(["report", str(demo), "--output", str(path)]) == 0
    verdict, place = capsys.readouterr().out.splitlines()
    assert verdict.startswith("SPA wins. SPA solves") and place == str(path)
    assert path.stat().st_size < 10_000_000


def test_the_report_of_two_runs_does_not_overwrite_that_of_the_first(demo: Path, tmp_path: Path):
    first, second = tmp_path / "first", tmp_path / "second"
    for run in (first, second):
        shutil.copytree(demo, run)
    (first / "report.md").write_text("of the first run alone")
    assert execute(["report", str(first), str(second), "--format", "md"]) == 0
    assert (first / "report.md").read_text() == "of the first run alone"
    assert "second" in (first / "report-with-second.md").read_text()


def test_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib")
    write_stage(tmp_path / "run" / "ppo", arm="x", seed=1, steps=1, puzzles=2)
    write_report([tmp_path / "run"], tmp_path / "out.png", "png")
    assert (tmp_path / "out.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_run_with_a_summary_only(tmp_path: Path):
    methods = {
        "vanilla": {"after": {"pass@1": 0.25}},
        "spa": {"before": {"pass@1": 0.2}, "after": {"pass@1": 0.5}},
    }
    (tmp_path / "summary.json").write_text(json.dumps({"methods": methods}))
    assert build([open_run(tmp_path)]).verdict.startswith(
        "SPA solves 50 % of held-out puzzles at the first try, and vanilla solves 25 %"
    )


def test_whether_a_run_goes_on_does_not_depend_on_clocks(tmp_path: Path):
    """The last step was logged an hour from now, or ten years ago."""
    now = 1_800_000_000.0
    for name, logged in (("ahead", now + 3600), ("behind", now - 3e8)):
        stage = tmp_path / name / "ppo"
        write_stage(stage, arm="x", seed=1, steps=6)
        rows = [
            {"step": step, "elapsed_s": 20.0, "unix_time": logged - 1e6 * step}
            for step in (1, 2, 3)
        ]
        (stage / "timings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        metrics = stage / "metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    assert [line.state.partition(":")[0] for line in list_runs(tmp_path, now)] == [
        "stopped",
        "stopped",
    ]
    with run_lock(tmp_path / "ahead" / "ppo"), run_lock(tmp_path / "behind"):
        lines = list(list_runs(tmp_path, now))
    assert [line.state.partition(":")[0] for line in lines] == ["running", "running"]
    assert [line.duration for line in lines] == ["1:00", "1:00"]
    assert [line.state.partition(":")[0] for line in list_runs(tmp_path, now)] == [
        "stopped",
        "stopped",
    ]


def test_metrics_of_several_environments_are_averaged(tmp_path: Path):
    stage = tmp_path / "run" / "ppo"
    stage.mkdir(parents=True)
    rows = [
        {"step": 0, f"val-env/{TAG}/pass@1": 0.2, "val-env/Other/pass@1": 0.4},
        {"step": 5, f"val-env/{TAG}/pass@1": 0.6},
    ]
    (stage / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = build([open_run(tmp_path / "run")]).sections[0].charts[0].series[0].points
    assert points == ((0.0, pytest.approx(0.3)), (5.0, 0.6))
    # A table counts every puzzle once, so a chart counts every episode once.
    rows[0] |= {f"val-env/{TAG}/episodes": 30.0, "val-env/Other/episodes": 10.0}
    (stage / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    points = build([open_run(tmp_path / "run")]).sections[0].charts[0].series[0].points
    assert points[0][1] == pytest.approx(0.25)
    assert next(iter(list_runs(tmp_path, 0.0))).result == "so far: 25 → 60 %"
