"""The gate says what a model can do and what it cannot, and PPO waits for it."""

import json
import shutil

import pytest
from helpers.runs import small_config

from spa.api.runs import plan_training
from spa.config.load import load_config
from spa.errors import TrainingError
from spa.models.load import BUILTIN, BUILTIN_GAMES
from spa.recipes import gate, pipeline
from spa_bench.tiny_model.documents import GAMES

GOOD = {
    "step": 40,
    "val/wm/format_rate": 1.0,
    "val/wm/obs_exact": 0.99,
    "val/wm/prediction_em": 0.75,
    "val/wm/copy_exact": 0.31,
    "val/wm/changed_f1": 0.66,
    "val/sampled_nll": 0.3,
    "val/completions/clipped_ratio": 0.0,
}


def judged(changes: dict, *overrides: str, before: dict | None = None):
    cfg = load_config("_3_frozen_lake", ["gate.enable=true", "model_path=a/b", *overrides])
    lines = [GOOD | before] if before else []
    return gate.judge(cfg, [*lines, GOOD | changes])


# Rows of experiments/ and of the issue that asked for the diagnosis: measured on real models.
@pytest.mark.parametrize(
    ("measured", "diagnosis"),
    [
        (
            {"val/wm/format_rate": 0.0, "val/wm/obs_exact": 0.0, "val/wm/prediction_em": 0.0},
            "bad_format",
        ),
        (
            {"val/wm/format_rate": 0.98, "val/wm/obs_exact": 0.3, "val/wm/prediction_em": 0.1},
            "bad_observation",
        ),
        (
            {
                "val/wm/obs_exact": 0.92,
                "val/wm/prediction_em": 0.115,
                "val/wm/changed_f1": 0.11,
                "val/wm/copy_exact": 0.36,
            },
            "does_not_predict",
        ),
        # Above the limit, but a copier would do better: the built-in model on 4x4.
        (
            {"val/wm/prediction_em": 0.32, "val/wm/changed_f1": 0.3, "val/wm/copy_exact": 0.47},
            "does_not_predict",
        ),
        # Right because hardly anything ever changes.
        (
            {"val/wm/prediction_em": 0.9, "val/wm/changed_f1": 0.0, "val/wm/copy_exact": 0.89},
            "does_not_predict",
        ),
        (
            {"val/wm/prediction_em": 0.46, "val/wm/changed_f1": 0.47, "val/wm/copy_exact": 0.3},
            "predicts",
        ),
        ({}, "predicts"),
    ],
)
def test_the_first_thing_that_a_model_cannot_do_is_named(measured, diagnosis):
    found = judged(measured)
    assert (found.diagnosis, found.passed) == (diagnosis, diagnosis == "predicts")


def test_a_model_that_no_longer_explores_is_held_back_too():
    found = judged({"val/sampled_nll": 0.1})
    assert (found.diagnosis, found.passed) == ("predicts", False)
    assert "entropy is below gate.entropy_min=0.2" in found.text


def test_the_numbers_stand_beside_copying_and_beside_the_measurement_before():
    told = judged(
        {"val/wm/prediction_em": 0.2}, before={"step": 20, "val/wm/prediction_em": 0.1}
    ).text
    assert "prediction 20 %, copy baseline 31 %" in told
    assert "(10 % at step 20, 20 % at step 40)" in told


def test_the_limit_that_was_missed_is_named():
    copier = judged({"val/wm/prediction_em": 0.3}).text
    assert "accuracy is below" in copier and "F1 of changed cells is below" not in copier
    still = judged({"val/wm/changed_f1": 0.05}, "gate.changed_f1_min=0.1").text
    assert "F1 of changed cells is below 0.1" in still and "accuracy is below" not in still


LEARNT = {"train/loss": 0.3, "val/loss": 0.33, "step": 4}


