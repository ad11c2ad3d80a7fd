from dataclasses import replace
from types import SimpleNamespace

import pytest

from spa.cli import main
from spa.config.load import load_config
from spa.config.schema import Config
from spa.recipes import token_budget
from spa.recipes.token_budget import shape_of, with_token_budgets
from spa_estimates.fit import CHANGES, GB, Place, advice, disk, fit_lines, fits, phases

MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def test_a_small_gpu_gets_advice_that_helps(capsys):
    assert (
        main(["doctor", "--fit", "base", "--gpu-memory", "24", "micro_batch_size_per_gpu=4"]) == 1
    )
    out = capsys.readouterr().out
    assert "1.54 billion parameters; GPU with 24 GB" in out
    assert "! PPO, updating" in out
    assert "The configuration does not fit" in out
    assert "lora.rank=64" in out


def test_each_piece_of_advice_lowers_a_phase():
    cfg, shape = load_config("base", ["micro_batch_size_per_gpu=8"]), shape_of(MODEL)
    lines = [line for line in advice(cfg, shape, 20.0) if "->" in line]
    assert lines
    for line in lines:
        before, after = line.split()[-4], line.split()[-2]
        assert float(after) < float(before)


def test_advice_on_dynamic_batches_helps_as_it_is_printed():
    dynamic = [
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=65536",
        "sft.data.max_token_len_per_gpu=65536",
    ]
    cfg, shape = load_config("base", dynamic), shape_of(MODEL)
    lines = [line for line in advice(cfg, shape, 24.0) if "micro_batch" in line]
    printed = [word for line in lines for word in line.split() if "=" in word]
    changed = load_config("base", [*dynamic, *printed])
    totals = [{phase.stage: phase.total for phase in phases(c, shape)} for c in (cfg, changed)]
    for stage in ("fine-tuning", "PPO, updating"):
        assert totals[1][stage] < totals[0][stage]


@pytest.mark.parametrize("gpu", [48.0, 24.0])
def test_what_leaves_the_algorithm_alone_comes_first(gpu):
    wide = ["actor_rollout_ref.model.dtype=float32", "micro_batch_size_per_gpu=8"]
    lines = list(advice(load_config("_3_frozen_lake", wide), shape_of(MODEL), gpu))
    names = [line.split()[0].partition("=")[0] for line in lines]
    recomputed = ["enable_gradient_checkpointing"] if gpu == 24 else []
    same = ["dtype", "micro_batch_size_per_gpu", *recomputed, "actor_rollout_ref.rollout.name"]
    assert names[: len(same) + 2] == ["Same", *same, "on"]
    assert "fsdp_config.offload_policy=true" in lines[len(same) + 1]
    assert names[len(same) + 2 : len(same) + 4] == ["Other", "lora.rank"]


def test_what_does_not_help_is_not_advised():
    """An update that fits already keeps its micro-batches, and 64 sequences at a time are fewer
    than what half of the puzzles would leave."""
    text = "\n".join(advice(load_config("_3_frozen_lake"), shape_of(MODEL), 48.0))
    assert "micro_batch_size" not in text
    assert "env_groups" not in text


def test_vllm_holds_no_more_caches_than_sequences():
    shape = shape_of(MODEL)
    engine = ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.max_num_seqs=64"]
    local = {phase.stage: phase for phase in phases(load_config("base"), shape)}
    vllm = {phase.stage: phase for phase in phases(load_config("base", engine), shape)}
    train = load_config("base").es_manager.train
    episodes = train.env_groups * train.group_size
    for stage in ("self-play", "PPO, playing"):
        held = [phases_of[stage].parts["keys and values"] for phases_of in (local, vllm)]
        assert held[0] * 64 == held[1] * episodes
    copy = "engine (copy of the weights)"
    assert vllm["PPO, playing"].parts[copy] == 2 * shape.parameters
    assert copy not in vllm["PPO, updating"].parts


