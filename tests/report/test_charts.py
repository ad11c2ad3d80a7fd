"""Charts as data, and as files for papers: what matplotlib draws, and what happens without it."""

import json
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from report_fixtures import TAG, write_sft, write_stage

from spa.cli import main
from spa_report.charts import Chart, Series, thin
from spa_report.content import build
from spa_report.figures import save_chart
from spa_report.reading import open_run
from spa_report.usage import Budget, so_far


def test_a_chart_as_svg_is_legal_and_holds_names_as_text(tmp_path: Path):
    pytest.importorskip("matplotlib")
    series = Series("<b>&'\"$x$", ((0.0, 0.1), (5.0, 0.9)), ((0.0, 0.2), (0.8, 1.0)))
    path = tmp_path / "new" / "chart.svg"
    save_chart(Chart("T <x>", "help", (series,), percent=True), path)
    assert ET.parse(path).getroot().tag.endswith("svg")
    first = path.read_bytes()
    save_chart(Chart("T <x>", "help", (series,), percent=True), path)
    assert path.read_bytes() == first


@pytest.mark.parametrize(
    "points", [((3.0, 0.0),), ((0.0, 5.0), (1.0, 5.0)), ((0.0, -1e-9), (1.0, 1e9))]
)
def test_degenerate_data_is_drawn(tmp_path: Path, points):
    pytest.importorskip("matplotlib")
    save_chart(Chart("a", "b", (Series("s", points),)), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_one_seed_has_an_interval_over_puzzles_and_several_their_range(
    demo: Path, three_seeds: Path
):
    (one, *_), (several, *_) = (
        build([open_run(run)]).sections[0].charts for run in (demo, three_seeds)
    )
    assert (one.band, several.band) == ("95 % CI over puzzles", "range over seeds")
    for series in (*one.series, *several.series):
        assert len(series.bands) == len(series.points)
        assert all(
            low <= y <= high
            for (_, y), (low, high) in zip(series.points, series.bands, strict=True)
        )
    rows = build([open_run(demo)]).rows
    assert rows[0].interval is not None
    assert one.series[0].bands[-1] == (rows[0].interval.low, rows[0].interval.high)


def test_the_x_axis_can_count_what_was_sampled(demo: Path, tmp_path: Path):
    """Two self-play episodes of 10 tokens, then 4 episodes a step of 40 + step tokens."""
    run = shutil.copytree(demo, tmp_path / "run")
    for arm in ("spa", "vanilla"):
        path = run / arm / "ppo" / "metrics.jsonl"
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows[1:]:
            row |= {
                f"train/{TAG}/episodes": 4.0,
                f"train/{TAG}/response_length": 40.0 + row["step"],
            }
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = run / "spa" / "data"
    data.mkdir()
    (data / "metrics.jsonl").write_text(
        '{"step": 1, "selfplay/episodes": 2, "selfplay/response_length": 10}\n'
    )
    played = {"episodes": 2.0, "num_actions": 3.0, "response_length": 10.0}

    def drawn(**summary: object) -> Series:
        (data / "summary.json").write_text(json.dumps({"played": played} | summary))
        return build([open_run(run)]).sections[0].charts[0].series[0]

    spa = drawn()
    vanilla = build([open_run(run)]).sections[0].charts[0].series[1]
    assert [x for x, _ in spa.points] == [0, 5, 10]
    assert spa.episodes == (2, 22, 42) and vanilla.episodes == (0, 20, 40)
    assert spa.tokens == (20, 20 + 4 * (41 + 42 + 43 + 44 + 45), 20 + 4 * sum(range(41, 51)))
    # A planner sampled 300 tokens an episode, of which the episodes show 10.
    planned = drawn(imagination={"tokens_per_episode": 300.0})
    assert planned.tokens[0] == 600 and planned.episodes == spa.episodes
    # Single moves that the model was asked for, to write searches of them, are in no episode.
    assert drawn(search={"tokens": 70}).tokens[0] == 90
    # Half of the turns of half of the episodes were the model's own.
    mixture = {"generate": {"mixture": {"self": 1, "expert": 1}, "epsilon": 0.5}}
    (data / "config.yaml").write_text(json.dumps(mixture))
    assert drawn().tokens[0] == 5


def test_self_play_of_a_seed_without_ppo_does_not_move_the_others(tmp_path: Path):
    stages = [tmp_path / "run" / f"seed_{seed}" / "spa" for seed in (0, 1)]
    for stage in stages:
        (stage / "data").mkdir(parents=True)
        (stage / "data" / "metrics.jsonl").write_text('{"step": 1}\n')
        played = {"episodes": 2.0, "num_actions": 3.0, "response_length": 10.0}
        (stage / "data" / "summary.json").write_text(json.dumps({"played": played}))
    write_stage(stages[0] / "ppo", arm="spa", seed=0, steps=5)
    (series,) = build([open_run(tmp_path / "run")]).sections[0].charts[0].series
    assert series.episodes[0] == 2 and series.tokens[0] == 20


def test_long_series_are_thinned_but_keep_their_ends():
    keep = thin([(float(x), 0.0) for x in range(10_000)])
    assert keep[0] == 0 and keep[-1] == 9_999 and len(keep) <= 300


def test_the_command_writes_every_chart_as_png_and_svg(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib")
    run = tmp_path / "run"
    write_sft(run / "sft", seed=1)
    words = ["report", str(run), "--output", str(tmp_path / "report.html")]
    assert main([*words, "--figures", str(tmp_path / "figures")]) == 0
    charts = [chart for section in build([open_run(run)]).sections for chart in section.charts]
    files = sorted((tmp_path / "figures").iterdir())
    assert len(files) == 2 * len(charts) > 2 and files[0].name == (
        "01-exact-predictions-during-fine-tuning.png"
    )
    assert [Path(line) for line in capsys.readouterr().out.splitlines()[2:]] == files


def test_a_tag_with_a_slash_has_its_episodes_counted(tmp_path: Path):
    used = {"episodes": 16.0, "num_actions": 5.0, "response_length": 40.0, "format_rate": 0.9}
    metrics = {f"train/ALE/Lake/{name}": value for name, value in used.items()}
    assert so_far(Budget(), [(1, metrics)])[1] == Budget(80.0, 640.0, 16.0)
    metrics |= {"val-env/ALE/Lake/pass@1": 1.0, "val-env/ALE/Lake/episodes": 1.0}
    metrics |= {"val-env/B/pass@1": 0.0, "val-env/B/episodes": 99.0}
    write_stage(tmp_path / "ppo", arm="", seed=0)
    (tmp_path / "ppo" / "metrics.jsonl").write_text(json.dumps({"step": 10} | metrics) + "\n")
    report = build([open_run(tmp_path)])
    ends = {
        chart.title: chart.series[0].points[-1][1]
        for section in report.sections
        for chart in section.charts
    }
    assert ends["Well-formed responses"] == 0.9
    assert ends["Pass@1"] == pytest.approx(0.01)
