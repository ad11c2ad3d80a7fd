from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import pytest

from spa.config.hardware import clamp_to_hardware, default_threads
from spa.config.load import load_config
from spa.config.schema import to_plain
from spa.engines.factory import engine_name


def asked(*overrides):
    return load_config("base", overrides)


@pytest.mark.parametrize(
    ("name", "gpus", "vllm", "chosen", "warned"),
    [
        ("auto", 0, False, "local", 0),
        ("auto", 0, True, "local", 0),
        ("auto", 1, False, "local", 0),
        ("auto", 1, True, "vllm", 0),
        ("vllm", 1, True, "vllm", 0),
        ("vllm", 1, False, "local", 1),
        ("vllm", 0, True, "local", 1),
        ("random", 1, True, "random", 0),
    ],
)
def test_engine(name, gpus, vllm, chosen, warned):
    cfg, warnings = clamp_to_hardware(
        asked(f"actor_rollout_ref.rollout.name={name}"), gpus=gpus, vllm=vllm
    )
    assert (cfg.actor_rollout_ref.rollout.name, len(warnings)) == (chosen, warned)


def test_a_build_for_cpus_is_used_if_it_is_asked_for():
    for name, chosen in (("vllm", "vllm"), ("auto", "local")):
        cfg, warnings = clamp_to_hardware(
            asked(f"actor_rollout_ref.rollout.name={name}"), gpus=0, vllm=True, cpu_build=True
        )
        assert (cfg.actor_rollout_ref.rollout.name, warnings) == (chosen, [])


def test_a_run_on_the_cpu_samples_there():
    cfg, _ = clamp_to_hardware(asked("trainer.device=cpu"), gpus=1, vllm=True)
    assert cfg.actor_rollout_ref.rollout.name == "local"


def test_an_engine_on_four_gpus_on_smaller_machines():
    four = asked("actor_rollout_ref.rollout.tensor_model_parallel_size=4")
    told = "actor_rollout_ref.rollout.tensor_model_parallel_size is 4, but spa uses"
    for gpus, there, reason in (
        (2, 2, "this machine has 2 GPUs"),
        (0, 1, "the local engine cannot split a model over several GPUs"),
    ):
        cfg, warnings = clamp_to_hardware(four, gpus=gpus, vllm=gpus > 0)
        assert cfg.actor_rollout_ref.rollout.tensor_model_parallel_size == there
        assert warnings == [f"{told} {there}, because {reason}"]


def test_only_resources_change():
    four = asked("actor_rollout_ref.rollout.tensor_model_parallel_size=4")
    cfg, _ = clamp_to_hardware(four, gpus=1, vllm=True)
    rollout = replace(cfg.actor_rollout_ref.rollout, name="auto", tensor_model_parallel_size=4)
    back = replace(cfg, actor_rollout_ref=replace(cfg.actor_rollout_ref, rollout=rollout))
    assert to_plain(back) == to_plain(four)
    assert clamp_to_hardware(cfg, gpus=1, vllm=True) == (cfg, [])


def test_methods_that_run_side_by_side_have_one_thread_each():
    assert default_threads() is None
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(default_threads).result() == 1


def test_an_engine_that_is_not_there_is_replaced_with_a_warning(caplog):
    cfg = asked("actor_rollout_ref.rollout.name=vllm")
    if clamp_to_hardware(cfg, gpus=0)[1] == []:
        pytest.skip("vllm is installed here")
    assert engine_name(cfg) == engine_name(cfg) == "local"
    assert caplog.text.count("is vllm, but spa uses the local engine") == 1
