"""Sections about the stages: data generation, SFT, gate, PPO run, comparison."""

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from spa.config.fields import CopyURL, Folder, Invalid, Key, Name, OutputFolder, section
from spa.config.schema_models import FSDPConfig, ModelConfig, Sampling, Strategy


@section
class SamplingConfig(Sampling):
    """Sampling of self-play."""

    # The original plays with the sampling of its validation; here self-play has its own section.
    response_length: Annotated[
        int, Key("new tokens per turn, at most", affects="semantics", ge=1)
    ] = 400


@section
class ImagineConfig:
    """Sample several responses and play the one whose predicted state has the highest value (`spa
    eval --plan`).

    `generate.imagine` does the same in self-play; with several rounds, from the second one.
    """

    n: Annotated[
        int,
        Key("responses sampled in each state; 1: no planning", affects="semantics", ge=1),
    ] = 1
    proposals: Annotated[
        Literal["sampled", "exhaustive"],
        Key(
            "expand the sampled responses (sampled), or ask the model for every action of the "
            "game (exhaustive)",
            affects="semantics",
        ),
    ] = "sampled"
    depth: Annotated[
        int,
        Key(
            "turns to predict ahead; with exhaustive: actions",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    width: Annotated[
        int, Key("predicted states of a turn to expand further", affects="semantics", ge=1)
    ] = 8
    keep: Annotated[
        bool,
        Key(
            "follow a path to the goal while its predictions are correct; false: plan in each turn",
            affects="semantics",
        ),
    ] = False
    dynamics: Annotated[
        Literal["model", "simulator", "shuffled"],
        Key(
            "source of next states: predictions in the responses, a copy of the game, "
            "predictions of other responses (control)",
            affects="semantics",
        ),
    ] = "model"
    noise_prob: Annotated[
        float,
        Key(
            "probability that the simulator returns the state after another plan",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.noise_prob > 0 and self.dynamics != "simulator":
            raise Invalid(
                "noise_prob", "needs dynamics simulator: only its states can be corrupted"
            )
        if self.keep and self.depth == 1:
            raise Invalid("keep", "needs depth above 1: a path of one turn ends when it is played")
        if self.proposals == "exhaustive" and self.n > 1:
            raise Invalid("n", "must be 1 with proposals exhaustive: no responses are sampled")
        if self.proposals == "exhaustive" and self.dynamics == "simulator":
            raise Invalid(
                "dynamics",
                "cannot be simulator with proposals exhaustive, which uses the model's predictions",
            )
        return self

    @property
    def on(self) -> bool:
        """Whether planning is on."""
        return self.n > 1 or self.proposals == "exhaustive"

    @property
    def reads_predictions(self) -> bool:
        """Whether the planner reads predictions in responses."""
        return self.on and self.dynamics != "simulator"

    @property
    def rows(self) -> int:
        """Approximate number of responses that an episode samples at a time."""
        # About as many actions as a game has. It only sizes the batches of an evaluation.
        return 8 if self.proposals == "exhaustive" else self.n


@section
class SearchExamplesConfig:
    """`generate.policy: search`: examples of responses that write a breadth-first search."""

    examples: Annotated[
        int, Key("training examples, each of a different puzzle", affects="semantics", ge=1)
    ] = 800
    start_share: Annotated[
        float,
        Key(
            "share of examples at the start of a puzzle; the others show a random reachable "
            "state of a later turn",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.6
    dynamics: Annotated[
        Literal["simulator", "model"],
        Key(
            "source of next states: copies of the game, or the model, fine-tuned first on "
            "single moves of random play (`generate.rounds=2`)",
            affects="semantics",
        ),
    ] = "simulator"
    moves: Annotated[
        int, Key("single moves to fine-tune the model on first", affects="semantics", ge=1)
    ] = 1200
    moves_per_step: Annotated[
        int, Key("single moves per optimiser step", affects="semantics", ge=1)
    ] = 15
    thoughts: Annotated[
        Literal["search", "none", "dealt", "other_puzzle"],
        Key(
            "the search, or nothing (`agent_proxy.enable_think=false`); controls: outcomes "
            "permuted among a state's actions, the search of another puzzle",
            affects="semantics",
        ),
    ] = "search"


@section
class GenerateConfig:
    """Stage 1: self-play with ground-truth states, on the environments of `es_manager.train`."""

    # 5 x 256 episodes, as in the original.
    num_batches: Annotated[
        int,
        Key(
            "batches of self-play, each of new puzzles and as many episodes as a PPO step",
            affects="semantics",
            ge=1,
        ),
    ] = 5
    group_size: Annotated[
        int | None,
        Key(
            "episodes per puzzle, a divisor of `es_manager.train.group_size` (null: that); "
            "the episodes per batch stay the same",
            affects="semantics",
            ge=1,
        ),
    ] = None
    rounds: Annotated[
        int,
        Key(
            "rounds of self-play and fine-tuning; from the second on the fine-tuned model plays",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    later_batches: Annotated[
        int | None,
        Key(
            "`num_batches` of the rounds after the first; null: the same",
            affects="semantics",
            ge=1,
        ),
    ] = None
    train_on: Annotated[
        Literal["all_rounds", "current_round"],
        Key(
            "examples that later rounds are fine-tuned on: of all rounds, or of the round alone",
            affects="semantics",
        ),
    ] = "all_rounds"
    output_dir: Annotated[
        OutputFolder | None, Key("null: `<trainer.run_dir>/data`", affects="paths")
    ] = None
    # By puzzle, where the original splits by row: puzzles of training are in no validation.
    val_fraction: Annotated[
        float, Key("share of puzzles in the validation file", affects="semantics", gt=0, le=0.9)
    ] = 0.2
    split_seed: Annotated[int, Key("seed of the split by puzzle", affects="semantics", ge=0)] = 42
    # The text of a state stays plausible, but no longer follows from the actions.
    shuffle_next_states: Annotated[
        bool, Key("control: replace next states by true ones of other turns", affects="semantics")
    ] = False
    success_only: Annotated[
        bool, Key("keep only turns of successful episodes", affects="semantics")
    ] = False
    policy: Annotated[
        str,
        Key(
            "the player: self, the model; random, legal actions; counterfactual, random play that also "
            "tries every other action in a copy; expert, a solver; q_learning, tabular Q-learning; "
            "search, examples without play; or an installed policy",
            affects="semantics",
        ),
    ] = "self"
    branches: Annotated[
        int | None,
        Key(
            "number of plans that counterfactual play tries in each state; null: every legal action",
            affects="semantics",
            ge=1,
        ),
    ] = None
    mixture: Annotated[
        Mapping[str, Annotated[float, Field(gt=0)]] | None,
        Key(
            "shares of episodes by policy, as {self: 0.5, counterfactual: 0.5}; null: all by `policy`",
            affects="semantics",
        ),
    ] = None
    # So that rare outcomes of an action are trained as often as common ones.
    coverage: Annotated[
        bool,
        Key(
            "resample training examples by 1 / count of (actions, whether the state changed)",
            affects="semantics",
        ),
    ] = False
    epsilon: Annotated[
        float, Key("share of turns played at random", affects="semantics", ge=0, le=1)
    ] = 0.0
    states: Annotated[
        Literal["ground_truth", "model", "random_coords"],
        Key(
            "states in the responses: true ones; controls: as the model wrote them, random "
            "coordinates",
            affects="semantics",
        ),
    ] = "ground_truth"
    reply_format: Annotated[
        Literal["world_model", "base", "moves"],
        Key(
            "format of the examples; base: plans and answers only; moves: one action and the "
            "key of the next state",
            affects="semantics",
        ),
    ] = "world_model"
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    imagine: ImagineConfig = field(default_factory=ImagineConfig)
    search: SearchExamplesConfig = field(default_factory=SearchExamplesConfig)

    @property
    def policies(self) -> tuple[str, ...]:
        """Everybody who plays."""
        return tuple(self.mixture or (self.policy,))

    @property
    def batches_of_later_rounds(self) -> int:
        """Of each of them."""
        return self.later_batches or self.num_batches

    @property
    def batches_of_all_rounds(self) -> int:
        """Batches of self-play, each of as many episodes as a PPO step has."""
        return self.num_batches + (self.rounds - 1) * self.batches_of_later_rounds


@section
class SFTDataConfig:
    """Stage 2: data."""

    train_files: Annotated[
        str | tuple[str, ...] | None,
        Key("parquet files; null: those of stage 1", affects="semantics", content="data"),
    ] = None
    val_files: Annotated[
        str | tuple[str, ...] | None,
        Key("parquet files; null: those of stage 1", affects="semantics", content="data"),
    ] = None
    # 16 examples a step and 2,048 tokens each, as in the original.
    train_batch_size: Annotated[
        int, Key("examples per optimiser step at most, merged or not", affects="semantics", ge=1)
    ] = 16
    micro_batch_size_per_gpu: Annotated[
        int,
        Key("sequences per forward pass; changes memory, not results", affects="numerics", ge=1),
    ] = 1
    max_token_len_per_gpu: Annotated[
        int | None,
        Key(
            "fill forward passes up to so many tokens instead of by sequences",
            affects="numerics",
            ge=1,
        ),
    ] = None
    max_length: Annotated[int, Key("tokens per example, at most", affects="semantics", ge=2)] = 2048
    # The original cuts tokens from the left and leaves the loss mask where it was.
    truncation: Annotated[
        Literal["left", "error"],
        Key(
            "longer examples: drop their oldest turns (left), or stop with an error",
            affects="semantics",
        ),
    ] = "left"
    # What the turns of an episode have in common is computed once.
    merge_turns: Annotated[
        bool,
        Key(
            "train examples of an episode that are prefixes of each other as one sequence",
            affects="semantics",
        ),
    ] = True
    loss_on: Annotated[
        str,
        Key(
            "tokens that carry the loss: response, states_only, no_states, a method with a mask "
            "(act_obs), or a path `package.module:name`",
            affects="semantics",
        ),
    ] = "response"


@section
class SFTModelConfig(ModelConfig):
    """Stage 2: model."""

    partial_pretrain: Annotated[
        str, Key("model to start from", affects="semantics", content="model")
    ] = "Qwen/Qwen2.5-1.5B-Instruct"
    # Off, as in the original's fine-tuning.
    enable_gradient_checkpointing: Annotated[
        bool, Key("recompute activations in the backward pass", affects="numerics")
    ] = False
    strategy: Annotated[
        Strategy, Key("on several ranks: whole copies (ddp) or shards (fsdp)", affects="numerics")
    ] = "fsdp"
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@section
class SFTOptimConfig:
    """Stage 2: optimiser and schedule."""

    # The original's fine-tuning: AdamW at 1e-4 with (0.9, 0.95), 10 % warm-up, cosine to 0.
    name: Annotated[
        Literal["adamw", "muon"],
        Key("muon: Muon for the matrices, AdamW for the rest", affects="semantics"),
    ] = "adamw"
    lr: Annotated[float, Key("peak learning rate of AdamW", affects="semantics", gt=0)] = 1e-4
    muon_lr: Annotated[float, Key("peak learning rate of Muon", affects="semantics", gt=0)] = 0.02
    betas: Annotated[
        tuple[float, float], Key("decay rates of the moments (AdamW)", affects="semantics")
    ] = (
        0.9,
        0.95,
    )
    eps: Annotated[float, Key("AdamW epsilon", affects="semantics", gt=0)] = 1e-8
    weight_decay: Annotated[float, Key("decoupled weight decay", affects="semantics", ge=0)] = 0.01
    warmup_steps_ratio: Annotated[
        float, Key("linear warm-up as a share of all steps", affects="semantics", ge=0, le=1)
    ] = 0.1
    clip_grad: Annotated[float, Key("largest gradient norm", affects="semantics", gt=0)] = 1.0
    lr_scheduler: Annotated[
        Literal["cosine", "constant"],
        Key("learning-rate schedule after the warm-up", affects="semantics"),
    ] = "cosine"


@section
class SFTTrainerConfig:
    """Stage 2: length, saving, evaluation."""

    default_local_dir: Annotated[Folder, Key("folder of the checkpoints", affects="paths")] = (
        "runs/test/sft"
    )
    # Counts by its content: on another machine its path may be another.
    resume_path: Annotated[
        str | None,
        Key(
            "checkpoint to resume from; null: the last one of this run",
            affects="semantics",
            content="checkpoint",
        ),
    ] = None
    total_epochs: Annotated[
        int, Key("passes over the training examples", affects="semantics", ge=1)
    ] = 5
    total_training_steps: Annotated[
        int | None, Key("optimiser steps, instead of `total_epochs`", affects="semantics", ge=1)
    ] = None
    test_freq: Annotated[
        int | None, Key("steps between evaluations; null: each epoch", affects="logging", ge=1)
    ] = None
    save_freq: Annotated[
        int | None, Key("steps between checkpoints; null: each epoch", affects="paths", ge=1)
    ] = None
    keep: Annotated[
        int | None, Key("newest checkpoints to keep; null: all", affects="paths", ge=1)
    ] = None
    eval_episodes: Annotated[
        int,
        Key("held-out puzzles played to measure world-model accuracy", affects="semantics", ge=0),
    ] = 64
    seed: Annotated[int, Key("seed of the order of examples", affects="semantics", ge=0)] = 1


@section
class SFTConfig:
    """Stage 2: world-model fine-tuning."""

    data: SFTDataConfig = field(default_factory=SFTDataConfig)
    model: SFTModelConfig = field(default_factory=SFTModelConfig)
    optim: SFTOptimConfig = field(default_factory=SFTOptimConfig)
    trainer: SFTTrainerConfig = field(default_factory=SFTTrainerConfig)


@section
class GateConfig:
    """The look at the world model between SFT and PPO."""

    # It decides whether PPO starts, and changes no number of a stage: `paths`.
    enable: Annotated[
        bool, Key("start PPO only after a world model that passes the gate", affects="paths")
    ] = False
    on_failure: Annotated[
        Literal["stop", "warn"],
        Key("if the gate fails: `spa run` stops, or warns and trains", affects="paths"),
    ] = "stop"
    format_min: Annotated[
        float, Key("smallest share of well-formed responses", affects="paths", ge=0, le=1)
    ] = 0.8
    observation_exact_min: Annotated[
        float, Key("smallest share of exact observations", affects="paths", ge=0, le=1)
    ] = 0.8
    changed_f1_min: Annotated[
        float,
        Key(
            "smallest F1 of the predicted changes; the copy baseline scores 0",
            affects="paths",
            ge=0,
            le=1,
        ),
    ] = 0.1
    prediction_exact_min: Annotated[
        float,
        Key(
            "smallest share of exact predictions, which must also exceed the copy baseline; "
            "0: no limit",
            affects="paths",
            ge=0,
            le=1,
        ),
    ] = 0.28
    entropy_min: Annotated[
        float, Key("smallest entropy of responses, in nats per token", affects="paths", ge=0)
    ] = 0.2


@section
class GenerationsToLogConfig:
    """Sample episodes that trackers get as tables."""

    train: Annotated[int, Key("episodes per training step", affects="logging", ge=0)] = 128
    val: Annotated[int, Key("episodes per validation", affects="logging", ge=0)] = 20


@section
class TrainerConfig:
    """Stage 3 and the run as a whole."""

    project_name: Annotated[str, Key("project name for trackers", affects="logging")] = "spa"
    experiment_name: Annotated[Name, Key("name of the run", affects="logging")] = "test"
    run_dir: Annotated[
        Folder, Key("folder of the run, with data/, sft/ and ppo/", affects="paths")
    ] = "runs/test"
    default_local_dir: Annotated[Folder, Key("folder of the PPO checkpoints", affects="paths")] = (
        "runs/test/ppo"
    )
    default_hdfs_dir: Annotated[
        CopyURL | None,
        Key(
            "fsspec URL (s3://…, gs://…, file://…) for a copy of each checkpoint; null: none",
            affects="paths",
        ),
    ] = None
    # 1,000 steps, a checkpoint every 100, a validation every 10: the original's.
    total_training_steps: Annotated[int, Key("PPO steps", affects="semantics", ge=1)] = 1000
    save_freq: Annotated[
        int, Key("steps between checkpoints; -1: only at the end", affects="paths", ge=-1)
    ] = 100
    test_freq: Annotated[
        int, Key("steps between validations; -1: only at start and end", affects="logging", ge=-1)
    ] = 10
    also_test_at: Annotated[
        int | None, Key("one more step with a validation", affects="logging", ge=1)
    ] = None
    val_before_train: Annotated[bool, Key("validate before the first step", affects="logging")] = (
        True
    )
    # The original validates the same puzzles in every pass.
    validation_steps: Annotated[
        int, Key("passes per validation, each over different puzzles", affects="semantics", ge=1)
    ] = 2
    critic_warmup: Annotated[
        int, Key("steps that train only the critic", affects="semantics", ge=0)
    ] = 0
    resume_mode: Annotated[
        Literal["auto", "disable", "resume_path"],
        Key("auto: resume from the last checkpoint", affects="paths"),
    ] = "auto"
    resume_from_path: Annotated[
        str | None,
        Key("checkpoint for `resume_mode: resume_path`", affects="semantics", content="checkpoint"),
    ] = None
    max_actor_ckpt_to_keep: Annotated[
        int | None, Key("newest checkpoints to keep; null: all", affects="paths", ge=1)
    ] = 1
    logger: Annotated[
        tuple[Literal["console", "tensorboard", "wandb", "trackio"], ...],
        Key("trackers; the run always writes metrics.jsonl", affects="logging"),
    ] = ("console",)
    # The original's name; every tracker takes its tables from here.
    generations_to_log_to_wandb: GenerationsToLogConfig = field(
        default_factory=GenerationsToLogConfig
    )
    n_gpus_per_node: Annotated[int, Key("GPUs to use, at most", affects="numerics", ge=1)] = 1
    nnodes: Annotated[
        int, Key("machines (launcher ray; torchrun has its own option)", affects="numerics", ge=1)
    ] = 1
    device: Annotated[str, Key("auto, cpu, cuda or cuda:N", affects="numerics")] = "auto"
    rank_timeout_s: Annotated[
        float, Key("time that a rank waits for another, in seconds", affects="numerics", gt=0)
    ] = 1800.0
    threads: Annotated[
        int | None,
        Key(
            "CPU threads per process; null: one if several methods train at a time",
            affects="numerics",
            ge=1,
        ),
    ] = None
    stall_timeout_s: Annotated[
        float | None,
        Key(
            "seconds without progress after which the run ends with a stack dump; null: none",
            affects="numerics",
            gt=0,
        ),
    ] = 3600.0
    kl_warn: Annotated[
        float, Key("warn if KL(sampler ‖ trainer) per token exceeds this", affects="logging", ge=0)
    ] = 0.01
    kl_stop: Annotated[
        float, Key("stop at the first step if it exceeds this", affects="logging", gt=0)
    ] = 0.1


@section
class RayInitConfig:
    """`launcher: ray`."""

    address: Annotated[
        str | None,
        Key(
            "address of the Ray cluster, or auto; null: start one on this machine", affects="paths"
        ),
    ] = None
    num_cpus: Annotated[
        int | None,
        Key("CPUs of a Ray cluster on this machine alone; null: all", affects="paths", ge=1),
    ] = None
    cpus_per_worker: Annotated[int, Key("CPUs per rank", affects="paths", ge=1)] = 1
    max_failures: Annotated[
        int, Key("replacements of lost workers; -1: no limit", affects="paths", ge=-1)
    ] = 3
    storage_path: Annotated[
        str | None,
        Key("folder of Ray's own state; null: ray/ in the run's folder", affects="paths"),
    ] = None


@section
class CompareConfig:
    """`spa compare`: the same number of episodes for every arm."""

    arms: Annotated[
        tuple[str, ...],
        Key(
            "methods to compare: names of `spa config list methods`, or your own as module:name",
            affects="logging",
        ),
    ] = ("vanilla", "spa")
    seeds: Annotated[int, Key("full pipelines per method", affects="logging", ge=1)] = 1
    parallel: Annotated[int, Key("processes at a time on CPUs", affects="numerics", ge=1)] = 2
    per_gpu: Annotated[int, Key("processes at a time on each GPU", affects="numerics", ge=1)] = 1
    bootstrap: Annotated[
        int, Key("resamples of the confidence interval over puzzles", affects="logging", ge=1)
    ] = 2000