def test_overfitting_is_named_and_nobody_is_told_to_train_longer():
    """131 examples, 100 steps more: measured by a user."""
    worse = {
        "step": 104,
        "val/wm/format_rate": 0.64,
        "val/wm/obs_exact": 0.61,
        "train/loss": 0.026,
        "val/loss": 0.72,
    }
    told = judged(worse, before=LEARNT).text
    assert (
        "does not follow the response format. The model overfits: validation loss rises while training loss falls"
        in told
    )
    assert (
        "(validation loss 0.33 and training loss 0.30 at step 4; validation loss 0.72 and training loss 0.03 at step 104). Use more examples"
        in told
        and "more SFT" not in told
    )
    good = judged({"step": 104, "train/loss": 0.026, "val/loss": 0.72}, before=LEARNT)
    assert good.passed and "nats per token). The model overfits" in good.text


@pytest.mark.parametrize(
    "now",
    [
        {"train/loss": 0.1, "val/loss": 0.34},  # noise
        {"train/loss": 0.1, "val/loss": 0.2},
        {"train/loss": 0.5, "val/loss": 0.6},  # it forgets
        {"train/loss": 0.1},  # no validation rows
    ],
)
def test_what_is_no_overfitting_is_not_called_so(now):
    assert "overfits" not in judged(now, before=LEARNT).text


def test_where_no_response_is_well_formed_nothing_is_said_of_copying():
    """All responses malformed: no action is executed, and copying is right by having nothing to miss."""
    nothing = {
        "val/wm/format_rate": 0.0,
        "val/wm/obs_exact": 0.0,
        "val/wm/prediction_em": 0.0,
        "val/wm/copy_exact": 1.0,
    }
    told = judged(nothing).text
    assert (
        "no response is well-formed" in told
        and "copy baseline" not in told
        and "does not follow the response format" in told
    )


@pytest.mark.parametrize(
    ("setting", "why"), [("gate.enable=false", "enable is false"), ("gate.on_failure=warn", "warn")]
)
def test_ppo_on_a_weak_world_model_begins_with_a_word_about_it(tmp_path, caplog, setting, why):
    cfg = load_config("_3_frozen_lake", ["gate.enable=true", "model_path=a/b", setting])
    gate.write_gate(tmp_path, judged({"val/wm/obs_exact": 0.3}))
    gate.stop_at_gate(cfg, tmp_path)
    assert (
        "PPO starts with a world model that failed the gate" in caplog.text and why in caplog.text
    )


def test_responses_that_are_cut_off_are_the_first_suspect():
    told = judged(
        {"val/wm/format_rate": 0.1, "val/completions/clipped_ratio": 0.85},
        "generate.sampling.response_length=64",
    ).text
    assert (
        "85 % of the model's responses are cut off at generate.sampling.response_length=64" in told
    )


def test_nobody_is_told_to_train_the_built_in_model_longer_on_a_game_it_cannot_read():
    weak = {"val/wm/format_rate": 0.1, "val/wm/prediction_em": 0.0}
    strange = judged(
        weak, f"model_path={BUILTIN}", "es_manager.train.env_configs.tags=[Bandit]"
    ).text
    assert "was not trained for Bandit" in strange
    assert "more SFT" not in strange
    assert "more SFT" in judged(weak, f"model_path={BUILTIN}").text
    assert "more SFT" in judged(weak, "es_manager.train.env_configs.tags=[Bandit]").text


def test_the_built_in_models_games_are_those_of_its_pre_training():
    assert {game.env_type for game in GAMES} == set(BUILTIN_GAMES)


def test_a_model_that_was_not_measured_does_not_pass():
    cfg = load_config("_3_frozen_lake", ["gate.enable=true"])
    found = gate.judge(cfg, [])
    assert (found.diagnosis, found.passed) == ("not_measured", False)
    assert "sft.trainer.eval_episodes" in found.text
    base = load_config("_3_frozen_lake", ["gate.enable=true", "generate.example_format=base"])
    assert "gate.enable=false" in gate.judge(base, []).text


STEPS = (
    "trainer.total_training_steps=1",
    "sft.trainer.total_training_steps=1",
    "generate.num_batches=1",
)