def test_the_local_engine_keeps_its_copy_and_few_keys_and_values_during_an_update():
    shape, copy, cache = shape_of(SMALL), "engine (copy of the weights)", "keys and values"
    cfg = load_config("one_gpu")
    playing, updating = phases(cfg, shape, gpu_gb=80)[2:]
    assert playing.parts[copy] == updating.parts[copy] == 2 * shape.parameters
    # 5.7 GB are more than a sixteenth of 80 GB and less than that of 141 GB.
    assert cache not in updating.parts
    assert phases(cfg, shape, gpu_gb=141)[3].parts[cache] == playing.parts[cache]
    # In float32 the engine reads the trainer's weights.
    wide = load_config("one_gpu", ["actor_rollout_ref.model.dtype=float32"])
    assert phases(wide, shape)[3].parts[copy] == 0


def test_what_counts_in_each_phase():
    shape = shape_of(MODEL)

    def peak(cfg: Config) -> int:
        return max(phase.total for phase in phases(cfg, shape))

    base = peak(load_config("base"))
    no_critic = load_config("base", ["algorithm.adv_estimator=grpo"])
    assert base - peak(no_critic) == 16 * shape.parameters
    with_kl = load_config(
        "base",
        ["actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.1"],
    )
    assert peak(with_kl) - base == 4 * shape.parameters
    lora = load_config("base-lora", [f"model_path={MODEL}"])
    assert peak(lora) < base / 2
    assert all(fits(phase, 80) for phase in phases(lora, shape))


def test_the_larger_pass_of_policy_and_critic_counts():
    shape = shape_of(MODEL)

    def activations(*overrides: str) -> int:
        update = phases(load_config("base", [*overrides]), shape)[-1]
        return update.parts["activations"]

    critic, actor = (
        f"{part}.ppo_micro_batch_size_per_gpu=16" for part in ("critic", "actor_rollout_ref.actor")
    )
    assert activations() < activations(critic) == activations(actor)
    no_critic = "algorithm.adv_estimator=grpo"
    assert activations(critic, no_critic) == activations(no_critic)


@pytest.mark.parametrize(
    ("rank", "gpu", "groups"), [("64", 16, 8), ("64", 24, 8), ("0", 24, 4), ("0", 32, 8)]
)
def test_the_preset_for_one_gpu_fits(rank, gpu, groups):
    """With the engine's copy of the weights, all weights need fewer episodes on 24 GB, as docs/scaling.md has it."""
    assert load_config("one_gpu").es_manager.train.env_groups == 8
    cfg = load_config("one_gpu", [f"lora.rank={rank}", f"es_manager.train.env_groups={groups}"])
    assert cfg.es_manager.train.env_configs.tags == ("FrozenLake",)
    assert cfg.sft.model.lora_rank == cfg.critic.model.lora_rank == int(rank)
    assert all(fits(phase, gpu) for phase in phases(cfg, shape_of(cfg.model_path)))


SMALL = "Qwen/Qwen2.5-0.5B-Instruct"


def test_micro_batches_have_as_many_tokens_as_fit():
    cfg, shape = load_config("one_gpu"), shape_of(SMALL)
    sizes = {}
    for gpu in (12.0, 16.0, 24.0, 80.0):
        chosen = with_token_budgets(cfg, gpu * GB)
        assert all(
            fits(phase, gpu) for phase in phases(chosen, shape) if "playing" not in phase.stage
        )
        sizes[gpu] = (
            chosen.sft.data.max_token_len_per_gpu,
            chosen.actor_rollout_ref.actor.ppo_max_token_len_per_gpu,
        )
        assert chosen.actor_rollout_ref.actor.use_dynamic_bsz is True
    assert sizes[80.0] == (16384, 16384)
    assert sizes[12.0][0] < sizes[16.0][0] < sizes[24.0][0] < sizes[80.0][0]
    # Shards of a model leave more memory to its activations, whole copies do not.
    for strategy, more in (("fsdp", True), ("ddp", False)):
        parts = [f"sft.model.strategy={strategy}", "lora.rank=0"]
        one, four = (
            with_token_budgets(load_config("one_gpu", parts), 20.0 * GB, ranks) for ranks in (1, 4)
        )
        tokens = [each.sft.data.max_token_len_per_gpu for each in (one, four)]
        assert (tokens[1] > tokens[0]) is more and tokens[1] >= tokens[0]
        assert all(fits(phase, 20.0) for phase in phases(four, shape, 4)[1:2])
    two = with_token_budgets(load_config("one_gpu", ["compare.per_gpu=2"]), 16.0 * GB)
    assert two.sft.data.max_token_len_per_gpu < sizes[16.0][0]


