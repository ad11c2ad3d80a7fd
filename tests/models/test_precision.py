"""The precision of a run on a CPU: by the processor, the model's size and what the run began with."""

import json
from dataclasses import replace
from pathlib import Path

from helpers.families import small_model

from spa.config.load import load_config
from spa.config.schema import to_yaml
from spa.models.precision import KEYS, precision_of, processor_feature, with_precision

HUB = "owner/a-model-of-135M-parameters"


def asked(*overrides: str):
    return load_config("base", ["trainer.device=cpu", f"model_path={HUB}", *overrides])


def test_real_models_take_what_the_processor_is_fast_in():
    cfg = asked()
    for feature, found in (("amx", "bfloat16"), ("avx512_bf16", "bfloat16"), ("none", "float32")):
        assert precision_of(cfg, feature=feature) == dict.fromkeys(KEYS, found)


def test_small_models_stay_in_float32(tmp_path):
    small_model("llama3").save_pretrained(tmp_path)
    for model in ("builtin:tiny", str(tmp_path)):
        assert set(precision_of(asked(f"model_path={model}"), feature="amx").values()) == {
            "float32"
        }


def test_a_folder_whose_code_is_trusted_is_looked_at(tmp_path):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.C"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "own.py").write_text(
        "from transformers import PretrainedConfig\nclass C(PretrainedConfig):\n    model_type = 'own'\n"
    )
    trusted = asked(f"model_path={tmp_path}", "actor_rollout_ref.model.trust_remote_code=true")
    assert precision_of(trusted, feature="amx") == dict.fromkeys(KEYS, "bfloat16")


def test_what_is_named_stays_and_the_engine_follows_a_trainer_in_float32():
    named = precision_of(asked("actor_rollout_ref.model.dtype=float32"), feature="amx")
    assert named["actor_rollout_ref.rollout.dtype"] == "float32"
    named = precision_of(asked("actor_rollout_ref.rollout.dtype=float32"), feature="amx")
    assert [named[key] for key in KEYS] == ["bfloat16", "float32", "bfloat16", "bfloat16"]


def test_the_bfloat16_of_a_preset_counts_as_auto_where_the_processor_emulates_it(tmp_path):
    cfg = load_config("demo", ["trainer.device=cpu"])
    named = precision_of(cfg, feature="amx")
    assert named["sft.model.dtype"] == "bfloat16"
    assert set(precision_of(cfg, feature="none").values()) == {"float32"}
    # A run that began in bfloat16 goes on in it.
    (tmp_path / "config.yaml").write_text(to_yaml(with_precision(cfg, named)), encoding="utf-8")
    assert precision_of(cfg, [tmp_path], feature="none") == named


def test_a_run_goes_on_in_its_own_precision_on_another_processor(tmp_path):
    begun = with_precision(asked(), precision_of(asked(), feature="amx"))
    assert begun.sft.model.dtype == "bfloat16"
    (tmp_path / "config.yaml").write_text(to_yaml(begun), encoding="utf-8")
    assert precision_of(asked(), [Path("nowhere"), tmp_path], feature="none") == dict.fromkeys(
        KEYS, "bfloat16"
    )
    (tmp_path / "config.yaml").write_text(to_yaml(asked()), encoding="utf-8")
    assert precision_of(asked(), [tmp_path], feature="amx") == dict.fromkeys(KEYS, "auto")


def test_on_cuda_the_configuration_stays_as_it_is():
    cfg = asked()
    cfg = replace(cfg, trainer=replace(cfg.trainer, device="cuda"))
    assert with_precision(cfg, precision_of(cfg)) == cfg


def test_this_processor_is_in_the_table():
    assert processor_feature() in ("amx", "avx512_bf16", "none")
