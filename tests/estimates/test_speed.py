"""The estimate of hours against what was measured, and by hand."""

import json
from math import inf
from pathlib import Path

import pytest
import torch

from spa.config.load import load_config
from spa.models.memory import HALF, cache
from spa.recipes.token_budget import shape_of
from spa_bench.leaderboard.bench import BENCHES
from spa_estimates import speed
from spa_estimates.hours import conversation, stage_times
from spa_estimates.speed import CARDS, Machine, card_for, gpus, this_cpu

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SMALL = shape_of("Qwen/Qwen2.5-0.5B-Instruct")
H200 = next(card for card in CARDS if card.name == "H200")


def measured(name: str) -> dict:
    return json.loads((RESULTS / "gpu" / f"{name}.json").read_text())


@pytest.mark.parametrize("micro", [2048, 8192])
def test_sft_is_as_fast_as_measured_on_the_h200(micro):
    rate = measured("h200-sft-0.5B")["kept activations"][f"{micro} tokens, packed"]["tokens_per_s"]
    assert 1e6 / gpus(H200, 1, vllm=False).train_seconds(SMALL, 1e6, micro) == pytest.approx(
        rate, rel=0.05
    )


def test_recomputed_activations_cost_as_much_as_measured():
    found = measured("h100-sft-0.5B")
    kept, again = (found[f"{name} activations"]["tokens_per_s"] for name in ("kept", "recomputed"))
    assert pytest.approx(kept / again, rel=0.02) == speed.RECOMPUTED


def test_a_decode_step_reaches_the_measured_share_of_the_bandwidth():
    found = measured("h200-rollout-0.5B")["fused"]
    assert pytest.approx(found["share_of_limit"], rel=0.01) == speed.LOCAL_SHARE
    machine = gpus(H200, 1, vllm=False)
    # 256 prompts of 900 tokens and half of the new ones
    step = machine.decode_seconds(SMALL, 256, 900 + found["new_tokens"] / 2, 1, 256)
    assert 1000 * step == pytest.approx(found["step_ms"], rel=0.15)


def test_stages_of_smollm2_take_about_as_long_as_measured_on_one_core():
    peak = json.loads((RESULTS / "bench.json").read_text())["limits"]["bfloat16_gflops"] * 1e9
    core = Machine(
        ranks=1,
        train_flops=speed.CPU_TRAIN_SHARE * peak,
        layer_s=speed.CPU_LAYER_S,
        read=inf,
        decode_flops=speed.CPU_DECODE_SHARE * peak,
        decode_layer_s=speed.CPU_LAYER_S,
        source="",
    )
    cfg = load_config("smol_frozen_lake_states")
    shape = shape_of("Qwen/Qwen2.5-0.5B-Instruct")
    # SmolLM2-135M, whose files are not needed for its shape.
    shape = type(shape)(
        parameters=134_515_008,
        layers=30,
        hidden=576,
        intermediate=1536,
        query_width=576,
        key_width=192,
        linear_widths=11_136,
    )
    usual = BENCHES["smol"].hours
    for time in stage_times(cfg, shape, core):
        if time.stage != "selfplay":  # random play: a minute
            assert 0.5 < (time.seconds or 0) / 3600 / usual[time.stage] < 2


def by_hand(ranks: int = 1) -> Machine:
    return Machine(ranks=ranks, train_flops=1e12, layer_s=0.01, read=1e11, link=1e10, source="")


def test_training_by_hand():
    p, layers = SMALL.parameters, SMALL.layers
    # Four micro-batches of 1,000 tokens.
    one = 4 * layers * 0.01 + 4000 * 6 * p / 1e12
    assert by_hand().train_seconds(SMALL, 4000, 1000) == pytest.approx(one)
    assert by_hand().train_seconds(SMALL, 4000, 1000, forward_only=True) == pytest.approx(one / 3)
    # Two GPUs: two micro-batches each, and half of the model travels, 2 + 2 + 4 bytes a number.
    two = one / 2 + 2 * 8 * p / 2 / 1e10
    assert by_hand(2).train_seconds(SMALL, 4000, 1000, shards=2) == pytest.approx(two)


def test_sampling_by_hand():
    read = HALF * SMALL.parameters + cache(SMALL, 8, 500)
    # 16 conversations, 8 at a time, 100 tokens each
    assert by_hand().decode_seconds(SMALL, 16, 500, 100, 8) == pytest.approx(2 * 100 * read / 1e11)
    # On two ranks each has 8.
    assert by_hand(2).decode_seconds(SMALL, 16, 500, 100, 8) == pytest.approx(100 * read / 1e11)


def test_a_card_is_found_by_name_or_by_memory():
    assert card_for(80, "NVIDIA H100 80GB HBM3").name == "H100"
    assert card_for(79, "NVIDIA A100-SXM4-80GB").memory_gb == 80
    assert card_for(24).name == "RTX 4090" and card_for(143).name == "H200"


def test_the_cpu_of_this_machine_is_measured():
    machine = this_cpu(torch.float32, 2)
    assert machine.train_flops > 1e8 and "2 threads" in machine.source


def test_a_conversation_counts_its_prompts_and_half_of_its_responses():
    cfg = load_config("_2_sokoban")
    talk = conversation(cfg, "base", 400)
    assert talk.turns == 5 and 300 < talk.prompts < 1500
    assert talk.tokens == talk.prompts + 5 * 200
    assert conversation(cfg, "base", 4000).tokens == cfg.actor_rollout_ref.rollout.max_model_len
