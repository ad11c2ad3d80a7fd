"""The viewer of a folder of runs: the list, comparisons, groups, full-text search, trees and examples of stage 1."""

import http.client
import json
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
from report_fixtures import play, write_stage

from spa.envs.frozen_lake import FrozenLake
from spa.formats.search import breadth_first, explore, write_search
from spa.types import SFTExample
from spa.worldmodel.parquet import write_parquet
from spa_report.content import build
from spa_report.examples import examples
from spa_report.index import EpisodeIndex
from spa_report.reading import is_run, open_run
from spa_report.replay import replay, written_search
from spa_report.viewer import HOST, Library, Viewer, export, serve


@pytest.fixture(scope="module")
def folder(demo: Path, three_seeds: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished comparisons, an unfinished run, a broken one and something else."""
    runs = tmp_path_factory.mktemp("library") / "runs"
    shutil.copytree(demo, runs / "demo")
    shutil.copytree(three_seeds, runs / "three")
    write_stage(runs / "half" / "ppo", arm="x", seed=1, steps=6)
    metrics = runs / "half" / "ppo" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:4]))
    (runs / "broken").mkdir()
    (runs / "broken" / "summary.json").write_text("{")
    (runs / "notes").mkdir()
    return runs


@pytest.fixture(scope="module")
def ask(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A function that asks a server of the folder: (path, *pairs of the query) -> (status, JSON or text)."""
    library = Library(folder, caches=tmp_path_factory.mktemp("caches"))
    for name in ("demo", "three", "half"):
        library.viewer(name)
    library.update()
    server = serve(library, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def asked(path: str, *pairs: tuple[str, Any]) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(HOST, server.server_address[1], timeout=30)
        connection.request("GET", f"{path}?{urlencode([*pairs, ('token', server.token)])}")
        answer = connection.getresponse()
        text = answer.read().decode()
        return answer.status, json.loads(text) if answer.status == 200 else text

    yield asked
    server.shutdown()
    server.server_close()


def test_the_list_names_state_and_success_of_every_method(ask: Any, folder: Path):
    status, found = ask("/api/runs")
    runs = {run["key"]: run for run in found["runs"]}
    assert (
        status == 200 and not found["single"] and set(runs) == {"demo", "three", "half", "broken"}
    )
    assert (
        runs["broken"]["state"] == "unreadable"
        and runs["half"]["state"] == "running: ppo step 3 of 6"
    )
    assert [method["label"] for method in runs["demo"]["methods"]] == ["SPA", "vanilla"]
    spa = runs["demo"]["methods"][0]
    won = [
        json.loads(line)["success"]
        for line in (folder / "demo/spa/ppo/trajectories/val-000010.jsonl").open()
    ]
    assert spa["state"] == "finished" and spa["interval"]["mean"] == pytest.approx(np.mean(won))
    assert (
        spa["before_interval"]["low"]
        <= spa["before_interval"]["mean"]
        <= spa["before_interval"]["high"]
    )
    assert (runs["demo"]["commit"], runs["half"]["commit"]) == ("0123456789abcdef", "")
    assert runs["half"]["methods"][0]["state"] == "running: ppo step 3 of 6"


def test_runs_are_compared_on_the_same_axes_with_the_paired_difference(ask: Any, demo: Path):
    _, one = ask("/api/report", ("run", "demo"))
    lead = json.loads((demo / "summary.json").read_text())["difference"]["vanilla"]["mean"]
    assert one["rows"][1]["lead"]["mean"] == pytest.approx(lead)
    _, both = ask("/api/report", ("run", "demo"), ("run", "three"))
    curves = both["sections"][0]["charts"][0]["series"]
    assert {line["label"] for line in curves} == {
        "SPA (demo)",
        "vanilla (demo)",
        "SPA (three)",
        "vanilla (three)",
    }
    assert both["differences"] and both["gallery"] == []


@pytest.mark.parametrize(
    "path", ["/api/info", "/api/report", "/api/episodes", "/api/examples", "/api/episode/1"]
)
def test_runs_that_are_not_there_are_not_found_and_broken_ones_say_so(ask: Any, path: str):
    for name in ("../runs/demo", "missing", "notes/../demo", ""):
        assert ask(path, ("run", name))[0] == 404
    assert ask(path)[0] == 404  # which of them?


def test_a_broken_run_is_called_so(ask: Any):
    status, text = ask("/api/report", ("run", "broken"))
    assert (
        status == 500 and "Cannot read the run" in text and "summary.json is not valid JSON" in text
    )


def test_one_begins_with_the_last_validation_of_the_main_method(ask: Any):
    _, info = ask("/api/info", ("run", "demo"))
    assert info["first"] == {"arm": "spa", "stage": "ppo", "split": "val", "step": "10"}


def test_an_episode_has_its_group_with_rewards_and_advantages(ask: Any):
    filters = (("arm", "spa"), ("split", "val"), ("step", "10"), ("limit", "1"), ("run", "demo"))
    row = ask("/api/episodes", *filters)[1]["episodes"][0]
    team = ask(f"/api/episode/{row['id']}", ("run", "demo"))[1]["team"]
    assert [member["member"] for member in team] == [0, 1]
    assert {member["episode"].rpartition("/")[0] for member in team} == {
        row["episode"].rpartition("/")[0]
    }
    assert [member["advantage"] for member in team] == [None, None]  # validation has none
    train = ask("/api/episodes", ("split", "train"), ("limit", "1"), ("run", "demo"))[1][
        "episodes"
    ][0]
    (alone,) = ask(f"/api/episode/{train['id']}", ("run", "demo"))[1]["team"]
    assert isinstance(alone["advantage"], float)


def test_episodes_are_found_by_their_words(demo: Path, tmp_path: Path):
    run = shutil.copytree(demo / "spa", tmp_path / "run")
    file = run / "ppo" / "trajectories" / "val-000010.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[3]["turns"][0]["response_text"] += ' A raven, Grüße "quoted" OR NOT (x'
    rows[4] |= {"stop": "error", "error": "CUDA exploded in worker 3"}
    file.write_text("".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows))
    index = EpisodeIndex(run, cache=tmp_path / "index.sqlite")
    index.update()
    for words in ("raven grüße", "RAVEN, Gr", 'raven, Grüße "quoted" OR NOT (x', "quoted or not"):
        (found,) = index.page({"q": words})["episodes"]
        assert found["episode"] == rows[3]["episode_id"]
    (failed,) = index.page({"q": "exploded in worker"})["episodes"]
    assert failed["episode"] == rows[4]["episode_id"]
    for words in ("grüße raven", '"', "*", "raven AND quoted", "\0"):
        assert index.page({"q": words})["total"] == 0
    file.unlink()  # what was found is found no more
    index.update()
    assert index.page({"q": "raven"})["total"] == 0


def test_written_searches_are_read_as_trees():
    game = FrozenLake(is_slippery=False)
    game.reset(seed=4)
    true, _ = explore(game)
    search = breadth_first(next(iter(true)), lambda key: true[key])
    lines = written_search("search", "Let me see.\n" + write_search(search), game.action_names())
    assert [line["key"] for line in lines] == [line.key for line in search.lines]
    assert lines[0]["moves"] == [
        [move.action, move.key, move.status] for move in search.lines[0].moves
    ]
    assert written_search("search", "Let me see: go on", game.action_names()) == []


def test_what_a_planner_imagined_belongs_to_its_turn(demo: Path, tmp_path: Path):
    run = shutil.copytree(demo / "spa", tmp_path / "run")
    folder = run / "ppo" / "imagined"
    folder.mkdir()
    part = {"actions": ["Up"], "state": None, "worth": -2.0, "right": False, "root": 0, "depth": 1}
    lines = [
        {
            "episode_id": "val/10/0/0",
            "turn": 0,
            "chosen": 1,
            "imagined": [part, {**part, "root": 1, "worth": 1}],
        }
    ]
    lines += [{**lines[0], "episode_id": "val/10/0/1"}, {"episode_id": "val/10/0/0", "turn": "x"}]
    (folder / "000010.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    library = Library(run, caches=tmp_path)
    library.update()
    viewer = library.viewer("run")
    assert viewer is not None
    number = viewer.page({"q": "val/10/0/0"})["episodes"][0]["id"]
    view = viewer.episode(number)
    assert view is not None
    assert [(node["value"], node["chosen"]) for node in view["turns"][0]["imagined"]] == [
        (-2.0, False),
        (1, True),
    ]
    assert all(turn["imagined"] is None for turn in view["turns"][1:])


def an_episode() -> dict[str, Any]:
    story = play(
        np.random.Generator(np.random.PCG64(3)),
        puzzle=5,
        skill=0.3,
        foresight=0.5,
        world_model=True,
        episode_id="x",
    )
    return json.loads(json.dumps(story.to_json()))


def test_symbols_are_those_of_the_legend_and_of_sentences_that_place_them():
    prompt = "Symbols: # wall, O target, √ box on target, P player.\nRight (R): YB BR"
    state = "Player (P) is at (1,1) on a target; boxes on targets (√) are at (2,1) (2,2)."
    episode = an_episode()
    for message in episode["messages"]:
        message["content"] = prompt
    for turn in episode["turns"]:
        turn |= {"state": state, "next_state": state}
    assert replay(episode)["symbols"] == {
        "#": "wall",
        "O": "target",
        "√": "boxes on targets",
        "P": "player",
    }


@pytest.mark.parametrize(
    ("loss_on", "marked"),
    [
        (
            "response",
            "<think><observation>A</observation>t<prediction>B</prediction></think><answer>Up</answer>",
        ),
        (
            "act_obs",
            "<think><observation>A</observation>t<prediction>B</prediction></think><answer>Up</answer>",
        ),
        ("states_only", "AB"),
        ("'mine:mask'", ""),
        (
            "no_states",
            "<think><observation></observation>t<prediction></prediction></think><answer>Up</answer>",
        ),
    ],
)
def test_examples_show_which_text_carries_loss(tmp_path: Path, loss_on: str, marked: str):
    response = (
        "<think><observation>A</observation>t<prediction>B</prediction></think><answer>Up</answer>"
    )
    sft_example = SFTExample(
        prompt=({"role": "user", "content": "<b>"},), response=response, tag="x", episode_id="selfplay/0", turn=1,
        puzzle_seed=1, puzzle_hash="a", success=True, reward=1.0, state="A", next_state="B", executed=("Up",),
    )  # fmt: skip
    for stage in ("data", "sft"):
        (tmp_path / "run" / stage).mkdir(parents=True)
        (tmp_path / "run" / stage / "metrics.jsonl").write_text("")
    write_parquet(tmp_path / "run" / "data" / "wm_train.parquet", [sft_example] * 25)
    (tmp_path / "run" / "sft" / "config.yaml").write_text(f"sft: {{data: {{loss_on: {loss_on}}}}}")
    run = open_run(tmp_path / "run")
    found = examples(run, 0, 20)
    assert (found["files"], found["total"], len(found["examples"])) == (["data, train"], 25, 5)
    example = found["examples"][0]
    assert "".join(text for text, trained in example["response"] if trained) == marked
    assert "".join(text for text, _ in example["response"]) == response
    assert example["messages"] == [["user", "<b>"]] and example["name"] == "selfplay/0, turn 2"
    assert examples(run, 7)["examples"] == []
    # An export offers only the examples that it holds.
    write_parquet(tmp_path / "run" / "data" / "wm_val.parquet", [sft_example] * 3)
    export(Viewer(run.path, cache_file=tmp_path / "index.sqlite"), tmp_path / "out.html")
    block = re.search(r'id="data">(.*?)</script>', (tmp_path / "out.html").read_text(), re.S)
    assert block
    held = json.loads(block[1])["examples"]
    assert (held["files"], held["total"], len(held["examples"])) == (["data, train"], 10, 10)


def test_a_link_of_the_gallery_opens_the_episode_of_its_seed(three_seeds: Path, tmp_path: Path):
    viewer = Viewer(three_seeds, cache_file=tmp_path / "index.sqlite")
    viewer.index.update()
    gallery = build([open_run(three_seeds)]).gallery
    assert gallery
    for picture in gallery:
        opened = viewer.episode(viewer.page(dict(parse_qsl(picture.link)))["episodes"][0]["id"])
        assert opened and opened["messages"] == picture.replay["messages"]


def test_a_run_and_a_folder_of_runs_are_told_apart(folder: Path, tmp_path: Path):
    assert (
        not is_run(folder)
        and is_run(folder / "demo")
        and is_run(folder / "three")
        and is_run(folder / "half")
    )
    assert is_run(folder / "half" / "ppo") and not is_run(tmp_path)
    (tmp_path / "eval").mkdir()
    assert is_run(tmp_path)
    (tmp_path / "demo" / "ppo").mkdir(parents=True)
    assert not is_run(tmp_path)


def test_a_report_follows_a_configuration_that_changes_alone(folder: Path, tmp_path: Path):
    run = shutil.copytree(folder / "half", tmp_path / "half")
    (run / "ppo" / "config.yaml").write_text("seed: 1\n")
    library = Library(tmp_path)
    first = library.report(["half"])
    (run / "ppo" / "config.yaml").write_text("seed: 2\n")
    second = library.report(["half"])
    assert first and [text for _, text in first.configs] == ["seed: 1\n"]
    assert second and [text for _, text in second.configs] == ["seed: 2\n"]
