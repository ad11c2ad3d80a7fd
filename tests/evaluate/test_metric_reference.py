"""Every key that training writes has a record, and docs/metrics.md prints the records."""

import json
from pathlib import Path

import pytest
from helpers.tiny_preset import SMALL

from spa.config.load import load_config
from spa.evaluate.metric_reference import PAGE, find_metric, metrics_page
from spa.evaluate.metric_tables import GROUPS
from spa.planning.written_search import SearchScore, search_metrics
from spa.recipes import pipeline

DOCS = Path(__file__).parents[2] / "docs"
ALL_LOSSES = (
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=true",
    "algorithm.kl_ctrl.kl_coef=0.01",
    "actor_rollout_ref.actor.use_kl_loss=true",
    "actor_rollout_ref.actor.kl_loss_coef=0.01",
    "actor_rollout_ref.actor.replay.rows=2",
)
"""With the world loss of `tiny`, every term that PPO can log."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> set[str]:
    """Keys of all three stages of the preset `tiny`, shortened."""
    run = tmp_path_factory.mktemp("metrics")
    short = [f"{key}={json.dumps(value)}" for key, value in SMALL.items()]
    pipeline.run(load_config("tiny", [*short, *ALL_LOSSES, f"trainer.run_dir={run}"]))
    files = [path for path in run.glob("*/*.jsonl") if path.name in ("metrics.jsonl", "timings.jsonl")]
    assert len(files) == 6
    return {key for path in files for line in path.read_text().splitlines() for key in json.loads(line)}


def test_every_recorded_key_has_a_record(recorded):
    assert {key for key in recorded if find_metric(key) is None} == set()
    assert {"actor/world_loss", "critic/vf_explained_var", "val/loss", "selfplay/wm/pred_exact"} <= recorded


def test_every_key_of_a_written_search_has_a_record():
    keys = {f"val-env/FrozenLake/{key}" for key in search_metrics([SearchScore()])}
    assert {key for key in keys if find_metric(key) is None} == set()


def test_an_unknown_key_has_no_record():
    assert find_metric("actor/unheard_of") is None
    assert find_metric("train/FrozenLake/wm/unheard_of") is None


def test_no_record_is_written_twice():
    patterns = [pattern for group in GROUPS for metric in group.metrics for pattern in group.patterns(metric)]
    assert len(patterns) == len(set(patterns))


def test_the_page_is_up_to_date():
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    assert text == metrics_page(), "run: python -m spa.evaluate.metric_reference docs"
