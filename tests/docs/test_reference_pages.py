"""The page of metrics has every key that training writes; docs/formats.md every file, column and field."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from helpers.tiny_preset import SMALL
from metric_reference import find_metric

import spa
from spa.config.load import load_config
from spa.formats.base import SearchScore, search_metrics
from spa.recipes import evaluate, pipeline
from spa.recipes.policies import find_target
from spa.types import Episode, ParsedResponse, Turn
from spa.worldmodel.columns import COLUMNS
from spa.worldmodel.parquet import IMAGES, SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
FORMATS = (DOCS / "formats.md").read_text(encoding="utf-8")
ALL_LOSSES = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.kl_coef=0.01",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
    "actor_rollout_ref.actor.replay.examples=2",
)
"""With the world loss of `tiny`, every term that PPO can log."""


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with a run of all three stages of the preset `tiny`, shortened, where the pages say."""
    root = tmp_path_factory.mktemp("root")
    short = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]
    pipeline.run(
        load_config("tiny", [*short, *ALL_LOSSES, f"trainer.run_dir={root / 'runs/demo/spa'}"])
    )
    return root


def test_every_recorded_key_has_a_record(root):
    files = [path for path in root.rglob("*.jsonl") if path.parent.name in ("data", "sft", "ppo")]
    assert len(files) == 6
    recorded = {
        key for path in files for line in path.read_text().splitlines() for key in json.loads(line)
    }
    assert {key for key in recorded if find_metric(key) is None} == set()
    assert {
        "actor/world_loss",
        "critic/vf_explained_var",
        "val/loss",
        "selfplay/wm/prediction_em",
    } <= recorded


def test_the_api_page_generates_the_arguments_of_every_public_name():
    generated = re.findall(r"^::: spa\.\S+\.(\w+)$", (DOCS / "api.md").read_text(), re.M)
    assert set(generated) == {*spa.__all__} - {"__version__"}


def test_every_key_of_a_written_search_has_a_record():
    keys = {f"val-env/FrozenLake/{key}" for key in search_metrics([SearchScore()])}
    assert {key for key in keys if find_metric(key) is None} == set()


def test_the_formats_page_has_every_column_with_its_type():
    rows = re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", FORMATS.partition("## Episodes")[0], re.M
    )
    assert {name: meaning for name, _, meaning in rows} == COLUMNS
    for field, (name, kind, _) in zip([*SCHEMA, IMAGES], rows, strict=True):
        assert field.name == name
        assert (
            kind.startswith("list of")
            if str(field.type).startswith("list")
            else kind == str(field.type)
        )


@pytest.mark.parametrize(("section", "kind"), [("## Episodes", Episode), ("## Turns", Turn)])
def test_the_formats_page_has_every_field(section, kind):
    text = FORMATS.partition(section)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert rows == [field.name for field in fields(kind)]
    if kind is Turn:
        assert all(f"`{field.name}`" in text for field in fields(ParsedResponse))


def test_the_formats_page_names_every_file_of_a_run(root):
    run = root / "runs" / "demo" / "spa"
    names = {path.name for stage in ("data", "sft", "ppo") for path in (run / stage).iterdir()}
    shown = {
        re.sub(r"^global_step_\d+$", "global_step_N", name)
        for name in names
        if not name.startswith(".")
    }
    assert {name for name in shown if name not in FORMATS} == set()


def test_the_blocks_of_the_formats_page_run(root, monkeypatch, capsys):
    monkeypatch.chdir(root)
    for block in re.findall(r"```python\n(.*?)```", FORMATS, re.S):
        exec(block, {})
    assert len(capsys.readouterr().out.splitlines()) >= 2


def test_the_formats_page_has_every_field_of_an_evaluation(root):
    run = root / "runs" / "demo" / "spa"
    cfg = load_config(
        "tiny", ["es_manager.val.env_groups=2", "es_manager.val.group_size=2", "trainer.device=cpu"]
    )
    result = evaluate.evaluate_target(cfg, find_target(str(run / "ppo")), output=root / "eval.json")
    text = FORMATS.partition("## Evaluation results")[2]
    for key in {key for tag in result["tags"].values() for key in tag} | {
        "tags",
        "not_computed",
        "versions",
    }:
        assert f"`{re.sub(r'^pass@[0-9]+$', 'pass@K', key)}`" in text
