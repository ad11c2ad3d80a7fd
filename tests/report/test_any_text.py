"""Whatever text a run holds, pages, Markdown and the console show it as text: nothing in it is markup or a command."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_fixtures import write_stage
from rich.console import Console

from spa import tables
from spa.cli import execute
from spa.run import progress
from spa.run.console import printable
from spa_report import charts
from spa_report.build import html, template
from spa_report.content import build
from spa_report.reading import open_run
from spa_report.replay import replay
from spa_report.security import script_json
from spa_report.text import markdown

SOURCES = [
    *Path(charts.__file__).parent.glob("*.py"),
    *Path(charts.__file__).parent.glob("templates/*.j2"),
    Path(tables.__file__),
]
UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
PIECES = st.sampled_from(
    ["<script>", "</script>", "<img src=x onerror=a()>", "</textarea>", "&lt;", "]]>", "<!--", "`", "```", "|", "**", "[a](b)",
     "{{ 1 }}", "\x1b[2J", "\x9b31m", "\u202e", "\ud800", "\r", "\n", "[/bold]", "[red]", "#", "\\", "'", '"', "</pre>"]
)  # fmt: skip
TEXTS = st.lists(
    PIECES | st.text(st.characters(exclude_categories=()), max_size=8), max_size=6
).map("".join)


class Tags(HTMLParser):
    """Names of elements and attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.names |= {tag, *(f"{tag}.{name}" for name, _ in attrs)}

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run; tests put texts into its files."""
    run = tmp_path_factory.mktemp("any") / "run"
    write_stage(run / "ppo", arm="x", seed=1, steps=1, puzzles=2)
    for path in (run / "ppo" / "trajectories").glob("train-*.jsonl"):
        path.unlink()
    return run


def fill(run: Path, text: str) -> None:
    """`text` wherever a model, an environment or a configuration could have put it."""
    for path in (run / "ppo" / "trajectories").glob("val-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            row |= {"episode_id": text, "tag": text, "error": text}
            row["messages"] = [{"role": text, "content": text}]
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
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (run / "ppo" / "config.yaml").write_text(
        json.dumps({"model_path": text, "name": text}), encoding="utf-8"
    )
    (run / "summary.json").write_text(json.dumps({"versions": {"key": text}}), encoding="utf-8")


ELEMENTS = set(re.findall(r"<([a-z]+\d?)", "".join(path.read_text() for path in SOURCES)))
"""What our own templates write."""
SLOW = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SLOW
@given(TEXTS)
def test_report_and_markdown(written: Path, text: str):
    fill(written, text)
    report = build([open_run(written)])
    page = html(report)
    page.encode("utf-8")
    assert not UNSAFE.search(page)
    tags = Tags(page)
    assert {name for name in tags.names if "." not in name} <= ELEMENTS
    assert re.findall("<script>(.*?)</script>", page, re.S) == [
        template("uplot.js"),
        template("charts.js"),
    ]
    assert not {name for name in tags.names if re.search(r"\.(on|style|src|action)", name)}
    if text.strip():
        assert "".join(printable(text).split()) in "".join(tags.text.split())
    plain = markdown(report)
    plain.encode("utf-8")
    assert not UNSAFE.search(plain)
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", plain, flags=re.S | re.M)
    assert not re.search(r"(?<!\\)(?:\\\\)*[<`\[]", outside)


@given(TEXTS)
def test_replays_and_embedded_data(text: str):
    turn = {
        "state": text,
        "next_state": text,
        "response_text": text,
        "executed": [text],
        "infos": [],
        "reward": 0.0,
    }
    turn |= {
        "penalty": 0.0,
        "response": {"think": text, "observation": text, "prediction": text, "actions": [text]},
    }
    view = replay(
        {
            "episode_id": text,
            "tag": text,
            "stop": text,
            "error": text,
            "turns": [turn],
            "messages": [],
        }
    )
    embedded = script_json(view)
    assert json.loads(embedded) == view
    assert not set("<>&") & set(embedded)
    assert not UNSAFE.search(json.dumps(view, ensure_ascii=False).replace("\\n", ""))


@given(TEXTS)
def test_printable_text(text: str):
    shown = printable(text)
    assert not UNSAFE.search(shown)
    assert printable(shown) == shown
    assert printable("plain\ttext\n") == "plain\ttext\n"


@given(TEXTS, TEXTS)
def test_progress_lines(name: str, value: str):
    screen = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(progress, "get_console", lambda: Console(file=screen, width=400))
        patch.setattr(progress, "is_quiet", lambda: False)
        with progress.ProgressLine(name, total=1) as bar:
            bar.update(1, {name: value})
    line = screen.getvalue()
    line.encode("utf-8")
    assert not UNSAFE.search(line)
    assert "".join(printable(value).split()) in "".join(line.split()) and "step 1/1" in line


@pytest.mark.parametrize("name", ["\x1b[2Jrun", "[red]run", "\u202erun", "<b>"])
def test_the_table_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str):
    write_stage(tmp_path / name / name / "ppo", arm="x", seed=1, steps=1, puzzles=1)
    assert execute(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert printable(name) in out and not UNSAFE.search(out)
