import pytest

from spa.cli import main
from spa.commands.fit import advice, fits, peak, phases, shape_of
from spa.config.load import load_config

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def test_a_small_gpu_gets_advice_that_helps(capsys):
    assert (
        main(["doctor", "--fit", "base", "--gpu-memory", "24", "micro_batch_size_per_gpu=4"]) == 1
    )
    out = capsys.readouterr().out
    assert "1.54 billion parameters; GPU with 24 GB" in out
    assert "! PPO, updating" in out
    assert "It does not fit" in out
    assert "lora.rank=64" in out


def test_a_large_gpu_fits(capsys):
    assert main(["doctor", "--fit", "base", "--gpu-memory", "141"]) == 0
    assert "It fits." in capsys.readouterr().out


def test_each_piece_of_advice_lowers_the_peak():
    cfg, shape = load_config("base", ["micro_batch_size_per_gpu=8"]), shape_of(MODEL)
    for line in advice(cfg, shape, 20.0):
        if "->" in line:
            before, after = line.split()[-4], line.split()[-2]
            assert float(after) < float(before)


def test_what_counts_in_each_phase():
    shape = shape_of(MODEL)
    base = peak(load_config("base"), shape)
    no_critic = load_config("base", ["algorithm.adv_estimator=grpo"])
    assert base - peak(no_critic, shape) == 16 * shape.parameters
    with_kl = load_config(
        "base",
        ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.1"],
    )
    assert peak(with_kl, shape) - base == 4 * shape.parameters
    lora = load_config("base-lora", [f"model_path={MODEL}"])
    assert peak(lora, shape) < base / 2
    assert all(fits(phase, 80) for phase in phases(lora, shape))


def test_unknown_models_are_looked_up(tmp_path, capsys):
    assert main(["doctor", "--fit", "base", f"model_path={tmp_path}"]) == 2
    assert "no config.json" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--fit"], ["--gpu-memory", "many"]])
def test_unusable_arguments(arguments, capsys):
    with pytest.raises(SystemExit):
        main(["doctor", *arguments])
    assert "usage: spa doctor" in capsys.readouterr().err