def test_a_cpu_and_numbers_of_ones_own_keep_what_they_have():
    cfg = with_token_budgets(load_config("base"), None)
    assert cfg.sft.data.max_token_len_per_gpu is None
    actor = cfg.actor_rollout_ref.actor
    assert (actor.use_dynamic_bsz, cfg.critic.use_dynamic_bsz) == (False, False)
    assert actor.ppo_max_token_len_per_gpu == 16384
    own = load_config("tiny")
    assert with_token_budgets(own, 80 * GB) is own
    # too small for the models: single sequences
    assert with_token_budgets(load_config("base"), 24 * GB).critic.use_dynamic_bsz is False


def fit(capsys, *arguments: str) -> tuple[int, str]:
    status = main(["doctor", "--fit", *arguments])
    return status, capsys.readouterr().out


def test_several_gpus_hold_shards_and_whole_copies(capsys):
    cfg, shape = load_config("_2_sokoban"), shape_of(MODEL)
    one, four = (
        {phase.stage: phase.parts for phase in phases(cfg, shape, ranks)} for ranks in (1, 4)
    )
    for stage, name in (
        ("fine-tuning", "model (weights, gradients, Adam)"),
        ("PPO, updating", "policy (weights, gradients, Adam)"),
        ("PPO, updating", "critic (weights, gradients, Adam)"),
        ("PPO, playing", "keys and values"),
    ):
        assert four[stage][name] * 4 == pytest.approx(one[stage][name], rel=0.01)
    # Each rank plays with a whole policy, and the first one keeps a whole critic.
    assert four["PPO, playing"]["whole copies of the sharded models"] == 8 * shape.parameters
    whole = load_config("_2_sokoban", ["actor_rollout_ref.actor.strategy=ddp"])
    parts = phases(whole, shape, 4)[-1].parts
    assert parts["policy (weights, gradients, Adam)"] == 16 * shape.parameters
    status, out = fit(capsys, "_2_sokoban", "--gpus", "4", "--gpu-memory", "80")
    assert status == 0 and "4 GPUs with 80 GB each (as given)" in out
    assert "Memory of each GPU, sharded (strategy=fsdp):" in out
    assert "With strategy=ddp, the peak is 61.1 GB." in out
    assert "torchrun --nproc-per-node 4 -m spa run _2_sokoban\n" in out


def test_hours_disk_and_a_command_that_fits(capsys):
    arguments = ["_2_sokoban", "--gpus", "4", "--gpu-memory", "24", "Qwen/Qwen2.5-1.5B-Instruct"]
    status, out = fit(capsys, *arguments)
    assert status == 1 and "does not fit" in out
    assert "Time (estimate, not measured: " in out and "RTX 4090" in out
    for line in ("  self-play  about", "  SFT        about", "  PPO        about", "Disk: up to "):
        assert line in out
    words = out.split("Command: torchrun --nproc-per-node 4 -m spa run ")[1].split()
    assert words[:2] == ["_2_sokoban", "model_path=Qwen/Qwen2.5-1.5B-Instruct"]
    changed = load_config(words[0], words[1:])
    assert all(fits(phase, 24) for phase in phases(changed, shape_of(MODEL), 4))
    assert "It changes the algorithm" not in out
    status, out = fit(capsys, "_2_sokoban", "--gpu-memory", "40")
    assert status == 1 and "It changes the algorithm: lora.rank=64." in out


def test_disk_counts_the_checkpoints_that_stages_keep():
    """Base saves SFT after each of five epochs, and keeps all; PPO keeps one, and has a critic."""
    shape, each = shape_of(MODEL), 12 * shape_of(MODEL).parameters
    base = load_config("base")
    assert disk(base, shape, ["sft"]) == 6 * each
    assert disk(base, shape, ["ppo"]) == 2 * 2 * each
    last = load_config("base", ["trainer.save_freq=-1", "trainer.max_actor_ckpt_to_keep=null"])
    assert disk(last, shape, ["ppo"]) == 2 * 2 * each
    demo = load_config("demo", ["generate.rounds=2"])
    assert disk(demo, shape, ["sft"]) == 3 * each