def test_ppo_waits_until_somebody_says_to_go_on_or_limits_are_lowered(base, tmp_path, capsys):
    gate_on = (*STEPS, "gate.enable=true")
    cfg = small_config(base, tmp_path, *gate_on)
    for _ in range(2):  # the same command says the same thing again, without training anything
        with pytest.raises(
            TrainingError,
            # What such a small model gets wrong differs between processors.
            match=r"(?s)PPO did not start, because the world model failed.*gate\.on_failure=warn",
        ):
            pipeline.run(cfg)
    # `--stages sft,ppo` waits, too.
    for job in plan_training(cfg, ("sft", "ppo"))[1][1:]:
        with pytest.raises(TrainingError, match="PPO did not start"):
            job.work(cfg)
    assert not (tmp_path / "ppo").exists()
    assert not json.loads((tmp_path / "sft" / "gate.json").read_text())["passed"]
    going_on = small_config(base, tmp_path, *gate_on, "gate.on_failure=warn")
    assert pipeline.run(going_on) == tmp_path / "ppo" / "global_step_1"
    shutil.rmtree(tmp_path / "ppo")
    names = ("format", "observation_exact", "changed_f1", "prediction_exact", "entropy")
    lowered = small_config(base, tmp_path, *gate_on, *(f"gate.{name}_min=0" for name in names))
    for _ in range(2):
        assert pipeline.run(lowered) == tmp_path / "ppo" / "global_step_1"
        assert json.loads((tmp_path / "sft" / "gate.json").read_text())["passed"]
    said = capsys.readouterr().err
    assert "changed or lost" not in said and said.count("again with the current limits") == 1


@pytest.mark.parametrize("content", [None, "", '{"passed": tr', "[]", '{"passed": true}'])
def test_a_lost_or_damaged_verdict_is_judged_again_and_not_taken_for_a_yes(tmp_path, content):
    cfg = load_config("_3_frozen_lake", ["gate.enable=true", "model_path=a/b"])
    (tmp_path / "metrics.jsonl").write_text(json.dumps(GOOD | {"val/wm/obs_exact": 0.3}) + "\n")
    if content is not None:
        (tmp_path / gate.GATE_FILE).write_text(content)
    with pytest.raises(TrainingError, match="does not describe the current state"):
        gate.stop_at_gate(cfg, tmp_path)
    assert json.loads((tmp_path / gate.GATE_FILE).read_text())["diagnosis"] == "bad_observation"


def test_lost_measurements_are_not_blamed_on_a_setting(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    cfg = load_config("_3_frozen_lake", ["gate.enable=true", "sft.trainer.eval_episodes=8"])
    assert "No line of sft/metrics.jsonl has an accuracy" in gate.judge(cfg, []).text
    cfg = load_config("_3_frozen_lake", ["gate.enable=true", "sft.trainer.eval_episodes=0"])
    assert "set sft.trainer.eval_episodes above 0" in gate.judge(cfg, []).text


def test_measurements_are_judged_by_the_limits_of_now(tmp_path, caplog):
    """The limits are no part of what was fine-tuned, so that a verdict may be older than they are."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps(GOOD | {"val/wm/prediction_em": 0.4}) + "\n")

    def verdict(least: float) -> dict:
        cfg = load_config(
            "_3_frozen_lake",
            ["gate.enable=true", "model_path=a/b", f"gate.prediction_exact_min={least}"],
        )
        gate.stop_at_gate(cfg, tmp_path)
        return json.loads((tmp_path / gate.GATE_FILE).read_text())

    assert verdict(0.28)["passed"]
    with pytest.raises(
        TrainingError, match=r"does not predict the next state: its accuracy is below 50 %"
    ):
        verdict(0.5)
    assert "below 50 %" in json.loads((tmp_path / gate.GATE_FILE).read_text())["text"]
    with pytest.raises(
        TrainingError, match=r"does not predict the next state: its accuracy is below 60 %"
    ):
        verdict(0.6)
    weak = (tmp_path / gate.GATE_FILE).read_text()
    off = ["gate.enable=false", "gate.prediction_exact_min=0.1", "model_path=a/b"]
    gate.stop_at_gate(load_config("_3_frozen_lake", off), tmp_path)
    assert (tmp_path / gate.GATE_FILE).read_text() == weak  # nobody judges where it is off
    assert (
        verdict(0.3)["diagnosis"] == "predicts" and "again with the current limits" in caplog.text
    )
