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
        int, Key("largest number of new tokens per turn", affects="semantics", ge=1)
    ] = 400


@section
class ImagineConfig:
    """Sample several responses and play the one whose predicted state has the highest value (`spa
    eval --plan`).

    `generate.imagine` does the same in self-play; with several rounds, from the second one.
    """

    n: Annotated[
        int,
        Key(
            "number of responses sampled in each state; 1 turns planning off",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    proposals: Annotated[
        Literal["sampled", "exhaustive"],
        Key(
            "what the planner expands: the actions of sampled responses (`sampled`), or every action of "
            "the game (`exhaustive`)",
            affects="semantics",
        ),
    ] = "sampled"
    depth: Annotated[
        int,
        Key(
            "number of turns to predict ahead; with proposals=exhaustive, the number of actions",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    width: Annotated[
        int,
        Key(
            "number of predicted states that the planner expands at each depth",
            affects="semantics",
            ge=1,
        ),
    ] = 8
    keep: Annotated[
        bool,
        Key(
            "follow a planned path to the goal while its predictions are correct; `false` replans in "
            "each turn",
            affects="semantics",
        ),
    ] = False
    dynamics: Annotated[
        Literal["model", "simulator", "shuffled"],
        Key(
            "source of next states: predictions in the responses (`model`), a copy of the game "
            "(`simulator`), or predictions of other responses (`shuffled`, a control)",
            affects="semantics",
        ),
    ] = "model"
    noise_prob: Annotated[
        float,
        Key(
            "probability that the simulator returns the next state of a random plan instead of the true "
            "next state",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.0

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.noise_prob > 0 and self.dynamics != "simulator":
            raise Invalid(
                "noise_prob",
                "noise_prob above 0 needs dynamics=simulator, because only the simulator's states can be "
                "corrupted",
            )
        if self.keep and self.depth == 1:
            raise Invalid(
                "keep",
                "keep=true needs a depth of at least 2, because a path of one turn leaves no turn to follow",
            )
        if self.proposals == "exhaustive" and self.n > 1:
            raise Invalid("n", "must be 1 with proposals=exhaustive, which samples no responses")
        if self.proposals == "exhaustive" and self.dynamics == "simulator":
            raise Invalid(
                "dynamics",
                "cannot be simulator with proposals=exhaustive, which uses the model's predictions",
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
        int,
        Key("number of training examples, each from a different puzzle", affects="semantics", ge=1),
    ] = 800
    start_share: Annotated[
        float,
        Key(
            "share of examples that show the start of a puzzle; the other examples show a random "
            "reachable state of a later turn",
            affects="semantics",
            ge=0,
            le=1,
        ),
    ] = 0.6
    dynamics: Annotated[
        Literal["simulator", "model"],
        Key(
            "source of next states: copies of the game (`simulator`), or the model after SFT on single "
            "moves of random play (`model`, needs `generate.rounds=2`)",
            affects="semantics",
        ),
    ] = "simulator"
    moves: Annotated[
        int,
        Key(
            "number of one-action transitions that the first SFT trains on",
            affects="semantics",
            ge=1,
        ),
    ] = 1200
    moves_per_step: Annotated[
        int,
        Key(
            "number of one-action transitions per optimiser step of the first SFT",
            affects="semantics",
            ge=1,
        ),
    ] = 15
    thoughts: Annotated[
        Literal["search", "none", "dealt", "other_puzzle"],
        Key(
            "content of the think block: `search` is a breadth-first search, and `none` is no think block (needs "
            "`agent_proxy.enable_think=false`). Controls: `dealt` permutes the outcomes among a state's "
            "actions, and `other_puzzle` is the search of another puzzle",
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
            "number of self-play batches; each batch has new puzzles and as many episodes as a PPO step",
            affects="semantics",
            ge=1,
        ),
    ] = 5
    group_size: Annotated[
        int | None,
        Key(
            "episodes per puzzle in self-play, which must divide `es_manager.train.group_size`; null "
            "uses that group size. The number of episodes per batch does not change",
            affects="semantics",
            ge=1,
        ),
    ] = None
    rounds: Annotated[
        int,
        Key(
            "number of rounds of self-play and fine-tuning; from round 2 on, the fine-tuned model plays",
            affects="semantics",
            ge=1,
        ),
    ] = 1
    later_batches: Annotated[
        int | None,
        Key(
            "number of self-play batches in each round after the first; null uses `num_batches`",
            affects="semantics",
            ge=1,
        ),
    ] = None
    train_on: Annotated[
        Literal["all_rounds", "current_round"],
        Key(
            "examples for fine-tuning in later rounds: examples of all rounds (`all_rounds`), or only of "
            "the current round (`current_round`)",
            affects="semantics",
        ),
    ] = "all_rounds"
    output_dir: Annotated[
        OutputFolder | None,
        Key("folder of the self-play data; null uses `<trainer.run_dir>/data`", affects="paths"),
    ] = None
    # By puzzle, where the original splits by row: puzzles of training are in no validation.
    val_fraction: Annotated[
        float,
        Key(
            "share of puzzles whose examples go to the validation file",
            affects="semantics",
            gt=0,
            le=0.9,
        ),
    ] = 0.2
    split_seed: Annotated[
        int,
        Key("seed of the split of puzzles into training and validation", affects="semantics", ge=0),
    ] = 42
    # The text of a state stays plausible, but no longer follows from the actions.
    shuffle_next_states: Annotated[
        bool,
        Key(
            "control: replace each next state by the true next state of another turn",
            affects="semantics",
        ),
    ] = False
    success_only: Annotated[
        bool, Key("keep only the turns of successful episodes", affects="semantics")
    ] = False
    policy: Annotated[
        str,
        Key(
            "policy that plays self-play. `self` is the model, `random` plays legal actions, and "
            "`counterfactual` plays at random and also tries every other action in a copy of the game. "
            "`expert` is a solver, `q_learning` is tabular Q-learning, and `search` writes examples "
            "without play. You can also name an installed policy",
            affects="semantics",
        ),
    ] = "self"
    branches: Annotated[
        int | None,
        Key(
            "number of plans that counterfactual play tries in each state; null tries every legal action",
            affects="semantics",
            ge=1,
        ),
    ] = None
    mixture: Annotated[
        Mapping[str, Annotated[float, Field(gt=0)]] | None,
        Key(
            "share of episodes per policy, for example {self: 0.5, counterfactual: 0.5}; null uses "
            "`policy` for all episodes",
            affects="semantics",
        ),
    ] = None
    # So that rare outcomes of an action are trained as often as common ones.
    coverage: Annotated[
        bool,
        Key(
            "resample training examples by the inverse frequency of their actions together with whether "
            "the state changed",
            affects="semantics",
        ),
    ] = False
    epsilon: Annotated[
        float,
        Key("share of turns in which random actions are played", affects="semantics", ge=0, le=1),
    ] = 0.0
    states: Annotated[
        Literal["ground_truth", "model", "random_coords"],
        Key(
            "states in the training examples: `ground_truth`, or as controls the states that the model "
            "wrote (`model`) or random coordinates (`random_coords`)",
            affects="semantics",
        ),
    ] = "ground_truth"
    reply_format: Annotated[
        Literal["world_model", "base", "moves"],
        Key(
            "format of the training examples: `world_model`, `base` (plans and answers only), or `moves` "
            "(one action and the short name of the next state)",
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
        Key(
            "parquet files with training examples; null uses the files that stage 1 (self-play) writes",
            affects="semantics",
            content="data",
        ),
    ] = None
    val_files: Annotated[
        str | tuple[str, ...] | None,
        Key(
            "parquet files with validation examples; null uses the files that stage 1 (self-play) writes",
            affects="semantics",
            content="data",
        ),
    ] = None
    # 16 examples a step and 2,048 tokens each, as in the original.
    train_batch_size: Annotated[
        int,
        Key(
            "largest number of examples per optimiser step; merged examples count separately",
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
        int | None,
        Key(
            "largest number of tokens per forward pass; null fills forward passes by number of sequences",
            affects="numerics",
            ge=1,
        ),
    ] = None
    max_length: Annotated[
        int, Key("largest number of tokens per example", affects="semantics", ge=2)
    ] = 2048
    # The original cuts tokens from the left and leaves the loss mask where it was.
    truncation: Annotated[
        Literal["left", "error"],
        Key(
            "treatment of examples that exceed `max_length`: `left` drops the oldest turns, and `error` "
            "stops the run",
            affects="semantics",
        ),
    ] = "left"
    # What the turns of an episode have in common is computed once.
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
    """Stage 2: model."""

    partial_pretrain: Annotated[
        str, Key("model from which SFT starts", affects="semantics", content="model")
    ] = "Qwen/Qwen2.5-1.5B-Instruct"
    # Off, as in the original's fine-tuning.
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
    """Stage 2: optimiser and schedule."""

    # The original's fine-tuning: AdamW at 1e-4 with (0.9, 0.95), 10 % warm-up, cosine to 0.
    name: Annotated[
        Literal["adamw", "muon"],
        Key(
            "optimiser: `adamw` for all parameters, or `muon` for matrices with AdamW for the other "
            "parameters",
            affects="semantics",
        ),
    ] = "adamw"
    lr: Annotated[float, Key("peak learning rate of AdamW", affects="semantics", gt=0)] = 1e-4
    muon_lr: Annotated[float, Key("peak learning rate of Muon", affects="semantics", gt=0)] = 0.02
    betas: Annotated[
        tuple[float, float],
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
    """Stage 2: length, saving, evaluation."""

    default_local_dir: Annotated[Folder, Key("folder of the SFT checkpoints", affects="paths")] = (
        "runs/test/sft"
    )
    # Counts by its content: on another machine its path may be another.
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
            "number of optimiser steps, instead of `total_epochs`; null uses `total_epochs`",
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
    """Sample episodes that trackers get as tables."""

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
    """Stage 3 and the run as a whole."""

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
    # 1,000 steps, a checkpoint every 100, a validation every 10: the original's.
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
    # The original validates the same puzzles in every pass.
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
        tuple[Literal["console", "tensorboard", "wandb", "trackio"], ...],
        Key(
            "trackers that receive the metrics; spa always writes metrics.jsonl, too",
            affects="logging",
        ),
    ] = ("console",)
    # The original's name; every tracker takes its tables from here.
    generations_to_log_to_wandb: GenerationsToLogConfig = field(
        default_factory=GenerationsToLogConfig
    )
    n_gpus_per_node: Annotated[
        int, Key("largest number of GPUs to use on each machine", affects="numerics", ge=1)
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
        str, Key("device that computes: auto, cpu, cuda or cuda:N", affects="numerics")
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
            "stop the run at the first step if the KL per token between sampler and trainer exceeds this "
            "value",
            affects="logging",
            gt=0,
        ),
    ] = 0.1


@section
class RayInitConfig:
    """`launcher: ray`."""

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
    """`spa compare`: the same number of episodes for every arm."""

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
