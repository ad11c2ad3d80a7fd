"""Sections on the stages: SFT, gate, PPO run, comparison."""

from dataclasses import field
from typing import Annotated, Literal

from spa.config.fields import CopyURL, Device, Folder, Key, Name, section
from spa.config.schema_models import Beta, FSDPConfig, ModelConfig, Strategy, Tokens


@section
class SFTDataConfig:
    """Data set, batches and loss tokens of stage 2 (SFT)."""

    train_files: Annotated[
        str | tuple[str, ...] | None,
        Key(
            "training examples: files (JSONL, JSON, Parquet), folders or Hub data sets; null uses those of "
            "stage 1 (self-play)",
            affects="semantics",
            content="data",
        ),
    ] = None
    val_files: Annotated[
        str | tuple[str, ...] | None,
        Key(
            "validation examples, as `train_files`; null uses those next to the training examples, if any",
            affects="semantics",
            content="data",
        ),
    ] = None
    # The defaults of this key and of `max_length` come from the original code.
    train_batch_size: Annotated[
        int,
        Key(
            "largest number of examples per optimizer step; merged examples count separately",
            affects="semantics",
            ge=1,
        ),
    ] = 16
    micro_batch_size_per_gpu: Annotated[
        int,
        Key(
            "sequences per forward pass on each GPU; changes memory use, not results",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    max_token_len_per_gpu: Annotated[
        Tokens | Literal["auto"] | None,
        Key(
            "largest number of tokens per forward pass; null fills forward passes by number of sequences; "
            "auto is null on a CPU, and on CUDA as many tokens as fit into memory",
            affects="numerics",
        ),
    ] = "auto"
    max_length: Annotated[
        int, Key("largest number of tokens per example", affects="semantics", ge=2)
    ] = 2048
    # The original code cuts tokens from the left, but does not shift the loss mask with them.
    truncation: Annotated[
        Literal["left", "error"],
        Key(
            "treatment of examples that exceed `max_length`: `left` drops the oldest turns, and `error` "
            "stops the run",
            affects="semantics",
        ),
    ] = "left"
    last_response_only: Annotated[
        bool,
        Key(
            "train only on the last assistant message of each chat; otherwise on all of them",
            affects="semantics",
        ),
    ] = False
    # In a merged sequence, the prompt that the turns of an episode share is computed only once.
    merge_turns: Annotated[
        bool,
        Key(
            "merge the examples of an episode into one sequence where one example is a prefix of the next",
            affects="semantics",
        ),
    ] = True
    loss_on: Annotated[
        str,
        Key(
            "tokens that carry the SFT loss: `response` (all), `states_only`, `no_states` (all except "
            "states), a method with a mask (`act_obs`), or an import path `package.module:name`",
            affects="semantics",
        ),
    ] = "response"


@section
class SFTModelConfig(ModelConfig):
    """The model that stage 2 (SFT) trains."""

    partial_pretrain: Annotated[
        str, Key("model from which SFT starts", affects="semantics", content="model")
    ] = "Qwen/Qwen2.5-1.5B-Instruct"
    # Off, as in the fine-tuning of the original code.
    enable_gradient_checkpointing: Annotated[
        bool,
        Key("recompute activations in the backward pass, which saves memory", affects="numerics"),
    ] = False
    strategy: Annotated[
        Strategy,
        Key(
            "distribution of the model over ranks: full replicas (`ddp`) or shards (`fsdp`)",
            affects="numerics",
        ),
    ] = "fsdp"
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@section
class SFTOptimConfig:
    """Optimizer and learning-rate schedule of stage 2 (SFT)."""

    # The defaults come from the original code: AdamW at 1e-4, betas (0.9, 0.95), 10 % warm-up,
    # cosine to 0.
    name: Annotated[
        Literal["adamw", "muon"],
        Key(
            "optimizer: `adamw` for all parameters, or `muon` for matrices with AdamW for the other "
            "parameters",
            affects="semantics",
        ),
    ] = "adamw"
    lr: Annotated[float, Key("peak learning rate of AdamW", affects="semantics", gt=0)] = 1e-4
    muon_lr: Annotated[float, Key("peak learning rate of Muon", affects="semantics", gt=0)] = 0.02
    betas: Annotated[
        tuple[Beta, Beta],
        Key("decay rates of AdamW's first and second moments", affects="semantics"),
    ] = (
        0.9,
        0.95,
    )
    eps: Annotated[float, Key("AdamW epsilon", affects="semantics", gt=0)] = 1e-8
    weight_decay: Annotated[float, Key("decoupled weight decay", affects="semantics", ge=0)] = 0.01
    warmup_steps_ratio: Annotated[
        float,
        Key("steps with linear warm-up, as a share of all steps", affects="semantics", ge=0, le=1),
    ] = 0.1
    clip_grad: Annotated[
        float,
        Key("largest gradient norm; larger gradients are scaled down", affects="semantics", gt=0),
    ] = 1.0
    lr_scheduler: Annotated[
        Literal["cosine", "constant"],
        Key("learning-rate schedule after the warm-up", affects="semantics"),
    ] = "cosine"


@section
class SFTTrainerConfig:
    """Length, checkpoints and evaluation of stage 2 (SFT)."""

    default_local_dir: Annotated[Folder, Key("folder of the SFT checkpoints", affects="paths")] = (
        "runs/test/sft"
    )
    # Fingerprints compare the checkpoint by content, because its path may differ on another
    # machine.
    resume_path: Annotated[
        str | None,
        Key(
            "SFT checkpoint to resume from; null uses the last checkpoint of this run",
            affects="semantics",
            content="checkpoint",
        ),
    ] = None
    total_epochs: Annotated[
        int, Key("number of passes over the training examples", affects="semantics", ge=1)
    ] = 5
    total_training_steps: Annotated[
        int | None,
        Key(
            "number of optimizer steps, instead of `total_epochs`; null uses `total_epochs`",
            affects="semantics",
            ge=1,
        ),
    ] = None
    test_freq: Annotated[
        int | None,
        Key("steps between evaluations; null evaluates after each epoch", affects="logging", ge=1),
    ] = None
    save_freq: Annotated[
        int | None,
        Key("steps between checkpoints; null saves after each epoch", affects="paths", ge=1),
    ] = None
    keep: Annotated[
        int | None,
        Key(
            "number of newest checkpoints to keep; null keeps all checkpoints",
            affects="paths",
            ge=1,
        ),
    ] = None
    eval_episodes: Annotated[
        int,
        Key(
            "number of held-out puzzles that are played to measure world-model accuracy",
            affects="semantics",
            ge=0,
        ),
    ] = 64
    seed: Annotated[
        int, Key("seed of the order of training examples", affects="semantics", ge=0)
    ] = 1


@section
class SFTConfig:
    """Stage 2: supervised fine-tuning (SFT) on world-model data."""

    data: SFTDataConfig = field(default_factory=SFTDataConfig)
    model: SFTModelConfig = field(default_factory=SFTModelConfig)
    optim: SFTOptimConfig = field(default_factory=SFTOptimConfig)
    trainer: SFTTrainerConfig = field(default_factory=SFTTrainerConfig)


@section
class GateConfig:
    """The world-model gate: limits that the model must pass between SFT and PPO."""

    # The gate affects only `paths`, because it decides whether PPO starts but changes no result of
    # a stage.
    enable: Annotated[
        bool, Key("start PPO only if the world model passes the gate", affects="paths")
    ] = False
    on_failure: Annotated[
        Literal["stop", "warn"],
        Key(
            "what `spa run` does if the gate fails: `stop`, or `warn` and train PPO",
            affects="paths",
        ),
    ] = "stop"
    format_min: Annotated[
        float,
        Key(
            "smallest share of well-formed responses that passes the gate",
            affects="paths",
            ge=0,
            le=1,
        ),
    ] = 0.8
    observation_exact_min: Annotated[
        float,
        Key(
            "smallest share of exact observations that passes the gate", affects="paths", ge=0, le=1
        ),
    ] = 0.8
    changed_f1_min: Annotated[
        float,
        Key(
            "smallest F1 of predicted changes that passes the gate; the copy baseline scores 0",
            affects="paths",
            ge=0,
            le=1,
        ),
    ] = 0.1
    prediction_exact_min: Annotated[
        float,
        Key(
            "smallest share of exact predictions that passes the gate, which must also exceed the copy "
            "baseline; 0 sets no limit",
            affects="paths",
            ge=0,
            le=1,
        ),
    ] = 0.28
    entropy_min: Annotated[
        float,
        Key(
            "smallest response entropy that passes the gate, in nats per token",
            affects="paths",
            ge=0,
        ),
    ] = 0.2


@section
class GenerationsToLogConfig:
    """Sample episodes that trackers show as tables."""

    train: Annotated[
        int,
        Key(
            "number of sample episodes per training step that trackers receive",
            affects="logging",
            ge=0,
        ),
    ] = 128
    val: Annotated[
        int,
        Key(
            "number of sample episodes per validation that trackers receive",
            affects="logging",
            ge=0,
        ),
    ] = 20


@section
class TrainerConfig:
    """Settings of stage 3 (PPO), and of the run as a whole."""

    project_name: Annotated[str, Key("project name that trackers show", affects="logging")] = "spa"
    experiment_name: Annotated[Name, Key("name of the run", affects="logging")] = "test"
    run_dir: Annotated[
        Folder, Key("folder of the run, which contains data/, sft/ and ppo/", affects="paths")
    ] = "runs/test"
    default_local_dir: Annotated[Folder, Key("folder of the PPO checkpoints", affects="paths")] = (
        "runs/test/ppo"
    )
    default_hdfs_dir: Annotated[
        CopyURL | None,
        Key(
            "fsspec URL (s3://…, gs://…, file://…) to which every checkpoint is copied; null makes no "
            "copies",
            affects="paths",
        ),
    ] = None
    # The defaults come from the original code: 1,000 steps, a checkpoint every 100 steps, a
    # validation every 10 steps.
    total_training_steps: Annotated[int, Key("number of PPO steps", affects="semantics", ge=1)] = (
        1000
    )
    save_freq: Annotated[
        int, Key("PPO steps between checkpoints; -1 saves only at the end", affects="paths", ge=-1)
    ] = 100
    test_freq: Annotated[
        int,
        Key(
            "PPO steps between validations; -1 validates only at the start and at the end",
            affects="logging",
            ge=-1,
        ),
    ] = 10
    also_test_at: Annotated[
        int | None,
        Key("one additional PPO step after which spa validates", affects="logging", ge=1),
    ] = None
    val_before_train: Annotated[
        bool, Key("validate before the first PPO step", affects="logging")
    ] = True
    # In the original code, every pass plays the same puzzles.
    validation_steps: Annotated[
        int,
        Key(
            "number of passes per validation; each pass plays different puzzles",
            affects="semantics",
            ge=1,
        ),
    ] = 2
    critic_warmup: Annotated[
        int,
        Key(
            "number of PPO steps at the start that train only the critic", affects="semantics", ge=0
        ),
    ] = 0
    resume_mode: Annotated[
        Literal["auto", "disable", "resume_path"],
        Key(
            "where training starts: `auto` resumes from the last checkpoint, `disable` starts from "
            "scratch, and `resume_path` resumes from `resume_from_path`",
            affects="paths",
        ),
    ] = "auto"
    resume_from_path: Annotated[
        str | None,
        Key(
            "checkpoint to resume from with `resume_mode: resume_path`",
            affects="semantics",
            content="checkpoint",
        ),
    ] = None
    max_actor_ckpt_to_keep: Annotated[
        int | None,
        Key(
            "number of newest checkpoints to keep; null keeps all checkpoints",
            affects="paths",
            ge=1,
        ),
    ] = 1
    logger: Annotated[
        tuple[str, ...],
        Key(
            "trackers that receive the metrics; spa always writes metrics.jsonl, too",
            affects="logging",
        ),
    ] = ("console",)
    # The name comes from the original code, but the numbers apply to every tracker.
    generations_to_log_to_wandb: GenerationsToLogConfig = field(
        default_factory=GenerationsToLogConfig
    )
    n_gpus_per_node: Annotated[
        int,
        Key(
            "number of GPUs to use on each machine with launcher=ray; torchrun has its own option",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    nnodes: Annotated[
        int,
        Key(
            "number of machines with launcher=ray; torchrun has its own option for machines",
            affects="numerics",
            ge=1,
        ),
    ] = 1
    device: Annotated[
        Device, Key("device that computes: auto, cpu, cuda or cuda:N", affects="numerics")
    ] = "auto"
    rank_timeout_s: Annotated[
        float,
        Key(
            "seconds that a rank waits for another rank before the run ends with an error",
            affects="numerics",
            gt=0,
        ),
    ] = 1800.0
    threads: Annotated[
        int | None,
        Key(
            "number of CPU threads per process; null uses one thread if several methods train at a time",
            affects="numerics",
            ge=1,
        ),
    ] = None
    stall_timeout_s: Annotated[
        float | None,
        Key(
            "seconds without progress after which the run prints all stacks and ends; null sets no limit",
            affects="numerics",
            gt=0,
        ),
    ] = 3600.0
    kl_warn: Annotated[
        float,
        Key(
            "warn if the KL per token between sampler and trainer exceeds this value",
            affects="logging",
            ge=0,
        ),
    ] = 0.01
    kl_stop: Annotated[
        float,
        Key(
            "stop the run before its first policy update if the KL per token between sampler and trainer "
            "exceeds this value",
            affects="logging",
            gt=0,
        ),
    ] = 0.1


@section
class RayInitConfig:
    """Settings of `launcher: ray`."""

    address: Annotated[
        str | None,
        Key(
            "address of the Ray cluster, or auto; null starts a cluster on this machine",
            affects="paths",
        ),
    ] = None
    num_cpus: Annotated[
        int | None,
        Key(
            "number of CPUs of a Ray cluster that spa starts on this machine; null uses all CPUs",
            affects="paths",
            ge=1,
        ),
    ] = None
    cpus_per_worker: Annotated[int, Key("number of CPUs per rank", affects="paths", ge=1)] = 1
    max_failures: Annotated[
        int,
        Key("how many times Ray replaces lost workers; -1 sets no limit", affects="paths", ge=-1),
    ] = 3
    storage_path: Annotated[
        str | None,
        Key("folder for Ray's own state; null uses ray/ in the folder of the run", affects="paths"),
    ] = None


@section
class CompareConfig:
    """Settings of `spa compare`, which gives every method the same number of episodes."""

    arms: Annotated[
        tuple[str, ...],
        Key(
            "methods to compare: names from `spa config list methods`, or your own as module:name",
            affects="logging",
        ),
    ] = ("vanilla", "spa")
    seeds: Annotated[
        int,
        Key(
            "number of seeds; each method runs its complete pipeline once per seed",
            affects="logging",
            ge=1,
        ),
    ] = 1
    parallel: Annotated[
        int, Key("number of processes at a time on CPUs", affects="numerics", ge=1)
    ] = 2
    per_gpu: Annotated[
        int, Key("number of processes at a time on each GPU", affects="numerics", ge=1)
    ] = 1
    bootstrap: Annotated[
        int,
        Key(
            "number of bootstrap resamples for the confidence interval over puzzles",
            affects="logging",
            ge=1,
        ),
    ] = 2000