def test_the_last_step_is_validated_too(capsys):
    assert main(["run", "tiny", "--stages", "ppo", "--dry-run", "trainer.test_freq=-1"]) == 0
    assert "2 validations" in capsys.readouterr().out


def test_hours_are_those_of_the_printed_command(capsys):
    asked = ["actor_rollout_ref.rollout.name=vllm"]
    place = ["--gpus", "4", "--gpu-memory", "24"]
    main(["doctor", "--fit", "_2_sokoban", *place, *asked])
    out = capsys.readouterr().out
    printed = out.split("-m spa run _2_sokoban ")[1].split("\n")[0].split()
    assert len(printed) > len(asked)
    main(["doctor", "--fit", "_2_sokoban", *place, *printed])
    again = capsys.readouterr().out
    assert (
        out[out.index("Time (") : out.index("Command:")]
        == (again[again.index("Time (") : again.index("Command:")])
    )


def test_a_model_replaces_that_of_the_configuration(capsys):
    status, out = fit(capsys, "_2_sokoban", "--gpu-memory", "48", "Qwen/Qwen2.5-0.5B-Instruct")
    assert status == 0 and "Qwen/Qwen2.5-0.5B-Instruct: 0.49 billion parameters" in out
    assert "Command: spa run _2_sokoban model_path=Qwen/Qwen2.5-0.5B-Instruct\n" in out


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.keys[0])
def test_the_keys_of_a_change_make_the_configuration_that_was_estimated(change):
    wide = ["actor_rollout_ref.actor.use_dynamic_bsz=true", "sft.data.max_token_len_per_gpu=65536"]
    shape = shape_of(MODEL)
    typed = phases(load_config("_2_sokoban", [*wide, *change.keys]), shape, 4)
    changed = phases(change.apply(load_config("_2_sokoban", wide)), shape, 4)
    assert typed == changed


@pytest.mark.parametrize(
    ("stage", "named", "others"),
    [
        ("sft", "fine-tuning", ("PPO", "self-play", "policy", "critic")),
        ("ppo", "PPO, updating", ("fine-tuning", "self-play", "SFT")),
        ("selfplay", "self-play", ("fine-tuning", "PPO", "SFT", "Tokens of a micro-batch")),
    ],
)
def test_an_estimate_has_the_memory_of_its_stages_alone(stage, named, others, tmp_path, capsys):
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "a", "response": "b"}\n')
    command = f"run tiny --stages {stage} --dry-run data.train_files={chats}"
    assert main([*command.split(), f"trainer.run_dir={tmp_path / 'run'}"]) == 0
    memory, _, _ = capsys.readouterr().out.partition("Time (")
    assert "Memory: up to" in memory
    assert not any(f"({name}" in memory for name in others)
    shape, place = shape_of(MODEL), Place(count=2, memory_gb=24.0, said="as given")
    text = "\n".join(fit_lines(load_config("base"), shape, place, ["base"], stages=[stage]))
    memory, _, _ = text.partition("The configuration")
    assert named in memory and not any(name in memory for name in others)


def test_budgets_are_those_of_the_engine_that_auto_becomes(monkeypatch):
    cfg = load_config("base", ["actor_rollout_ref.rollout.name=auto", "trainer.device=cuda"])
    rollout = replace(cfg.actor_rollout_ref.rollout, name="vllm")
    served = replace(cfg, actor_rollout_ref=replace(cfg.actor_rollout_ref, rollout=rollout))
    monkeypatch.setattr(token_budget, "on_cpu", lambda cfg: False)
    monkeypatch.setattr(token_budget, "on_this_machine", lambda cfg: served)
    memory = SimpleNamespace(total_memory=60 * GB)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: memory)
    made = token_budget.with_budgets_of_device(cfg)
    assert made.actor_rollout_ref.rollout.name == "auto"
    assert (
        made.actor_rollout_ref.actor == with_token_budgets(served, 60 * GB).actor_rollout_ref.actor
    )
    assert made.actor_rollout_ref.actor != with_token_budgets(cfg, 60 * GB).actor_rollout_ref.actor
