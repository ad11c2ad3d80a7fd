"""The viewer's index: filters, paging, files that grow, files that are broken."""

import json
import re
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spa_report.index import EpisodeIndex, read_episode


@pytest.fixture
def index(demo: Path, tmp_path: Path) -> EpisodeIndex:
    made = EpisodeIndex(demo, cache=tmp_path / "index.sqlite")
    assert made.update() is True
    return made


def every_episode(run: Path) -> list[dict]:
    return [
        json.loads(line) for path in run.glob("**/trajectories/*.jsonl") for line in path.open()
    ]


def test_every_episode_is_listed_once(index: EpisodeIndex, demo: Path):
    truth = every_episode(demo)
    page = index.page({}, limit=500)
    assert page["total"] == len(truth)
    assert sorted(row["episode"] for row in page["episodes"]) == sorted(
        row["episode_id"] for row in truth
    )


def test_filters_agree_with_the_episodes(index: EpisodeIndex, demo: Path):
    truth = every_episode(demo / "spa")
    won = [row for row in truth if row["success"] and row["episode_id"].startswith("val/10/")]
    filters = {"arm": "spa", "split": "val", "step": "10", "success": "1"}
    assert index.page(filters)["total"] == len(won) > 0
    malformed = [
        row for row in truth if not all(turn["response"]["well_formed"] for turn in row["turns"])
    ]
    assert index.page({"arm": "spa", "malformed": "1"})["total"] == len(malformed) > 0
    assert index.page({"arm": "vanilla", "wrong": "1"})["total"] == 0  # makes no predictions
    assert index.page({"q": "VAL/10/3"})["total"] == 4


def test_pages_do_not_overlap(index: EpisodeIndex):
    first, second = (index.page({}, offset=offset, limit=50)["episodes"] for offset in (0, 50))
    assert len(first) == len(second) == 50
    assert not {row["id"] for row in first} & {row["id"] for row in second}


def test_order_by_score(index: EpisodeIndex):
    scores = [row["score"] for row in index.page({}, order="-score", limit=500)["episodes"]]
    assert scores == sorted(scores, reverse=True)
    assert index.page({}, order="id; DROP TABLE episodes")["total"] > 0


def test_an_episode_is_found_in_its_file(index: EpisodeIndex):
    for row in index.page({"split": "train"}, limit=20, offset=7)["episodes"]:
        place = index.place(row["id"])
        assert place is not None
        episode = read_episode(place)
        assert episode is not None and episode["episode_id"] == row["episode"]
    assert index.place(10**9) is None


def test_nothing_new_is_nothing_to_do_and_a_second_index_uses_the_cache(
    index: EpisodeIndex, demo: Path, tmp_path: Path
):
    assert index.update() is False
    again = EpisodeIndex(demo, cache=tmp_path / "index.sqlite")
    assert again.update() is False
    assert again.page({})["total"] == index.page({})["total"]


def test_files_that_grow_appear_and_disappear(demo: Path, tmp_path: Path):
    run = tmp_path / "run"
    shutil.copytree(demo / "spa", run)
    index = EpisodeIndex(run, cache=tmp_path / "index.sqlite")
    index.update()
    before = index.page({})["total"]
    file = run / "ppo" / "trajectories" / "train-000001.jsonl"
    line = file.read_bytes().splitlines(keepends=True)[0]
    with file.open("ab") as out:
        out.write(line)
    assert index.update() is True
    assert index.page({})["total"] == before + 1
    file.unlink()
    assert index.update() is True
    assert index.page({})["total"] == before - 4


def test_broken_lines_are_listed_as_unreadable(tmp_path: Path):
    folder = tmp_path / "run" / "ppo" / "trajectories"
    folder.mkdir(parents=True)
    lines = [
        b"{}\n",
        b"not json\n",
        b'{"turns": 3}\n',
        b'{"turns": [{}]}\n',
        b"[1]\n",
        b"\xff\xfe\n",
        b'{"episode_id": "cut',
    ]
    (folder / "val-000001.jsonl").write_bytes(b"".join(lines))
    index = EpisodeIndex(tmp_path / "run", cache=tmp_path / "index.sqlite")
    index.update()
    page = index.page({})
    assert page["total"] == len(lines)
    assert {row["episode"] for row in page["episodes"]} == {"unreadable"}


def test_a_broken_cache_is_made_anew(demo: Path, tmp_path: Path):
    cache = tmp_path / "index.sqlite"
    cache.write_bytes(b"not a database" * 100)
    index = EpisodeIndex(demo, cache=cache)
    index.update()
    assert index.page({})["total"] > 0


def test_keys_inside_texts_do_not_confuse_the_reader(demo: Path, tmp_path: Path):
    run = tmp_path / "run" / "ppo" / "trajectories"
    run.mkdir(parents=True)
    episode = json.loads(
        next((demo / "spa" / "ppo" / "trajectories").glob("val-*.jsonl"))
        .read_text()
        .splitlines()[0]
    )
    episode["turns"][0]["response_text"] = ',"messages":[ "turns":'
    (run / "val-000001.jsonl").write_text(json.dumps(episode, separators=(",", ":")) + "\n")
    index = EpisodeIndex(tmp_path / "run", cache=tmp_path / "index.sqlite")
    index.update()
    row = index.page({})["episodes"][0]
    assert row["episode"] == episode["episode_id"] and row["turns"] == len(episode["turns"])


@pytest.mark.parametrize("reward", ["NaN", "1" + 400 * "0", "1e999", "true"])
def test_an_odd_number_is_one_unreadable_line_and_the_files_after_it_are_read(
    demo: Path, tmp_path: Path, reward: str
):
    run = shutil.copytree(demo, tmp_path / "run")
    files = sorted((run / "spa" / "ppo" / "trajectories").glob("val-*.jsonl"))
    first, rest = files[1].read_text().split("\n", 1)
    files[1].write_text(
        re.sub(r'"reward":[-0-9.e]+', f'"reward":{reward}', first, count=1) + "\n" + rest
    )
    made = EpisodeIndex(run, cache=tmp_path / "index.sqlite")
    made.update()
    page = made.page({"arm": "spa", "split": "val"}, limit=500)
    assert page["total"] == sum(len(file.read_text().splitlines()) for file in files)
    assert [row["episode"] for row in page["episodes"]].count("unreadable") == (reward != "true")
    json.dumps(page, allow_nan=False)


def test_an_index_whose_file_was_removed_is_made_again(demo: Path, tmp_path: Path):
    cache = tmp_path / "index.sqlite"
    made = EpisodeIndex(demo, cache=cache)
    made.update()
    total = made.page({})["total"]
    for file in tmp_path.glob("index.sqlite*"):
        file.unlink()
    with ThreadPoolExecutor(1) as reader:  # a thread that opens its connection too early
        assert isinstance(reader.submit(made.page, {}).exception(), sqlite3.OperationalError)
        assert made.update()
        assert reader.submit(made.page, {}).result()["total"] == total
    assert not made.update()


def test_a_damaged_index_is_made_again(demo: Path, tmp_path: Path):
    cache = tmp_path / "index.sqlite"
    made = EpisodeIndex(demo, cache=cache)
    made.update()
    total = made.page({})["total"]
    made._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    made._db.close()
    content = bytearray(cache.read_bytes())
    content[4096 * 5 : 4096 * 6] = bytes(4096)
    cache.write_bytes(content)
    again = EpisodeIndex(demo, cache=cache)
    again.update()
    assert again.page({}, limit=500)["total"] == total
