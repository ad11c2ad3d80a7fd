"""Comparing the results of two commits, and the names that changed between them."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def golden(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "tools")
    return importlib.import_module("golden_compare")


def metrics() -> dict[str, float]:
    return {
        "step": 1,
        "actor/loss": 0.25,
        "critic/vf_explained": float("nan"),
        "val/Lake/wm/pred_exact": 0.5,
    }


def test_equal_results_have_no_difference(golden):
    weights = {"layer": torch.tensor([0.0, float("nan")], dtype=torch.bfloat16)}
    copy = {"layer": weights["layer"].clone()}
    assert golden.difference([metrics(), weights], [metrics(), copy]) is None


def test_times_and_throughput_are_left_out(golden):
    names = golden.Names.read("")["metrics"]
    timed = metrics() | {"timing_s/rollout": 1.5, "perf/throughput": 90.0, "elapsed_s": 3.0}
    assert golden.canonical_metrics(timed, names).keys() == metrics().keys()


def test_the_first_differing_value_is_named_with_both_values(golden):
    found = golden.difference(
        [metrics()], [metrics() | {"actor/loss": 0.5}], path="ppo/metrics.jsonl"
    )
    assert found == "ppo/metrics.jsonl[0]: actor/loss: 0.25 in BASE, 0.5 here"


@pytest.mark.parametrize(
    ("base", "tree"), [(0.0, -0.0), (1, 1.0), (1, True), (0.1, 0.1 + 2**-56), (float("nan"), 0.0)]
)
def test_numbers_are_compared_by_type_and_bits(golden, base, tree):
    assert golden.difference({"x": base}, {"x": tree})
    assert golden.difference(
        {"x": torch.tensor(base)}, {"x": torch.tensor(tree, dtype=torch.float64)}
    )


def test_one_bit_of_one_weight_is_a_difference(golden):
    weights = torch.zeros(2, 3)
    changed = weights.clone()
    changed[1, 0] = -0.0
    assert golden.difference({"w": weights}, {"w": changed}) == (
        "w[3]: 0.0 in BASE, -0.0 here (1 of 6 elements differ)"
    )


def test_long_texts_are_shown_where_they_part(golden):
    found = golden.difference({"text": "a" * 200 + "left"}, {"text": "a" * 200 + "right"})
    assert "left' in BASE" in found
    assert "right' here" in found


def test_missing_and_new_keys_are_differences_unless_they_are_listed(golden):
    less = {key: value for key, value in metrics().items() if key != "actor/loss"}
    assert golden.difference(metrics(), less) == "actor/loss: 0.25 in BASE, missing here"
    assert golden.difference(less, metrics()) == "actor/loss: missing in BASE, 0.25 here"
    assert golden.difference([1, 2], [1]) == ": 2 entries in BASE, 1 here"
    names = golden.Names.read("metrics: {removed: [actor/loss], added: [actor/loss]}")["metrics"]
    assert golden.difference(less, metrics(), names) is None
    assert golden.difference(golden.canonical_metrics(metrics(), names), less) is None


def test_renamed_metrics_match_anywhere_in_a_name(golden):
    names = golden.Names.read("metrics: {renamed: {wm/pred_exact: wm/prediction_em}}")["metrics"]
    renamed = golden.canonical_metrics(metrics(), names)
    assert "val/Lake/wm/prediction_em" in renamed
    assert (
        golden.difference(renamed, metrics())
        == "val/Lake/wm/prediction_em: 0.5 in BASE, missing here"
    )


def test_renamings_are_applied_in_their_order(golden):
    names = golden.Names.read("columns: {renamed: {value: state_value, worth: value, a: b, b: c}}")[
        "columns"
    ]
    assert golden.canonical_record({"value": 1, "worth": 2, "a": 3}, names) == {
        "state_value": 1,
        "value": 2,
        "c": 3,
    }


def test_a_section_of_the_configuration_moves_with_its_keys_and_values(golden):
    text = """
    configuration:
      renamed: {imagine: planning, planning.plans: planning.proposals}
      values: {imagine.plans: {every_action: exhaustive}, planning.proposals: {drawn: sampled}}
    """
    names = golden.Names.read(text)["configuration"]
    flat = {"imagine.plans": "every_action", "generate.imagine.plans": "drawn", "imagine.n": 1}
    assert golden.canonical_configuration(flat, names) == {
        "planning.proposals": "exhaustive",
        "generate.imagine.plans": "drawn",
        "planning.n": 1,
    }


def test_columns_are_renamed_by_their_place(golden):
    text = (
        "columns: {renamed: {turns.reply: turns.response}, values: {stop: {turn_cap: max_turns}}}"
    )
    names = golden.Names.read(text)["columns"]
    record = {"reply": 1, "stop": "turn_cap", "turns": [{"reply": {"think": "turn_cap"}}]}
    assert golden.canonical_record(record, names) == {
        "reply": 1,
        "stop": "max_turns",
        "turns": [{"response": {"think": "turn_cap"}}],
    }


def test_keys_of_results_follow_the_metrics(golden):
    names = golden.Names.read("metrics: {renamed: {wm/pred_exact: wm/prediction_em}}")
    record = {"played": {"wm/pred_exact": 0.5}}
    found = golden.canonical_record(record, names["columns"], names["metrics"])
    assert found == {"played": {"wm/prediction_em": 0.5}}


def test_a_star_stands_for_one_segment(golden):
    names = golden.Names.read(
        "files: {renamed: {sft/extra_1: sft/more_1, '*/gate.json': '*/verdict.json'}}"
    )["files"]
    assert names.rename("run/sft/extra_1/metrics.jsonl") == "run/sft/more_1/metrics.jsonl"
    assert names.rename("run/sft/gate.json") == "run/sft/verdict.json"
    assert names.rename("run/sft/extra_10") == "run/sft/extra_10"


def test_only_what_base_has_not_renamed_itself_is_renamed(golden):
    base = golden.Names.read("metrics: {renamed: {a: b}}")
    tree = golden.Names.read("metrics: {renamed: {a: b, b: c}}")
    assert tree.since(base)["metrics"].renamed == (("b", "c"),)
    assert tree.since(golden.Names.read(""))["metrics"].rename("a") == "c"


def test_unknown_sections_are_refused(golden):
    with pytest.raises(ValueError, match="unknown section metric"):
        golden.Names.read("metric: {renamed: {a: b}}")


def test_commands_of_several_words_are_renamed(golden):
    names = golden.Names.read(
        "commands: {renamed: {config show: config, generate: train selfplay}}"
    )["commands"]
    assert names.rename("config show tiny") == "config tiny"
    assert names.rename("generate tiny") == "train selfplay tiny"
